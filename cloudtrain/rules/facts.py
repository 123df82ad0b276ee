"""What rules look up: replacements for instance types, the locations of a job's data, and torch's
names by version."""

from __future__ import annotations

import ast
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.documents.document import parse_python
from cloudtrain.errors import JobError
from cloudtrain.job.model import TargetValues
from cloudtrain.job.nodes import ValuePath
from cloudtrain.machines.choose import choose
from cloudtrain.machines.table import InstanceType, instance_named, instance_types, table_of, tables
from cloudtrain.system.plugins import DEFAULT_TARGET, find_target

if TYPE_CHECKING:
    from cloudtrain.code.tree import Tree
    from cloudtrain.job.pip_file import PipFile
    from cloudtrain.job.training import TrainingJob


def read_requirements(tree: Tree, file: str) -> PipFile:
    """Read a requirements file of the bundle, with the files that it includes."""
    # most jobs have none
    from cloudtrain.job.pip_file import PipFile

    return PipFile(os.path.normpath(file), tree.read_text)


# Replacements for an instance type that is retired or has no suitable network.

_AFTER = {"K80": "T4", "M60": "A10", "P40": "A100", "P100": "A100", "V100": "A100"}
"""Maps the GPU of a retired series to the GPU of the series that Azure recommends instead (NCasT4
v3, NVadsA10 v5, NC A100 v4)."""

_FABRICS = {"efa": "EFA", "infiniband": "InfiniBand", "": "RDMA"}
"""The names of fast networks, by the word in a table of instance types."""


def fabric(entry: InstanceType) -> str:
    """Return the name of the fast network on the target of the type `entry`, such as `EFA`."""
    table = table_of(entry.target)
    return _FABRICS[table.fabric if table is not None else ""]


def last_day(entry: InstanceType | None) -> str | None:
    """Return the ISO date from which a type is no longer offered; None if no date is announced."""
    if entry is None:
        return None
    return entry.retired or entry.retires or None


def one_for_all(entry: InstanceType, count: int) -> InstanceType | None:
    """Return an offered type of which one instance has as many GPUs as `count` instances of
    `entry`, preferably with at least the same GPU memory; None if there is none."""

    def fits(row: InstanceType) -> bool:
        if entry.gpus == 0 or _model(row) != _model(entry):
            return False
        return row.gpus >= entry.gpus * count

    return _best(entry, fits)


def has_rdma_somewhere(entry: InstanceType) -> bool:
    """Return whether the target offers a type with the GPU model of `entry` and a fast network."""

    def fits(row: InstanceType) -> bool:
        return row.interconnect == "rdma" and _model(row) == _model(entry)

    return _best(entry, fits) is not None


def with_rdma(entry: InstanceType) -> str | None:
    """Return the hint to use a type with a fast network; None if none is suitable. In order of
    preference: a type with the GPU model of `entry` and at least its GPU memory; one with its GPU
    model; one with at least its GPU memory."""

    def fits(row: InstanceType) -> bool:
        if row.interconnect != "rdma":
            return False
        is_no_less = row.gpus > 0 and row.gpu_memory_gib >= entry.gpu_memory_gib
        return is_no_less or _model(row) == _model(entry)

    better = _best(entry, fits)
    return f"use `{better.name}` ({describe(better)})" if better else None


def successor(entry: InstanceType) -> str | None:
    """Return the hint to replace `entry` by an offered type; None if none is suitable. The
    replacement has the same GPU model or its successor, at least as many GPUs (without GPUs:
    vCPUs), and a fast network if `entry` has one."""
    gpu, neuron = _model(entry)
    model = (_AFTER.get(gpu, gpu), neuron)

    def fits(row: InstanceType) -> bool:
        if row.name == entry.name or _model(row) != model:
            return False
        if entry.interconnect == "rdma" and row.interconnect != "rdma":
            return False
        if entry.gpus:
            return row.gpus >= entry.gpus
        return row.vcpus >= entry.vcpus

    best = _best(entry, fits)
    return f"use for example `{best.name}` ({describe(best)})" if best else None


def _best(entry: InstanceType, fits: Callable[[InstanceType], bool]) -> InstanceType | None:
    """Return the cheapest offered type of the target of `entry` that fits; None if there is none.
    Types with the GPU model of `entry` and at least its GPU memory come before cheaper ones, and
    types without a price last. Slices of GPUs and Arm machines are never returned."""

    def rank(row: InstanceType) -> tuple[object, ...]:
        is_other = _model(row) != _model(entry)
        has_less = row.gpu_memory_gib < entry.gpu_memory_gib
        price = row.price or inf
        return is_other, has_less, price, row.gpus, row.vcpus, row.name

    rows = []
    for row in filter(fits, instance_types(entry.target)):
        if not last_day(row) and not row.gpu_slice and row.architecture == "x86_64":
            rows.append(row)
    return min(rows, key=rank, default=None)


def _model(row: InstanceType) -> tuple[str, str]:
    """Return a type's GPU model without its memory size (`H100` for `H100-80GB` and
    `H100-NVL-94GB`), and the model of its AWS Neuron devices, such as `Trainium`. Either is empty
    if the type has no such device."""
    return row.gpu.partition("-")[0], row.neuron


def describe(row: InstanceType) -> str:
    """Return the hardware of a type, the speed of its fast network and its price."""
    text = row.hardware
    if row.interconnect == "rdma" and row.network_gbps:
        text += f", {row.network_gbps:,.0f} Gb/s of {fabric(row)}"
    if row.price:
        text += f", ${row.price:,.2f} an hour"
    return text


# Equivalent instance types on other targets, for jobs that name an instance type of the wrong
# target.


def counterpart(name: str, target: str) -> str | None:
    """Return a hint for a job on `target` whose instance type `name` belongs to another cloud. If
    `target` has a type with the same GPUs, the hint names it. None if no other cloud has a type
    called `name`."""
    for other, table in tables().items():
        entry = instance_named(other, name) or instance_named(other, table.prefix + name)
        if other == target or entry is None:
            continue

        theirs = f"`{name}` is {find_target(other).title}'s name"
        equal = None
        if entry.gpu:
            with suppress(JobError):
                equal = choose(
                    target,
                    gpu=entry.gpu,
                    gpus_per_instance=entry.gpus,
                    interconnect=entry.interconnect,
                )
        if equal is not None:
            return f"write `{equal.name}`, which has {equal.hardware} too; {theirs}"
        title = find_target(target).title
        return f"{theirs}; `cloudtrain instances --target {target}` lists those of {title}"
    return None


# The locations that a job reads and writes, as normalized addresses that can be compared.


_PARTS_OF_ROOTS = {"file": 1, "storage": 3}
"""Number of parts in the address of a root, by its scheme; 2 for others."""


class DataPlace(NamedTuple):
    """One location of the job's data.

    Attributes:
        name: the name in messages, such as "output `model`".
        word: the folder name that hints suggest for this location.
        address: the address as the request writes it.
        parts: the parts of the address. Location B is inside location A if B's parts begin with all
            parts of A.
        path: the path of the location in the job; empty for a default location.
        is_written: whether the job writes to the location; False if the job reads from it.
    """

    name: str
    word: str
    address: str
    parts: tuple[str, ...]
    path: ValuePath
    is_written: bool

    def holds(self, other: DataPlace) -> bool:
        """Return whether the other location is equal to, or inside, this location."""
        return other.parts[: len(self.parts)] == self.parts

    @property
    def is_root(self) -> bool:
        """Whether the location is a whole bucket, datastore, container or file system."""
        return len(self.parts) <= _PARTS_OF_ROOTS.get(self.parts[0], 2)

    @property
    def folder(self) -> str:
        """The address without query and without a slash at its end."""
        return self.address.partition("?")[0].rstrip("/")


def data_place(
    kind: str, name: str, address: str, parts: tuple[str, ...], path: ValuePath
) -> DataPlace:
    """Return a `DataPlace`. `kind` is `input`, `output` or `checkpoint`; `parts` are the parts of
    `address`."""
    label = "the checkpoint" if kind == "checkpoint" else f"{kind} `{name}`"
    return DataPlace(label, name, address, parts, path, is_written=kind != "input")


def declared_places(job: TrainingJob, target: str, *, outputs: bool = True) -> Iterator[DataPlace]:
    """Yield the locations that the job's fields set for `target`. With `outputs=False`, skip the
    outputs."""
    split = split_path if target == DEFAULT_TARGET else split_uri
    rows: list[tuple[str, str, TargetValues, ValuePath]] = []
    for name, item in job.inputs.items():
        rows.append(("input", name, item, ("inputs", name)))
    if outputs:
        for name, output in job.outputs.items():
            rows.append(("output", name, output, ("outputs", name)))
    if job.checkpoint is not None:
        rows.append(("checkpoint", "checkpoint", job.checkpoint, ("checkpoint",)))

    for kind, name, addresses, path in rows:
        address = addresses.of(target)
        if address is not None:
            yield data_place(kind, name, address, split(address), (*path, target))


def split_uri(uri: str) -> tuple[str, ...]:
    """Split an address into its scheme and the names between slashes; text without `://` becomes a
    single part."""
    scheme, _, rest = uri.partition("://")
    return (scheme, *filter(None, rest.split("/")))


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path on this machine, with links resolved."""
    real = pathlib.Path(os.path.realpath(path))
    return ("file", *real.parts[1:])


# Names of torch's distributed training, each with the PyTorch version that introduced it.

Version = tuple[int, int]

FIRST_VERSION: dict[str, Version] = {
    "torch.distributed.device_mesh": (2, 2),
    "torch.distributed.pipelining": (2, 4),
    "torch.distributed.tensor.DTensor": (2, 5),
    "torch.distributed.pipelining.ScheduleInterleavedZeroBubble": (2, 5),
    "torch.distributed.pipelining.schedules.ScheduleInterleavedZeroBubble": (2, 5),
    "torch.distributed.pipelining.ScheduleZBVZeroBubble": (2, 6),
    "torch.distributed.pipelining.schedules.ScheduleZBVZeroBubble": (2, 6),
    "torch.distributed.fsdp.fully_shard": (2, 6),
    "torch.distributed.fsdp.MixedPrecisionPolicy": (2, 6),
}
"""Maps modules and names in them to the first version with it (release notes of PyTorch 2.2 to
2.6)."""

SCHEDULES: dict[str, Version] = {"zero-bubble": (2, 5), "zero-bubble-v": (2, 6)}
"""Maps values of the hyperparameter `schedule` to versions, for scripts that import
torch.distributed.pipelining."""

NEWEST = max(FIRST_VERSION.values())
"""The first version of PyTorch that has all these names."""


def too_new(source: str, version: Version) -> Iterator[tuple[str, Version]]:
    """Yield each name that a Python file imports but PyTorch `version` lacks, and the first version
    that has it."""
    if "torch.distributed" not in source:
        return
    names: set[str] = set()
    with suppress(SyntaxError):
        names.update(_imports(parse_python(source)))
    for name in sorted(names):
        first = FIRST_VERSION.get(name, (0, 0))
        if first > version:
            yield name, first


def uses_pipelining(source: str) -> bool:
    return "torch.distributed.pipelining" in source


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of every absolute import, and the names that it takes from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
