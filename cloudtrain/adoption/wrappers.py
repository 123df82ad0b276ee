"""Takes the wrappers off a launch line: `srun`, `bash -c`, scripts, containers and the like."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cloudtrain.adoption.expansion import Open, Value, part_of
from cloudtrain.adoption.launches import OPTIONS, tool_of
from cloudtrain.adoption.shell import commands_of
from cloudtrain.adoption.shell_state import ShellCommand
from cloudtrain.documents.document import Unreadable, read_text
from cloudtrain.rules.job import LAUNCHER_VARIABLES

SETUP = re.compile(
    r"(module|ml|source|\.|conda|mamba|micromamba|spack|ulimit|mkdir -p|export|unset)\s|"
    r"eval \"\$\((conda|micromamba) "
)
"""Beginnings of lines that prepare the shell for the launch line."""


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
    before: list[ShellCommand] = field(default_factory=list)
    """The commands before the launch line, in the scripts around it."""
    after: list[ShellCommand] = field(default_factory=list)
    """The commands after it."""
    condition: str = ""
    """The condition of the command that starts it, which cannot be decided."""
    why_not: str = ""
    """Why the command starts nothing that cloudtrain can read."""


_MOST_SCRIPTS = 500


class ScriptFiles:
    """The shell scripts that a script in `folder` can start, also those that it has written. All of
    them have `variables`; those in `exported` are environment variables."""

    def __init__(
        self, folder: str, variables: Mapping[str, Value], exported: Collection[str] = ()
    ) -> None:
        self.folder = folder
        self.variables = variables
        self.exported = exported
        self.written: dict[str, str] = {}
        self.started: set[str] = set()
        self.count = 0

    def read(self, name: str) -> str | None:
        """Return the text of a script; None for a file that is not here, and for one that prepares
        the shell of one machine."""
        if name in self.written:
            self.started.add(name)
            return self.written[name]
        if isinstance(name, Open) or os.path.isabs(name) or name.endswith("activate"):
            return None
        for place in (self.folder, "."):
            file = os.path.join(place, name)
            if os.path.isfile(file):
                with suppress(OSError, Unreadable):
                    return read_text(file)
                return None
        return None

    def commands_of(self, text: str, variables: Mapping[str, Value]) -> list[ShellCommand]:
        """Return the commands of a script, and keep the files that they write."""
        self.count += 1
        if self.count > _MOST_SCRIPTS:
            raise ValueError("its scripts start each other without an end")
        commands = commands_of(text, {**self.variables, **variables}, self.read, self.exported)
        for command in commands:
            if command.words == ["cat"] and command.document is not None:
                self.written[command.output] = command.document
        return commands


def unwrap(command: ShellCommand, files: ScriptFiles) -> LaunchCommand:
    """Return the launch command in a command of a script. The result has no words if there is
    none."""
    launch = LaunchCommand([*command.words])
    if command.input:
        launch.lost["<"] = f"the processes read `{command.input[:80]}`, those of a job read nothing"
    # each round takes one wrapper off
    while launch.words and tool_of(launch.words) is None:
        name = os.path.basename(launch.words[0])
        following = "".join(launch.words[1:2])
        assignment = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", launch.words[0], re.DOTALL)
        if name == "srun":
            launch.srun, launch.words = srun_options(launch.words[1:])
            for option, value in launch.srun.items():
                is_known = (option, value) == ("export", "ALL") or "container" in option
                if not is_known and option not in OPTIONS["srun"]["known"]:
                    launch.lost[f"--{option}"] = "a job has no field for this option of srun"
        elif name in ("bash", "sh") or re.search(r"\.(sh|bash)$", name):
            launch = _inner_launch(launch, command, files)
        elif assignment:
            launch.variables[assignment[1]] = part_of(launch.words[0], assignment[2])
            launch.words.pop(0)
        elif name == "env" and not following.startswith("-"):
            launch.words.pop(0)  # assignments follow
        elif name in OPTIONS["shell"]["wrappers"]:
            _take_off(launch, name)
        else:
            launch.why_not = f"`{name}` is not a launcher that it knows"
            if name == "sbatch":
                launch.why_not = "the script that it submits is not here"
            # what srun starts may be a wrapper of the user's own
            if launch.srun is not None and name not in OPTIONS["shell"]["harmless"]:
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
        takes_next = "=" not in word and name not in OPTIONS["srun"]["flags"]
        if not value and takes_next and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        options[name] = part_of(word, value)
    return options, rest


def _split_option(word: str) -> tuple[str, str]:
    """Return the long name of an option of `sbatch` or `srun`, and the value in the same word:
    `--nodes=2`, `--node=2`, `-N2`."""
    if not word.startswith("--"):
        return _SHORT.get(word[1:2], word[1:2]), word[2:]
    name, _, value = word[2:].partition("=")
    name = name.replace("_", "-")
    if name not in OPTIONS["srun"]["long"]:
        # the beginning of a name will do if no other option has it
        names = [each for each in OPTIONS["srun"]["long"] if each.startswith(name)]
        name = names[0] if len(names) == 1 else name
    return _SYNONYMS.get(name, name), value


_SYNONYMS = {"node": "nodes", "tasks-per-node": "ntasks-per-node"}


def _inner_launch(
    launch: LaunchCommand, command: ShellCommand, files: ScriptFiles
) -> LaunchCommand:
    """Return the launch command in the script that a shell runs: after `-c`, in a file, or in the
    here-document of the command. It has no words if there is none, or more than one."""
    rest = launch.words
    script: str | None = command.document
    if os.path.basename(rest[0]) in ("bash", "sh"):
        rest = rest[1:]
    is_text = False
    while rest and rest[0].startswith("-"):
        is_text = is_text or rest[0].endswith("c")
        rest = rest[1:]
    arguments = rest[1:]
    if not rest:
        launch.lost.pop("<", None)  # the shell reads it
    elif is_text:
        script = rest[0]
        arguments = rest[2:]  # the word after the text is `$0`
    else:
        script = files.read(rest[0])
    if script is None:
        why = f"`{rest[0]}` is not here" if rest else "it starts a shell without a script"
        return LaunchCommand([], why_not=why)
    try:
        variables: dict[str, Value] = {**command.exported, **command.assigned, **launch.variables}
        with_arguments = {**variables, "@": arguments}
        if isinstance(script, Open) and script.has_arguments:
            del with_arguments["@"]  # `$1` may be an argument of the script around it
        commands = files.commands_of(script, with_arguments)
    except ValueError as error:
        return LaunchCommand([], why_not=str(error))
    line, _ = only_launch(commands, files)
    if line is None:
        return LaunchCommand([], why_not=why_none(commands, files))

    line.lost = launch.lost | line.lost
    line.srun = line.srun or launch.srun
    for name, value in line.variables.items():
        if not isinstance(value, Open) or value == variables.get(name):
            launch.variables[name] = value
        elif name not in LAUNCHER_VARIABLES:
            line.lost[f"${name}"] = f"only the shell of a rank knows `{value[:80]}`"
    line.variables = launch.variables
    return line


Pair = tuple[ShellCommand, LaunchCommand]


def only_launch(
    commands: Sequence[ShellCommand], files: ScriptFiles
) -> tuple[LaunchCommand | None, Sequence[Pair]]:
    """Return the only launch command in a script's commands, or None; and all that may be meant,
    with the commands that start them."""
    pairs = []
    for command in commands:
        line = unwrap(command, files)
        if line.words:
            pairs.append((command, line))
    # a script may also prepare its data with Python, or start the training under other conditions
    most = max((_signs_of_training(*pair) for pair in pairs), default=())
    pairs = [pair for pair in pairs if _signs_of_training(*pair) == most]
    if len(pairs) != 1:
        return None, pairs

    start, line = pairs[0]
    place = commands.index(start)
    line.before = [*commands[:place], *line.before]
    line.after = [*commands[place + 1 :], *line.after]
    line.variables = start.exported | start.assigned | line.variables
    line.condition = start.condition
    if start.condition:
        line.lost[start.condition[:80]] = (
            "only a running shell decides whether this runs, and how often: the job runs it once"
        )
    return line, pairs


_TRAINING = re.compile(r"(train|tune|main)\w*(\.py)?$")


def _signs_of_training(command: ShellCommand, line: LaunchCommand) -> tuple[bool, ...]:
    """Return whether a command is unconditional, starts more than Python, on other machines, and a
    script whose name says so. What comes first weighs most."""
    is_launcher = tool_of(line.words) != ("python", 1)
    is_named = any(_TRAINING.search(word) for word in line.words[1:4])
    return (not command.condition, is_launcher, line.srun is not None, is_named)


def why_none(commands: Sequence[ShellCommand], files: ScriptFiles) -> str:
    """Return which line of a script may start a training, and why cloudtrain cannot read it."""
    for command in reversed(commands):
        if command.words[:1] == ["exit"] and not command.condition:
            return f"line {command.line} ends the script (`--args` gives it arguments)"
        if command.words and not is_harmless(command) and not SETUP.match(command.text):
            why = unwrap(command, files).why_not
            return f"line {command.line} starts `{command.text[:80]}`, which it cannot read: {why}"
    return "it has no command"


_OTHER_WORK = frozenset("install add create activate build pull push".split())
"""What a wrapper such as conda, uv or docker does instead of starting a command."""

_BEFORE_NAME = frozenset("-n --name --with --extra --group -p --prefix --package -t --tag".split())
"""Options of wrappers before the name of an environment or a package, such as `deepspeed`."""


def _take_off(launch: LaunchCommand, name: str) -> None:
    """Take the wrapper `name` off, with its options: all words up to the next shell, `srun` or
    launcher. If none follows, the launch command has no words then."""
    rest = launch.words[1:]
    for at, word in enumerate(rest):
        if word in _OTHER_WORK:
            break
        is_value = at > 0 and rest[at - 1] in _BEFORE_NAME
        is_wrapper = os.path.basename(word) in ("bash", "sh", "srun")
        if is_value or (not is_wrapper and tool_of(rest[at:]) is None):
            continue

        launch.words = rest[at:]
        wrapper = rest[:at]
        # these three change nothing for a job, unless they have options
        if wrapper or name not in ("time", "stdbuf", "sudo"):
            shown = " ".join([name, *wrapper])
            launch.lost[shown[:80]] = (
                f"the job starts the launch line without `{shown}`: an image or the setting "
                "`setup` prepares the packages"
            )
        return
    launch.words = []
    launch.why_not = f"no launcher follows `{name}`"


def not_run_in(commands: Sequence[ShellCommand]) -> dict[str, str]:
    """Return what is lost with the commands that the job does not run."""
    lines = dict[str, list[str]]()
    for command in commands:
        if not command.words or not is_harmless(command):
            lines.setdefault(command.condition, []).append(command.text)
    lost = {}
    for condition, texts in lines.items():
        why = f"the job does not run these lines: {'; '.join(texts)[:200]}"
        if condition:
            why = f"only a running shell knows whether this happens, and {why}"
        lost[condition[:80] or "other lines"] = why
    return lost


def is_harmless(command: ShellCommand) -> bool:
    """Return whether the training is the same without this command, such as `echo`."""
    name = command.words[0]
    if name == "cd":  # which is followed
        return True
    if name == "scontrol":
        return command.words[1:2] == ["show"]
    if name not in OPTIONS["shell"]["harmless"] or (name == "env" and len(command.words) > 1):
        return False
    if command.input == "|":
        return True
    return not re.search(r"[^&\d]>(?! ?/dev/null)|<<", command.text)
