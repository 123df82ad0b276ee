"""Compute how the shell of old toolkits changes an argument.

If sagemaker-training up to 5.1.2 captures errors, it joins argv with blanks and passes the line to
`/bin/sh`. Then `two words` become two arguments, quotes vanish, and `$(...)` and `;` run commands
(sagemaker-training-toolkit issue 128). The PyTorch and TensorFlow toolkits capture errors; the
generic toolkit does not.

`/bin/sh` is dash in Ubuntu images and bash in Amazon Linux 2023 images. The functions return None
if the result depends on the shell (braces) or on files (`*`, `?`, `[...]`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Literal

from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, text_of
from cloudtrain.targets.sagemaker.catalogue.images import numbers
from cloudtrain.targets.sagemaker.launch.container import HostSetup

# The command lines of Python scripts, packages and shell scripts.

Kind = Literal["python", "package", "shell"]

_SHELL_NAMES_SINCE = (5, 1, 2)
_QUOTED_ONCE_SINCE = (5, 1, 3)
_ALL_NAMES_SINCE = (5, 1, 4)
_NAME = r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*"


def kind_of(entry_point: str, *, package: bool = False) -> Kind:
    """Return how the toolkit starts an entry point: as a Python script, package or shell script.

    If the code has a `setup.py` (`package`), everything except `.sh` scripts starts as a package.
    """
    if entry_point.endswith(".sh"):
        return "shell"
    if package:
        return "package"
    return "python" if entry_point.endswith(".py") else "shell"


def program(setup: HostSetup, *, mpi4py: bool = False) -> tuple[str, ...]:
    """Return the argv of a host's script. `mpi4py` adds `-m mpi4py`, so that an error in one rank
    ends all ranks."""
    python = [setup.container.python]
    if mpi4py:
        python += ["-m", "mpi4py"]
    return script_argv(
        setup.entry_point,
        argv_of(setup.start.parameters),
        kind=kind_of(setup.entry_point, package=setup.package),
        toolkit=setup.container.toolkit,
        python=python,
    )


def script_argv(
    entry_point: str, arguments: Sequence[str], *, kind: Kind, toolkit: str, python: Sequence[str]
) -> tuple[str, ...]:
    """Return the argv of a script. `python` is the interpreter with its options."""
    version = numbers(toolkit)
    if kind == "package":
        return (*python, "-m", entry_point.removesuffix(".py"), *arguments)
    if kind == "python":
        marker = ("--",) if len(python) == 1 and version >= _ALL_NAMES_SINCE else ()
        return (*python, *marker, entry_point, *arguments)
    name = quote(entry_point) if version >= _SHELL_NAMES_SINCE else entry_point
    line = f"./{name} " + " ".join(map(quote, arguments))
    # older toolkits pass every command through a shell
    outer = "" if version >= _QUOTED_ONCE_SINCE else '"'
    return ("/bin/sh", "-c", outer + line + outer)


def is_plain_name(name: str) -> bool:
    """Return whether all versions of the toolkit accept a name: a path in the bundle that a shell
    leaves unchanged."""
    if {".", ".."} & set(name.split("/")):
        return False
    return re.fullmatch(_NAME, name) is not None


def name_refusal(setup: HostSetup) -> str | None:
    """Explain why the toolkit refuses the entry point's name; None if it accepts the name."""
    name = setup.entry_point
    if not name:
        return "the job names no entry point"
    is_shell = kind_of(name, package=setup.package) == "shell"
    checked_since = _SHELL_NAMES_SINCE if is_shell else _ALL_NAMES_SINCE
    if setup.container.version < checked_since or is_plain_name(name):
        return None
    return (
        f"toolkit {setup.container.toolkit} does not take `{name}`: a path in the bundle, of "
        "letters, digits and `. _ + - /` only"
    )


_EXACT_SINCE = (5, 1, 3)
_PIECE = (
    r"'(?P<single>[^']*)'"
    r'|"(?P<double>(?:[^"\\$`]|\\.)*)"'
    r"|\\(?P<escaped>[^\n])"
    r"|(?P<bare>[^ \t\n'\"\\;&|<>()$`*?])"
)
"""A part of a word in which a shell does no more than remove quotes and backslashes."""
_WORD = re.compile(rf"(?!~)(?:{_PIECE})+(?![^ \t])", re.DOTALL)
_ESCAPED_IN_QUOTES = r'\\(?:\n|([$`"\\]))'
_PAIRS = (("[", "]"), ("{", "}"))
"""Pairs of brackets and braces, which a shell expands if both characters are in one word."""


def uses_shell(toolkit: str) -> bool:
    """Return whether this version of the toolkit runs commands through a shell if it captures their
    errors."""
    return numbers(toolkit) < _EXACT_SINCE


def arrives(value: object, toolkit: str, *, script: str = "train.py") -> str | None:
    """Return a hyperparameter's value as the script receives it in PyTorch and TensorFlow images.

    For example, a shell removes the quotes of `it"s"`, so the script receives `its`. Returns None
    if the value does not arrive as one argument, changes other arguments, or runs as a command.
    """
    # neighbours on both sides show whether the value changes other arguments
    before = ("--before", "0", "--value")
    after = ("--after", "0")
    arguments = (*before, text_of(value), *after)
    argv = script_argv(script, arguments, kind=kind_of(script), toolkit=toolkit, python=("python",))
    head = (f"./{script}",) if argv[0] == "/bin/sh" else argv[: -len(arguments)]

    tokens = shell_tokens(argv, toolkit)
    if tokens is None or len(tokens) != len(head) + len(arguments):
        return None
    place = len(head) + len(before)
    arrived = tokens[place]
    return arrived if tokens == (*head, *before, arrived, *after) else None


def arrives_intact(value: object, toolkit: str, *, script: str = "train.py") -> bool:
    """Return whether the script receives a hyperparameter unchanged."""
    return arrives(value, toolkit, script=script) == text_of(value)


def shell_tokens(argv: Sequence[str], toolkit: str) -> tuple[str, ...] | None:
    """Return the argv that arrives after all shells: the toolkit's shell, and the `/bin/sh -c` of a
    shell script.

    Returns None if a shell would fail or run another command, or if the result depends on the shell
    or on files.
    """
    if any("\0" in word for word in argv):
        return None
    tokens = words(" ".join(argv)) if uses_shell(toolkit) else argv
    if tokens is None:
        return None

    for place in range(len(tokens) - 2):
        if tuple(tokens[place : place + 2]) == ("/bin/sh", "-c"):
            inner = words(tokens[place + 2])
            return None if inner is None else (*tokens[:place], *inner)
    return tuple(tokens)


def words(line: str) -> list[str] | None:
    """Split a command line into words like a POSIX shell; None if a shell would do more, or a quote
    is not closed."""
    tokens: list[str] = []
    line = line.lstrip(" \t")
    while line:
        if line[0] == "#":
            return None if "\n" in line else tokens
        word = _WORD.match(line)
        if word is None:
            return None
        pieces = list(re.finditer(_PIECE, word[0], re.DOTALL))
        bare = "".join(piece["bare"] or "" for piece in pieces)
        if _is_expanded(bare):
            return None
        tokens.append("".join(map(_unquoted, pieces)))
        line = line[word.end() :].lstrip(" \t")
    return tokens


def _is_expanded(bare: str) -> bool:
    """Return whether a word has brackets or braces outside of quotes that a shell expands."""
    return any(closing in bare.partition(opening)[2] for opening, closing in _PAIRS)


def _unquoted(piece: re.Match[str]) -> str:
    """Return the text of a matched `_PIECE` without its quotes and escapes."""
    text: str = piece[piece.lastgroup or 0]
    return re.sub(_ESCAPED_IN_QUOTES, r"\1", text) if piece.lastgroup == "double" else text
