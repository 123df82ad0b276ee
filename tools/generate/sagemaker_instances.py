"""Write the catalogue's table of SageMaker training instance types; with --check, say whether it is up to date.

python tools/generate/sagemaker_instances.py [--check]

The names are botocore's enum `TrainingInstanceType`; the facts are moto's copy of EC2's DescribeInstanceTypes, whose
types are the same machines without the `ml.`; what those two lack stands in `sagemaker_instance_facts.py`.
"""

from __future__ import annotations

import csv
import gzip
import importlib.metadata
import importlib.util
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sagemaker_instance_facts as facts
from written import write_or_check

from cloudtrain.machines.table import COLUMNS
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.catalogue.shapes import DATA

TABLE = DATA / "instances.csv"

TOOLKIT = ImageContents("pytorch", "5.1.4")
"""The toolkit. Its lists of types with EFA, SM_EFA_NCCL_INSTANCES and SM_EFA_RDMA_INSTANCES, also determine what plans
show."""

HEADER = [column for column in COLUMNS if column not in ("gpu_slice", "retires", "quota_vcpus")]
"""The columns of this table. SageMaker's types have no values in other columns."""


def names() -> list[str]:
    """Return every training instance type that botocore knows, without the `ml.`, in the order of families and
    sizes."""
    from botocore.loaders import Loader

    model = Loader().load_service_model("sagemaker", "service-2")
    return sorted(
        (name.removeprefix("ml.") for name in model["shapes"]["TrainingInstanceType"]["enum"]),
        key=_order,
    )


def ec2_types() -> tuple[dict[str, Any], str]:
    """Return EC2's description of every type by name, and its source."""
    spec = importlib.util.find_spec("moto")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz"
    with gzip.open(file) as stream:
        types: dict[str, Any] = json.load(stream)
    return types, f"EC2 DescribeInstanceTypes, in moto {importlib.metadata.version('moto')}"


def row(name: str, ec2: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return one type's cells, by column."""
    if name in facts.SPECS:
        cells: dict[str, Any] = {
            "architecture": "x86_64",
            "interconnect": "ethernet",
            **facts.SPECS[name],
        }
    else:
        cells = {
            **_machine(ec2[name]),
            **_accelerators(ec2[name]),
            **_network(ec2[name]["NetworkInfo"]),
        }
        cells["source"] = source
    cells |= facts.CORRECTIONS.get(name, {})
    cells |= {
        "name": f"ml.{name}",
        "family": name.partition(".")[0],
        "efa_in_toolkit": TOOLKIT.sets_efa(f"ml.{name}"),
        "rdma_in_toolkit": TOOLKIT.sets_rdma(f"ml.{name}"),
        "smddp": name in facts.SMDDP,
        "smddp_in_sdk": name in facts.SMDDP_IN_SDK,
    }
    return (
        cells
        | _price("price", facts.PRICES, name)
        | _price("machine_price", facts.MACHINE_PRICES, name)
    )


def _machine(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vcpus": info["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": info["MemoryInfo"]["SizeInMiB"] / 1024,
        "architecture": next(
            name for name in info["ProcessorInfo"]["SupportedArchitectures"] if name != "i386"
        ),
        "nvme_gb": info.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
    }


def _accelerators(info: Mapping[str, Any]) -> dict[str, Any]:
    if "GpuInfo" in info:
        (gpu,) = info["GpuInfo"]["Gpus"]
        memory = gpu["MemoryInfo"]["SizeInMiB"]
        name = facts.GPU_NAMES[gpu["Name"], memory]
        return {"gpus": gpu["Count"], "gpu": name, "gpu_memory_gib": round(memory / 1024, 1)}
    if "NeuronInfo" in info:
        (device,) = info["NeuronInfo"]["NeuronDevices"]
        return {
            "neuron": device["Name"],
            "neuron_devices": device["Count"],
            "neuron_cores": device["Count"] * device["CoreInfo"]["Count"],
            "neuron_memory_gib": device["MemoryInfo"]["SizeInMiB"] / 1024,
        }
    return {}


def _network(info: Mapping[str, Any]) -> dict[str, Any]:
    words = info["NetworkPerformance"]
    number = re.fullmatch(r"(?:Up to )?(?:(\d+)x )?([\d.]+) Gigabit", words)
    efa = info["EfaSupported"]
    return {
        "interconnect": "rdma" if efa else "ethernet",
        "fabric": "efa" if efa else "",
        "interfaces": info["EfaInfo"]["MaximumEfaInterfaces"] if efa else 0,
        "network": words,
        "network_gbps": int(number[1] or 1) * float(number[2]) if number else None,
    }


def _price(column: str, quotes: Sequence[facts.Quote], name: str) -> dict[str, Any]:
    for quote in quotes:
        if name in quote.prices:
            return {
                column: quote.prices[name],
                f"{column}_date": quote.date,
                f"{column}_source": quote.source,
            }
    return {}


def _order(name: str) -> tuple[str, float, str]:
    family, _, size = name.partition(".")
    small = {"medium": 0.25, "large": 0.5, "xlarge": 1.0}
    return family, small.get(size) or float(size.removesuffix("xlarge")), size


def _cell(value: Any, kind: str) -> str:
    if kind == "bool":
        return "yes" if value else "no"
    return (
        ""
        if value is None
        else f"{value:g}"
        if isinstance(value, float) and value == int(value)
        else str(value)
    )


_EMPTY = {"int": 0, "float": 0}


def document() -> str:
    """Return the whole table."""
    ec2, source = ec2_types()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for name in names():
        cells = row(name, ec2, source)
        assert cells.keys() <= set(HEADER), cells.keys() - set(HEADER)
        writer.writerow(
            _cell(cells.get(column, _EMPTY.get(kind)), kind)
            for column, kind in COLUMNS.items()
            if column in HEADER
        )
    return text.getvalue()


def main() -> int:
    """Write the table, or compare it."""
    return write_or_check(TABLE, document(), __file__)


if __name__ == "__main__":
    sys.exit(main())
