"""The table of Azure ML's instance types: whole, sane, with sources, and what its generator writes."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import JobError
from cloudtrain.machines.choose import Query, choose, select
from cloudtrain.machines.table import (
    InstanceType,
    gpu_names,
    has_gpu,
    instance_named,
    instance_types,
    read_gpu,
)
from cloudtrain.targets.azureml.catalogue import guess

REPOSITORY = Path(__file__).parents[3]

TYPES = instance_types("azureml")

WRITTEN = date(2026, 11, 21)
"""When the table was made: its retired types were gone, those that retire were not."""


def named(name: str) -> InstanceType:
    """A row that exists."""
    found = instance_named("azureml", name)
    assert found is not None
    return found


def test_the_generator_writes_this_table() -> None:
    """The checked-in table is what the generator makes of its source."""
    tool = [
        sys.executable,
        str(REPOSITORY / "tools" / "generate" / "azureml_instances.py"),
        "--check",
    ]
    done = subprocess.run(tool, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_generator_notices_a_change(tmp_path: Path) -> None:
    """--check fails, and says what to run, where the table is not what its source makes."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "azureml_instances.csv").write_text("name\n")
    code = (
        "import sys; from pathlib import Path; sys.argv = ['gen', '--check']\n"
        "import azureml_instances as tool\n"
        f"tool.TABLE = Path({str(data)!r}) / 'azureml_instances.csv'\n"
        "sys.exit(tool.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY / "tools" / "generate",
    )
    assert done.returncode == 1
    assert "run `python tools/generate/azureml_instances.py`" in done.stderr


def test_every_size_of_the_source_is_there_once() -> None:
    """47 sizes with GPUs and 55 without; no name twice in any case."""
    with (REPOSITORY / "tools" / "generate" / "azureml_instances.csv").open(newline="") as lines:
        assert [row["name"] for row in csv.DictReader(lines)] == [row.name for row in TYPES]
    assert len({row.name.casefold() for row in TYPES}) == len(TYPES)
    assert sum(bool(row.gpus) for row in TYPES) == 47
    assert len(TYPES) == 102


def test_every_row_is_sane() -> None:
    """Names, units, parts that belong together, and a source for every figure."""
    for row in TYPES:
        assert re.fullmatch(r"Standard_[A-Z]+\d+\w*", row.name)
        assert row.family
        assert 1 <= row.vcpus <= 192
        assert 2 <= row.memory_gib / row.vcpus <= 25
        assert bool(row.gpus) == bool(row.gpu) == bool(row.gpu_memory_gib)
        assert row.gpus in (0, 1, 2, 4, 8)
        assert row.architecture == ("arm64" if row.gpu_model in ("GB200", "GB300") else "x86_64")
        assert row.fabric in ("infiniband", "")
        assert bool(row.fabric) == bool(row.interfaces)
        assert row.interconnect == "ethernet" or row.fabric
        assert (row.price is None) == (row.price_source == "")
        assert row.price is None or "undated" in row.price_source
        assert row.price_date == ""
        assert row.source
        assert not (row.retired and row.retires)
        assert not row.retired or date.fromisoformat(row.retired) < WRITTEN
        assert not row.retires or date.fromisoformat(row.retires) > WRITTEN


def test_a_gpu_is_named_by_its_memory() -> None:
    """Model and memory, which is the slice's where the size has a slice of a GPU: one device of less memory."""
    for row in (row for row in TYPES if row.gpu):
        assert re.fullmatch(r"[A-Z0-9]+(-NVL)?-\d+GB", row.gpu)
        assert read_gpu(row.gpu).memory == row.gpu_memory_gib
        assert row.devices == row.gpus
        if row.gpu_slice:
            numerator, denominator = map(int, row.gpu_slice.split("/"))
            assert row.gpus == 1
            assert row.gpu_memory_gib == 24 * numerator / denominator


def test_the_name_tells_infiniband() -> None:
    """An `r` among the feature letters is InfiniBand, on every row, and where the number is vCPUs it is right."""
    for row in TYPES:
        guessed = guess(row.name)
        assert guessed is not None
        assert guessed.has_infiniband == (row.fabric == "infiniband")


@pytest.mark.parametrize(
    ("name", "fabric", "interconnect", "retired"),
    [
        ("Standard_NC24rs_v3", "infiniband", "rdma", "2025-09-30"),
        ("Standard_NC24s_v3", "", "ethernet", "2025-09-30"),
        ("Standard_NC24r", "infiniband", "ethernet", "2023-09-06"),
        ("Standard_NC24rs_v2", "infiniband", "ethernet", "2023-09-06"),
        ("Standard_ND40rs_v2", "infiniband", "rdma", ""),
    ],
)
def test_the_sizes_that_people_learn_from(
    name: str, fabric: str, interconnect: str, retired: str
) -> None:
    """InfiniBand with SR-IOV, none, and InfiniBand that NCCL cannot use are three things; and which are gone."""
    row = named(name)
    assert (row.fabric, row.interconnect, row.retired) == (fabric, interconnect, retired)


def test_known_rows() -> None:
    """A few rows as Azure's pages print them."""
    a100 = named("Standard_ND96asr_v4")
    assert (a100.gpus, a100.gpu, a100.vcpus, a100.memory_gib) == (8, "A100-40GB", 96, 900)
    assert (a100.interfaces, a100.network_gbps, a100.network) == (
        8,
        1600,
        "8x 200 Gigabit InfiniBand",
    )
    gb300 = named("Standard_ND128isr_GB300_v6")
    assert (gb300.interfaces, gb300.network_gbps, gb300.architecture) == (4, 3200, "arm64")
    cpu = named("Standard_DS3_v2")
    assert (cpu.vcpus, cpu.memory_gib, cpu.price, cpu.retires, cpu.retired) == (
        4,
        14,
        0.293,
        "2028-05-01",
        "",
    )


@given(st.sampled_from(TYPES), st.randoms(use_true_random=False))
def test_names_are_found_in_any_case(row: InstanceType, random: Any) -> None:
    """Azure gives names back in capitals; each finds its row, with the usual spelling."""
    mixed = "".join(random.choice((letter.upper(), letter.lower())) for letter in row.name)
    assert instance_named("azureml", mixed) == row


def test_sagemaker_names_keep_their_case() -> None:
    """SageMaker's service takes one spelling only."""
    assert instance_named("sagemaker", "ML.G5.XLARGE") is None


@pytest.mark.parametrize(
    ("gpu", "count", "interconnect", "name"),
    [
        ("A100-40GB", 8, "rdma", "Standard_ND96asr_v4"),
        ("A100-80GB", 8, "rdma", "Standard_ND96amsr_A100_v4"),
        ("A100", None, None, "Standard_NC24ads_A100_v4"),
        ("H100", None, None, "Standard_NC40ads_H100_v5"),
        ("H100", 8, "rdma", "Standard_ND96isr_H100_v5"),
        ("H100-80GB", None, None, "Standard_ND96isr_H100_v5"),
        ("NVIDIA H100 NVL", 2, None, "Standard_NC80adis_H100_v5"),
        ("H100-94GB", 1, None, "Standard_NC40ads_H100_v5"),
        ("AMD Instinct MI300X", 8, "rdma", "Standard_ND96isr_MI300X_v5"),
        ("T4", 4, None, "Standard_NC64as_T4_v3"),
        ("A10", 1, None, "Standard_NV36ads_A10_v5"),
        ("A10-4GB", 1, None, "Standard_NV6ads_A10_v5"),
        ("V100", None, None, "Standard_ND40rs_v2"),
        ("V100", 4, "rdma", "Standard_NC24rs_v3"),
    ],
)
def test_choice(gpu: str, count: int | None, interconnect: Any, name: str) -> None:
    """The cheapest that has it; a slice or a retired size only where nothing else has."""
    assert (
        choose("azureml", gpu=gpu, gpus_per_instance=count, interconnect=interconnect).name == name
    )


@given(
    st.sampled_from(gpu_names(TYPES)),
    st.sampled_from([None, 1, 2, 4, 8]),
    st.sampled_from([None, "rdma"]),
)
def test_a_retired_size_is_chosen_only_when_nothing_else_fits(
    gpu: str, count: int | None, interconnect: Any
) -> None:
    """Whatever is asked for: if any size that is still offered has it, the choice is one of those."""
    fitting = [
        row for row in TYPES
        if has_gpu(row, gpu) and count in (None, row.gpus) and interconnect in (None, row.interconnect)
    ]  # fmt: skip
    if not fitting:
        with pytest.raises(JobError):
            choose("azureml", gpu=gpu, gpus_per_instance=count, interconnect=interconnect)
        return
    chosen = choose("azureml", gpu=gpu, gpus_per_instance=count, interconnect=interconnect)
    assert chosen in fitting
    assert bool(chosen.retired) == all(row.retired for row in fitting)


def test_a_model_without_more_is_each_of_its_cards() -> None:
    """`H100` is the SXM and the NVL card, a memory or `NVL` one of them."""
    assert {row.gpu for row in TYPES if has_gpu(row, "H100")} == {"H100-80GB", "H100-NVL-94GB"}
    assert {row.gpu for row in TYPES if has_gpu(row, "H100-80GB")} == {"H100-80GB"}
    assert {row.gpu for row in TYPES if has_gpu(row, "h100 nvl")} == {"H100-NVL-94GB"}


def test_infiniband_means_one_that_nccl_can_use() -> None:
    """The filter leaves out InfiniBand without SR-IOV, and retired sizes come last in every order."""
    found = select(TYPES, Query(interconnect="infiniband"))
    assert {row.interconnect for row in found} == {"rdma"}
    assert "Standard_NC24r" not in {row.name for row in found}
    assert found[-1].name == "Standard_NC24rs_v3"
    ethernet = {row.name for row in select(TYPES, Query(interconnect="ethernet"))}
    assert {"Standard_NC24r", "Standard_NC24s_v3"} <= ethernet
