"""A stand-in for `horovod.torch`: the calls that training_scripts/mnist_horovod makes, and no others.

It does what the documentation of Horovod 0.28.1 says of them, with real processes, so that two really train together.
Who a process is, Open MPI's variables say. Rank 0 has a socket to each of the others, `HOROVOD_STAND_IN` names its path;
tensors go to rank 0, which adds them up in the order of ranks, and come back. As in Horovod

* a collective is known by its name, and all ranks must call the same one (Horovod waits for ever where this raises);
* the optimizer that comes back from `DistributedOptimizer` has the options of the given one, and not its state;
* `broadcast_optimizer_state` gives an optimizer without state one by a step with zero gradients.

Unlike in Horovod the gradients are exchanged in `step`, not already during `backward`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import reduce
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch  # noqa: TID253 - a stand-in of a module for torch

Average, Sum = "Average", "Sum"

_AUTHKEY = b"stand-in"
_links: list[Connection] = []
"""Rank 0's to ranks 1, 2 and so on; the others' to rank 0."""
_unnamed = 0


def rank() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def size() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))


def local_size() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))


def init() -> None:
    if size() == 1 or _links:
        return
    path = os.environ["HOROVOD_STAND_IN"]
    if rank() > 0:
        _links.append(_connected(path))
        _links[0].send(rank())
        return
    with Listener(path, "AF_UNIX", backlog=size(), authkey=_AUTHKEY) as listener:
        links = [listener.accept() for _ in range(size() - 1)]
    _links.extend(link for _, link in sorted((link.recv(), link) for link in links))


def _connected(path: str, patience: float = 900.0) -> Connection:
    """Rank 0 may not listen yet."""
    end = time.monotonic() + patience
    while True:
        try:
            return Client(path, "AF_UNIX", authkey=_AUTHKEY)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _exchanged(what: str, value: Any, combine: Any) -> Any:
    """`combine` of the values of all ranks, in their order, on every rank."""
    if size() == 1:
        return combine([value])
    if rank() > 0:
        _links[0].send((what, value))
        return _links[0].recv()
    values = [value]
    for number, link in enumerate(_links, start=1):
        theirs, value = link.recv()
        if theirs != what:
            raise RuntimeError(f"rank 0 is in `{what}`, and rank {number} in `{theirs}`")
        values.append(value)
    combined = combine(values)
    for link in _links:
        link.send(combined)
    return combined


def _name(kind: str, name: str | None) -> str:
    global _unnamed
    _unnamed += name is None
    return f"{kind}.{name or f'noname.{_unnamed}'}"


def allreduce(tensor: torch.Tensor, *, name: str | None = None, op: str = Average) -> torch.Tensor:
    what = f"{_name('allreduce', name)} {op} {tuple(tensor.shape)} {tensor.dtype}"
    total = _exchanged(
        what, tensor.detach().numpy(), lambda arrays: reduce(lambda one, other: one + other, arrays)
    )
    return torch.as_tensor(total).reshape(tensor.shape) / (size() if op == Average else 1)


def allgather_object(obj: Any, *, name: str | None = None) -> list[Any]:
    gathered: list[Any] = _exchanged(_name("gather", name), obj, list)
    return gathered


def broadcast_object(obj: Any, root_rank: int = 0, *, name: str | None = None) -> Any:
    received = _exchanged(_name("object", name), obj, lambda objects: objects[root_rank])
    return obj if rank() == root_rank else received


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | list[tuple[str, torch.Tensor]], root_rank: int
) -> None:
    for name, tensor in sorted(dict(params).items()):
        received = _exchanged(
            f"broadcast.{name}", tensor.detach().numpy(), lambda arrays: arrays[root_rank]
        )
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(received))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    if not optimizer.state_dict()["state"]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        super(type(optimizer), optimizer).step()  # the plain optimizer's: it exchanges nothing
    state = optimizer.state_dict()["state"]
    tensors = {
        f"{key}.{number}": value for number, entry in state.items() for key, value in entry.items()
    }
    broadcast_parameters(
        {key: value for key, value in tensors.items() if torch.is_tensor(value)}, root_rank
    )
    options = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    for group, received in zip(
        optimizer.param_groups, broadcast_object(options, root_rank), strict=True
    ):
        group.update(received)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    op: str = Average,
) -> torch.optim.Optimizer:
    kind, named = type(optimizer), dict(named_parameters)

    class Distributed(kind):  # type: ignore[misc,valid-type]
        def step(self, closure: Any = None) -> Any:
            for name, parameter in named.items() if size() > 1 else ():
                parameter.grad = allreduce(parameter.grad, name=name, op=op)
            return super().step(closure)

    made: torch.optim.Optimizer = Distributed(optimizer.param_groups)
    return made
