"""Parsers of other tools' launch lines: torchrun, accelerate, deepspeed, mpirun, python."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.adoption.expansion import Open
from cloudtrain.documents.document import Unreadable, load_table, read_document, read_text
from cloudtrain.errors import UsageError
from cloudtrain.system.plugins import DEFAULT_TARGET


def _load_options() -> dict[str, dict[str, tuple[str, ...]]]:
    options = {}
    for tool, kinds in load_table(__file__, "launchers.toml").items():
        options[tool] = {kind: tuple(words.split()) for kind, words in kinds.items()}
    return options


OPTIONS = _load_options()
"""Each tool's options by their kinds, from the table `launchers.toml`."""

Options = dict[str, list[str]]
"""The values of each option on a line, by the option's name with hyphens."""


@dataclass
class TrainingLaunch:
    """The training that a launch line starts: its program, processes, machines and settings."""

    tool: str
    program: list[str] = field(default_factory=list)
    """The script and its arguments; after `-m` a module and its arguments."""
    is_module: bool = False
    is_command: bool = False
    """Whether the program is a command of its own, not a Python script."""
    distribution: dict[str, Any] = field(default_factory=dict)
    instances: int = 1
    processes: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """Maps each option that no job can express to the reason."""
    unknown: set[str] = field(default_factory=set)
    """The fields of the job whose values the line leaves to a running shell."""
    name: str | None = None
    gpus: int | None = None
    max_runtime: int | None = None
    source_dir: str | None = None
    folder: str = "."
    """The folder in which relative paths of the line start, and then those of the code."""
    image: dict[str, str] | None = None
    """The container image by target."""
    setup: list[str] = field(default_factory=list)
    """Lines before the launch line that prepare the shell."""
    srun: dict[str, str] | None = None
    """The options of `srun` by their long names; None if `srun` does not start the program."""
    target: str = DEFAULT_TARGET
    """The target that `settings` belongs to."""
    settings: dict[str, Any] = field(default_factory=dict)
    settings_head: tuple[str, ...] = ()


def read_launch(words: Sequence[str], folder: str) -> TrainingLaunch:
    """Return the training that the words of a command start. Relative paths of files start in
    `folder`."""
    tool = tool_of(words)
    assert tool is not None, "the caller has looked"
    name, skip = tool
    launch = TrainingLaunch(name, folder=folder)
    _READERS[name](launch, words[skip:])
    if name != "framework":
        _settle_python(launch, words)
    if not launch.program:
        raise cannot_adopt(f"the `{name}` line names no script", "add the script and its arguments")
    return launch


def _settle_python(launch: TrainingLaunch, words: Sequence[str]) -> None:
    """Keep the interpreter that a launch line names, or that is beside its launcher."""
    program = words[0]
    folder, name = os.path.split(program)
    is_python = name.startswith("python")
    options = words[1 : 1 + _python_options(words[1:])] if is_python else []
    shown = " ".join(option for option in options if not re.fullmatch("-[uB]+", option))
    if shown:
        launch.lost[shown[:80]] = (
            "the job starts Python without these options: set a variable such as PYTHONWARNINGS "
            "where Python has one"
        )
    if program in ("python", "python3") or not (folder or is_python):
        return
    python = program if is_python else f"{folder}/python"
    if isinstance(program, Open) or (folder and not os.path.isabs(python)):
        launch.lost[program[:80]] = "write the interpreter's absolute path as the setting `python`"
    else:
        launch.settings["python"] = python


def tool_of(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the name of a command's launcher, and how many words name it; None if cloudtrain does
    not know the launcher, or if Python starts no script."""
    if not words:
        return None
    first = os.path.basename(words[0])
    if first == "mpiexec":
        return "mpirun", 1
    if first in ("torchrun", "deepspeed", "mpirun", "horovodrun"):
        return first, 1
    if list(words[1:2]) == ["train"] and first in OPTIONS["frameworks"]["commands"]:
        return "framework", 0
    if first == "accelerate" and list(words[1:2]) == ["launch"]:
        return first, 2
    if not re.fullmatch(r"python[0-9.]*", first):
        return None

    skip = 1 + _python_options(words[1:])
    option = "".join(words[skip : skip + 1])
    if option == "-m":
        module = "".join(words[skip + 1 : skip + 2])
        if module in _MODULES:
            return _MODULES[module], skip + 2
        is_script = module not in OPTIONS["python"]["tools"]
    else:
        is_script = not option.startswith("-")
    return ("python", skip) if is_script else None


_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""The launchers that Python starts as modules."""


def _python_options(words: Sequence[str]) -> int:
    """Return how many words are options of Python after which a script or a module follows."""
    count = 0
    while count < len(words) and re.fullmatch(r"-[uOBEIsW]+|-X|-W\S+|-X\S+", words[count]):
        count += 2 if words[count] in ("-W", "-X") else 1
    return count


def _take_program(launch: TrainingLaunch, words: Sequence[str]) -> Options:
    """Set the program that the words after a launcher start. Return the launcher's options, whose
    names get hyphens for underscores."""
    options: Options = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word, equals, value = rest.pop(0).partition("=")
        name = word.replace("_", "-")
        takes_next = not equals and name not in OPTIONS[launch.tool]["flags"]
        if takes_next and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        options.setdefault(name, []).append(value)
    if rest[:1] == ["--"]:
        del rest[0]
    launch.program = rest
    launch.is_module = "-m" in options or "--module" in options
    launch.is_command = "--no-python" in options
    return options


def _last(options: Options, name: str, default: str) -> str:
    """Return the value of an option, `default` if the line does not have it. Of an option that is
    there twice, launchers take the last value."""
    return options.get(name, [default])[-1]


def _count(options: Options, name: str) -> int | None:
    """Return the value of an option; None unless it is a positive number."""
    value = _last(options, name, "")
    if value.isdecimal():
        return int(value) or None
    return None


def _lose_unknown(launch: TrainingLaunch, options: Options) -> None:
    """Note the options as lost that the table of launchers does not list."""
    known = {*OPTIONS[launch.tool]["known"], *launch.lost}
    for name in options:
        if name not in known:
            launch.lost[name] = f"a job has no field for this option of {launch.tool}"


# A reader fills the launch with what the words after a launcher start.


def _torchrun(launch: TrainingLaunch, words: Sequence[str]) -> None:
    options = _take_program(launch, words)
    launch.distribution = {"type": "torch"}

    nodes = _last(options, "--nnodes", "1")
    low, _, most = nodes.rpartition(":")
    if most.isdecimal():
        launch.instances = int(most)
    if low not in ("", most):
        launch.lost["--nnodes"] = (
            "a job has a fixed number of instances, so the larger number was used"
        )
    elif not most.isdecimal():
        launch.unknown.add("resources.instance_count")
        launch.lost["--nnodes"] = _known_later(nodes, "resources.instance_count")

    count = _last(options, "--nproc-per-node", "1")
    if count.isdecimal():
        launch.processes = int(count)
    elif count not in ("gpu", "auto"):
        launch.lost["--nproc-per-node"] = _known_later(count, "distribution.processes_per_instance")

    _lose_unknown(launch, options)
    if "--max-restarts" in options:
        launch.lost["--max-restarts"] = (
            "it is a setting of the local target: `cloudtrain submit --max-restarts N`"
        )


def _known_later(text: str, name: str) -> str:
    """Return why the value `text`, such as `$NODES`, is lost. `name` is the field of the job."""
    return f"`{text}` is known only at run time: set `{name}`"


def _lose_unknown_counts(
    launch: TrainingLaunch, options: Options, fields: Mapping[str, str]
) -> None:
    """Note the numbers as lost that only a running shell knows. `fields` maps options to fields of
    the job."""
    for name, field_name in fields.items():
        value = _last(options, name, "")
        if value and not value.isdecimal():
            launch.unknown.add(field_name)
            launch.lost[name] = _known_later(value, field_name)


def _torch_launch(launch: TrainingLaunch, words: Sequence[str]) -> None:
    launch.tool = "torchrun"
    _torchrun(launch, words)
    if "--use-env" not in words and "--use_env" not in words:
        launch.lost["--local-rank"] = _LOCAL_RANK.format("torch.distributed.launch")


_LOCAL_RANK = (
    "{} passes the argument to the script, cloudtrain does not: let the script read the variable "
    "LOCAL_RANK"
)

_ACCELERATE_OWN = re.compile(
    r"--(use-|fsdp|deepspeed|zero|offload|dynamo|megatron|parallelism|cpu$|tpu|debug|downcast|"
    r"enable-cpu)"
)
"""Options that accelerate passes to the script in variables."""

_SET_BY_ACCELERATE = (
    "accelerate passes this to the script in its own variables: set these, or use accelerate's API"
)
_GPU_IDS = "cloudtrain uses all GPUs of an instance, or `processes_per_instance` of them"

_ACCELERATE_COUNTS = {
    "--num-machines": "resources.instance_count",
    "--num-processes": "distribution.processes_per_instance",
}


def _accelerate(launch: TrainingLaunch, words: Sequence[str]) -> None:
    options = _take_program(launch, words)
    config = _accelerate_config(launch, options)

    for name in _ACCELERATE_COUNTS:
        if name in options:  # the line takes precedence, also if only a running shell knows it
            config.pop(name.strip("-").replace("-", "_"), None)
    machines = _count(options, "--num-machines") or config.get("num_machines")
    if machines:
        launch.instances = int(machines)
    total = _count(options, "--num-processes") or config.get("num_processes")
    if total:
        launch.processes = max(1, int(total) // launch.instances)
    _lose_unknown_counts(launch, options, _ACCELERATE_COUNTS)
    if total and int(total) % launch.instances:
        launch.lost["--num-processes"] = (
            f"{total} processes cannot be shared out evenly among {launch.instances} instances"
        )

    threads = _count(options, "--num-cpu-threads-per-process")
    if threads:  # accelerate sets the variable, too
        launch.variables["OMP_NUM_THREADS"] = str(threads)
    gpus = _last(options, "--gpu-ids", config.get("gpu_ids") or "all")
    if gpus != "all":
        launch.lost["--gpu-ids"] = f"{_GPU_IDS}, not {gpus}"
    precision = _last(options, "--mixed-precision", config.get("mixed_precision") or "no")
    if precision != "no":
        launch.variables["ACCELERATE_MIXED_PRECISION"] = str(precision)

    distributed_type = str(config.get("distributed_type", "")).upper()
    launch.distribution = {"type": "torch"}
    if "--use-deepspeed" in options or distributed_type == "DEEPSPEED":
        launch.distribution = {"type": "deepspeed"}
    if distributed_type == "NO" and launch.processes in (None, 1):
        launch.distribution = {}
        launch.processes = None

    # what accelerate passes to the script in its own variables
    for name in OPTIONS["accelerate"]["own_variables"]:
        value = str(config.get(name) or "no")
        if value.lower() != "no":
            launch.lost[name] = _SET_BY_ACCELERATE
    needs_config = distributed_type in ("FSDP", "MEGATRON_LM", "DEEPSPEED")
    # a table of that name is lost by itself
    if needs_config and not config.get(f"{distributed_type.lower()}_config"):
        launch.lost["distributed_type"] = _SET_BY_ACCELERATE
    for name in options:
        if _ACCELERATE_OWN.match(name):
            launch.lost[name] = _SET_BY_ACCELERATE
    _lose_unknown(launch, options)


def _accelerate_config(launch: TrainingLaunch, options: Options) -> dict[str, Any]:
    """Return the settings in the file that the line names; none without a file."""
    if "--config-file" not in options:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
        default = os.path.expanduser(f"{home}/accelerate/default_config.yaml")
        if os.path.isfile(default):
            launch.lost["--config-file"] = (
                f"accelerate reads `{default}` where the line names no file: adopt the line with "
                "this option"
            )
        return {}
    name = options["--config-file"][-1]
    text = _text(launch, "--config-file", name)
    try:
        config = read_document(text, "yaml").data
    except Unreadable as error:
        hint = "name the file that `accelerate config` writes"
        raise cannot_adopt(f"`{name}` is not YAML: {error.problem.message}", hint) from None
    if not isinstance(config, dict):
        return {}
    if "SAGEMAKER" in str(config.get("compute_environment", "")):
        hint = (
            "run the line, then adopt the job that it has created: `cloudtrain adopt "
            "sagemaker://REGION/NAME`"
        )
        raise cannot_adopt(f"`{name}` starts the script on SageMaker, not on this machine", hint)
    return config


_DEEPSPEED_COUNTS = {
    "--num-nodes": "resources.instance_count",
    "--num-gpus": "resources.gpus_per_instance",
}


def _deepspeed(launch: TrainingLaunch, words: Sequence[str]) -> None:
    options = _take_program(launch, words)
    launch.distribution = {"type": "deepspeed"}

    hostfiles = options.get("--hostfile") or options.get("-H")
    slots = []
    if hostfiles:
        slots = _slots_in(_text(launch, "--hostfile", hostfiles[-1]))
    launch.instances = _count(options, "--num-nodes") or len(slots) or 1
    launch.processes = _count(options, "--num-gpus")
    if slots and not launch.processes:
        launch.processes = slots[0]
    if not {"--no-local-rank", "--no-python"} & options.keys():
        launch.lost["--local_rank"] = _LOCAL_RANK.format("deepspeed")

    _lose_unknown_counts(launch, options, _DEEPSPEED_COUNTS)
    if len(set(slots)) > 1:
        launch.lost["--hostfile"] = (
            "the hosts have different numbers of slots, but the instances of a job are alike"
        )
    for option in ("--include", "-i", "--exclude", "-e"):
        if option in options:
            launch.lost[option] = _GPU_IDS
    _lose_unknown(launch, options)


def _slots_in(text: str) -> list[int]:
    """Return the slots of each host in a host file. A host without a number has one slot."""
    slots = []
    for line in text.splitlines():
        host = line.split("#")[0]
        if host.strip():
            match = re.search(r"slots=(\d+)", host)
            slots.append(int(match[1]) if match else 1)
    return slots


def _mpirun(launch: TrainingLaunch, words: Sequence[str]) -> None:
    launch.distribution["type"] = "mpi" if launch.tool == "mpirun" else "horovod"
    rest = list(words)
    passed_on = list[str]()
    total: int | None = None
    slots = list[int]()
    hosts = Counter[str]()

    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name = "--" + word.lstrip("-")  # mpirun takes one hyphen or two
        if name in ("--np", "--n", "--c"):
            total = _take_count(rest)
        elif name in ("--npernode", "--N"):
            launch.processes = _take_count(rest)
        elif name in ("--H", "--host") and rest:
            text = rest.pop(0)
            if isinstance(text, Open):
                launch.lost[word] = _known_later(text, "resources.instance_count")
                continue
            if launch.tool == "horovodrun":  # mpirun takes all lists, this one the last
                hosts.clear()
            for host in text.split(","):
                host, _, count = host.partition(":")
                hosts[host] += int(count or 1)
            slots = [*hosts.values()]
        elif name in ("--hostfile", "--machinefile") and rest:
            slots = _slots_in(_text(launch, name, rest.pop(0)))
        elif name == "--x" and rest:
            passed_on += ["-x", rest.pop(0)]
        elif name == "--mca" and len(rest) > 1:
            passed_on += ["--mca", rest.pop(0), rest.pop(0)]
        elif name not in OPTIONS["mpirun"]["known"]:
            option = word
            takes_value = "=" not in word and name not in OPTIONS["mpirun"]["flags"]
            if takes_value and rest and not rest[0].startswith("-"):
                option = f"{word} {rest.pop(0)}".strip()
            launch.lost[word] = f"write `{option}` into `distribution.options` where it is needed"

    _share_processes(launch, total, slots)
    if passed_on:
        launch.distribution["options"] = shlex.join(passed_on)

    if rest and re.fullmatch(r"python[0-9.]*", os.path.basename(rest[0])):
        _settle_python(launch, rest)
        _python(launch, rest[1 + _python_options(rest[1:]) :])
    else:
        launch.is_command = True
        launch.program = rest


def _share_processes(launch: TrainingLaunch, total: int | None, slots: Sequence[int]) -> None:
    """Set the instances and the processes on each, from the `total` of the processes and the
    `slots` of each host."""
    if slots:
        launch.instances = len(slots)
    elif total and launch.processes:
        launch.instances = total // launch.processes

    if not launch.processes:
        launch.processes = slots[0] if slots else None
        if total:
            launch.processes = total // launch.instances

    count = launch.processes
    if total and count and total != count * launch.instances:
        launch.lost["-np"] = (
            f"{total} processes are not {launch.instances} instances with {count} processes each: "
            "correct `resources` and `distribution`"
        )


def _take_count(words: list[str]) -> int | None:
    """Take the number with which the words begin; None if they begin with another word."""
    if words and words[0].isdecimal():
        return int(words.pop(0))
    return None


def _python(launch: TrainingLaunch, words: Sequence[str]) -> None:
    launch.is_module = words[:1] == ["-m"]
    launch.program = list(words[1:] if launch.is_module else words)


def _framework(launch: TrainingLaunch, words: Sequence[str]) -> None:
    launch.program = list(words)
    launch.is_command = True
    launch.lost[" ".join(words[:2])] = (
        "it starts its processes itself: the job runs it once on each instance, so adopt the "
        "torchrun or accelerate line that it runs if it has several"
    )


_READERS = {
    "framework": _framework,
    "torchrun": _torchrun,
    "launch": _torch_launch,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "mpirun": _mpirun,
    "horovodrun": _mpirun,
    "python": _python,
}


def _text(launch: TrainingLaunch, option: str, file: str) -> str:
    """Return the text of a file that an option names. A file that is not here is empty, and the
    option is lost."""
    try:
        return read_text(os.path.join(launch.folder, file))
    except (OSError, Unreadable):
        launch.lost[option] = (
            f"`{file}` cannot be read here: run this command where the file is, or write what it "
            "says into the job file"
        )
        return ""


def cannot_adopt(message: str, hint: str | None) -> UsageError:
    """Return the error for a source that contains nothing that can be adopted."""
    return UsageError(message, hint=hint, code="CT981")
