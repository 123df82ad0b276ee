r"""torchrun for jobs whose instances all run on this machine. It listens only on loopback.

    python -m cloudtrain.runtime.torchrun --rdzv-backend loopback --rdzv-endpoint FILE \
        --rdzv-conf rank=0 ... train.py

This is torchrun with all its options and one more rendezvous backend, `loopback`:

* The agents meet in the file FILE, so they need no port. Ranks are in the order of the instances
  (`rank` is the number
of the agent's instance).
* Each start and each restart of the ranks gets a new store, on loopback, at a free port. Restarted
  ranks therefore
never see the addresses of dead ranks, which gloo would try to reach (pytorch issue 135712).

With torchrun's default rendezvous and `--master-addr 127.0.0.1`, the store listens on loopback too.
Tested with torch 2.6 to 2.13.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from cloudtrain.runtime.loopback import ADDRESS, open_store

BACKEND = "loopback"

_PATIENCE = 600.0
"""Seconds between the arrivals of the agents, as with torchrun's own rendezvous: the first import
of torch can be slow."""

_LOOK_EVERY = 0.01
"""Seconds between two looks at the file."""


class Rendezvous:
    """The rendezvous of torchrun's agents, one per instance. Each start and each restart of the
    ranks is one round.

    The methods are those of torch.distributed.elastic.rendezvous.RendezvousHandler.
    """

    use_agent_store = True
    """Return True: the ranks meet in the store that the first agent holds."""

    def __init__(self, parameters: Any) -> None:
        from torch.distributed import FileStore  # type: ignore[attr-defined]  # as in `loopback`

        self._parameters = parameters
        self._rank = int(parameters.get("rank"))
        self._file = FileStore(parameters.endpoint, -1)
        self._round = 0
        self._store: Any = None

    def get_backend(self) -> str:
        """Return the name under which the rendezvous is registered."""
        return str(self._parameters.backend)

    def get_run_id(self) -> str:
        """Return the name of the run."""
        return str(self._parameters.run_id)

    def next_rendezvous(self) -> Any:
        """Wait for all agents. Return torch's RendezvousInfo with the store that the agents, and
        then the ranks, use in this round.

        Raises:
            RendezvousClosedError: an agent has closed the rendezvous.
            RendezvousTimeoutError: an agent did not arrive in time.
        """
        # as in `loopback`
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
        from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

        self._round += 1
        count = self._parameters.max_nodes
        keys = PrefixStore(f"round_{self._round}", self._file)
        store = None
        if self._rank == 0:
            store = open_store()
            keys.set("port", str(store.port))
        keys.set("wanted", "")
        if keys.add("arrived", 1) == count:
            keys.set("complete", "")
        self._wait(keys)
        port = int(keys.get("port"))
        # not before all are here: nobody needs the last one any more
        self._store = store or TCPStore(ADDRESS, port)
        agents = PrefixStore("agents", self._store)
        return RendezvousInfo(agents, self._rank, count, RendezvousStoreInfo(ADDRESS, port))

    def num_nodes_waiting(self) -> int:
        """Return 1 if an agent has begun the next round to restart its ranks, else 0."""
        return int(self._file.check([f"round_{self._round + 1}/wanted"]))

    def is_closed(self) -> bool:
        """Return whether an agent has closed the rendezvous."""
        return bool(self._file.check(["closed"]))

    def set_closed(self) -> None:
        """Close the rendezvous, so that no agent waits for another round."""
        self._file.set("closed", "")

    def shutdown(self) -> bool:
        """Close the rendezvous because this agent ends. Return True."""
        self.set_closed()
        return True

    def _wait(self, keys: Any) -> None:
        from torch.distributed.elastic.rendezvous import (
            RendezvousClosedError,
            RendezvousTimeoutError,
        )

        deadline = time.monotonic() + _PATIENCE
        while not keys.check(["complete"]):
            if self.is_closed():
                raise RendezvousClosedError("another agent has left")
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"not every agent arrived within {_PATIENCE:.0f} s")
            time.sleep(_LOOK_EVERY)


def _open_usual_store(arguments: Sequence[str]) -> Any:
    """Open and return the store of torchrun's default rendezvous. Return None if `arguments` select
    another rendezvous, an address that is not on loopback, or an agent other than the first."""
    from torch.distributed.run import parse_args

    options = parse_args(list(arguments))  # type: ignore[no-untyped-call]
    if options.rdzv_backend != "static" or options.rdzv_endpoint or options.standalone:
        return None
    if options.master_addr != ADDRESS or options.node_rank != 0:
        return None
    return None if options.master_port is None else open_store(options.master_port)


def main(arguments: Sequence[str]) -> None:
    """Run torchrun with these arguments and the additional rendezvous backend `loopback`."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as run

    # no subclass: torch comes late
    rendezvous_handler_registry.register(BACKEND, Rendezvous)  # type: ignore[arg-type]
    store = _open_usual_store(arguments)  # noqa: F841 - the store listens as long as it is kept
    run(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
