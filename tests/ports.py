"""Ports of loopback for programs that a test starts, which may take a minute until they listen."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress

_RANGE = range(20_000, 32_768)
"""Below the ports that Linux takes for outgoing connections."""


def free_ports(count: int) -> list[int]:
    """Different ports that are free, and that neither an outgoing connection nor a test beside this one takes
    meanwhile.
    """
    own = _own(os.environ)
    found: list[int] = []
    with ExitStack() as held:
        for number in random.sample(own, len(own)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with suppress(OSError):  # somebody listens there
                probe.bind(("127.0.0.1", number))
                found.append(number)
    assert len(found) == count, f"{len(found)} of {count} ports are free in {own}"
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


def _own(variables: Mapping[str, str]) -> range:
    """The share of this worker of pytest-xdist (`gw0`, ...), which releases a port long before its program listens."""
    count = int(variables.get("PYTEST_XDIST_WORKER_COUNT", 1))
    number = int(variables.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(_RANGE) // count
    return _RANGE[number * size : (number + 1) * size]
