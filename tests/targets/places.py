"""What tests of a service need: a place where jobs run, runs of it, and a look at the process table."""

from __future__ import annotations

import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.plans.progress import LogLine, RunStatus
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.contract import Service
from cloudtrain.targets.local.service import LocalService
from cloudtrain.targets.registry import target_of
from tests.deadlines import DEADLINE, GRACE


def eventually(condition: Callable[[], Any], what: str = "", deadline: float = DEADLINE) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {deadline} s: {what or condition}"
        time.sleep(0.02)
    return value


def process_with(
    processes: Callable[[], list[psutil.Process]], variable: str, value: str
) -> psutil.Process:
    """The first of the processes that has this variable in its environment."""
    return _first(
        processes, lambda process: process.environ().get(variable) == value, f"{variable}={value}"
    )


def _first(
    processes: Callable[[], list[psutil.Process]],
    is_it: Callable[[psutil.Process], bool],
    what: str,
) -> psutil.Process:
    """Processes come and go while one looks, and one that has just been started may not be known by its looks yet."""

    def look() -> psutil.Process | None:
        for process in processes():
            with suppress(psutil.Error):
                if is_it(process):
                    return process
        return None

    found: psutil.Process = eventually(look, what)
    return found


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """This process and those that it starts inside cannot write files longer than that: the nearest thing to a full
    disk without root.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@dataclass
class Run:
    """One submitted run."""

    service: Service
    ref: RunRef
    plan: Plan
    folder: Path

    @property
    def status(self) -> RunStatus:
        return self.service.status(self.ref)

    def wait(self, deadline: float = DEADLINE) -> RunStatus:
        """The final status."""
        eventually(lambda: self.status.state.is_final, f"{self.ref} ends", deadline)
        return self.status

    def lines(self, **options: Any) -> list[LogLine]:
        return list(self.service.logs(self.ref, **options))

    def texts(self, rank: int | None = None) -> list[str]:
        return [line.text for line in self.lines(rank=rank)]

    def wait_for_line(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.texts().count(text) >= times, f"`{text}` in {self.texts()}")

    def processes(self) -> list[psutil.Process]:
        """Everything alive that carries the run's marker, or its folder in the command line, as psutil sees it."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("CLOUDTRAIN_RUN_DIR") == str(self.folder)
                named = any(str(self.folder) in part for part in process.cmdline())
                if (marked or named) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def ours(self, module: str) -> psutil.Process:
        """The run's `supervisor` or `guard`."""
        name = f"cloudtrain.targets.local.{module}"
        return _first(self.processes, lambda process: name in process.cmdline(), name)

    def rank_process(self, rank: int) -> psutil.Process:
        return self.process_with("RANK", str(rank))

    def process_with(self, variable: str, value: str) -> psutil.Process:
        """The process of the run that has this variable in its environment."""
        return process_with(self.processes, variable, value)

    def nothing_is_left(self) -> bool:
        """Whether no process of the run lives any more, or will soon after its last status."""
        eventually(lambda: not self.processes(), f"still there: {self.processes()}")
        return True


@dataclass
class Place:
    """A state folder with its target. `submit` compiles, uploads and sends, as the API does."""

    root: Path
    environ: dict[str, str]
    submitted: list[Run] = field(default_factory=list)
    stderr: str = "stderr"
    """The stream as which the target tells of what a process writes to its stderr."""

    @property
    def service(self) -> Service:
        """A new object each time, as another shell would have it."""
        return LocalService(self.root / "state", environ=self.environ)

    def plan(
        self,
        script: str | dict[str, str] = "",
        *,
        name: str = "run-1",
        target: ct.Local | None = None,
        **job: Any,
    ) -> tuple[Plan, Any]:
        """A plan and its bundle. `script` is the text of train.py, or all files by name."""
        source = self.write(script, name)
        if "command" not in job:
            job.setdefault("entry_point", "train.py")
        target, tree = target or ct.Local(grace_period=GRACE), scan(source)
        context = CompileContext(name, tree.identity, self.account(target))
        return self.compile(ct.TrainingJob(name="job", **job), target, context), tree

    def account(self, settings: Any) -> Any:
        """What the target knows of itself beside the settings."""
        where, home = target_of(settings.type), self.root / "state"
        return where.account(settings, environ=self.environ, state_dir=home, cwd=Path.cwd())

    def compile(self, job: Any, settings: Any, context: CompileContext) -> Plan:
        return target_of(settings.type).compile(job, settings, context)

    def write(self, script: str | dict[str, str], name: str) -> Path:
        """The source folder of a run."""
        files = {"train.py": script} if isinstance(script, str) else script
        source = self.root / "src" / name
        for path, text in files.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(text)
        return source

    def submit(self, script: str | dict[str, str] = "", **options: Any) -> Run:
        plan, tree = self.plan(script, **options)
        self.service.upload(plan, tree)
        return self.send(plan)

    def send(self, plan: Plan, *, again: bool = False) -> Run:
        service = self.service
        run = Run(service, service.submit(plan, again=again), plan, Path(plan.request["run_dir"]))
        self.submitted.append(run)
        return run

    def clean_up(self) -> None:
        """Whatever a failed test has left."""
        for run in self.submitted:
            for process in run.processes():
                with suppress(psutil.NoSuchProcess):  # it ended by itself
                    process.send_signal(signal.SIGKILL)


def digits_that_wait(place: Place) -> Path:
    """The bundled script, which trains when there is a file `go` in the run's folder: processes that stay as long as a
    test looks at them.
    """
    source = place.root / "src/digits_ddp"
    shutil.copytree(Path(__file__).parents[2] / "training_scripts/digits_ddp", source)
    script, first = source / "train.py", "started = time.perf_counter()\n"
    text = script.read_text()
    assert text.count(first) == 1
    waits = "import os\nwhile not Path(os.environ['CLOUDTRAIN_RUN_DIR'], 'go').exists():\n    time.sleep(0.02)\n"
    script.write_text(text.replace(first, waits + first))
    return source
