"""Estimates against the bytes that PyTorch's CPU allocator really held (`bench/fit.py` has more)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "fit.py"


def bench() -> ModuleType:
    """The benchmark, without running it."""
    spec = importlib.util.spec_from_file_location("fit_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("case", bench().CASES, ids=lambda case: case.name)
def test_the_estimate_is_what_the_same_script_allocates(case: Any) -> None:
    """Within the share that the case allows: 5%, and 10% where an operation takes more inside."""
    if case.needs:
        pytest.importorskip(case.needs)
    row = bench().compare(case)
    assert row.is_right, row
