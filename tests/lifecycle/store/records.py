"""Records for stores."""

from __future__ import annotations

from cloudtrain.lifecycle.store.store import RunRecord

KEY = "ab" * 32


def record(name: str = "job-1-1", counter: int = 1, **changes: object) -> RunRecord:
    """A submission that has just taken its name."""
    fields: dict[str, object] = {
        "name": name, "target": "local", "place": None, "job_name": "job", "key": KEY, "submitter": "me@here",
        "store": "", "counter": counter, "stage": "planned", "state": "pending", "reason": None,
        "created": 1000.0 + counter, "started": None, "ended": None,
    }  # fmt: skip
    return RunRecord(**fields | changes)  # type: ignore[arg-type]
