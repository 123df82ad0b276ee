"""What this process's GPU supports natively, without emulation."""

from __future__ import annotations

import os
from typing import Any


def has_bf16() -> bool:
    """Return whether the current GPU supports bf16 natively. A T4 or a V100 emulates bf16, which is
    slower than fp32, but by default `torch.cuda.is_bf16_supported()` returns True for such GPUs,
    too."""
    torch = _torch_with_gpu()
    if torch is None:
        return False
    return torch.version.hip is not None or bool(torch.cuda.get_device_capability()[0] >= 8)


def has_float8() -> bool:
    """Return whether the current GPU multiplies matrices in float8 (Hopper, Ada, Blackwell,
    MI300)."""
    torch = _torch_with_gpu()
    if torch is None:
        return False
    if torch.version.hip is not None:
        return "gfx94" in torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName
    return bool(torch.cuda.get_device_capability() >= (8, 9))


def _torch_with_gpu() -> Any:
    import torch

    return torch if torch.cuda.is_available() else None


def use_tf32(is_used: bool) -> None:
    """Switch TF32 on or off for fp32 matrix products and convolutions on GPUs (Ampere and newer).
    TF32 rounds the factors to 10 bits. These operations are then several times as fast, and their
    results have three exact digits instead of seven."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = is_used
    torch.backends.cudnn.allow_tf32 = is_used


def use_determinism(is_used: bool, *, warn_only: bool = False) -> None:
    """Let equal runs give equal numbers, at some cost in speed, or allow the fastest kernels. New
    tensors are not filled, which torch would do: it takes 38 ms for 80 MB. With `warn_only`, an
    operation that has no such way warns and runs."""
    import torch

    if is_used:
        # what deterministic matrix products on GPUs need
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(is_used, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
