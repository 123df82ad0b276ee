"""The target Slurm, as data. Its functions and parts are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cloudtrain.targets.contract import Service, Target, TargetFacts
from cloudtrain.targets.slurm.settings import ASKED, Slurm, SlurmAccount

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.plans.plan import CompileContext, Plan


class SlurmTarget(Target):
    """Runs jobs on a Slurm cluster, through Slurm's own commands."""

    name = "slurm"
    title = "Slurm"
    prefix = "SL"
    settings = Slurm
    order = 30
    facts: ClassVar[TargetFacts] = TargetFacts(
        is_paid=False,
        place_example="/data/train",
        place_help="An absolute path that every node of the cluster sees.",
        overrides_help=(
            "Options of sbatch, merged last: `{nice: 100, exclusive: null}`; null "
            "removes an option."
        ),
        secrets={"file": "file:~/.secrets/NAME", "env": "env:NAME"},
        locating_settings=("shared_dir",),
        asked=ASKED,
        plan_formats=("sbatch",),
    )
    parts: ClassVar[Mapping[str, str]] = {
        "rules": "cloudtrain.targets.slurm.rules",
        "online": "cloudtrain.targets.slurm.online",
        "capacity": "cloudtrain.targets.slurm.runner:CAPACITY",
        "forms": "cloudtrain.targets.slurm.compile:forms_of",
        "batch": "cloudtrain.targets.slurm.adopt:batch_settings",
        "container": "cloudtrain.targets.slurm.adopt:container_settings",
        "examine": "cloudtrain.targets.slurm.settings:examine",
    }

    def account(
        self, settings: Slurm, *, environ: Mapping[str, str], state_dir: Path, cwd: Path
    ) -> SlurmAccount:
        return SlurmAccount.of(settings)

    def compile(self, job: AnyJob, settings: Slurm, context: CompileContext) -> Plan:
        from cloudtrain.targets.slurm.compile import compile_slurm

        return compile_slurm(job, settings, context)

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        from cloudtrain.targets.slurm.service import SlurmService

        return SlurmService(environ=environ, state_dir=state_dir)
