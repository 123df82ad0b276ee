"""Parsers of launch lines, and of the batch scripts and shell scripts that contain one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloudtrain.adoption.expansion import NOT_EMPTY, Open, Value, result_of, unknown
from cloudtrain.adoption.launches import OPTIONS, TrainingLaunch, cannot_adopt, read_launch, tool_of
from cloudtrain.adoption.shell_state import FAILURE, ShellCommand
from cloudtrain.adoption.wrappers import (
    SETUP,
    ScriptFiles,
    not_run_in,
    only_launch,
    srun_options,
    unwrap,
    why_none,
)
from cloudtrain.job.model import parse_time
from cloudtrain.rules.job import LAUNCHER_VARIABLES
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.contract import BatchReader, ContainerReader

_DIRECTIVE = "#SBATCH"


def is_batch_script(text: str) -> bool:
    """Return whether a text is a script for `sbatch`."""
    return re.search(rf"^{_DIRECTIVE}\s", text, re.MULTILINE) is not None


def is_shell_script(text: str) -> bool:
    """Return whether the first line of a text names a shell."""
    return re.match(r"#!.*\b(ba|da|z|k)?sh\b", text) is not None


def read_script(
    text: str,
    folder: str = ".",
    arguments: Sequence[str] | None = None,
    *,
    is_batch: bool = False,
) -> TrainingLaunch:
    """Return the training that a launch line, a shell script or a batch script starts with these
    arguments. Relative paths in the script start in `folder`. Lines `#SBATCH` are comments unless
    the text is a batch script (`is_batch`)."""
    submission = _submitted(text, folder, arguments)
    if submission is not None:
        return _read_batch_script(submission, folder)
    if is_batch:
        return _read_batch_script(_Submission(text, arguments), folder)

    launch = _launch_in(text, ScriptFiles(folder, {}), arguments=arguments)
    launch.folder = "."  # its code is where the user types the line
    step = launch.srun or {}
    if not step.keys().isdisjoint(_ALLOCATION):
        return _with_options(launch, {name: step[name] for name in _ALLOCATION if name in step})
    _share_tasks(launch, {})
    launch.lost |= _settle_container(launch, step)
    return launch


_ALLOCATION = (
    "partition account qos time gres gpus gpus-per-node constraint mem exclusive job-name nodelist"
).split()
"""Options with which `srun` asks for machines itself, if it is not in a batch script."""


def _read_batch_script(submission: _Submission, folder: str) -> TrainingLaunch:
    options, components = _directives(submission.text)
    options |= submission.options
    nodes = _node_count(options)
    gpus = _gpus_of(options)[1]
    variables: dict[str, Value] = {**submission.variables}
    variables |= dict.fromkeys(OPTIONS["variables"]["nodes"], str(nodes))
    if gpus:
        variables |= dict.fromkeys(OPTIONS["variables"]["gpus"], str(gpus))
    for name in OPTIONS["variables"]["in_every_batch_job"]:
        variables[name] = f"{unknown(f'${{{name}}}')}{NOT_EMPTY}"
    for name in _TASK_COUNTS:
        if options.get(name):
            variables[f"SLURM_{name.upper().replace('-', '_')}"] = options[name]
    variables.setdefault("SLURM_NTASKS", str(nodes * _tasks_per_node(options)))
    files = ScriptFiles(folder, variables, submission.variables.keys())
    launch = _launch_in(submission.text, files, has_setup=True, arguments=submission.arguments)
    launch.lost |= submission.lost
    for component in components:
        launch.lost[component] = "a job has one kind of instance; write a job for each part"
    return _with_options(launch, options)


@dataclass
class _Submission:
    """A batch script, with what the line says that submits it."""

    text: str
    arguments: Sequence[str] | None
    options: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """The environment variables of the line, which `sbatch` passes on."""
    lost: dict[str, str] = field(default_factory=dict)
    """What the lines around it do."""


def _submitted(text: str, folder: str, arguments: Sequence[str] | None) -> _Submission | None:
    """Return what the first `sbatch` in a text submits; None if that is not here."""
    files = ScriptFiles(folder, {})
    commands = files.commands_of(text, {"@": [*(arguments or ())]}) if "sbatch" in text else []
    for place, command in enumerate(commands):
        if command.words[:1] != ["sbatch"]:
            continue
        options, rest = srun_options(command.words[1:])
        script = options.pop("wrap", command.document)
        if rest:
            script = files.read(rest[0])
        if script is None:
            continue

        submission = _Submission(script, rest[1:], options)
        if options.get("export", "ALL").startswith("ALL"):
            for name, value in (command.exported | command.assigned).items():
                submission.variables[name] = value
                if isinstance(value, Open):  # the shell of the job would not know it
                    submission.variables[name] = result_of(unknown(value, is_of_script=True))
        others = [
            each for each in commands if each is not command and each.output not in files.started
        ]
        submission.lost = not_run_in(others)
        for each in commands[:place]:
            if each.words[:1] == ["cd"] and not _IN_FOLDER.fullmatch(f"{each.words[-1]}/"):
                submission.lost[each.text[:80]] = "the script starts in this folder"
        if command.condition:
            submission.lost.setdefault(
                command.condition[:80], "only a running shell decides whether this is submitted"
            )
        return submission
    return None


_GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_TASK_COUNTS = ("ntasks", "ntasks-per-node", "cpus-per-task")
_COUNTS = (*_GPU_OPTIONS, *_TASK_COUNTS, "nodes")


def _with_options(launch: TrainingLaunch, batch: Mapping[str, str]) -> TrainingLaunch:
    """Return a launch with what the options of `sbatch` say, and those of `srun`, which take
    precedence."""
    options = {**batch}
    step = launch.srun or {}
    for name in OPTIONS["srun"]["of_step"]:
        if step.get(name, "0") not in ("0", options.get(name)):
            launch.lost[f"--{name}"] = "srun says it for its step, the job has that of the script"
    of_step = {name: value for name, value in step.items() if name in _COUNTS}
    if not of_step.keys().isdisjoint(_GPU_OPTIONS):
        for name in _GPU_OPTIONS:
            options.pop(name, None)
    options |= of_step
    if "nodes" not in options and launch.instances > 1 and options.get("ntasks", "1") != "1":
        options["nodes"] = str(launch.instances)
        launch.lost["--ntasks"] = (
            "Slurm chooses the nodes of these tasks, the launcher says how many"
        )
    for name, value in [*options.items()]:
        if isinstance(value, Open) and name not in ("output", "error"):
            launch.lost[f"--{name}"] = _only_in_shell(options.pop(name))
    _share_tasks(launch, options)

    model, gpus, others = _gpus_of(options)
    for name in _GPU_OPTIONS:
        options.pop(name, None)
    if gpus:
        options["gpus-per-node"] = f"{model}:{gpus}"
        launch.gpus = gpus
    if launch.distribution and not launch.processes and not gpus:
        launch.lost.setdefault(
            "--nproc-per-node",
            "the line starts a process for each GPU: write how many a node has into "
            "`resources.gpus_per_instance`",
        )
    if others:
        launch.lost["--gres"] = f"a job asks only for GPUs, not for {', '.join(others)}"
    launch.name = options.get("job-name")
    launch.max_runtime = parse_time(options.get("time", "")) or None
    if "-" in options.get("nodes", ""):
        launch.lost["--nodes"] = (
            "a job has a fixed number of instances, so the larger number was used"
        )

    options["ntasks-per-node"] = str(_tasks_per_node(options))
    for name, batch_settings in all_parts(BatchReader).items():
        settings = batch_settings(options, launch.setup)
        if settings is not None:
            launch.target = name
            launch.settings = settings.settings | launch.settings
            launch.settings_head = settings.head
            launch.lost |= settings.lost
    launch.lost |= _settle_container(launch, {**options, **step})
    return launch


def _node_count(options: Mapping[str, str]) -> int:
    """Return the number of nodes; 1 if the options do not say it, the larger one of `2-4`."""
    nodes = options.get("nodes", "").rpartition("-")[2]
    if nodes.isdecimal():
        return max(1, int(nodes))
    total = _number(options, "ntasks")
    per_node = _number(options, "ntasks-per-node")
    if total and per_node:
        return -(-total // per_node)
    return 1


def _tasks_per_node(options: Mapping[str, str]) -> int:
    """Return how many processes Slurm starts on a node; 1 if the options do not say it."""
    total = _number(options, "ntasks")
    if total:
        return -(-total // _node_count(options))
    return _number(options, "ntasks-per-node") or 1


def _number(options: Mapping[str, str], name: str) -> int:
    """Return the number that an option has; 0 without one."""
    value = options.get(name, "")
    return int(value) if value.isdecimal() else 0


def _gpus_of(options: Mapping[str, str]) -> tuple[str, int | None, list[str]]:
    """Return the model and the number of the GPUs of a node, however the options ask for them, and
    what else `--gres` asks for. The number is None if they ask for no GPUs."""
    asked = options.get("gpus-per-node", "")
    others = []
    for item in options.get("gres", "").split(","):
        kind, _, gpus = item.removeprefix("gres/").partition(":")
        if kind == "gpu":
            asked = asked or gpus or "1"
        elif item and item != "none":
            others.append(item)
    if asked:
        return *_model_and_count(asked), others

    if options.get("gpus-per-task"):
        model, count = _model_and_count(options["gpus-per-task"])
        return model, count * _tasks_per_node(options), others
    if options.get("gpus"):
        model, count = _model_and_count(options["gpus"])
        nodes = _node_count(options)
        return model, count // nodes if count % nodes == 0 else count, others
    return "", None, others


def _model_and_count(gpus: str) -> tuple[str, int]:
    """Return both of `h100:8(S:0-1)`, `h100` or `8`."""
    model, _, count = gpus.partition("(")[0].rpartition(":")
    return (model, int(count)) if count.isdecimal() else (count, 1)


def _share_tasks(launch: TrainingLaunch, batch: Mapping[str, str]) -> None:
    """Set the instances and the processes on each from `batch`, the options of the batch script,
    and from those of `srun`, which take precedence. Note what the script would start otherwise than
    the job."""
    options = {**batch, **(launch.srun or {})}
    if not options:
        return
    tasks = _tasks_per_node(options)
    nodes = _node_count(options)
    if nodes == 1 and tasks > 1 and options.keys().isdisjoint(("nodes", "ntasks-per-node")):
        launch.lost["--ntasks"] = (
            "Slurm chooses the nodes of these tasks: one was used, so correct "
            "`resources.instance_count`"
        )
    if launch.tool in ("mpirun", "horovodrun"):
        total = launch.instances * (launch.processes or tasks * nodes)
        if total % nodes:
            launch.lost["-np"] = f"{total} processes cannot be shared out among {nodes} nodes"
        launch.processes = max(1, total // nodes)
        launch.instances = nodes
        return

    is_agent = launch.tool in ("torchrun", "accelerate", "deepspeed")
    if is_agent and "resources.instance_count" not in launch.unknown and launch.instances != nodes:
        launch.lost["--nodes"] = (
            f"the line starts a training of {launch.instances} on {nodes}, the job one on all: "
            "correct `resources.instance_count`"
        )
    elif nodes > 1 and launch.srun is None and batch and launch.tool != "deepspeed":
        launch.lost["srun"] = (
            "without it, the script starts this on its first node only; the job starts it on "
            "every instance"
        )
    launch.instances = nodes
    if launch.srun is None or tasks == 1:
        return
    if is_agent or launch.distribution:
        launch.lost["--ntasks-per-node"] = (
            f"srun starts the launcher {tasks} times on each node, the job starts it once"
        )
    elif launch.tool == "python":
        launch.distribution = {"type": "torch"}
        launch.processes = tasks
        launch.lost["srun"] = (
            f"srun starts {tasks} processes on each node, which find their rank in SLURM_PROCID. "
            "In the job, torchrun starts them, and they find it in RANK and LOCAL_RANK"
        )
    else:
        launch.lost["srun"] = f"srun starts {tasks} processes on each node, the job starts one"


def _settle_container(launch: TrainingLaunch, options: Mapping[str, str]) -> Mapping[str, str]:
    """Express the container that the options of `sbatch` and `srun` name by the job's image and
    settings of the target that knows them. Return what is lost."""
    for target, container_settings in all_parts(ContainerReader).items():
        container = container_settings(options)
        if container is None:
            continue
        launch.target = target
        launch.image = {target: str(container.image)}
        launch.settings |= container.settings
        launch.settings_head = container.head
        return container.lost
    lost = {}
    for name in options:
        if "container" in name:
            lost[f"--{name}"] = (
                'write the image into `environment.image`, and `container = "pyxis"` and '
                "`mounts` under `[slurm]`"
            )
    return lost


def _directives(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the `#SBATCH` options above a script's first command, by their long names, and the
    words that are no options, as `#SBATCH WORD`. An option without a value has an empty string. A
    job with several parts has the options of its first part."""
    options = dict[str, str]()
    components = list[str]()
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith(_DIRECTIVE):
            continue

        words = shlex.split(line[len(_DIRECTIVE) :], comments=True)
        of_line, others = srun_options(words)
        if not components:
            for name, value in of_line.items():  # sbatch replaces no variables
                options[name] = result_of(unknown(value)) if "$" in value else value
        # `hetjob`, which begins another part
        components += [f"#SBATCH {word}" for word in others]
    return options, components


def is_launch_line(text: str) -> bool:
    """Return whether a text has a launch command that cloudtrain knows."""
    try:
        files = ScriptFiles(".", {})
        for command in files.commands_of(text, {}):
            is_start = "".join(command.words[:1]) in ("bash", "sh", "srun", "sbatch")
            if unwrap(command, files).words or (is_start and len(command.words) > 1):
                return True
        return False
    except (ValueError, RecursionError):
        return False


def _launch_in(
    text: str,
    files: ScriptFiles,
    *,
    has_setup: bool = False,
    arguments: Sequence[str] | None = None,
) -> TrainingLaunch:
    """Return the training that the only launch line in a shell script starts. With `has_setup`,
    lines that prepare the shell are kept as the launch's setup. Raises UsageError if the script
    does not have exactly one launch line."""
    commands = files.commands_of(text, {} if arguments is None else {"@": [*arguments]})
    line, pairs = only_launch(commands, files)
    if line is None:
        message = f"cloudtrain finds no launch line: {why_none(commands, files)}"
        hint = 'adopt the line alone: `cloudtrain adopt "torchrun ... train.py"`'
        places = dict.fromkeys(f"line {each.line} (`{each.text[:60]}`)" for each, _ in pairs)
        if pairs:
            shown = ", ".join(places)
            message = f"cloudtrain needs exactly one launch line, and found {len(pairs)}: {shown}"
        if len(places) == 1:  # a loop
            first = shlex.quote(shlex.join(pairs[0][1].words))
            hint = (
                f"adopt one round: `cloudtrain adopt {first}`; then `cloudtrain submit --each "
                "hyperparameters.NAME=1,2` runs the job for each value"
            )
        raise cannot_adopt(message, hint)

    launch = read_launch(line.words, files.folder)
    launch.srun = line.srun
    launch.lost = {**line.lost, **launch.lost}
    launch.variables = line.variables | launch.variables

    before = [each for each in line.before if each.words and each.condition in ("", line.condition)]
    setup = [each for each in before if has_setup and SETUP.match(each.text)]
    for command in setup:
        path = "".join(command.words[1:2])
        # a shell finds conda's `activate` by the search path
        is_below = re.match(r"[^/~$]", path) and path != "activate"
        if command.words[0] in ("source", ".") and is_below:
            launch.lost[command.text[:80]] = (
                "a job has only the files in `source_dir`: name the file by its absolute path in "
                "`setup`"
            )
        if any(isinstance(word, Open) and word.is_of_script for word in command.words):
            launch.lost[command.text[:80]] = "it needs variables of the script"
    _settle_variables(launch, has_setup=has_setup)
    # its own lines set variables, and may need what the script's lines prepare
    launch.setup = [*map(_shown, setup), *launch.setup]
    _lose_unknown_words(launch)
    _change_folder(launch, before)
    others = []
    for command in (*line.before, *line.after):
        # a line of setup keeps what runs if it fails
        is_kept = command.condition == FAILURE and any(
            command.text in each.text.partition("||")[2] for each in setup
        )
        if not (is_kept or command in setup or command.output in files.started):
            others.append(command)
    launch.lost |= not_run_in(others)
    return launch


_FOLDER_OF_SCRIPT = r"\$\( ?dirname (?:-- )?\"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?\"? ?\)"
_IN_FOLDER = re.compile(
    r"(?:`pwd`|\$\(pwd\)|\$\{?(?:PWD|SLURM_SUBMIT_DIR)\}?|"
    rf"{_FOLDER_OF_SCRIPT}|"
    rf"\$\( ?cd (?:-- )?\"?{_FOLDER_OF_SCRIPT}\"?[ >&/12a-z]*?(?:&&|;) ?pwd(?: -P)? ?\))/"
)
"""The folder of the script, or the one in which it starts, before the path of a program."""

_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](:\d+)?\}")


def _lose_unknown_words(launch: TrainingLaunch) -> None:
    """Note the arguments as lost that only a running shell knows, by the names of their options."""
    program = launch.program
    # the folder in which the job starts anyway
    start = _IN_FOLDER.sub("", program[0])
    if start and start != program[0]:
        program[0] = result_of(unknown(start)) if re.search(r"[$`]", start) else start

    previous = ""
    for word in list(program):
        if isinstance(word, Open):
            has_all = len(program) > 1 and _ARGUMENTS.fullmatch(word)
            is_value = previous.startswith("-") and not word.startswith("-")
            name = previous if is_value and not has_all else word
            name = name.partition("=")[0][:80]
            launch.lost[name] = _only_in_shell(word)
            if re.search(r"\$\{?[1-9@*]", word):
                launch.lost[name] = f"`{word[:80]}` is an argument of the script: use `--args`"
            if has_all:
                program.remove(word)
        previous = word


def _only_in_shell(value: str) -> str:
    return (
        f"only a running shell knows `{value[:80]}`: write the value into the job or its settings"
    )


def _shown(command: ShellCommand) -> str:
    """Return a command with its known variables replaced. What only the shell knows stays as
    written."""
    is_replaced = " ".join(command.words) != re.sub("[\"']", "", command.text)
    if not is_replaced or "||" in command.text:
        return command.text
    words = []
    for word in command.words:
        if isinstance(word, Open) and not re.fullmatch(r"[\w./:=@+~${}-]+", word):
            words.append(f'"{word}"')
        else:
            words.append(word if isinstance(word, Open) else shlex.quote(word))
    return " ".join(words)


def _settle_variables(launch: TrainingLaunch, *, has_setup: bool) -> None:
    """Take the variables whose values only a shell knows out of the launch. Those that a line of
    bash can set again become lines of `setup`."""
    variables = launch.variables
    launch.variables = {}
    for name, value in variables.items():
        words = value.split()
        while words and "=" in words[0]:
            words.pop(0)
        is_in_line = len(words) > 1 and launch.program[0] in words
        # cloudtrain sets those of launchers itself; others are parts of the launch line
        if name in LAUNCHER_VARIABLES or is_in_line or tool_of(words) is not None:
            continue
        if not isinstance(value, Open):
            launch.variables[name] = value
            continue
        # quotes inside of `$(...)` do not end those around the value
        outside = re.sub(r"\$\([^)]*\)", "", value)
        is_whole = '"' not in outside and "\n" not in value and not value.is_of_script
        if has_setup and is_whole:
            launch.setup.append(f'export {name}="{value}"')
        else:
            launch.lost[f"${name}"] = _only_in_shell(value)


def _change_folder(launch: TrainingLaunch, before: Sequence[ShellCommand]) -> None:
    """Let the code start in the folder to which the lines before the launch line change."""
    for command in before:
        if command.words[0] != "cd" or len(command.words) != 2:
            continue
        folder = command.words[1]
        # the folder in which the paths of the script start anyway
        below = _IN_FOLDER.sub("./", f"{folder}/").rstrip("/")
        if re.search(r"[$`~]", below):
            launch.lost[f"cd {folder}"[:80]] = (
                "only a running shell knows the folder: write it into `source_dir`"
            )
            continue
        if os.path.isabs(below) and not os.path.isdir(below):
            launch.lost[f"cd {folder}"[:80]] = (
                "this folder is not here: write the folder of the code into `source_dir`"
            )
        launch.source_dir = os.path.normpath(os.path.join(launch.source_dir or "", below))
