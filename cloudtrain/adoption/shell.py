"""Reads the commands that a shell script runs, with the variables whose values the script's text
shows. Follows conditions that are known, loops, functions, `eval` and `source`. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeVar

from cloudtrain.adoption.expansion import (
    Value,
    WordReader,
    check_length,
    is_unknown,
    marked,
    matches,
    result_of,
    truth,
    unknown,
    without_marks,
)
from cloudtrain.adoption.shell_state import DECLARATIONS, FAILURE, Script, ShellCommand

_Result = TypeVar("_Result")

_MOST_COMMANDS = 5000
"""Maximum number of commands that are read. Functions that call each other could grow without a
limit."""

_MOST_TEXT = 1 << 18
_MOST_ITEMS = 64
_MOST_DEPTH = 20

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=")
_REDIRECTION = re.compile(r"(?:\d*|&)(<<<|<<-?|>>|<>|[<>])(&?)")
_SEPARATOR = re.compile(r"[;&|()\n]")
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*")
"""Spaces, joined lines and a comment."""
_SEMICOLON = re.compile(r";(?!;)")
_FIRST = re.compile(r";;&?|;&|\(\(|[()]|[^\s;&|()<>\"'$`\\]+")
"""The plain word or the bracket with which a command begins."""
_AND_OR = re.compile(r"[ \t]*(&&|\|\|)")
_PIPE = re.compile(r"[ \t]*\|&?(?!\|)")
_DEFINITION = re.compile(
    r"(?:function[ \t]+([\w:.-]+)[ \t]*(?:\([ \t]*\))?|([\w:.-]+)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
_IN_TEST = re.compile(r"(&&|\|\||[()<>])(?=\s)")
_BEFORE_COMMAND = frozenset("time exec nohup command builtin".split())
_SUBMITS = re.compile(r"\s*(?:\w+=\S*\s+)*sbatch\s")
"""The beginning of a command that submits a script."""


class _Left(Exception):
    """The script, or the function, ends here."""


def commands_of(
    text: str,
    variables: Mapping[str, Value] | None = None,
    read: Callable[[str], str | None] = lambda _: None,
    exported: Collection[str] = (),
) -> list[ShellCommand]:
    """Return the commands that a script runs, in order. `variables` are set at the start; `@` are
    the script's arguments, and those in `exported` are environment variables. `read` returns the
    text of a script that this one sources. What sets variables is a command only under a condition
    that cannot be decided.

    Raises:
        ValueError: a quote, a bracket or a loop is not closed, or a value is too long.
    """
    if len(text) > _MOST_TEXT:
        raise ValueError(f"it has more than {_MOST_TEXT >> 10} KiB")
    script = Script({}, read)
    for name, value in (variables or {}).items():
        script.variables[name] = marked(value) if isinstance(value, str) else value
        if name in exported and isinstance(value, str):
            script.exported[name] = marked(value)
    text = without_marks(text.replace("\r\n", "\n"))
    with suppress(_Left):
        _Reader(text, script).read_list()
    return script.commands


class _Reader(WordReader):
    """Reads the commands of a text once from its beginning."""

    def __init__(self, text: str, script: Script, line: int | None = None) -> None:
        super().__init__(text, script.variables)
        self.script = script
        self.line = line
        """The line of the script that runs this text; None for the script itself."""
        self.documents: dict[int, int] = {}
        """Maps the ends of lines to the ends of the here-documents that begin below them."""

    def read_list(self, *ends: str) -> str:
        """Read commands up to one of the words `ends`. Return it."""
        while True:
            word = self._next()
            start = self.at
            if word in ends:
                self.at += len(word)
                return word
            if self.at >= len(self.text):
                if ends:
                    raise ValueError(f"`{ends[-1]}` is missing")
                return ""
            self._and_or()
            if self.at == start:
                raise ValueError(f"`{self.text[start]}` begins no command")

    def _next(self) -> str:
        """Move to the next command. Return the plain word with which it begins."""
        while True:
            self._skip()
            if self.text.startswith("\n", self.at):
                self.at = self.documents.get(self.at, self.at + 1)
            elif _SEMICOLON.match(self.text, self.at):
                self.at += 1
            else:
                break
        match = _FIRST.match(self.text, self.at)
        return match[0] if match else ""

    def _and_or(self) -> None:
        """Read commands that are joined by `&&` and `||`."""
        script = self.script
        start = self.at
        first = len(script.commands)
        with_alternative = list[ShellCommand]()
        self._pipeline()
        while match := _AND_OR.match(self.text, self.at):
            condition = self._shown(start)
            self.at = match.end()
            holds = script.holds
            if match[1] == "||":
                with_alternative = with_alternative or script.commands[first:]
                if holds and len(script.commands) > first:
                    self._under(None, FAILURE, self._pipeline)
                    script.holds = True
                    continue
                holds = None if holds is None else not holds
            is_assumed = len(script.commands) > first
            try:
                self._under(holds, condition, self._pipeline)
            except _Left as left:
                if left.args != ("exit",) or not is_assumed:
                    raise
                # the rest of the script runs if a command before the `exit` fails
                self.at = match.end()
                self._under(False, "", self._pipeline)
                script.condition = FAILURE
        for command in with_alternative:  # a line of setup keeps what runs if it fails
            command.text = self._shown(start)
        while self.text.startswith((" ", "\t", "&"), self.at):
            self.at += 1

    def _pipeline(self) -> None:
        self._command()
        while match := _PIPE.match(self.text, self.at):
            self.at = match.end()
            self._command("|")

    def _shown(self, start: int) -> str:
        """Return the text since `start` on one line."""
        text = self.text[start : self.at].replace("\\\n", " ")
        return " ".join(text.split())

    def _under(self, holds: bool | None, condition: str, read: Callable[[], _Result]) -> _Result:
        """Read commands that run if `holds`. None means that `condition` cannot be decided: then
        they count as not run, so the variables that they set keep their values."""
        script = self.script
        condition_before = script.condition
        was_skipped = script.is_skipped
        held = script.holds
        variables = dict(script.variables)
        exported = dict(script.exported)
        script.is_skipped = script.is_skipped or holds is False
        if holds is None:
            script.condition = script.condition or condition or "a condition"
        result = read()
        script.is_skipped = was_skipped
        if holds is None:
            script.condition = condition_before
        if not holds:
            script.variables.clear()
            script.variables.update(variables)
            script.exported = exported
            script.holds = None if holds is None else held
        return result

    def _command(self, source: str = "") -> None:
        """Read a command, which reads from `source`: `|` is the output of the one before."""
        script = self.script
        script.count += 1
        if script.count > _MOST_COMMANDS:
            raise ValueError("it has too many commands")

        word = self._next()
        first = len(script.commands)
        compound = _COMPOUNDS.get(word)
        definition = _DEFINITION.match(self.text, self.at)
        if compound:
            self.at += len(word)
            compound(self, word)
            block = ShellCommand("", input=source)
            self._redirections(block)
            self._feed(first, block.input)
        elif word == "!":
            self.at += 1
            self._command()
            script.holds = None if script.holds is None else not script.holds
        elif definition:
            self.at = definition.end()
            start = self.at
            self._under(False, "", self._command)
            if not script.is_skipped:
                script.functions[definition[1] or definition[2]] = self.text[start : self.at]
        else:
            self._simple(source)

    def _feed(self, first: int, source: str) -> None:
        """Let the commands from the number `first` read from `source`, unless they read from
        something else."""
        for command in self.script.commands[first:]:
            command.input = command.input or source

    def _decided(self, end: str) -> bool | None:
        """Read a condition up to the word `end`. Return whether it holds; None if the script's text
        does not show it."""
        before = self.script.decides
        self.script.decides = True
        self.read_list(end)
        self.script.decides = before
        return self.script.holds

    def _if(self, word: str) -> None:
        """Read all branches. A condition that cannot be decided counts as not met, unless the
        script ends then."""
        script = self.script
        start = self.at - len(word)
        first = 0
        undecided: int | None = None
        is_done = False
        while word in ("if", "elif"):
            holds = self._under(not is_done, "", lambda: self._decided("then"))
            holds = False if is_done else holds
            if holds is None and undecided is None:
                undecided = self.at
                first = len(script.commands)  # those of the condition run
            condition = self._shown(start)
            word = self._under(holds, condition, lambda: self.read_list("elif", "else", "fi"))
            is_done = is_done or holds is True
        if word == "fi":
            if undecided is None and not is_done:
                script.holds = True
            return

        start = self.at
        if undecided is not None and not is_done:
            self._under(False, "", lambda: self.read_list("fi"))
            end = self.at
            self.at = start
            if re.search(r"\bexit\b", self.text[start:end]):
                del script.commands[first:]
                self.at = undecided
                self.read_list("elif", "else", "fi")
                self.at = end
                return
        self._under(not is_done, "", lambda: self.read_list("fi"))

    def _for(self, word: str) -> None:
        start = self.at - len(word)
        name = ""
        items = self.variables.get("@")
        if self._next() == "((":
            self.at = self._closing(self.at, "(", ")")
            items = None
        else:
            name = self._next()
            self.at += len(name)
            if self._next() == "in":
                self.at += 2
                items = self._words(";\n")
        condition = self._shown(start)
        self._next()
        self.at += len("do")

        body = self.at
        if not isinstance(items, list) or any(map(is_unknown, items)) or len(items) > _MOST_ITEMS:
            self.variables[name] = unknown(f"${name}", is_of_script=True)
            self._under(None, condition, lambda: self.read_list("done"))
        elif not items or self.script.is_skipped:
            self._under(False, "", lambda: self.read_list("done"))
        else:
            for item in items:
                self.at = body
                self.variables[name] = item
                self.read_list("done")

    def _while(self, word: str) -> None:
        """Read a loop, and run it as long as its condition is known to hold."""
        start = self.at - len(word)
        condition_start = self.at
        first = len(self.script.commands)
        for _ in range(_MOST_ITEMS):
            self.at = condition_start
            holds = self._decided("do")
            if word == "until" and holds is not None:
                holds = not holds
            condition = self._shown(start)
            if not holds or self.script.is_skipped:
                break
            self.read_list("done")
            if "$" not in condition:  # a loop that only a signal ends
                self._mark(first, condition)
                return
        else:
            raise ValueError("a loop does not end")
        if holds is None:
            self._mark(first, condition)
        is_over = False if holds is False else None
        self._under(is_over, condition, lambda: self.read_list("done"))
        self.script.holds = holds is False or None

    def _mark(self, first: int, condition: str) -> None:
        """Let the commands from the number `first` have a condition."""
        for command in self.script.commands[first:]:
            command.condition = command.condition or condition

    def _case(self, _: str) -> None:
        start = self.at - len("case")
        self._next()
        subject = self.text_word()
        self._next()
        self.at += len("in")
        is_done = False
        shown = self._shown(start)
        while self._next() != "esac":
            if self.text.startswith("(", self.at):
                self.at += 1
            end = self._find(")", self.at)
            patterns = self.text[self.at : end]
            self.at = end + 1
            holds: bool | None = False
            if not is_done:
                holds = self._matches(subject, patterns)
            word = self._under(
                holds, f"{shown} {patterns})", lambda: self.read_list(";;", ";&", ";;&", "esac")
            )
            is_done = is_done or holds is True
            if word == "esac":
                return
        self.at += len("esac")

    def _matches(self, subject: str, patterns: str) -> bool | None:
        """Return whether a value has one of the patterns `A|B`; None if that is not known."""
        result: bool | None = False
        for pattern in patterns.split("|"):
            word = WordReader(pattern.strip(), self.variables).text_word("")
            found = matches(word, subject)
            if found:
                return True
            if found is None:
                result = None
        return result

    def _group(self, word: str) -> None:
        """Read `{ ...; }`, or `( ... )`, whose variables are its own."""
        if word == "{":
            self.read_list("}")
            return
        before = dict(self.variables)
        self.read_list(")")
        self.variables.clear()
        self.variables.update(before)

    def _arithmetic(self, word: str) -> None:
        start = self.at
        self.at = self._closing(start - len(word), "(", ")")
        for name in re.findall(r"[A-Za-z_]\w*", self.text[start : self.at]):
            self.variables[name] = unknown(f"${name}", is_of_script=True)
        self.script.holds = None

    def _test(self, _: str) -> None:
        """Read `[[ ... ]]`."""
        words = list[str]()
        while not self.text.startswith("]]", self.at):
            symbol = _IN_TEST.match(self.text, self.at)
            if self.at >= len(self.text):
                raise ValueError("`]]` is missing")
            if symbol:
                words.append(symbol[0])
                self.at = symbol.end()
            elif self.text[self.at] in " \t\n\\":
                self.at += 1
            else:
                words += self.word(split=False, ends=" \t\n")
        self.at += len("]]")
        self.script.holds = truth(words)

    def _simple(self, source: str) -> None:
        """Read a simple command and carry it out."""
        start = self.at
        line = self.line or self.text.count("\n", 0, start) + 1
        command = ShellCommand("", input=source, line=line, condition=self.script.condition)
        first = len(self.script.commands)
        self._redirections(command)
        while self.at < len(self.text) and not _SEPARATOR.match(self.text, self.at):
            takes_assignments = not command.words or command.words[0] in (*DECLARATIONS, "env")
            assignment = _ASSIGNED.match(self.text, self.at) if takes_assignments else None
            if assignment:
                self._assign(assignment, command)
            else:
                words = self.word()
                is_prefix = not command.words and words and words[0] in _BEFORE_COMMAND
                # `command -v` is a command of its own
                if not is_prefix or self.text.startswith(" -", self.at):
                    command.words += words
            self._redirections(command)
        command.text = self._shown(start)
        if not self.script.is_skipped:
            self._run(command)
            self._feed(first, command.input)

    def _expanded(self, *, quoted: bool = False) -> list[str]:
        """Read what begins with `$` or a backtick, and run the `sbatch` in it, whose output is the
        number of a job: `JOB=$(sbatch a.sh)`."""
        start = self.at
        values = super()._expanded(quoted=quoted)
        inside = self.text[start + 1 : self.at - 1].removeprefix("(")
        if _SUBMITS.match(inside):
            script = self.script
            first = len(script.commands)
            line = self.line or self.text.count("\n", 0, start) + 1
            self._call(inside, ShellCommand("", line=line), None)
            commands = script.commands[first:]
            script.commands[first:] = [each for each in commands if each.words[:1] == ["sbatch"]]
        return values

    def _redirections(self, command: ShellCommand) -> None:
        """Read spaces, a comment and redirections."""
        self._skip()
        while match := _REDIRECTION.match(self.text, self.at):
            self._redirect(match, command)
            self._skip()

    def _skip(self) -> None:
        """Move over spaces, joined lines and a comment."""
        blanks = _BLANKS.match(self.text, self.at)
        assert blanks is not None, "it may be empty"
        self.at = blanks.end()

    def _redirect(self, match: re.Match[str], command: ShellCommand) -> None:
        """Read where a redirection leads, and the here-document below the line."""
        self.at = match.end()
        is_input = match[0].startswith(("<", "0<"))
        if self.text.startswith("(", self.at):
            self.at = self._closing(self.at, "(", ")")
            return
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1
        start = self.at
        word = self.text_word()
        if match[1] in ("<<", "<<-"):
            command.document = self._document(self.text[start : self.at])
        elif match[1] == ">":
            command.output = result_of(word)
        if is_input and word != "/dev/null":
            command.input = self._shown(start) or match[0]

    def _document(self, mark: str) -> str:
        """Return the lines below the current line up to `mark`. Variables are replaced in them,
        unless the mark has quotes."""
        last_line = re.sub(r"['\"\\]", "", mark)
        line_end = re.compile(r"(?<!\\)\n").search(self.text, self.at)
        end = line_end.start() if line_end else len(self.text)
        at = self.documents.get(end, end + 1)
        lines = list[str]()
        for line in self.text[at:].removesuffix("\n").split("\n"):
            at += len(line) + 1
            if line.strip() == last_line:
                break
            lines.append(line)
        self.documents[end] = at
        document = "\n".join(lines)
        if mark != last_line:
            return document
        return result_of(" ".join(WordReader(document, self.variables).quoted("")))

    def _assign(self, match: re.Match[str], command: ShellCommand) -> None:
        """Read the value after `NAME=` or `NAME+=`. An array is set at once, a text when the
        command ends."""
        self.at = match.end()
        name, index, plus = match.groups()
        before = self.variables.get(name) if plus else None
        if self.text.startswith("(", self.at):
            self.at += 1
            items = [before] if isinstance(before, str) else before or []
            self.variables[name] = [*items, *self._words(")")]
            self.at += 1
            return

        value = self.text_word()
        if not isinstance(before, str):
            before = ""
        check_length(before + value)
        command.assigned[name] = unknown(f"${name}", is_of_script=True) if index else before + value

    def _words(self, ends: str) -> list[str]:
        """Read words up to one of the characters `ends`."""
        words = list[str]()
        self._skip()
        while not self.text.startswith(tuple(ends), self.at):
            if self.at >= len(self.text):
                raise ValueError("the bracket of an array is not closed")
            if self.text[self.at] == "\n":
                self.at += 1
            else:
                words += self.word(ends=f" \t\n{ends}")
            self._skip()
        return words

    def _run(self, command: ShellCommand) -> None:
        """Carry out what a command does to the script, or add it to the script's commands."""
        script = self.script
        name, *arguments = command.words or [""]
        script.holds = None if script.decides else True
        if name in ("[", "test"):
            script.holds = truth(arguments[:-1] if name == "[" else arguments)
        elif name in ("true", ":", "false"):
            script.holds = name != "false"
        elif name in ("exit", "return") and not script.condition:
            script.record(command)
            raise _Left(name)
        elif name in script.functions:
            self._call_function(name, command, arguments)
        elif name == "trap" and arguments[:1] != [""]:
            handlers = [each for each in arguments if each != "--"]
            handler = result_of("".join(handlers[:1]))
            if not handler.startswith("-"):
                self._under(None, "trap", lambda: self._call(handler, command, None))
            script.holds = True
        elif name == "eval" and not (arguments and is_unknown(arguments[0][:1])):
            self._call(result_of(" ".join(arguments)), command, None)
        elif name in ("source", ".") and (text := script.read(result_of("".join(arguments[:1])))):
            self._call(text, command, arguments[1:] or None)
        elif not name or not script.carry_out(command):
            if not name:
                script.set_variables(command.assigned)
            if name or command.input or (script.condition and command.assigned):
                script.record(command)

    def _call_function(self, name: str, command: ShellCommand, arguments: list[str]) -> None:
        """Run a function. Its local variables have their values of before afterwards."""
        script = self.script
        self.variables |= command.assigned
        outer = dict(self.variables)
        outer_locals = script.locals
        script.locals = set()
        self._call(script.functions[name], command, arguments)
        for each in script.locals:
            self.variables[each] = outer.get(each, [])
        script.locals = outer_locals

    def _call(self, text: str, command: ShellCommand, arguments: list[str] | None) -> None:
        """Run a text, such as the body of a function, with `arguments`; None if it has those of the
        script."""
        script = self.script
        if script.depth > _MOST_DEPTH:
            raise ValueError("its functions call each other without an end")
        before = self.variables.get("@")
        if arguments is not None:
            self.variables["@"] = arguments
        script.depth += 1
        try:
            _Reader(text, script, command.line).read_list()
        except _Left as left:
            if left.args == ("exit",):
                raise
        script.depth -= 1
        if before is None:
            self.variables.pop("@", None)
        else:
            self.variables["@"] = before


_COMPOUNDS: dict[str, Callable[[_Reader, str], None]] = {
    "if": _Reader._if,
    "for": _Reader._for,
    "while": _Reader._while,
    "until": _Reader._while,
    "case": _Reader._case,
    "{": _Reader._group,
    "(": _Reader._group,
    "((": _Reader._arithmetic,
    "[[": _Reader._test,
}
