"""Rules about earlier runs whose output a job reads. Before a submit, cloudtrain asks the target for their states."""

from __future__ import annotations

from cloudtrain.core.plan import Finding, Level
from cloudtrain.rules.rule import declare, registered

declare(
    "CT531",
    Level.ERROR,
    """An input comes from a run that has not succeeded.

    `run:NAME/output/OUTPUT` names what an earlier run wrote. When that run failed, the data is not there, or only a
    part of it. A dry run knows the state that was last seen; a submit asks the target. A job waits for a run that goes
    on; a sweep does not, and neither does `rerun --set`.
    """,
)


def not_succeeded(path: tuple[str | int, ...], name: str, state: str | None) -> Finding:
    """Return the finding for an input whose run did not succeed. `state` is None if the run does not exist on the
    target.
    """
    message = f"the run `{name}` is {state}" if state else f"the run `{name}` is gone"
    hint = f"wait for it: `cloudtrain wait {name}`" if state in ("pending", "queued", "preparing", "running") else None
    level = registered["CT531"].level
    return Finding("CT531", level, f"{message}, so its output is incomplete", hint or "run it again first", path)
