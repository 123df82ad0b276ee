"""torch's TCPStore on loopback alone, for ranks that are all on one machine.

A TCPStore has no password and listens on every interface of the machine, so anybody who reaches its port can read and
write the ranks' messages. Only a socket that it is handed makes it listen elsewhere. A server that is open to other
tenants of the store serves every later TCPStore of the same process and port, including that of `init_process_group`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS = "127.0.0.1"

_LIBUV_TAKES_SOCKETS = (2, 8)
"""The first torch whose newer server accepts a socket (pytorch pull request 150215)."""


def open_store(port: int = 0) -> Any:
    """Return the server of a TCPStore that only this machine reaches, on a free port where none is given.

    Raises:
        OSError: the port is taken.
    """
    import socket

    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported in its type hints

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier attempt's connections may linger
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
        use_libuv=version >= _LIBUV_TAKES_SOCKETS,
        master_listen_fd=listener.detach(),
    )


def hold_master_store(variables: Mapping[str, str] = os.environ) -> Any:
    """Open the store that rank 0 would open on every interface, on rank 0 and only if all ranks are on this machine.

    The store serves as long as the returned object, or any store made meanwhile, is kept. The result is None where
    another store is used: on other ranks, under torchrun, whose agent holds the store, or with a master elsewhere. It
    is also None where the port is taken; torch reports that itself.
    """
    port = variables.get("MASTER_PORT", "")
    agents = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if variables.get("RANK") != "0" or variables.get("MASTER_ADDR") != ADDRESS or not port.isdecimal() or agents:
        return None
    try:
        return open_store(int(port))
    except OSError:
        return None
