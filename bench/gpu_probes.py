"""The parts of bench/gpu.py that no training script measures by itself: each prints one line of JSON.

python bench/gpu_probes.py ddp|resnet|overlap|model [--tiny]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

SCRIPTS = Path(__file__).resolve().parent.parent / "training_scripts"
TINY = "--tiny" in sys.argv
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def milliseconds(step: Callable[[], object], rounds: int) -> float:
    """Return the median, after a warm-up."""
    times = []
    for _ in range(rounds + 3):
        begun = time.perf_counter()
        step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return median(times[3:])


def ddp() -> dict[str, Any]:
    """Measure a training step of GPT-2's size, plain and in DistributedDataParallel of one process, in turn."""
    sys.path.insert(0, str(SCRIPTS / "pipeline_gpt"))
    from gpt import GPT, Shape, loss_of

    from cloudtrain import runtime

    runtime.init_process_group()
    shape = Shape(1, 2, 32, 16, 256) if TINY else Shape(12, 12, 768, 1024, 50304)
    tokens = torch.randint(256, (2 if TINY else 16, shape.context), device=DEVICE)
    steps = {}
    for name in ("plain", "ddp"):
        model: Any = GPT(shape)
        model.reset_parameters(1)
        model.to(DEVICE)
        called = (
            DistributedDataParallel(model, gradient_as_bucket_view=True) if name == "ddp" else model
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=DEVICE.type == "cuda")

        def step(called: Any = called, optimizer: Any = optimizer) -> None:
            with torch.autocast(DEVICE.type, torch.bfloat16):
                logits = called(tokens)
            loss_of(logits, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = step
    found: dict[str, list[float]] = {"plain": [], "ddp": []}
    for _ in range(3):
        for name, step in steps.items():
            found[name].append(milliseconds(step, 2 if TINY else 8))
    runtime.destroy_process_group()
    return {name: median(values) for name, values in found.items()}


def resnet() -> dict[str, Any]:
    """Measure images a second of ResNet50's training step, bf16 and channels_last."""
    sys.path.insert(0, str(SCRIPTS / "resnet_model_parallel"))
    from resnet import ResNet

    batch, pixels = (2, 32) if TINY else (256, 224)
    model = (ResNet(10, (1, 1, 1, 1), width=8) if TINY else ResNet()).to(
        DEVICE, memory_format=torch.channels_last
    )
    images = torch.randn(batch, 3, pixels, pixels, device=DEVICE).contiguous(
        memory_format=torch.channels_last
    )
    labels = torch.randint(10, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"images_per_s": batch / milliseconds(step, 2 if TINY else 10) * 1e3}


def overlap() -> dict[str, Any]:
    """Trace two stages of ResNet50 on two streams of one GPU, in microbatches that leave a part of it free."""
    sys.path.insert(0, str(SCRIPTS / "resnet_model_parallel"))
    from devices import DevicePipeline
    from place import parts_of
    from resnet import ResNet
    from torch.profiler import ProfilerActivity, profile

    batch, split, pixels = (4, 2, 32) if TINY else (64, 8, 128)
    model = (ResNet(10, (1, 1, 1, 1), width=8) if TINY else ResNet(10)).to(
        memory_format=torch.channels_last
    )
    pieces = model.pieces()
    pipeline = DevicePipeline(
        parts_of(pieces, [0, len(pieces) // 2]), [DEVICE, DEVICE], split,
        lambda logits, labels: torch.nn.functional.cross_entropy(logits, labels), bf16=not TINY,
    )  # fmt: skip
    images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(10, (batch,))
    for _ in range(2):
        pipeline.step(images, labels)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE.type == "cuda" else [])]
    with profile(activities=activities) as recorded:
        pipeline.step(images, labels)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
    recorded.export_chrome_trace("trace.json")
    return {"microbatches": batch // split}


def model() -> dict[str, Any]:
    """Write a random Llama of 0.8 billion weights with a tokenizer, for llm_finetune."""
    sys.path.insert(0, str(SCRIPTS / "llm_finetune"))
    from models import make_tiny
    from prepare import pairs
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path("model_to_tune")
    make_tiny(folder, pairs(), 1)
    if not TINY:
        shape = LlamaConfig(
            vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=4, max_position_embeddings=4096,
        )  # fmt: skip
        LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    return {"bytes": (folder / "model.safetensors").stat().st_size}


if __name__ == "__main__":
    print(
        json.dumps(
            {"ddp": ddp, "resnet": resnet, "overlap": overlap, "model": model}[sys.argv[1]]()
        )
    )
