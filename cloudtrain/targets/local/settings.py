"""Settings of the local target: how a job runs on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cloudtrain.errors import Problem, did_you_mean
from cloudtrain.job.model import Count, Duration, all_at_once
from cloudtrain.job.nodes import describe_value
from cloudtrain.system.files import expand_home
from cloudtrain.system.plugins import all_targets, find_target, has_part
from cloudtrain.targets.contract import Emulator
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.job.model import DurationInput


def _local_rules(local: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems with fields that have no effect together, or with `emulate`."""
    if local.get("priority") and "queue" not in local:
        message = "`priority` has no effect without `queue`: the run starts at once"
        yield Problem(("priority",), message, "add `--queue`, or remove `priority`", code="CT018")
    name = local.get("emulate")
    if not isinstance(name, str):
        return

    known = emulated_targets()
    if name not in known:
        message = f"`emulate` cannot be {describe_value(name)}"
        hint = did_you_mean(name, known) or did_you_mean("", known)
        yield Problem(("emulate",), message, hint, code="CT013")
        return

    service = find_target(name).title
    if local.get("max_restarts"):
        message = f"`max_restarts` has no effect with `emulate`: {service} does not restart ranks"
        yield Problem(("max_restarts",), message, "remove one of them", code="CT018")
    launcher = local.get("launcher", "torchrun")
    if launcher != "torchrun":
        message = (
            f"`launcher: {launcher}` has no effect with `emulate`: the ranks start as "
            f"{service} starts them"
        )
        yield Problem(("launcher",), message, "remove one of them", code="CT018")


def emulated_targets() -> list[str]:
    return [target.name for target in all_targets() if has_part(target, Emulator)]


class Local(TargetSettings):
    """Settings of the local target. Each instance of a job is simulated by a launcher with its own
    environment. The instances communicate over the loopback interface."""

    type: Literal["local"] = "local"
    python: str | None = None
    """The Python interpreter that runs the script: a path, `conda:NAME` for a conda environment, or
    `uv` for the environment of the project that contains the working directory. Default: the
    interpreter that runs cloudtrain."""
    instance_count: Count | None = None
    """The exact number of simulated instances. Default: the job's number, reduced to this
    machine."""
    processes_per_instance: Count | None = None
    """The exact number of processes per simulated instance. Default: the job's number, reduced to
    this machine."""
    max_restarts: int = Field(default=0, ge=0, strict=True)
    """How often all ranks are restarted after one rank fails (torchrun's `--max-restarts`)."""
    launcher: Literal["torchrun", "fork", "python"] = "torchrun"
    """The launcher of a `torch` job: `torchrun`; `fork`, which forks all ranks from one process
    that has imported torch (CPU only); or `python`, which starts the script once and sets no
    ranks."""
    grace_period: Duration = 30
    """Time for processes to save and exit after SIGTERM, before SIGKILL."""
    build_environment: bool | None = None
    """Whether to install the job's `environment.requirements` into an environment on top of the
    interpreter. The environment is built once for all runs with the same requirements. Default:
    where the interpreter lacks some."""
    emulate: str | None = None
    """The target to emulate: run the job on this machine with that target's paths, files, variables
    and command lines."""
    queue: bool = Field(default=False, strict=True)
    """Wait for the GPUs or CPU slots that the run needs, instead of starting at once."""
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000, strict=True)
    """Priority in the queue. Runs with a higher number start first."""
    slots: Count | None = None
    """Maximum number of processes that queued runs may have at the same time on a machine without
    GPUs. Default: the number of cores."""
    gpus: str | None = None
    """The GPUs that runs may use, written as in CUDA_VISIBLE_DEVICES: `0,1`. Default: all GPUs of
    this machine."""

    _rules = all_at_once(_local_rules)

    @property
    def emulated_target(self) -> str | None:
        return self.emulate

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["local"] = "local",
            python: str | None = None,
            instance_count: int | None = None,
            processes_per_instance: int | None = None,
            max_restarts: int = 0,
            launcher: Literal["torchrun", "fork", "python"] = "torchrun",
            grace_period: DurationInput = 30,
            build_environment: bool | None = None,
            emulate: str | None = None,
            queue: bool = False,
            priority: int = 0,
            slots: int | None = None,
            gpus: str | None = None,
        ) -> None: ...


# Find the Python interpreter that a setting names. Only files are read: starting conda or uv would
# slow down planning.

UV = "uv"
CONDA = "conda:"

_CONDAS = ("conda", "mamba", "micromamba")


def with_absolute_python(settings: Local, environ: Mapping[str, str], cwd: Path) -> Local:
    """Return the settings with a path in place of `conda:NAME` and `uv`. LO102 reports an
    environment that does not exist."""
    name = settings.python or ""
    places: Iterator[Path] = iter(())
    if name == UV:
        places = _uv_environments(environ, cwd)
    elif name.startswith(CONDA):
        places = _conda_environments(name.removeprefix(CONDA), environ)
    elif os.sep in name:
        return settings.model_copy(update={"python": str(cwd / expand_home(name))})
    for place in places:
        python = place / "bin" / "python"
        if python.exists():
            return settings.model_copy(update={"python": str(python)})
    return settings


def _uv_environments(environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """Yield the possible folders of the project's uv environment: `UV_PROJECT_ENVIRONMENT`
    (default: `.venv`), relative to each folder that has a `pyproject.toml`, from `cwd` upwards."""
    for folder in (cwd, *cwd.parents):
        if (folder / "pyproject.toml").is_file():
            yield folder / (environ.get("UV_PROJECT_ENVIRONMENT") or ".venv")


def _conda_environments(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that may hold the conda environment `name`, in conda's order."""
    if not name or os.sep in name or name.startswith("."):
        return
    for variable in ("CONDA_ENVS_DIRS", "CONDA_ENVS_PATH"):
        for folder in environ.get(variable, "").split(os.pathsep):
            if folder:
                yield Path(folder, name)
    for root in _conda_roots(environ):
        yield root if name == "base" else root / "envs" / name

    home = Path(environ.get("HOME") or Path.home())
    yield home / ".conda" / "envs" / name
    try:
        text = (home / ".conda" / "environments.txt").read_text("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        place = Path(line)
        if place.name == name:
            yield place


def _conda_roots(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders where conda, mamba or micromamba may be installed."""
    if environ.get("MAMBA_ROOT_PREFIX"):
        yield Path(environ["MAMBA_ROOT_PREFIX"])
    path = environ.get("PATH", "")
    programs = [environ.get("CONDA_EXE")]
    programs += [shutil.which(name, path=path) for name in _CONDAS]
    for program in programs:
        if program:
            yield Path(program).resolve().parent.parent  # of `ROOT/bin/conda`
