"""The tutorial's experiment: the whole model on one device, split over the devices, pipelined; and every split size.

All variants are measured in turn, repeatedly, so that other load on the machine affects all alike. Each time is that of
a training step: forward, backward, optimizer. Beside the tutorial's figures stands what limits them: a pipeline of p
stages and m microbatches takes at least (m + p - 1) / (p m) of the time that one device needs *for the same
microbatches*, and that time grows as they shrink.
"""

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Any

import torch
import torch.distributed as dist
from devices import DevicePipeline
from place import Place, cut, parts_of, stage_table
from resnet import MODELS, TUTORIAL_CUT
from torch import nn

from cloudtrain import runtime

CLASSES = 1000

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "image_size": 64,
        "batch": 48,
        "split_size": 48,
        "splits": [4, 8, 12, 24],
        "repeats": 3,
    },
    "gpu": {
        "image_size": 224,
        "batch": 480,
        "split_size": 480,
        "splits": [24, 40, 60, 80, 120, 160, 240],
        "precision": "bf16",
    },
    "tiny": {
        "model": "resnet14",
        "image_size": 32,
        "batch": 8,
        "split_size": 8,
        "splits": [2, 4],
        "repeats": 2,
    },
}
"""Sizes measured on each device by default. The tutorial has 120 images of 128 pixels in splits from 1. A GPU of today
finishes those before the host has started the next 571 kernels, so they would show only the host's speed."""

TUTORIAL: dict[str, Any] = {
    "image_size": 128,
    "batch": 120,
    "split_size": 120,
    "splits": [1, 3, 5, 8, 10, 12, 20, 40, 60],
    "batches": 3,
    "repeats": 10,
}
"""The numbers of PyTorch's "Single-Machine Model Parallel Best Practices". A measurement is three batches, with MSELoss
on one-hot labels of 1,000 classes and SGD at 0.001 in fp32. Ten give mean and standard deviation."""

TINY_TUTORIAL = TUTORIAL | {"model": "resnet14", "image_size": 64, "batches": 1, "repeats": 2}

TUTORIAL_SPLIT = 20
"""The split size of the tutorial's second plot."""

WHOLE, SPLIT = "whole, one device", "split, two devices"
"""The rows that every other row is compared with."""

Step = Callable[[], object]
Times = dict[str, list[float]]


def run(config: Any, place: Place, batch: tuple[torch.Tensor, torch.Tensor], loss: Any) -> None:
    """Measure, print the table, draw the plots. Every process calls it."""
    is_main = runtime.detect_environment().is_main
    if config.as_tutorial:
        loss = mse_on_one_hot(config.batch)
    # as the tutorial: the fastest kernels, repeatable or not
    torch.use_deterministic_algorithms(False)
    steps = variants(config, place, batch, loss, is_main)
    times = interleaved(steps, config, place)
    if is_main:
        folder = runtime.output_dir("plots")
        print(table(config, place, times), flush=True)
        (folder / "times.json").write_text(
            json.dumps({"where": place.words, "seconds": times}, indent=1) + "\n"
        )
        draw(config, place, times, folder)
        print(f"plots: {', '.join(sorted(str(path) for path in folder.glob('*.png')))}", flush=True)


def mse_on_one_hot(batch: int) -> Any:
    """Return the tutorial's loss, of which a microbatch gives its part of the mean over the batch."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = nn.functional.one_hot(labels, CLASSES).to(logits.dtype)
        return nn.functional.mse_loss(logits, wanted, reduction="sum") / (batch * CLASSES)

    return loss


def name_of(kind: str, split_size: int) -> str:
    return f"{kind}, split size {split_size}"


def variants(
    config: Any, place: Place, batch: tuple[torch.Tensor, torch.Tensor], loss: Any, is_main: bool
) -> dict[str, Step]:
    """Map name to a training step. A step on one device does nothing in the other processes."""
    images, labels = batch
    if place.devices[0].type == "cuda":  # once, and not within the steps that are timed
        images, labels = images.pin_memory(), labels.pin_memory()
    bf16 = config.precision == "bf16" and not place.across
    model = MODELS[config.model](CLASSES, config.image_size, config.norm).to(
        memory_format=torch.channels_last
    )

    def training(pipeline: Any, parameters: Any) -> Step:
        optimizer = torch.optim.SGD([p for p in parameters if not p.is_meta], lr=0.001)

        def step() -> None:
            pipeline.step(images, labels)
            optimizer.step()
            optimizer.zero_grad()

        return step

    alone = copy.deepcopy(model) if is_main else None

    def whole(split_size: int) -> Step:
        if alone is None:
            return lambda: None
        parts = parts_of(alone.pieces(), [0])
        return training(
            DevicePipeline(parts, place.devices[:1], split_size, loss, bf16=bf16),
            alone.parameters(),
        )

    def split(split_size: int, cuts: list[int], overlap: bool = True) -> Step:
        mine = copy.deepcopy(model)
        pipeline = place.pipeline(
            parts_of(mine.pieces(), cuts), images, split_size, loss, overlap, bf16
        )
        return training(pipeline, mine.parameters())

    pieces = model.pieces()
    tutorial = [TUTORIAL_CUT[config.model]] if len(place.devices) == 2 else []
    cuts, costs = cut(place, pieces, images, tutorial)
    if is_main:
        print(
            f"the cut of the {'tutorial' if tutorial else 'whole batch'}:\n{stage_table(place, pieces, cuts, costs)}"
        )
    steps = {WHOLE: whole(len(images)), SPLIT: split(len(images), cuts, overlap=False)}
    for size in config.splits:
        best, costs = cut(
            place, pieces, images[:size], config.cuts or (tutorial if config.as_tutorial else [])
        )
        if is_main:
            print(f"split size {size}:\n{stage_table(place, pieces, best, costs)}", flush=True)
        steps[name_of("one device", size)] = whole(size)
        if not place.across:  # its cut, and copies that hold up both devices
            steps[name_of("tutorial's way", size)] = split(size, cuts, overlap=False)
        steps[name_of("pipelined", size)] = split(size, best)
    return steps


def interleaved(steps: dict[str, Step], config: Any, place: Place) -> Times:
    """Return the seconds of each variant's measurements, taking one of each in turn. The first turn warms up and is
    dropped."""
    times: Times = {name: [] for name in steps}
    for _ in range(config.repeats + 1):
        for name, step in steps.items():
            began = together(place)
            for _ in range(config.batches):
                step()
            times[name].append(together(place) - began)
    return {name: seconds[1:] for name, seconds in times.items()}


def together(place: Place) -> float:
    """Return the time when all processes have arrived and all devices are done."""
    for device in set(place.devices):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    if place.across:
        dist.barrier()
    return time.perf_counter()


def middle_of(seconds: list[float], config: Any) -> float:
    """Return the median, or the mean as the tutorial does."""
    return fmean(seconds) if config.as_tutorial else median(seconds)


def spread_of(seconds: list[float], config: Any) -> tuple[float, float]:
    """Return the quartiles, or one standard deviation below and above the mean as the tutorial does."""
    if config.as_tutorial:
        return fmean(seconds) - pstdev(seconds), fmean(seconds) + pstdev(seconds)
    return quartiles(seconds)


def limit(times: Times, split_size: int, config: Any, place: Place) -> float:
    """Return the least seconds of a pipeline: those of one device with the same microbatches, divided among the stages,
    plus the time to fill and to drain."""
    stages, microbatches = len(place.devices), config.batch // split_size
    return (
        middle_of(times[name_of("one device", split_size)], config)
        * (microbatches + stages - 1)
        / (stages * microbatches)
    )


def best_split(times: Times, config: Any) -> int:
    """Return the split size at which the pipeline is fastest."""
    return min(
        config.splits, key=lambda size: middle_of(times[pipelined(times, size, config)], config)
    )


def pipelined(times: Times, split_size: int, config: Any) -> str:
    """Return the name of the pipeline to compare with: where the tutorial is repeated, the one with its copies."""
    tutorial = name_of("tutorial's way", split_size)
    return (
        tutorial if config.as_tutorial and tutorial in times else name_of("pipelined", split_size)
    )


def table(config: Any, place: Place, times: Times) -> str:
    """Return a table of all figures, and the two that the tutorial gives. Speed-ups are against the whole model on one
    device."""
    whole = middle_of(times[WHOLE], config)
    batches = "" if config.batches == 1 else f"{config.batches} batches of "
    kind, spread = (
        ("means", "standard deviation") if config.as_tutorial else ("medians", "quartiles")
    )
    lines = [
        f"{config.model}, {batches or 'batch '}{config.batch}, {config.image_size} pixels; {place.words}; "
        f"{kind} of {config.repeats}"
    ]
    lines.append(f"{'':<32} {'seconds':>8} {spread:>18} {'speed-up':>9}")
    for name, seconds in times.items():
        low, high = spread_of(seconds, config)
        middle = middle_of(seconds, config)
        about = f"{high - middle:.4f}" if config.as_tutorial else f"{low:.4f} - {high:.4f}"
        lines.append(f"{name:<32} {middle:>8.4f} {about:>18} {whole / middle - 1:>+9.1%}")

    def gain(size: int) -> str:
        return (
            f"{whole / middle_of(times[pipelined(times, size, config)], config) - 1:+.1%} speed-up"
        )

    best = best_split(times, config)
    overhead, bound = (
        middle_of(times[SPLIT], config) / whole - 1,
        whole / limit(times, best, config, place) - 1,
    )
    lines.append(f"split without pipelining: {overhead:+.1%} time (the tutorial, on two GPUs: +7%)")
    if config.as_tutorial and TUTORIAL_SPLIT in config.splits:
        lines.append(
            f"pipelined at split size {TUTORIAL_SPLIT}: {gain(TUTORIAL_SPLIT)} (the tutorial: +49%)"
        )
    lines.append(
        f"pipelined at split size {best}: {gain(best)} (the tutorial: +49% at 20, +54% at 12); "
        f"at most {bound:+.1%} with these microbatches"
    )
    return "\n".join(lines)


def quartiles(seconds: list[float]) -> tuple[float, float]:
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return low, high


def draw(config: Any, place: Place, times: Times, folder: Path) -> None:
    """Draw the tutorial's three plots: medians, with quartiles as error bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    is_given = config.as_tutorial and TUTORIAL_SPLIT in config.splits
    size = TUTORIAL_SPLIT if is_given else best_split(times, config)
    bars = {
        "split over\ntwo devices": SPLIT,
        "one device": WHOLE,
        f"pipelined,\nsplit size {size}": pipelined(times, size, config),
    }
    bars = {label.replace("two", str(len(place.devices))): name for label, name in bars.items()}
    title = f"{config.model}, batch of {config.batch}, {config.image_size} pixels\n{place.words}"

    unit = "training step" if config.batches == 1 else f"{config.batches} training steps"
    spread = "mean, standard deviation" if config.as_tutorial else "median, quartiles"

    def middle(seconds: list[float]) -> float:
        return middle_of(seconds, config)

    def error(seconds: list[float]) -> list[float]:
        low, high = spread_of(seconds, config)
        return [middle(seconds) - low, high - middle(seconds)]

    for file, labels in {"mp_vs_rn.png": list(bars)[:2], "mp_vs_rn_vs_pp.png": list(bars)}.items():
        figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
        middles = [middle(times[bars[label]]) for label in labels]
        errors = [error(times[bars[label]]) for label in labels]
        drawn = axes.bar(
            labels,
            middles,
            yerr=list(zip(*errors, strict=True)),
            capsize=8,
            width=0.55,
            color=COLOURS,
        )
        axes.bar_label(
            drawn, [f"{seconds:.3g} s" for seconds in middles], label_type="center", color="white"
        )
        axes.set_ylabel(f"seconds per {unit}: {spread}")
        axes.set_title(title, fontsize="medium")
        figure.savefig(folder / file, dpi=150)
        plt.close(figure)

    figure, axes = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    for (kind, label), colour in zip(
        LINES.items(), [COLOURS[2], "tab:purple", "grey"], strict=True
    ):
        sizes = [size for size in sorted(config.splits) if name_of(kind, size) in times]
        if sizes:
            series = [times[name_of(kind, size)] for size in sizes]
            errors = list(zip(*map(error, series), strict=True))
            axes.errorbar(
                sizes,
                list(map(middle, series)),
                yerr=errors,
                marker="o",
                capsize=4,
                label=label,
                color=colour,
            )
    sizes = sorted(config.splits)
    bound = [limit(times, size, config, place) for size in sizes]
    axes.plot(
        sizes,
        bound,
        "--",
        color=COLOURS[2],
        label="the least a pipeline can take with these microbatches",
    )
    low, high = spread_of(times[WHOLE], config)
    axes.axhline(middle(times[WHOLE]), color=COLOURS[1], label="one device, whole batch")
    axes.axhspan(low, high, color=COLOURS[1], alpha=0.2)
    axes.set_xscale("log")
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("split size: images of a microbatch")
    axes.set_ylabel(f"seconds per {unit}: {spread}")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="small")
    figure.savefig(folder / "split_size_tradeoff.png", dpi=150)
    plt.close(figure)


COLOURS = ["tab:orange", "tab:blue", "tab:green"]

LINES = {
    "pipelined": "pipelined",
    "tutorial's way": "pipelined, the tutorial's cut and copies",
    "one device": "one device, same microbatches",
}
"""Variants that are measured at every split size, with their names in the plot."""
