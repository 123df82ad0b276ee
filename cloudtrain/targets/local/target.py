"""The class `LocalTarget`. It reads this machine's hardware and files, but starts nothing; `service/` runs the jobs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.job.training import TrainingJob
from cloudtrain.targets.contract import Target
from cloudtrain.targets.local.settings import Local

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob, ProcessingJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.rules.engine import Reading
    from cloudtrain.targets.common.launch import LocalAccount
    from cloudtrain.targets.local.service import LocalService


class LocalTarget(Target):
    """Runs jobs on this machine. It needs no account and no network, and keeps all data in files below `state_dir`."""

    name = "local"
    title = "this machine"
    order = 0
    settings_model = Local
    rule_prefix = "LO"
    rule_modules = ("cloudtrain.targets.local.rules",)
    is_paid = False
    place_example = "data/train"
    place_help = "A path on this machine, relative to the job file."
    has_secrets_here = True
    waits_for_runs = True

    def settings_here(self, settings: Local, *, environ: Mapping[str, str], cwd: Path) -> Local:
        """Return the settings with `python` replaced by an absolute path: `conda:NAME` and `uv` become the interpreter
        of that environment. If the environment does not exist, `python` stays as it is, and the rule LO102 reports
        it."""
        python = settings.python
        if python is None or not (os.sep in python or python == "uv" or python.startswith("conda:")):
            return settings
        from cloudtrain.targets.local.settings import find_interpreter

        found = find_interpreter(python, environ, cwd)
        return settings if found is None else settings.model_copy(update={"python": str(found)})

    def account(self, settings: Local, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> LocalAccount:
        """Return the description of this machine, which `compile` needs."""
        from cloudtrain.targets.common.launch import (
            LocalAccount,
            find_mpirun,
            host_name,
            loopback_interface,
            this_machine,
        )

        machine = this_machine(environ)
        if settings.gpus is not None:
            from cloudtrain.targets.common.gpus import chosen_gpus

            machine = machine._replace(gpu_ids=chosen_gpus(settings.gpus, environ))
        return LocalAccount(
            state_dir=os.path.abspath(state_dir),  # noqa: PTH100 - as the plan will write it
            python=sys.executable,
            machine=machine,
            host=host_name(),
            mpirun=find_mpirun(settings.python or sys.executable, environ),
            loopback=loopback_interface(),
            interpreter=_interpreter(settings) if settings.build_environment else ("", ""),
        )

    def compile(self, job: AnyJob, settings: Local, context: CompileContext) -> Plan:
        """Return the plan of a job on this machine."""
        from cloudtrain.targets.local.variants import environment_of, plan_with, settings_in

        environment = environment_of(job, settings, context)
        if environment is None:
            plan = self._compile(job, settings, context)
        else:
            plan = plan_with(environment, self._compile(job, settings_in(environment, settings), context))
        if settings.queue:
            from cloudtrain.targets.local.variants import queue_plan

            plan = queue_plan(plan, job, settings, context.account)
        if context.after:
            from cloudtrain.targets.local.variants import plan_after

            plan = plan_after(plan, context.after)
        return plan

    @staticmethod
    def _compile(job: AnyJob, settings: Local, context: CompileContext) -> Plan:
        if isinstance(job, TrainingJob):
            from cloudtrain.targets.local.compile import compile_local

            return compile_local(job, settings, context)
        from cloudtrain.targets.local.variants import compile_local_processing

        return compile_local_processing(job, settings, context)

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> LocalService:
        """Return the service that starts runs on this machine."""
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
        """Return what a launch specification says. With `emulate`, the overrides of the emulated service apply."""
        from cloudtrain.targets.local.rules import LocalReading

        return LocalReading(self.name, job, account, plan, processing, emulate=settings.emulate)

    def run_folder(self, run_name: str, state_dir: Path) -> Path:
        """Return the folder of a run, `STATE/runs/NAME`."""
        return state_dir / "runs" / run_name

    def working_files(self, run_name: str, state_dir: Path) -> dict[str, Path]:
        """Map relative paths to the files that the script wrote into its working folder."""
        from cloudtrain.targets.local.folder import RunFolder
        from cloudtrain.targets.local.service import working_files

        folder = RunFolder(str(self.run_folder(run_name, state_dir)))
        return working_files(folder.read_launch(), Path(folder.unpacked))


def _interpreter(settings: Local) -> tuple[str, str]:
    """Return the interpreter's path, and the real file behind its links. An upgrade changes the real file, so the
    upgraded interpreter counts as a different interpreter."""
    found = os.path.abspath(shutil.which(settings.python or sys.executable) or settings.python or sys.executable)  # noqa: PTH100
    return found, os.path.realpath(found)
