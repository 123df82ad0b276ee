"""What `cloudtrain doctor` looks at. Each examination returns one finding and raises nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import CloudtrainError
from cloudtrain.units import format_size

_ENOUGH_DISK = 5 * 2**30
_TORCH_TIMEOUT = 120
"""Seconds. The first import of torch from a cold network disk takes longer than a minute."""

_TORCH_PROBE = (
    "import torch, torch.distributed as d; "
    "print(torch.__version__, d.is_available(), torch.cuda.device_count() if torch.cuda.is_available() else 0)"
)

_EXTRAS = {
    "sagemaker": ("boto3",),
    "azureml": ("azure-identity", "azure-storage-blob"),
    "sagemaker-sdk": ("sagemaker",),
    "azureml-sdk": ("azure-ai-ml",),
}
"""Extra of cloudtrain to the distributions that it brings."""


class Diagnosis(NamedTuple):
    """One line of the doctor: `level` is ok, warning or error."""

    subject: str
    level: str
    message: str
    hint: str | None = None


def examine() -> list[Diagnosis]:
    """Every examination, in the order of the report."""
    return [examination() for examination in _EXAMINATIONS] + [_extra(name) for name in _EXTRAS]


def _version() -> Diagnosis:
    from cloudtrain import __version__

    return Diagnosis("cloudtrain", "ok", f"{__version__} in {Path(__file__).parents[1]}")


def _python() -> Diagnosis:
    return Diagnosis("python", "ok", f"{sys.version.split()[0]}, {sys.executable}")


def _torch() -> Diagnosis:
    """Imported in another process: the import takes seconds, and a broken CUDA installation can kill its process."""
    import subprocess

    try:
        probe = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=_TORCH_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return Diagnosis("torch", "warning", f"its import takes longer than {_TORCH_TIMEOUT} s", "is the disk slow?")
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
        return Diagnosis(
            "torch",
            "warning",
            reason,
            "jobs with `distribution: {type: torch}` need it here: `pip install 'cloudtrain[torch]'`, "
            "or name another interpreter with `--python PATH`",
        )
    version, distributed, gpus = probe.stdout.split()[-3:]
    if distributed != "True":
        return Diagnosis("torch", "warning", f"{version}, built without torch.distributed", "install another build")
    return Diagnosis("torch", "ok", f"{version}, {_count(int(gpus), 'GPU')}")


def _machine() -> Diagnosis:
    from cloudtrain.backends.registry import backend_of
    from cloudtrain.settings import load_settings
    from cloudtrain.targets import Local

    try:
        machine = backend_of("local", load_settings()).account(Local()).machine
    except CloudtrainError as error:
        return Diagnosis("machine", "error", error.message, error.hint)
    return Diagnosis("machine", "ok", str(machine))


def _mpirun() -> Diagnosis:
    path = shutil.which("mpirun")
    if path is not None:
        return Diagnosis("mpirun", "ok", path)
    return Diagnosis(
        "mpirun",
        "ok",
        "not installed; only jobs with `mpi`, `horovod` or `deepspeed` with `launch: mpi` need it",
    )


def _state_dir() -> Diagnosis:
    from cloudtrain.settings import load_settings

    try:
        folder = load_settings().state_dir
    except CloudtrainError as error:
        return Diagnosis("state folder", "error", error.message, error.hint)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        hint = "give a folder that you may write to: `export CLOUDTRAIN_STATE_DIR=DIR`"
        return Diagnosis("state folder", "error", f"{folder} cannot be written to", hint)
    return Diagnosis("state folder", "ok", str(folder))


def _disk() -> Diagnosis:
    from cloudtrain.settings import load_settings

    try:
        folder = load_settings().state_dir
    except CloudtrainError:
        folder = Path.cwd()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if free < _ENOUGH_DISK:
        hint = "runs keep their code, models and checkpoints there; `export CLOUDTRAIN_STATE_DIR=DIR` moves it"
        return Diagnosis("disk", "warning", f"{format_size(free)} free under the state folder", hint)
    return Diagnosis("disk", "ok", f"{format_size(free)} free under the state folder")


def _settings() -> Diagnosis:
    from cloudtrain.settings import load_settings

    try:
        settings = load_settings()
        settings.target()
    except CloudtrainError as error:
        return Diagnosis("settings", "error", error.message, error.hint)
    files = ", ".join(str(file) for file in settings.files) or "no cloudtrain.toml"
    return Diagnosis("settings", "ok", f"{files}; the default target is {settings.default_target}")


def _scripts() -> Diagnosis:
    from cloudtrain.scripts import script_names

    names = script_names()
    if not names:
        return Diagnosis("scripts", "warning", "no bundled training scripts", "install cloudtrain again")
    return Diagnosis("scripts", "ok", f"{_count(len(names), 'bundled training script')}")


def _extra(name: str) -> Diagnosis:
    versions = []
    for distribution in _EXTRAS[name]:
        try:
            versions.append(f"{distribution} {metadata.version(distribution)}")
        except metadata.PackageNotFoundError:
            return Diagnosis(f"[{name}]", "ok", f"not installed: `pip install 'cloudtrain[{name}]'`")
    return Diagnosis(f"[{name}]", "ok", ", ".join(versions))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"


_EXAMINATIONS: tuple[Callable[[], Diagnosis], ...] = (
    _version, _python, _machine, _torch, _mpirun, _settings, _state_dir, _disk, _scripts
)  # fmt: skip
