"""The script with its arguments, as each kind of entry point is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Literal

from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.targets.sagemaker.launch.container import version_of
from cloudtrain.targets.sagemaker.launch.site import Site

Kind = Literal["python", "package", "shell"]

_SHELL_NAMES_SINCE, _QUOTED_ONCE_SINCE, _ALL_NAMES_SINCE = (5, 1, 2), (5, 1, 3), (5, 1, 4)
_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")


def kind_of(entry_point: str, *, package: bool = False) -> Kind:
    """How an entry point is started. A `setup.py` beside it makes all but shell scripts a package."""
    if entry_point.endswith(".sh"):
        return "shell"
    if package:
        return "package"
    return "python" if entry_point.endswith(".py") else "shell"


def program(site: Site, *, mpi4py: bool = False) -> tuple[str, ...]:
    """The argv of a host's script. Under MPI, mpi4py ends all ranks when one raises."""
    python = (site.container.python, "-m", "mpi4py") if mpi4py else (site.container.python,)
    return script_argv(
        site.entry_point,
        argv_of(site.user),
        kind=kind_of(site.entry_point, package=site.package),
        toolkit=site.container.toolkit,
        python=python,
    )


def script_argv(
    entry_point: str, arguments: Sequence[str], *, kind: Kind, toolkit: str, python: Sequence[str]
) -> tuple[str, ...]:
    """The argv of a script. `python` is the interpreter with its own options."""
    version = version_of(toolkit)
    if kind == "package":
        return (*python, "-m", entry_point.removesuffix(".py"), *arguments)
    if kind == "python":
        marker = ("--",) if len(python) == 1 and version >= _ALL_NAMES_SINCE else ()
        return (*python, *marker, entry_point, *arguments)
    name = quote(entry_point) if version >= _SHELL_NAMES_SINCE else entry_point
    line = f"./{name} " + " ".join(map(quote, arguments))
    outer = "" if version >= _QUOTED_ONCE_SINCE else '"'  # for the shell that all commands went through
    return ("/bin/sh", "-c", outer + line + outer)


def is_plain_name(name: str) -> bool:
    """Whether all versions of the toolkit take a name: a path in the bundle that a shell leaves as it is, too."""
    return bool(_NAME.fullmatch(name)) and not {".", ".."} & set(name.split("/"))


def refused_name(site: Site) -> str | None:
    """Why the toolkit does not take the entry point's name; None where it does."""
    name, toolkit = site.entry_point, site.container.toolkit
    if not name:
        return "the job names no entry point"
    shell = kind_of(name, package=site.package) == "shell"
    if site.container.version < (_SHELL_NAMES_SINCE if shell else _ALL_NAMES_SINCE):
        return None
    if is_plain_name(name):
        return None
    return f"toolkit {toolkit} does not take `{name}`: a path in the bundle, of letters, digits and `. _ + - /` only"
