"""A Slurm cluster for tests, plans for it, and runs on it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

from cloudtrain.code.tree import scan
from cloudtrain.job.processing import AnyJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.plans.progress import LogLine, RunStatus
from cloudtrain.plans.states import RunRef
from cloudtrain.targets.common.services import Pace
from cloudtrain.targets.slurm.service import SlurmService
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount
from cloudtrain.targets.slurm.target import SlurmTarget
from tests.deadlines import DEADLINE
from tools.slurm_cluster import find_missing

REPOSITORY = Path(__file__).parents[3]
STARTER = REPOSITORY / "tools" / "slurm_cluster.py"
QUICK = Pace(every=0.2, per_stream=0.0, settle=0.5, patience=DEADLINE, slowest=1.0)
BUNDLE = Bundle("0" * 64, 10, 1)


@cache
def find_cluster(*options: str) -> Path:
    """The folder of a cluster of three nodes, which this process and its tests share. It ends soon after this process,
    however that ends. The path is short, because sockets lie there."""
    missing = find_missing()
    if missing:
        pytest.skip(
            f"needs a Slurm cluster: no {', '.join(missing)} here; `python tools/slurm_cluster.py install`"
        )
    folder = Path(tempfile.mkdtemp(prefix="slurm-")).resolve()
    start = [
        sys.executable,
        str(STARTER),
        "start",
        str(folder),
        "3",
        f"--until={os.getpid()}",
        *options,
    ]
    started = subprocess.run(start, capture_output=True, text=True, check=False)
    assert started.stdout == f"export SLURM_CONF={folder}/slurm.conf\n", (
        started.stdout + started.stderr
    )
    return folder


def environ_of(cluster: Path, home: Path) -> dict[str, str]:
    """What finds the cluster, and nothing else."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return {"PATH": path, "HOME": str(home), "SLURM_CONF": f"{cluster}/slurm.conf"}


def processes_on(cluster: Path, node: str) -> list[psutil.Process]:
    """All that runs on a node: what its jobs have started, and Slurm's supervisors of their steps. Other clusters of
    this machine have nodes of the same name."""
    place = {"SLURM_CONF": f"{cluster}/slurm.conf", "SLURMD_NODENAME": node}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if place.items() <= process.environ().items():
                found.append(process)
                found += [above for above in process.parents() if above.name() == "slurmstepd"]
    return found


def compile_plan(
    job: AnyJob, settings: Slurm, *, name: str = "run-1", bundle: Bundle = BUNDLE
) -> Plan:
    """The plan of a job, as the dry run makes it."""
    context = CompileContext(name, bundle, SlurmAccount.of(settings))
    return SlurmTarget().compile(job, settings, context)


def command(environ: dict[str, str], *argv: str) -> str:
    """What one of Slurm's own commands prints."""
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.2)
    return value


@dataclass
class Run:
    """One submitted run."""

    site: Site
    ref: RunRef

    @property
    def status(self) -> RunStatus:
        return self.site.service.status(self.ref)

    def wait(self) -> RunStatus:
        """The final status."""
        eventually(lambda: self.status.state.is_final, f"{self.ref} ends")
        return self.status

    def lines(self, **options: Any) -> list[LogLine]:
        return list(self.site.service.logs(self.ref, **options))

    def texts(self, **options: Any) -> list[str]:
        """What the ranks print to stdout."""
        return [
            line.text
            for line in self.lines(**options)
            if line.rank is not None and line.stream == "stdout"
        ]

    def wait_for_line(self, part: str) -> None:
        eventually(lambda: any(part in text for text in self.texts()), f"`{part}` in the log")

    @property
    def job(self) -> str:
        """The number of its job."""
        return str((Path(self.site.shared) / "runs" / self.ref.name / "job").readlink())


@dataclass
class Site:
    """A shared folder on a cluster. `submit` compiles, uploads and sends, as the API does."""

    root: Path
    environ: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    submitted: list[Run] = field(default_factory=list)

    @property
    def shared(self) -> str:
        """With characters that a shell would read."""
        return f"{self.root}/shared dir's"

    @property
    def service(self) -> SlurmService:
        """A new object each time, as another shell would have it."""
        return SlurmService(environ=self.environ, state_dir=self.root / "state", pace=QUICK)

    def settings(self, **changes: Any) -> Slurm:
        fields = {
            "shared_dir": self.shared,
            "python": sys.executable,
            "rendezvous_host": "127.0.0.1",
        }
        return Slurm(**(fields | self.options | changes))

    def plan(
        self, script: str = "", *, name: str, source: Path | None = None, **fields: Any
    ) -> tuple[Plan, Any]:
        """A plan and its bundle. Fields of the job, and `settings` of the cluster."""
        settings = self.settings(**fields.pop("settings", {}))
        if source is None:
            source = self.root / "src" / name
            source.mkdir(parents=True, exist_ok=True)
            (source / "train.py").write_text(script)
        tree = scan(source)
        kind = fields.pop("kind", TrainingJob)
        job = kind(**({"name": "job", "entry_point": "train.py"} | fields))
        return compile_plan(job, settings, name=name, bundle=tree.identity), tree

    def submit(self, script: str = "", **options: Any) -> Run:
        plan, tree = self.plan(script, **options)
        self.service.upload(plan, tree)
        return self.send(plan)

    def send(self, plan: Plan, *, again: bool = False) -> Run:
        run = Run(self, self.service.submit(plan, again=again))
        self.submitted.append(run)
        return run

    def jobs_named(self, name: str) -> list[str]:
        """The numbers of the jobs that Slurm has ever had under a name."""
        rows = command(self.environ, "sacct", "-X", "-n", "-P", f"--name={name}", "--format=JobID")
        waiting = command(
            self.environ, "squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i"
        )
        return sorted({*rows.split(), *waiting.split()})

    def clean_up(self) -> None:
        """Whatever a failed test has left."""
        command({**self.environ, "PATH": os.environ["PATH"]}, "scancel", "--user=root")
