"""Reads the commands of a shell script, with the variables whose values the script's text shows.
Runs nothing."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_MOST = 1 << 20
"""Maximum length of a value. Variables that contain each other could grow without a limit."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
# NAME, NAME[INDEX], NAME-DEFAULT, NAME:-DEFAULT
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?:\[([@*]|\d+)\])?(?:(:?)-([^'\"\\]*))?", re.DOTALL)
_SPACE = re.compile(r"[ \t\n]+")
_REDIRECTION = re.compile(r"(?:\d*|&)(<<<|<<-?|>>|<>|[<>])(&?)")
_PLAIN = re.compile(r'[^"\\$`]+')
_ESCAPED = re.compile(r'\\[$`"\\\n]')
"""A backslash in double quotes, and a character after which it does not stay."""
_SEPARATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_KEYWORDS = frozenset(
    "if then elif else while until do { } fi done ! time exec nohup command".split()
)
_DECLARATIONS = frozenset("export declare local readonly typeset".split())


class Open(str):
    """A text with a part that only a running shell knows, such as `$1` or `$(date)`. This part is
    kept as written."""

    __slots__ = ()


Value = str | list[str]

Expansion = tuple[list[str], bool]
"""The words that a part of a script expands to, and whether only a running shell knows them."""


@dataclass
class ShellCommand:
    """A simple command of a script."""

    text: str
    """The command as written, on one line."""
    words: list[str] = field(default_factory=list)
    """The command's name and arguments, with variables replaced. An unknown variable makes the word
    `Open`."""
    assigned: dict[str, str] = field(default_factory=dict)
    """The variables set before the command's name, as in `A=1 train`."""
    exported: dict[str, str] = field(default_factory=dict)
    """The environment variables that the script has set by then."""
    after_pipe: bool = False
    """Whether the command reads the output of the command before it."""


def commands_of(text: str, variables: Mapping[str, Value] | None = None) -> list[ShellCommand]:
    """Return the commands of a script in order. Assignments and redirections are not commands;
    `variables` are set at the start.

    Raises:
        ValueError: a quote or bracket is not closed, or a value is too long.
    """
    return _Reader(text.replace("\r\n", "\n"), dict(variables or {})).commands()


class _Reader:
    """Reads a script once from its beginning. A method reads what begins at `at`, and moves `at`
    behind it."""

    def __init__(self, text: str, variables: dict[str, Value]) -> None:
        self.text = text
        self.at = 0
        self.variables = variables
        self.exported: dict[str, str] = {}
        self.documents: list[str] = []
        """The last lines of the here-documents that begin below the current line."""

    def commands(self) -> list[ShellCommand]:
        commands = list[ShellCommand]()
        is_after_pipe = False
        while self.at < len(self.text):
            start = self.at
            command, separator = self._command()
            command.after_pipe = is_after_pipe
            is_after_pipe = separator in ("|", "|&")

            lines = self.text[start : self.at].replace("\\\n", " ")
            command.text = " ".join(lines.split()).rstrip("&|;() ")

            if command.words and not self._declares(command):
                command.exported = dict(self.exported)
                commands.append(command)
            if separator == "\n":
                self._skip_documents()
        return commands

    def _command(self) -> tuple[ShellCommand, str]:
        """Read a command. Return it with what ends it, such as `;`; empty at the end of the text.
        The command has no words if the text only sets variables."""
        command = ShellCommand("")
        while self.at < len(self.text):
            redirection = _REDIRECTION.match(self.text, self.at)
            separator = _SEPARATOR.match(self.text, self.at)
            takes_assignments = not command.words or command.words[0] in (*_DECLARATIONS, "env")
            assignment = _ASSIGNED.match(self.text, self.at) if takes_assignments else None

            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in " \t":
                self.at += 1
            elif self.text[self.at] == "#":
                self._skip_line()
            elif redirection:
                self._redirect(redirection)
            elif separator:
                self.at = separator.end()
                self._end(command)
                return command, separator[0]
            elif assignment:
                self._assign(assignment, command)
            else:
                words = self._word()
                # a keyword at the beginning is followed by the command itself
                if command.words or words != words[:1] or words[0] not in _KEYWORDS:
                    command.words += words
        self._end(command)
        return command, ""

    def _end(self, command: ShellCommand) -> None:
        """Set the script's variables, if the command only assigns. Before a command's name, they
        are set for that command alone."""
        if command.words:
            return
        self.variables |= command.assigned
        for name, value in command.assigned.items():
            if name in self.exported:
                self.exported[name] = value

    def _declares(self, command: ShellCommand) -> bool:
        """Carry out a command that sets variables. Return whether the command is one."""
        if command.words[0] == "unset":
            for name in command.words[1:]:
                self.variables.pop(name, None)
                self.exported.pop(name, None)
            return True
        if command.words[0] not in _DECLARATIONS:
            return False
        self.variables |= command.assigned
        if command.words[0] == "export" or "-x" in command.words:
            self.exported |= command.assigned
            for name in command.words[1:]:
                value = self.variables.get(name)
                if isinstance(value, str):
                    self.exported[name] = value
        return True

    def _assign(self, match: re.Match[str], command: ShellCommand) -> None:
        """Read the value after `NAME=` or `NAME+=`. An array is set at once, a text when the
        command ends."""
        self.at = match.end()
        name, plus = match.groups()
        before = self.variables.get(name) if plus else None
        if self.text.startswith("(", self.at):
            self.at += 1
            items = [before] if isinstance(before, str) else before or []
            self.variables[name] = [*items, *self._array()]
            return

        words = self._word(split=False)
        value = _joined(" ", words)
        if not isinstance(before, str):
            before = ""
        command.assigned[name] = _joined("", (before, value))

    def _array(self) -> list[str]:
        """Read the words of an array, after its opening bracket."""
        words = list[str]()
        while self.at < len(self.text):
            if self.text[self.at] in " \t\n":
                self.at += 1
            elif self.text[self.at] == "#":
                self._skip_line()
            elif self.text[self.at] == ")":
                self.at += 1
                return words
            else:
                words += self._word(in_array=True)
        raise ValueError("the bracket of an array is not closed")

    def _word(self, *, split: bool = True, in_array: bool = False) -> list[str]:
        """Read a word. Return the words that it expands to; with `split=False`, at least one."""
        ends = " \t\n)" if in_array else " \t\n;&|()<>"
        result = _Words()
        while self.at < len(self.text) and self.text[self.at] not in ends:
            letter = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif letter in "'\\":
                result.add([self._literal()])
            elif letter == '"':
                result.add(*self._quoted())
            elif letter in "$`":
                values, unknown = self._expanded()
                if split and not unknown:
                    result.add_split(values)
                else:
                    result.add(values, unknown)
            else:
                self.at += 1
                result.add([letter], letter == "~" and result.current is None)
        if not split:
            result.add([""])
        return result.end()

    def _literal(self) -> str:
        """Read a text in single quotes, or a backslash with the character after it."""
        if self.text[self.at] == "\\":
            self.at += 2
            # a backslash at the end of a line joins it with the next one
            return self.text[self.at - 1 : self.at].replace("\n", "")
        end = self._find("'", self.at + 1)
        text = self.text[self.at + 1 : end]
        self.at = end + 1
        return text

    def _quoted(self) -> Expansion:
        """Read a text in double quotes. Return several words, or none, if it contains all words of
        an array."""
        self.at += 1
        words = [""]
        is_open = False
        has_empty_array = False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                if has_empty_array and words == [""]:
                    words = []
                return words, is_open

            unknown = False
            if _ESCAPED.match(self.text, self.at):
                values = [self._literal()]
            elif letter in "$`":
                values, unknown = self._expanded(quoted=True)
                has_empty_array = has_empty_array or not values
            else:
                plain = _PLAIN.match(self.text, self.at)
                values = [plain[0] if plain else letter]
                self.at += len(values[0])
            # a part joins the word before it; the other values of an array are words of their own
            words[-1] += "".join(values[:1])
            words += values[1:]
            is_open = is_open or unknown
        raise ValueError("a quote is not closed")

    def _expanded(self, *, quoted: bool = False) -> Expansion:
        """Read what begins with `$` or a backtick. Return its value, or the values of an array, and
        whether only a running shell knows them."""
        start = self.at
        following = self.text[start + 1 : start + 2]
        name = _NAME.match(self.text, start + 1)
        is_open = True
        parameter = ""

        if self.text[start] == "`":
            self.at = self._find("`", start + 1) + 1
        elif following == "'" and not quoted:
            self.at = self._find("'", start + 2) + 1
        elif following == "(":
            self.at = self._closing(start + 1, "(", ")")
        elif following == "{":
            self.at = self._closing(start + 1, "{", "}")
            parameter = self.text[start + 2 : self.at - 1]
        elif name:
            self.at = name.end()
            parameter = name[0]
        elif following and following in "@*#?$!-0123456789":
            self.at += 2
        else:  # a plain dollar sign
            self.at += 1
            is_open = False

        raw = self.text[start : self.at]
        match = _PARAMETER.fullmatch(parameter)
        if match:
            return self._value(match, raw, quoted)
        if raw.startswith("$((") and raw.endswith("))"):
            value = self._computed(raw[3:-2])
            if value is not None:
                return [value], False
        return [raw], is_open

    def _value(self, match: re.Match[str], raw: str, quoted: bool) -> Expansion:
        """Return the value of a variable, or the values of an array, and whether a part of it is
        `Open`. `raw` is the parameter as written."""
        name, index, colon, default = match.groups()
        value = self.variables.get(name)
        if value is None and default is None:
            return [raw], True

        words = [value] if isinstance(value, str) else value or []
        if index not in ("@", "*"):
            place = int(index or 0)
            # an open text may be several words, or none, so the place is not known
            if _has_open(words[:place]):
                return [raw], True
            words = words[place : place + 1]
        if default is not None and (not words or (colon and not any(words))):
            words = _Reader(f'"{default}"', self.variables)._word(split=False)

        is_open = _has_open(words)
        if index == "*" and quoted:
            words = [" ".join(words)]
        if not words and index != "@":
            words = [""]
        return words, is_open

    def _computed(self, text: str) -> str | None:
        """Return the value of an arithmetic expression of known whole numbers; None for other
        expressions."""

        def named(match: re.Match[str]) -> str:
            value = self.variables.get(match[1])
            if isinstance(value, str) and value.isdecimal():
                return value
            return "?"  # not known: the pattern below refuses it

        numbers = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", named, text)
        if not re.fullmatch(r"[\d\s()+*/%-]{1,80}", numbers):
            return None
        try:
            expression = ast.parse(numbers.strip(), mode="eval")
            return str(_number(expression.body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return None

    def _redirect(self, match: re.Match[str]) -> None:
        """Read where a redirection leads, and note the last line of a here-document."""
        self.at = match.end()
        if self.text.startswith("(", self.at):
            self.at = self._closing(self.at, "(", ")")
            return
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1
        words = self._word(split=False)
        if match[1] in ("<<", "<<-"):
            self.documents.append("".join(words))

    def _skip_documents(self) -> None:
        while self.documents:
            last_line = self.documents.pop(0)
            while self.at < len(self.text):
                start = self.at
                self._skip_line()
                line = self.text[start : self.at].strip()
                self.at += 1
                if line == last_line:
                    break

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _find(self, mark: str, start: int) -> int:
        """Return the place of the next `mark`, which closes a quote."""
        end = self.text.find(mark, start)
        if end < 0:
            raise ValueError("a quote is not closed")
        return end

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """Return the place after the bracket that closes the one at `start`."""
        depth = 0
        at = start
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                at += 1
            elif letter in "'\"":
                at = self._find(letter, at + 1)
            depth += (letter == opening) - (letter == closing)
            at += 1
            if not depth:
                return at
        raise ValueError(f"a `{opening}` is not closed")


class _Words:
    """The words to which one word expands, built from its parts."""

    def __init__(self) -> None:
        self.current: str | None = None
        """The word so far; None before its first part."""
        self._open = False
        self._words = list[str]()

    def add(self, values: Sequence[str], unknown: bool = False) -> None:
        """Append a part. Between two values, a new word begins."""
        for number, value in enumerate(values):
            if number:
                self.end()
            self.current = (self.current or "") + value
            self._open = self._open or unknown
            if len(self.current) > _MOST or len(self._words) > _MOST:
                raise ValueError("a variable is too long")

    def add_split(self, values: Sequence[str]) -> None:
        """Append the value of a variable outside of quotes, whose spaces separate words."""
        for number, value in enumerate(values):
            if number or _SPACE.match(value):
                self.end()
            self.add([part for part in _SPACE.split(value) if part])
            if _SPACE.match(value[-1:]):
                self.end()

    def end(self) -> list[str]:
        """End the current word. Return all words."""
        if self.current is not None:
            self._words.append(Open(self.current) if self._open else self.current)
        self.current = None
        self._open = False
        return self._words


def _joined(separator: str, parts: Sequence[str]) -> str:
    """Join the parts of a value. The result is `Open` if one of them is."""
    text = separator.join(parts)
    if len(text) > _MOST:
        raise ValueError("a variable is too long")
    return Open(text) if _has_open(parts) else text


def _has_open(parts: Sequence[str]) -> bool:
    return any(isinstance(part, Open) for part in parts)


def _number(node: ast.expr) -> int:
    """Return the value of an arithmetic expression. Raises ValueError for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        for kind, compute in _OPERATIONS.items():
            if isinstance(node.op, kind):
                return compute(left, right)
    raise ValueError("not arithmetic")


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b), ast.Mod: operator.mod,
}  # fmt: skip
