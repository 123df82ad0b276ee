"""Starts a job's processes inside a SageMaker container, in place of the image's training toolkit.

A job in entrypoint mode carries this package in its bundle and starts it with `CONTAINER_ENTRYPOINT`. It needs only a
shell and Python 3.7 in the image, so it works where the toolkit is missing or old. Hyperparameters reach the script
exactly (toolkits up to 5.1.2 send them through a shell), torchrun starts on every image, and a dead process ends the
job at once.

    arguments       hyperparameters as JSON and as argv
    spec            the hyperparameter `cloudtrain_launch`: what to start, and how
    variables       the `SM_*` environment, as the toolkit writes it
    plan            pure: configuration and machine -> processes, argv and environment
    machine         what the container has: CPUs, GPUs, Neuron cores, EFA
    network         waiting for the master; telling other hosts that the chief has ended
    children        starting, signalling and ending the processes
    requirements    pip
    failure         why it failed, for `FailureReason`
    config          the files that SageMaker writes into every container
    __main__        the order of things
"""

from __future__ import annotations

ROOT = "/opt/ml"
"""The folder where SageMaker keeps configuration, data and results in every container."""

LAUNCH_KEY = "cloudtrain_launch"
"""The hyperparameter that says what to start. It does not reach the script."""

CODE_CHANNEL = "code"
"""The channel that holds `sourcedir.tar.gz`, in File mode. The script does not see it."""

TRN2_CORES = 64
"""Logical Neuron cores of ml.trn2.48xlarge; `neuron-ls` counts the physical ones, as sagemaker-training 5.1.4 knows."""

FIND_PYTHON = "$(command -v python3||command -v python)"
"""Words of a shell line that find the image's own Python."""
_LINE = (
    "cd {root}&&P={python}||{{ echo 'no Python in the image'>output/failure;exit 127;}};"
    '"$P" -Wi -m tarfile -e input/data/code/sourcedir.tar.gz code&&'
    'cd code&&exec "$P" -m cloudtrain.runtime.sagemaker_launcher {root}'
)


def container_entrypoint(root: str = ROOT, python: str | None = None) -> list[str]:
    """Return the argv that unpacks the bundle and becomes the launcher. It uses the POSIX shell, and Python instead of
    tar, which slim images lack. With `root` and `python` it runs on another machine, for emulation.

    SageMaker takes items of at most 256 characters, without line breaks (botocore: TrainingContainerEntrypointString).
    """
    from shlex import quote

    return ["/bin/sh", "-c", _LINE.format(root=quote(root), python=quote(python) if python else FIND_PYTHON)]


CONTAINER_ENTRYPOINT = tuple(container_entrypoint())
"""`AlgorithmSpecification.ContainerEntrypoint` of every job in entrypoint mode."""
