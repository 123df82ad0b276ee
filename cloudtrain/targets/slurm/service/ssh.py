"""The command line of the system's ssh. All commands within a few minutes share one connection, so that ssh logs in
only once."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

from cloudtrain.system.private import make_private_folder, require_own

_LONGEST = 100
"""Maximum length of a socket's path in bytes. ssh appends 17 bytes while it opens the socket."""

_NAME = 40 + 17 + 1


def ssh_argv(state_dir: Path) -> list[str]:
    """Return the beginning of the ssh command line. ssh asks no questions; keys, host names and jump hosts come from
    the user's own configuration.

    Raises:
        OSError: the folder for ssh's sockets belongs to another user.
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
    """Return a private folder for ssh's sockets: a subfolder of `state_dir`, or of the system's temporary folder if the
    path of a socket in `state_dir` would be too long."""
    folder = state_dir / "ssh"
    if len(os.fsencode(folder)) + _NAME > _LONGEST:
        folder = Path(gettempdir(), f"cloudtrain-{os.getuid()}")
    make_private_folder(folder)
    require_own(folder)
    return folder
