"""Copy a job's results: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or all of them.

`outputs/` also includes the script's own folder `./outputs`, which the service always keeps. Files are copied in parts,
several parts at once. If a connection breaks or a key expires, only the interrupted part is requested again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.targets.azureml.outputs import OWN, places_of
from cloudtrain.targets.azureml.service.blobs import READ, Blobs, Piece, read
from cloudtrain.targets.azureml.service.lines import Layout
from cloudtrain.targets.azureml.service.logs import RunLog, artifact_place
from cloudtrain.targets.azureml.service.outputs import resolved_place
from cloudtrain.targets.azureml.service.places import Where, place_of
from cloudtrain.targets.azureml.service.versions import CODE
from cloudtrain.targets.common.landing import landing
from cloudtrain.targets.common.provider_errors import Denied, NotThere
from cloudtrain.targets.common.transfers import Check, run_concurrently

OUTPUTS, LOGS = "outputs", "logs"

_FILES, _PARTS = 4, 4
"""The number of files copied at once, and the number of parts of each."""

_TRIES = 2
"""The number of attempts to copy a file that is rewritten meanwhile."""

Open = Callable[[Callable[[Any], "Piece | None"]], "Piece | None"]
"""Calls the function with azure-storage-blob's client of the file, and renews expired keys."""


class File(NamedTuple):
    """A file of a run: its path among the results, such as `outputs/plots/a.png`, and a function that opens it."""

    name: str
    open: Open


def download(blobs: Blobs, job: Mapping[str, Any], path: str, destination: Path) -> list[Path]:
    """Copy everything under `path` into `destination`, which is created, and return the written files.

    The content of the folder `path` goes directly into `destination`. With an empty path, `destination` gets a folder
    for each result, such as `model`. `path` can also name a single file, such as `model/weights.pt`.

    Args:
        job: the resource manager's description of the job.

    Raises:
        UsageError: the run has no such result; the hint names the results that exist.
        TargetError: the run wrote no files to `path`, or a file's path is not allowed.
    """
    results = Results(blobs, job)
    wanted = results.check_path(path.strip("/"))
    found: dict[str, File] = {}
    for file in results.files(wanted):
        found.setdefault(_behind(file.name, wanted) or file.name.rpartition("/")[2], file)
    if not found and wanted:
        hint = f"this run can write to {', '.join(f'`{name}/`' for name in results.names)}"
        raise TargetError(f"the run wrote nothing to `{wanted}`", hint=hint)
    with landing(destination) as staging:
        places = [(file, staging.place(name)) for name, file in sorted(found.items())]
        run_concurrently(_FILES, lambda item, check: _fetch(*item, check), places)
        return staging.move()


def fetch_code(blobs: Blobs, code_id: str, destination: Path) -> Path:
    """Copy the files of a code asset into `destination`, which is created.

    Raises:
        NotThere: the asset does not exist.
        TargetError: the user may not read the asset's files, or a file's path is not allowed.
    """
    address = str(blobs.client.get(code_id, api_version=CODE)["properties"]["codeUri"]).partition("?")[0]
    container_url, root = code_folder(address)
    container = blobs.beside(container_url)
    names = [(blob, _behind(blob, root)) for blob in container.names(f"{root}/")]
    with landing(destination) as staging:
        files = [(File(name, _opener(container, blob)), staging.place(name)) for blob, name in names if name]
        run_concurrently(_FILES, lambda item, check: _fetch(*item, check), files)
        staging.move()
    return destination


def code_folder(address: str) -> tuple[str, str]:
    """Split the address of a code asset's files into the container's address and the folder in the container.

    The folder of `upload_code` has one level; the SDK's has several.
    """
    named = re.fullmatch(r"(https://[^/]+\.blob\.[^/]+/[^/]+)/(.+)", address.rstrip("/"))
    container, _, folder = address.rstrip("/").rpartition("/")
    return (named[1], named[2]) if named else (container, folder)


class Results:
    """The results of one run, under the names that results have on all targets."""

    def __init__(self, blobs: Blobs, job: Mapping[str, Any]) -> None:
        self._blobs = blobs
        self._job = job
        self._run: str = job["name"]
        self._workspace = blobs.client.place.workspace_id
        self._places = places_of(job, self._run, self._workspace)

    @property
    def names(self) -> list[str]:
        """Return the results that a user can download, such as `model` and `logs`."""
        return [*self._places, OUTPUTS, LOGS]

    def check_path(self, wanted: str) -> str:
        """Return the path with the result's standard name: `model` for `outputs/model`.

        Raises:
            UsageError: the run has no such result.
        """
        for name in OWN:
            if name in self._places and _behind(wanted, f"{OUTPUTS}/{name}") is not None:
                wanted = wanted.removeprefix(f"{OUTPUTS}/")
        if not any(_overlap(name, wanted) for name in self.names) or ".." in wanted.split("/"):
            raise UsageError(
                f"`{wanted}` is not a result of the run", hint=did_you_mean(wanted, self.names), code="CT935"
            )
        return wanted

    def files(self, wanted: str) -> Iterator[File]:
        """Yield the files under the path `wanted` in the results. Of two files with the same name, the first counts."""
        chosen = [name for name in self._places if _overlap(name, wanted)]
        for name in chosen:
            yield from self._output(name, _behind(wanted, name) or "")
        inside_one = any(_behind(wanted, name) is not None for name in chosen)
        if _overlap(OUTPUTS, wanted) and not inside_one:
            where = artifact_place(self._workspace, self._run, f"{OUTPUTS}/")
            yield from self._at(OUTPUTS, where, _behind(wanted, OUTPUTS) or "")
        if _overlap(LOGS, wanted):
            yield from (file for file in self._logs() if _behind(file.name, wanted) is not None)

    def _output(self, name: str, rest: str) -> Iterator[File]:
        found = list(self._at(name, place_of(self._places[name], self._workspace), rest))
        if not found:
            elsewhere = self._resolve(name)
            found = list(self._at(name, elsewhere, rest)) if elsewhere else []
        yield from found

    def _resolve(self, name: str) -> Where | None:
        """Return the storage location that the service chose for an output.

        Returns None if the job itself names a location, or if the run history has none or may not be read.
        """
        output = name.rpartition("/")[2]
        if self._job["properties"]["outputs"][output].get("uri"):
            return None
        try:
            uri = resolved_place(self._blobs.client, self._run, output)
        except (NotThere, Denied):
            return None
        return place_of(uri, self._workspace) if uri else None

    def _at(self, name: str, where: Where, rest: str) -> Iterator[File]:
        """Yield the files at or below the path `rest` in the result `name`, which is stored at `where`.

        With an empty `rest`, yield all files of the result. A result can also be a single file.
        """
        container = self._blobs.container(where)
        root = where.path.rstrip("/")
        prefix = f"{root}/{rest}" if root else rest
        for blob in container.names(prefix) or (container.names(root) if root and not rest else ()):
            below = root.rpartition("/")[2] if blob == root else _behind(blob, root)
            if below and _behind(below, rest) is not None:
                yield File(f"{name}/{below}", _opener(container, blob))

    def _logs(self) -> Iterator[File]:
        log = RunLog(self._blobs, self._run, Layout.of(self._job["properties"]))
        log.discover()
        for name in log.names:
            yield File(f"{LOGS}/{name}", partial(log.use_file, name))


def _opener(container: Any, blob: str) -> Open:
    return lambda copy: container.use(blob, lambda opened: copy(opened.get_blob_client(blob)))


def _behind(name: str, folder: str) -> str | None:
    """Return a path relative to `folder`: empty for the folder itself, None for a path outside the folder."""
    if not folder:
        return name
    if name == folder:
        return ""
    return name[len(folder) + 1 :] if name.startswith(f"{folder}/") else None


def _overlap(name: str, wanted: str) -> bool:
    """Return whether one of two paths contains the other."""
    return _behind(name, wanted) is not None or _behind(wanted, name) is not None


def _fetch(file: File, place: Path, check: Check) -> None:
    """Copy one file; try again if it changes meanwhile."""
    if not any(_copy(file, place, check) for _ in range(_TRIES)):
        raise TargetError(f"`{file.name}` changed while cloudtrain copied it", hint="try again when the run has ended")


def _copy(file: File, place: Path, check: Check) -> bool:
    """Copy all parts of a file, each opened separately; return False if the file changed meanwhile."""
    first = file.open(partial(read, offset=0))
    assert first is not None, "no ETag was named"
    lock = Lock()

    def copy_parts(start: int, check: Check) -> bool:
        """Copy the part at the offset `start` and every `_PARTS`-th part after it; return False if the file changed."""
        for offset in range(start, first.size, READ * _PARTS):
            check()
            part = file.open(partial(read, offset=offset, only=first.etag))
            if part is None or part.etag != first.etag:
                return False
            with lock:
                content.seek(offset)
                content.write(part.data)
        return True

    with place.open("wb") as content:
        content.write(first.data)
        return all(run_concurrently(_PARTS, copy_parts, range(READ, first.size, READ)[:_PARTS], check))
