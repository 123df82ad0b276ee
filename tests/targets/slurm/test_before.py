"""What would end a run on paid nodes is known before: an interpreter that lacks what the launcher needs, and a host name
that the nodes cannot resolve."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Finding
from cloudtrain.plans.states import RunState
from cloudtrain.targets.slurm.service import SlurmService
from cloudtrain.targets.slurm.settings import Slurm
from tests.targets.slurm.site import Site, compile_plan

TORCH = {"type": "torch"}
Ask = Callable[..., list[Finding]]

COMMANDS = {
    "sinfo": "echo 'train*|up|infinite|0/2/0/2|gpu:8'",
    "sbatch": "echo 'sbatch: Job 1 to start at 2026-01-01T00:00:00 using 2 processors' >&2",
}
"""A cluster that accepts every job."""


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """`ask(python, setup=..., **fields)` checks a job on a cluster of stubs, and returns what is about the interpreter."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in COMMANDS.items():
        executable(programs / name, line)

    def check(python: object, *, setup: tuple[str, ...] = (), **fields: Any) -> list[Finding]:
        settings = Slurm(shared_dir=str(tmp_path), python=str(python), setup=setup)
        job = TrainingJob(
            **({"name": "job", "entry_point": "train.py", "distribution": TORCH} | fields)
        )
        environ = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
        service = SlurmService(environ=environ, state_dir=tmp_path / "state")
        found = service.check(job, settings, compile_plan(job, settings))
        return [item for item in found if item.code in ("SL902", "SL908", "SL909")]

    return check


def executable(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/bash", *lines, "")))
    path.chmod(0o755)
    return path


def python_with(tmp_path: Path, **modules: str) -> Path:
    """An interpreter that finds these modules, and no installed ones."""
    library = tmp_path / "library"
    library.mkdir()
    for name, text in modules.items():
        (library / f"{name}.py").write_text(text)
    return executable(
        tmp_path / "python", f'PYTHONPATH="{library}" exec "{sys.executable}" -S "$@"'
    )


CUDA = "class version:\n    cuda = '12.8'\n"
CPU = "class version:\n    cuda = None\n    hip = None\n"
ROCM = "class version:\n    cuda = None\n    hip = '6.2'\n"
GPUS = {"resources": {"gpus_per_instance": 8}}

ASKED: dict[str, tuple[dict[str, str], dict[str, Any], list[tuple[str, str]]]] = {
    "has torch": ({"torch": CUDA}, GPUS, []),
    "no torch": ({}, {}, [("SL908", "cannot import `torch`")]),
    "torch is broken": ({"torch": "raise OSError('libcudart.so.12')"}, {}, [("SL908", "libcudart.so.12")]),
    "torch ends the interpreter": ({"torch": "raise SystemExit(3)"}, {}, [("SL908", "SystemExit: 3")]),
    "torch for CPUs": ({"torch": CPU}, GPUS, [("SL908", "built for CPUs")]),
    "torch for CPUs, no GPU asked": ({"torch": CPU}, {}, []),
    "torch for AMD": ({"torch": ROCM}, GPUS, []),
    "no deepspeed": ({"torch": CUDA}, {"distribution": {"type": "deepspeed"}}, [("SL908", "`deepspeed`")]),
    "no mpi4py": (
        {"torch": CUDA, "deepspeed": ""}, {"distribution": {"type": "deepspeed", "launch": "mpi"}}, [("SL908", "`mpi4py`")],
    ),
    "no tensorflow": ({}, {"distribution": {"type": "tensorflow"}}, [("SL908", "`tensorflow`")]),
    "no horovod": ({}, {"distribution": {"type": "horovod"}}, [("SL908", "`horovod`")]),
    "framework without distribution": (
        {}, {"distribution": {"type": "none"}, "environment": {"framework": "pytorch"}}, [("SL908", "`torch`")],
    ),
    "needs nothing": ({}, {"distribution": {"type": "none"}}, []),
    "another Python": (
        {"torch": CUDA}, {"environment": {"framework": "pytorch", "python": "3.1"}}, [("SL909", "is made for 3.1")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_the_interpreter_is_asked(name: str, ask: Ask, tmp_path: Path) -> None:
    """It imports what the launcher needs before the job is sent."""
    modules, fields, told = ASKED[name]
    found = ask(python_with(tmp_path, **modules), **fields)
    assert [item.code for item in found] == [code for code, _ in told]
    for item, (_, part) in zip(found, told, strict=True):
        assert part in item.message
        assert item.hint


def test_an_interpreter_that_cannot_run(ask: Ask, tmp_path: Path) -> None:
    """Missing, not executable, too old, silent, or ended by `setup`: errors where it is sure, else a warning."""
    (tmp_path / "plain").write_text("")
    old = executable(tmp_path / "old", "echo '@python 2.7.18'; echo '@module torch 1.4'")
    silent = executable(tmp_path / "silent", "exit 3")
    for python, setup, code in (
        (tmp_path / "missing", (), "SL908"),
        ("python-that-is-not-there", (), "SL908"),
        (tmp_path / "plain", (), "SL908"),
        (old, (), "SL908"),
        (silent, (), "SL902"),
        (old, ("exit 1",), "SL902"),
        ("venv/bin/python", (), None),  # relative to the code
    ):
        found = ask(python, setup=setup)
        assert [item.code for item in found] == ([code] if code else []), python


def test_the_lines_of_setup_choose_the_interpreter(ask: Ask, tmp_path: Path) -> None:
    """As in the batch script, whatever they print or switch on."""
    python = python_with(tmp_path, torch=CUDA)
    lines = ("set -eu", "echo '@missing none'", f"echo loaded; export PATH={tmp_path}:$PATH")
    assert ask(python.name, setup=lines) == []
    assert [item.code for item in ask(python.name, setup=lines[:2])] == ["SL908"]


@pytest.mark.slurm
@pytest.mark.lifecycle
@pytest.mark.parametrize(
    ("distribution", "nodes", "host"),
    [
        ("torch", 1, "nohost.invalid"), ("torch", 2, "nohost.invalid"),
        ("tensorflow", 2, "nohost.invalid"), ("deepspeed", 1, "another.invalid"),
    ],
)  # fmt: skip
def test_a_name_that_does_not_resolve_ends_the_run(
    distribution: str, nodes: int, host: str, site: Site
) -> None:
    """At once, and the reason names the setting."""
    start = time.monotonic()
    run = site.submit(
        "print(1)", name="names-1", distribution={"type": distribution}, resources={"instance_count": nodes},
        settings={"rendezvous_host": host},
    )  # fmt: skip
    status = run.wait()
    assert status.state is RunState.FAILED
    assert f"`{host}`" in (status.reason or "")
    assert "`rendezvous_host`" in (status.reason or "")
    assert time.monotonic() - start < 90
