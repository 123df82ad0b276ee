"""The instance types that a training job can ask for, one row each, and where each row comes from.

The rows are CSV files, one in the folder of each target that has instance types, read when first asked for.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cloudtrain.core.targets import all_targets, find_target, target_names

Interconnect = Literal["rdma", "ethernet"]
Fabric = Literal["efa", "infiniband", ""]


@dataclass(frozen=True)
class InstanceType:
    """One instance type of one target. Prices are US dollars an hour, on demand; None is unknown, never free."""

    target: str
    name: str
    """As the target writes it: `ml.p4d.24xlarge`, `Standard_ND96asr_v4`."""
    family: str
    """`p4d`, `ND A100 v4`: what the sizes of one kind of machine share."""
    vcpus: int
    memory_gib: float
    gpus: int = 0
    gpu: str = ""
    """Model and memory as a job writes them, `A100-40GB`; empty where there is no GPU."""
    gpu_memory_gib: float = 0.0
    """Of each GPU, as the driver sees it: an `A10G-24GB` has 22.4 GiB. Azure's are what its documentation prints. 0
    also where a refresh found GPUs of unknown memory."""
    gpu_slice: str = ""
    """`1/6`: how much of a GPU the type's one GPU is, where it is a slice (Azure's NVads A10 v5). A process sees one
    device with the slice's memory, so `gpus` is 1 and the memory is the slice's: `A10-4GB`. Empty: whole GPUs."""
    neuron: str = ""
    """`Trainium` or `Trainium2`; empty on all but AWS Neuron machines."""
    neuron_devices: int = 0
    neuron_cores: int = 0
    """Logical cores of the whole instance: each takes one process."""
    neuron_memory_gib: float = 0.0
    """Of each device."""
    architecture: str = "x86_64"
    """Of the CPU, and so of the image: `x86_64` or `arm64`."""
    interconnect: Interconnect = "ethernet"
    """`rdma`: instances of a job can talk past the kernel. On SageMaker that is EFA, on Azure ML InfiniBand with
    SR-IOV."""
    fabric: Fabric = ""
    """What the machine has beside Ethernet. InfiniBand without SR-IOV, which NCCL cannot use, is `infiniband` here and
    `ethernet` above."""
    interfaces: int = 0
    """RDMA network interfaces: EFA devices, InfiniBand ports."""
    network: str = ""
    """In the provider's words: `4x 100 Gigabit`, `Up to 25 Gigabit`, `High`."""
    network_gbps: float | None = None
    """The same as a number, all cards together; an `Up to` is its peak. None where the provider gives a word, or none.
    With InfiniBand that NCCL can use, the InfiniBand's alone."""
    nvme_gb: int = 0
    """Local NVMe disk, decimal GB. A SageMaker job on such a type gets that disk, whatever volume it asks for."""
    efa_in_toolkit: bool = False
    """The container's toolkit (sagemaker-training 5.1.4) sets FI_PROVIDER=efa on this type, from a list of its own."""
    rdma_in_toolkit: bool = False
    """The same toolkit sets FI_EFA_USE_DEVICE_RDMA=1 on this type. For p5 only since its version 5.1.2."""
    smddp: bool = False
    """AWS's documentation names this type for the SMDDP library."""
    smddp_in_sdk: bool = False
    """SageMaker SDK v2 lists this type for SMDDP (fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES, never checked)."""
    retired: str = ""
    """ISO date from which the provider no longer offers it, where that is known."""
    retires: str = ""
    """ISO date on which a type that is still offered goes, where the provider has said so."""
    quota_vcpus: int | None = None
    """vCPUs of its family that the account may use at once. Only a refresh knows it; None where none was made."""
    price: float | None = None
    price_date: str = ""
    """ISO date (or year and month) on which the price stood in its source; empty where the source has no date."""
    price_source: str = ""
    machine_price: float | None = None
    """The same machine without the training service (EC2): less than `price`, a lower bound where that is unknown."""
    machine_price_date: str = ""
    machine_price_source: str = ""
    source: str = ""
    """Where the row's facts come from, prices aside."""

    @property
    def gpu_model(self) -> str:
        """`A100` of `A100-40GB`."""
        return self.gpu.rpartition("-")[0] or self.gpu

    @property
    def hardware(self) -> str:
        """`8 x H100-80GB`, `16 Neuron cores`, or `4 vCPUs`: what the processes of an instance compute on."""
        if self.gpus:
            return f"{self.gpus} x {self.gpu}"
        return f"{self.neuron_cores} Neuron cores" if self.neuron_cores else f"{self.vcpus} vCPUs"

    @property
    def devices(self) -> int:
        """Processes that a distribution starts here unless told otherwise: GPUs, else Neuron cores, else one."""
        return self.gpus or self.neuron_cores or 1


_FLAGS = {"yes": True, "no": False}

PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "int | None": lambda text: int(text) if text else None,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
    "bool": _FLAGS.__getitem__,
    "str": str,
    "Interconnect": str,
    "Fabric": str,
}
"""A field's annotation to how its cell is read."""

COLUMNS: dict[str, str] = {field.name: str(field.type) for field in fields(InstanceType) if field.name != "target"}
"""Every column that a row may have, and its annotation."""

REQUIRED = tuple(field.name for field in fields(InstanceType) if field.default is MISSING)[1:]
"""Columns that every row has; the others have defaults. A table leaves out those in which none of its rows differs."""


class InstanceTable(NamedTuple):
    """What a target says about its instance types."""

    file: Path
    """CSV; the columns are the fields of `InstanceType`."""
    prefix: str = ""
    """With what all names begin: `ml.`."""
    any_case: bool = False
    """Whether the service takes a name in any case, and gives it back in one of its own choice."""
    fabric: Fabric = ""
    """What `interconnect = "rdma"` is, where a row does not say."""
    describe: Callable[[InstanceType], list[tuple[str, str]]] = lambda _: []
    """What the service makes of a type, beside the table's facts: label and text."""
    explain_unknown: Callable[[str], str | None] = lambda _: None
    """What the name of a type that the table lacks tells, without a final stop."""


def table_of(target: str) -> InstanceTable | None:
    """What the target says about its instance types; None for one that has no table."""
    table: InstanceTable | None = find_target(target).instance_table if target in target_names() else None
    return table


def tables() -> dict[str, InstanceTable]:
    """Every target that has instance types, by its name."""
    return {target.name: target.instance_table for target in all_targets() if target.instance_table is not None}


def name_key(target: str, name: str) -> str:
    """Equal for two spellings of one type: `Standard_NC6s_v3` and `STANDARD_NC6S_V3` are the same size of Azure's."""
    table = table_of(target)
    return name.casefold() if table is not None and table.any_case else name


@cache
def instance_types(target: str) -> tuple[InstanceType, ...]:
    """All rows of a target's table, by family and size; none for a target that has no table."""
    return tuple(_parse_row(target, cells) for cells in _table(target).values())


def instances_where(target: str, column: str, fits: Callable[[str], bool]) -> tuple[InstanceType, ...]:
    """The rows whose cell fits, judged as text. No other row is built: all 225 take 4 ms."""
    return tuple(_parse_row(target, cells) for cells in _table(target).values() if fits(cells[column]))


@cache
def instance_named(target: str, name: str) -> InstanceType | None:
    """The row of that name, or None. Azure's names are found in any case, and the row has the usual spelling.

    No other row is built: a plan needs one.
    """
    cells = _table(target).get(name_key(target, name))
    return None if cells is None else _parse_row(target, cells)


@cache
def _table(target: str) -> Mapping[str, Mapping[str, str]]:
    """The table's cells by `name_key` and column."""
    table = table_of(target)
    if table is None:
        return {}
    with table.file.open(encoding="utf-8", newline="") as lines:
        return {name_key(target, row["name"]): row for row in csv.DictReader(lines, strict=True)}


def _parse_row(target: str, cells: Mapping[str, str]) -> InstanceType:
    return InstanceType(target, **{name: PARSERS[COLUMNS[name]](cell) for name, cell in cells.items()})
