"""Submission of an earlier run again, with the same code, and the same request except for the run's name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudtrain.code.files import Entry, content_hash
from cloudtrain.code.tree import Digest, SourceChanged, Tree, hash_files
from cloudtrain.errors import TargetError
from cloudtrain.lifecycle.records import JobRecord
from cloudtrain.plans.plan import Bundle, Upload
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.contract import Service

RUNTIME = "cloudtrain/"
"""Prefix of cloudtrain's own files, which are added to every bundle."""


@contextmanager
def code_of(record: JobRecord, ref: RunRef, service: Service, *, only: Iterable[str] | None = None) -> Iterator[Tree]:
    """Yield one tree with the files of a run's code, each with its original content. If `only` is given, the tree holds
    only the files at those paths.

    Raises:
        TargetError: a file was deleted or changed (CT972), or the target does not answer.
    """
    paths = set(only) if only is not None else None
    entries = [Entry(*file) for file in record.files if paths is None or file.path in paths]
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as scratch:
        places = _places(entries, service.code(ref, code_upload(record, ref), Path(scratch)))
        missing = [entry.path for entry in entries if entry.target is None and entry.path not in places]
        if missing:
            raise gone(ref, f"`{missing[0]}`" + (f" and {len(missing) - 1} more files" if missing[1:] else ""))
        size = sum(entry.size for entry in entries)
        yield Tree(Path(scratch), tuple(entries), (), Bundle(content_hash(entries), size, len(entries)), {}, places)


def code_upload(record: JobRecord, ref: RunRef) -> Upload:
    """Return the upload that holds the code of a run."""
    uploads = [Upload(**item) for item in record.plan["uploads"] if item["sha256"] == record.bundle]
    if not uploads:
        raise TargetError(f"`{ref.name}` was submitted without code", hint="its code is in the image", code="CT972")
    return next((item for item in uploads if item.kind == "code"), uploads[0])


def gone(ref: RunRef, what: str) -> TargetError:
    """Return the error for code that no longer exists. `what` names the missing file or the cause."""
    return TargetError(
        f"the code of `{ref.name}` is gone: {what}",
        hint="submit the job from its source folder; `cloudtrain show` names its commit",
        code="CT972",
    )


class SameCode:
    """The bundle of one run, used for another run. The code is fetched only if the target no longer has the bundle."""

    def __init__(self, record: JobRecord, ref: RunRef, service: Service) -> None:
        self.sha256 = record.bundle
        self._record = record
        self._ref = ref
        self._service = service

    def write(self, path: Path) -> None:
        with code_of(self._record, self._ref, self._service) as tree:
            try:
                tree.write(path)
            except SourceChanged as error:
                raise gone(self._ref, error.message) from None


def write_code(tree: Tree, destination: Path) -> list[str]:
    """Write the user's files of a code tree into a folder, which must be empty or not exist. Return the paths of the
    files. After an error, the folder contains none of the files."""
    from cloudtrain.code.unpack import unpack

    own = tuple(entry for entry in tree.entries if not entry.path.startswith(RUNTIME))
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "code.tar.gz")
        part = Tree(tree.root, own, (), Bundle(content_hash(own), 0, len(own)), {}, tree.included)
        part.write(archive)
        unpack(archive, Path(os.path.abspath(destination)), part.sha256)  # noqa: PTH100 - `..` may lead out of a link
    return [entry.path for entry in own]


def _places(entries: Iterable[Entry], folders: Iterator[Path]) -> dict[str, str]:
    """Map the path of each file to a location at which the file still has its original content. Searches the folders
    one after the other until all files are found. Files without such a location are left out."""
    left, places = [entry for entry in entries if entry.target is None], dict[str, str]()
    while left and (folder := next(folders, None)) is not None:
        there = {entry: f"{folder}/{entry.path}" for entry in left}
        there = {entry: place for entry, place in there.items() if os.path.isfile(place)}  # noqa: PTH113 - a pipe blocks
        digests = hash_files([*there.values()], [entry.size for entry in there], [None] * len(there))
        for (entry, place), digest in zip(there.items(), digests, strict=True):
            if isinstance(digest, Digest) and digest.sha256 == entry.sha256:
                places[entry.path] = place
        left = [entry for entry in left if entry.path not in places]
    return places
