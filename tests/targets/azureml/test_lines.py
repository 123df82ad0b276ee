"""Whose a log file is, and lines of a file that is still being written."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import UsageError
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.azureml.service.logs import Cutter, check_selection, writer_of


def body(kind: str | None = None, instances: int = 2, **distribution: Any) -> dict[str, Any]:
    given = {"distributionType": kind, **distribution} if kind else None
    return {
        "command": "python train.py",
        "distribution": given,
        "resources": {"instanceCount": instances},
    }


TORCH = body("PyTorch", processCountPerInstance=4)
MPI = body("Mpi", processCountPerInstance=2)
TENSORFLOW = body("TensorFlow", 3, parameterServerCount=2, workerCount=3)
BEHIND = body("TensorFlow", 3, parameterServerCount=1, workerCount=2)
"""The workers have instances of their own, behind that of the server."""

NAMES = [
    ({}, "user_logs/std_log.txt", (0, 0)),
    (TORCH, "user_logs/std_log_process_0.txt", (0, 0)),
    (TORCH, "user_logs/std_log_process_05.txt", (1, 5)),
    (TORCH, "user_logs/std_log_process_7.txt", (1, 7)),
    (TORCH, "user_logs/retry_001/std_log_process_7.txt", (1, 7)),
    (MPI, "user_logs/std_log_process_3.txt", (1, 3)),
    (MPI, "user_logs/mpi_log.txt", (0, None)),
    (MPI, "azureml-logs/70_driver_log_3.txt", (1, 3)),
    (TENSORFLOW, "user_logs/std_log_node_02_worker.txt", (2, 2)),
    (TENSORFLOW, "user_logs/std_log_node_00_ps.txt", (0, 3)),
    (TENSORFLOW, "user_logs/std_log_process_1_ps.txt", (1, 4)),
    (BEHIND, "user_logs/std_log_node_00_ps.txt", (0, 2)),
    (BEHIND, "user_logs/std_log_node_01_worker.txt", (2, 1)),
    (TENSORFLOW, "azureml-logs/70_driver_log-worker-1.txt", (1, 1)),
    (TENSORFLOW, "azureml-logs/70_driver_log-ps-0.txt", (0, 3)),
    (body("TensorFlow", 4), "user_logs/std_log_process_3.txt", (3, 3)),
    (body("PyTorch", 3), "user_logs/std_log_process_2.txt", (2, 2)),
    ({}, "azureml-logs/70_driver_log.txt", (0, 0)),
    (TORCH, "system_logs/lifecycler/lifecycler.log", None),
    (TORCH, "azureml-logs/20_image_build_log.txt", None),
    (TORCH, "user_logs/my_own.txt", None),
    (TORCH, "user_logs/std_log_process_0.json", None),
]


@pytest.mark.parametrize(("job", "name", "expected"), NAMES)
def test_whose_a_file_is(
    job: dict[str, Any], name: str, expected: tuple[int, int | None] | None
) -> None:
    """The instance and the rank, from the name and the job's body."""
    assert writer_of(Body({"properties": job}), name) == expected


@pytest.mark.parametrize(
    "job",
    [
        body("Ray"),
        body("PyTorch", processCountPerInstance=1) | {"command": "python -m cloudtrain.runtime.deepspeed_launcher -- train.py"},
    ],
)  # fmt: skip
def test_launchers_write_for_all_their_ranks(job: dict[str, Any]) -> None:
    """The file's number is the instance, no rank is known, and asking for one says so."""
    launcher = Body({"properties": job})
    assert writer_of(launcher, "user_logs/std_log_process_1.txt") == (1, None)
    with pytest.raises(UsageError, match="cannot select a rank"):
        check_selection(launcher, 0, None)


@pytest.mark.parametrize(
    ("job", "rank", "instance", "hint"),
    [
        (TORCH, 8, None, "the job has the ranks 0 to 7"),
        (TENSORFLOW, 5, None, "the job has the ranks 0 to 4"),
        (TORCH, None, 2, "the job has the instances 0 to 1"),
        (body("PyTorch", 1), 1, None, "the job has one rank, 0"),
    ],
)
def test_no_such_rank(
    job: dict[str, Any], rank: int | None, instance: int | None, hint: str
) -> None:
    """Silence would read as a rank that wrote nothing."""
    with pytest.raises(UsageError) as error:
        check_selection(Body({"properties": job}), rank, instance)
    assert error.value.hint == hint


def cut(*parts: bytes) -> list[str]:
    cutter = Cutter()
    return [*(line for part in parts for line in cutter.feed(part)), *cutter.rest()]


def test_lines_wait_for_their_end() -> None:
    """Half a line, half a character, half of an end."""
    cutter = Cutter()
    assert [list(cutter.feed(part)) for part in (b"one\ntw", "oé".encode()[:2], "é".encode()[1:] + b"\r", b"\n")] == [
        ["one"], [], [], ["twoé"],
    ]  # fmt: skip
    assert list(cutter.rest()) == []


def test_a_progress_bar_is_its_last_state() -> None:
    """However much of it came, no more than that is kept."""
    assert cut(b"10%\r50%", b"\r100%", b"\nnext") == ["100%", "next"]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_where_it_is_cut_does_not_matter(data: bytes, places: list[int]) -> None:
    """The same lines, whatever the pieces are in which a file was read."""
    edges = [0, *sorted(places), len(data)]
    assert cut(*(data[a:b] for a, b in pairwise(edges))) == cut(data)


@pytest.mark.slow
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")), max_size=6))
def test_every_line_comes_through(lines: list[str]) -> None:
    """Whatever it says."""
    assert cut("".join(f"{line}\n" for line in lines).encode()) == lines
