"""torch's TCPStore on the loopback interface only, for jobs whose ranks all run on one machine.

A TCPStore has no password and listens on every interface of the machine, so anybody who reaches its
port can read and write the ranks' messages. This module passes the TCPStore a socket that listens
only on loopback. With `multi_tenant=True`, the server of this TCPStore also serves every later
TCPStore of the same process and port, including the one that `init_process_group` creates.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

ADDRESS = "127.0.0.1"

_LIBUV_TAKES_SOCKETS = (2, 8)
"""The first torch whose newer server accepts a socket (pytorch pull request 150215)."""


def open_store(port: int = 0) -> Any:
    """Start the server of a TCPStore that only this machine can reach, and return the store. With
    port 0 a free port is chosen.

    Raises:
        OSError: the port is taken.
    """
    import socket

    # public, but not exported in its type hints
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener = socket.socket()
    # an earlier attempt's connections may linger
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError:
        listener.close()
        raise
    return TCPStore(
        ADDRESS,
        listener.getsockname()[1],
        is_master=True,
        multi_tenant=True,
        use_libuv=torch_version() >= _LIBUV_TAKES_SOCKETS,
        master_listen_fd=listener.detach(),
    )


def torch_version() -> tuple[int, ...]:
    """Return the first two numbers of torch's version."""
    import torch

    return tuple(map(int, torch.__version__.split(".")[:2]))


def hold_master_store(variables: Mapping[str, str] = os.environ) -> Any:
    """If all ranks are on this machine, open rank 0's store on loopback instead of on every
    interface.

    The store's server runs as long as the returned object, or a later store on the same port,
    exists. Return None where this store is not needed: on other ranks; if the master is another
    machine; under torchrun, whose agent has the store. Return None also if the port is taken, which
    torch reports later.
    """
    has_agents = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_elsewhere = variables.get("MASTER_ADDR") != ADDRESS
    if has_agents or is_elsewhere or variables.get("RANK") != "0":
        return None
    with suppress(OSError, ValueError):
        return open_store(int(variables.get("MASTER_PORT", "")))
    return None
