"""Runs that wait for the runs that they read from, on this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.targets.places import eventually

pytestmark = pytest.mark.lifecycle

PREPARE = """
import os, sys, time
from cloudtrain.runtime import output_dir
print("up", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
(output_dir("lists") / "names.txt").write_text("a b c")
sys.exit({code})
"""


@pytest.fixture(autouse=True)
def here(clean_environment: Path) -> Path:
    """State and source folders of one test."""
    return clean_environment


def prepare(here: Path, code: int = 0) -> ct.Run:
    """A run that writes its output when it is let go."""
    (here / f"prep{code}").mkdir()
    (here / f"prep{code}/prep.py").write_text(PREPARE.format(code=code))
    job = ct.TrainingJob(
        name="prep", source_dir=f"prep{code}", entry_point="prep.py", outputs={"lists": {}}
    )
    run = ct.submit(job, "local")
    eventually(lambda: any("up" in line.text for line in run.logs()))
    return run


def let_go(here: Path, run: ct.Run) -> None:
    (here / f"state/runs/{run.name}/code/go").touch()


def use(of: str = "prep", **fields: object) -> ct.TrainingJob:
    """A job that reads what the run writes, and hands it on."""
    command = "cat ${{inputs.data}}/names.txt && cp ${{inputs.data}}/names.txt ${{outputs.lists}}"
    words = {"name": "use", "command": command, "outputs": {"lists": {}}}
    words["inputs"] = {"data": {"local": f"run:{of}/output/lists"}}
    # as a file would have them
    return ct.TrainingJob(**{**words, **fields})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_that_waits_keeps_its_code(here: Path) -> None:
    """`prune` removes archives after a day, and the other run may need longer."""
    first = prepare(here)
    second = ct.submit(use(), "local")
    eventually(lambda: (here / f"state/runs/{second.name}/unpacked").exists())
    for archive in (here / "state/bundles").rglob("*.tar.gz"):
        archive.unlink()
    let_go(here, first)
    assert second.wait(DEADLINE).state is RunState.SUCCEEDED


@pytest.mark.slow
def test_a_chain_of_three(here: Path) -> None:
    """Each waits for the one before it, says so, and starts by itself. The same job has the same name afterwards."""
    first = prepare(here)
    plan = ct.plan(use(), "local")
    assert ("waits for", first.name) in plan.summary
    assert plan.request["after"] == [first.name]
    assert f"the run waits for `{first.name}`, which is running" in plan.notes
    second = ct.submit(use(), "local")
    assert second.name == plan.run_name
    third = ct.submit(use(of=second.name, name="third"), "local", queue=True)
    waiting = third.status()
    assert (waiting.state, waiting.reason) == (RunState.QUEUED, f"waits for {second.name}")
    assert second.status().reason == f"waits for {first.name}"
    let_go(here, first)
    assert third.wait(DEADLINE).state is RunState.SUCCEEDED
    assert [line.text for line in third.logs()] == ["a b c"]
    # it has started
    assert second.status().started >= (first.status().ended or 0)  # type: ignore[operator]
    assert ct.plan(use(), "local").run_name == second.name.removesuffix("1") + "2"
    assert "after" not in ct.plan(use(), "local").request


@pytest.mark.parametrize("how", ["failed", "was stopped", "was lost"])
@pytest.mark.slow_after(1)
def test_a_run_that_does_not_succeed_cancels_those_that_wait(here: Path, how: str) -> None:
    """The whole chain, and each says for which run it waited."""
    first = prepare(here, code=3)
    second = ct.submit(use(), "local")
    third = ct.submit(use(of=second.name, name="third"), "local")
    if how == "failed":
        let_go(here, first)
    elif how == "was stopped":
        first.stop()
    else:
        os.kill(
            json.loads((here / f"state/runs/{first.name}/status.json").read_text())["pid"],
            signal.SIGKILL,
        )
    ended = third.wait(DEADLINE)
    assert (ended.state, ended.reason) == (
        RunState.STOPPED,
        f"cancelled: it waited for `{second.name}`, which was stopped",
    )
    assert second.status().reason == f"cancelled: it waited for `{first.name}`, which {how}"
    assert second.status().started is None


def test_one_that_waits_is_stopped(here: Path) -> None:
    """At once, and the run that it waited for goes on."""
    first = prepare(here)
    second = ct.submit(use(), "local")
    second.stop()
    ended = second.wait(DEADLINE)
    assert (ended.state, ended.started) == (RunState.STOPPED, None)
    assert first.status().state is RunState.RUNNING
    let_go(here, first)
    assert first.wait(DEADLINE).state is RunState.SUCCEEDED


def test_a_killed_one_is_lost_and_starts_nothing(here: Path) -> None:
    """kill -9 of the process that waits: the run is lost, and is never started later."""
    first = prepare(here)
    second = ct.submit(use(), "local")
    os.kill(
        json.loads((here / f"state/runs/{second.name}/status.json").read_text())["pid"],
        signal.SIGKILL,
    )
    eventually(lambda: second.status().state is RunState.LOST)
    let_go(here, first)
    assert first.wait(DEADLINE).state is RunState.SUCCEEDED
    assert list(second.logs()) == []
    assert second.status().state is RunState.LOST
