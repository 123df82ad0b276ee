"""What every budget is measured with: commands that are timed in turn, and their results."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

Timed = Callable[[], float]
"""Runs once and returns the seconds that count."""


@dataclass(frozen=True)
class Result:
    """One budget: median seconds of cloudtrain and of the reference, and the limit on their relation."""

    name: str
    ours_s: float
    reference: str
    reference_s: float
    ratio: float
    limit: str
    ok: bool


def environment(**more: str) -> dict[str, str]:
    """Return this environment with compiled modules kept, as on a user's machine."""
    return {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | more


def command(*argv: str, **env: str) -> Timed:
    """Return the seconds that a command takes as a whole process."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True, env=environment(**env), cwd=ROOT)
        return time.perf_counter() - start

    return once


def processor_time(argv: tuple[str, ...], **env: str) -> Timed:
    """Return the seconds that a command and its own processes compute, however busy the machine is."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True, env=environment(**env), cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return once


def medians(ours: Timed, reference: Timed, runs: int) -> tuple[float, float]:
    """Run both in turn, after one warm-up each, so that a machine that slows down slows both."""
    ours(), reference()
    pairs = [(ours(), reference()) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def at_most(
    name: str, ours: Timed, reference: Timed, what: str, *, factor: float, runs: int
) -> Result:
    """Allow cloudtrain at most `factor` times the reference."""
    a, b = medians(ours, reference, runs)
    return Result(name, a, what, b, a / b, f"at most {factor:g} x", a <= factor * b)
