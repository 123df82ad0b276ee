"""What a GPU supports natively, by its compute capability."""

from __future__ import annotations

import os

import pytest

from cloudtrain import runtime

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("capability", "bf16", "float8"),
    [(None, False, False), ((7, 0), False, False), ((7, 5), False, False), ((8, 0), True, False), ((8, 9), True, True),
     ((9, 0), True, True)],
)  # fmt: skip
def test_emulation_is_not_support(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, bf16: bool, float8: bool
) -> None:
    """torch emulates bf16 on V100 and T4, and says that they support it."""
    import torch

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert (runtime.has_bf16(), runtime.has_float8()) == (bf16, float8)


@pytest.mark.parametrize("is_used", [True, False])
def test_tf32_is_one_switch(monkeypatch: pytest.MonkeyPatch, is_used: bool) -> None:
    """For matrix products and convolutions, whose defaults differ in torch."""
    import torch

    settings = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        runtime.use_tf32(is_used)
        assert torch.backends.cuda.matmul.allow_tf32 is is_used
        assert torch.backends.cudnn.allow_tf32 is is_used
        assert torch.get_float32_matmul_precision() == ("high" if is_used else "highest")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = settings


def test_determinism_is_one_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeatable kernels or fast ones; new tensors are not filled either way, which would take longer than a step."""
    import torch

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    deterministic = torch.utils.deterministic
    settings = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    try:
        runtime.use_determinism(True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not deterministic.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        runtime.use_determinism(True, warn_only=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        runtime.use_determinism(False)
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(settings[0])
        deterministic.fill_uninitialized_memory = settings[1]
