"""Parsers of other tools' launch lines: torchrun, accelerate, deepspeed, mpirun, torchx, python."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Unreadable, load_toml, read_text
from cloudtrain.errors import UsageError
from cloudtrain.system.plugins import DEFAULT_TARGET

OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    tool: {kind: tuple(words.split()) for kind, words in kinds.items()}
    for tool, kinds in load_toml(
        Path(__file__).with_name("launchers.toml").read_text("utf-8")
    ).items()
}
"""Each tool's options by their kinds, from the table `launchers.toml`."""


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
    name: str | None = None
    gpus: int | None = None
    gpu: str | None = None
    max_runtime: int | None = None
    source_dir: str | None = None
    folder: str = "."
    """The folder in which relative paths of the code start."""
    spot: bool = False
    image: str | dict[str, str] | None = None
    """The container image, for all targets or by target."""
    setup: list[str] = field(default_factory=list)
    """Lines before the launch line that prepare the shell."""
    notes: list[str] = field(default_factory=list)
    """Comments for the top of the job file."""
    srun: dict[str, str] | None = None
    """The options of `srun` by their long names; None if `srun` does not start the program."""
    target: str = DEFAULT_TARGET
    """The target that `settings` belongs to."""
    settings: dict[str, Any] = field(default_factory=dict)
    settings_head: tuple[str, ...] = ()


def read_launch(words: Sequence[str], folder: str = ".") -> TrainingLaunch:
    """Return the training that the words of a command start. Relative paths of files start in
    `folder`."""
    tool = tool_of(words)
    assert tool is not None, "the caller has looked"
    name, skip = tool
    launch = _READERS[name](words[skip:], folder)
    if not launch.program:
        raise _wrong(f"the `{name}` line names no script", "add the script and its arguments")
    return launch


def tool_of(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the name of a command's launcher, and how many words name it; None if cloudtrain does
    not know the launcher, or if Python starts no script."""
    first = os.path.basename(words[0]) if words else ""
    if first in ("torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun"):
        return ("mpirun" if first == "mpiexec" else first), 1
    if first == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate", 2
    if first == "torchx" and words[1:2] == ["run"]:
        return "torchx", 2
    if re.fullmatch(r"python[0-9.]*", first):
        skip = 1 + _python_options(words[1:])
        option = words[skip] if skip < len(words) else ""
        module = words[skip + 1] if option == "-m" and skip + 1 < len(words) else ""
        if module in ("torch.distributed.run", "torch.distributed.launch"):
            return module.rpartition(".")[2].replace("run", "torchrun"), skip + 2
        if module in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
            return module.partition(".")[0], skip + 2
        is_tool = module in OPTIONS["python"]["tools"] or (
            option.startswith("-") and option != "-m"
        )
        return None if is_tool else ("python", skip)
    return None


def _python_options(words: Sequence[str]) -> int:
    """Return how many words are options of Python that change nothing for a script."""
    count = 0
    while count < len(words) and re.fullmatch(r"-[uOBEIsW]+|-X|-W\S+|-X\S+", words[count]):
        count += 2 if words[count] in ("-W", "-X") else 1
    return count


def _options(words: Sequence[str], flags: Container[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split words into options and the rest, which begins at the first word that is not an option.
    The options' names are written with hyphens. `flags` are options without a value."""
    options: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word, equals, value = rest.pop(0).partition("=")
        name = word.replace("_", "-")
        if not equals:
            value = "" if name in flags or not rest else rest.pop(0)
        options.setdefault(name, []).append(value)
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _count(options: dict[str, list[str]], *names: str) -> int | None:
    for name in names:
        for value in options.get(name, []):
            if value.isdecimal() and int(value) > 0:
                return int(value)
    return None


def _lost(options: dict[str, list[str]], known_options: Container[str], why: str) -> dict[str, str]:
    return {name: why for name in options if name not in known_options}


# as the other readers
def _torchrun(words: Sequence[str], folder: str) -> TrainingLaunch:  # noqa: ARG001
    options, program = _options(words, OPTIONS["torchrun"]["flags"])
    launch = TrainingLaunch(
        "torchrun", program, is_module=bool({"-m", "--module"} & options.keys())
    )
    launch.is_command = "--no-python" in options
    nodes = (options.get("--nnodes") or ["1"])[0]
    low, colon, high = nodes.partition(":")
    launch.instances = int(high if colon else low) if (high if colon else low).isdecimal() else 1
    if colon and low != high:
        launch.lost["--nnodes"] = (
            "a job has a fixed number of instances, so the larger number was used"
        )
    elif not nodes.isdecimal() and not colon:
        launch.lost["--nnodes"] = _known_later(nodes, "resources.instance_count")
    count = (options.get("--nproc-per-node") or ["1"])[0]
    launch.processes = int(count) if count.isdecimal() else None
    if launch.processes is None and count not in ("gpu", "auto"):
        launch.lost["--nproc-per-node"] = _known_later(count, "distribution.processes_per_instance")
    launch.lost |= _lost(
        options, OPTIONS["torchrun"]["known"], "a job has no field for this option of torchrun"
    )
    if "--max-restarts" in options:
        launch.lost["--max-restarts"] = (
            "it is a setting of the local target: `cloudtrain submit --max-restarts N`"
        )
    launch.distribution = {"type": "torch"}
    return launch


def _known_later(text: str, name: str) -> str:
    return f"`{text}` is known only at run time: set `{name}`"


def _torch_launch(words: Sequence[str], folder: str) -> TrainingLaunch:
    launch = _torchrun(words, folder)
    if not any(word in ("--use-env", "--use_env") for word in words):
        launch.lost["--local-rank"] = (
            "torch.distributed.launch passes the argument to the script; let the script read "
            "the variable LOCAL_RANK"
        )
    return launch


_ACCELERATE_OWN = re.compile(
    r"--(use-|fsdp|deepspeed|zero|offload|dynamo|megatron|parallelism|cpu$|tpu|debug|downcast|"
    r"enable-cpu)"
)
_OWN_VARIABLES = (
    "accelerate passes this to the script in its own variables: set these, or use accelerate's API"
)
_GPU_IDS = "cloudtrain uses all GPUs of an instance, or `processes_per_instance` of them"


def _accelerate(words: Sequence[str], folder: str) -> TrainingLaunch:
    options, program = _options(words, OPTIONS["accelerate"]["flags"])
    config = (
        _yaml(os.path.join(folder, options["--config-file"][0]))
        if "--config-file" in options
        else {}
    )
    if "SAGEMAKER" in str(config.get("compute_environment", "")):
        hint = (
            "run the line, then adopt the job that it has created: `cloudtrain adopt "
            "sagemaker://REGION/NAME`"
        )
        raise _wrong(
            f"`{options['--config-file'][0]}` starts the script on SageMaker, not on this machine",
            hint,
        )
    launch = TrainingLaunch(
        "accelerate", program, is_module=bool({"-m", "--module"} & options.keys())
    )
    launch.is_command = "--no-python" in options
    launch.instances = _count(options, "--num-machines") or int(config.get("num_machines") or 1)
    total = _count(options, "--num-processes") or config.get("num_processes")
    launch.processes = max(1, int(total) // launch.instances) if total else None
    for name in ("--num-machines", "--num-processes"):
        if (value := (options.get(name) or ["1"])[0]) and not value.isdecimal():
            field_name = (
                "resources.instance_count"
                if "machines" in name
                else "distribution.processes_per_instance"
            )
            launch.lost[name] = _known_later(value, field_name)
    if total and int(total) % launch.instances:
        why = f"{total} processes cannot be shared out evenly among {launch.instances} instances"
        launch.lost["--num-processes"] = why
    if threads := _count(options, "--num-cpu-threads-per-process"):
        launch.variables["OMP_NUM_THREADS"] = str(threads)  # which is what accelerate does with it
    if (gpus := (options.get("--gpu-ids") or [config.get("gpu_ids") or "all"])[0]) != "all":
        launch.lost["--gpu-ids"] = f"{_GPU_IDS}, not {gpus}"
    precision = (options.get("--mixed-precision") or [config.get("mixed_precision") or "no"])[0]
    if precision != "no":
        launch.variables["ACCELERATE_MIXED_PRECISION"] = str(precision)
    kind = str(
        config.get("distributed_type") or ("NO" if "distributed_type" in config else "")
    ).upper()
    deepspeed = "--use-deepspeed" in options or kind == "DEEPSPEED"
    launch.distribution = {"type": "deepspeed"} if deepspeed else {"type": "torch"}
    if kind == "NO" and (launch.processes or 1) == 1:
        launch.distribution, launch.processes = {}, None
    for name in OPTIONS["accelerate"]["own_variables"]:
        if str(config.get(name) or "no").lower() != "no":
            launch.lost[name] = _OWN_VARIABLES
    if kind in ("FSDP", "MEGATRON_LM", "DEEPSPEED") and not config.get(f"{kind.lower()}_config"):
        launch.lost["distributed_type"] = _OWN_VARIABLES
    launch.lost |= {name: _OWN_VARIABLES for name in options if _ACCELERATE_OWN.match(name)}
    known_options = {*launch.lost, *OPTIONS["accelerate"]["known"]}
    launch.lost |= _lost(options, known_options, "a job has no field for this option of accelerate")
    return launch


_LOCAL_RANK = (
    "The deepspeed launcher passes `--local_rank` to the script; cloudtrain does not. "
    "The variable LOCAL_RANK has it."
)


def _deepspeed(words: Sequence[str], folder: str) -> TrainingLaunch:
    options, program = _options(words, OPTIONS["deepspeed"]["flags"])
    launch = TrainingLaunch(
        "deepspeed", program, is_module="--module" in options, distribution={"type": "deepspeed"}
    )
    hostfiles = options.get("--hostfile") or options.get("-H")
    hosts = _hosts(os.path.join(folder, hostfiles[0])) if hostfiles else []
    launch.instances = _count(options, "--num-nodes") or len(hosts) or 1
    launch.processes = _count(options, "--num-gpus") or (hosts[0] if hosts else None)
    launch.is_command = "--no-python" in options
    if not {"--no-local-rank", "--no-python"} & options.keys():
        launch.notes.append(_LOCAL_RANK)
    for name, field_name in (
        ("--num-nodes", "instance_count"),
        ("--num-gpus", "gpus_per_instance"),
    ):
        if name in options and not options[name][0].isdecimal():
            launch.lost[name] = _known_later(options[name][0], f"resources.{field_name}")
    if len({*hosts}) > 1:
        launch.lost["--hostfile"] = (
            "the hosts have different numbers of slots, but the instances of a job are alike"
        )
    for option in ("--include", "-i", "--exclude", "-e"):
        if option in options:
            launch.lost[option] = _GPU_IDS
    launch.lost |= _lost(
        options, OPTIONS["deepspeed"]["known"], "a job has no field for this option of deepspeed"
    )
    return launch


def _hosts(file: str) -> list[int]:
    lines = [line.split("#")[0].split() for line in _text(file).splitlines()]
    return [
        int((re.search(r"slots=(\d+)", " ".join(words)) or ["", "1"])[1])
        for words in lines
        if words
    ]


def _mpirun(words: Sequence[str], folder: str) -> TrainingLaunch:
    launch = TrainingLaunch("mpirun", distribution={"type": "mpi"})
    rest, extra = list(words), list[str]()
    total, slots = None, list[int]()
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name = "--" + word.lstrip("-")
        if name in ("--np", "--n", "--c"):
            total = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
        elif name in ("--npernode", "--N"):
            launch.processes = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
        elif name in ("--H", "--host") and rest:
            slots = [int(host.partition(":")[2] or 1) for host in rest.pop(0).split(",")]
        elif name in ("--hostfile", "--machinefile") and rest:
            slots = _hosts(os.path.join(folder, rest.pop(0)))
        elif name == "--x" and rest:
            extra += ["-x", rest.pop(0)]
        elif name == "--mca" and len(rest) > 1:
            extra += ["--mca", rest.pop(0), rest.pop(0)]
        elif word not in OPTIONS["mpirun"]["known"]:
            flag = name in OPTIONS["mpirun"]["flags"] or "=" in word
            value = rest.pop(0) if rest and not rest[0].startswith("-") and not flag else ""
            launch.lost[word] = (
                f"write `{f'{word} {value}'.strip()}` into `distribution.options` where it is "
                "needed"
            )
    launch.instances = len(slots) or (
        total // launch.processes if total and launch.processes else 1
    )
    launch.processes = launch.processes or (
        total // launch.instances if total else slots[0] if slots else None
    )
    if total and launch.processes and total != launch.processes * launch.instances:
        each = f"{launch.instances} instances with {launch.processes} processes each"
        launch.lost["-np"] = (
            f"{total} processes are not {each}: correct `resources` and `distribution`"
        )
    if extra:
        launch.distribution["options"] = shlex.join(extra)
    if rest and re.fullmatch(r"python[0-9.]*", os.path.basename(rest[0])):
        rest = rest[1 + _python_options(rest[1:]) :]
        launch.is_module = rest[:1] == ["-m"]
        rest = rest[1:] if launch.is_module else rest
    else:
        launch.is_command = True
    launch.program = rest
    return launch


def _horovodrun(words: Sequence[str], folder: str) -> TrainingLaunch:
    launch = _mpirun(words, folder)
    launch.tool, launch.distribution = "horovodrun", launch.distribution | {"type": "horovod"}
    return launch


# as the other readers
def _torchx(words: Sequence[str], folder: str) -> TrainingLaunch:  # noqa: ARG001
    own, rest = _options(words, OPTIONS["torchx"]["flags"])
    if not rest or rest[0] != "dist.ddp":
        hint = "print the torchrun line with `torchx run --dryrun`, and adopt that line"
        raise _wrong("cloudtrain knows only torchx's component `dist.ddp`", hint)
    options, program = _options(rest[1:], ())
    launch = TrainingLaunch("torchx", distribution={"type": "torch"})
    nodes, _, count = (options.get("-j") or ["1x1"])[0].partition("x")
    launch.instances = int(nodes.rpartition(":")[2]) if nodes.rpartition(":")[2].isdecimal() else 1
    launch.processes = int(count) if count.isdecimal() else None
    # None where there is none
    launch.name = (options.get("--name") or [None])[0]  # type: ignore[list-item]
    for pair in options.get("--env", []):
        launch.variables |= dict(part.partition("=")[::2] for part in pair.split(","))
    launch.is_module = "-m" in options
    start = options.get("--script") or options.get("-m") or []
    launch.program = [*start[:1], *program]
    launch.lost |= _lost(
        options, OPTIONS["torchx"]["known"], "a job has no field for this option of torchx"
    )
    for name in ("-cfg", "--scheduler-args"):
        if name in own:
            launch.lost[name] = (
                "write the scheduler's options as settings of the target in cloudtrain.toml"
            )
    return launch


# as the other readers
def _python(words: Sequence[str], folder: str) -> TrainingLaunch:  # noqa: ARG001
    is_module = list(words[:1]) == ["-m"]
    return TrainingLaunch("python", list(words[1:] if is_module else words), is_module=is_module)


_READERS: dict[str, Callable[[Sequence[str], str], TrainingLaunch]] = {
    "torchrun": _torchrun,
    "launch": _torch_launch,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "mpirun": _mpirun,
    "horovodrun": _horovodrun,
    "torchx": _torchx,
    "python": _python,
}


def _text(file: str) -> str:
    try:
        return read_text(file)
    except (OSError, Unreadable):
        raise _wrong(
            f"`{file}` cannot be read", "run this command in the folder where the launch line runs"
        ) from None


def _yaml(file: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(_text(file))
    except yaml.YAMLError:
        raise _wrong(
            f"`{file}` is not YAML", "name the file that `accelerate config` writes"
        ) from None
    return data if isinstance(data, dict) else {}


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, code="CT981")
