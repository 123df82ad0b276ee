"""Differences between two jobs, plans or runs: in the job's fields, the request, and the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle.tree import Tree
from cloudtrain.core.comparison import Change, FileChange, changes_between, file_changes
from cloudtrain.core.states import RunRef
from cloudtrain.errors import CloudtrainError
from cloudtrain.lifecycle.code import code_of
from cloudtrain.lifecycle.keeping import keep_plan
from cloudtrain.lifecycle.planning import PreparedJob
from cloudtrain.lifecycle.since import content, hashes, shown
from cloudtrain.settings import Settings
from cloudtrain.store.history import Kept
from cloudtrain.system.git import Commit
from cloudtrain.targets.registry import service_of

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.render.document import Block, Document

_NAME = "RUN-NAME"
"""Replaces the run's own name in both requests, because the names of two runs always differ."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        title: the user's name for this side.
        plan: the plan as JSON data.
        kept: the data that the store keeps for a run, or would keep for a job; None for a plan, which has no such data.
        tree: the code on disk; None for a run.
        ref: the run's reference.
    """

    title: str
    plan: Mapping[str, Any]
    kept: Kept | None = None
    tree: Tree | None = None
    ref: RunRef | None = None

    @classmethod
    def of_run(cls, title: str, ref: RunRef, kept: Kept) -> Side:
        """Return the side that describes a run."""
        return cls(title, kept.plan, kept, ref=ref)

    @classmethod
    def of_job(cls, title: str, prepared: PreparedJob, job: AnyJob) -> Side:
        """Return the side that describes a job as a submit would send it."""
        plan = prepared.plan(1, "")
        kept = keep_plan(prepared, job, plan, Commit(None, None), file=None, text=None, overrides=())
        return cls(title, kept.plan, kept, tree=prepared.tree)

    @property
    def request(self) -> Any:
        """The request, with a placeholder in place of the run's name."""
        name = re.compile(rf"{re.escape(self.plan['run_name'])}(?![0-9])")
        return _map(self.plan["request"], lambda text: name.sub(_NAME, text))

    @property
    def bundle(self) -> str | None:
        """The hash of the code."""
        found = {item["sha256"] for item in self.plan.get("uploads", ()) if item["kind"] == "code"}
        return next(iter(found), None) if self.kept is None else self.kept.bundle


@dataclass(frozen=True)
class Difference:
    """The differences between two jobs, plans or runs.

    Attributes:
        before, after: the user's names for the two sides.
        target, job, request: the values that differ in the target and its settings, the job, and the request. `job`
            is None if one side is a plan, because a plan contains no job.
        code: the files that differ; None if one side is a plan.
        notes: parts that could not be compared, with the reasons.
    """

    before: str
    after: str
    target: tuple[Change, ...] = ()
    job: tuple[Change, ...] | None = ()
    request: tuple[Change, ...] = ()
    code: tuple[FileChange, ...] | None = ()
    bundles: tuple[str | None, str | None] = (None, None)
    notes: tuple[str, ...] = field(default=(), compare=False)

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
        }

    def document(self) -> Document:
        """Return the differences as a document."""
        from cloudtrain.render.document import Document, Heading, Lines, Notice, Table

        blocks: list[Block] = []
        for title, changes in (("Target", self.target), ("Job", self.job or ()), ("Request", self.request)):
            if changes:
                rows = [(item.name, shown(item.before), shown(item.after)) for item in changes]
                blocks += [Heading(title), Table(("FIELD", self.before, self.after), rows)]
        if self.code:
            blocks += [Heading("Code"), Table(("FILE", "CHANGE"), [(item.path, item.amount) for item in self.code])]
            blocks += [Lines(item.lines) for item in self.code if item.lines]
        elif not self._same_code:
            names = [name or "none" for name in self.bundles]
            blocks += [Heading("Code"), Table(("", self.before, self.after), [("bundle", *names)])]
        blocks += [Notice("notice", note) for note in self.notes]
        return Document(blocks)

    def to_text(self, *, width: int | None = 80, color: bool = False) -> str:
        """Return the differences as text."""
        from cloudtrain.render.text import to_text

        return to_text(self.document(), width=width, color=color)

    def _repr_html_(self) -> str:
        from cloudtrain.render.html import to_html

        return to_html(self.document())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self._repr_html_()}


def difference(before: Side, after: Side, settings: Settings) -> Difference:
    """Compare two sides. If the code differs, code that is not on this machine is fetched from the run's target."""
    targets = before.plan["target"], after.plan["target"]
    changed = [Change(("target",), *targets)] if targets[0] != targets[1] else []
    job, code, notes = None, None, list[str]()
    if changed:
        notes.append("the requests are for different targets and are not compared")
    if before.kept is not None and after.kept is not None:
        job = tuple(changes_between(dict(before.kept.job), dict(after.kept.job)))
        code = tuple(_code_changes(before, after, settings, notes))
        versions = before.kept.version, after.kept.version
        if not changed and not {"settings"} & {*before.kept.hidden, *after.kept.hidden}:
            changed += changes_between(dict(before.kept.settings), dict(after.kept.settings))
        if versions[0] != versions[1]:
            notes.append(f"`{before.title}` was made with cloudtrain {versions[0]}, `{after.title}` with {versions[1]}")
    return Difference(
        before=before.title,
        after=after.title,
        target=tuple(changed),
        job=job,
        request=tuple(_request_changes(before, after)),
        code=code,
        bundles=(before.bundle, after.bundle),
        notes=tuple(notes),
    )


def _request_changes(before: Side, after: Side) -> Iterator[Change]:
    """Yield the changes between two requests; none for different targets, which have no fields in common."""
    if before.plan["target"] == after.plan["target"]:
        yield from changes_between(before.request, after.request)


def _code_changes(before: Side, after: Side, settings: Settings, notes: list[str]) -> Iterator[FileChange]:
    assert before.kept is not None, "a side with a job has it"
    assert after.kept is not None, "a side with a job has it"
    old, new = hashes(before.kept.files), hashes(after.kept.files)
    changed = {path for path in old.keys() & new.keys() if old[path] != new[path]}
    with ExitStack() as stack:
        first, second = (_contents(side, changed, settings, stack, notes) for side in (before, after))
        yield from file_changes(old, new, first, second, names=(before.title, after.title))


def _contents(
    side: Side, paths: set[str], settings: Settings, stack: ExitStack, notes: list[str]
) -> Callable[[str], bytes | None]:
    tree = side.tree
    if not paths:
        return _nothing
    if tree is None:
        assert side.kept is not None, "a run without it is not compared"
        assert side.ref is not None, "a side without a tree is a run"
        try:
            service = service_of(side.ref.target, settings)
            tree = stack.enter_context(code_of(side.kept, side.ref, service, only=paths))
        except CloudtrainError as error:
            notes.append(f"the lines of changed files are not shown: {error.message}")
            return _nothing
    places = {entry.path: tree.location(entry) for entry in tree.entries}
    return lambda path: content(places.get(path))


def _nothing(_: str) -> bytes | None:
    return None


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map(inner, change) for inner in value]
    return value
