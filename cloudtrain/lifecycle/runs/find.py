"""The public functions that find runs: `run`, `runs` and `recover`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from cloudtrain.errors import (
    RunNotFound,
    SettingsError,
    StoreError,
    TargetError,
    UsageError,
    did_you_mean,
)
from cloudtrain.job.model import format_duration, format_size
from cloudtrain.lifecycle.runs.run import ChainedRun, Run
from cloudtrain.lifecycle.store.records import Condition, condition_of, origin_here
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import NEWEST, RunRecord, Store
from cloudtrain.lifecycle.submission.once import (
    Recovered,
    find_service,
    needs_recovery,
    report_accepted,
)
from cloudtrain.lifecycle.submission.once import recover as recover_submissions
from cloudtrain.plans.document import Cell, Document, Table, to_text
from cloudtrain.plans.states import AFTER, REHEARSAL, SWEEP, TUNER, ListedRun, RunRef, RunState
from cloudtrain.plans.status import duration_of, news_text, state_cell
from cloudtrain.system.plugins import target_names
from cloudtrain.targets.contract import KeepsQueue
from cloudtrain.targets.registry import all_targets, service_of
from cloudtrain.targets.settings import Settings, load_settings
from cloudtrain.targets.where import AnyTarget, Where
from cloudtrain.targets.where import where as find_where


def run(name: str) -> Run:
    """Return a run by its name, the unique beginning of a name, a reference, or `last`.

    `last` is the newest run that was submitted from the working directory or for a job file in it;
    runs of this terminal take precedence. Without such a run, `last` is the newest run of this
    terminal, else the newest run of all. In these two cases, and for another terminal's run from a
    folder inside the working directory, the `elsewhere` of the returned run holds the folder that
    the run was submitted from.

    A reference such as `sagemaker://eu-west-1/name` also attaches to a run that this machine did
    not submit.

    Raises:
        RunNotFound: the name matches no run, or more than one.
    """
    # every run's name starts with the empty text, which an unset variable of a script would give
    if not name.strip():
        raise RunNotFound(
            "the name of the run is empty",
            hint="`cloudtrain ps` lists the runs; `last` is the newest",
        )
    settings = load_settings()
    recover_if_needed()
    with read_store(settings.state_dir) as store:
        rows, elsewhere = _last(store) if name == NEWEST else (_matching(store, name), None)
        candidates = [row.name for row in store.newest(limit=200)]
        removed = not rows and store.was_removed(name)
    if not rows and "://" in name:
        ref = RunRef.parse(name)
        return Run.attached(ListedRun(ref, service_of(ref.target, settings).status(ref)), settings)
    if removed:
        raise RunNotFound(
            f"the run `{name}` was removed", hint="`cloudtrain ps` lists the remaining runs"
        )
    if not rows:
        hint = (
            did_you_mean(name, candidates[:8]) or "submit a job first: `cloudtrain submit job.yaml`"
        )
        raise RunNotFound(f"there is no run `{name}`", hint=hint)
    if len(rows) > 1:
        names = ", ".join(f"`{row.name}`" for row in rows[:5])
        rest = f"; `cloudtrain ps --all` lists the other {len(rows) - 5}" if rows[5:] else ""
        raise RunNotFound(
            f"the names of {len(rows)} runs begin with `{name}`",
            hint=f"write one of the full names: {names}{rest}",
            code="CT932",
        )
    return kind_of(rows[0])(rows[0], settings, elsewhere=elsewhere)


def runs(
    *,
    limit: int | None = 20,
    states: Sequence[RunState] = (),
    job: str | None = None,
    target: AnyTarget = None,
    profile: str | None = None,
    tags: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    rehearsals: bool = True,
    trials: bool = False,
) -> Runs:
    """Return the newest runs of this user on this machine, newest first. Targets are asked for the
    state of unfinished runs.

    Args:
        limit: maximum number of runs; None for all.
        states: only runs in one of these states.
        job: only runs of the job with this name.
        target: list all runs on this target, by any user and machine, instead of the runs of this
            user and machine.
        profile: a profile of `cloudtrain.toml`, for the target's account settings.
        tags: only runs with these tags.
        where: only runs whose hyperparameters meet these conditions: `["learning_rate<0.01",
            "optimizer=adamw"]`.
        rehearsals: include finished runs of `cloudtrain rehearse`.
        trials: include the trials of sweeps.

    Raises:
        UsageError: a text in `where` is not a comparison, or `tags` or `where` is combined with
            `target`.
    """
    conditions = [Condition("tag", key, "=", value) for key, value in (tags or {}).items()]
    conditions += [condition_of(text) for text in ([where] if isinstance(where, str) else where)]
    if conditions and target is not None:
        hint = (
            "remove the target, because only this machine stores tags and hyperparameters of "
            "its runs"
        )
        raise UsageError(
            "runs on a target cannot be selected by tags or hyperparameters",
            hint=hint,
            code="CT902",
        )
    limit = None if limit is None else min(limit, sys.maxsize)
    if target is not None:
        place = find_where(target, profile=profile)
        found = (Run.attached(item, place.here) for item in runs_at(place))
    else:
        settings = load_settings()
        recover_if_needed()
        with read_store(settings.state_dir) as store:
            newest = partial(store.newest, job=job, where=conditions, trials=trials)
            rows = _perhaps(newest, states, limit, rehearsals)
        found = (_refresh(kind_of(row)(row, settings)) for row in rows)
    return Runs(
        islice((item for item in found if _is_wanted(item, states, job, rehearsals)), limit)
    )


class Runs(list[Run]):
    """Runs, shown as a table."""

    def document(self, *, with_size: bool = False) -> Document:
        """Return the table, with the newest fact about each run in its last column. Targets are not
        asked."""
        now, news = time.time(), [news_text(item.last_status) for item in self]
        more = [*(["SIZE"] if with_size else []), *(["LAST"] if any(news) else [])]
        rows: list[tuple[Cell, ...]] = []
        for item, text in zip(self, news, strict=True):
            status, age = item.last_status, format_duration(int(max(0, now - item.created)))
            size = [format_size(item.size) if item.size is not None else ""] if with_size else []
            state = state_cell(status.state, status.queue_place)
            last = [text] if any(news) else []
            rows.append(
                (item.name, state, item.target, age, duration_of(status, now), *size, *last)
            )
        return Document(
            [Table(("NAME", "STATE", "TARGET", "AGE", "DURATION", *more), rows, is_cut=any(news))]
        )

    def __repr__(self) -> str:
        return to_text(self.document(), width=None).rstrip("\n") if self else "[]"

    def _repr_html_(self) -> str:
        from cloudtrain.plans.html import to_html

        return to_html(self.document())


def runs_at(where: Where) -> Iterator[ListedRun]:
    """Yield the runs on a target, the newest first."""
    name, account = where.target.name, where.account
    missing = [
        field
        for field in where.target.facts.locating_settings
        if field in getattr(account, "missing", ())
    ]
    if missing:
        hint = f"set {', '.join(f'`{field}`' for field in missing)} in [{name}] of cloudtrain.toml"
        raise SettingsError(
            f"the settings lack the location of the runs on `{name}`", hint=hint, code="CT915"
        )
    return where.service.runs(account.place)


def recover(on_found: Callable[[list[Recovered]], None] | None = None) -> list[Recovered]:
    """Clean up after every submission whose process died: keep its run if the target has it, else
    forget the submission. Return the outcomes.

    The outcomes include runs that perhaps no command has reported yet. `on_found` is called with
    the outcomes, to report them to the user. If the process dies before `on_found` returns, the
    next `recover` reports the runs again.
    """
    settings = load_settings()
    outcomes = list[Recovered]()

    def report(accepted: Sequence[RunRecord]) -> None:
        names = {item.name for item in outcomes}
        late = [item for item in accepted if item.name not in names]
        outcomes.extend(
            Recovered(item.name, "finished", f"`{item.target}` has the run") for item in late
        )
        if on_found is not None:
            on_found(outcomes)

    with open_store(settings.state_dir) as store:
        outcomes += recover_submissions(store, lambda name: find_service(name, settings))
        report_accepted(store, report)
    return outcomes


def recover_if_needed() -> None:
    """Clean up after interrupted submissions, as `recover` does, before a command reads the run
    store.

    Without interrupted submissions, the store is not opened for writing. If the store cannot be
    written, for example on a full disk, the submissions stay as they are.
    """
    settings = load_settings()
    with read_store(settings.state_dir) as store:
        cut_off = any(needs_recovery(store, record) for record in store.unfinished())
    if cut_off:
        with suppress(StoreError), open_store(settings.state_dir) as store:
            recover_submissions(store, lambda name: find_service(name, settings))


def queue_of(target: str, settings: Settings) -> KeepsQueue:
    """Return the queue of a target."""
    if target not in target_names():
        raise UsageError(
            f"`{target}` is not a target", hint=did_you_mean(target, target_names()), code="CT913"
        )
    service = service_of(target, settings)
    if not isinstance(service, KeepsQueue):
        queued = (
            each.name
            for each in all_targets()
            if isinstance(service_of(each.name, settings), KeepsQueue)
        )
        others = " or ".join(f"`cloudtrain queue --target {name}`" for name in queued)
        waiting = f"`cloudtrain ps --target {target}` shows the target's waiting runs"
        hint = f"{waiting}; {others} shows cloudtrain's own queue"
        raise UsageError(f"`{target}` does not use cloudtrain's queue", hint=hint, code="CT902")
    return service


def kind_of(row: RunRecord) -> type[Run]:
    """Return the class of the run in a row: `SweepRun` for a sweep, `ChainedRun` for a waiting run,
    else `Run`."""
    if row.key.startswith((SWEEP, TUNER)):
        from cloudtrain.lifecycle.runs.sweep import SweepRun

        return SweepRun
    return ChainedRun if row.key.startswith(AFTER) else Run


def _last(store: Store) -> tuple[list[RunRecord], str | None]:
    """Return a list with the run that `last` means, and the folder that the run was submitted from.
    The list is empty if no run exists. The folder is None if `last` means a run of the working
    directory, or one of this terminal from a folder inside it."""
    here = origin_here(Path.cwd())
    newest = store.newest_from(here)
    if newest is not None:
        origin = store.origin_of(newest.name)
        is_ours = here.folder in (origin.folder, origin.project) or here.terminal == origin.terminal
        return [newest], None if is_ours else origin.folder
    others = [
        record
        for record in (store.newest_in(here.terminal), *store.newest(limit=1))
        if record is not None
    ]
    return others[:1], store.origin_of(others[0].name).folder if others else None


def _matching(store: Store, name: str) -> list[RunRecord]:
    """Return the rows of the runs that `name` means. A reference may omit the run's profile
    (`research@` in `research@eu-west-1`)."""
    if "://" not in name:
        exact = store.get(name)
        return [exact] if exact is not None else store.starting_with(name)
    ref = RunRef.parse(name)
    row = store.get(ref.name)
    if (
        row is None
        or row.target != ref.target
        or ref.place not in (row.place, (row.place or "").rpartition("@")[2])
    ):
        return []
    return [row]


def _perhaps(
    newest: Callable[..., list[RunRecord]],
    states: Sequence[RunState],
    limit: int | None,
    rehearsals: bool,
) -> list[RunRecord]:
    """Return the rows of all runs that may meet these conditions, newest first. With `states`, all
    unfinished runs are included, because their recorded state may be outdated."""
    if not states:
        return newest(limit=limit, rehearsals=rehearsals)
    final_states = [state for state in states if state.is_final]
    rows = newest(limit=limit, states=final_states, rehearsals=rehearsals) if final_states else []
    rows += newest(states=[state for state in RunState if not state.is_final])
    return sorted(rows, key=lambda row: row.seq or 0, reverse=True)


def _is_wanted(item: Run, states: Sequence[RunState], job: str | None, rehearsals: bool) -> bool:
    state = item.last_status.state
    is_hidden = not rehearsals and state.is_final and item.job_name.endswith(REHEARSAL)
    return not is_hidden and (not states or state in states) and job in (None, item.job_name)


def _refresh(item: Run) -> Run:
    """Ask the target for the state of an unfinished run, and return the run. If the target cannot
    be reached, the run keeps its last known state."""
    if not item.last_status.state.is_final:
        with suppress(TargetError, RunNotFound):
            item.status()
    return item
