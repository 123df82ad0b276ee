"""Public functions about past runs: `diff` and `costs`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.api import load_job
from cloudtrain.core.job import BUNDLED, TrainingJob
from cloudtrain.core.plan import Plan
from cloudtrain.errors import MissingExtra, RunNotFound, TargetError, TargetUnreachable
from cloudtrain.jobfile.files import anchored
from cloudtrain.lifecycle.planning import prepare_job
from cloudtrain.lookup import recover_if_needed, run, runs_at
from cloudtrain.settings import load_settings
from cloudtrain.targets.registry import usable_target
from cloudtrain.targets.settings import AnyTarget

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.lifecycle.costs import RunCost
    from cloudtrain.lifecycle.difference import Difference, Side
    from cloudtrain.lifecycle.history import Sent
    from cloudtrain.lifecycle.run import Run


def costs(
    *, since: float | None = None, target: AnyTarget = None, profile: str | None = None, online: bool = True
) -> Iterator[RunCost]:
    """Yield the cost of each run, newest first: the runs of this user on this machine, or all runs on a target.

    Args:
        since: only runs submitted since this time, in seconds since the epoch.
        target: all runs on this target, by any user. Default: the runs of this user on this machine, on every target.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
        online: ask the targets for unknown bills. If a target does not answer, the cost is an estimate.
    """
    from cloudtrain.lifecycle.costs import cost_of
    from cloudtrain.store.opening import read_store

    with read_store(load_settings().state_dir) as store:
        money = {} if store is None else store.money()
        tags = {} if store is None else store.tags()
    now, silent = time.time(), set[str]()
    for item in _newest_runs(target, profile):
        if since is not None and item.created < since:
            if target is not None:
                return
            continue  # a clock may have been set back between two runs of this machine
        known = money.get(item.name)
        status = item.last_status
        is_open = known is None or known.billable_seconds is None or not status.state.is_final
        where = usable_target(item.target)
        is_worth_asking = is_open and where is not None and where.is_paid and status.billable_seconds is None
        if online and is_worth_asking and item.target not in silent:
            try:
                status = item.status()
                item.remember(status)
            except (TargetUnreachable, MissingExtra):
                silent.add(item.target)  # after the first failure, every other request would wait as long
            except (TargetError, RunNotFound):
                pass
        yield cost_of(item, status, known, tags.get(item.name), now)


def _newest_runs(target: AnyTarget, profile: str | None) -> Iterator[Run]:
    """Yield all runs on `target`, newest first. If `target` is None, yield the runs in this machine's store, with
    their last known status."""
    from cloudtrain.lifecycle.run import Run
    from cloudtrain.store.kinds import SWEEP
    from cloudtrain.store.opening import read_store

    settings = load_settings()
    if target is not None:
        model = settings.target(target, profile=profile) if isinstance(target, str) else target
        yield from (Run.attached(item, settings) for item in runs_at(model, settings))
        return
    recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows = [] if store is None else store.newest(trials=True)
        rows = [row for row in rows if not row.key.startswith(SWEEP)]  # the cost of a sweep is the cost of its trials
    yield from (Run(row, settings) for row in rows if row.stage in ("accepted", "reported"))


def diff(
    before: Run | Plan | AnyJob | str | Path,
    after: Run | Plan | AnyJob | str | Path,
    target: AnyTarget = None,
    *,
    profile: str | None = None,
) -> Difference:
    """Return the differences between two runs, plans or jobs: the job by field, the request, and the code by line.

    Args:
        before: a run, a plan or a job; the name of a run; or the path of a plan's JSON file, a job file or a script.
        after: what to compare `before` with, in the same forms.
        target: the target to compile jobs for. Default: the target of the run or plan that the job is compared with.
        profile: a profile of `cloudtrain.toml`, for jobs.

    Raises:
        RunNotFound: no run has the given name, or the store has no record of what was sent for it.
    """
    from cloudtrain.lifecycle.difference import difference

    found = [_resolve(item) for item in (before, after)]
    other = [_target_of_side(item) for item in reversed(found)]
    instead = target if target is not None else other[0], target if target is not None else other[1]
    one = _side(before, found[0], instead[0], profile)
    return difference(one, _side(after, found[1], instead[1], profile), load_settings())


def _resolve(item: Run | Plan | AnyJob | str | Path) -> Sent | Mapping[str, Any] | AnyJob:
    """Load one side of the comparison: what was sent for a run, the data of a plan, or a job."""
    from cloudtrain.lifecycle.run import Run

    if isinstance(item, Run):
        return item.show()
    if isinstance(item, Plan):
        return item.to_dict()
    if not isinstance(item, str | Path):
        return item
    text = str(item)
    if text.startswith(BUNDLED):
        return load_job(text)
    path = Path(text)
    if path.suffix == ".py" and path.is_file():
        return TrainingJob.from_script(path)
    if path.suffix.lower() not in (".yaml", ".yml", ".toml", ".json") and not path.is_file():
        return run(text).show()
    return _plan_in(path) or load_job(path)


def _plan_in(path: Path) -> Mapping[str, Any] | None:
    """Return the plan in a file that `cloudtrain plan --json` wrote; None if the file holds no plan."""
    import json

    if path.suffix.lower() != ".json":
        return None
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None  # reading the file as a job gives a better message
    is_plan = isinstance(data, dict) and {"target", "run_name", "request"} <= data.keys()
    return data if is_plan else None


def _target_of_side(found: Sent | Mapping[str, Any] | AnyJob) -> AnyTarget:
    """Return the target of one side of the comparison, for which a job on the other side is compiled. None if this side
    is a job itself."""
    from cloudtrain.lifecycle.history import Sent
    from cloudtrain.lifecycle.keeping import settings_of

    if isinstance(found, Sent):
        return settings_of(found.kept) or found.ref.target
    return found["target"] if isinstance(found, Mapping) else None


def _side(given: object, found: Sent | Mapping[str, Any] | AnyJob, target: AnyTarget, profile: str | None) -> Side:
    from cloudtrain.lifecycle.difference import Side
    from cloudtrain.lifecycle.history import Sent

    if isinstance(found, Sent):
        return Side.of_run(found.name, found.ref, found.kept)
    if isinstance(found, Mapping):
        return Side(str(given) if isinstance(given, str | Path) else found["run_name"], found)
    settings = load_settings(found.folder)
    prepared = prepare_job(found, target, settings, profile=profile, ignore=(), place_of=None)
    title = str(given) if isinstance(given, str | Path) else found.name
    return Side.of_job(title, prepared, anchored(found, settings.cwd))
