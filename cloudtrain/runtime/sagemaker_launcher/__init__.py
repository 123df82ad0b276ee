"""Starts a job's processes inside a SageMaker container, instead of the image's training toolkit.

In entrypoint mode, a job's bundle contains this package, and the container's entrypoint starts it.
The launcher needs only a shell and Python 3.7 in the image, so it works where the toolkit is
missing or old. Hyperparameters reach the script unchanged (toolkits up to 5.1.2 pass them through a
shell), torchrun starts on every image, and a failed process ends the job at once.

    arguments       hyperparameters as JSON and as argv
    spec            the hyperparameter `cloudtrain_launch`: the script or command, and its launcher
    variables       instance groups, families with fast networks, and values as texts
    plan            pure function: configuration and machine -> processes, argv and environment
    machine         the container's hardware: CPUs, GPUs, Neuron cores, EFA
    network         waiting for the master; reporting the chief's end to other hosts
    children        starting, signalling and ending the processes
    requirements    installing the requirements file with pip
    failure         the reason of a failure, for `FailureReason`
    config          the files that SageMaker writes into every container
    __main__        the sequence of all steps
"""

from __future__ import annotations

ROOT = "/opt/ml"
"""The folder where SageMaker keeps configuration, data and results in every container."""

LAUNCH_KEY = "cloudtrain_launch"
"""The hyperparameter that says what to start. It does not reach the script."""

CODE_CHANNEL = "code"
"""The channel that holds `sourcedir.tar.gz`, in File mode. The script does not see it."""

CODE_INPUT = "code"
"""The input of a processing job that holds it. The script does not see it as an input."""

TRN2_CORES = 64
"""Logical Neuron cores of ml.trn2.48xlarge; `neuron-ls` counts the physical ones, as
sagemaker-training 5.1.4 knows."""

FIND_PYTHON = "$(command -v python3||command -v python)"
"""Words of a shell line that find the image's own Python."""
_LINE = (
    "cd {root}&&P={python}||{{ echo 'no Python in the image'>output/failure;exit 127;}};"
    '"$P" -Wi -m tarfile -e input/data/code/sourcedir.tar.gz code&&'
    'cd code&&exec "$P" -m cloudtrain.runtime.sagemaker_launcher {root}'
)


def container_entrypoint(root: str = ROOT, python: str | None = None) -> list[str]:
    """Return the argv that unpacks the bundle and starts the launcher. It uses the POSIX shell, and
    Python instead of tar, which slim images lack. For emulation, `root` and `python` replace the
    container's paths.

    SageMaker allows at most 256 characters in each argument, and no line breaks (botocore:
    TrainingContainerEntrypointString).
    """
    return ["/bin/sh", "-c", shell_line(_LINE, root, python)]


def shell_line(template: str, root: str, python: str | None) -> str:
    """Fill in the root folder and the interpreter; default: the image's own Python."""
    from shlex import quote

    words = quote(python) if python else FIND_PYTHON
    return template.format(root=quote(root), python=words)


CONTAINER_ENTRYPOINT = tuple(container_entrypoint())
"""`AlgorithmSpecification.ContainerEntrypoint` of every job in entrypoint mode."""
