"""Prepare everything that a run needs before its processes start: folders, files, links, code, free ports,
placeholders."""

# Paths are strings here: this has to start, and to poll, in no time.
# ruff: noqa: PTH101, PTH103, PTH120, PTH123, PTH211
from __future__ import annotations

import os
import random
import re

from cloudtrain.system.private import UMASK, open_private

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

    from cloudtrain.launch.specification import LaunchSpecification, StartedProcess

_RANGE = range(20_000, 32_768)
"""The ports below those that Linux gives to outgoing connections (32768 on). A port above could be taken while torchrun
imports torch, a second before it listens."""

_PLACEHOLDER = re.compile(r"\$\{\{(ports|env|gpus)\.([^}]*)\}\}")


class Ports:
    """Free loopback ports by name. They are held until `release`, so that no other process takes them before the run's
    processes start."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sockets: list[socket.socket] = []
        self.numbers: dict[str, int] = {}
        for name in names:
            self.numbers[name] = self._take()

    def release(self) -> None:
        """Free the ports for the processes that will listen on them."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def _take(self) -> int:
        import socket  # 6 ms that most runs need not pay

        for number in (*random.sample(_RANGE, 50), 0):
            held = socket.socket()
            try:
                held.bind(("127.0.0.1", number))
            except OSError:  # somebody listens there
                held.close()
                continue
            self._sockets.append(held)
            found: int = held.getsockname()[1]
            return found
        raise AssertionError("port 0 can always be bound")


def fill(text: str, ports: Mapping[str, int], environ: Mapping[str, str], gpus: Sequence[str] = ()) -> str:
    """Return `text` with `${{ports.NAME}}`, `${{env.NAME}}` and `${{gpus.INSTANCE}}` replaced.

    An unset variable becomes an empty string. A list of paths that would then end with `:` loses the colon, because an
    empty part of PYTHONPATH means the working directory.

    Raises:
        KeyError: the port does not exist.
    """
    is_empty = False

    def value(match: re.Match[str]) -> str:
        nonlocal is_empty
        if match[1] == "ports":
            return str(ports[match[2]])
        if match[1] == "gpus":
            return gpus[int(match[2])]
        found = environ.get(match[2], "")
        is_empty = is_empty or not found
        return found

    filled = _PLACEHOLDER.sub(value, text)
    return filled.strip(":") if is_empty else filled


def command_of(
    process: StartedProcess, ports: Mapping[str, int], environ: Mapping[str, str], gpus: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the argv and the whole environment of one process of the specification. `gpus` are the instances' shares
    for a run that got its GPUs from the queue."""
    argv = [fill(argument, ports, environ, gpus) for argument in process.argv]
    own = {name: fill(value, ports, environ, gpus) for name, value in process.env.items()}
    return argv, {**environ, **own}


def shares_of(gpus: Sequence[str], instances: int) -> list[str]:
    """Return each instance's part of the GPUs, written as in CUDA_VISIBLE_DEVICES."""
    each = len(gpus) // instances
    return [",".join(gpus[number * each : (number + 1) * each]) for number in range(instances)]


def make_folders(spec: LaunchSpecification, logs: str, *, umask: int) -> None:
    """Make the folders that the run writes to, and those of its logs. Places outside the run's folder, which the job
    names, get the modes of the submitter's `umask`.

    Raises:
        OSError: a folder cannot be made.
    """
    own = f"{spec.run_dir}/"
    for folder in (*spec.directories, *(f"{logs}/instance_{number}" for number in range(spec.instances))):
        ours = os.umask(UMASK if folder.startswith(own) else umask)
        os.makedirs(folder, exist_ok=True)
        os.umask(ours)


def make_files(spec: LaunchSpecification) -> None:
    """Make the files and links that the processes expect. An emulation has many, a processing job has its shards, other
    runs have none.

    Raises:
        OSError: a file or link cannot be made.
    """
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
        else:
            from cloudtrain.runtime.shards import link_share

            link_share(link.path, link.target, *link.shard)


def unpack_code(spec: LaunchSpecification, unpacked: str) -> None:
    """Unpack the user's code where the processes will find it. A launcher that unpacks the code itself has no
    `directory`; its archive is checked and handed over. Afterwards make the empty file `unpacked`.

    An archive whose content does not match the specification's hash is removed, so that the next submit writes it
    again.

    Raises:
        UsageError: the archive is damaged.
        OSError: the archive is missing, or the disk is full.
    """
    from pathlib import Path

    from cloudtrain.bundle.unpack import DamagedBundle, unpack, verify

    code = spec.code
    archive = Path(code.archive)
    directories = [folder for folder in (code.directory, *(code.copies or ())) if folder is not None]
    try:
        for directory in directories:
            unpack(archive, Path(directory), code.sha256)
            os.chmod(directory, 0o700)
        if not directories:
            verify(archive, code.sha256)
    except DamagedBundle as error:
        from cloudtrain.errors import UsageError

        archive.unlink(missing_ok=True)
        raise UsageError(f"{error}; it was removed", hint="submit the job again, which writes a new one") from None
    os.close(open_private(unpacked, os.O_WRONLY | os.O_CREAT))
