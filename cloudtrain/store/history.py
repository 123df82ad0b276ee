"""The data that the store keeps of each submission, so that its run can be shown, compared and run again. The data
contains no secrets. The database table `runs` holds the run's name and status.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, NamedTuple


class KeptFile(NamedTuple):
    """A file or a link of a run's code, with the fields of `bundle.entries.Entry`."""

    path: str
    size: int
    executable: bool
    sha256: str
    target: str | None


class Money(NamedTuple):
    """The cost of a run in US dollars at list prices. Unknown values are None.

    Attributes:
        hourly: the price per hour for all instances, at submission.
        billable_seconds: the time that the target billed for each instance.
        cost: the cost of all instances for `billable_seconds`, as the target reported it.
    """

    hourly: float | None = None
    billable_seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Kept:
    """The data of one submission. All secrets are hidden.

    Attributes:
        version: cloudtrain's version.
        job: the job's fields, with absolute paths.
        prepared: the job as it was compiled, with `run:...` inputs replaced by locations. None if equal to `job`.
        kind: the kind of the job, `training` or `processing`.
        file: the path of the job's file; None for a job that was written in Python.
        text: the text of that file; None if there is no file, or if a secret in it could not be hidden.
        overrides: the values of `--set` and similar options, in order.
        settings: the target's settings, including `type`.
        plan: the plan's data, without its processes.
        bundle: the hash of the code.
        files: the files of the code.
        commit, branch, dirty, difference: the fields of `system.git.Commit` for the folder of the code.
        hidden: the paths of the job's fields that hold secrets.
        hourly: the price in US dollars per hour for all instances; None if unknown.
        rerun_of: the earlier run that this run repeats.
        trial: for a sweep, the price in US dollars per hour of a trial's instances, and a trial's maximum run time in
            seconds.
    """

    version: str
    job: Mapping[str, Any]
    plan: Mapping[str, Any]
    bundle: str
    files: tuple[KeptFile, ...] = ()
    kind: str = "training"
    prepared: Mapping[str, Any] | None = None
    file: str | None = None
    text: str | None = None
    overrides: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    difference: str | None = None
    hidden: tuple[str, ...] = ()
    hourly: float | None = None
    rerun_of: str | None = None
    trial: tuple[float | None, int | None] = (None, None)


def keep(db: Connection, name: str, kept: Kept) -> None:
    """Record the data that is sent for a run. The caller must have opened a transaction."""
    row = (name, kept.version, kept.file, kept.bundle, kept.commit, kept.branch, kept.dirty, kept.difference)
    content = {field: getattr(kept, field) for field in _IN_CONTENT}
    db.execute(
        "INSERT OR REPLACE INTO sent (name, version, file, bundle, commit_id, branch, dirty, difference, content)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, _pack(content)),
    )
    if kept.files and not db.execute("SELECT 1 FROM bundles WHERE sha256 = ?", (kept.bundle,)).fetchone():
        files = _pack([list(file) for file in kept.files])
        db.execute("INSERT INTO bundles (sha256, files) VALUES (?, ?)", (kept.bundle, files))
    db.execute("INSERT OR REPLACE INTO money (name, hourly) VALUES (?, ?)", (name, kept.hourly))


def keep_difference(db: Connection, name: str, difference: tuple[bool, str | None]) -> None:
    """Record whether the code of a run differed from its commit, and the hash of the difference."""
    db.execute("UPDATE sent SET dirty = ?, difference = ? WHERE name = ?", (*difference, name))


def keep_bill(db: Connection, name: str, billable_seconds: float, cost: float | None) -> None:
    """Record the seconds and the cost that a target has billed so far."""
    db.execute(
        "INSERT INTO money (name, billable_seconds, cost) VALUES (?, ?, ?) ON CONFLICT (name)"
        " DO UPDATE SET billable_seconds = excluded.billable_seconds, cost = excluded.cost",
        (name, billable_seconds, cost),
    )


def drop_unused(db: Connection) -> None:
    """Delete the lists of code files that no run uses any more."""
    db.execute("DELETE FROM bundles WHERE NOT EXISTS (SELECT 1 FROM sent WHERE sent.bundle = bundles.sha256)")


def kept(db: Connection, name: str) -> Kept | None:
    """Return the data that was sent for a run; None if the store has no record of it."""
    found = db.execute(
        "SELECT version, file, bundle, commit_id, branch, dirty, difference, content, files, hourly FROM sent"
        " LEFT JOIN bundles ON bundles.sha256 = sent.bundle LEFT JOIN money ON money.name = sent.name"
        " WHERE sent.name = ?",
        (name,),
    ).fetchone()
    if found is None:
        return None
    version, file, bundle, commit, branch, dirty, difference, content, files, hourly = found
    data = _unpack(content)
    return Kept(
        **data | {"overrides": tuple(data["overrides"]), "hidden": tuple(data["hidden"])},
        version=version,
        bundle=bundle,
        files=tuple(KeptFile(*item) for item in _unpack(files)) if files is not None else (),
        file=file,
        commit=commit,
        branch=branch,
        dirty=None if dirty is None else bool(dirty),
        difference=difference,
        hourly=hourly,
    )


def money(db: Connection) -> dict[str, Money]:
    """Return the known costs of each run, by the run's name."""
    return {name: Money(*rest) for name, *rest in db.execute("SELECT name, hourly, billable_seconds, cost FROM money")}


_IN_CONTENT = ("job", "prepared", "kind", "text", "overrides", "settings", "plan", "hidden", "rerun_of", "trial")
"""Fields of `Kept` that have no database column."""


def _pack(value: Any) -> bytes:
    """Compress JSON data for the store. Keys keep their order."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), 1)


def _unpack(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))
