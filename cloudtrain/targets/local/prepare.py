"""Prepare a run before its processes start: make folders, files and links, unpack the code, find
free ports, and fill in placeholders."""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import os
import random
import re

from cloudtrain.runtime.hardware import VISIBLE, gpu_ids, visible_ids
from cloudtrain.system.private import UMASK, open_private

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtrain.targets.common.specification import LaunchSpecification, StartedProcess


_RANGE = range(20_000, 32_768)
"""Ports below the ones of outgoing connections: Linux begins at 32768, macOS at 49152. A connection
could take a port while torchrun still imports torch, about a second before it listens."""

_OUTGOING = "/proc/sys/net/ipv4/ip_local_port_range"
"""The first and the last port of outgoing connections, where Linux is set to other ports."""

_ENOUGH = 1000
"""Number of ports among which runs that start together rarely choose the same one."""

_PLACEHOLDER = r"\$\{\{(ports|env|gpus)\.([^}]*)\}\}"


class Ports:
    """Free loopback ports by name. The sockets stay bound until `release`, so that no other process
    takes a port before the run's processes start."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sockets: list[socket.socket] = []
        self.numbers = {name: self._take() for name in names}

    def release(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _take(self) -> int:
        """Bind a socket to a free port, and return the port."""
        import socket  # 6 ms that most runs need not pay

        # at random, because runs that start together would all try the same ports first
        for number in (*random.sample(_ports_to_listen(), 50), 0):
            sock = socket.socket()
            try:
                sock.bind(("127.0.0.1", number))
            except OSError:  # somebody listens there
                sock.close()
                continue
            self._sockets.append(sock)
            return int(sock.getsockname()[1])
        raise AssertionError("not reached: if port 0 is requested, the kernel chooses a free port")


def _ports_to_listen() -> range:
    """Return ports that no outgoing connection takes; the usual ones where there are too few of
    them."""
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            first = min(int(file.read().split()[0]), _RANGE.stop)
    except (OSError, ValueError, IndexError):  # no Linux
        return _RANGE
    below = range(_RANGE.start, first)
    if len(below) < _ENOUGH:
        below = range(5_000, first)
    return below if len(below) >= _ENOUGH else _RANGE


def fill(
    text: str, ports: Mapping[str, int], environ: Mapping[str, str], gpus: Sequence[str] = ()
) -> str:
    """Return `text` with `${{ports.NAME}}`, `${{env.NAME}}` and `${{gpus.INSTANCE}}` replaced. An
    unset variable becomes an empty string. In this case, colons at the start and the end of the
    result are removed, because an empty entry in PYTHONPATH would mean the working directory."""
    is_empty = False

    def value(match: re.Match[str]) -> str:
        nonlocal is_empty
        if match[1] == "ports":
            return str(ports[match[2]])
        if match[1] == "gpus":
            return gpus[int(match[2])]
        variable = environ.get(match[2], "")
        is_empty = is_empty or not variable
        return variable

    result = re.sub(_PLACEHOLDER, value, text)
    return result.strip(":") if is_empty else result


def command_of(
    process: StartedProcess,
    ports: Mapping[str, int],
    environ: Mapping[str, str],
    gpus: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the argv and environment of a process, with placeholders replaced. `gpus`: the GPUs of
    each instance, if the run got its GPUs from the queue."""
    argv = [fill(argument, ports, environ, gpus) for argument in process.argv]
    variables = {name: fill(value, ports, environ, gpus) for name, value in process.env.items()}
    return argv, {**environ, **variables}


def shares_of(gpus: Sequence[str], instances: int) -> list[str]:
    """Divide the GPUs among the instances. Return each instance's GPUs as in CUDA_VISIBLE_DEVICES:
    `0,1`."""
    size = len(gpus) // instances
    return [",".join(gpus[number * size : (number + 1) * size]) for number in range(instances)]


def make_folders(spec: LaunchSpecification, logs: str, *, umask: int) -> None:
    """Make the folders of the specification, and those of the logs. `umask` is the submitter's. It
    applies to folders outside the run's own folder."""
    own = f"{spec.run_dir}/"
    log_folders = [f"{logs}/instance_{number}" for number in range(spec.instances)]
    for folder in (*spec.directories, *log_folders):
        previous = os.umask(UMASK if folder.startswith(own) else umask)
        os.makedirs(folder, exist_ok=True)
        os.umask(previous)


def make_files(spec: LaunchSpecification) -> None:
    """Write the files of the specification, and make its links except those to shares."""
    for path, text in (spec.files or {}).items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    for path in spec.programs:
        os.chmod(path, 0o700)
    for link in spec.links or ():
        if link.shard is None:
            os.makedirs(os.path.dirname(link.path), exist_ok=True)
            os.symlink(link.target, link.path)


def link_shares(spec: LaunchSpecification) -> None:
    """Link each instance's share of sharded inputs. The inputs must be complete, so the runs that
    write them must have ended."""
    for link in spec.links or ():
        if link.shard is not None:
            from cloudtrain.runtime.shards import link_share

            link_share(link.path, link.target, *link.shard)


def unpack_code(spec: LaunchSpecification, marker: str) -> None:
    """Unpack the user's code into the folders that `spec` names, then make the empty file `marker`.
    If the launcher unpacks the code itself, the specification names no folder, and the archive is
    only verified. A damaged archive (`UsageError`) is removed, so that the next submit writes a new
    one."""
    from pathlib import Path

    from cloudtrain.code.unpack import DamagedBundle, unpack, verify

    code = spec.code
    archive = Path(code.archive)
    folders = (code.directory, *(code.copies or ()))
    directories = [folder for folder in folders if folder is not None]
    try:
        for directory in directories:
            unpack(archive, Path(directory), code.sha256)
            os.chmod(directory, 0o700)
        if not directories:
            verify(archive, code.sha256)
    except DamagedBundle as error:
        from cloudtrain.errors import UsageError

        archive.unlink(missing_ok=True)
        raise UsageError(
            f"{error}; cloudtrain removed it", hint="submit the job again to write a new archive"
        ) from None
    os.close(open_private(marker, os.O_WRONLY | os.O_CREAT))


def taken_gpus(
    spec: LaunchSpecification, environments: Sequence[Mapping[str, str]]
) -> tuple[str, ...]:
    """Return the GPUs of a run that started outside the queue. In each instance, rank n uses the
    n-th GPU that the instance sees. GPUs that a process names in CUDA_VISIBLE_DEVICES count even if
    this machine does not have them."""
    ranks = max(1, spec.world_size // spec.instances)
    gpus = dict[str, None]()  # a set in the order of arrival
    for process, environment in zip(spec.processes, environments, strict=True):
        ids = visible_ids(environment[VISIBLE]) if VISIBLE in process.env else gpu_ids(environment)
        gpus.update(dict.fromkeys(ids[:ranks]))
    return tuple(gpus)
