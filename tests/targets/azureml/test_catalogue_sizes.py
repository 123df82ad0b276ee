"""What Azure's services say about sizes, as corrections of the catalogue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.machines.overlay import apply_overlay, read_overlay
from cloudtrain.machines.table import COLUMNS, InstanceType, instance_named, instance_types
from cloudtrain.targets.azureml.catalogue import overlay_of


def size(
    name: str, *, family: str = "", price: float | None = None, **fields: Any
) -> dict[str, Any]:
    """An entry of Azure ML's vmSizes."""
    values = [
        {"retailPrice": (price or 0) / 4, "osType": "Linux", "vmTier": "LowPriority"},
        {"retailPrice": (price or 0) * 2, "osType": "Windows", "vmTier": "Standard"},
        {"retailPrice": price, "osType": "Linux", "vmTier": "Standard"},
    ]
    prices = {
        "billingCurrency": "USD",
        "unitOfMeasure": "OneHour",
        "values": values if price is not None else [],
    }
    plain = {
        "vCPUs": 8,
        "gpus": 0,
        "memoryGB": 32.0,
        "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
    }
    return {"name": name, "family": family, "estimatedVMPrices": prices, **plain, **fields}


def usage(family: str, limit: int, **fields: Any) -> dict[str, Any]:
    """An entry of Azure ML's usages."""
    return {"limit": limit, "currentValue": 0, "unit": "Count", "name": {"value": family}, **fields}


def sku(name: str, **capabilities: str) -> dict[str, Any]:
    """An entry of Microsoft.Compute's skus."""
    said = [{"name": key, "value": value} for key, value in capabilities.items()]
    return {"resourceType": "virtualMachines", "name": name, "capabilities": said}


def cells_of(*sizes: Any, usages: Any = (), skus: Any = None) -> dict[str, dict[str, Any]]:
    """What follows from the answers."""
    return overlay_of(sizes, usages, skus, date="2026-11-22", location="eastus")


def rows_of(*sizes: Any, usages: Any = (), skus: Any = None) -> dict[str, InstanceType]:
    """The catalogue with what follows from the answers, by name."""
    overlay = read_overlay(
        {"azureml": cells_of(*sizes, usages=usages, skus=skus)}, "refreshed.json"
    )
    return {row.name: row for row in apply_overlay(instance_types("azureml"), overlay)}


def test_a_known_size_gets_a_price_with_date_and_source() -> None:
    """Linux on dedicated machines; everything else that the table knows stays, whatever the service says."""
    row = rows_of(size("STANDARD_ND96ASR_V4", price=28.5, gpus=8, vCPUs=95))["Standard_ND96asr_v4"]
    assert (row.price, row.price_date, row.price_source) == (
        28.5,
        "2026-11-22",
        "Azure ML vmSizes, eastus",
    )
    known = instance_named("azureml", "Standard_ND96asr_v4")
    assert known is not None
    same = [column for column in COLUMNS if not column.startswith("price")]
    assert [getattr(row, column) for column in same] == [getattr(known, column) for column in same]


@pytest.mark.parametrize(
    "prices",
    [
        None,
        {},
        {"billingCurrency": "EUR", "unitOfMeasure": "OneHour"},
        {"billingCurrency": "USD", "unitOfMeasure": "OneMonth"},
        {"billingCurrency": "USD", "unitOfMeasure": "OneHour", "values": None},
        {"billingCurrency": "USD", "unitOfMeasure": "OneHour",
         "values": [{"retailPrice": 0, "osType": "Linux", "vmTier": "Standard"}]},
        {"billingCurrency": "USD", "unitOfMeasure": "OneHour",
         "values": [{"retailPrice": 3, "osType": "Linux", "vmTier": "Spot"}]},
    ],
)  # fmt: skip
def test_what_is_no_price_in_dollars_an_hour_is_none(prices: Any) -> None:
    """Other currencies, units, tiers, and a price of nothing change nothing."""
    prices = prices and (
        {"values": [{"retailPrice": 3, "osType": "Linux", "vmTier": "Standard"}]} | prices
    )
    assert cells_of(size("Standard_ND96asr_v4", estimatedVMPrices=prices)) == {}


@pytest.mark.parametrize(
    "name",
    [
        {"value": "standardNDASv4_A100Family"},
        {"value": "x", "localizedValue": "Standard NDASv4_A100 Family Cluster Dedicated vCPUs"},
        {"value": "Standard_NDASv4_A100_Family_Cluster_Dedicated_vCPUs", "localizedValue": None},
    ],
)
def test_quota_goes_by_family(name: dict[str, Any]) -> None:
    """However a family is spelt; other families and low priority are others."""
    usages = [
        usage("standardNCFamily", 6),
        usage("", 192, name=name),
        usage("", 5, name=name, type="Microsoft.MachineLearningServices/lowPriorityCores/usages"),
        usage("lowPriorityFamilyCores", 7),
        usage("Total Cluster Dedicated Regional vCPUs", 999),
    ]
    cells = cells_of(size("Standard_ND96asr_v4", family="standardNDASv4_A100Family"), usages=usages)
    assert cells == {"Standard_ND96asr_v4": {"quota_vcpus": 192}}


def test_no_quota_is_not_an_unknown_one() -> None:
    """0 is what most GPU families start with; a family that the answer leaves out has none at all."""
    one = size("Standard_ND96asr_v4", family="standardNDASv4_A100Family")
    assert cells_of(one, usages=[usage("standardNDASv4_A100Family", 0)]) == {
        "Standard_ND96asr_v4": {"quota_vcpus": 0}
    }
    assert cells_of(one, usages=[usage("standardNCFamily", 6)]) == {}


def test_a_negative_quota_is_no_limit() -> None:
    """As the checks read it: nothing is said, rather than that no machine may be had."""
    one = size("Standard_ND96asr_v4", family="standardNDASv4_A100Family")
    assert cells_of(one, usages=[usage("standardNDASv4_A100Family", -1)]) == {}


def test_an_unknown_size_is_added_with_what_is_known() -> None:
    """Microsoft.Compute knows RDMA and the architecture; the GPU is the one in the name, of unknown memory."""
    name = "Standard_ND144isr_X900_v9"
    new = size(name, family="standardNDX900Family", price=50, vCPUs=144, gpus=4, memoryGB=900.5)
    row = rows_of(new, skus=[sku(name, RdmaEnabled="True", CpuArchitectureType="Arm64")])[name]
    assert row == InstanceType(
        "azureml", name, "standardNDX900Family", 144, 900.5, gpus=4, gpu="X900", architecture="arm64",
        interconnect="rdma", fabric="infiniband", price=50, price_date="2026-11-22",
        price_source="Azure ML vmSizes, eastus",
        source="vmSizes of eastus on 2026-11-22; Microsoft.Compute: RdmaEnabled true",
    )  # fmt: skip


def test_what_compute_says_wins_over_the_name() -> None:
    """An `r` in the name is a guess, which RdmaEnabled settles."""
    row = rows_of(size("Standard_HX9rs_v9"), skus=[sku("standard_hx9rs_v9", RdmaEnabled="False")])[
        "Standard_HX9rs_v9"
    ]
    assert (row.interconnect, row.fabric) == ("ethernet", "")
    assert "RdmaEnabled false" in row.source


@pytest.mark.parametrize(
    ("name", "interconnect"), [("Standard_HX9rs_v9", "rdma"), ("Standard_HX9s_v9", "ethernet")]
)
def test_without_compute_the_name_decides_and_the_row_says_so(name: str, interconnect: str) -> None:
    """A guess is marked as one, where Microsoft.Compute may not be read, and where it says nothing of the size."""
    for skus in (None, [], [sku(name)], [{"resourceType": "disks", "name": name, "capabilities": [
        {"name": "RdmaEnabled", "value": "True"}]}]):  # fmt: skip
        row = rows_of(size(name), skus=skus)[name]
        assert row.interconnect == interconnect
        assert row.source.endswith("that is a guess")


def test_sizes_for_other_things_are_left_out() -> None:
    """What no cluster takes, what has no name, and a new size without its vCPUs are not types of instances."""
    assert cells_of(size("Standard_Q8s_v9", supportedComputeTypes=["ComputeInstance"])) == {}
    assert cells_of({"name": None}) == {}
    assert cells_of(size("Standard_Q8s_v9", vCPUs=None)) == {}
    assert "Standard_Q8s_v9" in cells_of(size("Standard_Q8s_v9", supportedComputeTypes=None))


def test_a_gpu_that_the_name_does_not_tell_is_unknown() -> None:
    """The row is there with its number of GPUs, and no job gets it by a GPU's name."""
    row = rows_of(size("Standard_NX8s_v9", gpus=1))["Standard_NX8s_v9"]
    assert (row.gpus, row.gpu, row.gpu_memory_gib) == (1, "unknown", 0)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(
                    ["Standard_ND96asr_v4", "Standard_HX9rs_v9", "Standard_NX8s_v9", "x", ""]
                )
            },
            optional={
                "vCPUs": st.none() | st.integers(-3, 500) | st.floats(),
                "memoryGB": st.none() | st.integers(-3, 500) | st.floats(),
                "gpus": st.none() | st.integers(-3, 16),
                "family": st.none() | st.text(max_size=6),
                "somethingElse": _JSON,
            },
        ),
        max_size=4,
    )
)
def test_any_answer_gives_a_table_that_can_be_read(sizes: list[dict[str, Any]]) -> None:
    """Whatever numbers the service has, what is written is read back without a complaint."""
    rows_of(*sizes)
