"""Compute the cost of an exchange by a model: the ring and parameter servers by number of processes, and servers that
hold unequal parts.

This is a model, not a measurement: a process sends its messages one after the other, and no process computes meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence


def exchange_seconds(
    size: float, n: int, gigabits: float, latency: float
) -> tuple[float, float, float]:
    """Return the seconds for exchanging `size` bytes of gradients between n processes: by a ring, by one server, and by
    n servers that share them equally."""
    second = gigabits * 1e9 / 8
    steps = 2 * (n - 1)
    ring = steps * (latency + size / n / second)
    # n - 1 gradients come in through its link, as many weights go out
    one = 2 * latency + steps * size / second
    shared = 2 * latency + steps * size / n / second
    return ring, one, shared


def placed(sizes: Sequence[int], servers: int, way: str) -> list[int]:
    """Return the bytes on each server. `in turn`: tensor after tensor, as in TensorFlow; `largest first`: each to the
    emptiest server; `cut`: every tensor in equal parts."""
    if way == "cut":
        return [
            sum(size * (s + 1) // servers - size * s // servers for size in sizes)
            for s in range(servers)
        ]
    filled = [0] * servers
    for number, size in enumerate(sizes if way == "in turn" else sorted(sizes, reverse=True)):
        filled[number % servers if way == "in turn" else filled.index(min(filled))] += size
    return filled


def tables(sizes: Sequence[int], gigabits: float, latency: float) -> str:
    """Return both tables for these tensors."""
    lines = [
        f"{sum(sizes) / 1e6:.2f} MB of gradients, {gigabits:g} Gb/s, {latency * 1e6:g} us for a message; in ms"
    ]
    lines.append(f"{'processes':>9} {'ring':>9} {'one server':>11} {'n servers':>10}")
    for n in (2, 4, 8, 16, 32, 64, 128):
        ring, one, shared = (
            1e3 * seconds for seconds in exchange_seconds(sum(sizes), n, gigabits, latency)
        )
        lines.append(f"{n:>9} {ring:>9.3f} {one:>11.3f} {shared:>10.3f}")
    lines += [
        "",
        "the fullest server, as a multiple of the mean",
        f"{'servers':>9} {'in turn':>8} {'largest first':>14} cut",
    ]
    for servers in (2, 3, 4, 8):
        most = [
            max(held) * servers / sum(held)
            for held in (placed(sizes, servers, way) for way in WAYS)
        ]
        lines.append(f"{servers:>9} {most[0]:>8.2f} {most[1]:>14.2f} {most[2]:>5.2f}")
    return "\n".join(lines)


WAYS = ("in turn", "largest first", "cut")
