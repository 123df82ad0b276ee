"""Parsers of launch lines, and of files that contain one: Slurm's batch scripts and SkyPilot's task
files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cloudtrain.adoption.expansion import Open, Value
from cloudtrain.adoption.launches import OPTIONS, TrainingLaunch, cannot_adopt, read_launch, tool_of
from cloudtrain.adoption.shell import ShellCommand, commands_of
from cloudtrain.job.model import parse_time
from cloudtrain.rules.job import LAUNCHER_VARIABLES
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.contract import BatchReader, ContainerReader

# Takes a command's wrappers off its launch line: `srun`, `bash -c`, containers and the like.

_SHORT = dict(pair.split("=") for pair in OPTIONS["srun"]["short"])
"""The long names of the short options of `sbatch` and `srun`."""


@dataclass
class LaunchCommand:
    """The words of a launch command, and what its wrappers say."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    srun: dict[str, str] | None = None
    """The options of `srun` by their long names; None if no wrapper is `srun`."""


def unwrap(words: Sequence[str]) -> LaunchCommand:
    """Return the launch command in a command's words. The result has no words if there is none."""
    launch = LaunchCommand([*words])
    # each round takes one wrapper off
    while launch.words and tool_of(launch.words) is None:
        name = os.path.basename(launch.words[0])
        assignment = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", launch.words[0], re.DOTALL)
        if name == "srun":
            launch.srun, launch.words = srun_options(launch.words[1:])
            for option in launch.srun:
                if option not in OPTIONS["srun"]["known"]:
                    why = _CONTAINER if option.startswith("container") else _NO_FIELD
                    launch.lost[f"--{option}"] = why
        elif name in ("bash", "sh"):
            launch.words = _inner_words(launch)
        elif assignment:
            launch.variables[assignment[1]] = assignment[2]
            launch.words.pop(0)
        elif name in OPTIONS["shell"]["wrappers"]:
            _take_off(launch, name)
        else:
            launch.words = []
    return launch


def srun_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options at the beginning of the words after `srun`, by their long names, and the
    other words."""
    options = dict[str, str]()
    rest = [*words]
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.pop(0)
        if word == "--":
            break
        name, value = _split_option(word)
        name = name.replace("_", "-")
        takes_next = "=" not in word and name not in OPTIONS["srun"]["flags"]
        if not value and takes_next and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest


def _split_option(word: str) -> tuple[str, str]:
    """Return the long name of an option of `sbatch` or `srun`, and the value in the same word:
    `--nodes=2`, `-N2`."""
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return name, value
    return _SHORT.get(word[1:2], word[1:2]), word[2:]


# Why the job lacks an option of `srun`.
_CONTAINER = (
    'write the image into `environment.image`, and `container = "pyxis"` and `mounts` '
    "under `[slurm]`"
)
_NO_FIELD = "a job has no field for this option of srun"


def _inner_words(launch: LaunchCommand) -> list[str]:
    """Return the launch command inside `bash -c "..."`; nothing if there is none, or more than
    one."""
    pairs = pairwise(launch.words)
    script = next((after for word, after in pairs if re.fullmatch(r"-[a-z]*c", word)), "")
    try:
        commands = commands_of(script)
    except ValueError:
        return []
    starting = [command for command in commands if unwrap(command.words).words]
    if len(starting) != 1:
        return []
    start = starting[0]

    others = []
    for command in commands:
        if command is not start and command.words[0] not in ("echo", "set"):
            others.append(command.text)
    if others:
        launch.lost["other lines"] = _not_run(others)
    launch.variables |= start.exported | start.assigned
    return start.words


def _not_run(lines: Sequence[str]) -> str:
    return f"the job does not run these lines: {'; '.join(lines)[:200]}"


def _take_off(launch: LaunchCommand, name: str) -> None:
    """Take the wrapper `name` off, with its options: all words up to the next shell, `srun` or
    launcher. If none follows, the launch command has no words then."""
    rest = launch.words[1:]
    for at, word in enumerate(rest):
        is_wrapper = os.path.basename(word) in ("bash", "sh", "srun")
        if not is_wrapper and tool_of(rest[at:]) is None:
            continue

        launch.words = rest[at:]
        wrapper = rest[:at]
        if name == "env":
            assignments = [word for word in wrapper if re.match(r"[A-Za-z_]\w*=", word)]
            launch.variables |= dict(word.split("=", 1) for word in assignments)
            wrapper = [word for word in wrapper if word not in assignments]
        # these four change nothing for a job, unless they have options
        if wrapper or name not in ("env", "time", "stdbuf", "sudo"):
            why = (
                "the job starts the launch line without this; an image or the setting "
                "`setup` prepares the packages"
            )
            launch.lost[" ".join([name, *wrapper])[:80]] = why
        return
    launch.words = []


_DIRECTIVE = "#SBATCH"
_SETUP = re.compile(
    r"(module|ml|source|\.|conda|mamba|micromamba|spack|ulimit)\s|eval \"\$\((conda|micromamba) "
)
"""Beginnings of lines that prepare the shell for the launch line."""


def is_batch_script(text: str) -> bool:
    """Return whether a text is a script for `sbatch`."""
    return text.startswith("#!") and "#SBATCH" in text


def read_batch_script(text: str, folder: str) -> TrainingLaunch:
    """Return the training that a batch script starts. Relative paths in the script start in
    `folder`."""
    options = _directives(text)
    components = [name for name in options if name.startswith("#")]
    for name in components:
        del options[name]

    # of a range such as `2-4`, the larger number
    nodes = options.get("nodes", "").rpartition("-")[2]
    node_count = int(nodes) if nodes.isdecimal() else 1
    lost = _settle_gpus(options, node_count, _tasks_per_node(options))
    gpus = _last_number(options.get("gpus-per-node", ""))

    variables: dict[str, Value] = dict.fromkeys(OPTIONS["variables"]["nodes"], nodes or "1")
    if gpus:
        variables |= dict.fromkeys(OPTIONS["variables"]["gpus"], str(gpus))
    for name in _TASK_COUNTS:
        if options.get(name):
            variables[f"SLURM_{name.upper().replace('-', '_')}"] = options[name]
    launch = _launch_in(text, variables, folder, has_setup=True)
    _share_tasks(launch, options)

    launch.tool = "sbatch"
    launch.folder = folder
    launch.gpus = gpus
    launch.name = options.get("job-name")
    launch.max_runtime = parse_time(options.get("time", ""))
    if "-" in options.get("nodes", ""):
        launch.lost["--nodes"] = (
            "a job has a fixed number of instances, so the larger number was used"
        )

    launch.lost |= lost
    one_kind = "a job has one kind of instance; write a job for each part"
    launch.lost |= dict.fromkeys(components, one_kind)

    for name, batch_settings in all_parts(BatchReader).items():
        batch = batch_settings(options, launch.setup)
        if batch is not None:
            launch.target = name
            launch.settings = batch.settings
            launch.settings_head = batch.head
            launch.lost |= batch.lost
    _settle_container(launch)
    return launch


_TASK_COUNTS = ("ntasks", "ntasks-per-node", "cpus-per-task")


def _tasks_per_node(options: Mapping[str, str]) -> int:
    """Return how many processes Slurm starts on a node; 1 if the options do not say it."""
    per_node = options.get("ntasks-per-node", "")
    if per_node.isdecimal():
        return int(per_node)
    total = options.get("ntasks", "")
    nodes = options.get("nodes", "")
    if total.isdecimal() and nodes.isdecimal() and int(nodes):
        return max(1, int(total) // int(nodes))
    return 1


def _settle_gpus(options: dict[str, str], nodes: int, tasks: int) -> dict[str, str]:
    """Write the GPUs of a node as `gpus-per-node`, however the script asks for them: `8` or
    `h100:8`. `tasks` is the number of tasks on a node. Return what is lost."""
    gres = ""
    others = []
    for item in options.pop("gres", "").split(","):
        kind, _, count = item.partition(":")
        if kind == "gpu":
            gres = gres or count or "1"
        elif item:
            others.append(item)

    factor = 1
    asked = options.get("gpus-per-node") or gres
    if not asked and options.get("gpus-per-task"):
        factor = tasks
        asked = options["gpus-per-task"]
    total = _last_number(options.get("gpus", ""))
    if not asked and total and not total % nodes:
        asked = options.pop("gpus").replace(str(total), str(total // nodes))
    options.pop("gpus-per-task", None)

    # sockets may follow: `h100:8(S:0-1)`
    model, _, count = asked.partition("(")[0].rpartition(":")
    if count.isdecimal():
        gpus = str(int(count) * factor)
        options["gpus-per-node"] = f"{model}:{gpus}" if model else gpus
    if not others:
        return {}
    return {"--gres": f"a job asks only for GPUs, not for {', '.join(others)}"}


def _share_tasks(launch: TrainingLaunch, batch: Mapping[str, str]) -> None:
    """Set the instances and the processes on each from `batch`, the options of the batch script,
    and from those of `srun`, which take precedence."""
    options = {**batch, **(launch.srun or {})}
    tasks = _tasks_per_node(options)
    nodes = options.get("nodes", "").rpartition("-")[2]
    total = options.get("ntasks", "")
    if nodes.isdecimal():
        launch.instances = int(nodes)
    elif total.isdecimal() and "ntasks-per-node" in options:
        launch.instances = max(1, int(total) // tasks)
    elif total.isdecimal() and launch.srun is not None and not launch.distribution:
        tasks = int(total)

    if launch.srun is not None and launch.tool == "python" and tasks > 1:
        launch.distribution = {"type": "torch"}
        launch.processes = tasks
        launch.lost["srun"] = (
            f"srun starts {tasks} processes on each node, which find their rank in SLURM_PROCID. "
            "In the job, torchrun starts them, and they find it in RANK and LOCAL_RANK"
        )


def _settle_container(launch: TrainingLaunch) -> None:
    """Express the container that the options of `srun` name by the job's image and settings of the
    target that knows them."""
    if not launch.srun:
        return
    for target, container_settings in all_parts(ContainerReader).items():
        container = container_settings(launch.srun)
        if container is None:
            continue
        launch.target = target
        launch.image = {target: str(container.image)}
        launch.settings |= container.settings
        launch.settings_head = container.head
        for name in list(launch.lost):
            if name.startswith(("--container", "--no-container")):
                del launch.lost[name]
        launch.lost |= container.lost


def _directives(text: str) -> dict[str, str]:
    """Return the `#SBATCH` options above a script's first command, by their long names. An option
    without a value has an empty string, and so has a word that is not an option, by the name
    `#SBATCH WORD`."""
    options = dict[str, str]()
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith(_DIRECTIVE):
            continue

        words = shlex.split(line[len(_DIRECTIVE) :], comments=True)
        while words:
            word = words.pop(0)
            if not word.startswith("-"):  # `hetjob`, which begins another part
                options[f"#SBATCH {word}"] = ""
                continue

            name, value = _split_option(word)
            if not value and "=" not in word and words and not words[0].startswith("-"):
                value = words.pop(0)
            options[name] = value
    return options


def is_task_file(data: Any) -> bool:
    """Return whether the data is a SkyPilot task."""
    if not isinstance(data, Mapping) or not isinstance(data.get("run"), str):
        return False
    fields = {"resources", "num_nodes", "setup", "workdir", "envs", "file_mounts"}
    return not fields.isdisjoint(data)


def read_task_file(data: Mapping[str, Any], folder: str) -> TrainingLaunch:
    """Return the training that a SkyPilot task starts. Relative paths in the task start in
    `folder`."""
    resources = data.get("resources")
    if not isinstance(resources, Mapping):
        resources = {}

    model, count = _accelerators(resources.get("accelerators"))
    nodes = int(data.get("num_nodes") or 1)
    envs = {str(key): value for key, value in (data.get("envs") or {}).items()}
    given = {name: str(value) for name, value in envs.items() if value is not None}

    variables: dict[str, Value] = {**given}
    variables |= dict.fromkeys(OPTIONS["variables"]["nodes"], str(nodes))
    if count:
        variables |= dict.fromkeys(OPTIONS["variables"]["gpus"], str(count))
    launch = _launch_in(data["run"], variables, folder)

    launch.tool = "SkyPilot"
    launch.folder = folder
    launch.name = data.get("name")
    launch.instances = nodes
    launch.gpu = model
    launch.gpus = count
    launch.spot = bool(resources.get("use_spot"))
    launch.variables |= given
    for name, value in envs.items():
        if value is None:
            launch.lost[f"envs.{name}"] = "it has no value: set it in the job file"

    expressed = {"accelerators", "use_spot"}
    image = str(resources.get("image_id") or "")
    if image.startswith("docker:"):
        launch.image = image.removeprefix("docker:")
        expressed.add("image_id")
    no_field = "a job has no field for this; settings of the target may have one"
    for name in resources:
        if name not in expressed:
            launch.lost[f"resources.{name}"] = no_field
    for name in data:
        if name not in OPTIONS["skypilot"]["known"]:
            launch.lost[str(name)] = no_field

    workdir = data.get("workdir")
    if isinstance(workdir, str):
        below = launch.source_dir
        launch.source_dir = os.path.join(workdir, below) if below else workdir
    elif workdir is not None:
        launch.lost["workdir"] = "clone the repository, and name its folder as `source_dir`"

    hints = {
        "setup": (
            "list the packages that it installs in `environment.requirements`, or use an image"
        ),
        "file_mounts": "write each storage path of data under `inputs`",
        "secrets": "a job contains no secrets: let the script read them at run time",
        "volumes": "write each storage path of data under `inputs`",
    }
    for name, reason in hints.items():
        if data.get(name):
            launch.lost[name] = reason
    return launch


def is_launch_line(text: str) -> bool:
    """Return whether a text has a launch command that cloudtrain knows."""
    try:
        return any(unwrap(command.words).words for command in commands_of(text))
    except (ValueError, RecursionError):
        return False


def read_launch_line(text: str) -> TrainingLaunch:
    """Return the training that a launch line starts."""
    launch = _launch_in(text, {}, ".")
    _share_tasks(launch, {})
    _settle_container(launch)
    return launch


def _launch_in(
    text: str, variables: Mapping[str, Value], folder: str, *, has_setup: bool = False
) -> TrainingLaunch:
    """Return the training that the only launch line in a shell script starts. With `has_setup`,
    lines that prepare the shell are kept as the launch's setup. Raises UsageError if the script
    does not have exactly one launch line."""
    commands = commands_of(text, variables)
    pairs = []
    for command in commands:
        line = unwrap(command.words)
        if line.words:
            pairs.append((command, line))
    if len(pairs) > 1:  # a script may also prepare its data with Python
        launchers = [pair for pair in pairs if tool_of(pair[1].words) != ("python", 1)]
        pairs = launchers or pairs
    if len(pairs) != 1:
        what = f"{len(pairs)} launch lines" if pairs else "no launch line"
        message = f"cloudtrain needs exactly one launch line, and found {what}"
        hint = 'adopt the line alone: `cloudtrain adopt "torchrun ... train.py"`'
        raise cannot_adopt(message, hint)

    start, line = pairs[0]
    launch = read_launch(line.words, folder)
    launch.srun = line.srun
    launch.lost = {**line.lost, **launch.lost}
    launch.variables = start.exported | start.assigned | line.variables | launch.variables

    before = commands[: commands.index(start)]
    setup = []
    if has_setup:
        setup = [command for command in before if _SETUP.match(command.text)]
    _settle_variables(launch, has_setup=has_setup)
    # its own lines set variables, and may need what the script's lines prepare
    launch.setup = [*map(_shown, setup), *launch.setup]

    for word in launch.program:
        if isinstance(word, Open):
            launch.lost[word[:80]] = (
                "only a running shell knows the value: write it into the job file"
            )
    _change_folder(launch, before)

    texts = []
    for command in commands:
        if command is not start and command not in setup and not _is_harmless(command):
            texts.append(command.text)
    if texts:
        launch.lost["other lines"] = _not_run(texts)
    return launch


def _shown(command: ShellCommand) -> str:
    """Return a command with its known variables replaced. What only the shell knows stays as
    written."""
    if all(re.fullmatch(r"[\w./:=@+-]+", word) for word in command.words):
        return " ".join(command.words)
    return command.text


def _is_harmless(command: ShellCommand) -> bool:
    """Return whether the training is the same without this command, such as `echo`."""
    name = command.words[0]
    if name == "cd":  # which is followed
        return True
    if name not in OPTIONS["shell"]["harmless"]:
        return False
    if command.after_pipe:
        return True
    decides = re.match(r"(if|elif|while|until|for|case)\b", command.text)
    writes = re.search(r"[^&\d]>|<<", command.text)
    return not decides and not writes


def _settle_variables(launch: TrainingLaunch, *, has_setup: bool) -> None:
    """Take the variables whose values only a shell knows out of the launch. Those that a line of
    bash can set again become lines of `setup`."""
    for name, value in [*launch.variables.items()]:
        if name in LAUNCHER_VARIABLES:
            del launch.variables[name]  # cloudtrain sets it itself
            continue
        if not isinstance(value, Open):
            continue
        del launch.variables[name]
        # quotes inside of `$(...)` do not end those around the value
        outside = re.sub(r"\$\([^)]*\)", "", value)
        if has_setup and '"' not in outside and "\n" not in value:
            launch.setup.append(f'export {name}="{value}"')
        else:
            launch.lost[f"${name}"] = (
                f"only a running shell knows `{value[:80]}`: write the value into the job file"
            )


def _change_folder(launch: TrainingLaunch, before: Sequence[ShellCommand]) -> None:
    """Let the code start in the folder to which the lines before the launch line change."""
    for command in before:
        if command.words[0] != "cd" or len(command.words) != 2:
            continue
        folder = command.words[1]
        if not isinstance(folder, Open):
            launch.source_dir = os.path.join(launch.source_dir or "", folder)
        # these mean the folder in which the paths of the script start anyway
        elif not re.search(r"SLURM_SUBMIT_DIR|\$0|BASH_SOURCE", folder):
            launch.lost[f"cd {folder}"[:80]] = (
                "only a running shell knows the folder: write it into `source_dir`"
            )


def _accelerators(value: Any) -> tuple[str | None, int | None]:
    """Return the GPU model and the GPUs of a node: of `H100:8`, `H100` or `{H100: 8}`; None for
    both without GPUs."""
    if isinstance(value, Mapping) and value:
        name = next(iter(value))
        return str(name), int(value[name])
    name, _, count = str(value or "").partition(":")
    if not name:
        return None, None
    return name, int(count or 1)


def _last_number(text: str) -> int | None:
    """Return the last number after the colon of a text such as `h100:8`; None without one."""
    numbers = re.findall(r"\d+", text.rpartition(":")[2])
    return int(numbers[-1]) if numbers else None
