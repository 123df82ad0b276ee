"""What other systems lack or do otherwise, in the branches that this machine does not take by itself."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.detached.driven import wake_on_stop
from cloudtrain.runtime import azureml_metrics, secret_values
from cloudtrain.system import processes as system_processes
from cloudtrain.system import staging
from cloudtrain.system.processes import Owner
from cloudtrain.targets.local import processes

psutil = system_processes.process_table()


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose process table psutil reads."""
    monkeypatch.setattr(processes, "HAS_PROC", False)
    monkeypatch.setattr(system_processes, "HAS_PROC", False)


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process that leads a session, and its child."""
    family = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo up; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, processes.TOKEN: "of-the-run"},
    )
    assert family.stdout is not None
    assert family.stdout.readline() == "up\n"
    with family:
        yield family
        os.killpg(family.pid, signal.SIGKILL)


def refuse(self: Any) -> dict[str, str]:
    """As macOS does for programs of the system."""
    raise psutil.AccessDenied(self.pid)


@pytest.mark.parametrize("environ", [refuse, lambda self: {}], ids=["denied", "empty"])
@pytest.mark.usefixtures("without_proc")
def test_processes_that_hide_their_environment_belong_to_the_run(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, environ: Any
) -> None:
    """The ones that the supervisor knows, with all below them; without /proc, a Mac hides the variables of /bin/sh."""
    assert len(processes.members("of-the-run")) == 2
    monkeypatch.setattr(psutil.Process, "environ", environ)
    assert processes.members("of-the-run") == []
    assert len(processes.members("of-the-run", [family.pid])) == 2
    assert not processes.environment_of(family.pid)


@pytest.mark.usefixtures("without_proc")
def test_an_owner_is_no_other_process_with_its_id(
    family: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Ids are used again. Without /proc, the time of the start tells them apart."""
    owner = Owner.of(tmp_path)
    assert owner.is_alive
    assert not owner._replace(pid=family.pid).is_alive
    assert not owner._replace(start="1.0").is_alive


def test_a_signal_wakes_a_driver_without_calls_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no `pipe2`, with which each driver of a sweep and of a waiting job began."""
    monkeypatch.delattr(os, "pipe2", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        wake = wake_on_stop()
        assert not os.get_blocking(wake)
        assert not os.get_inheritable(wake)
        os.kill(os.getpid(), signal.SIGTERM)
        assert select.select([wake], [], [], 60)[0] == [wake]
    finally:
        os.close(signal.set_wakeup_fd(-1))
        os.close(wake)
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "names",
    [("Model.pt", "model.pt"), ("A/x", "a/y"), ("a", "A/x"), ("a/b/C", "a/B/c")],
    ids=" ".join,
)
def test_names_that_differ_in_case_are_refused_where_they_are_one(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case-insensitive disk would keep one of the two files; nothing is written instead."""

    def on_such_a_disk(path: Any) -> Any:
        top, scratch, below = str(path).partition("/new/")
        return top + scratch + below.lower()

    real_open, real_mkdir = os.open, os.mkdir
    monkeypatch.setattr(
        staging.os,
        "open",
        lambda path, *rest, **more: real_open(on_such_a_disk(path), *rest, **more),
    )
    monkeypatch.setattr(
        staging.os,
        "mkdir",
        lambda path, *rest, **more: real_mkdir(on_such_a_disk(path), *rest, **more),
    )
    first, second = names
    with staging.Staging(tmp_path / "got") as landing:
        os.close(landing.create(first))
        with pytest.raises(staging.Unsafe):
            landing.create(second)
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize(
    ("system", "launcher", "interface"),
    [("darwin", "torchrun", "lo0"), ("darwin", "fork", "lo0"), ("linux", "fork", "lo")],
)
def test_a_plan_names_the_system_it_is_made_on(
    system: str, launcher: str, interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loopback interface has another name on a Mac, and Objective-C lets only processes fork that ask for it."""
    (tmp_path / "train.py").touch()
    job = ct.TrainingJob(
        name="a", source_dir=str(tmp_path), entry_point="train.py", distribution=ct.Torch()
    )
    monkeypatch.setattr(sys, "platform", system)
    plan = ct.plan(job, ct.Local(launcher=launcher, processes_per_instance=2))
    variables = plan.request["processes"][0]["env"]
    assert variables["GLOO_SOCKET_IFNAME"] == interface
    forks = (system, launcher) == ("darwin", "fork")
    assert ("OBJC_DISABLE_INITIALIZE_FORK_SAFETY" in variables) is forks


@pytest.mark.parametrize("status", [400, 403, 429, 500])
@pytest.mark.parametrize("client", ["metrics", "secrets"])
def test_a_refusal_is_closed(
    client: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An HTTPError holds the connection; Python 3.14 warns where nobody closes it."""
    answers: list[io.BytesIO] = []

    def refuse(*_: object, **__: object) -> None:
        answers.append(io.BytesIO(b"no"))
        raise HTTPError("http://127.0.0.1", status, "no", Message(), answers[-1])

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    monkeypatch.setattr(secret_values.time, "sleep", lambda _: None)
    if client == "metrics":
        sender = azureml_metrics.Sender("http://127.0.0.1/x", "trial", "token")
        sender.put({"loss": 1.0})
        sender.close()
    else:
        with pytest.raises(secret_values.SetupError):
            secret_values._get_json("http://127.0.0.1/x", {}, "hint", "the vault")
    assert answers
    assert all(answer.closed for answer in answers)
