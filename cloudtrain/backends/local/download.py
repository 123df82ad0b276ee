"""Copies of what a run wrote: `model/`, `outputs/NAME`, `checkpoint/`, `logs/`, or everything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloudtrain.errors import TargetError, UsageError, did_you_mean
from cloudtrain.runtime.shards import leads_back

_OUTPUT = "CLOUDTRAIN_OUTPUT_"


def places(spec: Mapping[str, Any]) -> dict[str, tuple[Path, ...]]:
    """What can be downloaded, by name: where the launch specification says that it is, one folder or several that
    are one together (an emulated job writes its model on every host).
    """
    run_dir = Path(spec["run_dir"])
    logs = {"logs": (run_dir / "logs",)}
    if "places" in spec:
        return {name: tuple(map(Path, folders)) for name, folders in spec["places"].items()} | logs
    env: Mapping[str, str] = spec["processes"][0]["env"]
    found: dict[str, tuple[Path, ...]] = {
        "model": (Path(env["CLOUDTRAIN_MODEL_DIR"]),),
        "checkpoint": (Path(env["CLOUDTRAIN_CHECKPOINT_DIR"]),),
    }
    for variable, path in env.items():
        name = variable.removeprefix(_OUTPUT)
        if name not in (variable, "MODEL"):
            found[f"outputs/{_as_written(name, path)}"] = (Path(path),)
    return found | logs


def download(spec: Mapping[str, Any], path: str, destination: Path) -> list[Path]:
    """Copy what is under `path` into `destination`, which is made, and return the files written.

    A folder's content comes directly into `destination`; with an empty path every place gets a folder of its own
    there. A file of the same name is replaced, each one whole or not at all. `model/weights.pt` is one file.

    Raises:
        UsageError: there is no such place; the hint names those that exist.
        TargetError: the run has written nothing there.
    """
    known = places(spec)
    wanted = path.strip("/")
    if not wanted:
        return [file for name, folders in known.items() for file in _copy_all(folders, destination / name)]
    found = [place for place in _find(wanted, known) if place.exists()]
    if not found:
        hint = f"what a run writes: {', '.join(f'`{name}/`' for name in known)}"
        raise TargetError(f"the run has written no `{wanted}`", hint=hint)
    return _copy_all(found, destination)


def _find(wanted: str, known: Mapping[str, tuple[Path, ...]]) -> list[Path]:
    parts = wanted.split("/")
    for length in (2, 1):  # `outputs/scores` may be a place of its own beside `outputs`
        name, rest = "/".join(parts[:length]), parts[length:]
        if name in known and ".." not in rest:
            return [place.joinpath(*rest) for place in known[name]]
    if wanted == "outputs":
        names = [name for name in known if name.startswith("outputs/")]
        raise UsageError("`outputs` is several places", hint=f"name one: {', '.join(names) or '`model`'}")
    raise UsageError(f"a run has no `{wanted}`", hint=did_you_mean(wanted, known))


def _copy_all(sources: Iterable[Path], destination: Path) -> list[Path]:
    """Of files with the same name the last one stays."""
    return list(dict.fromkeys(file for source in sources for file in _copy(source, destination)))


def _copy(source: Path, destination: Path) -> list[Path]:
    from cloudtrain.runtime.atomic import ASIDE

    if source.is_file():
        return _copy_file(source, destination / source.name)
    written = []
    for folder, folders, names in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if not (name.startswith(ASIDE) or leads_back(folder, name))]
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file():  # not a socket, not a link to nowhere
                written += _copy_file(file, destination / file.relative_to(source))
    return written


def _copy_file(source: Path, destination: Path) -> list[Path]:
    """The copy; none of a file that a running script has removed meanwhile."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        shutil.copy2(source, temporary)
        temporary.replace(destination)
    except FileNotFoundError:
        if source.exists():
            raise
        return []
    finally:
        temporary.unlink(missing_ok=True)
    return [destination]


def _as_written(name: str, path: str) -> str:
    """An output's name as the job wrote it: environment variables only know it in capitals."""
    last = Path(path).name
    return last if last.upper() == name else name.lower()
