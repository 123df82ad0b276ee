"""Talks to the cluster through shell scripts that run on this machine, or on the login node through
ssh."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import NameTaken, RunNotFound, TargetError, TargetUnreachable
from cloudtrain.machines.table import NodeKind
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import ListedRun, LogLine, OnStatus, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.signals.notices import newest_of, parse_notices
from cloudtrain.targets.common import services
from cloudtrain.targets.common.archives import unpacked
from cloudtrain.targets.common.tracebacks import PEER_LOST, error_in, shorten_line
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Service
from cloudtrain.targets.slurm.inside import enter
from cloudtrain.targets.slurm.online import check, list_nodes
from cloudtrain.targets.slurm.runner import WORDS, CommandFailed, Runner, rows_of
from cloudtrain.targets.slurm.scripts import Record, parse_records
from cloudtrain.targets.slurm.settings import SlurmAccount
from cloudtrain.targets.slurm.stacks import look_at
from cloudtrain.targets.slurm.transfer import (
    ClusterLog,
    copy_metrics,
    download,
    fetch,
    provide,
    upload,
)

if TYPE_CHECKING:
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.plans.plan import Finding, Upload
    from cloudtrain.runtime.hangs.verdict import Look
    from cloudtrain.targets.inside import ExecRequest, Session
    from cloudtrain.targets.slurm.settings import Slurm


# Submit exactly one job for each run, although Slurm accepts any number of jobs of one name.
#
# Each run has a folder with a lock, which sbatch itself holds while a request is in transit. Under
# the lock, a request is sent only if the run has no job: the link `job` is missing, and neither
# `squeue` nor `sacct` has a job with the run's name and comment. Each submission first creates a
# file for its own token in the run's folder. Withdrawing the run removes these files, and a request
# whose file is missing is never sent, however late it arrives. If two jobs exist nevertheless, the
# batch script lets only one of them run.


def send(runner: Runner, plan: Plan, *, again: bool) -> None:
    """Submit the run's job. `again` tells whether an earlier process may have submitted it; only
    then may the run already have one (otherwise `NameTaken`, as for another user's run). Raises
    `TargetUnreachable` if the cluster did not answer, or another process submits or withdrew the
    run."""
    request = plan.request
    folder = request["folder"]
    name = plan.run_name
    token = secrets.token_hex(16)

    job = _call(runner, "open", folder, name, token)
    if not job:
        outputs = json.dumps(request["outputs"])
        arguments = (token, outputs, *request["argv"])
        script = request["script"].encode()
        answer = _call(runner, "send", folder, name, *arguments, stdin=script)
        word, _, number = answer.partition(" ")
        job = number if word == "found" else ""
    if job and not again:
        raise NameTaken(
            f"a run `{name}` already exists: job {job}", hint="give the job another name"
        )


def _call(
    runner: Runner, script: str, folder: str, name: str, *arguments: str, stdin: bytes = b""
) -> str:
    """Run a script about a run, and return its output. Its exit codes become errors."""
    try:
        answer = runner.run(script, folder, name, *arguments, stdin=stdin)
    except CommandFailed as error:
        row = WORDS["exits"].get(str(error.exit_status))
        if row is None:
            raise
        kind, message, hint = row
        text = message.format(name=name, said=error.message)
        raise _KINDS[kind](text, hint=hint) from None
    return answer.decode().strip()


_KINDS = {"unreachable": TargetUnreachable, "taken": NameTaken, "refused": TargetError}


# Slurm's job states, and the run states that they mean.


class Meaning(NamedTuple):
    """The run state for a job state of Slurm, and the reason if the cluster ended the job."""

    state: RunState
    reason: str | None = None


MEANINGS = {
    word: Meaning(RunState(state), *reason) for word, (state, *reason) in WORDS["states"].items()
}


def meaning_of(word: str) -> Meaning:
    """Return the meaning of a Slurm state, also for forms such as `CANCELLED by 0` and
    `CANCELLED+`. An unknown state counts as running."""
    parts = word.split()
    state = parts[0].rstrip("+") if parts else ""
    return MEANINGS.get(state, Meaning(RunState.RUNNING))


# Derive the status of a run, and the reason of its failure, from its record.

_BROKEN: dict[str, str] = WORDS["broken"]
_EARLY = "the batch script ended early"
_RANK = r"node_\d+\.rank_(\d+)\.stderr\.log"
_DETAILS = 12
"""Maximum number of output lines in the explanation of a failure."""


_ENDS = ("ended", "stopped", "left", "broken")
"""Events of the journal with which a batch script ends."""


def status_of(record: Record, tails: Callable[[], bytes]) -> RunStatus:
    """`tails` returns the output of the script of this name: the last lines of the error output;
    called only for a failed run. Times and
    the exit code come from the journal if possible, so that they do not change when Slurm forgets
    the job."""
    state, reason = _meaning_in(record)
    starts = record.starts
    status = RunStatus(
        state=state,
        reason=reason,
        created=record.request_time or record.submit_time,
        started=starts[0].time if starts else None,
        restarts=max(0, len(starts) - 1),
        notices=tuple(newest_of(parse_notices(record.notices))),
    )
    if not state.is_final:
        return status

    end_time = record.end_time
    last = record.last("started", *_ENDS)
    # A requeued job starts again after an end.
    if last is not None and last.word != "started":
        end_time = last.time
    exit_code = None
    last = record.last("ended", "left")
    if last is not None and last.word == "ended" and last.rest.isdecimal():
        exit_code = int(last.rest)
    status = replace(status, ended=end_time, exit_code=exit_code)
    if state is RunState.FAILED and starts:
        return _with_cause(status, tails())
    return status


def _meaning_in(record: Record) -> Meaning:
    """Return the state of a run, and the reason, from Slurm's state and the journal."""
    if record.state is None:
        return _meaning_in_journal(record)
    meaning = meaning_of(record.state)
    if not meaning.state.is_final:
        return _meaning_unfinished(record, record.state, meaning.state)

    last = record.last(*_ENDS)
    is_asked = meaning.state is RunState.STOPPED and record.stop_asked
    if is_asked or (last is not None and last.word == "stopped"):
        return Meaning(RunState.STOPPED, _stop_reason(record))
    if meaning.state is RunState.FAILED and meaning.reason is None:
        return Meaning(RunState.FAILED, _reason_of_journal(record) or _EARLY)
    return meaning


def _stop_reason(record: Record) -> str:
    if record.last("idle") is not None:
        return "its GPUs were idle for as long as `stop_when_idle` allows"
    return "it was asked to stop"


def _meaning_unfinished(record: Record, slurm_state: str, state: RunState) -> Meaning:
    """Return the state of a run whose job has not ended. `state` is that of `slurm_state`."""
    if record.stop_asked or record.last("stopping") is not None:
        return Meaning(RunState.STOPPING)

    last = record.last("started", "left")
    has_script = last is not None and last.word == "started"
    if state is RunState.RUNNING and not has_script:
        # the job has its nodes, and the batch script is about to start
        return Meaning(RunState.PREPARING)
    if slurm_state.split()[0] in ("SUSPENDED", "STOPPED"):
        return Meaning(state, f"it is suspended (`scontrol resume {record.job}` lets it continue)")
    return Meaning(state, _waiting(record) if state is RunState.PENDING else None)


def _meaning_in_journal(record: Record) -> Meaning:
    """Return the state of a run whose job Slurm has forgotten, and the reason. If the batch script
    was killed, the journal lacks the job's end, but it may contain an earlier event that tells the
    reason, such as `timeout`."""
    last = record.last("started", "stopping", "interrupted", "timeout", *_ENDS)
    if last is None and record.stop_asked:
        return Meaning(RunState.STOPPED, "it was asked to stop before it started")
    if last is None or last.word == "started":
        if record.silence is not None:
            reason = (
                f"nobody knows how job {record.job} ended until Slurm's accounting answers: "
                f"{record.silence}"
            )
            return Meaning(RunState.RUNNING, reason)
        reason = f"Slurm no longer lists the job {record.job}, and the job recorded no end"
        return Meaning(RunState.LOST, reason)

    if last.word in ("stopped", "stopping"):
        return Meaning(RunState.STOPPED, _stop_reason(record))
    if last.word == "ended" and last.rest == "0":
        return Meaning(RunState.SUCCEEDED)
    is_cancelled = last.word == "left" and record.last("timeout") is None
    if last.word == "interrupted" or is_cancelled:
        return Meaning(RunState.STOPPED, "the job was cancelled, or its nodes were taken away")
    return Meaning(RunState.FAILED, _reason_of_journal(record))


def _reason_of_journal(record: Record) -> str | None:
    """Return why the batch script ended, by its last words; None if it recorded no end."""
    last = record.last("ended", "left", "broken", "timeout")
    if last is None:
        return None
    if last.word == "broken":
        return _BROKEN.get(last.rest, last.rest)
    if last.word == "ended":
        return f"exit code {last.rest}"
    if record.last("timeout") is not None:
        return "the time limit was reached"
    return "a signal from outside ended it"


def _waiting(record: Record) -> str | None:
    """Return Slurm's reason why the job waits, and what helps; None if Slurm gives no reason."""
    if not record.why or record.why == "None":
        return None

    advice: dict[str, str] = WORDS["advice"]
    known = [word for word in advice if record.why.startswith(word)]
    text = f"it waits: {record.why}"
    if record.expected_time is not None:
        expected = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.expected_time))
        text += f"; Slurm expects to start it at {expected}, or earlier"
    if not known:
        return text
    help_text = advice[max(known, key=len)].format(job=record.job)
    return f"{text} ({help_text})"


class _Cause(NamedTuple):
    """The error that a process printed."""

    is_consequence: bool
    """Whether the error only says that a rank lost contact with another rank."""
    rank: float
    """Infinite for a process that is no rank, such as a launcher."""
    error: str
    lines: list[str]


def _with_cause(status: RunStatus, tails: bytes) -> RunStatus:
    """Add the error in `tails`, the last lines of the error output, and the failed rank if it is
    known. An error that only says that a rank lost contact with another rank is used only if there
    is no other error."""
    causes = []
    for file, lines in _files(tails):
        error = error_in(lines)
        match = re.fullmatch(_RANK, file)
        if error is not None:
            rank = int(match[1]) if match else inf
            is_consequence = PEER_LOST.search(error) is not None
            causes.append(_Cause(is_consequence, rank, error, lines))
    if not causes:
        return _with_last_words(status, tails)

    cause = min(causes, key=lambda cause: cause[:2])
    reason = cause.error
    failed_rank = None
    if isinstance(cause.rank, int) and not cause.is_consequence:
        failed_rank = cause.rank
        reason = f"rank {failed_rank}: {reason}"
    if status.reason:
        reason += f" ({status.reason})"
    details = tuple(cause.lines[-_DETAILS:])
    return replace(status, reason=reason, failed_rank=failed_rank, details=details)


def _with_last_words(status: RunStatus, tails: bytes) -> RunStatus:
    """Add to the status what the batch script printed last, if the script recorded no reason."""
    printed = dict(_files(tails)).get("slurm.out", ())
    written = [line for line in printed if line.strip()]
    if status.reason not in (_EARLY, _BROKEN["setup"]) or not written:
        return status
    reason = f"{status.reason}: {shorten_line(written[-1])}"
    return replace(status, reason=reason, details=tuple(written[-_DETAILS:]))


def _files(tails: bytes) -> list[tuple[str, list[str]]]:
    """Return the names of the files in `tails`, each with its lines."""
    files: list[tuple[str, list[str]]] = []
    for word, rest in rows_of(tails):
        if word == "@file":
            files.append((rest, []))
        elif files:  # a carriage return in a line begins one without the space of the others
            files[-1][1].append(f"{word} {rest}" if word else rest)
    return files


# The service of Slurm clusters. It runs shell scripts on the machine that has Slurm's commands.

PACE = services.Pace(every=2.0, per_stream=0.0, settle=4.0)

_AT_ONCE = 50
"""Maximum number of runs in one status command."""


class SlurmService(Service):
    """Submits and manages runs on Slurm clusters. A run's reference holds its login node and its
    shared folder."""

    in_flight: float = 0.0
    """Seconds for which a sent request may still be in transit: 0, because sbatch holds the run's
    lock for that time; see `submission`."""
    names_are_unique = False

    def __init__(
        self, *, environ: Mapping[str, str], state_dir: Path, pace: services.Pace = PACE
    ) -> None:
        self._environ = environ
        self._state_dir = state_dir
        self._pace = pace

    def check(self, job: TrainingJob, settings: Slurm, plan: Plan) -> list[Finding]:
        return check(self._runner(plan.place), job, settings, plan)

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        runner = self._runner(plan.place)
        is_new = upload(runner, plan, bundle, on_bytes)
        environment = plan.request.get("environment")
        if environment is not None:
            provide(runner, environment)
        return is_new

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        send(self._runner(plan.place), plan, again=again)
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        runner, folder = self._locate(ref)
        return bool(_call(runner, "find", folder, ref.name))

    def withdraw(self, ref: RunRef) -> bool:
        runner, folder = self._locate(ref)
        return not _call(runner, "withdraw", folder, ref.name)

    def status(self, ref: RunRef) -> RunStatus:
        runner, folder = self._locate(ref)
        record = self._record(runner, folder, ref)
        return status_of(record, lambda: runner.run("tails", folder))

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        runner, folder = self._locate_job(ref)
        log = ClusterLog(runner, folder, rank, instance)
        return services.follow_log(
            log, lambda: self.status(ref), on_status, self._pace, to_end=follow
        )

    def log_after(self, ref: RunRef, mark: Any) -> ClusterLog:
        runner, folder = self._locate(ref)
        return ClusterLog(runner, folder, before=mark or {})

    def metrics_folder(self, ref: RunRef, cache: Path) -> Path | None:
        runner, folder = self._locate_job(ref)
        return cache if copy_metrics(runner, folder, cache) else None

    def stop(self, ref: RunRef) -> None:
        """Send SIGTERM to the batch script. The script sends SIGTERM to its processes, and kills
        those that still run after the grace period."""
        if not self.status(ref).state.is_final:
            runner, folder = self._locate(ref)
            runner.run("stop", folder)

    def stacks(self, ref: RunRef) -> list[Look]:
        runner, folder = self._locate_job(ref)
        looks = look_at(runner, folder)
        if not looks:
            raise services.no_stacks(ref)
        return looks

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        runner, folder = self._locate(ref)
        return enter(runner, folder, ref.name, asked)

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the runs of the shared folder, newest first. Only `status` reports the error of a
        failed rank."""
        shared_dir = SlurmAccount.parse(place).shared_dir
        runner = self._runner(place)
        names = runner.run("list", shared_dir).decode().split()
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            for record in parse_records(runner.run("status", f"{shared_dir}/runs", *some)):
                status = status_of(record, lambda: b"")
                yield ListedRun(RunRef("slurm", place, record.name), status)

    def instances(self, place: str) -> list[NodeKind]:
        return list_nodes(self._runner(place))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        runner, _ = self._locate(ref)
        archive = scratch / "sourcedir.tar.gz"
        if fetch(runner, upload.destination, archive):
            yield from unpacked(archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        runner, folder = self._locate_job(ref)
        return download(runner, folder, path, destination)

    def _locate_job(self, ref: RunRef) -> tuple[Runner, str]:
        """Return where a run is, as `_locate` does. Raises `RunNotFound` if the run has no job."""
        runner, folder = self._locate(ref)
        self._record(runner, folder, ref)
        return runner, folder

    def _record(self, runner: Runner, folder: str, ref: RunRef) -> Record:
        """Return the run's record. Raises `RunNotFound` if the run has no job."""
        runs = folder.rpartition("/")[0]
        for _ in range(2):
            record = next(parse_records(runner.run("status", runs, ref.name)), None)
            if record is not None and record.job:
                return record
            # The sender may have died before it recorded the job; `find` records it now.
            if not _call(runner, "find", folder, ref.name):
                break
        raise _not_found(ref)

    def _locate(self, ref: RunRef) -> tuple[Runner, str]:
        """Return the runner for the run's cluster, and the run's folder."""
        runner = self._runner(ref.place)
        if not ref.name or "/" in ref.name or ref.name in (".", ".."):
            raise _not_found(ref)
        return runner, SlurmAccount.parse(ref.place).run_dir(ref.name)

    def _runner(self, place: str) -> Runner:
        return Runner(SlurmAccount.parse(place).host, self._environ, self._state_dir)


def _not_found(ref: RunRef) -> RunNotFound:
    message = f"there is no run `{ref.name}` at `{ref.place}`"
    return RunNotFound(message, hint="`cloudtrain ps` lists the runs")
