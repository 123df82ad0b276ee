"""What this process's GPU supports natively, without emulation."""

from __future__ import annotations


def has_bf16() -> bool:
    """Return whether the current GPU computes in bf16. A T4 or a V100 only emulates it, slower than fp32, and torch
    counts that as support by default."""
    import torch

    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability()[0] >= 8


def has_float8() -> bool:
    """Return whether the current GPU multiplies matrices in float8: Hopper, Ada, Blackwell; MI300."""
    import torch

    if not torch.cuda.is_available():
        return False
    if torch.version.hip is not None:
        return "gfx94" in torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName
    return torch.cuda.get_device_capability() >= (8, 9)


def use_tf32(is_used: bool) -> None:
    """Let fp32 matrix products and convolutions round their factors to 10 bits on GPUs (Ampere and newer). They become
    several times as fast, with three digits instead of seven. Without it, they have the full precision of fp32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = is_used
    torch.backends.cudnn.allow_tf32 = is_used
