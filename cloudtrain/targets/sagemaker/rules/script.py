"""Rules about the script, and about how the training toolkit starts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from posixpath import normpath

from cloudtrain.errors import InPlace, ValuePath, quoted
from cloudtrain.job.distribution import SMP
from cloudtrain.job.syntax import names_of_library
from cloudtrain.plans.plan import Level
from cloudtrain.rules.engine import Fault, Subject, mapping_at, positive_count, rule
from cloudtrain.rules.facts import read_requirements
from cloudtrain.runtime.sagemaker_launcher.arguments import text_of
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.common.compiling import hyperparameter_argv, resolve_hyperparameters
from cloudtrain.targets.sagemaker.catalogue.images import numbers
from cloudtrain.targets.sagemaker.compile.launch import REQUIREMENTS
from cloudtrain.targets.sagemaker.compile.places import paths_of
from cloudtrain.targets.sagemaker.launch.shell import (
    arrives,
    is_plain_name,
    shell_tokens,
    uses_shell,
)
from cloudtrain.targets.sagemaker.reading import read
from cloudtrain.targets.sagemaker.request import JsonObject
from cloudtrain.targets.sagemaker.rules.distribution import (
    add_entrypoint_hint,
    is_toolkits_torchrun,
)


@rule("SM520", Level.ERROR)
def secrets_out_of_reach(subject: Subject) -> Iterator[Fault]:
    """The container cannot look up the job's secrets.

    The runtime in the bundle looks up `environment.secrets` over the network. But an image that
    runs its own entry point has no bundle, and network isolation blocks the network.
    """
    if not subject.job.environment.secrets:
        return
    message = "with network isolation the job cannot reach its secrets"
    hint = "remove `network_isolation`"
    if read(subject).start.by == "image":
        message = "the image's own entry point does not look up secrets"
        hint = "name what runs: `entry_point: train.py`"
    elif not subject.settings.network_isolation:
        return
    yield Fault(message, hint, ("environment", "secrets"))


@rule("SM521", Level.WARNING)
def secrets_left_to_the_script(subject: Subject) -> Iterator[Fault]:
    """The image's toolkit starts the script, but does not look up the job's secrets.

    cloudtrain's own launcher looks up secrets, and starts a job with secrets wherever it can. If
    only the toolkit can start the job (`smddp`, `smp`, MPI between instances), the script must call
    `runtime.load_secrets()` itself.
    """
    if not subject.job.environment.secrets:
        return
    if read(subject).start.by == "toolkit":
        yield Fault(
            "the image's toolkit starts this job, and does not look up its secrets",
            "begin the script with `from cloudtrain import runtime; runtime.load_secrets()`",
            ("environment", "secrets"),
        )


@rule("SM341", Level.ERROR)
def shell_script_under_torchrun(subject: Subject) -> Iterator[Fault]:
    """The toolkit's torchrun would start a shell script.

    The toolkit passes only Python scripts to torchrun ("Please use a python script"); cloudtrain's
    own launcher starts other scripts with `--no_python`.
    """
    script = subject.job.entry_point or ""
    if is_toolkits_torchrun(subject) and not script.endswith(".py"):
        hint = add_entrypoint_hint(subject, "name a Python script")
        yield Fault(f"the toolkit's torchrun cannot start `{script}`", hint, ("entry_point",))


@rule("SM342", Level.ERROR)
def package_under_torchrun(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `setup.py`, and the toolkit does not start packages with torchrun.

    If the code has a `setup.py`, the toolkit installs the package and runs the entry point as a
    module (`python -m`), which it does not support with torchrun. cloudtrain's own launcher starts
    such a job, except if the target sets `launch = "toolkit"` or the job needs the toolkit.
    """
    if is_toolkits_torchrun(subject) and "setup.py" in subject.tree.by_path:
        yield Fault(
            "the toolkit treats code with a `setup.py` as a package, which it cannot start with "
            "torchrun",
            add_entrypoint_hint(subject, "add `/setup.py` to `.cloudtrainignore`"),
            ("source_dir",),
        )


@rule("SM343", Level.ERROR)
def entry_point_refused(subject: Subject) -> Iterator[Fault]:
    """The toolkit refuses the name of the entry point.

    Newer toolkits accept only letters, digits and `. _ + -` (sagemaker-training 5.1.4). Older
    toolkits pass the name to a shell, which splits it at blanks and runs the text after a `;`.
    """
    script = subject.job.entry_point or ""
    name = normpath(script)
    if read(subject).start.by != "toolkit" or is_plain_name(name):
        return
    if name in subject.tree.by_path:
        better = re.sub(r"[^A-Za-z0-9._/+-]+", "_", name).lstrip("+-")
        message = f"the toolkit refuses the name `{script}`"
        yield Fault(message, f"rename it, to `{better}` for example", ("entry_point",))


@rule("SM344", Level.WARNING)
def requirements_not_installed(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `requirements.txt` that is not installed.

    The toolkit installs a `requirements.txt` even if the job does not name it. cloudtrain's own
    launcher installs only the file that `environment.requirements` names, as on every target.
    """
    if _starter_without_list(subject) == "entrypoint":
        yield Fault(
            f"`{REQUIREMENTS}` is in the bundle, and the job does not name it",
            f"write `requirements: {REQUIREMENTS}` under `environment`",
            ("environment",),
        )


@rule("SM345", Level.NOTICE)
def requirements_installed_anyway(subject: Subject) -> Iterator[Fault]:
    """The toolkit installs the bundle's `requirements.txt`, although the job does not name it.

    The other targets and cloudtrain's own launcher install only the file that
    `environment.requirements` names, so the same job would run with other packages on another
    target.
    """
    if _starter_without_list(subject) == "toolkit":
        yield Fault(
            f"the toolkit installs `{REQUIREMENTS}`, which the job does not name",
            f"write `requirements: {REQUIREMENTS}` under `environment`, so that all targets do",
            ("environment",),
        )


@rule("SM347", Level.ERROR)
def broken_requirements_installed_anyway(subject: Subject) -> Iterator[Fault]:
    """The toolkit installs the bundle's `requirements.txt`, and pip cannot read it.

    The toolkit installs this file even if the job does not name it. The job would fail on the paid
    machine. Correct the file, rename it, or leave it out with `.cloudtrainignore`.
    """
    if _starter_without_list(subject) == "toolkit":
        for problem in read_requirements(subject.tree, REQUIREMENTS).problems:
            yield Fault(problem.message, problem.hint, ("environment",))


@rule("SM346", Level.NOTICE)
def package_not_installed(subject: Subject) -> Iterator[Fault]:
    """The bundle contains a `setup.py`, but its package is not installed.

    cloudtrain's own launcher starts this job, and does not install packages. It runs the script in
    the script's folder, so the script can import the package from there. The toolkit would install
    the package and its dependencies, but it cannot start packages with torchrun.
    """
    has_list = subject.job.environment.requirements is not None
    if read(subject).start.by != "entrypoint" or has_list:
        return
    if "setup.py" in subject.tree.by_path:
        yield Fault(
            "cloudtrain's own launcher does not install the package of `setup.py`",
            "list what it needs in a file, and write `requirements: requirements.txt` under "
            "`environment`",
            ("environment", "requirements"),
        )


def _starter_without_list(subject: Subject) -> str | None:
    """Return who starts a job that does not name the `requirements.txt` in its bundle; None if it
    does, or if there is none."""
    if subject.job.environment.requirements is not None:
        return None
    return read(subject).start.by if REQUIREMENTS in subject.tree.by_path else None


# Rules about hyperparameters and environment variables on SageMaker.

_BY_PYTORCH = ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE")
"""Variables of the job that the toolkit of PyTorch overwrites: sagemaker-pytorch-training 3.0.0,
training.py."""

_ALWAYS = (
    "CURRENT_HOST",
    "SAGEMAKER_JOB_NAME",
    "SAGEMAKER_REGION",
    "TRAINING_JOB_NAME",
    "TRAINING_JOB_ARN",
)
"""Variables that SageMaker and all toolkits set."""


@rule("SM601", Level.ERROR)
def broken_by_shell(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter does not survive the shell of the image's toolkit.

    Up to sagemaker-training 5.1.2, which all of AWS's images contain, the toolkit joins the
    script's arguments with blanks and passes them to `/bin/sh`. Text with blanks is split, `*`
    becomes file names, quotes vanish, an empty text is lost, and text after a `;` is executed as a
    command (aws/sagemaker-training-toolkit, issue 128). Text with blanks that is itself in quotes,
    such as `fsdp: '"full_shard auto_wrap"'`, is meant for this shell: the script gets it without
    the quotes.
    """
    image = read(subject).image
    if image is None or image.toolkit is None:
        return
    if read(subject).start.by != "toolkit":
        return
    script = subject.job.entry_point or "train.py"
    for name, value in _parameters(subject).items():
        arrived = arrives(value, image.toolkit, script=script)
        if arrived == text_of(value):
            continue
        in_quotes = (f'"{arrived}"', f"'{arrived}'")
        if arrived and " " in arrived and value in in_quotes:
            continue  # meant for the shell
        message = f"the shell of toolkit {image.toolkit} would break `{name}`: `{value!r}`"
        hint = f"write it into a file in the source folder, and give `{name}` the file's name"
        yield Fault(message, add_entrypoint_hint(subject, hint), ("hyperparameters", name))


@rule("SM606", Level.ERROR)
def taken_by_torchrun(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter's name looks like an abbreviated option of torchrun.

    torchrun parses every word of its command line, even after the script. It stops at a word that
    could abbreviate several of its options: `--log`, `--run`, `--max`, `--node`, `--local`,
    `--start`, `--master`, `--rdzv` ("ambiguous option", torch 2.13 on Python 3.11). If cloudtrain
    itself starts torchrun, it writes `--` before such a script; the image's toolkit does not.
    """
    if not is_toolkits_torchrun(subject):
        return
    image = read(subject).image
    dashes = True
    if image is not None and image.engine[0] == "pytorch":
        dashes = numbers(image.engine[1]) >= (2,)
    for name, value in _parameters(subject).items():
        for word in misread(hyperparameter_argv({name: value}), dashes=dashes):
            better = f"write another value for `{name}`"
            if word == f"--{name}":
                better = InPlace(f"call it `{name}_value`")
            option = word.removeprefix("--")
            message = f"torchrun takes `{option}` for its own option, and stops"
            yield Fault(message, add_entrypoint_hint(subject, better), ("hyperparameters", name))


def _parameters(subject: Subject) -> JsonObject:
    """Return the script's hyperparameters, with the container's paths instead of references."""
    return resolve_hyperparameters(subject.reading.parameters, paths_of(subject.job))


@rule("SM605", Level.ERROR)
def options_broken_by_shell(subject: Subject) -> Iterator[Fault]:
    """The options for mpirun would be changed before mpirun gets them.

    The toolkit splits the options at blanks and ignores quotes. Up to sagemaker-training 5.1.2 it
    passes mpirun's whole command line to `/bin/sh`, which executes text after a `;` and in
    `$(...)`. Newer toolkits and cloudtrain's own launcher start mpirun without a shell, so that
    mpirun would run `;` as the program.
    """
    field = "mpi_options" if subject.reading.distribution.type in ("smddp", "smp") else "options"
    options = getattr(subject.reading.distribution, field, "")
    if subject.reading.launcher != "mpirun":
        return
    if read(subject).start.by == "image":
        return
    if options and not _options_arrive(subject, options):
        yield Fault(
            f"the container would not read `{field}` as it is written: `{options}`",
            "write plain words without quotes; put a value with blanks into "
            "`environment.variables`",
            ("distribution", field),
        )


def _options_arrive(subject: Subject, options: str) -> bool:
    """Return whether mpirun gets the options as a shell would read them, and nothing else runs."""
    try:
        intended = shlex.split(options)
        lexer = shlex.shlex(options, posix=True, punctuation_chars=_SHELL_OPERATORS)
        lexer.whitespace_split = True
        has_operator = any(set(word) <= set(_SHELL_OPERATORS) for word in lexer)
    except ValueError:
        return False
    if has_operator or "`" in options or "$(" in options:
        return False

    start = read(subject).start
    if start.by == "entrypoint":
        return True
    words = options.split()
    toolkit = start.container.toolkit
    if start.framework != "generic" and uses_shell(toolkit):
        return shell_tokens(words, toolkit) == tuple(intended)
    return words == intended and "$" not in options


_SHELL_OPERATORS = ";&|<>()"


@rule("SM602", Level.ERROR)
def reserved_parameter(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter has a name that is reserved for the launcher.

    The toolkit and cloudtrain's launcher read hyperparameters that begin with `sagemaker_` and
    `cloudtrain_`, and do not pass them to the script. Some would change how the job starts.
    `mp_parameters` is reserved for `smp`. Names for the toolkits of special images, such as the
    Training Compiler's, belong into `sagemaker_overrides`.
    """
    for name in subject.reading.parameters:
        path = ("hyperparameters", name)
        if name.startswith(("sagemaker_", "cloudtrain_")):
            better = name.partition("_")[2] or "value"
            yield Fault(f"`{name}` does not reach the script", InPlace(f"call it `{better}`"), path)
        elif name == "mp_parameters" and isinstance(subject.reading.distribution, SMP):
            yield Fault(
                "`mp_parameters` are overwritten by `distribution.parameters`",
                "write them under `distribution.parameters`",
                path,
            )


_SMP_MODULES = {1: "smdistributed.modelparallel", 2: "torch.sagemaker"}

_SMP_APPLIED_BY = {
    1: {
        "partitions": ("DistributedModel",),
        "pipeline_parallel_degree": ("DistributedModel",),
        "microbatches": ("step",),
        "tensor_parallel_degree": ("tensor_parallelism", "set_tensor_parallelism", "nn"),
        "fp16": ("DistributedOptimizer",),
        "bf16": ("DistributedOptimizer",),
        "shard_optimizer_state": ("DistributedOptimizer",),
        "sharded_data_parallel_degree": ("DistributedOptimizer",),
        "prescaled_batch": ("rdp_rank", "rdp_size"),
        "offload_activations": ("set_activation_checkpointing", "checkpoint"),
        "delayed_parameter_initialization": ("delay_param_initialization", "model_creation"),
    },
    2: {
        "hybrid_shard_degree": ("FSDP", "FullyShardedDataParallel", "fully_shard"),
        "tensor_parallel_degree": ("transform",),
        "expert_parallel_degree": ("transform",),
        "context_parallel_degree": ("transform",),
        "sm_activation_offloading": ("offload_wrapper",),
    },
}
"""The names that apply a parameter of each version of SMP, one of which a script must use (AWS's
developer guide: model parallel library, and its examples for GPT-2 and Llama)."""


@rule("SM335", Level.WARNING)
def smp_parameters_ignored(subject: Subject) -> Iterator[Fault]:
    """The script does not apply a parameter of SMP.

    SMP only acts through the script: it calls `smp.init()`, and marks what is to be parallel, such
    as layers with `smp.tensor_parallelism()`. Otherwise the parameter is ignored, and every process
    keeps a whole model. The rule reads the script and its own modules. It is silent if they use a
    `Trainer` of another library, which may apply SMP itself, or run code that they do not show.
    """
    smp = subject.reading.distribution
    if not isinstance(smp, SMP) or not subject.syntax.words:
        return
    module = _SMP_MODULES[smp.version]
    names = names_of_library(subject.syntax.words, module)
    active = [name for name, value in smp.parameters.items() if _is_active(value)]
    if names is None:
        return

    path: ValuePath = ("distribution", "parameters")
    script = f"`{subject.script}`"
    if active and "init" not in names:
        missing = "calls `init()` of" if module in names else "imports"
        message = f"{script} never {missing} `{module}`, so it ignores {quoted(active)}"
        hint = "use the library in the script, or write `distribution: {type: torch}`"
        yield Fault(message, hint, path)
        return
    for name in active:
        appliers = _SMP_APPLIED_BY[smp.version].get(name)
        if appliers and names.isdisjoint(appliers):
            message = f"{script} never uses `{appliers[0]}`, so it ignores `{name}`"
            hint = f"remove `{name}`, or apply it in the script with `{module}`"
            yield Fault(message, hint, (*path, name))


def _is_active(value: object) -> bool:
    """Return whether the value of a parameter of SMP asks the script for something: a flag that is
    set, or a number of parts."""
    return value is True or (positive_count(value) or 0) > 1


@rule("SM603", Level.WARNING)
def overwritten_variable(subject: Subject) -> Iterator[Fault]:
    """An environment variable is overwritten before the script starts.

    The PyTorch toolkit overwrites `NCCL_DEBUG` (with `WARN`), `NCCL_SOCKET_IFNAME` and
    `NCCL_IB_DISABLE` (with `1`) (sagemaker-pytorch-training 3.0.0). For torchrun, the toolkit sets
    `NCCL_PROTO=simple`. SageMaker sets the variables with the job's name and host. cloudtrain's own
    launcher keeps the job's NCCL variables.
    """
    overwritten: list[str] = [*_ALWAYS]
    start = read(subject).start
    if start.by == "toolkit" and start.framework == "pytorch":
        overwritten += _BY_PYTORCH
        if subject.reading.launcher == "torchrun":
            overwritten.append("NCCL_PROTO")
    for name in mapping_at(subject.plan.request, "Environment"):
        if name in overwritten:
            hint = f'set it inside the script, before NCCL starts: `os.environ["{name}"] = ...`'
            if name in _ALWAYS:
                hint = "remove it"
            path = ("environment", "variables", name)
            yield Fault(f"`{name}` is overwritten before the script starts", hint, path)


@rule("SM604", Level.WARNING)
def shell_mode_arguments(subject: Subject) -> Iterator[Fault]:
    """The job passes hyperparameters to an image's own entry point, which gets no command line.

    Without `entry_point` and `command`, the image's own entry point runs. It must read the
    hyperparameters from `/opt/ml/input/config/hyperparameters.json`. All values are text, and lists
    and mappings are in Python's notation.
    """
    if read(subject).start.by != "image":
        return
    hint = "write it as the image's algorithm expects it, as text"
    for name, value in subject.job.hyperparameters.items():
        if isinstance(value, list | dict):
            message = f"the image gets `{name}` as the text `{value}`"
            yield Fault(message, hint, ("hyperparameters", name))
