"""Write the catalogue's table of Azure ML instance types; with --check, say whether it is up to date.

python tools/generate/azureml_instances.py [--check]

Azure publishes its sizes as pages of documentation, so the source is a table made by hand beside this file,
`azureml_instances.csv`: one size a row, with the pages that say so. `azure-compute-docs:` and `azure-docs:` are the
repositories MicrosoftDocs/azure-compute-docs and MicrosoftDocs/azure-docs, their files below articles/virtual-machines
(`sizes/...`) with the date that stands in the page. Prices come from a public snapshot without a date: they are good
for comparing sizes, and `cloudtrain instances --refresh` replaces them.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from written import write_or_check

from cloudtrain.machines.table import COLUMNS
from cloudtrain.targets.azureml.catalogue import DATA

SOURCE = Path(__file__).with_name("azureml_instances.csv")

TABLE = DATA / "instances.csv"

HEADER = (
    "name", "family", "vcpus", "memory_gib", "gpus", "gpu", "gpu_memory_gib", "gpu_slice", "architecture",
    "interconnect", "fabric", "interfaces", "network", "network_gbps", "retired", "retires", "price", "price_source",
    "source",
)  # fmt: skip
"""The columns of this table."""

ARM = ("GB200", "GB300")
"""GPUs that come with a Grace CPU, which is Arm."""


def row(size: Mapping[str, str]) -> dict[str, str]:
    """Return one size's cells, by column. The unit GB of Azure's pages is GiB, as its API says."""
    cells = {
        "name": size["name"],
        "family": size["series"],
        "vcpus": size["vcpus"],
        "memory_gib": size["memory_gib"],
        "architecture": "arm64" if size["gpu"] in ARM else "x86_64",
        "price": size["price"],
        "price_source": size["price_source"] and f"{size['price_source']}, undated",
        "source": "; ".join(text for text in (size["source"], size["note"]) if text),
    }
    return cells | _gpus(size) | _network(size) | _lifecycle(size)


def _gpus(size: Mapping[str, str]) -> dict[str, str]:
    if not size["gpus"]:
        return {"gpus": "0", "gpu_memory_gib": "0"}
    whole = size["gpus"].isdigit()
    return {
        "gpus": size["gpus"] if whole else "1",
        "gpu": f"{size['gpu']}-{size['gpu_memory_gb']}GB",
        "gpu_memory_gib": size["gpu_memory_gb"],
        "gpu_slice": "" if whole else size["gpus"],
    }


def _network(size: Mapping[str, str]) -> dict[str, str]:
    ethernet = f"{size['ethernet_gbps']} Gigabit" if size["ethernet_gbps"] else ""
    if not size["ib_ports"]:
        cells = {"interconnect": "ethernet", "interfaces": "0"}
        return cells | {"network": ethernet, "network_gbps": size["ethernet_gbps"]}
    ports, total = int(size["ib_ports"]), int(size["ib_gbps"])
    assert total % ports == 0, size["name"]
    infiniband = (
        f"{ports}x {total // ports} Gigabit InfiniBand"
        if ports > 1
        else f"{total} Gigabit InfiniBand"
    )
    usable = {"yes": True, "no": False}[size["sriov"]]
    parts = [
        infiniband if usable else f"{infiniband} without SR-IOV",
        ethernet and f"{ethernet} Ethernet",
    ]
    return {
        "interconnect": "rdma" if usable else "ethernet",
        "fabric": "infiniband",
        "interfaces": size["ib_ports"],
        "network": ", ".join(part for part in parts if part),
        "network_gbps": size["ib_gbps"] if usable else size["ethernet_gbps"],
    }


def _lifecycle(size: Mapping[str, str]) -> dict[str, str]:
    column = {"retired": "retired", "announced": "retires", "current": ""}[size["status"]]
    assert bool(column) == bool(size["retirement"]), size["name"]
    return {column: date.fromisoformat(size["retirement"]).isoformat()} if column else {}


def document() -> str:
    """Return the whole table, in the source's order."""
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER, lineterminator="\n")
    writer.writeheader()
    with SOURCE.open(encoding="utf-8", newline="") as lines:
        writer.writerows(row(size) for size in csv.DictReader(lines, strict=True))
    return text.getvalue()


def main() -> int:
    """Write the table, or compare it."""
    assert set(HEADER) <= COLUMNS.keys(), set(HEADER) - COLUMNS.keys()
    return write_or_check(TABLE, document(), __file__)


if __name__ == "__main__":
    sys.exit(main())
