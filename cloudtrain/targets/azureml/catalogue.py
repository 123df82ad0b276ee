"""VM sizes and curated environments of Azure ML. `tools/generate/azureml_instances.py` generates
the table of sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import NearName
from cloudtrain.machines.table import InstanceTable, instance_named, instance_types

DATA = Path(__file__).with_name("data")


def _explain_unknown(name: str) -> str | None:
    properties = guess(name)
    return None if properties is None else properties.text


TABLE = InstanceTable(
    DATA / "instances.csv",
    prefix="Standard_",
    any_case=True,
    fabric="infiniband",
    explain_unknown=_explain_unknown,
)


# Azure ML's curated environments by framework and version: images that Microsoft maintains in its
# public registry.


class Curated(NamedTuple):
    """An environment of the registry `azureml`; `source` is the document that names it."""

    framework: str
    version: str
    """The version that its newest build holds."""
    name: str
    source: str
    former: str = ""
    """The version in its name, if later builds hold another."""
    since: str = ""
    """The ISO date of the source that replaced it."""

    @property
    def id(self) -> str:
        """The id of the newest build, which stays valid when Microsoft removes old builds."""
        return f"azureml://registries/azureml/environments/{self.name}/labels/latest"


_EXAMPLES = "Azure/azureml-examples @ 085cd6ea (2026-07-31)"
_ASSETS = (
    f"{_EXAMPLES}; Azure/azureml-assets @ 6031e09b (2026-07-23), the Dockerfile: "
    "torch==2.10.0+cu126"
)

CURATED = (
    Curated(
        "pytorch", "2.10", "acpt-pytorch-2.8-cuda12.6", _ASSETS, former="2.8", since="2026-07-23"
    ),
    Curated("tensorflow", "2.16", "tensorflow-2.16-cuda12", _EXAMPLES),
)
"""The known curated environments, the newest of each framework first. Only environments seen in use
are listed; use the id of any other."""


def curated_environment(framework: str, version: str | None) -> Curated | None:
    """`version` is like `2.10` or `2.10.0`. Without one, return the framework's newest
    environment."""
    for row in CURATED:
        if row.framework != framework:
            continue
        known = (f"{row.version}.", f"{row.former or row.version}.")
        if version is None or f"{version}.".startswith(known):
            return row
    return None


# Guess the properties of an Azure VM size that the catalogue lacks, from its name; suggest a size
# for a misspelt name.
#
# `Standard_ND96isr_H100_v5` is family ND, 96 vCPUs, features `isr`, accelerator H100, version 5. An
# `r` among the features means RDMA, which is InfiniBand. The rule holds for all sizes of the
# catalogue's table, but Azure does not promise it. No name tells whether the InfiniBand has SR-IOV,
# which NCCL needs.

_NAME = r"(?i)standard_[a-z]+\d+(?:-\d+)?(?P<features>[a-z]*)\w*"

_MODEL = r"(?i)[a-z]+\d+[a-z]*"
"""An accelerator, between the features and the version: the A100 of `_A100_v4`, the GB200 of
`_NDR_GB200_v6`."""


class Guess(NamedTuple):
    """The properties that a size's name suggests. `text` is a sentence that marks them as a
    guess."""

    has_infiniband: bool
    gpu: str
    """The accelerator's model, such as `H100`; empty if the name has none."""
    text: str


def guess(name: str) -> Guess | None:
    """Return the properties that a size's name (in upper or lower case) suggests; None for a name
    of another form."""
    match = re.fullmatch(_NAME, name)
    if match is None:
        return None
    has_infiniband = "r" in match["features"].casefold()
    no = "" if has_infiniband else "no "
    reason = f"{no}`r` among the letters after its number"
    text = f"by its name, `{name}` has {no}InfiniBand ({reason}); that is a guess"

    gpu = ""
    for word in name.split("_")[2:-1]:
        if re.fullmatch(_MODEL, word):
            gpu = word.upper()
    return Guess(has_infiniband, gpu, text)


def nearest_size(name: str) -> NearName | None:
    """Return the suggestion of the most similar name of the same series (`NC`, `ND`); None if no
    name is similar enough."""
    from difflib import get_close_matches  # importing it costs start-up time

    full_name = name.casefold()
    if "_" not in full_name or not full_name.startswith("sta"):
        full_name = f"standard_{full_name}"
    series = _series(full_name)

    names = {}
    for row in instance_types("azureml"):
        if not row.retired and _series(row.name.casefold()) == series:
            names[row.name.casefold()] = row.name
    near = get_close_matches(full_name, names, n=1, cutoff=0.8)
    return NearName.of(names[near[0]]) if near else None


def _series(name: str) -> str:
    """Return the series of a size: the letters before its number, such as `nc`."""
    return re.split(r"_|\d", name)[1]


# Turn the answers of Azure's services about VM sizes into corrections of the catalogue. This code
# is pure.
#
#     Azure ML, `vmSizes`         names, vCPUs, memory, number of GPUs, list prices; no GPU models,
#                                 no InfiniBand
#     Azure ML, `usages`          the account's quota by family
#     Microsoft.Compute, `skus`   RdmaEnabled, the CPU's architecture; many accounts may not read
#                                 this answer
#
# For a size in the catalogue's own table, only price and quota are corrected. A size that the table
# lacks is added with the known facts. If InfiniBand is only guessed from the size's name, the field
# `source` says so.

Cells = dict[str, Any]
"""Maps columns to values, as in one table of `instances.toml`."""

UNKNOWN_GPU = "unknown"
"""The GPU's model for a size whose name does not contain it."""

_ARCHITECTURES = {"arm64": "arm64", "x64": "x86_64"}
"""Values of the capability CpuArchitectureType."""


def overlay_of(
    vm_sizes: Iterable[Mapping[str, Any]],
    usages: Iterable[Mapping[str, Any]],
    skus: Iterable[Mapping[str, Any]] | None = None,
    *,
    date: str,
    location: str,
) -> dict[str, Cells]:
    """Return the corrections by size name, in the form that `overlay.read_overlay` reads from the
    table `azureml`.

    The arguments are the entries of `value` in the answers. Sizes that no cluster accepts are left
    out. `skus` is None if the account may not read that answer. `date` is the ISO date of the
    answers, and of the prices; `location` the region.
    """
    quotas = _quotas(usages)
    capabilities = {}
    for sku in skus or ():
        capabilities[str(sku.get("name")).casefold()] = _capabilities(sku)
    source = f"vmSizes of {location} on {date}"
    corrections: dict[str, Cells] = {}
    for size in vm_sizes:
        name = size.get("name")
        # a size that does not say where it fits is one for clusters
        kinds = size.get("supportedComputeTypes")
        is_for_others = kinds is not None and "amlcompute" not in str(kinds).casefold()
        if is_for_others or not isinstance(name, str):
            continue

        row = instance_named("azureml", name)
        cells: Cells = {}
        if row is None:
            cells = _machine(name, size, capabilities.get(name.casefold(), {}), source)
        cells |= _price(size, date, location)
        quota = quotas.get(_family(str(size.get("family", ""))))
        if quota is not None:
            cells["quota_vcpus"] = quota

        # A size without these facts cannot be a row of the table.
        is_known = row is not None or {"vcpus", "memory_gib"} <= cells.keys()
        if cells and is_known:
            corrections[row.name if row else name] = cells
    return corrections


def _machine(
    name: str, size: Mapping[str, Any], capabilities: Mapping[str, str], source: str
) -> Cells:
    """Return what is known of a size. `size` comes from `vmSizes`, and `capabilities` from
    Microsoft.Compute; `source` is their origin."""
    cells: Cells = {"source": source}
    for column, key in (("vcpus", "vCPUs"), ("gpus", "gpus")):
        if _is_count(size.get(key)):
            cells[column] = int(size[key])
    if _is_count(size.get("memoryGB")):
        cells["memory_gib"] = size["memoryGB"]

    properties = guess(name)
    if cells.get("gpus"):
        cells["gpu"] = (properties and properties.gpu) or UNKNOWN_GPU
        cells["gpu_memory_gib"] = 0
    if size.get("family"):
        cells["family"] = str(size["family"])
    architecture = capabilities.get("cpuarchitecturetype", "").casefold()
    if architecture in _ARCHITECTURES:
        cells["architecture"] = _ARCHITECTURES[architecture]

    # The InfiniBand facts come from Microsoft.Compute, or else from the size's name.
    enabled = capabilities.get("rdmaenabled", "").casefold()
    has_infiniband = enabled == "true"
    why = "InfiniBand not known"
    if enabled in ("true", "false"):
        why = f"Microsoft.Compute: RdmaEnabled {enabled}"
    elif properties:
        has_infiniband = properties.has_infiniband
        why = properties.text
    cells["source"] = f"{source}; {why}"
    if has_infiniband:
        cells |= {"interconnect": "rdma", "fabric": "infiniband"}
    return cells


def _is_count(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < inf


def _price(size: Mapping[str, Any], date: str, location: str) -> Cells:
    """Return the list price of Linux on dedicated machines, in US dollars an hour; empty if the
    answer lacks it."""
    prices = size.get("estimatedVMPrices") or {}
    if prices.get("billingCurrency") != "USD" or prices.get("unitOfMeasure") != "OneHour":
        return {}
    for value in prices.get("values") or ():
        price = value.get("retailPrice")
        is_ours = value.get("osType") == "Linux" and value.get("vmTier") == "Standard"
        if is_ours and _is_count(price):
            source = f"Azure ML vmSizes, {location}"
            return {"price": price, "price_date": date, "price_source": source}
    return {}


def _quotas(usages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Map families to the vCPUs that the account may use at once on dedicated machines. A negative
    limit, which means unlimited, is left out."""
    quotas: dict[str, int] = {}
    for usage in usages:
        name = usage.get("name") or {}
        words = (str(name.get("value")), str(name.get("localizedValue")))
        is_spot = "lowpriority" in squeeze(f"{words} {usage.get('type')}")
        limit = usage.get("limit")
        if is_spot or not isinstance(limit, int) or limit < 0:
            continue
        for word in words:
            if "family" in squeeze(word):
                quotas[_family(word)] = limit
    return quotas


def _family(words: str) -> str:
    """Return the same text for all spellings of a family, such as `standardNDISRH100V5Family` and
    `Standard NDISRH100V5 Family Cluster Dedicated vCPUs`."""
    return squeeze(words).partition("family")[0]


def squeeze(words: str) -> str:
    """Return the letters and digits alone, in lower case."""
    return re.sub(r"[\W_]", "", words.casefold())


def _capabilities(sku: Mapping[str, Any]) -> dict[str, str]:
    """Map the names of a size's capabilities, in lower case, to their values. Empty for other
    resources than VM sizes, such as disks."""
    if str(sku.get("resourceType", "virtualMachines")).casefold() != "virtualmachines":
        return {}
    values = {}
    for entry in sku.get("capabilities") or ():
        name = str(entry.get("name", "")).casefold()
        values[name] = str(entry.get("value", ""))
    return values
