"""The instance types for training jobs, one row each, with the source of each row.

The rows are in CSV files, in the folders of the targets that have instance types. Each file is read
on first use.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from cloudtrain.errors import ValidNames, did_you_mean
from cloudtrain.system.plugins import ability, all_parts, find_usable, part

Interconnect = Literal["rdma", "ethernet"]
Fabric = Literal["efa", "infiniband", ""]


@dataclass(frozen=True)
class InstanceType:
    """One instance type of one target. Prices are on-demand prices in US dollars per hour. None
    means unknown, never free."""

    target: str
    name: str
    """The target's name of the type: `ml.p4d.24xlarge`, `Standard_ND96asr_v4`."""
    family: str
    """The common name of all sizes of one kind of machine: `p4d`, `ND A100 v4`."""
    vcpus: int
    memory_gib: float
    gpus: int = 0
    gpu: str = ""
    """Model and memory as a job writes them, `A100-40GB`; empty without a GPU."""
    gpu_memory_gib: float = 0.0
    """Memory of each GPU as the driver shows it: an `A10G-24GB` has 22.4 GiB. For Azure, the values
    of its documentation. Also 0 if a refresh found GPUs of unknown memory."""
    gpu_slice: str = ""
    """The fraction of a GPU that the type has, such as `1/6`, if it is a slice (Azure's NVads A10
    v5). A process sees one device with the slice's memory, so `gpus` is 1 and the memory is the
    slice's: `A10-4GB`. Empty for whole GPUs."""
    neuron: str = ""
    """`Trainium` or `Trainium2`; empty on machines other than AWS Neuron."""
    neuron_devices: int = 0
    neuron_cores: int = 0
    """Logical cores of the whole instance. Each core takes one process."""
    neuron_memory_gib: float = 0.0
    """Memory of each Neuron device."""
    architecture: str = "x86_64"
    """Architecture of the CPU and therefore of the image: `x86_64` or `arm64`."""
    interconnect: Interconnect = "ethernet"
    """`rdma`: the instances of a job can communicate without the kernel: EFA on SageMaker,
    InfiniBand with SR-IOV on Azure ML."""
    fabric: Fabric = ""
    """The network of the machine besides Ethernet. InfiniBand without SR-IOV, which NCCL cannot
    use, is `infiniband` here but `ethernet` in `interconnect`."""
    interfaces: int = 0
    """Number of RDMA network interfaces: EFA devices, InfiniBand ports."""
    network: str = ""
    """The network in the provider's words: `4x 100 Gigabit`, `Up to 25 Gigabit`, `High`."""
    network_gbps: float | None = None
    """The network speed as a number, all cards together; for `Up to` the peak. None if the provider
    gives no number. For InfiniBand that NCCL can use, only the InfiniBand's speed."""
    nvme_gb: int = 0
    """Local NVMe disk in decimal GB. A SageMaker job on such a type gets this disk, whatever volume
    size it requests."""
    efa_in_toolkit: bool = False
    """Whether the container's toolkit (sagemaker-training 5.1.4) sets FI_PROVIDER=efa on this type,
    from its own list."""
    rdma_in_toolkit: bool = False
    """Whether the toolkit sets FI_EFA_USE_DEVICE_RDMA=1 on this type. For p5 only since its version
    5.1.2."""
    smddp: bool = False
    """Whether AWS's documentation names this type for the SMDDP library."""
    smddp_in_sdk: bool = False
    """Whether SageMaker SDK v2 lists this type for SMDDP
    (fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES, never checked)."""
    retired: str = ""
    """ISO date from which the provider no longer offers the type, if known."""
    retires: str = ""
    """ISO date on which the provider will retire a type that is still offered, if announced."""
    quota_vcpus: int | None = None
    """vCPUs of the type's family that the account may use at once. Only a refresh finds this; None
    without a refresh."""
    price: float | None = None
    price_date: str = ""
    """ISO date (or year and month) of the price in its source; empty if the source has no date."""
    price_source: str = ""
    machine_price: float | None = None
    """Price of the same machine without the training service (EC2). It is less than `price`, so it
    is a lower bound if `price` is unknown."""
    machine_price_date: str = ""
    machine_price_source: str = ""
    source: str = ""
    """Source of the row's facts other than prices."""

    @property
    def gpu_model(self) -> str:
        """The model of the GPU, such as `A100` for an `A100-40GB`."""
        return self.gpu.rpartition("-")[0] or self.gpu

    @property
    def hardware(self) -> str:
        """The devices that an instance computes on: `8 x H100-80GB`, `16 Neuron cores`, or `4
        vCPUs`."""
        if self.gpus:
            return f"{self.gpus} x {self.gpu}"
        if self.neuron_cores:
            return f"{self.neuron_cores} Neuron cores"
        return f"{self.vcpus} vCPUs"

    @property
    def devices(self) -> int:
        """The number of GPUs, or of Neuron cores if the instance has no GPU, or else 1. By default,
        a distribution starts this number of processes on each instance."""
        return self.gpus or self.neuron_cores or 1


_FLAGS = {"yes": True, "no": False}

PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "int | None": lambda text: int(text) if text else None,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
    "bool": _FLAGS.__getitem__,
}
"""Maps a field's annotation to the parser of its cell. The cells of other fields stay text."""

COLUMNS: dict[str, str] = {
    field.name: str(field.type) for field in fields(InstanceType) if field.name != "target"
}
"""Every column that a row may have, and its annotation."""

REQUIRED = tuple(field.name for field in fields(InstanceType) if field.default is MISSING)[1:]
"""Columns that every row has; the first field, `target`, is no column. The other columns have
defaults, and a table leaves out those with only default values."""


@ability("table")
class InstanceTable(NamedTuple):
    """A target's table of instance types."""

    file: Path
    """The CSV file. Its columns are the fields of `InstanceType`."""
    prefix: str = ""
    """Prefix of all names: `ml.`."""
    any_case: bool = False
    """Whether the service accepts a name in any case, and returns it in a case of its choice."""
    fabric: Fabric = ""
    """The network that `interconnect = "rdma"` means if a row names no fabric."""
    describe: Callable[[InstanceType], list[tuple[str, str]]] = lambda _: []
    """Returns pairs of label and text for facts about a type that depend on the service."""
    explain_unknown: Callable[[str], str | None] = lambda _: None
    """Returns what the name of a type reveals if the table lacks the type, without a period at the
    end."""


def table_of(target: str) -> InstanceTable | None:
    """Return the target's table of instance types; None if the target has none."""
    return part(find_usable(target), InstanceTable)


def tables() -> dict[str, InstanceTable]:
    """Return the tables of all targets that have instance types, by the target's name."""
    return all_parts(InstanceTable)


def name_keys(target: str) -> Callable[[str], str]:
    """Return the function whose result is equal for all spellings of a type's name. Azure, for
    example, treats `Standard_NC6s_v3` and `STANDARD_NC6S_V3` as the same size."""
    table = table_of(target)
    return str.casefold if table is not None and table.any_case else str


@cache
def instance_types(target: str) -> tuple[InstanceType, ...]:
    """Return all rows of a target's table, sorted by family and size; an empty tuple for a target
    without a table."""
    return tuple(_parse_row(target, cells) for cells in _table(target).values())


def types_with_gpu(target: str, gpu_name: str) -> list[InstanceType]:
    """Return the rows with the GPU that `gpu_name` means (`has_gpu`). Rows of other models are not
    parsed."""
    found = []
    for cells in _table(target).values():
        if same_model(gpu_name, cells["gpu"]):
            instance = _parse_row(target, cells)
            if has_gpu(instance, gpu_name):
                found.append(instance)
    return found


@cache
def instance_named(target: str, name: str) -> InstanceType | None:
    """Return the row of the instance type `name`; None if the table lacks it. On Azure ML, `name`
    may be in any case, and the row has the usual spelling."""
    cells = _table(target).get(name_keys(target)(name))
    return None if cells is None else _parse_row(target, cells)


@cache
def _table(target: str) -> Mapping[str, Mapping[str, str]]:
    """Return a target's table as text: each row by the key of its name, and the cells of the row by
    column."""
    table = table_of(target)
    if table is None:
        return {}
    key_of = name_keys(target)
    with table.file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, strict=True)
        return {key_of(row["name"]): row for row in rows}


def _parse_row(target: str, cells: Mapping[str, str]) -> InstanceType:
    """Convert a row of text to an instance type."""
    values = {}
    for name, cell in cells.items():
        values[name] = PARSERS.get(COLUMNS[name], str)(cell)
    return InstanceType(target, **values)


# GPU names in the forms that people and drivers use: `H100`, `a100 40gb`, `A100-40GB`, `NVIDIA
# A100-SXM4-40GB`.

_NOISE = (
    r"nvidia|tesla|geforce|amd|instinct|gpu|tensor|core|server|edition|blackwell|sxm\d*|pcie|"
    r"hbm\d*e?"
)
"""Words that add nothing to the model and its memory."""

_VARIANT = "nvl"
"""A variant of a card: `H100` also means an `H100-NVL-94GB`, but `H100-NVL` means only that
card."""

_UNIT = r"(?<=\d)\s*(?:gi?b?)\b"
_MEMORY = r"(\d+(?:\.\d+)?)g"
_BARE_MEMORY = r"\d{2,3}"
"""A last word such as the 40 of `A100-40`. Four digits belong to the model, as in `RTX PRO
6000`."""

_GB_PER_GIB = 2**30 / 10**9

_TOLERANCE = 0.02


class Gpu(NamedTuple):
    """A parsed GPU name. The model is in lower case, without spaces and makers' names. The memory
    is in gigabytes, None if the name does not contain it."""

    model: str
    memory: float | None


@cache
def read_gpu(text: str) -> Gpu:
    """Parse a GPU name: `A100-40GB` gives `Gpu("a100", 40.0)`. Any text gives a result; an unknown
    model matches no instance type."""
    text = re.sub(_UNIT, "g", text.casefold())
    parts = re.split(r"[^a-z0-9.]+", text)
    words = [word for word in parts if word and not re.fullmatch(_NOISE, word)]
    for number, word in enumerate(words):
        match = re.fullmatch(_MEMORY, word)
        if match:
            del words[number]
            return Gpu("".join(words), float(match[1]))

    memory = None
    if len(words) > 1 and re.fullmatch(_BARE_MEMORY, words[-1]):
        memory = float(words.pop())
    return Gpu("".join(words), memory)


def same_model(gpu_name: str, own: str) -> bool:
    """Return whether the user's GPU name `gpu_name` and the catalogue's GPU name `own` mean the
    same model: `H100` matches `H100-80GB` and `H100-NVL-94GB`."""
    if not own:
        return False
    name = read_gpu(gpu_name).model
    return read_gpu(own).model in (name, name + _VARIANT)


def has_gpu(instance: InstanceType, gpu_name: str) -> bool:
    """Return whether the instance type has the GPU that `gpu_name` means. Without a memory size,
    every size fits: `A100` matches `A100-40GB` and `A100-80GB`.

    A memory size fits if it differs by at most 2% from the size in the catalogue's GPU name, or
    from the size that the driver shows. The driver's size is compared in GiB and in GB.
    """
    if not same_model(gpu_name, instance.gpu):
        return False
    wanted = read_gpu(gpu_name).memory
    if wanted is None:
        return True
    shown = instance.gpu_memory_gib
    sizes = (read_gpu(instance.gpu).memory or 0.0, shown, shown * _GB_PER_GIB)
    return any(abs(wanted - size) <= _TOLERANCE * size for size in sizes)


def named_memory(instance: InstanceType) -> float:
    """Return the memory of each GPU, for comparison with `--min-gpu-memory`: the size in the GPU's
    name, such as 24 for an `A10G-24GB`, or the size that the driver shows, whichever is larger.
    Return 0 if the type has no GPU."""
    return max(read_gpu(instance.gpu).memory or 0.0, instance.gpu_memory_gib)


def gpu_names(types: Iterable[InstanceType]) -> list[str]:
    """Return the names of the GPUs of these types, without duplicates, in alphabetical order."""
    return sorted({instance.gpu for instance in types if instance.gpu})


def unknown_gpu(gpu_name: str, types: Iterable[InstanceType]) -> tuple[str, str | None]:
    """Return a message and a hint for a GPU that no type has. The hint names the same GPU with
    other memory sizes, the Neuron instance types, or the most similar name."""
    types = tuple(types)
    model = read_gpu(gpu_name).model
    of_neuron = []
    for item in types:
        if model and model == item.neuron.casefold():
            of_neuron.append(f"`{item.name}`")
    if of_neuron:
        return f"`{gpu_name}` is not a GPU", f"name the instance type: {' or '.join(of_neuron)}"

    message = f"no instance type has the GPU `{gpu_name}`"
    count = re.match(r"(\d+)\s*(?:[x*:]|$)\s*", gpu_name)
    if count:
        name = gpu_name[count.end() :] or "A100-40GB"
        return message, f"write `gpu: {name}` and `gpus_per_instance: {count[1]}`"
    known = gpu_names(types)
    siblings = [f"`{name}`" for name in known if same_model(gpu_name, name)]
    if siblings:
        return message, f"use {' or '.join(siblings)}"
    models = {name.rpartition("-")[0] for name in known}
    near = did_you_mean(gpu_name, models.union(known))
    if isinstance(near, ValidNames):  # a list of all names; one of the models is shorter
        near = did_you_mean(gpu_name, models)
    return message, near


# The current nodes of a cluster, as the cluster reports them. The catalogue's tables do not contain
# them.


@dataclass
class NodeKind:
    """A group of equal nodes.

    Attributes:
        cpus: CPUs of each node.
        memory: memory of each node, in bytes.
        gpus: GPUs of each node.
        gpu_type: Slurm's name of the GPUs, such as `h100`.
        features: features that a `constraint` or a job's `instance_type` can name.
        partitions: partitions with such nodes.
        nodes: number of nodes.
        idle: number of idle nodes.
    """

    cpus: int
    memory: int
    gpus: int
    gpu_type: str
    features: tuple[str, ...]
    partitions: list[str] = field(default_factory=list)
    nodes: int = 0
    idle: int = 0


@runtime_checkable
class ListsNodes(Protocol):
    """A service that can list the machines of a cluster."""

    def instances(self, place: str) -> list[NodeKind]:
        """Return the kinds of nodes in the cluster `place`.

        Raises:
            TargetError: the cluster does not answer.
        """
        ...


# The cost of instances, from their prices per hour, their number, and their running time.


def hourly(
    instances: Iterable[tuple[InstanceType | None, int]], *, any_of: bool = False
) -> float | None:
    """Return the list price per hour of instances in US dollars: types (None if the catalogue does
    not have one), each with its number. With `any_of`, that of the dearest element, because only
    one will be used. None if a price is unknown, or without instances."""
    rates: list[float] = []
    for instance, count in instances:
        if instance is None or instance.price is None:
            return None
        rates.append(instance.price * max(count, 0))
    if not rates:
        return None
    return max(rates) if any_of else sum(rates)


def over(hourly: float, seconds: float) -> float:
    """Return the cost of `seconds` seconds at the price `hourly` per hour."""
    return hourly * seconds / 3600
