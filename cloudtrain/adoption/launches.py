"""Parsers of other tools' launch lines: torchrun, accelerate, deepspeed, mpirun, torchx, python."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.documents.document import Unreadable
from cloudtrain.documents.reading import read_text
from cloudtrain.errors import UsageError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass
class Launch:
    """The training that a launch line starts: its program, processes, machines and settings."""

    tool: str
    program: list[str] = field(default_factory=list)
    """The script and its arguments; after `-m` a module and its arguments."""
    is_module: bool = False
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
    spot: bool = False
    image: str | None = None
    setup: list[str] = field(default_factory=list)
    """Lines before the launch line that prepare the shell."""
    target: str = DEFAULT_TARGET
    """The target that `settings` belongs to."""
    settings: dict[str, Any] = field(default_factory=dict)
    settings_head: tuple[str, ...] = ()


def is_launch_line(text: str) -> bool:
    """Return whether a text begins with a launch command that cloudtrain knows."""
    try:
        words = _without_variables(shlex.split(text))[1]
    except ValueError:
        return False
    return bool(words) and _tool_of(words) is not None


def read_launch_line(text: str, folder: str = ".") -> Launch:
    """Return the training that a launch line starts. Relative paths of files in the line start in `folder`.

    Raises:
        UsageError: the text is not a shell command, or starts no script.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _wrong(f"`{text[:80]}` is not a shell line: {error}", "close the quotes") from None
    variables, words = _without_variables(words)
    if words[:1] == ["srun"]:
        words = _after_options(words[1:], _SRUN_FLAGS)
    tool = _tool_of(words) if words else None
    if tool is None:
        shown = words[0] if words else text[:80]
        hint = "give a line that begins with `torchrun`, `accelerate launch`, `deepspeed`, `mpirun` or `python`"
        raise _wrong(f"`{shown}` starts no training that cloudtrain knows", hint)
    name, skip = tool
    launch = _READERS[name](words[skip:], folder)
    launch.variables = {**variables, **launch.variables}
    if not launch.program:
        raise _wrong(f"the `{name}` line names no script", "add the script and its arguments")
    return launch


def _tool_of(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the name of a line's launcher, and how many words name it; None if cloudtrain does not know the
    launcher."""
    first = os.path.basename(words[0])  # noqa: PTH119
    if first == "srun":
        rest = _after_options(words[1:], _SRUN_FLAGS)
        return ("srun", 1) if rest and _tool_of(rest) else None
    if first in ("torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun"):
        return ("mpirun" if first == "mpiexec" else first), 1
    if first == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate", 2
    if first == "torchx" and words[1:2] == ["run"]:
        return "torchx", 2
    if re.fullmatch(r"python[0-9.]*", first):
        module = words[2] if words[1:2] == ["-m"] and len(words) > 2 else ""
        if module in ("torch.distributed.run", "torch.distributed.launch"):
            return "torchrun", 3
        if module == "accelerate.commands.launch":
            return "accelerate", 3
        return "python", 1
    return None


def _without_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that are set before a command, and the command."""
    variables = {}
    rest = list(words)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        variables[match[1]] = match[2]
        rest.pop(0)
    return variables, rest


_SRUN_FLAGS = frozenset({"-l", "--label", "--exclusive", "--unbuffered", "-u", "--overlap", "--kill-on-bad-exit"})


def _after_options(words: Sequence[str], flags: frozenset[str]) -> list[str]:
    return _options(words, flags)[1]


def _options(words: Sequence[str], flags: frozenset[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split words into options and the rest, which begins at the first word that is not an option. The options' names
    are written with hyphens. `flags` are options without a value."""
    found: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word, equals, value = rest.pop(0).partition("=")
        name = word.replace("_", "-")
        if equals:
            found.setdefault(name, []).append(value)
        elif name in flags or not rest:
            found.setdefault(name, []).append("")
        else:
            found.setdefault(name, []).append(rest.pop(0))
    return found, rest[1:] if rest[:1] == ["--"] else rest


def _count(options: dict[str, list[str]], *names: str) -> int | None:
    for name in names:
        for value in options.get(name, []):
            if value.isdecimal() and int(value) > 0:
                return int(value)
    return None


def _lost(options: dict[str, list[str]], known: frozenset[str], why: str) -> dict[str, str]:
    return {name: why for name in options if name not in known}


_TORCH_FLAGS = frozenset({"--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env"})
_TORCH_KNOWN = _TORCH_FLAGS | {
    "--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port", "--rdzv-backend",
    "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--role", "--tee", "-t", "--redirects", "-r", "--log-dir",
    "--local-addr", "--start-method", "--monitor-interval", "--local-ranks-filter",
}  # fmt: skip


def _torchrun(words: Sequence[str], folder: str) -> Launch:  # noqa: ARG001 - as the other readers
    options, program = _options(words, _TORCH_FLAGS)
    launch = Launch("torchrun", program, is_module=bool({"-m", "--module"} & options.keys()))
    nodes = (options.get("--nnodes") or ["1"])[0]
    low, colon, high = nodes.partition(":")
    launch.instances = int(high if colon else low) if (high if colon else low).isdecimal() else 1
    if colon and low != high:
        launch.lost["--nnodes"] = "a job has a fixed number of instances, so the larger number was used"
    elif not nodes.isdecimal() and not colon:
        launch.lost["--nnodes"] = f"`{nodes}` is known only at run time: set `resources.instance_count`"
    count = (options.get("--nproc-per-node") or ["1"])[0]
    launch.processes = int(count) if count.isdecimal() else None
    launch.lost |= _lost(options, _TORCH_KNOWN, "a job has no field for this option of torchrun")
    if "--max-restarts" in options:
        launch.lost["--max-restarts"] = "it is a setting of the local target: `cloudtrain submit --max-restarts N`"
    launch.distribution = {"type": "torch"}
    return launch


_ACCELERATE_FLAGS = frozenset(
    {"--multi-gpu", "--cpu", "--use-deepspeed", "--use-fsdp", "-m", "--module", "--debug", "-q", "--quiet", "--tpu"}
)


def _accelerate(words: Sequence[str], folder: str) -> Launch:
    options, program = _options(words, _ACCELERATE_FLAGS)
    config = _yaml(os.path.join(folder, options["--config-file"][0])) if "--config-file" in options else {}  # noqa: PTH118
    launch = Launch("accelerate", program, is_module=bool({"-m", "--module"} & options.keys()))
    launch.instances = _count(options, "--num-machines") or int(config.get("num_machines") or 1)
    total = _count(options, "--num-processes") or config.get("num_processes")
    launch.processes = max(1, int(total) // launch.instances) if total else None
    precision = (options.get("--mixed-precision") or [config.get("mixed_precision") or "no"])[0]
    if precision != "no":
        launch.variables["ACCELERATE_MIXED_PRECISION"] = str(precision)
    kind = str(config.get("distributed_type", "")).upper()
    deepspeed = "--use-deepspeed" in options or kind == "DEEPSPEED"
    launch.distribution = {"type": "deepspeed"} if deepspeed else {"type": "torch"}
    if kind == "NO" and (launch.processes or 1) == 1:
        launch.distribution, launch.processes = {}, None
    for name in ("fsdp_config", "deepspeed_config", "dynamo_config", "parallelism_config", "megatron_lm_config"):
        if config.get(name):
            launch.lost[name] = (
                "accelerate passes this to the script in its own variables: set these, or use accelerate's API"
            )
    known = _ACCELERATE_FLAGS | {
        "--config-file", "--num-machines", "--num-processes", "--mixed-precision", "--machine-rank",
        "--main-process-ip", "--main-process-port", "--rdzv-backend", "--same-network", "--gpu-ids",
        "--num-cpu-threads-per-process",
    }  # fmt: skip
    launch.lost |= _lost(options, known, "a job has no field for this option of accelerate")
    return launch


_DEEPSPEED_FLAGS = frozenset({"--module", "--no-python", "--no-local-rank", "--force-multi", "--enable-each-rank-log"})


def _deepspeed(words: Sequence[str], folder: str) -> Launch:
    options, program = _options(words, _DEEPSPEED_FLAGS)
    launch = Launch("deepspeed", program, is_module="--module" in options, distribution={"type": "deepspeed"})
    hosts = _hosts(os.path.join(folder, options[name][0])) if (name := _first(options, "--hostfile", "-H")) else []  # noqa: PTH118
    launch.instances = _count(options, "--num-nodes") or len(hosts) or 1
    launch.processes = _count(options, "--num-gpus") or (hosts[0] if hosts else None)
    for option in ("--include", "-i", "--exclude", "-e"):
        if option in options:
            launch.lost[option] = "cloudtrain uses all GPUs of an instance, or `processes_per_instance` of them"
    known = _DEEPSPEED_FLAGS | {
        "--num-nodes", "--num-gpus", "--hostfile", "-H", "--master-port", "--master-addr", "--launcher",
        "--include", "-i", "--exclude", "-e",
    }  # fmt: skip
    launch.lost |= _lost(options, known, "a job has no field for this option of deepspeed")
    return launch


def _first(options: dict[str, list[str]], *names: str) -> str | None:
    return next((name for name in names if name in options), None)


def _hosts(file: str) -> list[int]:
    """Return the number of slots of each host in a hostfile."""
    lines = [line.split("#")[0].split() for line in _text(file).splitlines()]
    return [int((re.search(r"slots=(\d+)", " ".join(words)) or ["", "1"])[1]) for words in lines if words]


_MPI_FLAGS = frozenset({"--allow-run-as-root", "--oversubscribe", "--tag-output", "-v", "--verbose", "--bind-to-none"})


def _mpirun(words: Sequence[str], folder: str) -> Launch:
    launch = Launch("mpirun", distribution={"type": "mpi"})
    rest, extra, total, slots = list(words), list[str](), None, list[int]()
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
            slots = _hosts(os.path.join(folder, rest.pop(0)))  # noqa: PTH118
        elif name == "--x" and rest:
            extra += ["-x", rest.pop(0)]
        elif name == "--mca" and len(rest) > 1:
            extra += ["--mca", rest.pop(0), rest.pop(0)]
        elif word not in _MPI_FLAGS:
            value = rest.pop(0) if rest and not rest[0].startswith("-") and "=" not in word else ""
            launch.lost[word] = f"write `{f'{word} {value}'.strip()}` into `distribution.options` where it is needed"
    launch.instances = len(slots) or (total // launch.processes if total and launch.processes else 1)
    launch.processes = launch.processes or (total // launch.instances if total else slots[0] if slots else None)
    if extra:
        launch.distribution["options"] = shlex.join(extra)
    if rest and re.fullmatch(r"python[0-9.]*", os.path.basename(rest[0])):  # noqa: PTH119
        rest.pop(0)
        launch.is_module = rest[:1] == ["-m"]
        rest = rest[1:] if launch.is_module else rest
    launch.program = rest
    return launch


def _horovodrun(words: Sequence[str], folder: str) -> Launch:
    launch = _mpirun(words, folder)
    launch.tool, launch.distribution = "horovodrun", launch.distribution | {"type": "horovod"}
    return launch


def _torchx(words: Sequence[str], folder: str) -> Launch:  # noqa: ARG001 - as the other readers
    _, rest = _options(words, frozenset({"--dryrun", "--wait", "--log", "--tee_logs"}))
    if not rest or rest[0] != "dist.ddp":
        hint = "print the torchrun line with `torchx run --dryrun`, and adopt that line"
        raise _wrong("cloudtrain knows only torchx's component `dist.ddp`", hint)
    options, program = _options(rest[1:], frozenset())
    launch = Launch("torchx", distribution={"type": "torch"})
    nodes, _, count = (options.get("-j") or ["1x1"])[0].partition("x")
    launch.instances = int(nodes.rpartition(":")[2]) if nodes.rpartition(":")[2].isdecimal() else 1
    launch.processes = int(count) if count.isdecimal() else None
    launch.name = (options.get("--name") or [None])[0]  # type: ignore[list-item]  # None where there is none
    for pair in options.get("--env", []):
        launch.variables |= dict(part.partition("=")[::2] for part in pair.split(","))
    launch.is_module = "-m" in options
    start = options.get("--script") or options.get("-m") or []
    launch.program = [*start[:1], *program]
    known = frozenset({"-j", "--name", "--env", "--script", "-m"})
    launch.lost |= _lost(options, known, "a job has no field for this option of torchx")
    return launch


def _python(words: Sequence[str], folder: str) -> Launch:  # noqa: ARG001 - as the other readers
    is_module = list(words[:1]) == ["-m"]
    rest = list(words[1:] if is_module else words)
    while rest and rest[0] in ("-u", "-O", "-B"):
        rest.pop(0)
    if rest and rest[0].startswith("-") and not is_module:
        raise _wrong(f"`python {rest[0]}` starts no script", "name the script")
    return Launch("python", rest, is_module=is_module)


_READERS: dict[str, Callable[[Sequence[str], str], Launch]] = {
    "torchrun": _torchrun,
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
        raise _wrong(f"`{file}` cannot be read", "run this command in the folder where the launch line runs") from None


def _yaml(file: str) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(_text(file))
    except yaml.YAMLError:
        raise _wrong(f"`{file}` is not YAML", "name the file that `accelerate config` writes") from None
    return data if isinstance(data, dict) else {}


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, code="CT981")
