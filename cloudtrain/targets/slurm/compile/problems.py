"""Find the fields of a job that a Slurm cluster does not support. Each problem's hint names an alternative."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.core.distribution import DeepSpeed, no_ray
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import value_for
from cloudtrain.errors import Problem
from cloudtrain.targets.common.compiling import option_problems
from cloudtrain.targets.slurm.compile.cluster_run import NAME, is_mpi, is_plug_in
from cloudtrain.targets.slurm.settings import Slurm

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def job_problems(job: TrainingJob, settings: Slurm) -> Iterator[Problem]:
    """Yield each problem that prevents the job from running on a Slurm cluster."""
    yield from option_problems(job)
    if job.entry_point is None and job.command is None:
        message = "the job runs its image's own entry point, but a Slurm cluster needs a script or command"
        yield Problem(("entry_point",), message, "add `entry_point: train.py`", code="CT036")
    yield from _distribution_problems(job)
    yield from _container_problems(job, settings)
    yield from _place_problems(job)
    for name in job.environment.variables:
        if not _VARIABLE.fullmatch(name):
            message = f"`{name}` cannot be the name of an environment variable in a batch script"
            hint = "use letters, digits and `_`, and do not begin with a digit"
            yield Problem(("environment", "variables", name), message, hint, code="CT031")
    if job.resources.instance_groups:
        message = "`instance_groups` works only on SageMaker; all nodes of a Slurm job are of the same type"
        yield Problem(("resources", "instance_groups"), message, "use `instance_count`", code="CT031")


def _distribution_problems(job: TrainingJob) -> Iterator[Problem]:
    yield from no_ray(job.distribution, "on a Slurm cluster")
    kind = job.distribution.type
    if kind in ("smddp", "smp"):
        hint = "use `distribution: {type: torch}`, which runs everywhere"
        if kind == "smp":
            hint += ": `cloudtrain scripts copy pipeline_gpt` is a pipeline, `gpt_fsdp` shards with FSDP2"
        message = f"`{kind}` is SageMaker's own library and does not exist on a Slurm cluster"
        yield Problem(("distribution", "type"), message, hint, code="CT030")
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "launcher":
        message = "the `deepspeed` command starts ranks through ssh, but a Slurm job must start them through `srun`"
        yield Problem(("distribution", "launch"), message, "use `launch: torch` or `launch: mpi`", code="CT030")


def _container_problems(job: TrainingJob, settings: Slurm) -> Iterator[Problem]:
    image = job.environment.image
    named = value_for(image, NAME) if image is not None else None
    if named is not None and settings.container is None:
        message = f"the job names the image `{named}`, but `[slurm]` has no `container` to run it"
        hint = 'set `container` to `"pyxis"` or `"apptainer"` in `[slurm]` of `cloudtrain.toml`, or remove the image'
        yield Problem(("environment", "image"), message, hint, code="CT034")
    elif named is not None and is_mpi(job) and not is_plug_in(settings.mpi):
        message = f"`mpirun` would start the ranks outside the container `{named}`"
        hint = 'set `mpi = "pmix"` in `[slurm]`, so that `srun` starts them; `srun --mpi=list` shows the choices'
        yield Problem(("environment", "image"), message, hint, code="CT031")


def _place_problems(job: TrainingJob) -> Iterator[Problem]:
    for field, items in (("inputs", job.inputs), ("outputs", job.outputs)):
        for name, item in items.items():
            place = value_for(item, NAME)
            if place is None and field == "inputs":
                message, hint = (
                    f"input `{name}` has no path on the cluster",
                    f"add `slurm: /PATH` under `inputs.{name}`",
                )
                yield Problem((field, name), message, hint, code="CT032")
            yield from _path_problems((field, name, NAME), place)
    if job.checkpoint is not None:
        yield from _path_problems(("checkpoint", NAME), value_for(job.checkpoint, NAME))
    for name, item in job.inputs.items():
        if item.shard:
            message = "`shard` has no effect on a Slurm cluster: every node sees the whole input"
            yield Problem(
                ("inputs", name, "shard"),
                message,
                "remove `shard`, and let the script choose its part by its rank",
                code="CT031",
            )


def _path_problems(path: tuple[str, ...], place: str | None) -> Iterator[Problem]:
    if place is not None and not place.startswith("/"):
        message = f"`{place}` is not an absolute path of the cluster's file system"
        yield Problem(path, message, "write for example `/data/train`, a path that every node sees", code="CT031")
