"""A check takes time in proportion to what it reads: four times as much takes four times as long, not sixteen."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "scaling.py"


@cache
def bench() -> ModuleType:
    """The benchmark, without running it."""
    spec = importlib.util.spec_from_file_location("scaling_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


QUICK = (
    "imports",
    "groups of options",
    "saves by options",
    "files and writes",
    "inputs",
    "overrides of a list",
)
SLOW = sorted(bench().CASES.keys() - set(QUICK))


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_time_grows_with_the_number(name: str) -> None:
    """In processor time, without that of a job with none of them; a square would be a factor of sixteen."""
    measure = bench().seconds
    case = bench().CASES[name]
    none = measure(case(0), turns=2)
    few = measure(case(200), turns=3) - none
    many = measure(case(800), turns=2) - none
    assert many < 10 * max(few, 0.005)
