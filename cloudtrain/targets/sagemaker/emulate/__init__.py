"""`emulate: sagemaker`: the job as SageMaker would run it, on this machine.

The job is compiled for SageMaker, its counts scaled down; then every host of that request gets an `/opt/ml` of its own
in the run's folder, with the files, variables and argv that the container would have. What differs, and nothing else:

    /opt/ml         lies at `hosts/algo-N/opt/ml` of the run's folder, wherever it is named
    addresses       where a host and port is meant, loopback and a free port; the names in SM_HOSTS stay
    interface       `lo` instead of `eth0`
    interpreter     the local target's; mpirun is this machine's; libraries of SageMaker's images are not there
    counts          instances, processes, GPUs and CPUs are this machine's
    ranks' output   goes to files: torchrun's settings are PET_* variables, mpirun has `--output-filename` for it and
                    loses `--tag-output`
    our own         CLOUDTRAIN_RUN_DIR, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS (each host's share), PYTHONPATH,
                    PYTHONUNBUFFERED, TRAINING_JOB_NAME, AWS_REGION, TORCH_ELASTIC_SHUTDOWN_TIMEOUT

    paths       texts with `/opt/ml` replaced; addresses replaced
    toolkit     what the image's training toolkit starts on a host
    entrypoint  what our own launcher starts on a host; it runs for real
    compiler    all of it together: the launch specification
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.emulate.compiler import compile_as_sagemaker

__all__ = ["compile_as_sagemaker"]
