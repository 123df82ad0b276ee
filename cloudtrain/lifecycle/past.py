"""Differences between two jobs, plans or runs: in the job's fields, the request, and the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.code.tree import Tree
from cloudtrain.errors import CloudtrainError, shortened
from cloudtrain.job.file import SWEEP
from cloudtrain.lifecycle.prepare import Ready
from cloudtrain.lifecycle.record import (
    RUNTIME,
    JobSource,
    code_of,
    keep_plan,
    settings_fields,
    shown_fields,
)
from cloudtrain.lifecycle.records import JobRecord
from cloudtrain.lifecycle.store import RunRecord, Store
from cloudtrain.plans.comparison import ABSENT, Change, FileChange, changes_between, file_changes
from cloudtrain.plans.document import Document, Heading, Lines, Notice, Table
from cloudtrain.plans.plan import Plan, Printable, map_texts
from cloudtrain.plans.states import PLACES, RunRef, RunStatus
from cloudtrain.plans.status import PROGRESS, duration_of, number
from cloudtrain.system.git import Commit
from cloudtrain.system.plugins import has_part
from cloudtrain.targets.contract import RunFolders
from cloudtrain.targets.registry import service_of, target_of
from cloudtrain.targets.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.plans.document import Block


_QUICK = 50 << 20
"""Size of code in bytes up to which the changed lines of files are counted."""

_LONGEST = 60


class Changes(NamedTuple):
    """The differences between a job's last run and the plan about to be sent."""

    run: str
    changes: tuple[Change, ...]
    files: tuple[FileChange, ...]

    @property
    def items(self) -> list[str]:
        """Return each difference in a few words: `learning_rate 0.1 -> 0.2`, `train.py +3 -1`."""
        values = [
            f"{_name(item)} {shown(item.before)} -> {shown(item.after)}" for item in self.changes
        ]
        return [*values, *(f"{item.path} {item.amount}" for item in self.files)]


def changes_since_last(store: Store, ready: Ready, plan: Plan) -> Changes | None:
    """Return the changes since the newest run of a job with the same name, without asking a target.
    None if there is no such run, if it is a sweep, or if the store has no record of its
    submission."""
    last = next(iter(store.newest(limit=1, job=ready.original.name)), None)
    record = None if last is None else store.kept(last.name)
    if last is None or record is None or record.kind == SWEEP:
        return None
    changes = [
        *_of_target(last, record, ready),
        *changes_between(record.job, shown_fields(ready, plan)),
    ]
    files = list(_of_code(last, record, ready))
    return Changes(last.name, tuple(changes), tuple(files))


def shown(value: Any) -> str:
    """Return a short form of a value for a message."""
    if value is ABSENT:
        return "(not set)"
    text = (
        value if isinstance(value, str) and value.strip() == value and value else json.dumps(value)
    )
    return shortened(text, _LONGEST)


def _name(change: Change) -> str:
    is_script_s = change.path[0] == "hyperparameters" and len(change.path) > 1
    return ".".join(map(str, change.path[1:])) if is_script_s else change.name


def _of_target(last: RunRecord, record: JobRecord, ready: Ready) -> Iterator[Change]:
    before, after = dict(record.settings), settings_fields(ready.where.settings)
    if before.get("type") != after["type"]:
        yield Change(("target",), last.target, ready.where.target.name)
        return
    if "settings" not in record.hidden:
        yield from changes_between(before, after)


def _of_code(last: RunRecord, record: JobRecord, ready: Ready) -> Iterator[FileChange]:
    if record.bundle == ready.tree.sha256 or not record.files:
        return
    before, after = Side("", record.plan, record, ref=last.ref), Side("", {}, tree=ready.tree)
    is_quick = has_part(target_of(last.target), RunFolders) and ready.tree.identity.size < _QUICK
    yield from _code_changes(before, after, ready.where.here if is_quick else None, [])


_NAME = "RUN-NAME"
"""Replaces the run's own name in both requests, because the names of two runs always differ."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        title: the user's name for this side. plan: the plan as JSON data. record: the data that the
        store keeps for a run, or would keep for a job; None for a plan, which has none. tree: the
        code on disk; None for a run. ref: the run's reference. results: what came out of a run, by
        its label, such as `state` or the name of a metric.
    """

    title: str
    plan: Mapping[str, Any]
    record: JobRecord | None = None
    tree: Tree | None = None
    ref: RunRef | None = None
    results: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of_job(cls, title: str, ready: Ready) -> Side:
        """Return the side that describes a job as a submit would send it."""
        plan = ready.plan(1, "")
        record = keep_plan(ready, ready.original, plan, Commit(None, None), JobSource())
        return cls(title, record.plan, record, tree=ready.tree)

    @property
    def request(self) -> Any:
        """The request, with a placeholder in place of the run's name."""
        name = re.compile(rf"{re.escape(self.plan['run_name'])}(?![0-9])")
        return map_texts(self.plan["request"], lambda text: name.sub(_NAME, text))

    @property
    def bundle(self) -> str | None:
        """The hash of the code."""
        hashes = (item["sha256"] for item in self.plan.get("uploads", ()) if item["kind"] == "code")
        return next(hashes, None) if self.record is None else self.record.bundle

    @property
    def files(self) -> dict[str, tuple[object, ...]]:
        """Maps the path of each file of the code to the properties that must match for two files to
        be equal. cloudtrain's own files are left out."""
        files = (
            self.tree.entries
            if self.tree is not None
            else ()
            if self.record is None
            else self.record.files
        )
        own = (file for file in files if not file.path.startswith(RUNTIME))
        return {file.path: (file.sha256, file.executable, file.target) for file in own}


@dataclass(frozen=True)
class Difference(Printable):
    """The differences between two jobs, plans or runs.

    Attributes:
        before, after: the user's names for the two sides. target, job, request: the values that
        differ in the target and its settings, the job, and the request. `job`
            is None if one side is a plan, because a plan contains no job.
        code: the files that differ; None if one side is a plan. results: the states, durations,
        costs and metrics of two runs that differ. They do not count for `equal`. notes: parts that
        could not be compared, with the reasons.
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
        return not (self.target or self.job or self.request or self.code) and self._same_code

    @property
    def _same_code(self) -> bool:
        return self.code is not None or self.bundles[0] == self.bundles[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the differences as JSON data."""
        return {
            "equal": self.equal,
            "before": self.before,
            "after": self.after,
            "target": [item.to_dict() for item in self.target],
            "job": None if self.job is None else [item.to_dict() for item in self.job],
            "request": [item.to_dict() for item in self.request],
            "code": None if self.code is None else [item.to_dict() for item in self.code],
            "bundles": list(self.bundles),
            "notes": list(self.notes),
            "results": [item.to_dict() for item in self.results],
        }

    def document(self) -> Document:
        """Return the differences as a document."""
        blocks: list[Block] = []
        for title, changes in (
            ("Target", self.target),
            ("Job", self.job or ()),
            ("Request", self.request),
        ):
            if changes:
                rows = [(item.name, shown(item.before), shown(item.after)) for item in changes]
                blocks += [Heading(title), Table(("FIELD", self.before, self.after), rows)]
        if self.code:
            blocks += [
                Heading("Code"),
                Table(("FILE", "CHANGE"), [(item.path, item.amount) for item in self.code]),
            ]
            blocks += [Lines(item.lines) for item in self.code if item.lines]
        elif not self._same_code:
            names = [name or "none" for name in self.bundles]
            blocks += [Heading("Code"), Table(("", self.before, self.after), [("bundle", *names)])]
        if self.results:
            rows = [
                (str(item.path[0]), shown(item.before), shown(item.after)) for item in self.results
            ]
            blocks += [Heading("Results"), Table(("", self.before, self.after), rows)]
        blocks += [Notice("notice", note) for note in self.notes]
        return Document(blocks)


def results_of(status: RunStatus, reports: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Return what came out of a run, by its label: the state, the duration, the billed cost, and of
    each metric the last value and the lowest or highest one."""
    results: dict[str, object] = {"state": str(status.state), "duration": duration_of(status)}
    results |= {} if status.cost is None else {"cost": f"${status.cost:,.2f}"}
    for name in dict.fromkeys(
        name for report in reports for name in report if name not in (*PLACES, *PROGRESS)
    ):
        values = [report[name] for report in reports if name in report]
        word, best = (
            ("lowest", min)
            if name.lower().endswith(("loss", "error", "perplexity"))
            else ("highest", max)
        )
        numbers = [value for value in values if isfinite(value)]
        results[f"last {name}"] = number(values[-1]) if isfinite(values[-1]) else str(values[-1])
        results |= {f"{word} {name}": number(best(numbers))} if numbers else {}
    return results


def difference(before: Side, after: Side, settings: Settings) -> Difference:
    """Compare two sides. If the code differs, code that is not on this machine is fetched from the
    run's target."""
    targets = before.plan["target"], after.plan["target"]
    changes = [Change(("target",), *targets)] if targets[0] != targets[1] else []
    job, code, notes = None, None, list[str]()
    if changes:
        notes.append("the requests are for different targets and are not compared")
    if before.record is not None and after.record is not None:
        job = tuple(changes_between(dict(before.record.job), dict(after.record.job)))
        code = tuple(_code_changes(before, after, settings, notes))
        versions = before.record.version, after.record.version
        if not changes and not {"settings"} & {*before.record.hidden, *after.record.hidden}:
            changes += changes_between(dict(before.record.settings), dict(after.record.settings))
        if versions[0] != versions[1]:
            notes.append(
                f"`{before.title}` was made with cloudtrain {versions[0]}, `{after.title}` with "
                f"{versions[1]}"
            )
    return Difference(
        before=before.title,
        after=after.title,
        target=tuple(changes),
        job=job,
        request=tuple(changes_between(before.request, after.request))
        if targets[0] == targets[1]
        else (),
        code=code,
        bundles=(before.bundle, after.bundle),
        notes=tuple(notes),
        results=tuple(changes_between(before.results, after.results))
        if before.results and after.results
        else (),
    )


def _code_changes(
    before: Side, after: Side, settings: Settings | None, notes: list[str]
) -> Iterator[FileChange]:
    """Yield the files that differ, with their changed lines unless `settings` is None."""
    old, new = before.files, after.files
    paths = {path for path in old.keys() & new.keys() if old[path] != new[path]}
    with ExitStack() as stack:
        first, second = (_contents(side, paths, settings, stack, notes) for side in (before, after))
        yield from file_changes(old, new, first, second, names=(before.title, after.title))


def _contents(
    side: Side, paths: set[str], settings: Settings | None, stack: ExitStack, notes: list[str]
) -> Callable[[str], bytes | None]:
    tree = side.tree
    if not paths or settings is None:
        return lambda _: None
    if tree is None:
        assert side.record is not None, "a run without it is not compared"
        assert side.ref is not None, "a side without a tree is a run"
        try:
            service = service_of(side.ref.target, settings)
            tree = stack.enter_context(code_of(side.record, side.ref, service, only=paths))
        except CloudtrainError as error:
            notes.append(f"the lines of changed files are not shown: {error.message}")
            return lambda _: None
    places = {entry.path: tree.location(entry) for entry in tree.entries}

    def content(path: str) -> bytes | None:
        with suppress(OSError):
            return Path(places[path]).read_bytes()
        return None

    return content
