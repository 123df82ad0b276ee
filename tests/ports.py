"""Ports of loopback for programs that a test starts, which may take a minute until they listen."""

from __future__ import annotations

from cloudtrain.targets.local.service.prepare import Ports


def free_ports(count: int) -> list[int]:
    """Different ports that are free, and that no outgoing connection takes meanwhile."""
    ports = Ports([str(number) for number in range(count)])
    ports.release()
    return list(ports.numbers.values())


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
