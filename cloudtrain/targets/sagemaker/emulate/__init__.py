"""`emulate: sagemaker`: run the job on this machine as SageMaker would run it.

cloudtrain compiles the job for SageMaker, with its counts scaled down. Each host of the request then gets a separate
`/opt/ml` in the run's folder, with the files, variables and argv of the real container. Differences:

    /opt/ml         is at `hosts/algo-N/opt/ml` of the run's folder, in every path and text
    addresses       hosts and ports become loopback and a free port; the names in SM_HOSTS stay
    interface       `lo` instead of `eth0`
    programs        the local target's Python and this machine's mpirun, without the libraries of SageMaker's images
    counts          instances, processes, GPUs and CPUs are this machine's
    ranks' output   goes to files: torchrun gets PET_* variables, and mpirun gets `--output-filename` instead of
                    `--tag-output`
    additions       CLOUDTRAIN_RUN_DIR, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS (each host's share), PYTHONPATH,
                    PYTHONUNBUFFERED, TRAINING_JOB_NAME, AWS_REGION, TORCH_ELASTIC_SHUTDOWN_TIMEOUT

Modules:

    paths       replaces `/opt/ml` and addresses in texts
    toolkit     the processes that the image's training toolkit starts on a host
    entrypoint  the processes that cloudtrain's launcher starts on a host; the real launcher runs
    compiler    combines the parts into the launch specification
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.emulate.compiler import compile_as_sagemaker

__all__ = ["compile_as_sagemaker"]
