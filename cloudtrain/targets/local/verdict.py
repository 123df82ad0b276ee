"""Collect the failed ranks of a run, and derive the reason for its status."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.runtime.errors import SetupError, find_told
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.common.tracebacks import PEER_LOST
from cloudtrain.targets.local.folder import FINAL, RunFolder
from cloudtrain.targets.local.output import RunOutput
from cloudtrain.targets.local.processes import Launched, RankProcess, kill_run, members
from cloudtrain.targets.local.queueing import Queue

if TYPE_CHECKING:
    from cloudtrain.runtime.hangs.watch import Hang
    from cloudtrain.targets.common.specification import LaunchSpecification


# Read from the launchers' stderr which ranks failed, and with which exit codes.

_TORCHRUN_RANK = re.compile(r"\s*rank\s*: (\d+) \(local_rank: \d+\)")
_TORCHRUN_CODE = re.compile(r"\s*exitcode\s*: (-?\d+) \(pid: \d+\)")
_MPIRUN_NAME = re.compile(r"\s*Process name: \[.*,(\d+)\]")
_MPIRUN_CODE = re.compile(r"\s*Exit code:\s+(\d+)")
_MPIRUN_SIGNAL = (
    r"noticed that process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)".replace(
        " ", r"\s+"
    )
)
"""Open MPI 5 wraps this sentence at its line width, so any white space may stand between two
words."""

_ABORT_RANK = re.compile(r"MPI_ABORT was invoked on rank (\d+) in")
_ABORT_CODE = re.compile(r"(?:\s*Errorcode:|with errorcode)\s+(\d+)")
"""What Open MPI 5 and 4 print if a rank calls MPI_Abort, as mpi4py does after an error."""

_FORK = r"cloudtrain: rank (\d+) ended with exit code (-?\d+)$"

_PAIRS = (
    (_TORCHRUN_RANK, _TORCHRUN_CODE),
    (_MPIRUN_NAME, _MPIRUN_CODE),
    (_ABORT_RANK, _ABORT_CODE),
)


def failed_ranks(lines: Sequence[str]) -> dict[int, int]:
    """Map each failed rank to its exit code, which is negative for a signal. Read the reports of
    torchrun (2.x), mpirun (Open MPI 4 and 5) and cloudtrain's own launcher."""
    code_of_rank: dict[int, int] = {}
    rank = None
    for line in lines:
        # the exit code stands some lines below the rank
        for rank_pattern, code_pattern in _PAIRS:
            if match := rank_pattern.match(line):
                rank = int(match[1])
            elif rank is not None and (match := code_pattern.match(line)):
                code_of_rank[rank] = int(match[1])
                rank = None
        if match := re.match(_FORK, line):
            code_of_rank[int(match[1])] = int(match[2])

    for killed, number in re.findall(_MPIRUN_SIGNAL, "\n".join(lines)):
        code_of_rank[int(killed)] = -int(number)
    return code_of_rank


class Deaths:
    """Collects the failures of ranks in the order in which the ranks end. Only failures of the
    newest attempt count."""

    def __init__(self, spec: LaunchSpecification) -> None:
        self._spec = spec
        self._ends: list[Death] = []
        """Also of ranks that have not failed."""
        self._starts: dict[int, int] = {}
        self._killed_launcher: Launched | None = None

    def started(self, rank: int) -> None:
        """Record that a rank started. A second start of the same rank means that all ranks are
        being restarted."""
        self._starts[rank] = self._starts.get(rank, 0) + 1

    def ended(self, process: RankProcess | Launched, exit_code: int | None) -> None:
        """Record that a rank ended. `exit_code` is None if only the rank's launcher knows it."""
        assert process.rank is not None
        role = process.role if isinstance(process, Launched) else "process"
        order = len(self._ends)
        attempt = self._starts.get(process.rank, 1)
        self._ends.append(
            Death(process.rank, process.instance, role, exit_code or 0, order, attempt)
        )

    def launcher_was_killed(self, launcher: Launched) -> None:
        """Record that a signal from outside ended a launcher. If no rank had failed before, this
        signal is the cause of the run's failure, and ranks that end later fail because of it."""
        if not any(end.exit_code for end in self._ends):
            self._killed_launcher = launcher

    def of_newest_attempt(self, output: RunOutput) -> list[Death]:
        """Return the failed ranks of the newest attempt.

        The launchers' reports in the last lines of the output supply ranks and exit codes that the
        supervisor has missed. A rank that mpirun reports counts as the first to fail, because on a
        busy machine the supervisor may see all ranks end at the same time.
        """
        newest = max(self._starts.values(), default=1)
        reports: dict[int, tuple[int, int]] = {}
        if self._spec.launcher != "processes":
            for instance in range(self._spec.instances):
                lines = output.tail(instance, None, "stderr")
                for rank, code in failed_ranks(lines).items():
                    reports[rank] = (instance, code)

        deaths: dict[int, Death] = {}
        for end in self._ends:
            death = end
            if end.rank in reports:
                _, reported_code = reports[end.rank]
                death = end._replace(exit_code=end.exit_code or reported_code)
                if self._spec.launcher == "mpirun":
                    death = death._replace(order=-1)
            if death.exit_code and death.attempt == newest:
                deaths[end.rank] = death

        # a rank that ended before the supervisor saw it ended before the others; the last such rank
        # is the cause
        for order, (rank, report) in enumerate(reports.items(), start=1):
            if rank not in deaths:
                instance, code = report
                deaths[rank] = Death(rank, instance, "process", code, -order)
        return list(deaths.values())

    def verdict(
        self, output: RunOutput, launches: list[Launched], hang: Hang | None = None
    ) -> FailureReport:
        """Return why the run failed. If an emulated host has written its own reason to a file, the
        verdict quotes it. If all ranks failed because they waited for others, the cause is the
        rank that held them up. Call `RunOutput.drain` first."""
        report = self._verdict(output, launches)
        if hang is not None and self.are_consequences(output):
            reason = _shorten(f"{hang.text}; then {report.reason}")
            return report._replace(reason=reason, rank=hang.rank, exit_code=None)
        return in_own_words(report, self._spec.failure_files)

    def are_consequences(self, output: RunOutput) -> bool:
        """Return whether ranks have failed, and each of them because it lost another rank or was
        terminated."""
        deaths = self.of_newest_attempt(output)
        for death in deaths:
            if not _is_consequence(death, _lines_of(death, output)):
                return False
        return bool(deaths)

    def _verdict(self, output: RunOutput, launches: list[Launched]) -> FailureReport:
        deaths = self.of_newest_attempt(output)
        death = first_failure(deaths, lambda death: _lines_of(death, output))
        if death is not None and self._killed_launcher is None:
            return rank_verdict(death, _lines_of(death, output), instances=self._spec.instances)
        for process, item in zip(self._spec.processes, launches, strict=True):
            if not item.exit_code or self._killed_launcher not in (None, item):
                continue
            lines = output.tail(item.instance, None, "stderr")
            if self._spec.world_size == 1 and item.role == "mpirun":
                # Open MPI 5 reports no failed rank if there is only one.
                lines = output.tail(item.instance, 0, "stderr") or lines
            if not lines:
                lines = output.tail(item.instance, None, "stdout")
            return launcher_verdict(item.role, item.instance, process.argv, item.exit_code, lines)
        return FailureReport("the run failed, but no process reported a reason", [])


# Describe why a run failed: the rank that failed first, how it ended, and its last lines of output.


class Death(NamedTuple):
    """A rank that failed. `exit_code`: 0 if unknown. `order`: its position among all ranks that
    ended. `attempt`: counted from 1."""

    rank: int
    instance: int
    role: str
    exit_code: int
    order: int
    attempt: int = 1


class FailureReport(NamedTuple):
    """The explanation why a run failed, for the run's status."""

    reason: str
    details: list[str]
    rank: int | None = None
    exit_code: int | None = None


DETAILS = 20
"""Maximum number of output lines in an explanation."""

_LONGEST_REASON = 400

_CRASHES = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS)
"""Exit codes of ranks that ended for a reason of their own."""

FAILURE_LIMIT = 1024
"""Number of characters that SageMaker shows of a failure file."""

_RANK_PREFIX = re.compile(r"\[rank\d+\]: ?")
_NO_TORCH = r"No module named '?torch\b"
_HEADER = "Traceback (most recent call last):"


def first_failure(deaths: Iterable[Death], lines_of: Callable[[Death], list[str]]) -> Death | None:
    """Return the failure that caused the others: the first one that is not a consequence, or else
    the first one. The rank with the original error may end after the ranks that lost contact with
    it, because it shuts down its process group first. One rank reports an error that every rank
    finds, while the others exit in silence."""
    in_order = sorted(deaths, key=lambda death: death.order)
    own = [death for death in in_order if not _is_consequence(death, lines_of(death))]
    if own and own[0].exit_code == 1 and _is_silent(lines_of(own[0])):
        own = [death for death in own if find_told(lines_of(death))] or own
    return next(iter(own or in_order), None)


def _is_silent(lines: list[str]) -> bool:
    return not any(line.strip() for line in lines)


def rank_verdict(death: Death, lines: list[str], *, instances: int) -> FailureReport:
    """Return the report about a failed rank. `lines` are the last of its output."""
    where = []
    if death.role not in ("process", "torchrun", "mpirun"):
        where.append(death.role)
    if instances > 1:
        where.append(f"instance {death.instance}")
    who = f"rank {death.rank}"
    if where:
        who += f" ({', '.join(where)})"
    message, details = explain(lines)

    code = death.exit_code
    reason = _end_of(who, "failed", code, message)
    # torch may abort while it cleans up after an error
    if code == -signal.SIGABRT and message:
        reason += f" after {message}"
    if code == -signal.SIGKILL:
        reason += "; unless someone sent it, the machine most likely ran out of memory"
    return FailureReport(_shorten(reason), details, death.rank, code)


def launcher_verdict(
    role: str, instance: int, argv: Sequence[str], exit_code: int, lines: list[str]
) -> FailureReport:
    """Return the report about a launcher that failed without a failed rank. `lines` are the last of
    its output."""
    message, details = explain(lines)
    who = f"{role} of instance {instance}"
    if re.search(_NO_TORCH, message):
        reason = (
            f"`{argv[0]}` has no PyTorch ({message}); `pip install torch` there, or name "
            "another interpreter: `python` of the local target"
        )
    else:
        reason = _end_of(who, "ended", exit_code, message)
    return FailureReport(_shorten(reason), details, None, exit_code)


def in_own_words(verdict: FailureReport, failure_files: Iterable[str]) -> FailureReport:
    """Return the verdict with the first line of the oldest failure file as its reason, and the
    other lines as details. A failure file is the `/opt/ml/output/failure` of an emulated host. As
    in SageMaker, only 1,024 characters are used.
    """
    files = [path for path in map(Path, failure_files) if path.is_file()]
    if not files:
        return verdict
    oldest = min(files, key=lambda path: path.stat().st_mtime)
    text = oldest.read_text("utf-8", "replace")[:FAILURE_LIMIT].strip()
    if not text:
        return verdict
    first, *rest = text.splitlines()
    details = rest[-DETAILS:] or verdict.details
    return verdict._replace(reason=_shorten(first), details=details)


def explain(lines: list[str]) -> tuple[str, list[str]]:
    """Return the line that names the error in the last traceback, and the lines of this traceback.
    If the runtime told an error after the last traceback, return its message, and its lines.
    Without both, return the last line, and the last lines."""
    clean: list[str] = []
    header = -1
    for line in lines:
        text = line
        if line.startswith("[rank"):
            text = _RANK_PREFIX.sub("", line, count=1)
        if not text.strip():
            continue
        if text.strip() == _HEADER:
            header = len(clean)
        clean.append(text.rstrip())

    told = find_told(clean)
    if told is not None:
        start, message = told
        if header <= start:
            return message, clean[start:][:DETAILS]

    if not clean:
        return "", []
    if header < 0:
        return clean[-1].strip(), clean[-DETAILS:]
    # the frames of a traceback are indented, the error below them is not
    for index in range(header + 1, len(clean)):
        if not clean[index][0].isspace():
            return clean[index], clean[header : index + 4][-DETAILS:]
    return "", clean[-DETAILS:]


def _lines_of(death: Death, output: RunOutput) -> list[str]:
    """Return the last lines of a rank's stderr, or of its stdout if stderr is silent."""
    stderr = output.tail(death.instance, death.rank, "stderr")
    if _is_silent(stderr):
        return output.tail(death.instance, death.rank, "stdout")
    return stderr


def _is_consequence(death: Death, lines: list[str]) -> bool:
    """Return whether a rank failed because it lost another rank or was terminated. `lines` are the
    last of its output."""
    if death.exit_code in _CRASHES:
        return False
    if death.exit_code == -signal.SIGTERM:
        return True
    _, details = explain(lines)
    return PEER_LOST.search("\n".join(details[-6:])) is not None


def _end_of(who: str, verb: str, code: int, message: str) -> str:
    """Return how a process ended, such as `rank 1 failed with exit code 1: ValueError`."""
    if code < 0:
        name = f"signal {-code}"
        with suppress(ValueError):  # it has no name
            name = signal.Signals(-code).name
        return f"{who} was killed by {name} (exit code {code})"
    end = f"{who} {verb} with exit code {code}"
    return f"{end}: {message}" if message else end


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_REASON:
        return text
    return text[: _LONGEST_REASON - 1] + "…"


# Finish a run whose supervisor died: complete its output, set its state to lost. Its guard has
# killed its processes. If the guard was killed too, `stop` and the runs that wait in the queue for
# its GPUs kill them; who only asks for the status kills nothing.

_PATIENCE = 5.0
"""Seconds to wait for the lock. A dying supervisor, or another process that finishes the run, holds
it only briefly."""


def finish(
    run_dir: str, token: str = "", known_pids: Iterable[int] = (), *, may_kill: bool = True
) -> None:
    """Write the final status of a run whose supervisor died. Do nothing for a run that is final,
    has a supervisor, or was removed, nor in a copy of its folder. Raises `OSError` if the run's
    folder cannot be written.

    `token`, `known_pids`: of a run whose supervisor has certainly died. Its processes are killed in
    any case, because the folder may be gone, or another run's.
    `may_kill`: without it, a run that still has processes stays as it is.
    """
    if token:
        kill_run(token, known_pids)
    folder = RunFolder(run_dir)
    if not os.path.exists(folder.lock):
        return
    lock = ProcessLock.take(Path(folder.lock), patience=_PATIENCE)
    if lock is None:
        return
    try:
        status = folder.read_status()
        if status is not None and status["state"] not in FINAL:
            if may_kill:
                kill_run(status.get("token", ""))
            elif members(status.get("token", "")):
                return
            _write_lost(folder, status)
    finally:
        lock.release()
    Queue.of(run_dir).settle()


def _write_lost(folder: RunFolder, status: dict[str, Any]) -> None:
    """Complete the output of a run whose lock is held, and write the state `lost`."""
    from cloudtrain.errors import TargetError  # the guard does not need it until here

    who = f"the supervisor (process {status['pid']}) was killed"
    reason = f"{who}, and with it every process of the run"
    if status["state"] == "queued":
        reason = f"{who} while the run was queued"
    try:
        _complete_output(folder)
    # of the disk, the journal or launch.json
    except (OSError, ValueError, LookupError, TargetError) as error:
        reason += f"; its output is incomplete: {getattr(error, 'message', error)}"
    folder.write_status({**status, "state": "lost", "ended": time.time(), "reason": reason})


def _complete_output(folder: RunFolder) -> None:
    """Copy the output that the dead supervisor has not copied. Raises ValueError for a run of an
    earlier version, whose journal has another form."""
    from dataclasses import replace

    if os.path.exists(folder.old_journal):
        raise ValueError(f"an earlier cloudtrain started it; the rest is in `{folder.logs}`")
    # patterns may be slow, and the user waits for this process
    spec = replace(folder.read_launch(), metrics=None)
    output = RunOutput(folder, spec, lambda _instance, _local_rank: None)
    output.hidden = _secrets_of(spec)
    try:
        output.resume()
        output.drain()
    finally:
        output.close()


def _secrets_of(spec: LaunchSpecification) -> tuple[str, ...]:
    """Return the texts to hide in the output of a run. Only secrets from files and environment
    variables are looked up: others could need a user's input or the network."""
    from cloudtrain.runtime.secret_values import VARIABLE, forms_of, references, resolved

    secrets = dict[str, str]()
    variables = {**os.environ, **spec.processes[0].env}
    for name, place in references(variables).items():
        if not place.startswith(("env:", "file:")):
            continue
        alone = {**variables, VARIABLE: json.dumps({name: place})}
        try:
            secrets[name] = resolved(alone)[name]
        except SetupError:
            continue
    return forms_of(secrets)
