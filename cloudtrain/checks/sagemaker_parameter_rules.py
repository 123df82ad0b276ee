"""Rules about hyperparameters and environment variables on SageMaker."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.checks.rule import Fault, Subject, rule
from cloudtrain.checks.sagemaker_view import image, launcher, mapping, mode, or_by_us, toolkit
from cloudtrain.compile.common import resolve_hyperparameters
from cloudtrain.compile.sagemaker.places import paths_of
from cloudtrain.distribution import SMP
from cloudtrain.launch.sagemaker_container import arrives_intact
from cloudtrain.plans import Level

_OVERWRITTEN = {
    "pytorch": ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
    "tensorflow": (),
    "generic": (),
}
"""What each toolkit writes over the job's own variables: sagemaker-pytorch-training 3.0.0, training.py."""

_ALWAYS = ("CURRENT_HOST", "SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN")
"""What SageMaker and all toolkits set."""


@rule("SM601", Level.ERROR)
def broken_by_shell(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter does not survive the shell of the image's toolkit.

    Up to sagemaker-training 5.1.2, which all of AWS's images hold, the toolkit joins the script's arguments with
    blanks and hands them to `/bin/sh`: text with blanks is split, `*` becomes file names, quotes vanish, an empty text
    is lost, and what stands behind a `;` is executed (aws/sagemaker-training-toolkit, issue 128).
    """
    found = image(subject)
    if mode(subject) != "toolkit" or found is None or found.toolkit is None:
        return
    parameters = resolve_hyperparameters(subject.job, paths_of(subject.job))
    for name, value in parameters.items():
        if not arrives_intact(value, found.toolkit, script=subject.job.entry_point or "train.py"):
            yield Fault(
                f"the shell of toolkit {found.toolkit} would break `{name}`: `{value!r}`",
                or_by_us(subject, f"write it into a file in the source folder, and give `{name}` the file's name"),
                ("hyperparameters", name),
            )


@rule("SM602", Level.ERROR)
def reserved_parameter(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter has a name that tells the launcher what to do.

    Names that begin with `sagemaker_` and `cloudtrain_` are read by the toolkit and by cloudtrain's launcher, and do
    not reach the script; some would change how the job is started. `mp_parameters` holds those of `smp`.
    """
    for name in subject.job.hyperparameters:
        if name.startswith(("sagemaker_", "cloudtrain_")):
            better = name.partition("_")[2] or "value"
            yield Fault(f"`{name}` does not reach the script", f"call it `{better}`", ("hyperparameters", name))
        elif name == "mp_parameters" and isinstance(subject.job.distribution, SMP):
            message = "`mp_parameters` are overwritten by `distribution.parameters`"
            yield Fault(message, "write them under `distribution.parameters`", ("hyperparameters", name))


@rule("SM603", Level.WARNING)
def overwritten_variable(subject: Subject) -> Iterator[Fault]:
    """An environment variable is overwritten before the script starts.

    The PyTorch toolkit writes its own `NCCL_DEBUG=WARN`, `NCCL_SOCKET_IFNAME` and `NCCL_IB_DISABLE=1` over what the
    job says (sagemaker-pytorch-training 3.0.0), torchrun's start sets `NCCL_PROTO=simple`, and SageMaker sets the
    job's name and host. cloudtrain's own launcher leaves NCCL's variables as the job says them.
    """
    names = list(_ALWAYS)
    if mode(subject) == "toolkit":
        names += _OVERWRITTEN[toolkit(subject)]
        names += ["NCCL_PROTO"] if toolkit(subject) == "pytorch" and launcher(subject.job) == "torchrun" else []
    for name in mapping(subject, "Environment"):
        if name in names:
            hint = f'set it inside the script, before NCCL starts: `os.environ["{name}"] = ...`'
            if name in _ALWAYS:
                hint = "remove it"
            path = ("environment", "variables", name)
            yield Fault(f"`{name}` is overwritten before the script starts", hint, path)


@rule("SM604", Level.WARNING)
def shell_mode_arguments(subject: Subject) -> Iterator[Fault]:
    """The job passes hyperparameters to an image's own entry point, which gets no command line.

    Without `entry_point` and `command` the image runs by itself. It finds the hyperparameters, as text, in
    `/opt/ml/input/config/hyperparameters.json`: lists and mappings as Python writes them.
    """
    if mode(subject) != "image":
        return
    for name, value in subject.job.hyperparameters.items():
        if isinstance(value, list | dict):
            message = f"the image gets `{name}` as the text `{value}`"
            yield Fault(message, "write it as the image's algorithm expects it, as text", ("hyperparameters", name))
