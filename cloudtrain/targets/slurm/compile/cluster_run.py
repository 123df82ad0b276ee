"""The paths of a run's files, and the command and environment of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cloudtrain.core.distribution import TensorFlow
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import value_for
from cloudtrain.core.plan import CompileContext
from cloudtrain.targets.common.compiling import arguments_of, resolve_text
from cloudtrain.targets.slurm.account import SlurmAccount
from cloudtrain.targets.slurm.layout import RunFolder, bundle_path
from cloudtrain.targets.slurm.settings import Slurm

NAME = "slurm"


def is_mpi(job: TrainingJob) -> bool:
    """Return whether MPI starts the ranks."""
    return job.distribution.type in ("mpi", "horovod") or getattr(job.distribution, "launch", "") == "mpi"


def is_plug_in(mpi: str) -> bool:
    """Return whether the setting `mpi` names a plug-in of `srun --mpi`, not an `mpirun` program."""
    return "mpirun" not in mpi and "mpiexec" not in mpi and "/" not in mpi


@dataclass(frozen=True)
class ClusterRun:
    """One run on the cluster. Its paths, command and variables follow from the job, the settings and the context."""

    job: TrainingJob
    settings: Slurm
    context: CompileContext

    @property
    def account(self) -> SlurmAccount:
        """Return the login node and the shared folder."""
        found: SlurmAccount = self.context.account
        return found

    @cached_property
    def folder(self) -> RunFolder:
        """Return the folder of the run."""
        return RunFolder.of(self.account.shared_dir, self.context.run_name)

    @property
    def bundle(self) -> str:
        """Return the path of the archive with the user's code."""
        return bundle_path(self.account.shared_dir, self.context.bundle.sha256)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Map references such as `inputs.train`, `outputs.model` and `checkpoint` to paths on the cluster."""
        job, run = self.job, self.folder.path
        found = {f"inputs.{name}": value_for(item, NAME) or f"{run}/inputs/{name}" for name, item in job.inputs.items()}
        found["outputs.model"] = f"{run}/model"
        for name, item in job.outputs.items():
            own = f"{run}/model" if name == "model" else f"{run}/outputs/{name}"
            found[f"outputs.{name}"] = value_for(item, NAME) or own
        given = value_for(job.checkpoint, NAME) if job.checkpoint else None
        found["checkpoint"] = given or f"{run}/checkpoint"
        return found

    @property
    def output_folders(self) -> list[str]:
        """Return the folders that the run writes to."""
        return sorted({path for name, path in self.paths.items() if not name.startswith("inputs.")})

    @property
    def image(self) -> str | None:
        """Return the container image; None if the script runs directly on the nodes."""
        image = self.job.environment.image
        return value_for(image, NAME) if image is not None and self.settings.container is not None else None

    @property
    def nodes(self) -> int:
        """Return the job's number of instances."""
        return self.job.resources.instance_count

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of each instance."""
        return self.job.resources.gpus_per_instance or 0

    @property
    def processes(self) -> int:
        """Return the number of ranks on each instance. Default: one per GPU."""
        distribution = self.job.distribution
        if isinstance(distribution, TensorFlow):
            return -(-sum(self.tasks) // self.nodes)
        if distribution.type == "none":
            return 1
        return getattr(distribution, "processes_per_instance", None) or self.gpus or 1

    @property
    def tasks(self) -> tuple[int, int]:
        """Return a TensorFlow job's number of workers (with the chief) and number of parameter servers."""
        distribution = self.job.distribution
        assert isinstance(distribution, TensorFlow), "only such jobs have tasks"
        workers = distribution.workers or self.nodes
        if distribution.strategy != "parameter_server":
            return workers, 0
        return max(workers, 2), distribution.parameter_servers or 1  # the chief only coordinates

    @property
    def program(self) -> list[str]:
        """Return the command of a rank: interpreter or shell, script and arguments."""
        if self.job.command is not None:
            return ["bash", "-c", resolve_text(self.job.command, self.paths)]
        script = self.job.entry_point or ""
        words = [script, *arguments_of(self.job, self.paths)]
        if script.endswith(".py"):
            return [self.settings.python, "-u", *words]
        return ["bash", *words] if script.endswith(".sh") else words

    @cached_property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that cloudtrain and the job set for every process."""
        variables = self.job.environment.variables
        given = {name: resolve_text(text, self.paths) for name, text in variables.items()}
        found = {
            "CLOUDTRAIN_CHECKPOINT_DIR": self.paths["checkpoint"],
            "CLOUDTRAIN_MODEL_DIR": self.paths["outputs.model"],
            "CLOUDTRAIN_RUN_DIR": self.folder.path,
            "CLOUDTRAIN_RUN_NAME": self.context.run_name,
            "PYTHONUNBUFFERED": "1",
        }
        if self.job.checkpoint:
            found["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(self.job.checkpoint.keep)
        for reference, path in self.paths.items():
            kind, _, name = reference.partition(".")
            if name:
                found[f"CLOUDTRAIN_{kind[:-1].upper()}_{name.upper()}"] = path
        return dict(sorted((found | given).items()))
