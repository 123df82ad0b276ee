"""What a shell script has set and run so far, and what commands such as `export` do to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cloudtrain.adoption.expansion import (
    IN_ENVIRONMENT,
    Value,
    is_unknown,
    marked,
    result_of,
    unknown,
    without_marks,
)

DECLARATIONS = frozenset("export declare local readonly typeset".split())
"""Commands that take assignments as arguments."""
_OF_FUNCTION = frozenset("local declare typeset".split())
_SETTING = frozenset("read mapfile readarray let getopts".split())
"""Commands that set the variables that they name."""

FAILURE = "||"
"""The condition of commands that run if one fails whose success is assumed."""


@dataclass
class ShellCommand:
    """A simple command of a script."""

    text: str
    """The command as written, on one line."""
    words: list[str] = field(default_factory=list)
    """The command's name and arguments, with variables replaced. An unknown variable makes the word
    `Open`. Empty if the command only sets variables."""
    assigned: dict[str, str] = field(default_factory=dict)
    """The variables set before the command's name, as in `A=1 train`."""
    exported: dict[str, str] = field(default_factory=dict)
    """The environment variables that the script has set by then."""
    input: str = ""
    """What the command reads, as written; `|` for the output of the command before it."""
    line: int = 1
    condition: str = ""
    """If the script may not run the command: the condition that cannot be decided."""
    document: str | None = None
    """The here-document that the command reads."""
    output: str = ""
    """The file that the command writes to."""


@dataclass
class Script:
    """What a script has set and run so far."""

    variables: dict[str, Value]
    read: Callable[[str], str | None]
    """Returns the text of another script; None if it is not here."""
    exported: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    commands: list[ShellCommand] = field(default_factory=list)
    condition: str = ""
    """The outermost condition that cannot be decided around the current command."""
    is_skipped: bool = False
    """Whether the script does not run the current command."""
    decides: bool = False
    """Whether the current command decides what runs."""
    holds: bool | None = True
    """Whether the last command succeeded; None if the text does not show it."""
    exports: set[str] = field(default_factory=set)
    """Names that are exported once they are set."""
    exports_all: bool = False
    """Whether `set -a` exports what is set."""
    locals: set[str] = field(default_factory=set)
    """The variables of the current function."""
    count: int = 0
    depth: int = 0

    def record(self, command: ShellCommand) -> None:
        """Add a command to those that the script runs."""
        command.words = list(map(result_of, command.words))
        command.assigned = _results_of(command.assigned)
        command.exported = _results_of(self.exported)
        self.commands.append(command)

    def set_variables(self, assigned: Mapping[str, str]) -> None:
        """Set variables. Those that the shell has from its environment are exported already."""
        self.variables |= assigned
        if "IFS" in assigned:  # words are split at spaces here
            line = ShellCommand(f"IFS={without_marks(assigned['IFS'])}")
            line.condition = self.condition
            self.record(line)
        for name, value in assigned.items():
            is_exported = name in self.exported or name in self.exports
            if is_exported or self.exports_all or IN_ENVIRONMENT.fullmatch(name):
                self.exported[name] = value

    def carry_out(self, command: ShellCommand) -> bool:
        """Carry out a command that sets variables. Return whether it is one, and runs."""
        name, *arguments = command.words
        if name == "unset" and arguments[:1] != ["-f"]:
            for each in arguments:
                self.variables[each] = []
            return self._is_forgotten(arguments)
        if (name == "export" and "-n" in arguments) or (name in DECLARATIONS and "+x" in arguments):
            self.variables |= command.assigned
            return self._is_forgotten([*arguments, *command.assigned])
        if name == "read" and command.document is not None:
            self.variables[arguments[-1]] = marked(command.document)
        elif name in _SETTING:
            for each in re.findall(r"(?<![\w-])[A-Za-z_]\w*", " ".join(arguments)):
                self.variables[each] = unknown(f"${each}", is_of_script=True)
        elif name == "shift":
            values = self.variables.pop("@", None)
            count = "".join(arguments) or "1"
            if values is not None and count.isdecimal():
                self.variables["@"] = list(values[int(count) :])
        elif name == "set" and arguments[:1] == ["--"]:
            self.variables["@"] = arguments[1:]
        elif name == "set" and arguments in (["-a"], ["+a"]):
            self.exports_all = arguments == ["-a"]
        elif name in DECLARATIONS and not any(map(is_unknown, arguments)):
            if name in _OF_FUNCTION:
                self.locals |= {*command.assigned, *arguments}
            self.set_variables(command.assigned)
            if name == "export" or "-x" in arguments:
                self.exported |= command.assigned
                self.exports.update(arguments)
                for each in arguments:
                    value = self.variables.get(each)
                    if isinstance(value, str):
                        self.exported[each] = value
        elif name != "unset":
            return False
        return not self.condition

    def _is_forgotten(self, names: Sequence[str]) -> bool:
        """Let later commands not have the variables `names`. Return whether none of them can be in
        the environment of the script."""
        is_own = not self.condition
        for name in names:
            if name.startswith(("-", "+")):
                continue
            was_set = name in self.exported and not IN_ENVIRONMENT.fullmatch(name)
            is_own = is_own and was_set
            self.exported.pop(name, None)
            self.exports.discard(name)
        return is_own


def _results_of(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: result_of(value) for name, value in variables.items()}
