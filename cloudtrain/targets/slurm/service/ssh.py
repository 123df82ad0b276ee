"""The command line of the system's ssh. All commands within a few minutes share one connection, so that ssh logs in
only once."""

from __future__ import annotations

import os
from collections.abc import Sequence
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


_DECODE = 'for word; do printf -v word %b "$word"; shift; set -- "$@" "$word"; done; script=$1; shift; eval "$script"'
"""Decodes the words that `_encode` has encoded, and runs the first of them with the others as its arguments."""


def remote_command(script: str, arguments: Sequence[str]) -> str:
    """Return the command line that runs a script of bash on the login node, whatever the user's login shell is.

    csh, tcsh and fish do not take all quotes of a POSIX shell: csh ends a quoted text at the end of its line. The bash
    is a login shell, because modules and profiles put Slurm's commands on the PATH.
    """
    words = ["bash", "-lc", _DECODE, "cloudtrain", *map(_encode, (script, *arguments))]
    return " ".join(f"'{word}'" for word in words)


def _encode(word: str) -> str:
    """Return a word for `printf %b` without line ends, quotes, backslashes and `!`."""
    return "".join(f"\\0{ord(letter):03o}" if letter in "'\\!" or letter < " " else letter for letter in word)


def _socket_folder(state_dir: Path) -> Path:
    """Return a private folder for ssh's sockets: a subfolder of `state_dir`, or of the system's temporary folder if the
    path of a socket in `state_dir` would be too long."""
    folder = state_dir / "ssh"
    if len(os.fsencode(folder)) + _NAME > _LONGEST:
        folder = Path(gettempdir(), f"cloudtrain-{os.getuid()}")
    make_private_folder(folder)
    require_own(folder)
    return folder
