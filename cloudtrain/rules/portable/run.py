"""Rules about earlier runs whose output a job reads. Before a submit, cloudtrain asks the target for their states."""

from __future__ import annotations

from cloudtrain.core.plan import Finding, Level
from cloudtrain.rules.rule import declare, registered

declare(
    "CT531",
    Level.ERROR,
    """An input comes from a run that has not succeeded.

    `run:NAME/output/OUTPUT` is the output of an earlier run. If that run failed, the output is missing or incomplete.
    A dry run uses the run's last known state; a submit asks the target. A job waits for an unfinished run, but a sweep
    and `rerun --set` do not.
    """,
)


def not_succeeded(path: tuple[str | int, ...], name: str, state: str | None) -> Finding:
    """Return the finding for an input from the run `name`, which did not succeed. `state` is None if the run does not
    exist on the target.
    """
    message = f"the run `{name}` is {state}" if state else f"the run `{name}` no longer exists"
    hint = f"wait for it: `cloudtrain wait {name}`" if state in ("pending", "queued", "preparing", "running") else None
    level = registered["CT531"].level
    return Finding("CT531", level, f"{message}, so its output is incomplete", hint or "run it again first", path)
