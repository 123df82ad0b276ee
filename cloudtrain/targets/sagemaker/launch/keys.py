"""The names of the hyperparameters for sagemaker-training. The SageMaker SDK and cloudtrain set them in the request."""

from __future__ import annotations

PROGRAM = "sagemaker_program"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
LOG_LEVEL = "sagemaker_container_log_level"
JOB_NAME = "sagemaker_job_name"
REGION = "sagemaker_region"

MPI = "sagemaker_mpi_enabled"
PARAMETER_SERVER = "sagemaker_parameter_server_enabled"
SMDDP = "sagemaker_distributed_dataparallel_enabled"
PYTORCH_DDP = "sagemaker_pytorch_ddp_enabled"
XLA = "sagemaker_pytorch_xla_multi_worker_enabled"
MIRRORED = "sagemaker_multi_worker_mirrored_strategy_enabled"
TORCH = "sagemaker_torch_distributed_enabled"
LAUNCHER_KEYS = (MPI, PARAMETER_SERVER, SMDDP, PYTORCH_DDP, XLA, MIRRORED, TORCH)
"""The hyperparameters that select a launcher."""

GROUPS = "sagemaker_distribution_instance_groups"
INSTANCE_TYPE = "sagemaker_instance_type"
PROCESSES = "sagemaker_mpi_num_of_processes_per_host"
"""The number of ranks on each host, for torchrun and mpirun."""

RANKS = "sagemaker_mpi_num_processes"
MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SMDDP_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
MODEL_PARALLEL = "mp_parameters"

NATIVE_LAUNCHER = "sagemaker_toolkit_native_launcher_enabled"
"""The PyTorch toolkit's hyperparameter for a start without error capture, where no version uses a shell.

With torchrun the toolkit mixes up two arguments: it captures errors anyway, and ignores the exit code.
"""
