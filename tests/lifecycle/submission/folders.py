"""The folders of local runs in a history, as files: what a command reads there is the real code's to judge.

Simulated are the processes. Each run has a supervisor, which holds the real lock of its folder, a guard and ranks. The
folder that a run was started in is its home, wherever it is moved; every other folder of its name is a copy.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

from cloudtrain.plans.states import RunRef
from cloudtrain.system.processes import Owner, ProcessLock
from cloudtrain.targets.common.launch import host_name
from cloudtrain.targets.local import service, verdict
from cloudtrain.targets.local.folder import RunFolder, new_status

_FIRST_PID = 2**22 + 1
"""Above the largest id that Linux gives."""


@dataclass
class LocalRun:
    """The processes of one run, and where its folder is."""

    name: str
    pid: int
    token: str
    started_in: Path
    home: Path | None
    lock: ProcessLock | None
    """None: the supervisor has ended."""
    has_ranks: bool = True
    is_asked: bool = False
    """Whether it was asked to stop, through its supervisor or by killing it."""

    def end_supervisor(self) -> None:
        if self.lock is not None:
            self.lock.release()
        self.lock = None


class Folders:
    """The state folders of a history, by the paths of their stores."""

    def __init__(self, random: Random) -> None:
        self.runs: list[LocalRun] = []
        self._random = random
        self._root: Path | None = None
        self._boot = 0

    def place(self, path: str) -> Path:
        """The state folder of a store."""
        if self._root is None:
            self._root = Path(
                tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
            )
        return self._root / path

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """The real code sees these processes and no others."""
        with ExitStack() as stack:
            for name, value in {
                "cloudtrain.targets.local.verdict.members": self._members,
                "cloudtrain.targets.local.verdict.kill_run": self._kill_run,
                "cloudtrain.targets.local.verdict._complete_output": lambda _: None,
                "cloudtrain.targets.local.service.is_folder_in_use": lambda _: False,
                "cloudtrain.system.processes.boot_id": lambda: f"boot-{self._boot}",
                "os.kill": self._signal,
            }.items():
                stack.enter_context(mock.patch(name, value))
            alive = property(
                lambda owner: any(run.pid == owner.pid and run.lock for run in self.runs)
            )
            stack.enter_context(mock.patch.object(Owner, "is_alive", alive))
            try:
                yield
            finally:
                for run in self.runs:
                    run.end_supervisor()
                if self._root is not None:
                    shutil.rmtree(self._root)

    # what happens to processes and folders

    def start(self, path: str, name: str) -> None:
        """A run of this machine begins."""
        folder = RunFolder(str(self.place(path) / "runs" / name))
        if os.path.exists(folder.status):
            return
        lock = ProcessLock.take(Path(folder.lock))
        number = len(self.runs)
        owner = Owner.of(folder.path)._replace(pid=_FIRST_PID + number)
        status = new_status(owner, time.time(), token=f"token-{number}")
        folder.write_status({**status, "state": "running"})
        Path(folder.launch).write_text("{}")
        home = Path(folder.path)
        self.runs.append(LocalRun(name, owner.pid, status["token"], home, home, lock))

    def copy(self, source: str, path: str) -> None:
        """`cp -a`, or `cp -al`, in the place of what is there."""
        if not self.place(source).exists():
            return
        self.remove(path)
        link = os.link if self._random.random() < 0.3 else shutil.copy2
        shutil.copytree(self.place(source), self.place(path), copy_function=link)

    def move(self, source: str, path: str) -> None:
        """`mv`, in the place of what is there."""
        if not self.place(source).exists():
            return
        self.remove(path)
        self.place(source).rename(self.place(path))
        for run in self.runs:
            if run.home is not None and run.home.is_relative_to(self.place(source)):
                run.home = self.place(path) / "runs" / run.name

    def remove(self, path: str) -> None:
        """`rm -r`. The supervisors end the runs whose folder is gone; ranks that have none go on."""
        if not self.place(path).exists():
            return
        shutil.rmtree(self.place(path))
        for run in self.runs:
            if run.home is not None and not run.home.exists():
                run.home = None
                if run.lock is not None:
                    run.end_supervisor()
                    run.has_ranks = False

    def boot(self) -> None:
        """Every process of the machine ends."""
        self._boot += 1
        for run in self.runs:
            run.end_supervisor()
            run.has_ranks = False

    def kill_supervisor(self, *, with_guard: bool) -> None:
        """SIGKILL of one of them. The guard kills the ranks, and writes where the run was started."""
        alive = [run for run in self.runs if run.lock is not None]
        if not alive:
            return
        run = self._random.choice(alive)
        run.end_supervisor()
        if not with_guard:
            verdict.finish(str(run.started_in), run.token)

    # commands of the user

    def look(self, path: str) -> str | None:
        """Ask for everything in a state folder. Return what must not have happened, if it did."""
        if not self.runs:
            return None
        before = self._living()
        local = service.LocalService(self.place(path), environ={})
        for listed in local.runs():
            run = self._run_at(path, listed.ref.name)
            is_over = listed.status.state.is_final
            if run is None and not is_over:
                return f"`{listed.ref.name}` goes on in a copy"
            if run is not None and is_over and (run.lock is not None or run.has_ranks):
                return f"`{listed.ref.name}` is over in its home, and has processes"
        return None if before == self._living() else "a command that reads has ended processes"

    def stop(self, path: str) -> str | None:
        """Stop each run of a state folder. Return what must not have happened, if it did."""
        local = service.LocalService(self.place(path), environ={})
        for listed in list(local.runs()):
            name = listed.ref.name
            run = self._run_at(path, name)
            others = [item for item in self.runs if item is not run]
            before = self._living(others)
            local.stop(RunRef("local", host_name(), name))
            if before != self._living(others):
                return f"`stop` of `{name}` in {path} has ended another run"
            if run is not None and run in self._living():
                return f"`stop` of `{name}` in {path} has left processes"
            if not local.status(listed.ref).state.is_final:
                return f"`stop` of `{name}` in {path} has left it as it was"
        return None

    def _run_at(self, path: str, name: str) -> LocalRun | None:
        """The run whose home is in a state folder; None for a copy, or a run that has ended."""
        home = self.place(path) / "runs" / name
        return next((run for run in self.runs if run.home == home and not run.is_asked), None)

    def _living(self, runs: Iterable[LocalRun] | None = None) -> list[LocalRun]:
        chosen = self.runs if runs is None else runs
        return [run for run in chosen if run.lock is not None or run.has_ranks]

    # what the real code sees

    def _members(self, token: str) -> list[int]:
        return [run.pid for run in self.runs if run.token == token and run.has_ranks]

    def _kill_run(self, token: str, _: Iterable[int] = ()) -> int:
        for run in self.runs:
            if run.token == token:
                run.has_ranks = False
        return 1

    def _signal(self, pid: int, _: int) -> None:
        """The supervisor ends its ranks, and itself."""
        for run in self.runs:
            if run.pid == pid:
                run.has_ranks = False
                run.is_asked = True
                assert run.home is not None
                folder = RunFolder(str(run.home))
                status = folder.read_status()
                assert status is not None
                folder.write_status({**status, "state": "stopped"})
                run.end_supervisor()
