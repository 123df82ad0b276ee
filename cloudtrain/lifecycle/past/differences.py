"""Differences between two jobs, plans or runs: in the job's fields, the request, and the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.code.files import Entry
from cloudtrain.code.tree import Tree
from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import CloudtrainError, PlanDiffers, Problem, shortened
from cloudtrain.job.file import SWEEP
from cloudtrain.lifecycle.past.sent import (
    JobSource,
    code_of,
    keep_plan,
    settings_fields,
    shown_fields,
    users_files,
)
from cloudtrain.lifecycle.preparing.prepare import Ready
from cloudtrain.lifecycle.store.records import JobRecord, KeptFile
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.plans.comparison import ABSENT, Change, FileChange, changes_between, file_changes
from cloudtrain.plans.document import Block, Document, Heading, Lines, Notice, Table
from cloudtrain.plans.plan import Plan, Printable, map_texts
from cloudtrain.plans.progress import PLACES, RunStatus
from cloudtrain.plans.states import RunRef
from cloudtrain.plans.status import PROGRESS, duration_of, number
from cloudtrain.signals.main_metric import goal_of, summary_of
from cloudtrain.signals.rows import Column
from cloudtrain.targets.registry import service_of, target_of
from cloudtrain.targets.settings import Settings, read_environment

if TYPE_CHECKING:
    from cloudtrain.job.sweep import Objective


_QUICK = 50 << 20
"""Size of code in bytes up to which the changed lines of files are counted."""

_LONGEST = 60
"""Number of characters after which a value in a message is cut."""


class Changes(NamedTuple):
    """The differences between a job's last run and the plan about to be sent."""

    run: str
    changes: tuple[Change, ...]
    files: tuple[FileChange, ...]

    @property
    def items(self) -> list[str]:
        """Return each difference in a few words: `learning_rate 0.1 -> 0.2`, `train.py +3 -1`."""
        items = []
        for change in self.changes:
            name = change.name.removeprefix("hyperparameters.")
            items.append(f"{name} {shown(change.before)} -> {shown(change.after)}")
        for file in self.files:
            items.append(f"{file.path} {file.amount}")
        return items


def changes_since_last(store: Store, ready: Ready, plan: Plan) -> Changes | None:
    """Return the changes since the newest run of a job with the same name, without asking a target.
    None if there is no such run, if it is a sweep, or if the store has no record of its
    submission."""
    newest = store.newest(limit=1, job=ready.original.name)
    if not newest:
        return None
    last = newest[0]
    record = store.kept(last.name)
    if record is None or record.kind == SWEEP:
        return None

    changes = []
    old_settings = dict(record.settings)
    new_settings = settings_fields(ready.where.settings)
    if old_settings.get("type") != new_settings["type"]:
        changes.append(Change(("target",), last.target, ready.where.target.name))
    elif "settings" not in record.hidden:
        changes += changes_between(old_settings, new_settings)
    changes += changes_between(record.job, shown_fields(ready, plan))

    files: Iterable[FileChange] = ()
    if record.bundle != ready.tree.sha256 and record.files:
        before = Side("", record.plan, record, ref=last.ref)
        after = Side("", {}, tree=ready.tree)
        # lines are compared if both codes are on this machine and small
        is_here = "folder" in target_of(last.target).parts
        is_quick = is_here and ready.tree.identity.size < _QUICK
        files = _code_changes(before, after, ready.where.here if is_quick else None, [])
    return Changes(last.name, tuple(changes), tuple(files))


def shown(value: Any) -> str:
    """Return a short form of a value for a message."""
    if value is ABSENT:
        return "(not set)"
    # quotes show where an empty text or one with spaces at its ends begins and ends
    needs_no_quotes = isinstance(value, str) and value and value.strip() == value
    return shortened(value if needs_no_quotes else json.dumps(value), _LONGEST)


_NAME = "RUN-NAME"
"""Replaces the run's own name in both requests, because the names of two runs always differ."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        title: the user's name for this side.
        plan: the plan as JSON data.
        record: the data that the store keeps for a run, or would keep for a job; None for a plan,
            which has none.
        tree: the code on disk; None for a run.
        ref: the run's reference.
        results: what came out of a run, by its label, such as `state` or the name of a metric.
    """

    title: str
    plan: JsonMapping
    record: JobRecord | None = None
    tree: Tree | None = None
    ref: RunRef | None = None
    results: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of_job(cls, title: str, ready: Ready) -> Side:
        """Return the side that describes a job as a submit would send it."""
        plan = ready.plan(1, "")
        record = keep_plan(ready, ready.original, plan, JobSource())
        return cls(title, record.plan, record, tree=ready.tree)

    @property
    def request(self) -> Any:
        """The request, with a placeholder in place of the run's name."""
        name = re.compile(rf"{re.escape(self.plan['run_name'])}(?![0-9])")
        return map_texts(self.plan["request"], lambda text: name.sub(_NAME, text))

    @property
    def bundle(self) -> str | None:
        if self.record is not None:
            return self.record.bundle
        for upload in self.plan.get("uploads", ()):
            if upload["kind"] == "code":
                return str(upload["sha256"])
        return None

    @property
    def files(self) -> dict[str, tuple[object, ...]]:
        """Maps the path of each file of the code to the properties that must match for two files to
        be equal. cloudtrain's own files are left out."""
        files: Sequence[Entry | KeptFile] = ()
        if self.tree is not None:
            files = users_files(self.tree.entries)
        elif self.record is not None:
            files = users_files(self.record.files)
        return {file.path: (file.sha256, file.executable, file.target) for file in files}


@dataclass(frozen=True)
class Difference(Printable):
    """The differences between two jobs, plans or runs.

    Attributes:
        before, after: the user's names for the two sides.
        target, job, request: the values that differ in the target and its settings, the job, and
            the request. `job` is None if one side is a plan, because a plan contains no job.
        code: the files that differ; None if one side is a plan.
        bundles: the hashes of the code.
        notes: parts that could not be compared, with the reasons.
        results: the states, durations, costs and metrics of two runs that differ. They do not count
            for `equal`.
    """

    before: str
    after: str
    target: tuple[Change, ...] = ()
    job: tuple[Change, ...] | None = ()
    request: tuple[Change, ...] = ()
    code: tuple[FileChange, ...] | None = ()
    bundles: tuple[str | None, str | None] = (None, None)
    notes: tuple[str, ...] = field(default=(), compare=False)
    results: tuple[Change, ...] = field(default=(), compare=False)

    @property
    def equal(self) -> bool:
        """Whether the two sides are equal."""
        has_changes = self.target or self.job or self.request or self.code
        return self._same_code and not has_changes

    @property
    def _same_code(self) -> bool:
        before, after = self.bundles
        return self.code is not None or before == after

    def to_dict(self) -> JsonObject:
        """Return the differences as JSON data."""
        data: dict[str, object] = {"equal": self.equal, "before": self.before, "after": self.after}
        for name in ("target", "job", "request", "code"):
            data[name] = _to_dicts(getattr(self, name))
        data["bundles"] = list(self.bundles)
        data["notes"] = list(self.notes)
        data["results"] = _to_dicts(self.results)
        return data

    def document(self) -> Document:
        """Return the differences as a document."""
        blocks = self._table("Target", self.target)
        blocks += self._table("Job", self.job or ())
        blocks += self._table("Request", self.request)

        if self.code:
            files = Table(("FILE", "CHANGE"), [(file.path, file.amount) for file in self.code])
            blocks += [Heading("Code"), files]
            blocks += [Lines(file.lines) for file in self.code if file.lines]
        elif not self._same_code:
            names = [name or "none" for name in self.bundles]
            bundles = Table(("", self.before, self.after), [("bundle", *names)])
            blocks += [Heading("Code"), bundles]

        if self.results:
            rows = [_row(str(change.path[0]), change) for change in self.results]
            table = Table(("", self.before, self.after), rows)
            blocks += [Heading("Results"), table]
        blocks += [Notice("notice", note) for note in self.notes]
        return Document(blocks)

    def _table(self, title: str, changes: Sequence[Change]) -> list[Block]:
        """Return a heading and the changes below it; nothing without changes."""
        if not changes:
            return []
        rows = [_row(change.name, change) for change in changes]
        return [Heading(title), Table(("FIELD", self.before, self.after), rows)]


def _row(name: str, change: Change) -> tuple[str, str, str]:
    return name, shown(change.before), shown(change.after)


def _to_dicts(changes: Sequence[Change | FileChange] | None) -> list[dict[str, object]] | None:
    if changes is None:
        return None
    return [change.to_dict() for change in changes]


def results_of(
    status: RunStatus, columns: Mapping[str, Column], objective: Objective | None = None
) -> JsonObject:
    """Return what came out of a run, by its label: the state, the duration, the billed cost, and of
    each metric the last value and the lowest or highest one."""
    results: dict[str, object] = {"state": str(status.state), "duration": duration_of(status)}
    if status.cost is not None:
        results["cost"] = f"${status.cost:,.2f}"

    for name, column in columns.items():
        if name in PLACES or name in PROGRESS:
            continue
        summary = summary_of(goal_of(name, objective), column)
        results[f"last {name}"] = number(summary.last)
        if summary.best is not None:
            word = "lowest" if summary.is_minimized else "highest"
            results[f"{word} {name}"] = number(summary.best)
    return results


def difference(before: Side, after: Side, settings: Settings) -> Difference:
    """Compare two sides. If the code differs, code that is not on this machine is fetched from the
    run's target."""
    target = []
    job = None
    request: Iterable[Change] = ()
    code = None
    notes = []
    results: Iterable[Change] = ()

    old_target = before.plan["target"]
    new_target = after.plan["target"]
    is_same_target = old_target == new_target
    if is_same_target:
        request = changes_between(before.request, after.request)
    else:
        target.append(Change(("target",), old_target, new_target))
        notes.append("the requests are for different targets and are not compared")

    old = before.record
    new = after.record
    if old is not None and new is not None:
        job = tuple(changes_between(dict(old.job), dict(new.job)))
        code = tuple(_code_changes(before, after, settings, notes))
        if is_same_target and "settings" not in (*old.hidden, *new.hidden):
            target += changes_between(dict(old.settings), dict(new.settings))
        if old.version != new.version:
            with_old = f"`{before.title}` was made with cloudtrain {old.version}"
            notes.append(f"{with_old}, `{after.title}` with {new.version}")

    if before.results and after.results:
        results = changes_between(before.results, after.results)
    return Difference(
        before=before.title,
        after=after.title,
        target=tuple(target),
        job=job,
        request=tuple(request),
        code=code,
        bundles=(before.bundle, after.bundle),
        notes=tuple(notes),
        results=tuple(results),
    )


def _code_changes(
    before: Side, after: Side, settings: Settings | None, notes: list[str]
) -> Iterator[FileChange]:
    """Yield the files that differ, with their changed lines unless `settings` is None."""
    old = before.files
    new = after.files
    in_both = old.keys() & new.keys()
    paths = {path for path in in_both if old[path] != new[path]}
    with ExitStack() as stack:
        first = _contents(before, paths, settings, stack, notes)
        second = _contents(after, paths, settings, stack, notes)
        yield from file_changes(old, new, first, second, names=(before.title, after.title))


def _contents(
    side: Side, paths: set[str], settings: Settings | None, stack: ExitStack, notes: list[str]
) -> Callable[[str], bytes | None]:
    """Return a function that returns the content of one of the files, and None for one that cannot
    be read. Code that is fetched for this stays until `stack` is closed."""
    places = {}
    if paths and settings is not None:
        tree = side.tree
        try:
            if tree is None:
                assert side.record is not None, "a run without it is not compared"
                assert side.ref is not None, "a side without a tree is a run"
                service = service_of(side.ref.target, settings)
                code = code_of(side.record, side.ref, service, only=paths)
                tree = stack.enter_context(code)
            places = {entry.path: tree.location(entry) for entry in tree.entries}
        except CloudtrainError as error:
            notes.append(f"the lines of changed files are not shown: {error.message}")

    def content(path: str) -> bytes | None:
        with suppress(OSError, KeyError):
            return Path(places[path]).read_bytes()
        return None

    return content


def plan_differs(expected: str, before: JsonMapping | None, plan: Plan) -> PlanDiffers:
    """Return the error for another plan than the `expected` one, with what differs. `before` is the
    expected plan as JSON data; None if nobody has it any more."""
    message = f"the plan is now {plan.sha256[:12]}, not {expected[:12]}; nothing was sent"
    hint = f"look at it with `cloudtrain plan`, and send it with `--plan {plan.sha256[:12]}`"
    problems = [Problem((), message, hint, code="CT927")]
    if before is None:
        text = "what differs is not known, because the store keeps only plans that were asked about"
        hint = "`cloudtrain plan --json > plan.json` keeps a plan, and `--plan plan.json` sends it"
        problems.append(Problem((), text, hint, code="CT927"))
        return PlanDiffers.of(problems, plan.sha256)

    now = replace(plan, processes=()).to_dict()
    found = difference(Side("before", before), Side("now", now), read_environment())
    changes = [*found.target, *found.request]
    hint = "undo this change, or send the plan as it is now"
    if found.bundles[0] != found.bundles[1]:
        problems.append(Problem(("source_dir",), "the code has changed", hint, code="CT927"))
    elif not changes:
        changes.append(Change(("run_name",), before["run_name"], plan.run_name))
    for change in changes:
        text = f"was {shown(change.before)} and is {shown(change.after)}"
        problems.append(Problem(change.path, text, hint, code="CT927"))
    return PlanDiffers.of(problems, plan.sha256)
