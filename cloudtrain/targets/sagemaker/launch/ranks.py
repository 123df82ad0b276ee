"""The ranks of mpirun, and the host of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloudtrain.core.processes import Alike, Process


def mpi_ranks(
    program: Sequence[str],
    where: Sequence[int],
    *,
    ranks: int,
    slots: int,
    exports: Mapping[str, str] | None = None,
) -> Alike:
    """Return mpirun's ranks. They fill the slots of one host after the other; surplus ranks go to the last host.

    `where` holds the indices of the hosts, and `slots` is the number of slots of each host.

    User options that change mpirun's mapping are not considered.
    """
    last = min((ranks - 1) // slots, len(where) - 1) if ranks else 0

    def on(place: int) -> int:
        return ranks - place * slots if place == last else slots

    def rank(number: int) -> Process:
        place = min(number // slots, last)
        local = number - place * slots
        size = ranks - place * slots if place == len(where) - 1 else slots
        variables = {
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_SIZE": str(ranks),
        }
        return Process(where[place], "rank", tuple(program), {**(exports or {}), **variables}, number, local)

    return Alike("rank", tuple((where[place], on(place)) for place in range(last + 1)) if ranks else (), rank)
