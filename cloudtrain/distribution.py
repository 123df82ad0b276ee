"""How the processes of a job are launched and find each other. One model per distribution, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from cloudtrain._model import Model

Count = Annotated[int, Field(ge=1, strict=True)]


class _Processes(Model):
    processes_per_instance: Count | None = None
    """Processes started on each instance; the GPU count of the instance type unless given."""


class Torch(_Processes):
    """torchrun: DDP, FSDP, tensor and pipeline parallel, whatever the script does with torch.distributed."""

    type: Literal["torch"] = "torch"


class SMDDP(_Processes):
    """SageMaker's data parallel library. Ships in no PyTorch image newer than 2.5; elsewhere use `torch`."""

    type: Literal["smddp"] = "smddp"
    mpi_options: str = ""
    """Extra options for the mpirun line of the container."""


SMP_V1_PARAMETERS = frozenset(
    "partitions microbatches pipeline optimize placement_strategy auto_partition default_partition ddp "
    "pipeline_parallel_degree tensor_parallel_degree active_microbatches horovod memory_weight fp16 fp16_params bf16 "
    "shard_optimizer_state prescaled_batch skip_tracing offload_activations activation_loading_horizon "
    "ddp_port ddp_dist_backend sharded_data_parallel_degree sdp_reduce_bucket_size sdp_param_persistence_threshold "
    "sdp_max_live_parameters sdp_hierarchical_allgather sdp_gradient_clipping delayed_parameter_initialization "
    "_match_weights checkpoint_attentions contiguous fast_mode static_mode".split()
)
"""What `smp` version 1 reads from `mp_parameters` (smdistributed.modelparallel 1.x, PyTorch and TensorFlow)."""

SMP_V2_PARAMETERS = frozenset(
    "hybrid_shard_degree tensor_parallel_degree expert_parallel_degree context_parallel_degree "
    "sm_activation_offloading activation_loading_horizon random_seed moe moe_load_balancing "
    "fp8_recipe delayed_param_initialization".split()
)
"""What `smp` version 2 reads from `mp_parameters` (the torch.sagemaker libraries)."""


class SMP(_Processes):
    """SageMaker's model parallel library. Only on SageMaker; elsewhere `torch` with torch.distributed.pipelining."""

    type: Literal["smp"] = "smp"
    version: Literal[1, 2]
    """1: partitions and microbatches over MPI (PyTorch up to 2.0). 2: FSDP and tensor parallel under torchrun."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """The library's own parameters, by its own names, checked against those of the version."""
    mpi_options: str = ""
    """Version 1 only: extra options for the mpirun line."""

    @model_validator(mode="after")
    def _parameters_belong_to_version(self) -> SMP:
        known = SMP_V1_PARAMETERS if self.version == 1 else SMP_V2_PARAMETERS
        unknown = sorted(set(self.parameters) - known)
        if unknown:
            raise ValueError(
                f"smp version {self.version} has no parameter {', '.join(f'`{name}`' for name in unknown)}; "
                f"it has {', '.join(f'`{name}`' for name in sorted(known))}"
            )
        if self.version == 2 and self.mpi_options:
            raise ValueError("smp version 2 runs under torchrun, so `mpi_options` has no effect; remove it")
        return self


class DeepSpeed(_Processes):
    """DeepSpeed. `launch` says who starts the processes; the script calls `deepspeed.initialize` either way."""

    type: Literal["deepspeed"] = "deepspeed"
    launch: Literal["torch", "mpi", "launcher"] = "torch"
    """torch: torchrun. mpi: mpirun. launcher: the `deepspeed` command with a hostfile (needed by autotuning)."""
    launcher_options: str = ""
    """With `launch: launcher`: options of the `deepspeed` command, for example `--autotuning tune`."""


class MPI(_Processes):
    """mpirun, for scripts that use mpi4py or their own MPI start-up."""

    type: Literal["mpi"] = "mpi"
    options: str = ""
    """Extra options for the mpirun line, as one string."""


class Horovod(_Processes):
    """Horovod, started by mpirun."""

    type: Literal["horovod"] = "horovod"
    options: str = ""
    """Extra options for the mpirun line, as one string."""


class TensorFlow(Model):
    """tf.distribute: processes that find each other through `TF_CONFIG`."""

    type: Literal["tensorflow"] = "tensorflow"
    strategy: Literal["multi_worker_mirrored", "parameter_server"] = "multi_worker_mirrored"
    parameter_servers: Count | None = None
    """With `parameter_server`: how many servers; one unless given."""
    workers: Count | None = None
    """Worker processes, the chief included; one per instance unless given."""

    @model_validator(mode="after")
    def _servers_need_the_strategy(self) -> TensorFlow:
        if self.parameter_servers is not None and self.strategy != "parameter_server":
            raise ValueError("`parameter_servers` needs `strategy: parameter_server`")
        return self


class NoDistribution(Model):
    """One process on each instance, which know nothing of each other."""

    type: Literal["none"] = "none"


Distribution = Annotated[
    Torch | SMDDP | SMP | DeepSpeed | MPI | Horovod | TensorFlow | NoDistribution, Field(discriminator="type")
]
