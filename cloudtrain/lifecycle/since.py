"""Changes since a job's last run, determined without asking a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.core.comparison import ABSENT, Change, FileChange, changes_between, file_changes
from cloudtrain.core.fields import SWEEP
from cloudtrain.core.plan import Plan
from cloudtrain.errors import CloudtrainError
from cloudtrain.lifecycle.code import RUNTIME, code_of
from cloudtrain.lifecycle.keeping import settings_fields, shown_fields
from cloudtrain.lifecycle.planning import PreparedJob
from cloudtrain.store.history import Kept
from cloudtrain.store.store import RunRecord, Store
from cloudtrain.targets.registry import target_of

if TYPE_CHECKING:
    from cloudtrain.bundle.entries import Entry
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.store.history import KeptFile

_QUICK = 50 << 20
"""Size of code in bytes up to which the changed lines of files are counted."""


class Since(NamedTuple):
    """The differences between a job's last run and the plan about to be sent."""

    run: str
    changes: tuple[Change, ...]
    files: tuple[FileChange, ...]

    @property
    def items(self) -> list[str]:
        """Return each difference in a few words: `learning_rate 0.1 -> 0.2`, `train.py +3 -1`."""
        values = [f"{_name(item)} {shown(item.before)} -> {shown(item.after)}" for item in self.changes]
        return [*values, *(f"{item.path} {item.amount}" for item in self.files)]


def changes_since_last(store: Store, prepared: PreparedJob, job: AnyJob, plan: Plan) -> Since | None:
    """Return the changes since the newest run of a job with the same name. None if there is no such run, if it is a
    sweep, or if the store has no record of its submission.
    """
    last = next(iter(store.newest(limit=1, job=job.name)), None)
    kept = None if last is None else store.kept(last.name)
    if last is None or kept is None or kept.kind == SWEEP:
        return None
    changes = [*_of_target(last, kept, prepared), *changes_between(kept.job, shown_fields(prepared, job, plan))]
    files = list(_of_code(last, kept, prepared))
    return Since(last.name, tuple(changes), tuple(files))


def hashes(files: Sequence[Entry | KeptFile]) -> dict[str, tuple[object, ...]]:
    """Map the path of each file to the properties that must match for two files to be equal. cloudtrain's own files are
    left out.
    """
    return {
        file.path: (file.sha256, file.executable, file.target) for file in files if not file.path.startswith(RUNTIME)
    }


def shown(value: Any) -> str:
    """Return a short form of a value for a message."""
    import json

    if value is ABSENT:
        return "(not set)"
    text = value if isinstance(value, str) and value.strip() == value and value else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_LONGEST = 60


def _name(change: Change) -> str:
    is_script_s = change.path[0] == "hyperparameters" and len(change.path) > 1
    return ".".join(map(str, change.path[1:])) if is_script_s else change.name


def _of_target(last: RunRecord, kept: Kept, prepared: PreparedJob) -> Iterator[Change]:
    before, after = dict(kept.settings), settings_fields(prepared.target)
    if before.get("type") != after["type"]:
        yield Change(("target",), last.target, prepared.where.name)
        return
    if "settings" not in kept.hidden:
        yield from changes_between(before, after)


def _of_code(last: RunRecord, kept: Kept, prepared: PreparedJob) -> Iterator[FileChange]:
    if kept.bundle == prepared.tree.sha256 or not kept.files:
        return
    before, after = hashes(kept.files), hashes(prepared.tree.entries)
    changed = [path for path in before.keys() & after.keys() if before[path] != after[path]]
    entries = {entry.path: entry for entry in prepared.tree.entries}
    with ExitStack() as stack:
        old: Mapping[str, str] = {}
        is_here = target_of(last.target).run_folder(last.name, prepared.settings.state_dir) is not None
        if changed and is_here and prepared.tree.identity.size < _QUICK:
            from cloudtrain.targets.registry import service_of

            with suppress(CloudtrainError):
                service = service_of(last.target, prepared.settings)
                old = stack.enter_context(code_of(kept, last.ref, service, only=changed)).included
        yield from file_changes(
            before,
            after,
            lambda path: content(old.get(path)),
            lambda path: content(prepared.tree.location(entries[path])),
            names=("", ""),
        )


def content(place: str | None) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return None if place is None else Path(place).read_bytes()
    except OSError:
        return None
