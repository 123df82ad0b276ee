"""From what Slurm and the batch script say to the state of a run."""

from __future__ import annotations

import time

import pytest

from cloudtrain.plans.states import RunState
from cloudtrain.targets.slurm.scripts import parse_records
from cloudtrain.targets.slurm.service import MEANINGS, meaning_of, status_of

WORDS = {
    "BOOT_FAIL": RunState.FAILED,
    "CANCELLED": RunState.STOPPED,
    "COMPLETED": RunState.SUCCEEDED,
    "CONFIGURING": RunState.PREPARING,
    "COMPLETING": RunState.RUNNING,
    "DEADLINE": RunState.FAILED,
    "FAILED": RunState.FAILED,
    "NODE_FAIL": RunState.FAILED,
    "OUT_OF_MEMORY": RunState.FAILED,
    "PENDING": RunState.PENDING,
    "PREEMPTED": RunState.FAILED,
    "REQUEUED": RunState.PENDING,
    "RESIZING": RunState.RUNNING,
    "RUNNING": RunState.RUNNING,
    "STOPPED": RunState.RUNNING,
    "SUSPENDED": RunState.RUNNING,
    "TIMEOUT": RunState.FAILED,
}
"""Every state that sacct(1) of Slurm 22.05 names."""


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("suffix", ["", " by 1000", "+"])
def test_every_state_of_slurm(word: str, suffix: str) -> None:
    """Each state has a meaning, whoever caused it and however sacct cut it short."""
    assert meaning_of(word + suffix).state is WORDS[word]


def test_reasons() -> None:
    """A state that ends a run by the cluster's doing says why; the script's own failure is the script's to explain."""
    silent = {
        word for word, (state, reason) in MEANINGS.items() if state.is_final and reason is None
    }
    assert silent == {"COMPLETED", "FAILED"}


STARTED, ENDED = "@note 100.5 7 started 0\n", "@note 160.5 7 ended {}\n"
QUEUE = "@queue run-1|{}|{}|90|N/A|N/A\n"
PLANNED = time.strftime("%Y-%m-%d %H:%M", time.localtime(7_200))

RECORDS: dict[str, tuple[str, RunState, str | None]] = {
    "waits": (QUEUE.format("PENDING", "Resources"), RunState.PENDING, "it waits: Resources"),
    "waits for a planned start": (
        "@queue run-1|PENDING|Resources|90|7200|7500\n",
        RunState.PENDING,
        f"it waits: Resources; Slurm expects to start it at {PLANNED}, or earlier",
    ),
    "is held": (
        QUEUE.format("PENDING", "JobHeldUser"),
        RunState.PENDING,
        "it waits: JobHeldUser (`scontrol release 7` releases it, if you or an administrator held it)",
    ),
    "is held after a requeue": (
        STARTED + QUEUE.format("PENDING", "job requeued in held state"),
        RunState.PENDING,
        "it waits: job requeued in held state (`scontrol release 7` releases it)",
    ),
    "meets a limit": (
        QUEUE.format("PENDING", "AssocMaxJobsLimit"),
        RunState.PENDING,
        "it waits: AssocMaxJobsLimit (a limit of your account; `sacctmgr show assoc user=$USER` shows it)",
    ),
    "waits for ever": (
        QUEUE.format("PENDING", "DependencyNeverSatisfied"),
        RunState.PENDING,
        "it waits: DependencyNeverSatisfied (the job that it depends on failed; stop the run and submit it without that)",
    ),
    "is suspended": (
        STARTED + QUEUE.format("SUSPENDED", "None"),
        RunState.RUNNING,
        "it is suspended (`scontrol resume 7` lets it continue)",
    ),
    "setup ended the script": (
        STARTED + "@note 101 7 broken setup\n" + QUEUE.format("FAILED", "NonZeroExitCode"),
        RunState.FAILED,
        "the lines of `setup` in `[slurm]` ended the batch script",
    ),
    "the script was killed": (
        STARTED + QUEUE.format("FAILED", "None"),
        RunState.FAILED,
        "the batch script ended early",
    ),
    "renamed and accounted for": (
        STARTED + "@renamed\n@account other|NODE_FAIL|0:0|90|100|160\n",
        RunState.FAILED,
        "a node of the job was lost",
    ),
    "forgotten, and the accounting is silent": (
        STARTED + "@silent sacct: error: Connection refused\n",
        RunState.RUNNING,
        "nobody knows how job 7 ended until Slurm's accounting answers: sacct: error: Connection refused",
    ),
    "forgotten, the accounting is silent, and the journal knows": (
        STARTED + ENDED.format(0) + "@silent sacct: error: Connection refused\n",
        RunState.SUCCEEDED,
        None,
    ),
    "runs": (STARTED + QUEUE.format("RUNNING", "None"), RunState.RUNNING, None),
    "is stopping": ("@stop\n" + STARTED + QUEUE.format("RUNNING", "None"), RunState.STOPPING, None),
    "was stopped": (
        "@stop\n"
        + STARTED
        + "@note 110 7 stopping\n@note 120 7 stopped\n"
        + QUEUE.format("CANCELLED", "None"),
        RunState.STOPPED,
        "it was asked to stop",
    ),
    "finished before the stop came": (
        "@stop\n" + STARTED + ENDED.format(0) + QUEUE.format("COMPLETED", "None"),
        RunState.SUCCEEDED,
        None,
    ),
    "was cancelled": (
        STARTED + QUEUE.format("CANCELLED", "None"),
        RunState.STOPPED,
        "the job was cancelled",
    ),
    "ran out of time": (
        STARTED
        + "@note 150 7 timeout\n@note 155 7 left 143\n"
        + QUEUE.format("FAILED", "NonZeroExitCode"),
        RunState.FAILED,
        "the time limit was reached",
    ),
    "failed": (
        STARTED + ENDED.format(3) + QUEUE.format("FAILED", "None"),
        RunState.FAILED,
        "exit code 3",
    ),
    "broken bundle": (
        STARTED + "@note 101 7 broken code\n" + QUEUE.format("FAILED", "None"),
        RunState.FAILED,
        "the first node could not unpack the bundle",
    ),
    "accounted for": (
        STARTED + ENDED.format(0) + "@account run-1|COMPLETED|0:0|90|100|160\n",
        RunState.SUCCEEDED,
        None,
    ),
    "the last row counts": (
        STARTED
        + "@account run-1|PREEMPTED|0:0|90|100|120\n@account run-1|NODE_FAIL|0:0|120|130|160\n",
        RunState.FAILED,
        "a node of the job was lost",
    ),
    "another job of that number": (
        STARTED + ENDED.format(0) + "@account other|FAILED|1:0|90|100|160\n",
        RunState.SUCCEEDED,
        None,
    ),
    "forgotten, succeeded": (STARTED + ENDED.format(0), RunState.SUCCEEDED, None),
    "forgotten, failed": (STARTED + ENDED.format(2), RunState.FAILED, "exit code 2"),
    "forgotten, stopped": (
        STARTED + "@note 120 7 stopped\n",
        RunState.STOPPED,
        "it was asked to stop",
    ),
    "forgotten, ended from outside": (
        STARTED + "@note 119 7 interrupted\n@note 120 7 left 143\n",
        RunState.STOPPED,
        "the job was cancelled, or its nodes were taken away",
    ),
    "forgotten, killed while it stopped": (
        STARTED + "@note 119 7 stopping\n@note 120 7 killed\n",
        RunState.STOPPED,
        "it was asked to stop",
    ),
    "forgotten, killed before it left": (
        STARTED + "@note 119 7 interrupted\n",
        RunState.STOPPED,
        "the job was cancelled, or its nodes were taken away",
    ),
    "forgotten, killed at the time limit": (
        STARTED + "@note 119 7 timeout\n",
        RunState.FAILED,
        "the time limit was reached",
    ),
    "forgotten, without an end": (
        STARTED,
        RunState.LOST,
        "Slurm no longer lists the job 7, and the job recorded no end",
    ),
    "forgotten, never started": (
        "@stop\n",
        RunState.STOPPED,
        "it was asked to stop before it started",
    ),
    "a line that is half written": (
        STARTED + "@note 16\n" + QUEUE.format("RUNNING", "None"),
        RunState.RUNNING,
        None,
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(name: str) -> None:
    """What the cluster says is one state, and one reason."""
    text, state, reason = RECORDS[name]
    (record,) = parse_records(f"@run run-1\n@job 7\n@sent 90\n{text}".encode())
    status = status_of(record, bytes)
    assert (status.state, status.reason) == (state, reason)
    assert (status.ended is not None) >= (state is RunState.SUCCEEDED)


def test_restarts_are_counted() -> None:
    """Every start after the first is a restart, and the run began with the first."""
    text = f"@run run-1\n@job 7\n{STARTED}@note 130 7 left 143\n@note 140 7 started 1\n{QUEUE.format('RUNNING', 'None')}"
    (record,) = parse_records(text.encode())
    status = status_of(record, bytes)
    assert (status.restarts, status.started, status.ended) == (1, 100.5, None)


def test_last_words() -> None:
    """Where no rank has run, the batch script's own output says why it failed."""
    tails = "@file slurm.out\n line 49: /no/venv/bin/activate: No such file or directory\n \n"
    text = f"@run run-1\n@job 7\n{STARTED}@note 101 7 broken setup\n{QUEUE.format('FAILED', 'NonZeroExitCode')}"
    (record,) = parse_records(text.encode())
    status = status_of(record, tails.encode)
    setup = "the lines of `setup` in `[slurm]` ended the batch script"
    assert status.reason == f"{setup}: line 49: /no/venv/bin/activate: No such file or directory"
    assert status.details == ("line 49: /no/venv/bin/activate: No such file or directory",)


def test_whose_fault() -> None:
    """The rank whose own error it was is named, and not one that lost its peer."""
    tails = (
        "@file node_0.rank_0.stderr.log\n Traceback\n RuntimeError: Connection closed by peer [127.0.0.1]\n"
        "@file node_1.launcher.stderr.log\n torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "@file node_1.rank_3.stderr.log\n Traceback\n ValueError: bad thing\n"
    )
    (record,) = parse_records(f"@run run-1\n@job 7\n{STARTED}{ENDED.format(1)}".encode())
    status = status_of(record, tails.encode)
    assert status.failed_rank == 3
    assert status.reason == "rank 3: ValueError: bad thing (exit code 1)"
    assert status.details == ("Traceback", "ValueError: bad thing")
    told = "@file node_1.rank_3.stderr.log\n error: `x.pt` is broken\n \n hint: remove it\n"
    status = status_of(record, (tails.partition("@file node_1.rank_3")[0] + told).encode)
    assert (status.failed_rank, status.reason) == (3, "rank 3: `x.pt` is broken (exit code 1)")
    bar = "@file node_1.rank_3.stderr.log\n  50%|###  |\rValueError: bad thing\n"
    assert status_of(record, bar.encode).reason == "rank 3: ValueError: bad thing (exit code 1)"
