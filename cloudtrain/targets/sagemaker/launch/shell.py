"""What is left of an argument after the shell of old toolkits.

Up to 5.1.2, sagemaker-training joins argv with blanks and gives the line to `/bin/sh` wherever it captures errors,
which the PyTorch and TensorFlow toolkits do: `two words` become two arguments, quotes vanish, `$(...)` and `;` run
commands (sagemaker-training-toolkit issue 128). Images for generic use start the argv itself.

`/bin/sh` is dash in images on Ubuntu and bash in images on Amazon Linux 2023. Where they differ (braces), or where
files decide (`*`, `?`, `[...]`), the answer here is None: nobody can say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloudtrain.runtime.sagemaker_launcher.arguments import text_of
from cloudtrain.targets.sagemaker.launch.container import version_of
from cloudtrain.targets.sagemaker.launch.program import kind_of, script_argv

_EXACT_SINCE = (5, 1, 3)
_ACTS = frozenset(";&|<>()$`*?\n")
"""What a shell acts on wherever it stands outside of quotes."""
_ACTS_IN_QUOTES = frozenset("$`")
_ESCAPED_IN_QUOTES = frozenset('$`"\\')
_PAIRS = (("[", "]"), ("{", "}"))
"""Patterns and lists of alternatives, where both stand in one word."""


def uses_shell(toolkit: str) -> bool:
    """Whether this version sends the commands that it captures the errors of through a shell."""
    return version_of(toolkit) < _EXACT_SINCE


def arrives(value: Any, toolkit: str, *, script: str = "train.py") -> str | None:
    """A hyperparameter as the script receives it, in the images of a framework.

    The text can differ from the given one: `it"s" arrives as `its`. None where it does not arrive as one argument,
    changes others, or is run as a command.
    """
    before, after = ("--before", "0", "--value"), ("--after", "0")
    arguments = (*before, text_of(value), *after)
    argv = script_argv(script, arguments, kind=kind_of(script), toolkit=toolkit, python=("python",))
    head = (f"./{script}",) if argv[0] == "/bin/sh" else argv[: -len(arguments)]
    found = shell_tokens(argv, toolkit)
    if found is None or len(found) != len(head) + len(arguments):
        return None
    there = len(head) + len(before)
    if found[:there] != (*head, *before) or found[there + 1 :] != after:
        return None
    return found[there]


def arrives_intact(value: Any, toolkit: str, *, script: str = "train.py") -> bool:
    """Whether the script receives a hyperparameter as it was given."""
    return arrives(value, toolkit, script=script) == text_of(value)


def shell_tokens(argv: Sequence[str], toolkit: str, *, captured: bool = True) -> tuple[str, ...] | None:
    """The argv that is left after all shells: the toolkit's own, and that of a shell script's start line.

    `captured` is `Command.captured`. None where a shell would fail, would run something else, or where it depends on
    the shell or on files what is left.
    """
    if any("\0" in word for word in argv):
        return None
    found: Sequence[str] | None = argv
    if uses_shell(toolkit):
        found = words(" ".join(argv)) if captured else [*argv[:-1], argv[-1].strip('"')]
    if found is None:
        return None
    starts = [place for place in range(len(found) - 2) if tuple(found[place : place + 2]) == ("/bin/sh", "-c")]
    if not starts:
        return tuple(found)
    inner = words(found[starts[0] + 2])
    return None if inner is None else (*found[: starts[0]], *inner)


def words(line: str) -> list[str] | None:
    """The words of a command line, as any POSIX shell splits it; None where it would do more than split."""
    found: list[str] = []
    place = 0
    while True:
        while place < len(line) and line[place] in " \t":
            place += 1
        if place == len(line):
            return found
        if line[place] == "#":
            return None if "\n" in line[place:] else found
        word = _word(line, place)
        if word is None:
            return None
        found.append(word[0])
        place = word[1]


def _word(line: str, place: int) -> tuple[str, int] | None:
    """The word that begins at a place, and where it ends."""
    if line[place] == "~":
        return None
    text, bare = "", ""
    while place < len(line) and line[place] not in " \t":
        piece = _piece(line, place)
        if piece is None:
            return None
        if line[place] not in "\\'\"":
            bare += piece[0]
        text += piece[0]
        place = piece[1]
    if any(opening in bare and closing in bare[bare.index(opening) :] for opening, closing in _PAIRS):
        return None
    return text, place


def _piece(line: str, place: int) -> tuple[str, int] | None:
    """One quoted stretch, escaped character or plain character, and where it ends."""
    character = line[place]
    if character == "'":
        end = line.find("'", place + 1)
        return None if end < 0 else (line[place + 1 : end], end + 1)
    if character == '"':
        return _double_quoted(line, place + 1)
    if character == "\\":
        after = line[place + 1 : place + 2]
        return None if after in ("", "\n") else (after, place + 2)
    return None if character in _ACTS else (character, place + 1)


def _double_quoted(line: str, place: int) -> tuple[str, int] | None:
    """What stands between double quotes, from behind the first one."""
    text = ""
    while place < len(line):
        character, after = line[place], line[place + 1 : place + 2]
        if character == '"':
            return text, place + 1
        if character in _ACTS_IN_QUOTES:
            return None
        if character == "\\" and after in ("\n", *_ESCAPED_IN_QUOTES):
            text += after.strip("\n")
            place += 2
        else:
            text += character
            place += 1
    return None
