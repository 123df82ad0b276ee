"""Find the Python interpreter that a setting names: `conda:NAME`, `uv` for the project's environment, or a path.

This module only reads files. It does not start conda or uv, so planning stays fast.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudtrain.system.paths import expand_home

UV = "uv"
CONDA = "conda:"

_CONDAS = ("conda", "mamba", "micromamba")


def find_interpreter(name: str, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Return the interpreter that `name` (`conda:NAME`, `uv` or a path) stands for; None if the environment does not
    exist."""
    if name != UV and not name.startswith(CONDA):
        return cwd / expand_home(name)
    places = _uv_environments(environ, cwd) if name == UV else _conda_environments(name.removeprefix(CONDA), environ)
    return next((python for place in places if (python := place / "bin" / "python").exists()), None)


def _uv_environments(environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """Yield the possible folders of the project's uv environment: `UV_PROJECT_ENVIRONMENT` (default: `.venv`), relative
    to each folder that has a `pyproject.toml`, from `cwd` upwards."""
    for folder in (cwd, *cwd.parents):
        if (folder / "pyproject.toml").is_file():
            yield folder / (environ.get("UV_PROJECT_ENVIRONMENT") or ".venv")


def _conda_environments(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that may hold the conda environment `name`, in conda's order: below the folders in
    `CONDA_ENVS_DIRS` and `CONDA_ENVS_PATH`, below `envs` of each installation, below `~/.conda/envs`, and those listed
    in `~/.conda/environments.txt`."""
    if not name or os.sep in name or name.startswith("."):
        return
    for variable in ("CONDA_ENVS_DIRS", "CONDA_ENVS_PATH"):
        yield from (Path(folder, name) for folder in environ.get(variable, "").split(os.pathsep) if folder)
    for root in _conda_roots(environ):
        yield root if name == "base" else root / "envs" / name
    home = Path(environ.get("HOME") or Path.home())
    yield home / ".conda" / "envs" / name
    try:
        known = (home / ".conda" / "environments.txt").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    yield from (Path(line) for line in known if Path(line).name == name)


def _conda_roots(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in which conda, mamba or micromamba may be installed."""
    if environ.get("MAMBA_ROOT_PREFIX"):
        yield Path(environ["MAMBA_ROOT_PREFIX"])
    for program in (environ.get("CONDA_EXE"), *(shutil.which(name, path=environ.get("PATH", "")) for name in _CONDAS)):
        if program:
            yield Path(program).resolve().parent.parent
