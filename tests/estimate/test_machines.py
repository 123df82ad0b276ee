"""What is known of GPUs and networks, and what follows from it."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.estimate.devices import GpuInstance, holders, rates_of
from cloudtrain.estimate.memory import Decoder, Need, Training, kinds_of
from cloudtrain.estimate.time import Collective, Work, step_time
from cloudtrain.machines.table import InstanceType, instance_named, instance_types, tables

GIB = 2**30

ROWS = [row for target in tables() for row in instance_types(target) if row.gpus]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_gpu_of_the_catalogue_has_rates_with_a_source(row: InstanceType) -> None:
    """A slice of a GPU has its share of them."""
    rates = rates_of(row)
    assert rates is not None
    assert rates.source
    assert rates.bandwidth > 0
    assert rates.fp32 > 0
    if row.gpu_slice:
        assert rates.bandwidth < 600e9
    assert rates.half is None or rates.half >= rates.fp32


def test_nvlink_belongs_to_the_instance_and_not_to_the_gpu() -> None:
    """The same V100 has PCIe in one type and NVLink in another."""
    links = {}
    for row in ROWS:
        if row.gpu == "V100-16GB":
            links[row.family] = GpuInstance.of(row).link
    assert len(set(links.values())) == 2


def test_the_margin_covers_what_torchtitan_measured() -> None:
    """Llama 3.1 8B: counted 68.76 and 58.24 GiB, reserved 82.4 and 67.0 on 8 and 128 H100."""
    for counted, reserved in ((68.76, 82.4), (58.24, 67.0)):
        need = Need.of(int(counted * GIB))
        assert need.least <= reserved * GIB <= need.most * 1.006


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [(60, "fits"), (75, "tight"), (79.5, "does not fit"), (200, "does not fit")],
)
def test_the_verdict_of_80_gib(counted: float, verdict: str) -> None:
    """Between what is certain and the largest margin it is tight."""
    assert Need.of(int(counted * GIB)).verdict(80 * GIB) == verdict


def machine(name: str) -> GpuInstance:
    """A machine of the first target that has this type."""
    rows = [row for target in tables() if (row := instance_named(target, name))]
    return GpuInstance.of(rows[0])


def test_a_large_product_takes_between_its_shares_of_the_peak() -> None:
    """10 PFLOP in bf16 on an H100 of 989.5 TFLOP/s, of which 45% to 75% are reached."""
    work = [Work("aten.mm.default", "bfloat16", 10**16, 10**9, 1)]
    step = step_time(work, [], machine("ml.p5.48xlarge"), 8)
    assert step is not None
    assert step.least == pytest.approx(1e16 / (989.5e12 * 0.75))
    assert step.most == pytest.approx(1e16 / (989.5e12 * 0.45))


def test_a_gpu_without_bf16_computes_it_as_fp32() -> None:
    """A T4 has fp16 only."""
    half, imitated = (
        step_time([Work("mm", dtype, 10**15, 1, 1)], [], machine("ml.g4dn.12xlarge"), 4)
        for dtype in ("float16", "bfloat16")
    )
    assert half is not None
    assert imitated is not None
    assert imitated.least == pytest.approx(half.least * 65 / 8.1)


def test_no_time_without_a_documented_peak() -> None:
    """NVIDIA gives no dense 16-bit figure for this one."""
    work = [Work("mm", "bfloat16", 10**15, 1, 1)]
    assert step_time(work, [], machine("ml.g7e.48xlarge"), 8) is None


def test_a_collective_among_instances_is_bound_by_the_network() -> None:
    """A ring of all ranks has the network of an instance; one of a rank each shares it by eight."""
    large = machine("ml.p4d.24xlarge")
    whole = step_time([], [Collective("allreduce_", 10**9, 16, 2, 1)], large, 8)
    alone = step_time([], [Collective("allreduce_", 10**9, 2, 2, 1)], large, 8)
    inside = step_time([], [Collective("allreduce_", 10**9, 8, 1, 1)], large, 8)
    assert whole is not None
    assert alone is not None
    assert inside is not None
    assert whole.least == pytest.approx(2 * 15 / 16 * 1e9 / (50e9 * 0.9))
    assert alone.least == pytest.approx(1e9 / (50e9 / 8 * 0.9))
    assert inside.least == pytest.approx(2 * 7 / 8 * 1e9 / (300e9 * 0.9))


def test_the_cheapest_holder_comes_first() -> None:
    """Of those with enough GPUs and enough memory, without retired ones."""
    found = holders("sagemaker", 30 * GIB, 4)
    prices = [row.price for row in found if row.price is not None]
    assert prices == sorted(prices)
    assert all(row.gpus >= 4 and row.gpu_memory_gib >= 30 and not row.retired for row in found)


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}


def test_the_parameters_of_known_models() -> None:
    """LLaMA-7B has 6.738 billion, GPT-2 124 million, without positions and biases."""
    assert Decoder.of_config(LLAMA).parameters == pytest.approx(6.738e9, rel=0.001)
    assert Decoder.of_config(GPT2).parameters == pytest.approx(124.4e6, rel=0.01)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_the_states_are_those_of_zero_s_paper(zero: int, gigabytes: float) -> None:
    """7.5 billion parameters on 64 ranks."""
    model = Decoder(4096, 1, 32, 4096, 0, 915_527, False, False)
    kinds = kinds_of(model, Training(64, 1, 1, zero))
    states = kinds["parameters"] + kinds["gradients"] + kinds["optimizer"]
    assert states * 7.5e9 / model.parameters == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_activations_of_llama_are_what_a_dry_run_held() -> None:
    """11.78 GiB for a window of 2048 tokens, without recomputation."""
    kinds = kinds_of(Decoder.of_config(LLAMA), Training(8, 1, 2048))
    assert kinds["activations"] == pytest.approx(11.78 * GIB, rel=0.06)


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"num_experts": 8}])
def test_other_models_are_refused(change: dict[str, object]) -> None:
    """A mixture of experts, or a file without the numbers."""
    with pytest.raises(ct.CloudtrainError) as caught:
        Decoder.of_config({**LLAMA, **change})
    assert caught.value.code == "CT948"
