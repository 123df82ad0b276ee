"""Scripts run bare: plain python, torchrun or mpirun, in a checkout where cloudtrain is not installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # noqa: TID253 - tests may start slowly
import pytest

from cloudtrain.code.bundled import copy_script
from cloudtrain.runtime import parse_metrics
from tests.deadlines import DEADLINE
from tests.ports import free_port
from tests.targets.places import process_with

REPOSITORY = Path(__file__).parents[2]
FIVE_DECIMALS = 5e-6
SAME_GRADIENT = 1e-3
"""As a share of its norm. Gradients grow apart as training does, a missing exchange is seen at once."""

HOLD = "CLOUDTRAIN_HOLD_AT_STEP"
"""The step at which rank 0 waits for SIGTERM. From torchrun it comes also when another rank has died."""

Disturb = Callable[[psutil.Process], None]
"""Does something to a run, given the process that was started."""


@dataclass
class Run:
    """What came out of a run."""

    reported: dict[str, dict[int, float]] = field(default_factory=dict)
    """Metric to values by step."""
    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    errors: str = ""

    def add(self, line: str) -> None:
        """One line of output."""
        self.lines.append(line.rstrip("\n"))
        values = parse_metrics(line) or {}
        for name, value in values.items():
            self.reported.setdefault(name, {})[int(values.get("step", 0))] = value

    @property
    def losses(self) -> dict[int, float]:
        """By step."""
        return self.reported.get("loss", {})

    @property
    def norms(self) -> dict[int, float]:
        """Of the whole gradient before clipping, by step."""
        return self.reported.get("gradient_norm", {})

    @property
    def accuracies(self) -> dict[int, float]:
        """On the test set, by step."""
        return self.reported.get("test_accuracy", {})

    @property
    def resumed_from(self) -> list[int]:
        """The steps at which it was resumed."""
        return [int(step) for step in re.findall(r"resumed from step (\d+)", self.errors)]

    def last(self, metric: str) -> float:
        """The value that was reported last."""
        return list(self.reported[metric].values())[-1]


def check_out(script: str, folder: Path) -> Path:
    """A copy of a script's folder, and the runtime two folders up: no other script is near. Returns its `train.py`."""
    copy, package = folder / "training_scripts" / script, REPOSITORY / "cloudtrain"
    if not copy.is_dir():
        copy_script(script, copy)
        shutil.copytree(
            package / "runtime",
            folder / "cloudtrain" / "runtime",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy(package / "__init__.py", folder / "cloudtrain")
    return copy / "train.py"


def forks(count: int, *options: str) -> list[str]:
    """A launcher that imports torch once and forks the ranks: half of torchrun's time."""
    port = str(free_port())
    launcher = [
        sys.executable,
        "-u",
        "-m",
        "cloudtrain.runtime.fork_launcher",
        "--master-port",
        port,
    ]
    return [*launcher, "--processes-per-instance", str(count), *options]


def start(folder: Path, *command: str | Path, **variables: str) -> subprocess.Popen[str]:
    """A run in `folder` with no variables but the usual and these, its stderr in a file."""
    folder.mkdir(exist_ok=True)
    usual = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / "stderr.txt").open("w") as errors:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=usual | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )


def lines_of(process: subprocess.Popen[str], deadline: float = DEADLINE) -> Iterator[str]:
    """Its output as it comes. A run that hangs is killed at the deadline, which ends the output."""
    assert process.stdout is not None
    timer = threading.Timer(deadline, kill_all, [process.pid])
    timer.start()
    try:
        with process.stdout:
            yield from process.stdout
    finally:
        timer.cancel()


def run(
    folder: Path,
    *command: str | Path,
    disturb: Disturb | None = None,
    at: int = 0,
    deadline: float = DEADLINE,
    **variables: str,
) -> Run:
    """Run to the end in `folder`; `disturb` is called once the loss of step `at` is reported."""
    if disturb is terminate:  # however late this process reads the line, the run has not gone on
        variables[HOLD] = str(at)
    result, process = Run(), start(folder, *command, **variables)
    for line in lines_of(process, deadline):
        result.add(line)
        if disturb is not None and max(result.losses, default=0) >= at:
            disturb(psutil.Process(process.pid))
            disturb = None
    result.exit_code = process.wait(timeout=deadline)
    result.errors = (folder / "stderr.txt").read_text()
    return result


def signalled(number: signal.Signals) -> Disturb:
    """The signal, to the process that was started."""
    return lambda process: process.send_signal(number)


terminate = signalled(signal.SIGTERM)
"""What losing a spot instance looks like."""


def kill_rank(rank: int) -> Disturb:
    """What losing a process looks like: one of those that torchrun has started."""
    return lambda torchrun: rank_of(torchrun, rank).kill()


def rank_of(launcher: psutil.Process, rank: int, variable: str = "RANK") -> psutil.Process:
    """The process below a launcher that was started as this rank."""
    return process_with(lambda: launcher.children(recursive=True), variable, str(rank))


def kill_all(pid: int) -> None:
    """A process and those that it started: mpirun's ranks outlive it when it is killed."""
    process = psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended by itself
            each.kill()


HELD_ONCE = f"""
import os, runpy
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    del os.environ["{HOLD}"]
runpy.run_path(__file__.replace("held_once", "train"), run_name="__main__")
"""


def held_once(script: Path) -> Path:
    """The same script where `HOLD` is for the first attempt only: ranks that a launcher has started again go on."""
    wrapper = script.with_name("held_once.py")
    wrapper.write_text(HELD_ONCE)
    return wrapper


Edit = tuple[str, str, str]
"""A file beside the script, what stands there once, what is planted instead."""


def plant(script: Path, *edits: Edit) -> None:
    """Change lines of a checkout."""
    for name, before, after in edits:
        path = script.with_name(name)
        text = path.read_text()
        assert text.count(before) == 1, (name, before)
        path.write_text(text.replace(before, after))


def assert_same_losses(
    found: Run,
    reference: Run,
    *,
    at_least: int | None = None,
    within: float = FIVE_DECIMALS,
    norms: bool = True,
) -> None:
    """Every loss and every norm of a gradient is that of the reference. With `at_least`, only of steps that both report,
    so many of them. `norms` is False for an engine that reports none."""
    steps = sorted(found.losses)
    if at_least is not None:
        steps = [step for step in steps if step in reference.losses]
    assert len(steps) >= (at_least or 1), found
    for step in steps:
        assert found.losses[step] == pytest.approx(reference.losses[step], abs=within), (
            f"step {step}"
        )
    assert set(found.norms) >= (set(steps) if reference.norms and norms else set())
    for step in set(steps) & set(reference.norms) if norms else ():
        expected = pytest.approx(reference.norms[step], rel=SAME_GRADIENT, abs=within)
        assert found.norms[step] == expected, f"the gradient of step {step}"
