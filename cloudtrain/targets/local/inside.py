"""Commands inside a run on this machine: in the environment and the folder of a rank's process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from cloudtrain.runtime.environment import detect_environment
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.ranks import read_ranks
from cloudtrain.system.processes import process_table
from cloudtrain.targets.inside import (
    RANK_PID,
    ExecRequest,
    NotOpen,
    Session,
    not_running,
    relay_argv,
    relayed,
)
from cloudtrain.targets.local.processes import RUN_DIR, TOKEN, environment_of, members, stat_of

_LEFT_OUT = (
    TOKEN, RUN_DIR, "CLOUDTRAIN_METRICS_DIR",
    "LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "ENV", "PYTHONSTARTUP",
)  # fmt: skip
"""Variables that a command does not get: those that make a process part of the run, which would be
killed with it or report as its rank, and those that put other code into every program."""

_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")
"""Variables that describe the user's terminal, which is not that of the submit."""


class _Place(NamedTuple):
    """A rank's process, and its variables."""

    rank: int
    instance: int
    pid: int
    variables: Mapping[str, str]


def enter(run_dir: str, token: str, environ: Mapping[str, str], asked: ExecRequest) -> Session:
    """Return the session in a run's folder. `environ` are the variables of the user's shell. Raises
    `UsageError` if no such rank is running."""
    if asked.is_for_ssh:
        name = os.path.basename(run_dir)
        message = f"`{name}` runs on this machine, which you reach without ssh"
        raise NotOpen(message, hint=f"`cloudtrain exec {name}` opens a shell in it")
    if asked.port is not None:
        if asked.port == asked.local_port:
            return Session()
        return relayed((sys.executable, *relay_argv(asked.port)), environ, asked)

    place = _find(run_dir, token, asked)
    variables = dict(place.variables)
    for variable in _LEFT_OUT:
        variables.pop(variable, None)
    if asked.has_terminal:
        variables |= {key: environ[key] for key in _TERMINAL if key in environ}

    command = asked.command or (environ.get("SHELL", "/bin/sh"),)
    variables[RANK_PID] = str(place.pid)
    folder = _folder_of(place.pid)
    return Session(command, variables, folder if os.path.isdir(folder) else run_dir)


def _find(run_dir: str, token: str, asked: ExecRequest) -> _Place:
    """Return the process of the wanted rank; without one, that of the lowest rank."""
    name = os.path.basename(run_dir)
    places = _registered(run_dir)
    for place in _started(token):
        places.setdefault(place.rank, place)
    found = []
    for place in places.values():
        if asked.rank in (None, place.rank) and asked.instance in (None, place.instance):
            found.append(place)
    if found:
        return min(found)

    hint = f"`cloudtrain status {name}` shows how the run does"
    if places:
        instances = sorted({place.instance for place in places.values()})
        hint = f"its running ranks are {_listed(sorted(places))}, on instance {_listed(instances)}"
    raise not_running(name, asked, hint)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _registered(run_dir: str) -> dict[int, _Place]:
    """Return the living processes that have registered, by rank. A forked one has its launcher's
    variables in the process table, so those that it has registered count."""
    places = {}
    for process in read_ranks(run_dir):
        variables = environment_of(process.pid) if process.is_alive else None
        if variables is not None:
            own = {**variables, **process.environ}
            instance = 0
            with suppress(SetupError):
                instance = detect_environment(own).node_rank
            places[process.rank] = _Place(process.rank, instance, process.pid, own)
    return places


def _folder_of(pid: int) -> str:
    """Return the working folder of a process; empty if it has just ended."""
    table = process_table()
    try:
        folder: str = table.Process(pid).cwd()
    except table.Error:
        return ""
    return folder


def _started(token: str) -> list[_Place]:
    """Return the processes that a launcher has started as ranks, as their variables say. Without
    any, those of the run's programs."""
    ranks: dict[int, _Place] = {}
    others: dict[int, _Place] = {}
    for pid in members(token):
        variables = environment_of(pid) or {}
        try:
            own = detect_environment(variables)
        except SetupError:
            continue
        is_rank = own.launcher != "single"
        number = own.rank if is_rank else own.node_rank
        (ranks if is_rank else others)[pid] = _Place(number, own.node_rank, pid, variables)

    places = ranks or others
    outermost = []
    for pid, place in places.items():
        stat = stat_of(pid)
        parent = None if stat is None else places.get(stat.parent)
        if parent is None or parent.rank != place.rank:
            outermost.append(place)
    return outermost
