"""The class `SlurmTarget`, through which the rest of cloudtrain uses Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cloudtrain.targets.contract import Service, Target
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.plans.plan import CompileContext, Plan
    from cloudtrain.targets.adoption import BatchSettings


class SlurmTarget(Target):
    """Runs jobs on a Slurm cluster, through Slurm's own commands."""

    name = "slurm"
    title = "Slurm"
    settings_model = Slurm
    rule_prefix = "SL"
    rule_modules = ("cloudtrain.targets.slurm.rules",)
    online_rule_modules = ("cloudtrain.targets.slurm.online",)
    plan_formats = ("sbatch",)
    parts: ClassVar = {"export": "cloudtrain.targets.slurm.compile:SlurmExports"}
    order = 30
    is_paid = False
    locating_settings = ("shared_dir",)
    place_example = "/data/train"
    place_help = "An absolute path that every node of the cluster sees."
    overrides_help = "Options of sbatch, merged last: `{nice: 100, exclusive: null}`; null removes an option."
    secret_places: ClassVar = {"file": "file:~/.secrets/NAME", "env": "env:NAME"}

    def account(self, settings: Slurm, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> SlurmAccount:
        """Return the login node and the shared folder."""
        return SlurmAccount.of(settings)

    def compile(self, job: AnyJob, settings: Slurm, context: CompileContext) -> Plan:
        """Return the plan: the command line of sbatch and the batch script."""
        from cloudtrain.targets.slurm.compile import compile_slurm

        return compile_slurm(job, settings, context)

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        """Return the service that runs Slurm's commands."""
        from cloudtrain.targets.slurm.service import SlurmService

        return SlurmService(environ=environ, state_dir=state_dir)

    def batch_settings(self, options: Mapping[str, str], setup: Sequence[str]) -> BatchSettings:
        """Convert sbatch options and setup lines to settings, for `cloudtrain adopt`."""
        from cloudtrain.targets.slurm.adopt import batch_settings

        return batch_settings(options, setup)

    def container_settings(self, options: Mapping[str, str]) -> BatchSettings | None:
        """Convert the options of pyxis on a line of srun to the image and settings, for `cloudtrain adopt`."""
        from cloudtrain.targets.slurm.adopt import container_settings

        return container_settings(options)

    def examine(self, settings: Slurm, account: SlurmAccount) -> str | None:
        """Return the login node and the shared folder as text; None if the settings have no shared folder."""
        if account.missing:
            return None
        return f"{account.host or 'this machine'}, {account.shared_dir}"
