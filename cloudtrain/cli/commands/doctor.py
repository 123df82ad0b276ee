"""The checks of `cloudtrain doctor`. Each check returns one finding and raises nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from cloudtrain.cli import options
from cloudtrain.cli.terminal import print_json, show
from cloudtrain.code.bundled import script_names
from cloudtrain.errors import CloudtrainError, TargetUnavailable
from cloudtrain.job.model import format_size
from cloudtrain.machines.overlay import user_overlay
from cloudtrain.machines.table import tables
from cloudtrain.plans.document import LEVEL_STYLE, Document, Notice, Span, Table
from cloudtrain.rules.engine import load_rules
from cloudtrain.system.files import KEPT, folder_size
from cloudtrain.system.plugins import (
    OWN_PACKAGE,
    package_of_target,
    part,
    pip_line,
    plugin_faults,
)
from cloudtrain.system.private import close_state_folder
from cloudtrain.targets.common.launch import find_mpirun, this_machine
from cloudtrain.targets.contract import AccountExaminer
from cloudtrain.targets.registry import all_targets
from cloudtrain.targets.settings import load_settings
from cloudtrain.targets.where import where
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.targets.contract import Target


_ENOUGH_DISK = 5 * 2**30
_TORCH_TIMEOUT = 120
"""Seconds. The first import of torch from a cold network disk takes longer than a minute."""

_TORCH_PROBE = (
    "import torch, torch.distributed as d; "
    "print(torch.__version__, d.is_available(), torch.cuda.device_count() if "
    "torch.cuda.is_available() else 0)"
)


class Diagnosis(NamedTuple):
    """One line of the report. `level` is ok, warning, error, or optional (an optional package is
    missing)."""

    subject: str
    level: str
    message: str
    hint: str | None = None


def examine() -> list[Diagnosis]:
    ours = Diagnosis("cloudtrain", "ok", f"{__version__} in {Path(__file__).parents[2]}")
    python = Diagnosis("python", "ok", f"{sys.version.split()[0]}, {sys.executable}")
    targets = all_targets()
    accounts = [account for target in targets if (account := _account(target)) is not None]
    extras = [_extra(target, *extra) for target in targets for extra in target.facts.extras.items()]
    examined = [examination() for examination in _EXAMINATIONS]
    return [ours, python, *examined, *accounts, *_plugins(targets), *extras]


def _torch() -> Diagnosis:
    """Check torch in another process, because the import takes seconds and a broken CUDA
    installation can kill the process. The process runs outside the working directory, so that a
    `torch.py` there is not imported."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE],
            cwd=Path(sys.executable).anchor,
            capture_output=True,
            text=True,
            timeout=_TORCH_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Diagnosis(
            "torch",
            "warning",
            f"its import takes longer than {_TORCH_TIMEOUT} s",
            "is the disk slow?",
        )
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
        return Diagnosis(
            "torch",
            "warning",
            reason,
            f"jobs with `distribution: {{type: torch}}` need it here: `{pip_line('torch')}`, "
            "or name another interpreter with `--python PATH`",
        )
    version, has_distributed, gpus = probe.stdout.split()[-3:]
    if has_distributed != "True":
        return Diagnosis(
            "torch",
            "warning",
            f"{version}, built without torch.distributed",
            "install another build",
        )
    return Diagnosis("torch", "ok", f"{version}, {_count(int(gpus), 'GPU')}")


def _machine() -> Diagnosis:
    try:
        machine = this_machine(load_settings().environ)
    except CloudtrainError as error:
        return Diagnosis("machine", "error", error.message, error.hint)
    return Diagnosis("machine", "ok", str(machine))


def _mpirun() -> Diagnosis:
    missing = (
        "not installed; only jobs with `mpi`, `horovod` or `deepspeed` with `launch: "
        f"mpi` need it: `{pip_line('mpi')}`"
    )
    mpirun = find_mpirun(sys.executable, os.environ)
    return Diagnosis("mpirun", "ok", mpirun) if mpirun else Diagnosis("mpirun", "optional", missing)


def _state_dir() -> Diagnosis:
    hint = "set a folder of your own: `export CLOUDTRAIN_STATE_DIR=DIR`"
    try:
        folder = load_settings().state_dir
    except CloudtrainError as error:
        return Diagnosis("state folder", "error", error.message, error.hint)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return Diagnosis("state folder", "error", f"{folder} cannot be written to", hint)
    try:
        if folder.is_dir():
            close_state_folder(folder, ours=KEPT)
    except OSError as error:
        return Diagnosis("state folder", "error", f"{folder}: {error}", hint)
    return Diagnosis("state folder", "ok", str(folder))


def _disk() -> Diagnosis:
    try:
        folder = load_settings().state_dir
    except CloudtrainError:
        folder = Path.cwd()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if free < _ENOUGH_DISK:
        hint = (
            "runs keep their code, models and checkpoints there; `cloudtrain prune "
            "--older-than 30d` removes old ones"
        )
        return Diagnosis(
            "disk", "warning", f"{format_size(free)} free under the state folder", hint
        )
    sizes = {name: folder_size(folder / name) for name in ("runs", "bundles", "environments")}
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.items())
    return Diagnosis("disk", "ok", f"{format_size(free)} free under the state folder; {parts}")


def _settings() -> Diagnosis:
    try:
        settings = load_settings()
        settings.target()
    except CloudtrainError as error:
        return Diagnosis("settings", "error", error.message, error.hint)
    files = ", ".join(str(file) for file in settings.files) or "no cloudtrain.toml"
    return Diagnosis("settings", "ok", f"{files}; the default target is {settings.default_target}")


def _instances() -> Diagnosis:
    try:
        corrections = [item for target in tables() for item in user_overlay(target=target)]
    except CloudtrainError as error:
        return Diagnosis("instance types", "error", error.message, error.hint)
    files = ", ".join(dict.fromkeys(item.file for item in corrections))
    return Diagnosis(
        "instance types", "ok", f"the catalogue, corrected by {files}" if files else "the catalogue"
    )


def _account(target: Target) -> Diagnosis | None:
    """Return a target's report on its account settings; None if the target reports nothing."""
    try:
        place, describe = where(target.name), part(target, AccountExaminer)
        account = place.account
        message = None if describe is None else describe(place.settings, account)
    except CloudtrainError as error:
        return Diagnosis(target.title, "error", error.message, error.hint)
    except Exception as error:
        package = package_of_target(target.name)
        if package == OWN_PACKAGE:
            raise
        return Diagnosis(
            target.title,
            "error",
            f"{type(error).__name__}: {error}",
            f"upgrade its package `{package}`",
        )
    return Diagnosis(target.title, "ok", message) if message else None


def _plugins(targets: Sequence[Target]) -> Iterator[Diagnosis]:
    """Report the targets of other packages that cannot be used, or whose rules cannot."""
    for fault in plugin_faults():
        yield Diagnosis(
            fault.name, "warning" if fault.is_harmless else "error", fault.message, fault.hint
        )
    for target in targets:
        try:
            load_rules(target, online=True)
        except TargetUnavailable as error:
            yield Diagnosis(target.name, "error", error.message, error.hint)


def _scripts() -> Diagnosis:
    names = script_names()
    if not names:
        return Diagnosis(
            "scripts", "warning", "no bundled training scripts", "install cloudtrain again"
        )
    return Diagnosis("scripts", "ok", f"{_count(len(names), 'bundled training script')}")


def _extra(target: Target, name: str, distributions: Sequence[str]) -> Diagnosis:
    package, versions = package_of_target(target.name), []
    subject = f"[{name}]" if package == OWN_PACKAGE else f"{package}[{name}]"
    for distribution in distributions:
        try:
            versions.append(f"{distribution} {metadata.version(distribution)}")
        except metadata.PackageNotFoundError:
            line = pip_line(name) if package == OWN_PACKAGE else f"pip install '{package}[{name}]'"
            return Diagnosis(subject, "optional", f"not installed: `{line}`")
    return Diagnosis(subject, "ok", ", ".join(versions))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"


_EXAMINATIONS: tuple[Callable[[], Diagnosis], ...] = (
    _machine, _torch, _mpirun, _settings, _instances, _state_dir, _disk, _scripts
)  # fmt: skip


def doctor_command(json: options.Json = False) -> None:
    """Show what works on this machine and what is missing.

    The exit code is 2 when something must be fixed before the local target works, and 0 otherwise.

    \b
    Example:
      cloudtrain doctor
    """
    findings = examine()
    if json:
        print_json([finding._asdict() for finding in findings])
    else:
        rows = [
            (finding.subject, Span(finding.level, LEVEL_STYLE[finding.level]), finding.message)
            for finding in findings
        ]
        # a mistake in the settings stops several examinations
        hints: dict[tuple[str, str, str], list[str]] = {}
        for finding in findings:
            if finding.hint and finding.level != "ok":
                hints.setdefault((finding.level, finding.message, finding.hint), []).append(
                    finding.subject
                )
        notices = [
            Notice(level, message if len(subjects) > 1 else f"{subjects[0]}: {message}", hint=hint)
            for (level, message, hint), subjects in hints.items()
        ]
        show(Document([Table(("WHAT", "LEVEL", "FOUND"), rows), *notices]), sys.stdout)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(2)
