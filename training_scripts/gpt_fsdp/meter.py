"""Measure speed, utilisation of the hardware, and memory.

MFU, model FLOPs utilisation, is the arithmetic that the model needs, per second, divided by what the GPUs could do at
best. It counts 6 operations for each weight of a product and token (2 forward, 4 backward) and 12 * layers * heads *
head_width * context for attention (`gpt.flops_per_token`); recomputed activations are not counted, because the model
does not need them.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from statistics import median

import torch
from gpt import Shape, flops_per_token

A100 = "https://www.nvidia.com/en-us/data-center/a100/"
H100 = "https://www.nvidia.com/en-us/data-center/h100/"
H100_PCIE = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"

B200 = "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet"
L40S = "https://www.nvidia.com/en-us/data-center/l40s/"
L4 = "https://www.nvidia.com/en-us/data-center/l4/"
A10 = "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"
A10G = (
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)

PEAKS: list[tuple[str, float | None, str]] = [
    ("MIG", None, "a part of a GPU; no peak of its own is published"),
    ("B200", 2250e12, B200),
    ("H200 NVL", 835.5e12, H200),
    ("H200", 989.5e12, H200),
    ("H100 NVL", 835.5e12, H100),
    ("H100 PCIe", 756.5e12, H100_PCIE),
    ("H100", 989.5e12, H100),
    ("A100", 312e12, A100),
    ("A10G", 70e12, A10G),
    ("A10", 125e12, A10),
    ("L40S", 362e12, L40S),
    ("L4", 121e12, L4),
]
"""Words of the GPU's name, its bf16 tensor-core peak without sparsity in FLOP/s (for Hopper NVIDIA gives twice that,
with sparsity), and the source. The first line that fits counts."""


def peak_of(name: str) -> float | None:
    """Return the bf16 peak of one GPU in FLOP/s, by the name that CUDA gives it; None for GPUs that the table lacks."""
    words = name.replace("-", " ")
    return next((peak for part, peak, _ in PEAKS if re.search(rf"\b{part}\b", words)), None)


class Meter:
    """Speed over windows of steps. The first window, with warm-up and compilation, does not count."""

    def __init__(
        self, shape: Shape, device: torch.device, processes: int, *, is_bf16: bool
    ) -> None:
        self.device, self.flops = device, flops_per_token(shape)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        peak = peak_of(name) if is_bf16 else None  # the table is of bf16
        self.device_name = name or "CPU"
        self.peak = peak * processes if peak else None
        self.speeds: list[float] = []
        self._tokens = 0
        self._begun: float | None = None

    def restart(self) -> None:
        """Begin a window. Work since the last window is not counted."""
        self._tokens, self._begun = 0, self._now()

    def count(self, tokens: int) -> None:
        """Count one finished step."""
        self._tokens += tokens

    def window(self) -> dict[str, float]:
        """Return the figures of the window that ends here, and begin the next one; None for the first."""
        values: dict[str, float] = {}
        if self._begun is not None and self._tokens:
            self.speeds.append(self._tokens / (self._now() - self._begun))
            values = self._figures(self.speeds[-1])
        self.restart()
        return values

    def summary(self) -> str:
        """Summarise the medians over the windows in one line."""
        if not self.speeds:
            return "too few steps to measure a speed"
        speed = median(self.speeds)
        text = f"{speed:,.0f} tokens/s, {peak_mib(self.device):,.0f} MiB at most"
        if self.peak:
            text += f", MFU {self.flops * speed / self.peak:.1%} of {self.peak / 1e12:,.0f} TFLOP/s"
        return f"{text} ({self.device_name})"

    def _figures(self, speed: float) -> dict[str, float]:
        values = {"tokens_per_s": round(speed, 1), "peak_mib": round(peak_mib(self.device), 1)}
        return {**values, "mfu": self.flops * speed / self.peak} if self.peak else values

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def peak_mib(device: torch.device) -> float:
    """Return the peak memory: of tensors on a GPU; on a CPU, of the process with its libraries."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10  # the kernel counts in bytes there, in KiB here
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
