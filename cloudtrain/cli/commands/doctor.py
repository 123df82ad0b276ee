"""The checks of `cloudtrain doctor`. Each check returns one finding and raises nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import typer

from cloudtrain.cli import options
from cloudtrain.cli.terminal import print_json, show
from cloudtrain.code.bundled import script_names
from cloudtrain.errors import CloudtrainError, TargetUnavailable, counted
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
from cloudtrain.targets.contract import AccountExaminer, Target
from cloudtrain.targets.registry import all_targets
from cloudtrain.targets.settings import load_settings
from cloudtrain.targets.where import where
from cloudtrain.version import __version__

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
    """Make all checks. The optional packages are last."""
    package = Path(__file__).parents[2]
    version = sys.version.split()[0]
    findings = [
        Diagnosis("cloudtrain", "ok", f"{__version__} in {package}"),
        Diagnosis("python", "ok", f"{version}, {sys.executable}"),
    ]
    targets = all_targets()
    findings += map(_examined, _EXAMINATIONS)
    findings += filter(None, map(_account, targets))
    findings += _plugins(targets)
    for target in targets:
        for name, distributions in target.facts.extras.items():
            findings.append(_extra(target, name, distributions))
    return findings


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
        message = f"its import takes longer than {_TORCH_TIMEOUT} s"
        return Diagnosis("torch", "warning", message, "is the disk slow?")
    if probe.returncode:
        output = probe.stderr.strip().splitlines()
        reason = output[-1] if output else f"exit code {probe.returncode}"
        hint = (
            f"jobs with `distribution: {{type: torch}}` need it here: `{pip_line('torch')}`, "
            "or name another interpreter with `--python PATH`"
        )
        return Diagnosis("torch", "warning", reason, hint)

    # torch may print warnings before
    version, has_distributed, gpus = probe.stdout.split()[-3:]
    if has_distributed != "True":
        message = f"{version}, built without torch.distributed"
        return Diagnosis("torch", "warning", message, "install another build")
    count = counted(int(gpus), "GPU")
    return Diagnosis("torch", "ok", f"{version}, {count}")


def _machine() -> Diagnosis:
    return Diagnosis("machine", "ok", str(this_machine(load_settings().environ)))


def _mpirun() -> Diagnosis:
    mpirun = find_mpirun(sys.executable, os.environ)
    if mpirun:
        return Diagnosis("mpirun", "ok", mpirun)
    missing = (
        "not installed; only jobs with `mpi`, `horovod` or `deepspeed` with `launch: "
        f"mpi` need it: `{pip_line('mpi')}`"
    )
    return Diagnosis("mpirun", "optional", missing)


def _state_dir() -> Diagnosis:
    """Check that runs can be written, and close the folder to other users."""
    hint = "set a folder of your own: `export CLOUDTRAIN_STATE_DIR=DIR`"
    folder = load_settings().state_dir
    nearest = _existing(folder)
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
    except CloudtrainError:  # which `_settings` reports
        folder = Path.cwd()

    free = shutil.disk_usage(_existing(folder)).free
    message = f"{format_size(free)} free under the state folder"
    if free < _ENOUGH_DISK:
        hint = (
            "runs keep their code, models and checkpoints there; `cloudtrain prune "
            "--older-than 30d` removes old ones"
        )
        return Diagnosis("disk", "warning", message, hint)

    sizes = []
    for name in ("runs", "bundles", "environments"):
        size = folder_size(folder / name)
        sizes.append(f"{name} {format_size(size)}")
    return Diagnosis("disk", "ok", f"{message}; {', '.join(sizes)}")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _settings() -> Diagnosis:
    settings = load_settings()
    settings.target()  # raises if the default target's settings are wrong
    files = ", ".join(str(source.path) for source in settings.sources) or "no cloudtrain.toml"
    return Diagnosis("settings", "ok", f"{files}; the default target is {settings.default_target}")


def _instances() -> Diagnosis:
    """Name the user's files that correct the tables of instance types."""
    corrected_by = []
    for target in tables():
        corrected_by += [item.file for item in user_overlay(target=target)]
    files = ", ".join(dict.fromkeys(corrected_by))
    message = f"the catalogue, corrected by {files}" if files else "the catalogue"
    return Diagnosis("instance types", "ok", message)


def _account(target: Target) -> Diagnosis | None:
    """Return a target's report on its account settings; None if the target reports nothing."""
    try:
        place = where(target.name)
        describe = part(target, AccountExaminer)
        account = place.account  # raises if the account's settings are wrong
        message = None if describe is None else describe(place.settings, account)
    except CloudtrainError as error:
        return Diagnosis(target.title, "error", error.message, error.hint)
    except Exception as error:  # another package's defect shall not hide the rest of the report
        package = package_of_target(target.name)
        if package == OWN_PACKAGE:
            raise
        message = f"{type(error).__name__}: {error}"
        return Diagnosis(target.title, "error", message, f"upgrade its package `{package}`")
    return Diagnosis(target.title, "ok", message) if message else None


def _plugins(targets: Sequence[Target]) -> Iterator[Diagnosis]:
    """Report the targets of other packages that cannot be used, or whose rules cannot."""
    for fault in plugin_faults():
        level = "warning" if fault.is_harmless else "error"
        yield Diagnosis(fault.name, level, fault.message, fault.hint)
    for target in targets:
        try:
            load_rules(target, online=True)
        except TargetUnavailable as error:
            yield Diagnosis(target.name, "error", error.message, error.hint)


def _scripts() -> Diagnosis:
    count = len(script_names())
    if not count:
        hint = "install cloudtrain again"
        return Diagnosis("scripts", "warning", "no bundled training scripts", hint)
    return Diagnosis("scripts", "ok", counted(count, "bundled training script"))


def _extra(target: Target, name: str, distributions: Sequence[str]) -> Diagnosis:
    """Report the packages of a target's extra `name`."""
    package = package_of_target(target.name)
    if package == OWN_PACKAGE:
        subject = f"[{name}]"
        line = pip_line(name)
    else:
        subject = f"{package}[{name}]"
        line = f"pip install '{subject}'"

    versions = []
    for distribution in distributions:
        try:
            versions.append(f"{distribution} {metadata.version(distribution)}")
        except metadata.PackageNotFoundError:
            return Diagnosis(subject, "optional", f"not installed: `{line}`")
    return Diagnosis(subject, "ok", ", ".join(versions))


_EXAMINATIONS = {
    "machine": _machine,
    "torch": _torch,
    "mpirun": _mpirun,
    "settings": _settings,
    "instance types": _instances,
    "state folder": _state_dir,
    "disk": _disk,
    "scripts": _scripts,
}


def _examined(subject: str) -> Diagnosis:
    """Make a check of `_EXAMINATIONS`. An error that it raises becomes its finding."""
    try:
        return _EXAMINATIONS[subject]()
    except CloudtrainError as error:
        return Diagnosis(subject, "error", error.message, error.hint)


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
        show(_report(findings), sys.stdout)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(2)


def _report(findings: Sequence[Diagnosis]) -> Document:
    """Return a table of the findings, and below it what to do. A mistake in the settings, which
    stops several examinations, is named once."""
    rows = []
    subjects = defaultdict[tuple[str, str, str], list[str]](list)
    for subject, level, message, hint in findings:
        rows.append((subject, Span(level, LEVEL_STYLE[level]), message))
        if hint and level != "ok":
            subjects[level, message, hint].append(subject)

    notices = []
    for (level, message, hint), names in subjects.items():
        if len(names) == 1:
            message = f"{names[0]}: {message}"
        notices.append(Notice(level, message, hint=hint))
    return Document([Table(("WHAT", "LEVEL", "FOUND"), rows), *notices])
