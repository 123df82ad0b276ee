"""The system's ssh, whose one connection serves all commands of some minutes: no key is asked for twice."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

from cloudtrain.system.private import make_private_folder, require_own

_LONGEST = 100
"""Bytes that the path of a socket may have; ssh adds 17 to it while it opens one."""

_NAME = 40 + 17 + 1


def ssh_argv(state_dir: Path) -> list[str]:
    """The beginning of the command line. ssh asks nothing: keys, names and jumps are those of the user's own
    configuration.

    Raises:
        OSError: the folder of the sockets is somebody else's.
    """
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ControlMaster": "auto",
        "ControlPath": f"{_socket_folder(state_dir)}/%C",
        "ControlPersist": "120",
    }
    return ["ssh", "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _socket_folder(state_dir: Path) -> Path:
    """A folder of the user's alone. Where the state folder lies too deep for a socket, it is a temporary one."""
    folder = state_dir / "ssh"
    if len(os.fsencode(folder)) + _NAME > _LONGEST:
        folder = Path(gettempdir(), f"cloudtrain-{os.getuid()}")
    make_private_folder(folder)
    require_own(folder)
    return folder
