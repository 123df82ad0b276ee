"""Real torchrun jobs on this machine: several agents, a killed rank, a restart, a stop with a checkpoint."""

from __future__ import annotations

import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.deadlines import GRACE
from tests.targets.places import Place

pytestmark = pytest.mark.torch

ALL_REDUCE = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), flush=True)
print("instance", os.environ["GROUP_RANK"], file=sys.stderr, flush=True)
dist.barrier()
dist.destroy_process_group()
"""

LOOP = """\
import itertools, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
restarts = torch.tensor(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))  # an agent may count those of others, or not
dist.all_reduce(restarts, op=dist.ReduceOp.MAX)
attempt = int(restarts)
for step in itertools.count():
    dist.all_reduce(ones)
    ones.fill_(1)
    if step == 1:
        print("attempt", attempt, "rank", dist.get_rank(), flush=True)
    if step > 1 and attempt == int(os.environ["LAST_ATTEMPT"]):
        break
    time.sleep(0.02)
dist.destroy_process_group()
"""

FOR_EVER = ct.Environment(variables={"LAST_ATTEMPT": "-1"})

STOPS = """\
from cloudtrain import runtime
import pathlib, time
runtime.init_process_group()
runtime.watch_for_stop()
step = 0
while not runtime.should_stop():
    step += 1
    if step == 3:
        print("training", flush=True)
    time.sleep(0.01)
time.sleep(1)
(runtime.checkpoint_dir() / f"rank_{runtime.detect_environment().rank}").write_text(str(step))
runtime.exit_preempted(step)
"""


def two_by_two(**more: int) -> ct.Local:
    """Two simulated instances with two ranks each."""
    return ct.Local(instance_count=2, processes_per_instance=2, grace_period=GRACE, **more)


@pytest.mark.parametrize("instances", [pytest.param(1, marks=pytest.mark.smoke), 2])
def test_all_reduce(place: Place, instances: int) -> None:
    """Two ranks on each simulated instance reduce over all; every rank has its own log, and knows its instance."""
    target = ct.Local(instance_count=instances, processes_per_instance=2, grace_period=GRACE)
    run = place.submit(ALL_REDUCE, distribution=ct.Torch(), target=target)
    status = run.wait()
    assert status.state is RunState.SUCCEEDED, status
    ranks = 2 * instances
    for rank in range(ranks):
        line = f"rank {rank} of {ranks} sum {'1' * ranks}"
        assert (run.folder / f"logs/rank_{rank}.log").read_text().splitlines()[0] == line
        lines = {(line.instance, line.stream, line.text) for line in run.lines(rank=rank)}
        assert lines == {
            (rank // 2, "stdout", line),
            (rank // 2, "stderr", f"instance {rank // 2}"),
        }
    assert run.nothing_is_left()


@pytest.mark.parametrize(("instances", "victim"), [(1, 1), (2, 0), (2, 3)])
def test_killed_rank(place: Place, instances: int, victim: int) -> None:
    """kill -9 of one rank: the run, which would go on for ever, has failed, that rank is named, nothing is left."""
    target = ct.Local(instance_count=instances, processes_per_instance=2)
    run = place.submit(LOOP, distribution=ct.Torch(), target=target, environment=FOR_EVER)
    for rank in range(instances * 2):
        run.wait_for_line(f"attempt 0 rank {rank}")
    run.rank_process(victim).kill()
    status = run.wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, victim, -9)
    where = f" (instance {victim // 2})" if instances > 1 else ""
    assert str(status.reason).startswith(
        f"rank {victim}{where} was killed by SIGKILL (exit code -9)"
    )
    assert run.nothing_is_left()


def test_raising_rank(place: Place) -> None:
    """The rank with an error of its own is named, not one of those that lost their peer by it."""
    script = LOOP.replace(
        "    if step == 1:",
        "    if step == 5 and dist.get_rank() == 2: raise ValueError('bad thing')\n    if step == 1:",
    )
    run = place.submit(script, distribution=ct.Torch(), target=two_by_two(), environment=FOR_EVER)
    status = run.wait()
    assert (status.state, status.failed_rank) == (RunState.FAILED, 2), status
    assert status.reason in (
        "rank 2 (instance 1) failed with exit code 1: ValueError: bad thing",
        # in gloo's teardown
        "rank 2 (instance 1) was killed by SIGABRT (exit code -6) after ValueError: bad thing",
    )
    assert "ValueError: bad thing" in status.details


@pytest.mark.parametrize("instances", [1, 2])
def test_restart(place: Place, instances: int) -> None:
    """With `max_restarts`, a killed rank makes all ranks, of all instances, start again, and the run succeeds."""
    target = ct.Local(instance_count=instances, processes_per_instance=2, max_restarts=1)
    environment = ct.Environment(variables={"LAST_ATTEMPT": "1"})
    run = place.submit(LOOP, distribution=ct.Torch(), target=target, environment=environment)
    ranks = range(instances * 2)
    for rank in ranks:
        run.wait_for_line(f"attempt 0 rank {rank}")
    run.rank_process(1).kill()
    status = run.wait()
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1), status
    for rank in ranks:
        assert [text for text in run.texts(rank) if text.startswith("attempt")] == [
            f"attempt 0 rank {rank}",
            f"attempt 1 rank {rank}",
        ]
    assert run.nothing_is_left()


def test_no_restart_left(place: Place) -> None:
    """The second death of a run that may restart once is final, and it is the second victim that is named."""
    target = ct.Local(instance_count=1, processes_per_instance=2, max_restarts=1)
    run = place.submit(LOOP, distribution=ct.Torch(), target=target, environment=FOR_EVER)
    for attempt, victim in ((0, 1), (1, 0)):
        for rank in (0, 1):
            run.wait_for_line(f"attempt {attempt} rank {rank}")
        run.rank_process(victim).kill()
    status = run.wait()
    assert (status.state, status.failed_rank, status.restarts) == (RunState.FAILED, 0, 1), status
    assert run.nothing_is_left()


def test_stop_with_checkpoint(place: Place) -> None:
    """SIGTERM reaches the ranks through their agents; they save together; torchrun's exit code 1 is no failure."""
    run = place.submit(STOPS, distribution=ct.Torch(), target=two_by_two())
    run.wait_for_line("training", times=4)
    run.service.stop(run.ref)
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert str(status.reason).startswith("stopped on request; the script saved and left at step ")
    saved = {path.name: path.read_text() for path in (run.folder / "checkpoint").iterdir()}
    assert sorted(saved) == ["rank_0", "rank_1", "rank_2", "rank_3"]
    assert len(set(saved.values())) == 1
    assert run.nothing_is_left()


def test_sigterm_of_one_agent(place: Place) -> None:
    """SIGTERM from outside, to one agent: all ranks save, and the run has stopped, not failed."""
    run = place.submit(
        STOPS, distribution=ct.Torch(), target=ct.Local(instance_count=1, processes_per_instance=2)
    )
    run.wait_for_line("training", times=2)
    agent = next(
        process for process in run.processes() if "cloudtrain.runtime.torchrun" in process.cmdline()
    )
    agent.terminate()
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert str(status.reason).startswith(
        "stopped by a signal from outside; the script saved and left at step "
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_agent(place: Place, victim: int) -> None:
    """kill -9 of an agent: it is named, not a rank that was stopped for it; its ranks do not outlive the run."""
    run = place.submit(LOOP, distribution=ct.Torch(), target=two_by_two(), environment=FOR_EVER)
    for rank in range(4):
        run.wait_for_line(f"attempt 0 rank {rank}")
    agent = next(process for process in run.processes() if f"rank={victim}" in process.cmdline())
    agent.kill()
    status = run.wait()
    assert (status.state, status.failed_rank) == (RunState.FAILED, None)
    assert str(status.reason).startswith(
        f"torchrun of instance {victim} was killed by SIGKILL (exit code -9)"
    )
    assert run.nothing_is_left()


def test_command_under_torchrun(place: Place) -> None:
    """A command of any kind runs once per rank."""
    run = place.submit(
        "", command="echo rank $RANK of $WORLD_SIZE", distribution=ct.Torch(), target=two_by_two()
    )
    assert run.wait().state is RunState.SUCCEEDED
    assert [run.texts(rank) for rank in range(4)] == [[f"rank {rank} of 4"] for rank in range(4)]
