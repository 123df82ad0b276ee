"""The table of SageMaker's instance types: whole, sane, with sources, and not behind botocore."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from cloudtrain.machines.table import instance_named, instance_types, read_gpu
from tests.guards import skip_guard

REPOSITORY = Path(__file__).parents[3]

TYPES = instance_types("sagemaker")

FAMILIES = {
    "c4": 4, "c5": 5, "c5n": 5, "c6i": 8, "c7i": 9, "c7i-flex": 6, "c8i": 10, "c8i-flex": 6, "g4dn": 6, "g5": 8,
    "g6": 8, "g6e": 8, "g7": 6, "g7e": 6, "m4": 5, "m5": 6, "m6i": 9, "m7i": 9, "m7i-flex": 7, "m8i": 11,
    "m8i-flex": 7, "p2": 3, "p3": 3, "p3dn": 1, "p4d": 1, "p4de": 1, "p5": 2, "p5e": 1, "p5en": 1, "p6-b200": 1,
    "p6-b300": 1, "p6e-gb200": 1, "r5": 8, "r5d": 8, "r6i": 9, "r7i": 9, "r8i": 11, "r8i-flex": 7, "t3": 4, "trn1": 2,
    "trn1n": 1, "trn2": 1,
}  # fmt: skip
"""Sizes of each family in botocore 1.44.5."""


def test_every_family_is_complete() -> None:
    """225 types, each once, in their families."""
    assert len(TYPES) == len({instance.name for instance in TYPES}) == 225
    assert Counter(instance.family for instance in TYPES) == FAMILIES


def test_no_type_of_botocore_is_missing() -> None:
    """Whatever the installed botocore knows as a training instance type has a row."""
    pytest.importorskip("botocore", reason="botocore is not installed; it is in the test extra")
    from botocore.loaders import Loader

    model = Loader().load_service_model("sagemaker", "service-2")
    enum = model["shapes"]["TrainingInstanceType"]["enum"]
    missing = set(enum) - {instance.name for instance in TYPES}
    assert missing == set(), "run tools/generate/sagemaker_instances.py"


@pytest.mark.slow
def test_the_generator_writes_this_table() -> None:
    """The checked-in table is what the generator makes of the same versions of botocore and moto."""
    pytest.importorskip("botocore", reason="botocore is not installed; it is in the test extra")
    named = instance_named("sagemaker", "ml.g5.xlarge")
    assert named is not None
    try:
        moto = importlib.metadata.version("moto")
    except importlib.metadata.PackageNotFoundError:
        skip_guard("moto is not installed; it is in the test extra")
    if f"moto {moto}" not in named.source:
        skip_guard(f"the table was made with another version of moto than {moto}")
    tool = [
        sys.executable,
        str(REPOSITORY / "tools" / "generate" / "sagemaker_instances.py"),
        "--check",
    ]
    done = subprocess.run(tool, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_row_is_sane() -> None:
    """Names, units, parts that belong together, and a source for every figure."""
    for instance in TYPES:
        assert re.fullmatch(r"ml\.[a-z0-9-]+\.(\d+x|x)?(large|medium)", instance.name)
        assert instance.name.split(".")[1] == instance.family
        assert 1 <= instance.vcpus <= 512
        assert 1 <= instance.memory_gib / instance.vcpus <= 32
        assert instance.architecture in ("x86_64", "arm64")
        assert instance.source
        assert bool(instance.gpus) == bool(instance.gpu) == bool(instance.gpu_memory_gib)
        assert bool(instance.neuron) == bool(instance.neuron_devices) == bool(instance.neuron_cores)
        assert bool(instance.neuron) == bool(instance.neuron_memory_gib)
        assert not (instance.gpus and instance.neuron)
        assert (
            (instance.interconnect == "rdma")
            == (instance.fabric == "efa")
            == (instance.interfaces > 0)
        )
        assert instance.network
        assert instance.network_gbps is None or 1 <= instance.network_gbps <= 6400
        assert instance.nvme_gb == 0 or 50 <= instance.nvme_gb <= 40000


def test_a_gpu_is_named_by_its_memory() -> None:
    """The name holds model and memory, within 8% of what the driver shows; GPUs come in usual numbers."""
    for instance in (row for row in TYPES if row.gpu):
        assert re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9]+)*-\d+GB", instance.gpu)
        assert read_gpu(instance.gpu).memory == pytest.approx(instance.gpu_memory_gib, rel=0.08)
        assert instance.gpus in (1, 2, 4, 8, 16)
        assert instance.devices == instance.gpus


@pytest.mark.parametrize("price", ["price", "machine_price"])
def test_prices_have_sources_and_follow_size(price: str) -> None:
    """A price is above 0 and has a source; within a family and one number of GPUs a larger one costs more."""
    last: dict[tuple[str, int], float] = {}
    for row in sorted(map(asdict, TYPES), key=lambda row: (row["vcpus"], row["memory_gib"])):
        assert (row[price] is None) == (row[f"{price}_source"] == "")
        assert re.fullmatch(r"(\d{4}-\d\d(-\d\d)?)?", row[f"{price}_date"])
        if row[price] is None:
            assert row[f"{price}_date"] == ""
            continue
        assert row[price] > last.get((row["family"], row["gpus"]), 0.0), row["name"]
        last[row["family"], row["gpus"]] = row[price]
    assert len(last) > 5


def test_the_service_costs_more_than_the_machine() -> None:
    """Where both prices are known, SageMaker asks 15% to 41% more than EC2."""
    both = [row for row in TYPES if row.price is not None and row.machine_price is not None]
    assert len(both) > 10
    for row in both:
        assert row.price is not None
        assert row.machine_price is not None
        assert 1.149 < row.price / row.machine_price < 1.41, row.name


def test_toolkit_and_smddp_know_only_types_with_efa() -> None:
    """The toolkit's lists lack newer types with EFA, and name none without it; p3.16xlarge has SMDDP over TCP."""
    for instance in TYPES:
        assert instance.interconnect == "rdma" or not instance.efa_in_toolkit
        assert instance.efa_in_toolkit or not instance.rdma_in_toolkit
        assert instance.smddp_in_sdk or not instance.smddp
    assert sum(instance.efa_in_toolkit for instance in TYPES) == 10
    assert sum(instance.rdma_in_toolkit for instance in TYPES) == 6
    assert [row.name for row in TYPES if row.smddp] == ["ml.p4d.24xlarge", "ml.p4de.24xlarge"]
    assert [row.name for row in TYPES if row.family.startswith("p5") and not row.rdma_in_toolkit] == [
        "ml.p5.4xlarge", "ml.p5en.48xlarge",
    ]  # fmt: skip


def test_known_rows() -> None:
    """A few rows as AWS's pages print them."""
    p4d = instance_named("sagemaker", "ml.p4d.24xlarge")
    assert p4d is not None
    assert (p4d.gpus, p4d.gpu, p4d.gpu_model, p4d.vcpus, p4d.memory_gib) == (
        8,
        "A100-40GB",
        "A100",
        96,
        1152,
    )
    assert (p4d.interconnect, p4d.interfaces, p4d.network_gbps, p4d.nvme_gb) == (
        "rdma",
        4,
        400,
        8000,
    )
    trn2 = instance_named("sagemaker", "ml.trn2.48xlarge")
    assert trn2 is not None
    assert (trn2.neuron_devices, trn2.devices, trn2.neuron_memory_gib) == (16, 64, 96)
    cpu = instance_named("sagemaker", "ml.m5.xlarge")
    assert cpu is not None
    assert (cpu.devices, cpu.gpu, cpu.interconnect, cpu.price) == (1, "", "ethernet", 0.23)


def test_what_is_not_there_is_none() -> None:
    """An unknown name is None, and a target without a table has no types."""
    assert instance_named("sagemaker", "ml.zz9.xlarge") is None
    assert instance_types("local") == ()
    assert instance_named("local", "ml.m5.xlarge") is None


def test_one_row_is_the_same_as_in_the_whole_table() -> None:
    """`instance_named` builds one row, equal to the table's."""
    assert [instance_named("sagemaker", instance.name) for instance in TYPES] == list(TYPES)
