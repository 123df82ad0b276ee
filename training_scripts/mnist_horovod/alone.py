"""The calls of `horovod.torch` that train.py makes, for a single process without Horovod.

The results are the same as with Horovod in one process, where the optimizer exchanges nothing and a sum over processes
changes nothing.
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
