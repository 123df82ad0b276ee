"""The locations that a job reads and writes, as normalized addresses that can be compared."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.core.targets import DEFAULT_TARGET

if TYPE_CHECKING:
    from cloudtrain.core.job import TrainingJob

Path = tuple[str | int, ...]


class DataPlace(NamedTuple):
    """One location of the job's data.

    Attributes:
        name: the name in messages, such as "output `model`".
        word: the folder name that hints suggest for this location.
        address: the address as the request writes it.
        parts: the parts of the address. Location B is inside location A if B's parts begin with all parts of A.
        path: the path of the location in the job; empty for a default location.
        is_written: whether the job writes to the location; False if the job reads from it.
    """

    name: str
    word: str
    address: str
    parts: tuple[str, ...]
    path: Path
    is_written: bool

    def holds(self, other: DataPlace) -> bool:
        """Return whether the other location is equal to, or inside, this location."""
        return other.parts[: len(self.parts)] == self.parts

    @property
    def is_root(self) -> bool:
        """Whether the location is a whole bucket, datastore, container or file system."""
        return len(self.parts) <= {"file": 1, "storage": 3}.get(self.parts[0], 2)

    @property
    def folder(self) -> str:
        """The address without query and without a slash at its end."""
        return self.address.partition("?")[0].rstrip("/")


def data_place(kind: str, name: str, address: str, parts: tuple[str, ...], path: Path) -> DataPlace:
    """Return a `DataPlace`. `kind` is `input`, `output` or `checkpoint`; `parts` are the parts of `address`."""
    told = "the checkpoint" if kind == "checkpoint" else f"{kind} `{name}`"
    return DataPlace(told, name, address, parts, path, is_written=kind != "input")


def declared_places(job: TrainingJob, target: str, *, outputs: bool = True) -> Iterator[DataPlace]:
    """Yield the locations that the job's fields set for `target`. With `outputs=False`, skip the outputs."""
    split = split_path if target == DEFAULT_TARGET else split_uri
    for name, read in job.inputs.items():
        if (place := read.of(target)) is not None:
            yield data_place("input", name, place, split(place), ("inputs", name, target))
    for name, written in job.outputs.items() if outputs else ():
        if (place := written.of(target)) is not None:
            yield data_place("output", name, place, split(place), ("outputs", name, target))
    if job.checkpoint is not None and (place := job.checkpoint.of(target)) is not None:
        yield data_place("checkpoint", "checkpoint", place, split(place), ("checkpoint", target))


def split_uri(uri: str) -> tuple[str, ...]:
    """Split an address into its scheme and the names between slashes; text without `://` becomes a single part."""
    scheme, _, rest = uri.partition("://")
    return (scheme, *(part for part in rest.split("/") if part))


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path on this machine, with links resolved."""
    return ("file", *pathlib.Path(os.path.realpath(path)).parts[1:])
