"""The target for this machine. It reads the hardware and files, but starts nothing; its service
runs the jobs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.contract import Target, TargetFacts
from cloudtrain.targets.local.settings import Local

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.common.launch import LocalAccount
    from cloudtrain.targets.local.service import LocalService

_HERE = "cloudtrain.targets.local"


class LocalTarget(Target):
    """Runs jobs on this machine. It needs no account and no network, and keeps all data in files
    below `state_dir`."""

    name = "local"
    title = "this machine"
    prefix = "LO"
    settings = Local
    order = 0
    facts: ClassVar[TargetFacts] = TargetFacts(
        is_paid=False,
        place_example="data/train",
        place_help="A path on this machine, relative to the job file.",
        has_secrets_here=True,
        waits_for_runs=True,
    )
    parts: ClassVar[Mapping[str, str]] = {
        "rules": f"{_HERE}.rules",
        "contents": f"{_HERE}.rules:contents_before",
        "settle": f"{_HERE}.rules:settle",
        "absolute": f"{_HERE}.settings:with_absolute_python",
        "folder": f"{_HERE}.folder:run_folder",
        "files": f"{_HERE}.service:files_of",
    }

    def account(
        self, settings: Local, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> LocalAccount:
        from cloudtrain.targets.common import launch

        machine = launch.this_machine(environ)
        if settings.gpus is not None:
            from cloudtrain.runtime.hardware import chosen_gpus

            machine = machine._replace(gpu_ids=chosen_gpus(settings.gpus, environ))
        interpreter = ("", "")
        if settings.build_environment:
            python = settings.python or sys.executable
            path = os.path.abspath(shutil.which(python) or python)
            # an upgrade changes the file behind its links, and so makes another interpreter
            interpreter = (path, os.path.realpath(path))
        return launch.LocalAccount(
            # absolute, because plans contain this path
            state_dir=os.path.abspath(state_dir),
            python=sys.executable,
            machine=machine,
            host=launch.host_name(),
            mpirun=launch.find_mpirun(settings.python or sys.executable, environ),
            loopback=launch.loopback_interface(),
            fork_variables=launch.fork_variables(),
            interpreter=interpreter,
        )

    def compile(self, job: AnyJob, settings: Local, context: CompileContext) -> Plan:
        from cloudtrain.targets.local.variants import compile_here

        return compile_here(job, settings, context)

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> LocalService:
        from cloudtrain.targets.local.service import LocalService

        return LocalService(state_dir, environ=environ)

    def read(
        self,
        job: TrainingJob,
        settings: Local,
        account: LocalAccount,
        plan: Plan,
        processing: ProcessingJob | None = None,
    ) -> Reading:
        from cloudtrain.targets.local.rules import LocalReading

        return LocalReading(self.name, job, account, plan, processing, emulate=settings.emulate)
