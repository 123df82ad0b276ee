"""The command lines of Python scripts, packages and shell scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Literal

from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.targets.sagemaker.launch.container import version_of
from cloudtrain.targets.sagemaker.launch.host_setup import HostSetup

Kind = Literal["python", "package", "shell"]

_SHELL_NAMES_SINCE, _QUOTED_ONCE_SINCE, _ALL_NAMES_SINCE = (5, 1, 2), (5, 1, 3), (5, 1, 4)
_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")


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
    """Return the argv of a host's script. `mpi4py` adds `-m mpi4py`, so that an error in one rank ends all ranks."""
    python = (setup.container.python, "-m", "mpi4py") if mpi4py else (setup.container.python,)
    return script_argv(
        setup.entry_point,
        argv_of(setup.user),
        kind=kind_of(setup.entry_point, package=setup.package),
        toolkit=setup.container.toolkit,
        python=python,
    )


def script_argv(
    entry_point: str, arguments: Sequence[str], *, kind: Kind, toolkit: str, python: Sequence[str]
) -> tuple[str, ...]:
    """Return the argv of a script. `python` is the interpreter with its options."""
    version = version_of(toolkit)
    if kind == "package":
        return (*python, "-m", entry_point.removesuffix(".py"), *arguments)
    if kind == "python":
        marker = ("--",) if len(python) == 1 and version >= _ALL_NAMES_SINCE else ()
        return (*python, *marker, entry_point, *arguments)
    name = quote(entry_point) if version >= _SHELL_NAMES_SINCE else entry_point
    line = f"./{name} " + " ".join(map(quote, arguments))
    outer = "" if version >= _QUOTED_ONCE_SINCE else '"'  # older toolkits pass every command through a shell
    return ("/bin/sh", "-c", outer + line + outer)


def is_plain_name(name: str) -> bool:
    """Return whether all versions of the toolkit accept a name: a path in the bundle that a shell leaves unchanged."""
    return bool(_NAME.fullmatch(name)) and not {".", ".."} & set(name.split("/"))


def name_refusal(setup: HostSetup) -> str | None:
    """Explain why the toolkit refuses the entry point's name; None if it accepts the name."""
    name, toolkit = setup.entry_point, setup.container.toolkit
    if not name:
        return "the job names no entry point"
    shell = kind_of(name, package=setup.package) == "shell"
    if setup.container.version < (_SHELL_NAMES_SINCE if shell else _ALL_NAMES_SINCE):
        return None
    if is_plain_name(name):
        return None
    return f"toolkit {toolkit} does not take `{name}`: a path in the bundle, of letters, digits and `. _ + - /` only"
