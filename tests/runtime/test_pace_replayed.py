"""The times of reports of healthy trainings, as `bench/hangs/healthy.py --record` wrote them, replayed: 30 of one script,
and some of bundled scripts (`--scripts`), which evaluate, save and compile."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.runtime.pace import Quiet, StepPace

FOLDER = Path(__file__).parent / "traces"


def recorded(name: str) -> list[dict[str, Any]]:
    """The recipes and times in a file."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


TRACES = [row["times"] for row in recorded("healthy.jsonl")]
SCRIPTS = {row["recipe"]: row["times"] for row in recorded("scripts.jsonl")}


def looks(times: list[float]) -> int:
    """How often somebody would have looked at a run that reported at these times."""
    pace = StepPace(timeout=1800, joined=times[0])
    count = 0
    for before, after in pairwise(times):
        pace.note(before)
        count += Quiet([pace], after, began=0).is_long
    return count


@pytest.mark.parametrize(
    ("slower", "most", "most_of_one"), [(1, 0, 0), (5, 2, 1), (20, 13, 1), (100, 23, 2)]
)
def test_a_healthy_training_is_hardly_ever_looked_at(
    slower: int, most: int, most_of_one: int
) -> None:
    """As they were, never; if all took so many times longer, at a first long pause, and not again. A look is no alarm."""
    assert len(TRACES) == 30
    counts = [looks([1000.0 + slower * time for time in times]) for times in TRACES]
    assert sum(counts) <= most
    assert max(counts) <= most_of_one


@pytest.mark.parametrize("recipe", SCRIPTS)
def test_a_bundled_script_is_never_looked_at(recipe: str) -> None:
    """As it was on a busy machine, and if all took five times longer; twenty times, at its first long pause."""
    times = SCRIPTS[recipe]
    assert len(times) > 6
    for slower, most in ((1, 0), (5, 0), (20, 1)):
        assert looks([1000.0 + slower * time for time in times]) <= most


def test_bundled_scripts_evaluate_save_and_compile() -> None:
    """Of at least three scripts."""
    assert len({recipe.split()[0] for recipe in SCRIPTS}) >= 3
    recipes = " ".join(SCRIPTS)
    for word in ("compile=true", "evaluate_every=", "checkpoint_every="):
        assert word in recipes
