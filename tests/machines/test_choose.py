"""From a GPU, a number and an interconnect to one instance type."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import JobError, Problem
from cloudtrain.machines.choose import choose
from cloudtrain.machines.table import (
    InstanceType,
    gpu_names,
    has_gpu,
    instance_named,
    instance_types,
    read_gpu,
)
from tests.hints import one_of, suggested

TYPES = instance_types("sagemaker")


def chosen(gpu: str, count: int | None = None, interconnect: Any = None) -> str:
    """The name of the chosen type."""
    return choose("sagemaker", gpu=gpu, gpus_per_instance=count, interconnect=interconnect).name


def problem(gpu: str, count: int | None = None, interconnect: Any = None) -> Problem:
    """What is wrong with the wish."""
    with pytest.raises(JobError) as caught:
        chosen(gpu, count, interconnect)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("gpu", "count", "interconnect", "name"),
    [
        ("A100-40GB", 8, "rdma", "ml.p4d.24xlarge"),
        ("A100-80GB", 8, "rdma", "ml.p4de.24xlarge"),
        ("A100", 8, None, "ml.p4d.24xlarge"),
        ("H100", None, None, "ml.p5.4xlarge"),
        ("H100", 8, "rdma", "ml.p5.48xlarge"),
        ("H200", 8, "rdma", "ml.p5en.48xlarge"),
        ("T4", 1, None, "ml.g4dn.xlarge"),
        ("T4", 1, "rdma", "ml.g4dn.8xlarge"),
        ("A10G", 4, None, "ml.g5.12xlarge"),
        ("L4", 1, "rdma", "ml.g6.8xlarge"),
        ("L40S", 4, "ethernet", "ml.g6e.12xlarge"),
        ("V100", 8, None, "ml.p3.16xlarge"),
        ("V100", 8, "rdma", "ml.p3dn.24xlarge"),
        ("K80", 16, None, "ml.p2.16xlarge"),
    ],
)
def test_choice(gpu: str, count: int | None, interconnect: Any, name: str) -> None:
    """The cheapest, or where a price is unknown the smallest, type that has it."""
    assert chosen(gpu, count, interconnect) == name


@pytest.mark.parametrize("written", [
    "H100", "h100", "H100-80GB", "h100 80gb", "H100_80G", "h100-80", "H100 80 GiB", "NVIDIA H100 80GB HBM3",
    "nvidia-h100-sxm5-80gb",
])  # fmt: skip
def test_spellings_of_one_gpu(written: str) -> None:
    """As people, AWS and the driver write it."""
    assert chosen(written, 8) == "ml.p5.48xlarge"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("B200-192GB", "B200-180GB"), ("A10G-22GB", "A10G-24GB"), ("RTX PRO 6000", "RTX-PRO-6000-96GB"),
        ("RTX PRO Server 6000 96 GB", "RTX-PRO-6000-96GB"), ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("GB200-185GB", "GB200-186GB"),
    ],
)  # fmt: skip
def test_other_names_of_a_gpu(written: str, name: str) -> None:
    """The memory may be the driver's or the decimal one, and the name the one of the driver."""
    assert {row.gpu for row in TYPES if has_gpu(row, written)} == {name}


@given(st.sampled_from(gpu_names(TYPES)), st.sampled_from(["-", " ", "_", " - "]), st.booleans())
def test_case_and_separators_do_not_matter(name: str, separator: str, lower: bool) -> None:
    """Every GPU of the table is found however it is spelt, and only its own types."""
    written = separator.join(name.split("-"))
    found = {row.name for row in TYPES if has_gpu(row, written.lower() if lower else written)}
    assert found == {row.name for row in TYPES if row.gpu == name}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """No text breaks the reader, and nothing but a GPU's name finds a GPU."""
    gpu = read_gpu(text)
    if not any(read_gpu(name).model == gpu.model for name in gpu_names(TYPES)):
        assert not any(has_gpu(row, text) for row in TYPES)


def test_a_model_without_memory_is_every_memory() -> None:
    """`A100` is both, `A100-40GB` one of them."""
    assert {row.gpu for row in TYPES if has_gpu(row, "a100")} == {"A100-40GB", "A100-80GB"}


def test_unknown_gpu_names_the_nearest() -> None:
    """A typo gets a suggestion."""
    assert problem("A1000") == Problem(
        ("resources", "gpu"),
        "no instance type has the GPU `A1000`",
        suggested("A100"),
        code="CT033",
    )


def test_the_nearest_name_may_have_a_memory() -> None:
    """A typo after the memory keeps the memory."""
    assert problem("A100-80GBx").hint == suggested("A100-80GB")


def test_unknown_memory_names_the_known_ones() -> None:
    """A model with another memory gets those that there are."""
    assert problem("A100-60GB").hint == "use `A100-40GB` or `A100-80GB`"


def test_nothing_near_lists_the_models() -> None:
    """Far from any name, all models are listed, without their memories."""
    hint = problem("zzzzzz").hint or ""
    assert hint.startswith(one_of("A100", "A10G", "B200"))


def test_trainium_is_no_gpu() -> None:
    """Neuron machines are named by their type."""
    assert problem("Trainium2") == Problem(
        ("resources", "gpu"),
        "`Trainium2` is not a GPU",
        "name the instance type: `ml.trn2.48xlarge`",
        code="CT033",
    )


def test_wrong_count_says_which_there_are() -> None:
    """Counts, and the smallest type with each."""
    assert problem("H100", 4) == Problem(
        ("resources", "gpus_per_instance"),
        "no instance type has 4 x `H100`",
        "set `gpus_per_instance` to 1 (`ml.p5.4xlarge`) or 8 (`ml.p5.48xlarge`)",
        code="CT033",
    )


def test_no_rdma_says_which_types_have_it() -> None:
    """The same GPU with RDMA, where there is one; otherwise what it costs to do without."""
    assert problem("V100", 4, "rdma") == Problem(
        ("resources", "interconnect"),
        "no instance type with 4 x `V100` has RDMA",
        "set `gpus_per_instance` to 8 (`ml.p3dn.24xlarge`)",
        code="CT033",
    )
    assert (problem("K80", None, "rdma").hint or "").startswith("remove `interconnect: rdma`")


def test_a_target_without_a_table_asks_for_a_name() -> None:
    """Nothing can be chosen from nothing."""
    with pytest.raises(JobError, match="no table of instance types for `local`"):
        choose("local", gpu="T4", gpus_per_instance=1, interconnect=None)


def a_type(name: str, **fields: Any) -> InstanceType:
    """A row with one GPU."""
    plain = {
        "family": "x1",
        "vcpus": 8,
        "memory_gib": 32,
        "gpus": 1,
        "gpu": "X1-16GB",
        "gpu_memory_gib": 16,
    }
    return InstanceType("sagemaker", name, **{**plain, **fields})


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"vcpus": 16, "price": 1.0}, {"price": 2.0}),
        ({"price": None}, {"vcpus": 16, "price": 2.0}),
        ({"memory_gib": 16}, {"memory_gib": 32, "price": 2.0}),
        ({"price": 2.0}, {"price": None}),
        ({"machine_price": 3.0}, {"machine_price": None}),
        ({"family": "x2"}, {"family": "x1"}),
        ({"price": 5.0}, {"retired": "2025-01-01", "price": 1.0}),
        ({"price": 5.0}, {"gpus": 2, "price": 1.0}),
    ],
)
def test_rank(better: dict[str, Any], worse: dict[str, Any]) -> None:
    """Each step of the documented order decides, whatever the names say."""
    for first, second in permutations(("a", "b")):
        types = (a_type(first, **worse), a_type(second, **better))
        assert choose("sagemaker", gpu="X1", types=types).name == second


@given(st.permutations(TYPES), st.sampled_from(gpu_names(TYPES)))
def test_the_order_of_the_table_does_not_matter(types: list[InstanceType], gpu: str) -> None:
    """The same rows give the same type."""
    assert choose("sagemaker", gpu=gpu, types=types) == choose("sagemaker", gpu=gpu)


def test_own_prices_decide() -> None:
    """With a price for both types of H200, the cheaper one is taken."""
    p5e, p5en = (instance_named("sagemaker", f"ml.{name}.48xlarge") for name in ("p5e", "p5en"))
    assert p5e is not None
    assert p5en is not None
    types = (replace(p5e, price=40.0), replace(p5en, price=72.8))
    assert choose("sagemaker", gpu="H200", types=types).name == "ml.p5e.48xlarge"
