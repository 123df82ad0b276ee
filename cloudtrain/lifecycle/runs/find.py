"""The public functions that find runs: `run`, `runs` and `recover`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from cloudtrain.errors import (
    RunNotFound,
    SettingsError,
    StoreError,
    TargetError,
    UsageError,
    did_you_mean,
    quoted,
)
from cloudtrain.job.model import format_duration, format_size
from cloudtrain.lifecycle.detached.driven import ensure_sender
from cloudtrain.lifecycle.runs.run import ChainedRun, Run
from cloudtrain.lifecycle.store.records import Condition, condition_of, origin_here
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import NEWEST, UNFINISHED, RunRecord, Store
from cloudtrain.lifecycle.submission.once import (
    Recovered,
    find_service,
    needs_recovery,
    report_accepted,
)
from cloudtrain.lifecycle.submission.once import recover as recover_submissions
from cloudtrain.plans.document import Cell, Document, Table, to_text
from cloudtrain.plans.progress import ListedRun
from cloudtrain.plans.states import AFTER, CAPACITY, REHEARSAL, SWEEP, TUNER, RunRef, RunState
from cloudtrain.plans.status import duration_of, machine_text, news_text, state_cell
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.contract import KeepsQueue
from cloudtrain.targets.registry import require_target, service_of
from cloudtrain.targets.settings import read_environment
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
        hint = "`cloudtrain ps` lists the runs; `last` is the newest"
        raise RunNotFound("the name of the run is empty", hint=hint)
    settings = read_environment()
    recover_if_needed()
    with read_store(settings.state_dir) as store:
        if name == NEWEST:
            rows, elsewhere = _last(store)
        else:
            rows = _matching(store, name)
            elsewhere = None
        newest = store.newest(limit=8)
        was_removed = not rows and store.was_removed(name)

    if not rows and "://" in name:
        ref = RunRef.parse(name)
        status = service_of(ref.target, settings).status(ref)
        return Run.attached(ListedRun(ref, status), settings)
    if was_removed:
        hint = "`cloudtrain ps` lists the remaining runs"
        raise RunNotFound(f"the run `{name}` was removed", hint=hint)
    if not rows:
        hint = (
            did_you_mean(name, [row.name for row in newest])
            or "submit a job first: `cloudtrain submit job.yaml`"
        )
        raise RunNotFound(f"there is no run `{name}`", hint=hint)

    if len(rows) > 1:
        names = quoted(row.name for row in rows[:5])
        hint = f"write one of the full names: {names}"
        if rows[5:]:
            hint += f"; `cloudtrain ps --all` lists the other {len(rows) - 5}"
        message = f"the names of {len(rows)} runs begin with `{name}`"
        raise RunNotFound(message, hint=hint, code="CT932")

    row = rows[0]
    return kind_of(row)(row, settings, elsewhere=elsewhere)


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
    changed_since: int | None = None,
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
        changed_since: only runs that changed in the store of this machine after this revision,
            which is the `revision` of an earlier result.

    Raises:
        UsageError: a text in `where` is not a comparison, or `tags` or `where` is combined with
            `target`.
    """
    conditions = []
    for key, value in (tags or {}).items():
        conditions.append(Condition("tag", key, "=", value))
    texts = [where] if isinstance(where, str) else where
    conditions += map(condition_of, texts)
    if (conditions or changed_since is not None) and target is not None:
        raise UsageError(
            "runs on a target cannot be selected by tags, hyperparameters or changes",
            hint="remove the target: only this machine stores these of its runs",
            code="CT902",
        )

    if limit is not None:
        limit = min(limit, sys.maxsize)  # SQLite and `islice` take no larger number
    revision = 0
    if target is not None:
        place = find_where(target, profile=profile)
        found = (Run.attached(item, place.here) for item in runs_at(place))
    else:
        settings = read_environment()
        recover_if_needed()
        with read_store(settings.state_dir) as store:
            revision = store.revision
            newest = partial(
                store.newest,
                job=job,
                where=conditions,
                trials=trials,
                changed_since=changed_since,
            )
            final_states = [state for state in states if state.is_final]
            rows = []
            if final_states or not states:
                rows = newest(limit=limit, states=final_states, rehearsals=rehearsals)
            if states:  # the recorded state of an unfinished run may be outdated
                rows += newest(states=UNFINISHED)
                rows.sort(key=lambda row: row.seq or 0, reverse=True)
        found = (refresh(kind_of(row)(row, settings)) for row in rows)
    # lazily, so that no target is asked about a run after the last one that is returned
    wanted = (item for item in found if _is_wanted(item, states, job, rehearsals))
    shown = list(islice(wanted, limit))
    for item in shown[:_GLANCES]:
        item.glance()
    found_runs = Runs(shown)
    found_runs.revision = revision
    return found_runs


_GLANCES = 100
"""Runs whose metrics are read for a list, if they are not in the store."""


class Runs(list[Run]):
    """Runs, shown as a table.

    Attributes:
        revision: the revision of this machine's store when it was read, for `changed_since`.
    """

    revision = 0

    def document(self, *, with_size: bool = False, with_machines: bool = False) -> Document:
        """Return the table, with the newest fact about each run in its last column. Targets are not
        asked."""
        now = time.time()
        news = [news_text(item.last_status) for item in self]
        headers = ["NAME", "STATE", "TARGET", "AGE", "DURATION"]
        if with_size:
            headers.append("SIZE")
        if with_machines:
            headers.append("MACHINES")
        if any(news):
            headers.append("LAST")

        rows = []
        for item, text in zip(self, news, strict=True):
            status = item.last_status
            state = state_cell(status.state, status.queue_place)
            age = format_duration(int(max(0, now - item.created)))
            row: list[Cell] = [item.name, state, item.target, age, duration_of(status, now)]
            if with_size:
                row.append("" if item.size is None else format_size(item.size))
            if with_machines:
                row.append(machine_text(status.machines.values()))
            if any(news):
                row.append(text)
            rows.append(tuple(row))
        return Document([Table(tuple(headers), rows, is_cut=any(news))])

    def to_pandas(self) -> Any:
        """Return a pandas table with a row for each run, with columns such as `duration`,
        `hyperparameters.lr`, `last.loss` and `best.loss`. Reads the metrics of each run. Needs
        pandas."""
        from cloudtrain.lifecycle.runs.facts import rows_of, to_pandas

        rows, _ = rows_of(self)
        return to_pandas(rows)

    def __repr__(self) -> str:
        return to_text(self.document(), width=None).rstrip("\n") if self else "[]"

    def _repr_html_(self) -> str:
        from cloudtrain.plans.html import to_html

        return to_html(self.document())


def runs_at(where: Where) -> Iterator[ListedRun]:
    """Yield the runs on a target, the newest first."""
    name = where.target.name
    unset = getattr(where.account, "missing", ())
    missing = [field for field in where.target.facts.locating_settings if field in unset]
    if missing:
        message = f"the settings lack the location of the runs on `{name}`"
        hint = f"set {quoted(missing)} in [{name}] of cloudtrain.toml"
        raise SettingsError(message, hint=hint)
    return where.service.runs(where.account.place)


def recover(on_found: Callable[[list[Recovered]], None] | None = None) -> list[Recovered]:
    """Clean up after every submission whose process died: keep its run if the target has it, else
    forget the submission. Return the outcomes.

    The outcomes include runs that perhaps no command has reported yet. `on_found` is called with
    the outcomes, to report them to the user. If the process dies before `on_found` returns, the
    next `recover` reports the runs again.
    """
    settings = read_environment()
    outcomes = list[Recovered]()

    def report(accepted: Sequence[RunRecord]) -> None:
        names = {item.name for item in outcomes}
        for item in accepted:
            if item.name not in names:
                detail = f"`{item.target}` has the run"
                outcomes.append(Recovered(item.name, "finished", detail))
        if on_found is not None:
            on_found(outcomes)

    with open_store(settings.state_dir) as store:
        outcomes += recover_submissions(store, lambda name: find_service(name, settings))
        report_accepted(store, report)
    return outcomes


def recover_if_needed() -> None:
    """Clean up after interrupted submissions, as `recover` does, before a command reads the run
    store. Start the sender of notifications again if it is needed and has died.

    Without interrupted submissions, the store is not opened for writing. If the store cannot be
    written, for example on a full disk, the submissions stay as they are.
    """
    settings = read_environment()
    with read_store(settings.state_dir) as store:
        has_interrupted = any(needs_recovery(store, record) for record in store.unfinished())
        has_events = store.outbox.has_work
    if has_events:
        ensure_sender(settings)
    if has_interrupted:
        with suppress(StoreError), open_store(settings.state_dir) as store:
            recover_submissions(store, lambda name: find_service(name, settings))


def queue_of(target: str) -> KeepsQueue:
    require_target(target)
    service = service_of(target, read_environment())
    if not isinstance(service, KeepsQueue):
        hint = (
            f"`cloudtrain ps --target {target}` shows the target's waiting runs; "
            f"`cloudtrain queue --target {DEFAULT_TARGET}` shows cloudtrain's own queue"
        )
        raise UsageError(f"`{target}` does not use cloudtrain's queue", hint=hint, code="CT902")
    return service


def kind_of(row: RunRecord) -> type[Run]:
    """Return the class of the run in a row: `SweepRun` for a sweep, `ChainedRun` for a waiting run
    or a list of alternatives, else `Run`."""
    if row.key.startswith((SWEEP, TUNER)):
        from cloudtrain.lifecycle.runs.sweep import SweepRun

        return SweepRun
    return ChainedRun if row.key.startswith((AFTER, CAPACITY)) else Run


def _last(store: Store) -> tuple[list[RunRecord], str | None]:
    """Return a list with the run that `last` means, and the folder that the run was submitted from.
    The list is empty if no run exists. The folder is None if `last` means a run of the working
    directory, or one of this terminal from a folder inside it."""
    here = origin_here()
    newest = store.newest_from(here)
    if newest is not None:
        origin = store.origin_of(newest.name)
        is_here = here.folder in (origin.folder, origin.project)
        if is_here or here.terminal == origin.terminal:
            return [newest], None
        return [newest], origin.folder

    of_terminal = store.newest_in(here.terminal)
    others = store.newest(limit=1) if of_terminal is None else [of_terminal]
    if not others:
        return [], None
    return others, store.origin_of(others[0].name).folder


def _matching(store: Store, name: str) -> list[RunRecord]:
    """Return the rows of the runs that `name` means. A reference may omit the run's profile
    (`research@` in `research@eu-west-1`)."""
    if "://" not in name:
        exact = store.get(name)
        return [exact] if exact is not None else store.starting_with(name)
    ref = RunRef.parse(name)
    row = store.get(ref.name)
    if row is None or row.target != ref.target:
        return []
    without_profile = (row.place or "").rpartition("@")[2]
    return [row] if ref.place in (row.place, without_profile) else []


def _is_wanted(item: Run, states: Sequence[RunState], job: str | None, rehearsals: bool) -> bool:
    """Return whether a run meets the conditions now that its state is known."""
    state = item.last_status.state
    if state.is_final and not rehearsals and item.job_name.endswith(REHEARSAL):
        return False
    if states and state not in states:
        return False
    return job in (None, item.job_name)


def refresh(item: Run) -> Run:
    """Ask the target for the state of an unfinished run, and return the run. If the target cannot
    be reached, the run keeps its last known state."""
    if not item.last_status.state.is_final:
        with suppress(TargetError, RunNotFound):
            item.status()
    return item
