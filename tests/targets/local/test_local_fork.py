"""`--launcher fork` on this machine: real forked ranks, and the supervisor sees of them what it sees of torchrun's."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from cloudtrain.runtime.fork_launcher import rank_environment
from cloudtrain.signals.rows import MetricRows, read_files
from tests.deadlines import GRACE
from tests.targets.local.test_local_torch import ALL_REDUCE, FOR_EVER, LOOP, STOPS
from tests.targets.places import Place, Run, eventually

pytestmark = pytest.mark.torch

SHORT = {"epochs": 6}
DIGITS = (Path(__file__).parents[3] / "training_scripts" / "digits_ddp" / "train.py").read_text()

WAITS_FOR_ITS_DEATH = DIGITS.replace("import math\n", "import math\nimport os\n").replace(
    "    done = step + 1\n",
    "    done = step + 1\n"
    "    if (done, group.rank, os.environ['TORCHELASTIC_RESTART_COUNT']) == (50, 1, '0'):\n"
    "        time.sleep(3600)\n",
)
"""The digits whose rank 1 is there to be killed, however late that is; rank 0 waits for its gradients."""


def forked(instances: int = 2, **more: int) -> ct.Local:
    """Two ranks on each of some simulated instances."""
    return ct.Local(
        launcher="fork",
        instance_count=instances,
        processes_per_instance=2,
        grace_period=GRACE,
        **more,
    )


def process_of(run: Run, rank: int, attempt: int = 0) -> psutil.Process:
    """The process of a forked rank, which the launcher writes down."""
    file = run.folder / f"logs/instance_{rank // 2}/fork/attempt_{attempt}/{rank % 2}/rank.json"
    eventually(file.exists, f"{file}")
    return psutil.Process(json.loads(file.read_text())["pid"])


def losses(run: Run) -> dict[int, float]:
    """Step to reported loss, with as many digits as are printed. A fast run does not print all of them."""
    rows = MetricRows(read_files(str(run.folder / "metrics")), rank=0, superseded=True)
    return {
        int(values["step"]): float(f"{values['loss']:.7g}") for values in rows if "loss" in values
    }


def test_two_by_two_all_reduce(place: Place) -> None:
    """Four forked ranks on two simulated instances reduce over all four; output and instance are each rank's own."""
    run = place.submit(ALL_REDUCE, distribution=ct.Torch(), target=forked())
    status = run.wait()
    assert status.state is RunState.SUCCEEDED, status
    for rank in range(4):
        assert (run.folder / f"logs/rank_{rank}.log").read_text().splitlines()[
            0
        ] == f"rank {rank} of 4 sum 1111"
        written = {(line.instance, line.stream, line.text) for line in run.lines(rank=rank)}
        assert written == {
            (rank // 2, "stdout", f"rank {rank} of 4 sum 1111"),
            (rank // 2, "stderr", f"instance {rank // 2}"),
        }
    assert run.nothing_is_left()


def test_killed_rank(place: Place) -> None:
    """kill -9 of one rank: the run, which would go on for ever, has failed, rank and instance are named, nothing is
    left.
    """
    run = place.submit(LOOP, distribution=ct.Torch(), target=forked(), environment=FOR_EVER)
    for rank in range(4):
        run.wait_for_line(f"attempt 0 rank {rank}")
    process_of(run, 3).kill()
    status = run.wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 3, -9)
    assert str(status.reason).startswith("rank 3 (instance 1) was killed by SIGKILL (exit code -9)")
    assert run.nothing_is_left()


def test_raising_rank(place: Place) -> None:
    """The rank with an error of its own is named with its traceback, not one that lost its peer by it; and it does not
    abort in gloo's teardown, because it has none."""
    script = LOOP.replace(
        "    if step == 1:",
        "    if step == 5 and dist.get_rank() == 2: raise ValueError('bad thing')\n    if step == 1:",
    )
    status = place.submit(
        script, distribution=ct.Torch(), target=forked(), environment=FOR_EVER
    ).wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 2, 1), status
    assert status.reason == "rank 2 (instance 1) failed with exit code 1: ValueError: bad thing"
    assert status.details[0] == "Traceback (most recent call last):"
    assert "train.py" in status.details[1]


def test_restart(place: Place) -> None:
    """With `max_restarts` a killed rank makes all ranks, of all instances, start again, from the same launcher."""
    environment = ct.Environment(variables={"LAST_ATTEMPT": "1"})
    run = place.submit(
        LOOP, distribution=ct.Torch(), target=forked(max_restarts=1), environment=environment
    )
    for rank in range(4):
        run.wait_for_line(f"attempt 0 rank {rank}")
    process_of(run, 1).kill()
    status = run.wait()
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1), status
    for rank in range(4):
        assert [text for text in run.texts(rank) if text.startswith("attempt")] == [
            f"attempt 0 rank {rank}",
            f"attempt 1 rank {rank}",
        ]
    assert run.nothing_is_left()


def test_no_restart_left(place: Place) -> None:
    """The second death of a run that may restart once is final, and it is the second victim that is named."""
    run = place.submit(
        LOOP, distribution=ct.Torch(), target=forked(1, max_restarts=1), environment=FOR_EVER
    )
    for attempt, victim in ((0, 1), (1, 0)):
        for rank in (0, 1):
            run.wait_for_line(f"attempt {attempt} rank {rank}")
        process_of(run, victim, attempt).kill()
    status = run.wait()
    assert (status.state, status.failed_rank, status.restarts) == (RunState.FAILED, 0, 1), status


def test_stop_with_checkpoint(place: Place) -> None:
    """SIGTERM reaches the ranks through their launcher; they save together."""
    run = place.submit(STOPS, distribution=ct.Torch(), target=forked())
    run.wait_for_line("training", times=4)
    run.service.stop(run.ref)
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert str(status.reason).startswith("stopped on request; the script saved and left at step ")
    assert sorted(path.name for path in (run.folder / "checkpoint").iterdir()) == [
        f"rank_{n}" for n in range(4)
    ]
    assert run.nothing_is_left()


def test_killed_supervisor(place: Place) -> None:
    """kill -9 of the supervisor: forked ranks, whose environment is their launcher's, do not outlive the run either."""
    run = place.submit(LOOP, distribution=ct.Torch(), target=forked(1), environment=FOR_EVER)
    run.wait_for_line("attempt 0 rank 1")
    run.ours("supervisor").send_signal(signal.SIGKILL)
    assert run.wait().state is RunState.LOST
    assert run.nothing_is_left()


def test_variables_are_those_of_torchrun(place: Place) -> None:
    """A rank that torchrun starts finds the same variables; those that name nothing but a place have their own value."""
    script = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
    target = ct.Local(instance_count=1, processes_per_instance=2)
    run = place.submit(script, distribution=ct.Torch(), target=target)
    assert run.wait().state is RunState.SUCCEEDED
    ours = rank_environment(1, instances=1, processes_per_instance=2, master_port="0")
    theirs = json.loads(run.texts(1)[0])
    differs = {name for name in ours if theirs.get(name) != ours[name]}
    assert differs <= {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"}
    # by which it finds its own processes, whatever has started them
    supervisors = {"CLOUDTRAIN_RUN_TOKEN"}
    started_with = run.plan.request["processes"][0]["env"].keys() | os.environ.keys() | supervisors
    extra = {name for name in theirs if name not in ours and name not in started_with}
    assert extra <= {"LC_CTYPE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the digits under torchrun, with two processes."""
    place = Place(tmp_path_factory.mktemp("digits"), dict(os.environ))
    target = ct.Local(instance_count=1, processes_per_instance=2)
    run = place.submit(DIGITS, distribution=ct.Torch(), target=target, hyperparameters=SHORT)
    assert run.wait().state is RunState.SUCCEEDED
    found = losses(run)
    assert len(found) == 14  # 6 epochs of 23 steps, the first and every tenth
    return found


def test_digits_have_the_same_losses_as_under_torchrun(
    place: Place, uninterrupted: dict[int, float]
) -> None:
    """All reported losses are equal, to the last printed digit."""
    run = place.submit(DIGITS, distribution=ct.Torch(), target=forked(1), hyperparameters=SHORT)
    assert run.wait().state is RunState.SUCCEEDED
    assert losses(run) == uninterrupted


@pytest.mark.parametrize("launcher", ["torchrun", "fork"])
def test_a_killed_rank_resumes_from_the_last_checkpoint(
    place: Place, uninterrupted: dict[int, float], launcher: str
) -> None:
    """kill -9 of a rank with `max_restarts`: all ranks go on from the last checkpoint, and the losses are those of the
    run that was never interrupted."""
    target = ct.Local(launcher=launcher, instance_count=1, processes_per_instance=2, max_restarts=1)
    hyperparameters = SHORT | {"checkpoint_every": 10}
    run = place.submit(
        WAITS_FOR_ITS_DEATH, distribution=ct.Torch(), target=target, hyperparameters=hyperparameters
    )
    eventually(lambda: max(losses(run), default=0) >= 30, "step 30")
    (process_of(run, 1) if launcher == "fork" else run.rank_process(1)).kill()
    status = run.wait()
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1), status
    (resumed,) = (int(text.split()[-1]) for text in run.texts(0) if "resumed from step" in text)
    assert resumed >= 20
    found = losses(run)
    assert {step: found[step] for step in uninterrupted} == uninterrupted
