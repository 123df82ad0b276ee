"""Whose fault it was: the rank that began it, in words that help."""

from __future__ import annotations

from typing import cast

import pytest

from cloudtrain.targets.local.output import RunOutput
from cloudtrain.targets.local.processes import RankProcess
from cloudtrain.targets.local.verdict import (
    Death,
    Deaths,
    explain,
    failed_ranks,
    first_failure,
    launcher_verdict,
    rank_verdict,
)
from tests.specifications import specification

PEER_LOST = [
    "Traceback (most recent call last):",
    '  File "train.py", line 6, in <module>',
    "    work.wait()",
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:37765",
]
OWN = [
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "ValueError: bad thing",
]


TOLD = ["starting", "error: the file `x.pt` is broken", "", "hint: remove it"]


def death(rank: int, exit_code: int, order: int) -> Death:
    return Death(rank, rank // 2, "process", exit_code, order)


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ([(0, 1, OWN), (1, 1, PEER_LOST)], 0),
        ([(1, 1, PEER_LOST), (0, 1, OWN)], 0),  # the culprit takes longer to leave
        ([(1, 1, PEER_LOST), (0, -9, [])], 0),
        ([(1, -15, []), (0, 1, OWN)], 0),
        ([(2, 1, OWN), (0, 1, OWN)], 2),
        ([(3, -11, PEER_LOST), (0, 1, OWN)], 3),
        ([(1, 1, PEER_LOST), (0, 1, PEER_LOST)], 1),  # nobody admits it: the first
        ([(1, -6, PEER_LOST), (0, 1, ["[rank0]: " + line for line in OWN])], 0),
        ([(1, 3, []), (0, 1, PEER_LOST)], 1),
        ([(0, 1, PEER_LOST), (2, 1, PEER_LOST), (1, 1, TOLD)], 1),
        ([(1, 1, []), (2, 1, []), (0, 1, TOLD)], 0),  # all have found the error, and one tells it
        ([(1, -9, []), (0, 1, TOLD)], 1),
    ],
)
def test_culprit(ends: list[tuple[int, int, list[str]]], blamed: int) -> None:
    """The first to end is blamed, but not for having lost another one."""
    lines = {rank: text for rank, _, text in ends}
    deaths = [death(rank, code, order) for order, (rank, code, _) in enumerate(ends)]
    found = first_failure(reversed(deaths), lambda item: lines[item.rank])
    assert found is not None
    assert found.rank == blamed


def test_nobody() -> None:
    """Without deaths there is no culprit."""
    assert first_failure([], lambda _: []) is None


def test_chained_exception() -> None:
    """The last traceback counts; what torch writes after it does not."""
    lines = [*OWN, "", "During handling of the above exception, another exception occurred:", "", *OWN[:2],
             "KeyError: 'x'", "[W1121 ProcessGroup.cpp] warning: destroy_process_group() was not called"]  # fmt: skip
    message, details = explain(lines)
    assert message == "KeyError: 'x'"
    assert details[:3] == [*OWN[:2], "KeyError: 'x'"]


@pytest.mark.parametrize(
    ("lines", "message", "first"),
    [
        (TOLD, "the file `x.pt` is broken", TOLD[1]),
        (
            [*OWN, *TOLD, "[W1121 ProcessGroup.cpp] warning: not destroyed"],
            "the file `x.pt` is broken",
            TOLD[1],
        ),
        ([*TOLD, *OWN], "ValueError: bad thing", OWN[0]),
        (["error: no hint follows", "last words"], "last words", "error: no hint follows"),
    ],
)
def test_an_error_that_the_runtime_told(lines: list[str], message: str, first: str) -> None:
    """Its sentence is the reason, and not its hint, unless a traceback follows."""
    found, details = explain(lines)
    assert (found, details[0]) == (message, first)


def test_long_traceback() -> None:
    """Of a long traceback the last twenty lines are kept, the exception among them."""
    lines = [OWN[0], *(f'  File "{n}.py"' for n in range(100)), "RecursionError: deep"]
    message, details = explain(lines)
    assert message == "RecursionError: deep"
    assert len(details) == 20
    assert details[-1] == "RecursionError: deep"


def test_long_message() -> None:
    """A reason is one line of bounded length."""
    verdict = rank_verdict(death(0, 1, 0), [*OWN[:2], "ValueError: " + "x" * 10_000], instances=1)
    assert len(verdict.reason) == 400


def test_role_and_instance() -> None:
    """A process with a role of its own says so; instances are named where there are several."""
    server = Death(2, 2, "ps", 1, 0)
    assert (
        rank_verdict(server, [], instances=3).reason
        == "rank 2 (ps, instance 2) failed with exit code 1"
    )


def test_unknown_signal() -> None:
    """A real-time signal has no name."""
    assert rank_verdict(death(0, -40, 0), [], instances=1).reason.startswith(
        "rank 0 was killed by signal 40"
    )


def test_launcher() -> None:
    """A launcher that failed by itself is named with its last words."""
    verdict = launcher_verdict(
        "mpirun", 0, ["mpirun"], 213, ["There are not enough slots available"]
    )
    assert (
        verdict.reason
        == "mpirun of instance 0 ended with exit code 213: There are not enough slots available"
    )


TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_08:33:41
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 26511)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_08:33:41
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 26510)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 26510
"""

MPIRUN = """\
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[26286,1],1]
  Exit code:    3
"""

PRTERUN = MPIRUN.replace("mpirun", "prterun").replace("[[26286,1],1]", "[prterun-node-7@1,1]")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (TORCHRUN, {3: 1, 2: -9}),
        (MPIRUN, {1: 3}),
        (PRTERUN, {1: 3}),
        (
            "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).",
            {1: -9},
        ),
        (
            "prterun noticed that process rank 1 with PID 17721 on node vm exited on\nsignal 9 (Killed).",
            {1: -9},
        ),
        (
            f"prterun noticed that process rank 12 with PID 1 on node\n{'n' * 70}\nexited on signal 11 (x).",
            {12: -11},
        ),
        (
            "MPI_ABORT was invoked on rank 3 in communicator X\n  Proc: [[5,1],3]\n  Errorcode: 7\n",
            {3: 7},
        ),
        ("MPI_ABORT was invoked on rank 0 in communicator X\nwith errorcode 1.\n", {0: 1}),
        ("exitcode : 1 (pid: 5)\nProcess name\n", {}),
    ],
)
def test_summaries(text: str, ranks: dict[int, int]) -> None:
    """What torchrun 2.13, Open MPI 4.1 and 5.0 print about failed ranks."""
    assert failed_ranks(text.splitlines()) == ranks


class Printed:
    """Output that holds just what mpirun wrote to its stderr."""

    def tail(self, instance: int, rank: int | None, stream: str) -> list[str]:
        return MPIRUN.splitlines() if (rank, stream) == (None, "stderr") else []


def test_rank_that_was_never_seen_alive() -> None:
    """A rank that died before the supervisor could see it is blamed, not one that mpirun then killed."""
    deaths = Deaths(specification(launcher="mpirun", world_size=2))
    deaths.started(0)
    deaths.ended(RankProcess(4711, 0, {"OMPI_COMM_WORLD_RANK": "0"}), -9)
    verdict = deaths.verdict(cast(RunOutput, Printed()), [])
    assert (verdict.rank, verdict.exit_code) == (1, 3)


def test_all_ranks_seen_to_end_at_once() -> None:
    """Where a busy machine shows the end of every rank in one look, the rank that mpirun names is blamed."""
    deaths = Deaths(specification(launcher="mpirun", world_size=2))
    for rank in (0, 1):
        deaths.started(rank)
        deaths.ended(
            RankProcess(4711 + rank, 0, {"OMPI_COMM_WORLD_RANK": str(rank)}), -9 if rank == 0 else 3
        )
    verdict = deaths.verdict(cast(RunOutput, Printed()), [])
    assert (verdict.rank, verdict.exit_code) == (1, 3)
