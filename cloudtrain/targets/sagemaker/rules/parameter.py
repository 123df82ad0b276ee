"""Rules about hyperparameters and environment variables on SageMaker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cloudtrain.core.distribution import SMP
from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.common.compiling import hyperparameter_argv, resolve_hyperparameters
from cloudtrain.targets.sagemaker.catalogue.image_data import numbers
from cloudtrain.targets.sagemaker.compile.places import paths_of
from cloudtrain.targets.sagemaker.launch.job import arrives_intact, shell_tokens
from cloudtrain.targets.sagemaker.launch.shell import uses_shell
from cloudtrain.targets.sagemaker.rules.view import add_entrypoint_hint, image, launcher, mapping, mode, toolkit

_OVERWRITTEN = {
    "pytorch": ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
    "tensorflow": (),
    "generic": (),
}
"""Variables of the job that each toolkit overwrites: sagemaker-pytorch-training 3.0.0, training.py."""

_NEWEST = "5.1.4"
"""The sagemaker-training version assumed in a user's own image."""

_ALWAYS = ("CURRENT_HOST", "SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN")
"""Variables that SageMaker and all toolkits set."""


@rule("SM601", Level.ERROR)
def broken_by_shell(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter does not survive the shell of the image's toolkit.

    Up to sagemaker-training 5.1.2, which all of AWS's images contain, the toolkit joins the script's arguments with
    blanks and passes them to `/bin/sh`. Text with blanks is split, `*` becomes file names, quotes vanish, an empty text
    is lost, and text after a `;` is executed as a command (aws/sagemaker-training-toolkit, issue 128).
    """
    found = image(subject)
    if mode(subject) != "toolkit" or found is None or found.toolkit is None:
        return
    parameters = resolve_hyperparameters(subject.effective, paths_of(subject.job))
    for name, value in parameters.items():
        if not arrives_intact(value, found.toolkit, script=subject.job.entry_point or "train.py"):
            yield Fault(
                f"the shell of toolkit {found.toolkit} would break `{name}`: `{value!r}`",
                add_entrypoint_hint(
                    subject, f"write it into a file in the source folder, and give `{name}` the file's name"
                ),
                ("hyperparameters", name),
            )


@rule("SM606", Level.ERROR)
def taken_by_torchrun(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter's name looks like an abbreviated option of torchrun.

    torchrun parses every word of its command line, even after the script. It stops at a word that could abbreviate
    several of its options: `--log`, `--run`, `--max`, `--node`, `--local`, `--start`, `--master`, `--rdzv` ("ambiguous
    option", torch 2.13 on Python 3.11). If cloudtrain itself starts torchrun, it writes `--` before such a script; the
    image's toolkit does not.
    """
    if mode(subject) != "toolkit" or launcher(subject) != "torchrun":
        return
    found = image(subject)
    dashes = found is None or found.engine[0] != "pytorch" or numbers(found.engine[1]) >= (2,)
    for name, value in resolve_hyperparameters(subject.effective, paths_of(subject.job)).items():
        for word in misread(hyperparameter_argv({name: value}), dashes=dashes):
            better = f"call it `{name}_value`" if word == f"--{name}" else f"write another value for `{name}`"
            message = f"torchrun takes `{word.removeprefix('--')}` for its own option, and stops"
            yield Fault(message, add_entrypoint_hint(subject, better), ("hyperparameters", name))


@rule("SM605", Level.ERROR)
def options_broken_by_shell(subject: Subject) -> Iterator[Fault]:
    """The options for mpirun would be changed before mpirun gets them.

    The toolkit splits the options at blanks and ignores quotes. Up to sagemaker-training 5.1.2 it passes mpirun's whole
    command line to `/bin/sh`, which executes text after a `;` and in `$(...)`. Newer toolkits and cloudtrain's own
    launcher start mpirun without a shell, so that mpirun would run `;` as the program.
    """
    distribution = subject.effective.distribution
    field = "mpi_options" if distribution.type in ("smddp", "smp") else "options"
    options = getattr(distribution, field, "")
    if launcher(subject) != "mpirun" or not options or mode(subject) == "image":
        return
    if not _options_arrive(subject, options):
        yield Fault(
            f"the container would not read `{field}` as it is written: `{options}`",
            "write plain words without quotes; put a value with blanks into `environment.variables`",
            ("distribution", field),
        )


def _options_arrive(subject: Subject, options: str) -> bool:
    try:
        intended = shlex.split(options)
        lexer = shlex.shlex(options, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        acts = any(set(word) <= set(";&|<>()") for word in lexer) or "`" in options or "$(" in options
    except ValueError:
        return False
    if acts or mode(subject) == "entrypoint":
        return not acts
    found, words = image(subject), options.split()
    version = found.toolkit if found and found.toolkit else _NEWEST
    if toolkit(subject) != "generic" and uses_shell(version):
        return shell_tokens(words, version) == tuple(intended)
    return words == intended and "$" not in options


@rule("SM602", Level.ERROR)
def reserved_parameter(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter has a name that is reserved for the launcher.

    The toolkit and cloudtrain's launcher read hyperparameters that begin with `sagemaker_` and `cloudtrain_`, and do
    not pass them to the script. Some would change how the job starts. `mp_parameters` is reserved for `smp`.
    """
    for name in subject.effective.hyperparameters:
        if name.startswith(("sagemaker_", "cloudtrain_")):
            better = name.partition("_")[2] or "value"
            yield Fault(f"`{name}` does not reach the script", f"call it `{better}`", ("hyperparameters", name))
        elif name == "mp_parameters" and isinstance(subject.effective.distribution, SMP):
            message = "`mp_parameters` are overwritten by `distribution.parameters`"
            yield Fault(message, "write them under `distribution.parameters`", ("hyperparameters", name))


@rule("SM603", Level.WARNING)
def overwritten_variable(subject: Subject) -> Iterator[Fault]:
    """An environment variable is overwritten before the script starts.

    The PyTorch toolkit overwrites `NCCL_DEBUG` (with `WARN`), `NCCL_SOCKET_IFNAME` and `NCCL_IB_DISABLE` (with `1`)
    (sagemaker-pytorch-training 3.0.0). For torchrun, the toolkit sets `NCCL_PROTO=simple`. SageMaker sets the variables
    with the job's name and host. cloudtrain's own launcher keeps the job's NCCL variables.
    """
    names = list(_ALWAYS)
    if mode(subject) == "toolkit":
        names += _OVERWRITTEN[toolkit(subject)]
        names += ["NCCL_PROTO"] if toolkit(subject) == "pytorch" and launcher(subject) == "torchrun" else []
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

    Without `entry_point` and `command`, the image's own entry point runs. It must read the hyperparameters from
    `/opt/ml/input/config/hyperparameters.json`. All values are text, and lists and mappings are in Python's notation.
    """
    if mode(subject) != "image":
        return
    for name, value in subject.job.hyperparameters.items():
        if isinstance(value, list | dict):
            message = f"the image gets `{name}` as the text `{value}`"
            yield Fault(message, "write it as the image's algorithm expects it, as text", ("hyperparameters", name))
