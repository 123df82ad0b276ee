"""The distributions: how the processes of a job are launched and find each other. `type` selects
the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue

from cloudtrain.documents.document import load_table
from cloudtrain.errors import Problem, ValidNames, did_you_mean
from cloudtrain.job.model import Count, Model, all_at_once
from cloudtrain.job.nodes import KeyProblem
from cloudtrain.job.problems import RawFields, mapping_or_empty

if TYPE_CHECKING:
    from cloudtrain.job.model import Json


class _Started(Model):
    """A distribution that starts several processes."""

    added_property: int | float | bool | str | None = None
    """A value that Microsoft's example for TensorFlow gives its distribution. No service takes it,
    so no target sends it."""


class _Processes(_Started):
    """A distribution with a number of processes on each instance."""

    processes_per_instance: Count | None = None
    """Processes started on each instance. Default: the number of GPUs of the instance type."""


class Torch(_Processes):
    """torchrun, for scripts that use torch.distributed: DDP, FSDP, tensor or pipeline
    parallelism."""

    type: Literal["torch"] = "torch"


class SMDDP(_Processes):
    """SageMaker's data parallel library. PyTorch images newer than 2.5 do not include it. On other
    targets use `torch`."""

    type: Literal["smddp"] = "smddp"
    launch: Literal["mpi", "torch"] = "mpi"
    """mpi: smddprun through mpirun. torch: torchrun, and the script names `smddp` as its process
    group's backend."""
    mpi_options: str = ""
    """Extra options for the mpirun line of the container."""


@cache
def smp_parameters(version: int) -> frozenset[str]:
    """Return the names of the parameters that a version of `smp` reads, from the table
    `smp_parameters.toml`."""
    return frozenset(load_table(__file__, "smp_parameters.toml")[str(version)].split())


def _smp_rules(smp: RawFields) -> Iterator[Problem]:
    """Yield a problem for each parameter or option that the version does not have."""
    version = smp.get("version")
    if isinstance(version, bool):  # Python treats True as equal to 1
        message = f"`version` cannot be `{str(version).lower()}`"
        hint: str | None = ValidNames.of(["1", "2"])
        yield Problem(("version",), message, hint, code="CT013")
        return
    if not isinstance(version, int) or version not in (1, 2):
        return  # validation reports it

    names = smp_parameters(version)
    other = 2 if version == 1 else 1
    for name in mapping_or_empty(smp.get("parameters")):
        if name not in names:
            hint = did_you_mean(str(name), names)
            if name in smp_parameters(other):
                hint = f"it belongs to `version: {other}`"
            path = ("parameters", str(name))
            message = f"`smp` version {version} has no parameter `{name}`"
            yield KeyProblem(path, message, hint, code="CT010")

    if version == 2 and smp.get("mpi_options"):
        message = "`smp` version 2 runs under torchrun, so `mpi_options` has no effect"
        yield Problem(("mpi_options",), message, "remove it", code="CT018")


class SMP(_Processes):
    """SageMaker's model parallel library. On other targets use `torch` with
    torch.distributed.pipelining."""

    type: Literal["smp"] = "smp"
    version: Literal[1, 2]
    """1: partitions and microbatches over MPI (PyTorch up to 2.0). 2: FSDP and tensor parallel
    under torchrun."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """The library's parameters, under the library's names. They are checked against those of the
    version."""
    mpi_options: str = ""
    """Version 1 only: extra options for the mpirun line."""

    _rules = all_at_once(_smp_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            version: Literal[1, 2],
            type: Literal["smp"] = "smp",
            added_property: int | float | bool | str | None = None,
            processes_per_instance: int | None = None,
            parameters: Mapping[str, Json] = ...,
            mpi_options: str = "",
        ) -> None: ...


class DeepSpeed(_Processes):
    """DeepSpeed. `launch` selects how the processes are started. In every case, the script calls
    `deepspeed.initialize`."""

    type: Literal["deepspeed"] = "deepspeed"
    launch: Literal["torch", "mpi", "launcher"] = "torch"
    """torch: torchrun. mpi: mpirun. launcher: the `deepspeed` command with a hostfile (needed by
    autotuning)."""
    launcher_options: str = ""
    """With `launch: launcher`: options of the `deepspeed` command, for example `--autotuning
    tune`."""


class MPI(_Processes):
    """mpirun, for scripts that use mpi4py or start MPI themselves."""

    type: Literal["mpi"] = "mpi"
    options: str = ""
    """Extra options for the mpirun line, as one string."""


class Horovod(_Processes):
    """Horovod: processes that mpirun starts."""

    type: Literal["horovod"] = "horovod"
    options: str = ""
    """Extra options for the mpirun line, as one string."""


def _tensorflow_rules(tensorflow: RawFields) -> Iterator[Problem]:
    strategy = tensorflow.get("strategy", "multi_worker_mirrored")
    if tensorflow.get("parameter_servers") is not None and strategy == "multi_worker_mirrored":
        message = "`parameter_servers` has no effect with `strategy: multi_worker_mirrored`"
        hint = "write `strategy: parameter_server`, or remove it"
        yield Problem(("parameter_servers",), message, hint, code="CT018")


class TensorFlow(_Started):
    """tf.distribute (TensorFlow): processes that find each other through the variable
    `TF_CONFIG`."""

    type: Literal["tensorflow"] = "tensorflow"
    strategy: Literal["multi_worker_mirrored", "parameter_server"] = "multi_worker_mirrored"
    parameter_servers: Count | None = None
    """With `parameter_server`: the number of servers. Default: one."""
    workers: Count | None = None
    """Worker processes, including the chief. Default: one per instance."""

    _rules = all_at_once(_tensorflow_rules)


class Ray(Model):
    """A Ray cluster that Azure ML starts. The head and the script run on the first instance, and a
    worker on each other instance. Azure ML chooses the value of every field that you leave out."""

    type: Literal["ray"] = "ray"
    port: int | None = Field(default=None, ge=1, le=65535, strict=True)
    """The port of the head."""
    address: str | None = None
    """The address of the head that workers connect to."""
    include_dashboard: bool | None = None
    dashboard_port: int | None = Field(default=None, ge=1, le=65535, strict=True)
    head_node_additional_args: str | None = None
    """More arguments of `ray start` on the head, as one string."""
    worker_node_additional_args: str | None = None
    """More arguments of `ray start` on the workers, as one string."""


def no_ray(distribution: Distribution, where: str) -> Iterator[Problem]:
    """Yield a problem if the job uses Ray on a target that cannot start Ray. `where` names the
    target in the message: `on SageMaker`."""
    if isinstance(distribution, Ray):
        message = f"nothing starts Ray {where}; only Azure ML supports Ray as a distribution"
        hint = "use `distribution: {type: torch}`, or a `command` that starts Ray itself"
        yield Problem(("distribution", "type"), message, hint, code="CT030")


class NoDistribution(Model):
    """One independent process on each instance."""

    type: Literal["none"] = "none"


Distribution = Annotated[
    Torch | SMDDP | SMP | DeepSpeed | MPI | Horovod | TensorFlow | Ray | NoDistribution,
    Field(discriminator="type"),
]


Launcher = Literal["torchrun", "mpirun", "tensorflow", "none"]


def launcher_of(distribution: Distribution) -> Launcher:
    """Return what starts the processes on each instance; `none` if the script starts alone."""
    if isinstance(distribution, Ray):
        return "none"
    if isinstance(distribution, TensorFlow | NoDistribution):
        return distribution.type
    if isinstance(distribution, DeepSpeed | SMDDP):
        return "mpirun" if distribution.launch == "mpi" else "torchrun"
    if isinstance(distribution, SMP):
        return "torchrun" if distribution.version == 2 else "mpirun"
    return "mpirun" if isinstance(distribution, MPI | Horovod) else "torchrun"
