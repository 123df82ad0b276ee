"""Copies of what a run wrote: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or everything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.runtime.shards import leads_back
from cloudtrain.targets.common.landing import landing

Places = Iterable[Path]
"""Folders whose contents are copied as one."""


Files = Mapping[str, Path]
"""Names of files below a place, with their paths."""


def copy_places(
    known: Mapping[str, Places], path: str, destination: Path, *, chosen: Mapping[str, Files] | None = None
) -> list[Path]:
    """Copy what is under `path` into `destination`, which is made, and return the files written.

    A folder's content goes directly into `destination`. With an empty path every place gets a folder there, and with
    `outputs` every output. Existing files of the same name are replaced. All files appear, or none. A path such as
    `model/weights.pt` copies one file.

    Args:
        known: the run's places on this machine, by the name under which they are downloaded.
        chosen: places that lie among other files, with the files that count.

    Raises:
        UsageError: the place does not exist; the hint names the existing places.
        TargetError: the run has written nothing there, or something is in the way of a file.
    """
    wanted = path.strip("/")
    chosen = chosen or {}
    if not wanted:
        return _copy_named({**{name: dict(_files(folders)) for name, folders in known.items()}, **chosen}, destination)
    outputs = {name.removeprefix("outputs/"): known[name] for name in known if name.startswith("outputs/")}
    if wanted == "outputs" and wanted not in known and outputs:
        return _copy_named({name: dict(_files(folders)) for name, folders in outputs.items()}, destination)
    if wanted == "outputs" and wanted not in known:
        raise UsageError("the job declares no outputs beside its model", hint=_instead(known, chosen), code="CT935")
    place, _, below = wanted.partition("/")
    if place in chosen:
        files = _below(chosen[place], below)
        if below and not files:
            raise TargetError(f"the run has written no `{wanted}`", hint=f"`{place}/` copies all of it")
        return _copy(files, destination)
    found = [place for place in _find(wanted, known) if place.exists()]
    if not found:
        hint = f"what a run writes: {', '.join(f'`{name}/`' for name in known)}"
        raise TargetError(f"the run has written no `{wanted}`", hint=hint)
    return _copy(dict(_files(found)), destination)


def _find(wanted: str, known: Mapping[str, Places]) -> list[Path]:
    parts = wanted.split("/")
    for length in (2, 1):  # `outputs/scores` may be a place of its own beside `outputs`
        name, rest = "/".join(parts[:length]), parts[length:]
        if name in known and ".." not in rest:
            return [place.joinpath(*rest) for place in known[name]]
    raise UsageError(f"a run has no `{wanted}`", hint=did_you_mean(wanted, known), code="CT935")


def _instead(known: Mapping[str, Places], chosen: Mapping[str, Files]) -> str:
    """Return the hint for a job without outputs: its model, or the other files that it wrote instead."""
    if not any(_files(known.get("model", ()))):
        for place, files in chosen.items():
            if files:
                return f"copy `{place}/`: the script wrote into its working folder"
    return "copy `model/`"


def _files(places: Places) -> Iterator[tuple[str, Path]]:
    """Yield each file below the places, with its name there. Of files with the same name the last one counts."""
    from cloudtrain.runtime.atomic import ASIDE

    for place in places:
        if place.is_file():
            yield place.name, place
            continue
        for folder, folders, names in os.walk(place, followlinks=True):
            folders[:] = [name for name in folders if not (name.startswith(ASIDE) or leads_back(folder, name))]
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_file():  # not a socket, not a link to nowhere
                    yield file.relative_to(place).as_posix(), file


def _below(files: Files, path: str) -> dict[str, Path]:
    """Return the files below a folder, by their names there; or the one file of this name."""
    if not path:
        return dict(files)
    if path in files:
        return {path.rpartition("/")[2]: files[path]}
    return {name.removeprefix(f"{path}/"): file for name, file in files.items() if name.startswith(f"{path}/")}


def _copy_named(places: Mapping[str, Files], destination: Path) -> list[Path]:
    """Copy each place into a folder of its own."""
    return _copy(
        {f"{name}/{file}": found for name, files in places.items() for file, found in files.items()}, destination
    )


def _copy(files: Mapping[str, Path], destination: Path) -> list[Path]:
    """Copy one file. Skip a file that a running script has removed meanwhile."""
    with landing(destination, odd_names=True) as staging:
        for name, source in files.items():
            place = staging.place(name)
            try:
                shutil.copy2(source, place)
            except FileNotFoundError:
                if source.exists():
                    raise
                staging.drop(name)
        return staging.move()
