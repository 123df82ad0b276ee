"""How long a step takes: a roofline of the GPU and of the network, as a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cloudtrain.estimate.devices import GpuInstance, Rates


class Work(NamedTuple):
    """Equal operations of a step on one rank."""

    name: str
    dtype: str
    flops: int
    bytes: int
    times: int


class Collective(NamedTuple):
    """Equal collectives of a step: the bytes of one on this rank, among `ranks` on `instances`."""

    name: str
    bytes: int
    ranks: int
    instances: int
    times: int


class Assumption(NamedTuple):
    """What a bound of the range assumes.

    Attributes:
        products: share of the peak that matrix products reach.
        memory: share of the memory's bandwidth that other operations reach.
        network: share of the links' bandwidth that collectives reach.
        launch: seconds in which Python starts an operation.
        overlaps: whether collectives run beside the computation.
    """

    products: float
    memory: float
    network: float
    launch: float
    overlaps: bool


FAST = Assumption(0.75, 0.9, 0.9, 4e-6, True)
SLOW = Assumption(0.45, 0.55, 0.5, 20e-6, False)


def assumptions() -> list[str]:
    """Return what both bounds assume, each in a line."""

    def share(name: str) -> str:
        return f"{getattr(SLOW, name):.0%} to {getattr(FAST, name):.0%}"

    return [
        f"matrix products reach {share('products')} of the GPU's peak",
        f"other operations reach {share('memory')} of its memory's bandwidth",
        f"collectives reach {share('network')} of the links' bandwidth; at best they overlap",
        f"Python starts an operation in {FAST.launch * 1e6:g} to {SLOW.launch * 1e6:g} µs",
        "data arrives in time, and nothing is saved or evaluated",
    ]


class StepTime(NamedTuple):
    """Seconds of a step, at best and at worst."""

    least: float
    most: float


def step_time(
    work: Sequence[Work], exchanges: Sequence[Collective], machine: GpuInstance, local_world: int
) -> StepTime | None:
    """Return the time of a step on this machine; None if a figure of its GPU is unknown."""
    rates = machine.rates
    if rates is None:
        return None
    seconds = []
    for assumed in (FAST, SLOW):
        computing = _computing(work, rates, assumed)
        if computing is None:
            return None
        sending = sum(_sending(item, machine, local_world, assumed) for item in exchanges)
        seconds.append(max(computing, sending) if assumed.overlaps else computing + sending)
    return StepTime(*seconds)


def _computing(work: Sequence[Work], rates: Rates, assumed: Assumption) -> float | None:
    """Return the seconds of all operations. Each takes the longer of its arithmetic, its memory
    traffic and its start."""
    device = 0.0
    host = 0.0
    for item in work:
        moving = item.bytes / (rates.bandwidth * assumed.memory)
        computing = 0.0
        if item.flops:
            # torch rounds convolutions to TF32 unless the script says otherwise
            peak = rates.peak(item.dtype, may_round="convolution" in item.name)
            if peak is None:
                return None
            computing = item.flops / (peak * assumed.products)
        device += item.times * max(moving, computing)
        host += item.times * assumed.launch
    return max(device, host)


_TWICE = ("allreduce", "all_reduce")
"""Collectives that send each byte twice."""

_TO_ONE = ("send", "recv", "broadcast")


def _sending(
    item: Collective, machine: GpuInstance, local_world: int, assumed: Assumption
) -> float:
    """Return the seconds of a collective in a ring. Among instances, the ranks of an instance that
    take part in other groups use the same network."""
    bandwidth = machine.link
    if item.instances > 1:
        share = -(-item.ranks // item.instances) / local_world
        bandwidth = min(bandwidth, machine.network * min(1.0, share))
    name = item.name.strip("_")
    factor = 1.0
    if not name.startswith(_TO_ONE):
        factor = (item.ranks - 1) / item.ranks
    if name.startswith(_TWICE):
        factor *= 2
    return item.times * item.bytes * factor / (bandwidth * assumed.network)
