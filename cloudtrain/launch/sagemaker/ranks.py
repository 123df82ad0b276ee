"""Ranks on the hosts where their launchers put them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cloudtrain.plans import Process


def on_hosts(ranks: Iterable[Process], where: Sequence[int]) -> list[Process]:
    """Ranks of the n-th agent on the n-th of these hosts."""
    return [replace(rank, instance=where[rank.instance]) for rank in ranks]


def mpi_ranks(
    program: Sequence[str],
    where: Sequence[int],
    *,
    ranks: int,
    slots: int,
    exports: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """mpirun's ranks, which fill the slots of one host after the other; more than there are slots go to the last one.

    Options for mpirun that change the mapping are not looked at.
    """
    for rank in range(ranks):
        place = min(rank // slots, len(where) - 1)
        local = rank - place * slots
        size = ranks - place * slots if place == len(where) - 1 else slots
        variables = {
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(ranks),
        }
        yield Process(where[place], "rank", tuple(program), {**(exports or {}), **variables}, rank, local)
