"""mpirun jobs on this machine."""

from __future__ import annotations

import os
import sys

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.plans.states import RunState
from tests.deadlines import GRACE
from tests.targets.places import Place, Run

pytestmark = [pytest.mark.mpi, pytest.mark.smoke]

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
    time.sleep(3600)
if what == "raise":
    raise ValueError("bad thing")
"""


def submit(place: Place, what: str) -> Run:
    """Two ranks that end, wait, or of which rank 1 raises."""
    job = {"hyperparameters": {"what": what}, "distribution": ct.MPI(processes_per_instance=2)}
    run = place.submit(SCRIPT, target=ct.Local(processes_per_instance=2, grace_period=GRACE), **job)
    # mpirun may kill rank 0 before it has said anything
    for rank in (1,) if what == "raise" else (0, 1):
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


@pytest.mark.slow
def test_raising_rank(place: Place) -> None:
    """The rank that raised is named, with its exception."""
    status = submit(place, "raise").wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 1, 1)
    assert status.reason == "rank 1 failed with exit code 1: ValueError: bad thing"


def test_killed_rank(place: Place) -> None:
    """kill -9 of a rank: it is named, and nothing is left."""
    run = submit(place, "wait")
    victim = run.process_with("OMPI_COMM_WORLD_RANK", "1")
    victim.kill()
    status = run.wait()
    assert (status.state, status.failed_rank, status.exit_code) == (RunState.FAILED, 1, -9)
    assert run.nothing_is_left()


@pytest.mark.slow
def test_stop(place: Place) -> None:
    """Ranks may take the whole grace period to save, longer than mpirun would give them."""
    run = submit(place, "wait")
    run.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    assert [run.texts(rank).count("saved") for rank in (0, 1)] == [1, 1]
    assert run.nothing_is_left()


@pytest.mark.parametrize(
    "options",
    [
        "-bind-to none -map-by slot -mca pml ob1",
        "-x SEEN=1 -x SEEN=last",
        "--bind-to core --n 3 -n 2 --report-bindings",
    ],
)
def test_options_for_open_mpi_4(place: Place, options: str) -> None:
    """What Open MPI 4 reads runs under Open MPI 5 too, with the same ranks: one dash for two, an option twice."""
    script = "import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'], os.environ.get('SEEN', 'last'))"
    run = place.submit(
        script, distribution=ct.MPI(options=options), target=ct.Local(processes_per_instance=2)
    )
    assert run.wait().state is RunState.SUCCEEDED, (run.status, run.texts())
    assert sorted(text for text in run.texts() if text.startswith("rank")) == [
        "rank 0 last",
        "rank 1 last",
    ]


LISTENS = """\
import ctypes, glob, os, sys, time
(library, *_) = glob.glob(os.path.join(os.path.dirname(os.path.dirname(sys.argv[sys.argv.index("--mpirun") + 1])), "lib*", "libmpi.so.*"))
mpi = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
print("joined", flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds Open MPI's library as Linux names it")
def test_ranks_listen_on_nothing(place: Place) -> None:
    """Ranks that have called MPI_Init share memory, and no port of theirs is open to the network."""
    mpirun = os.path.realpath(place.plan(LISTENS, distribution=ct.MPI())[0].processes[0].argv[0])
    run = place.submit(
        LISTENS,
        target=ct.Local(processes_per_instance=2),
        distribution=ct.MPI(processes_per_instance=2),
        hyperparameters={"mpirun": mpirun},
    )
    run.wait_for_line("joined", times=2)
    for rank in (0, 1):
        process = run.process_with("OMPI_COMM_WORLD_RANK", str(rank))
        connections = getattr(process, "net_connections", None) or process.connections
        assert [
            each for each in connections(kind="inet") if each.status == psutil.CONN_LISTEN
        ] == []
    run.service.stop(run.ref)
    run.wait()
