"""Wait for all processes of a job before the first collective, and name those that are missing.

If a process never starts, a collective times out after minutes without naming that process. Here every process first
registers in the store, so the others can name the missing processes.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .environment import Environment
from .errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED = 16


def seconds_from(variable: str, default: float) -> float:
    """Return the number of seconds in an environment variable, or `default` if it is not set.

    Raises:
        SetupError: the value is not a number of seconds.
    """
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if number <= 0:
        raise SetupError(f"`{variable}` is `{text}`, which is not a number of seconds")
    return number


def find_store(environment: Environment, patience: float) -> Any:
    """Return the store at `MASTER_ADDR` and `MASTER_PORT`. The store's server is torchrun's agent, or without torchrun,
    rank 0.

    Raises:
        SetupError: the address does not answer within `patience` seconds.
    """
    import torch.distributed as dist

    limit = timedelta(seconds=patience)
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            rendezvous: Any = dist.rendezvous  # type: ignore[attr-defined]  # public, and not in the hints
            store, _, _ = next(rendezvous("env://", environment.rank, environment.world_size, timeout=limit))
            return store
        make: Any = dist.TCPStore  # type: ignore[attr-defined]
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        is_main = environment.rank == 0
        return make(*place, environment.world_size, is_main, limit, wait_for_workers=False, multi_tenant=True)
    except (RuntimeError, ValueError) as error:  # torch's DistStoreError and its kin are RuntimeErrors
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        words = str(error).strip().splitlines()
        raise SetupError(
            f"rank {environment.rank} cannot reach rank 0 at `{address}` within {patience:g} s: {''.join(words[:1])}",
            hint="read the log of rank 0; check its address, and that its port is open between the instances",
        ) from None


def meet(store: Any, environment: Environment, patience: float) -> None:
    """Wait until all processes of the job have registered in the store, for at most `patience` seconds.

    Raises:
        SetupError: some processes did not arrive; the message names them.
    """
    if environment.world_size == 1:
        return
    store.set(_key(environment.rank), socket.gethostname())
    keys = [_key(rank) for rank in range(environment.world_size)]
    deadline = time.monotonic() + patience
    while not store.check(keys):
        if time.monotonic() > deadline:
            _raise_missing(store, environment, patience)
        time.sleep(0.02)


def _raise_missing(store: Any, environment: Environment, patience: float) -> None:
    missing = [rank for rank in range(environment.world_size) if not store.check([_key(rank)])]
    if not missing:
        return
    came = [rank for rank in range(environment.world_size) if rank not in missing]
    hosts = sorted({store.get(_key(rank)).decode() for rank in came[:64]})
    word = f"ranks {_list_ranks(missing)} did not arrive" if len(missing) > 1 else f"rank {missing[0]} did not arrive"
    raise SetupError(
        f"{word} within {patience:g} s; {len(came)} of {environment.world_size} processes have arrived, on "
        f"{', '.join(hosts[:8])}",
        hint="read the logs of the missing ranks, which may have failed while starting; "
        "to wait longer, set `CLOUDTRAIN_PATIENCE` to a number of seconds",
    )


def _list_ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return ", ".join(map(str, ranks[:_MOST_NAMED])) + more


def _key(rank: int) -> str:
    return f"cloudtrain/here/{rank}"
