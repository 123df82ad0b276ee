"""Derive the status of a run, and the reason of its failure, from its record."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from cloudtrain.core.states import RunState, RunStatus
from cloudtrain.targets.common.tracebacks import PEER_LOST, error_in, shorten_line
from cloudtrain.targets.slurm.service.records import Record
from cloudtrain.targets.slurm.service.states import Meaning, advice_for, meaning_of

_BROKEN = {
    "setup": "the lines of `setup` in `[slurm]` ended the batch script",
    "code": "the first node could not unpack the bundle",
    "folders": "the first node could not create the run's folders",
}
_EARLY = "the batch script ended early"
_RANK = re.compile(r"node_\d+\.rank_(\d+)\.stderr\.log")
_DETAILS = 12
"""Maximum number of output lines in the explanation of a failure."""


def status_of(record: Record, tails: Callable[[], str]) -> RunStatus:
    """Return the status of a run. `tails` returns the last lines of the error output; called only for a failed run.

    Times and the exit code come from the journal if possible, so that they do not change when Slurm forgets the job.
    """
    state, reason = _judge(record)
    starts, ended = record.starts, record.last("ended", "stopped", "left", "broken")
    code = _exit_code(record)
    over = state.is_final
    status = RunStatus(
        state=state,
        reason=reason,
        created=record.sent or record.created,
        started=starts[0].time if starts else None,
        ended=(ended.time if ended and _is_of_last_start(record) else record.ended) if over else None,
        restarts=max(0, len(starts) - 1),
        exit_code=code if over else None,
    )
    return _with_cause(status, tails()) if state is RunState.FAILED and starts else status


def _judge(record: Record) -> Meaning:
    """Return the run's state and its reason, from Slurm's state and the journal."""
    if record.state is None:
        return _judge_by_journal(record)
    found, last = meaning_of(record.state), record.last("ended", "stopped", "left", "broken")
    if not found.state.is_final:
        if record.stop_asked or record.last("stopping") is not None:
            return Meaning(RunState.STOPPING)
        if found.state is RunState.RUNNING and (not record.starts or _is_left(record)):
            return Meaning(RunState.PREPARING)  # the job has its nodes, and the batch script is about to start
        return Meaning(found.state, _waiting(record) if found.state is RunState.PENDING else _halted(record))
    if last is not None and last.word == "stopped":
        return Meaning(RunState.STOPPED, "it was asked to stop")
    if found.state is RunState.STOPPED:
        return Meaning(RunState.STOPPED, "it was asked to stop" if record.stop_asked else found.reason)
    if found.state is RunState.FAILED and found.reason is None:
        return Meaning(RunState.FAILED, _reason_of_journal(record) or _EARLY)
    return found


def _judge_by_journal(record: Record) -> Meaning:
    """Return the state of a run whose job Slurm has forgotten, and the reason. If the batch script was killed, the
    journal lacks the job's end, but it may contain an earlier event that tells the reason, such as `timeout`."""
    last = record.last("started", "stopping", "interrupted", "timeout", "ended", "stopped", "left", "broken")
    if last is None and record.stop_asked:
        return Meaning(RunState.STOPPED, "it was asked to stop before it started")
    if (last is None or last.word == "started") and record.silence is not None:
        reason = f"nobody knows how job {record.job} ended until Slurm's accounting answers: {record.silence}"
        return Meaning(RunState.RUNNING, reason)
    if last is None or last.word == "started":
        return Meaning(RunState.LOST, f"Slurm no longer lists the job {record.job}, and the job recorded no end")
    if last.word in ("stopped", "stopping"):
        return Meaning(RunState.STOPPED, "it was asked to stop")
    if last.word == "ended" and last.rest == "0":
        return Meaning(RunState.SUCCEEDED)
    if last.word == "interrupted" or (last.word == "left" and record.last("timeout") is None):
        return Meaning(RunState.STOPPED, "the job was cancelled, or its nodes were taken away")
    return Meaning(RunState.FAILED, _reason_of_journal(record))


def _is_of_last_start(record: Record) -> bool:
    """Return whether the journal records the end of the job's last start. A requeued job starts several times."""
    last = record.last("started", "ended", "stopped", "left", "broken")
    return last is not None and last.word != "started"


def _is_left(record: Record) -> bool:
    """Return whether the job lost its nodes after its last start, according to the journal."""
    last = record.last("started", "left")
    return last is not None and last.word == "left"


def _reason_of_journal(record: Record) -> str | None:
    last = record.last("ended", "left", "broken", "timeout")
    if last is None:
        return None
    if last.word == "broken":
        return _BROKEN.get(last.rest, last.rest)
    if last.word == "timeout" or (last.word == "left" and record.last("timeout") is not None):
        return "the time limit was reached"
    return "a signal from outside ended it" if last.word == "left" else f"exit code {last.rest}"


def _exit_code(record: Record) -> int | None:
    last = record.last("ended", "left")
    return int(last.rest) if last is not None and last.word == "ended" and last.rest.isdecimal() else None


def _waiting(record: Record) -> str | None:
    """Return Slurm's reason why the job waits, and what helps; None if Slurm gives no reason."""
    if not record.why or record.why == "None":
        return None
    advice = advice_for(record.why)
    return f"it waits: {record.why}" + (f" ({advice.format(job=record.job)})" if advice is not None else "")


def _halted(record: Record) -> str | None:
    """Return why a job that has nodes does not run now; None if it runs."""
    halted = str(record.state).split()[0] in ("SUSPENDED", "STOPPED")
    return f"it is suspended (`scontrol resume {record.job}` lets it continue)" if halted else None


def _with_cause(status: RunStatus, tails: str) -> RunStatus:
    """Add to the status the error that made the run fail, and the failed rank if it is known. `tails` are the last
    lines of the error output. An error that only says that a rank lost contact with another rank is used only
    if there is no other error."""
    found = []
    for file, lines in _files(tails):
        error, match = error_in(lines), _RANK.fullmatch(file)
        if error is not None:
            found.append((bool(PEER_LOST.search(error)), match is None, int(match[1]) if match else 0, error, lines))
    if not found:
        return _with_last_words(status, tails)
    is_consequence, is_nameless, number, error, lines = min(found, key=lambda item: item[:3])
    rank = None if is_nameless or is_consequence else number
    who = f"rank {rank}: " if rank is not None else ""
    code = f" ({status.reason})" if status.reason else ""
    details = tuple(lines[-_DETAILS:])
    return replace(status, reason=f"{who}{shorten_line(error)}{code}", failed_rank=rank, details=details)


def _with_last_words(status: RunStatus, tails: str) -> RunStatus:
    """Add to the status what the batch script printed last, if the script recorded no reason."""
    lines = [line for name, lines in _files(tails) if name == "slurm.out" for line in lines if line.strip()]
    if status.reason not in (_EARLY, _BROKEN["setup"]) or not lines:
        return status
    reason = f"{status.reason}: {shorten_line(lines[-1])}"
    return replace(status, reason=reason, details=tuple(lines[-_DETAILS:]))


def _files(tails: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in tails.splitlines():
        if line.startswith("@file "):
            found.append((line.removeprefix("@file "), []))
        elif found:
            found[-1][1].append(line.removeprefix(" "))
    return found
