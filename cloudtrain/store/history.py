"""What is kept of each submission beside its row: all that is needed to show, compare and send it again. No secrets."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, NamedTuple


class KeptFile(NamedTuple):
    """A file or a link of a run's code, as `bundle.entries.Entry`."""

    path: str
    size: int
    executable: bool
    sha256: str
    target: str | None


class Money(NamedTuple):
    """What a run costs. US dollars at list prices; None where it is not known.

    Attributes:
        hourly: of all instances, when it was submitted.
        billable_seconds: what the target billed each instance for.
        cost: of all instances for that time, as the target reported it.
    """

    hourly: float | None = None
    billable_seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Kept:
    """One submission. Secrets are hidden in all of it.

    Attributes:
        version: cloudtrain's.
        job: the job's fields, with absolute paths.
        prepared: the same as it was compiled: with places for what earlier runs wrote. None where it does not differ.
        kind: of the job, `training` or `processing`.
        file: the path of the job's file; None for a job that was written in Python.
        text: what stood in it; None as well where a secret in it could not be hidden.
        overrides: `--set` and its like, in their order.
        settings: of the target, its `type` among them.
        plan: the plan's data, without its processes.
        bundle: the hash of the code.
        files: what the code consists of.
        commit, branch, dirty, difference: as of `system.git.Commit`, for the folder of the code.
        hidden: the ways to the values of the job that are hidden.
        hourly: US dollars for an hour of all instances; None where that is not known.
        rerun_of: the run that this one repeats.
        trial: of a sweep: US dollars for an hour of a trial's instances, and the seconds that a trial takes at most.
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
    """Write down what is sent for a run, in a transaction that is open."""
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
    """Write down whether the code of a run differed from its commit, and the hash of the difference."""
    db.execute("UPDATE sent SET dirty = ?, difference = ? WHERE name = ?", (*difference, name))


def keep_bill(db: Connection, name: str, billable_seconds: float, cost: float | None) -> None:
    """Write down what a target has billed so far."""
    db.execute(
        "INSERT INTO money (name, billable_seconds, cost) VALUES (?, ?, ?) ON CONFLICT (name)"
        " DO UPDATE SET billable_seconds = excluded.billable_seconds, cost = excluded.cost",
        (name, billable_seconds, cost),
    )


def drop_unused(db: Connection) -> None:
    """Forget the files of code that no run has any more."""
    db.execute("DELETE FROM bundles WHERE NOT EXISTS (SELECT 1 FROM sent WHERE sent.bundle = bundles.sha256)")


def kept(db: Connection, name: str) -> Kept | None:
    """Return what was sent for a run; None where nothing of it is kept."""
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
    """Return what is known of the costs of each run."""
    return {name: Money(*rest) for name, *rest in db.execute("SELECT name, hourly, billable_seconds, cost FROM money")}


_IN_CONTENT = ("job", "prepared", "kind", "text", "overrides", "settings", "plan", "hidden", "rerun_of", "trial")
"""Fields of `Kept` that have no column of their own."""


def _pack(value: Any) -> bytes:
    """JSON data as the store keeps it. Keys stay in their order, which is that of the request."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), 1)


def _unpack(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))
