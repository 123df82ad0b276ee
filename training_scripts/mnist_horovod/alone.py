"""The calls of `horovod.torch` that train.py makes, for a single process without Horovod.

With one process Horovod does the same: its optimizer exchanges nothing, and a sum over one process changes nothing.
"""

from typing import TypeVar

import torch

T = TypeVar("T")

Sum = "Sum"


def init() -> None: ...


def rank() -> int:
    return 0


def size() -> int:
    return 1


local_rank, local_size = rank, size


def DistributedOptimizer(optimizer: T, **_: object) -> T:  # noqa: N802 - Horovod's name
    return optimizer


def allreduce(tensor: torch.Tensor, **_: object) -> torch.Tensor:
    return tensor


def allgather_object(value: T, **_: object) -> list[T]:
    return [value]


def broadcast_object(value: T, **_: object) -> T:
    return value


def broadcast_parameters(_parameters: object, **_: object) -> None: ...


def broadcast_optimizer_state(_optimizer: object, **_: object) -> None: ...
