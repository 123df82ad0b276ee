"""The parts of the FSDP script that can be told without training: grids, parts of tensors, peaks, memory, plans."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError
from tests.deadlines import DEADLINE
from tests.examples import examples

SCRIPTS = Path(__file__).parents[2] / "training_scripts"
FOLDER = SCRIPTS / "gpt_fsdp"
PARTS = ("gpt", "layouts", "meter", "compare", "plan", "data", "huggingface", "optimizing")


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, ModuleType]]:
    """The script's modules by name, imported as the script does; other scripts have modules of the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS / "pipeline_gpt")  # where gpt.py stands
        patch.syspath_prepend(FOLDER)
        for name in PARTS:
            patch.delitem(sys.modules, name, raising=False)
        yield {name: importlib.import_module(name) for name in PARTS}
        for name in PARTS:
            sys.modules.pop(name, None)


def config(**changes: Any) -> SimpleNamespace:
    """What a grid depends on."""
    values = {
        "layout": "2d",
        "replicas": 2,
        "tensor": 2,
        "heads": 4,
        "context": 64,
        "vocabulary": 256,
        "width": 128,
        "layers": 2,
    }
    return SimpleNamespace(**{**values, "global_batch": 16, "accumulate": 1, **changes})


# Grids


@pytest.mark.torch
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("ddp", (8, 1, 1)),
        ("fsdp", (1, 8, 1)),
        ("hsdp", (2, 4, 1)),
        ("2d", (1, 4, 2)),
        ("tp", (1, 1, 8)),
    ],
)
def test_a_layout_puts_all_processes_into_its_grid(
    parts: dict[str, Any], layout: str, expected: tuple[int, int, int]
) -> None:
    """Eight processes; those next to each other stand along `tensor` and share a part of the batch."""
    grid = parts["layouts"].grid_of(config(layout=layout, heads=8), 8)
    assert (grid.replicate, grid.shard, grid.tensor) == expected
    shares = [grid.share_of(rank) for rank in range(8)]
    assert shares == sorted(shares)
    assert set(shares) == set(range(grid.data))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("world", "changes", "message"),
    [
        (3, {}, "3 processes make no grid of tensor 2"),
        (3, {"layout": "hsdp"}, "3 processes make no grid of replicas 2"),
        (8, {"layout": "tp"}, "`heads` 4 cannot be cut into 8 equal parts"),
        (2, {"context": 63}, "`context` 63 cannot be cut into 2 equal parts"),
        (2, {"layout": "fsdp", "heads": 5}, "`width` 128 is no multiple of `heads` 5"),
        (
            4,
            {"layout": "fsdp", "accumulate": 8},
            "16 windows cannot be cut into 4 shares of 8 equal parts",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_with_a_hint(
    parts: dict[str, Any], world: int, changes: dict[str, Any], message: str
) -> None:
    """Before anything is computed."""
    with pytest.raises(SetupError, match=message) as caught:
        parts["layouts"].grid_of(config(**changes), world)
    assert caught.value.hint


# Weights


@pytest.mark.torch
@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 8),
    shard=st.integers(1, 7),
    tensor=st.integers(1, 4),
)
def test_the_parts_of_a_tensor_are_all_of_it(
    parts: dict[str, Any], rows: int, columns: int, shard: int, tensor: int
) -> None:
    """Cut by columns for tensor parallelism and by rows for FSDP2, even or not: each number is on one process."""
    import torch
    from torch.distributed.tensor import Shard

    weights = torch.arange(rows * columns).view(rows, columns)
    found: list[int] = []
    for place in [(row, column) for row in range(shard) for column in range(tensor)]:
        mesh = SimpleNamespace(
            ndim=2, size=(shard, tensor).__getitem__, get_coordinate=lambda place=place: place
        )
        parameter = SimpleNamespace(device_mesh=mesh, placements=(Shard(0), Shard(1)))
        found += parts["layouts"].part_of(weights, parameter).flatten().tolist()
    assert sorted(found) == list(range(rows * columns))


# Speed and memory


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA RTX A1000 6GB Laptop GPU", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_the_peak_of_a_gpu_follows_from_its_name(
    parts: dict[str, Any], name: str, expected: float | None
) -> None:
    """As CUDA spells it; what is not in the table has no MFU."""
    assert parts["meter"].peak_of(name) == expected


@pytest.mark.torch
def test_mfu_is_arithmetic_over_peak_and_leaves_the_first_window_out(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of GPT-2's size multiplies with 124 million weights; 1,000 tokens in 2 s of a clock that we move."""
    import torch

    shape = parts["gpt"].Shape(12, 12, 768, 1024, 50304)
    meter = parts["meter"].Meter(shape, torch.device("cpu"), 2, is_bf16=True)
    assert meter.flops == 6 * 123_568_128 + 12 * 12 * 768 * 1024
    assert meter.peak is None
    clock = iter([0.0, 5.0, 7.0, 7.0])
    monkeypatch.setattr(meter, "_now", lambda: next(clock))
    meter.peak = 1e12
    meter.count(1000)
    assert meter.window() == {}
    meter.restart()
    meter.count(1000)
    figures = meter.window()
    assert figures["tokens_per_s"] == 500
    assert figures["mfu"] == pytest.approx(500 * meter.flops / 1e12)
    assert meter.summary().startswith("500 tokens/s, ")
    assert "MFU 42.7% of 1 TFLOP/s" in meter.summary()


@pytest.mark.torch
def test_working_memory_counts_what_lives_at_once(parts: dict[str, Any]) -> None:
    """Two results of 4,000 bytes live together, the third one when the first is gone; inputs and views are free."""
    import torch

    def run() -> torch.Tensor:
        first = there * 2
        second = first.view(10, 100) * 2
        del first
        return second.view(-1) * 2

    there = torch.ones(1000)
    result, most = parts["compare"].working_bytes(run, torch.device("cpu"))
    assert result.sum().item() == 8000
    assert most == 8000


# The plan


@pytest.mark.torch
def test_a_plan_of_512_processes_shows_what_each_would_hold() -> None:
    """64 shards of 8 tensor-parallel processes: rows by both, 16 bytes for each parameter."""
    arguments = ["--dry_run", "--world", "512", "--layout", "2d", "--tensor", "8", "--preset", "7b"]
    command = [sys.executable, str(FOLDER / "train.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines() if line}
    assert (
        lines["model.layers.0.mlp.up_proj.weight"][1:]
        == "11008 x 4096 22 x 4096 shard, tensor".split()
    )
    assert (
        lines["model.layers.0.mlp.down_proj.weight"][1:]
        == "4096 x 11008 64 x 1376 shard, tensor".split()
    )
    assert lines["model.layers.0.post_attention_layernorm.weight"][1:] == ["4096", "64", "shard"]
    here, alone = map(float, lines["all that stays"][-2:])
    assert alone == pytest.approx(6_888_361_984 * 16 / 2**30, abs=1e-3)
    assert alone / 512 <= here < alone / 512 * 1.02


@pytest.mark.torch
def test_a_plan_that_cannot_be_is_refused(
    parts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same refusal as on 512 real processes, found at no cost."""
    with pytest.raises(SetupError, match="512 processes make no grid of tensor 3"):
        parts["plan"].print_plan(config(world=512, tensor=3))
    assert capsys.readouterr().out == ""


@pytest.mark.torch
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "qwen3"])
def test_selective_recomputation_repeats_no_product(parts: dict[str, Any], family: str) -> None:
    """Matrix products, with biases or not, and attention are computed once, as without recomputation; with `full` twice."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    large = {"aten::mm", "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu"}

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += function.name().split(".")[0] in large
            return function(*args, **(kwargs or {}))

    gpt, counts = parts["gpt"], {}
    for how in ("none", "selective", "full"):
        model = gpt.GPT(gpt.Shape(2, 4, 32, 16, 256, family))
        model.reset_parameters(1)
        parts["layouts"].ease(model, SimpleNamespace(recompute=how, compile=False))
        tokens = torch.arange(32).view(2, 16)
        with Counted() as counted:
            gpt.loss_sum(model(tokens), tokens).backward()
        counts[how] = counted.count
    assert counts["none"] == counts["selective"]
    # all of a layer but its last product, which no gradient needs
    again = 6 if family == "gpt2" else 7
    assert counts["full"] - counts["none"] == 2 * again


@pytest.mark.torch
@pytest.mark.parametrize("learns", [True, False])
def test_logits_exist_for_some_tokens_at_a_time(parts: dict[str, Any], learns: bool) -> None:
    """In an evaluation, and in training with `--logits_at_once`: the loss of all logits, from at most 8 tokens' each."""
    import torch

    gpt = parts["gpt"]
    model = gpt.GPT(gpt.Shape(1, 2, 16, 16, 256, "llama"))
    model.reset_parameters(1)
    tokens, seen = torch.arange(32).view(2, 16), []
    expected = gpt.loss_sum(model(tokens), tokens)
    model.lm_head.register_forward_hook(
        lambda _head, _inputs, logits: seen.append(logits.shape[:-1].numel())
    )
    with torch.set_grad_enabled(learns):
        found = model(tokens, following=tokens, at_once=8)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (max(seen), sum(seen)) == (8, 32)


@pytest.mark.torch
def test_a_thread_that_saves_takes_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread has the first GPU, in each process of a machine."""
    import torch

    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "saving", raising=False)
    importlib.import_module("saving").use_same_gpu()()
    sys.modules.pop("saving")
    assert taken == [3]


# Steps


def rates(**changes: Any) -> SimpleNamespace:
    usual = {
        "steps": 100,
        "learning_rate": 2.0,
        "warmup_steps": 10,
        "rate_schedule": "cosine",
        "min_rate": 0.1,
    }
    return SimpleNamespace(**{**usual, "decay_share": 0.2, **changes})


@pytest.mark.torch
def test_the_learning_rate_rises_stays_and_falls(parts: dict[str, Any]) -> None:
    """Cosine, warm-up-stable-decay, constant; none falls below its least."""
    rate = parts["optimizing"].learning_rate_at
    assert rate(0, rates()) == pytest.approx(0.2, rel=1e-2)
    assert rate(50, rates()) == pytest.approx(2 * 0.55)
    assert 0.2 <= rate(99, rates()) < 0.201
    wsd = rates(rate_schedule="wsd")
    assert [rate(step, wsd) for step in (10, 79)] == [2.0, 2.0]
    assert rate(90, wsd) == pytest.approx(2 * 0.55)
    assert [rate(step, rates(rate_schedule="constant", warmup_steps=0)) for step in (0, 99)] == [
        2.0,
        2.0,
    ]
    assert rate(4, rates(warmup_steps=-1)) == pytest.approx(1.0, rel=0.01)  # a tenth of the steps


@pytest.mark.torch
def test_matrices_decay_and_vectors_do_not(parts: dict[str, Any]) -> None:
    """Norms and biases keep their size."""
    model = parts["gpt"].GPT(parts["gpt"].Shape(1, 2, 16, 8, family="qwen2"))
    adam = parts["optimizing"].make_adamw(
        model.parameters(),
        SimpleNamespace(weight_decay=0.1, beta1=0.8, beta2=0.99, learning_rate=1.0),
    )
    decays = {
        id(one): group["weight_decay"] for group in adam.param_groups for one in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.0 if "norm" in name or name.endswith("bias") else 0.1), (
            name
        )
    assert adam.defaults["betas"] == (0.8, 0.99)
    assert adam.defaults["fused"]


@pytest.mark.torch
def test_a_spike_is_left_out_and_divergence_ends_the_run(
    parts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten times the usual norm, or one that is no number; not at the start, where norms are large anyway."""
    import torch

    guard = parts["optimizing"].Guard("fp32", 10.0)
    assert all(guard.accepts(step, torch.tensor(1.0 if step else 30.0)) for step in range(60))
    assert not guard.accepts(60, torch.tensor(50.0))
    assert not guard.accepts(61, torch.tensor(float("nan")))
    assert guard.accepts(62, torch.tensor(2.0))
    again = parts["optimizing"].Guard("fp32", 10.0)
    again.restore(guard.state())
    assert (again.left_out, again.usual) == (2, guard.usual)
    assert "step 60 is left out: the norm of its gradient is 50" in capsys.readouterr().err
    with pytest.raises(
        SetupError, match="10 steps in a row were left out, up to step 72"
    ) as caught:
        [guard.accepts(63 + step, torch.tensor(float("inf"))) for step in range(20)]
    assert caught.value.hint
    # then the report ends the run
    assert parts["optimizing"].Guard("fp32", 0.0).accepts(1, torch.tensor(float("nan")))


@pytest.mark.torch
def test_the_scale_of_fp16_halves_and_grows(parts: dict[str, Any]) -> None:
    """Infinite gradients halve it and leave the step out; the norm that is limited is that without the scale."""
    import torch

    guard = parts["optimizing"].Guard("fp16", 0.0)
    weight = torch.nn.Parameter(torch.ones(4))
    (weight.sum() * guard.scale).backward()
    norm = guard.clip([weight], 0.5)
    assert norm.item() == pytest.approx(2.0)
    assert weight.grad is not None
    assert weight.grad.norm().item() == pytest.approx(0.5, rel=1e-4)
    before = guard.scale
    assert not guard.accepts(1, torch.tensor(float("inf")))
    assert guard.scale == before / 2
    assert all(guard.accepts(step, torch.tensor(1.0)) for step in range(1000))
    assert guard.scale == before


# Folders of transformers


@pytest.fixture
def saved(parts: dict[str, Any], tmp_path: Path) -> Path:
    """A small tied Qwen3, as transformers would save it."""
    model = parts["gpt"].GPT(
        parts["gpt"].Shape(2, 4, 32, 16, 300, "qwen3", kv_heads=2, head_width=16, tied=True)
    )
    model.reset_parameters(3)
    parts["huggingface"].export(dict(model.named_parameters()), model.shape, tmp_path / "hf")
    return tmp_path / "hf"


@pytest.mark.torch
def test_a_folder_has_the_shape_and_the_weights(parts: dict[str, Any], saved: Path) -> None:
    """Written and read: no number changes, bf16 included, in one file or several; tied weights stand there once."""
    import torch

    folder, gpt = parts["huggingface"], parts["gpt"]
    shape = gpt.Shape(context=16, **folder.shape_in(saved))
    assert (shape.family, shape.head_width, shape.tied, shape.feed_width) == (
        "qwen3",
        16,
        True,
        256,
    )
    again = gpt.GPT(shape)
    folder.read_weights(again, saved)
    source = gpt.GPT(shape)
    source.reset_parameters(3)
    for name, weights in source.named_parameters():
        assert torch.equal(dict(again.named_parameters())[name], weights), name
    assert "lm_head.weight" not in folder.stored_in(saved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "FILE_BYTES", 50_000)
        folder.export(dict(source.named_parameters()), shape, saved, start=saved)
    index = json.loads((saved / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    assert set(index.values()) == {path.name for path in saved.glob("*.safetensors")}
    folder.read_weights(gpt.GPT(shape), saved)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "`rope_scaling` 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "`rope_parameters` 'yarn'"),
        ({"model_type": "gemma3"}, "`model_type` 'gemma3'"),
        ({"use_sliding_window": True}, "`use_sliding_window`"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "`use_sliding_window`"),
        ({"attention_bias": True}, "`attention_bias` True"),
        ({"hidden_act": "gelu"}, "`hidden_act` 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "`quantization_config`"),
        (
            {"intermediate_size": 128},
            r"`model.layers.0.mlp.gate_proj.weight` has the shape \(256, 32\) instead of",
        ),
        ({"num_hidden_layers": 1}, "has `model.layers.1.input_layernorm.weight`, which is no part"),
        ({"num_hidden_layers": 3}, "lacks `model.layers.2.input_layernorm.weight`"),
        ({"model_type": "llama"}, "has `model.layers.0.self_attn.q_norm.weight`, which is no part"),
    ],
)
def test_a_model_that_would_be_another_one_is_refused_by_name(
    parts: dict[str, Any], saved: Path, changes: dict[str, Any], message: str
) -> None:
    """It would train without an error otherwise."""
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    folder, gpt = parts["huggingface"], parts["gpt"]
    with pytest.raises(SetupError, match=message) as caught:
        folder.read_weights(gpt.GPT(gpt.Shape(context=16, **folder.shape_in(saved))), saved)
    assert caught.value.hint


@pytest.mark.torch
def test_a_folder_contradicts_no_option(saved: Path, tmp_path: Path) -> None:
    """A shape that was asked for and is not there, a model that transformers cannot open, a torn file."""
    weights = next(saved.glob("*.safetensors"))
    for options, message in (
        (["--init_from", str(saved), "--layers", "3"], "`--layers 3` is not the shape in"),
        (["--export", "hf"], "so it cannot open this one"),
        (["--init_from", str(tmp_path)], "config.json` cannot be read"),
        (["--init_from", str(saved), "--steps", "0"], "is not a whole file of safetensors"),
    ):
        weights.write_bytes(weights.read_bytes()[:3000])
        command = [sys.executable, str(FOLDER / "train.py"), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=tmp_path
        )
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert "\nhint: " in done.stderr
