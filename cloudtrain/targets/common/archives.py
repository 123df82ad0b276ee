"""Archives of bundles in a folder: `bundles/<hash of the content>/sourcedir.tar.gz`.

When an archive is complete, its size, modification time and inode are written to a file beside it.
A later submit only compares these values, and writes the archive again if they differ. The
archive's content is verified only when it is unpacked (`cloudtrain.code.unpack`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

from cloudtrain.errors import NearName, NothingWritten, TargetError, UsageError, did_you_mean
from cloudtrain.runtime.shards import leads_back
from cloudtrain.system.private import make_private_folder, replace_private
from cloudtrain.system.processes import tell
from cloudtrain.system.staging import Staging, Unsafe
from cloudtrain.targets.contract import BundleWriter


def put_archive(archive: Path, bundle: BundleWriter) -> bool:
    """Write the bundle's archive. Return False if the archive exists unchanged. Raises
    `SourceChanged` if a source file changed after cloudtrain had read it, and `OSError`."""
    note = archive.with_name(f"{archive.name}.whole")
    stamp = _stamp(archive)
    if stamp is not None and stamp == _read(note):
        os.utime(archive.parent)  # `prune` removes archives that no submit has used for a day
        return False

    make_private_folder(archive.parent)
    bundle.write(archive)
    new_stamp = _stamp(archive) or ""  # empty if it was removed at once; then it is written again
    replace_private(note, new_stamp.encode("ascii"))
    return True


def unpacked(archive: Path, sha256: str, scratch: Path) -> Iterator[Path]:
    """Unpack an archive below `scratch` and yield the folder; yield nothing if the archive is
    missing or damaged."""
    from cloudtrain.code.unpack import DamagedBundle, unpack

    folder = scratch / "code"
    with suppress(DamagedBundle, FileNotFoundError):
        unpack(archive, folder, sha256)
        yield folder


def _stamp(archive: Path) -> str | None:
    """Return the archive's size, modification time and inode as a text; None if the archive does
    not exist."""
    try:
        status = archive.stat(follow_symlinks=False)
    except OSError:
        return None
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}\n"


def _read(note: Path) -> str | None:
    try:
        return note.read_text("ascii")
    except (OSError, ValueError):
        return None


# Move results into the user's folder: all of them, or none.

_HINT = (
    "nothing was written; copy a part of it, such as one file, or copy it by hand into an "
    "empty folder"
)


@contextmanager
def landing(destination: Path, *, odd_names: bool = False) -> Iterator[Staging]:
    """Yield a `Staging` for files of the folder `destination`, which is created. `Staging.move`
    moves all of them into the folder, or none. `odd_names`: allow control characters in file
    names."""
    with Staging(destination, odd_names=odd_names) as staging:
        try:
            yield staging
        except Unsafe as error:
            raise TargetError(str(error), hint=_HINT) from None


# Copy files that a run wrote: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or everything.

Places = Iterable[Path]
"""The folders of one output. Their contents are copied together."""

Item = TypeVar("Item")

Files = Mapping[str, Path]
"""Maps relative paths of an output's files to the files on this machine."""


def copy_places(
    places: Mapping[str, Places],
    path: str,
    destination: Path,
    *,
    extras: Mapping[str, Files] = {},
    inside: Set[Path] = frozenset(),
    started: int | None = None,
) -> list[Path]:
    """Copy the run's files at `path` into the folder `destination`, which is created. Return the
    copies.

    The content of a folder goes directly into `destination`. An empty path copies everything, each
    output to its own subfolder. The path `outputs` copies each of the job's outputs to its own
    subfolder, and a path such as `model/weights.pt` copies one file. Existing files of the same
    name are replaced. If an error occurs, no file is copied. Links are followed inside the places
    and `inside`, not out of them: what is there may be a home folder, or a key.

    Args:
        places: the folders of each output on this machine, by the output's name for `cloudtrain
            download`.
        extras: more outputs, whose folders also hold other files. Maps each output's name to its
            files.
        inside: the run's own folders, if they hold more than the places.
        started: when the run started, in nanoseconds since the epoch. A place that became a link
            since then leads to where the script wanted, not the job.
    """
    path = path.strip("/")
    # a link that the script put in the place of a folder of the run is no choice of the job's
    chosen = [place for place in chain(*places.values()) if inside.isdisjoint(place.parents)]
    kept = [place for place in (*inside, *chosen) if not _is_newer_link(place, started)]
    roots = tuple(f"{os.path.realpath(place)}/" for place in kept)
    if path == "outputs" and path not in places:
        declared = below("outputs", places)
        if not declared:
            raise _no_outputs(places, extras, roots)
        places = declared
        extras = {}
        path = ""
    if not path:
        outputs = {name: dict(_files(folders, roots)) for name, folders in places.items()}
        return _copy(_named({**outputs, **extras}), destination, roots)

    name, _, inner_path = path.partition("/")
    if name in extras:
        files = _files_at(extras[name], inner_path)
        if inner_path and not files:
            hint = f"`{name}/` copies the whole output"
            raise NothingWritten(f"the run wrote nothing to `{path}`", hint=hint)
        return _copy(files, destination, roots)

    existing = [place for place in find_places(path, places) if place.exists()]
    existing = [place for place in existing if not _leaves(place, roots)]
    if not existing:
        raise nothing_written(path, places)
    return _copy(dict(_files(existing, roots)), destination, roots)


def _is_newer_link(place: Path, started: int | None) -> bool:
    """Return whether a folder, or one above it, is a link that was made after `started`."""
    links = [part for part in (place, *place.parents) if part.is_symlink()]
    return started is not None and any(link.lstat().st_ctime_ns > started for link in links)


def _no_outputs(
    places: Mapping[str, Places], extras: Mapping[str, Files], roots: tuple[str, ...]
) -> UsageError:
    """Return the error about a job without outputs. Its hint names what the run did write."""
    hint = "copy `model/`"
    written = next(filter(extras.get, extras), None)
    if written is not None and not any(_files(places.get("model", ()), roots)):
        hint = f"copy `{written}/`: the script wrote into its working folder"
    return UsageError("the job declares no outputs except its model", hint=hint, code="CT935")


def find_places(path: str, places: Mapping[str, Places]) -> list[Path]:
    """Return where `path` can stand, once for each folder of its output. Raises
    `UsageError` if `path` begins with no output's name."""
    words = path.split("/")
    for length in (2, 1):  # an output's name can have two parts, as `outputs/scores`
        name = "/".join(words[:length])
        rest = words[length:]
        if name in places and ".." not in rest:
            return [place.joinpath(*rest) for place in places[name]]

    if f"outputs/{words[0]}" in places:
        hint: str | None = NearName.of(f"outputs/{path}")
    else:
        hint = did_you_mean(path, places)
        if not isinstance(hint, NearName):
            hint = f"for a folder to copy into, write `--to {path}`; {hint}"
    raise no_result(path, hint)


def no_result(path: str, hint: str | None) -> UsageError:
    """Return the error about a path that begins with no output's name."""
    return UsageError(f"`{path}` is not a result of the run", hint=hint, code="CT935")


def nothing_written(path: str, outputs: Iterable[str]) -> NothingWritten:
    """Return the error about an output without files. `outputs` are the names of all outputs."""
    names = [f"`{name}/`" for name in outputs]
    hint = f"the run's outputs: {', '.join(names)}"
    return NothingWritten(f"the run wrote nothing to `{path}`", hint=hint)


def below(folder: str, names: Mapping[str, Item]) -> dict[str, Item]:
    """Return what is below `folder`, by its path relative to it. `names` are paths; those that end
    with a slash are left out."""
    prefix = folder.rstrip("/") + "/"
    found: dict[str, Item] = {}
    for name, item in names.items():
        if name.startswith(prefix) and not name.endswith("/"):
            found[name.removeprefix(prefix)] = item
    return found


def _files(places: Places, roots: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield path, relative to its folder, and file of all files in `places`. Of two files with the
    same relative path, the later one counts."""
    from cloudtrain.runtime.atomic import ASIDE

    def is_copied(folder: str, name: str) -> bool:
        if name.startswith(ASIDE) or leads_back(folder, name):
            return False
        return not _leaves(Path(folder, name), roots)

    for place in places:
        if _leaves(place, roots):
            continue
        if place.is_file():
            yield place.name, place
            continue
        for folder, below, names in os.walk(place, followlinks=True):
            below[:] = [name for name in below if is_copied(folder, name)]
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_file():  # not a socket, not a link to nowhere
                    yield file.relative_to(place).as_posix(), file


def _leaves(place: Path, roots: tuple[str, ...]) -> bool:
    """Return whether a folder or file is outside of the folders `roots`, and say so: a link leads
    there."""
    target = os.path.realpath(place)
    leaves = not f"{target}/".startswith(roots)
    if leaves:
        what = "folder" if place.is_dir() else "file"
        tell(
            f"`{place}` is not copied: a link leads to the {what} `{target}`, which is not a "
            "part of the run"
        )
    return leaves


def _files_at(files: Files, path: str) -> Files:
    """Return the files below the folder `path`, by their paths relative to it; or the single file
    at `path`."""
    if not path:
        return files
    if path in files:
        return {path.rpartition("/")[2]: files[path]}
    return below(path, files)


def _named(outputs: Mapping[str, Files]) -> Files:
    """Return the files of all outputs, each output's below a subfolder with its name."""
    all_files: dict[str, Path] = {}
    for name, files in outputs.items():
        for path, file in files.items():
            all_files[f"{name}/{path}"] = file
    return all_files


def _copy(files: Mapping[str, Path], destination: Path, roots: tuple[str, ...]) -> list[Path]:
    """Copy the files into `destination`. Skip links out of `roots`, and files that a running script
    removes meanwhile."""
    with landing(destination, odd_names=True) as staging:
        for name, source in files.items():
            if source.is_symlink() and _leaves(source, roots):
                continue
            place = staging.place(name)
            try:
                shutil.copy2(source, place)
            except FileNotFoundError:
                if source.exists():
                    raise
                staging.drop(name)
        return staging.move()
