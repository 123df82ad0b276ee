"""mpirun jobs on this machine."""

from __future__ import annotations

import shutil

import pytest

import cloudtrain as ct
from cloudtrain.states import RunState
from tests.backends.places import Place, Run

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")]

SCRIPT = """\
import os, signal, sys, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
def leave(*_):
    time.sleep(2)  # longer than mpirun's own patience
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("rank", rank, "of", os.environ["OMPI_COMM_WORLD_SIZE"], flush=True)
print("to stderr", file=sys.stderr)
what = sys.argv[sys.argv.index("--what") + 1]
if what != "end" and not (what == "raise" and rank == "1"):
    time.sleep(300)
if what == "raise":
    raise ValueError("bad thing")
"""


def submit(place: Place, what: str) -> Run:
    """Two ranks that end, wait, or of which rank 1 raises."""
    job = {"hyperparameters": {"what": what}, "distribution": ct.MPI(processes_per_instance=2)}
    run = place.submit(SCRIPT, target=ct.Local(processes_per_instance=2, grace_period=10), **job)
    for rank in (0, 1):
        run.wait_for_line(f"rank {rank} of 2")
    return run


def test_every_rank_has_its_own_output(place: Place) -> None:
    """Lines of unbuffered ranks arrive whole, with the right rank and stream."""
    run = submit(place, "end")
    assert run.wait().state is RunState.SUCCEEDED
    for rank in (0, 1):
        lines = [(line.stream, line.text) for line in run.lines(rank=rank)]
        assert lines == [("stdout", f"rank {rank} of 2"), ("stderr", "to stderr")]
        assert f"rank {rank} of 2" in (run.folder / f"logs/rank_{rank}.log").read_text()


def test_raising_rank(place: Place) -> None:
    """The rank that raised is named, with its exception."""
    status = submit(place, "raise").wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 1, 1)
    assert status.reason == "rank 1 failed with exit code 1: ValueError: bad thing"


def test_killed_rank(place: Place) -> None:
    """kill -9 of a rank: it is named, and nothing is left."""
    run = submit(place, "wait")
    victim = next(p for p in run.processes() if p.environ().get("OMPI_COMM_WORLD_RANK") == "1")
    victim.kill()
    status = run.wait(deadline=15)
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 1, -9)
    assert run.nothing_is_left()


def test_stop(place: Place) -> None:
    """Ranks may take the whole grace period to save, longer than mpirun would give them."""
    run = submit(place, "wait")
    run.backend.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    assert [run.texts(rank).count("saved") for rank in (0, 1)] == [1, 1]
    assert run.nothing_is_left()
