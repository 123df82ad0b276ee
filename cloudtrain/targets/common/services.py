"""Optional queries to a service, with a deadline. A query that is not answered in time is
ignored."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cloudtrain.errors import MissingExtra, NameTaken, TargetError, TargetUnreachable, UsageError
from cloudtrain.job.model import value_text
from cloudtrain.plans.progress import LogLine, OnStatus, RunStatus, Trial, best_of
from cloudtrain.plans.states import RunRef
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.signals.log import JournalIndex, Log, LogBatch, batch_of
from cloudtrain.signals.rows import newest_steps
from cloudtrain.system.plugins import require
from cloudtrain.system.processes import last_line
from cloudtrain.targets.contract import Service, Tuner, Unasked

if TYPE_CHECKING:
    from cloudtrain.job.sweep import Objective

T = TypeVar("T")
L = TypeVar("L")


def check_timeout() -> float:
    """Return the time limit in seconds for all optional queries of one check together: the positive
    number in the variable `CLOUDTRAIN_CHECK_TIMEOUT`, or else 3."""
    try:
        seconds = float(os.environ.get("CLOUDTRAIN_CHECK_TIMEOUT", ""))
    except ValueError:
        return 3.0
    return seconds if 0 < seconds <= threading.TIMEOUT_MAX else 3.0


class Deadline(Generic[T]):
    """One deadline for several queries. They run in daemon threads, so that the process can exit
    although a query still waits for its answer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def answers(self, questions: Sequence[Callable[[], T]]) -> list[T]:
        """Call all `questions` at the same time. Return the results that arrive before the
        deadline, in the order of the questions. If one of the calls raises an error, raise it."""
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def ask(number: int) -> None:
            try:
                results[number] = questions[number]()
            except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
                errors.append(error)

        threads: list[Thread] = []
        for number in range(len(questions)):
            thread = Thread(target=ask, args=(number,), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            time_left = self._end - time.monotonic()
            # a negative timeout would be an error
            thread.join(max(0.0, time_left))

        if errors:
            raise errors[0]
        arrived = results.copy()  # a late answer may still come
        return [arrived[number] for number in sorted(arrived)]


def no_stacks(ref: RunRef) -> UsageError:
    """Return the error about a run whose ranks cannot be looked at."""
    message = f"no rank of `{ref.name}` runs that cloudtrain could look at"
    return UsageError(
        message,
        hint=f"wait until its script has started: `cloudtrain status {ref.name}`",
        code="CT967",
    )


def name_taken(owner: str, kind: str, ref: RunRef) -> NameTaken:
    """Return the error about a `kind` of job of `owner` that cloudtrain did not make, and that has
    a run's name."""
    message = f"the {owner} already has a different {kind} named `{ref.name}`"
    return NameTaken(
        message, hint=f"see it with `cloudtrain status {ref}`, or give your job another name"
    )


def did_not_start(what: str, log: str | Path) -> TargetError:
    """Return the error about a detached process that has ended before it was ready."""
    message = f"the {what} did not start: {last_line(log) or 'it wrote no message'}"
    return TargetError(message, hint=f"read its log: `{log}`", code="CT951")


def why_unasked(
    extra: str, module: str, provider: str, login: str, *, has_credentials: bool
) -> Unasked | None:
    """Return what this machine lacks to ask a provider: the SDK's `module`, which `extra` installs,
    or credentials, which `login` gets; None if it lacks nothing."""
    try:
        require(module, extra=extra)
    except MissingExtra as error:
        return Unasked(error.message, str(error.hint))
    if has_credentials:
        return None
    return Unasked(
        f"this machine has no credentials for {provider}",
        f"log in with {login}; `--online` asks nevertheless",
    )


# Follow a job's output until the job has ended and its last line has arrived, despite throttling
# and lost connections.


@dataclass(frozen=True)
class Pace:
    """How often to read a job's log, and how long to wait for a service that does not answer. All
    values are seconds.

    Attributes:
        every: pause between two reads of the log.
        per_stream: with N streams, the pause is at least N times this value, because CloudWatch
            allows an account only about 25 reads a second.
        settle: how long to wait for another line of an ended job, because services deliver lines
            late.
        patience: how long the service may be unreachable.
        slowest: longest pause between two attempts while the service is unreachable.
    """

    every: float = 2.0
    per_stream: float = 0.2
    settle: float = 6.0
    patience: float = 600.0
    slowest: float = 30.0


def line_text(line: bytes) -> str:
    """Decode a line. If a progress bar overwrote the line, return only its last state."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


_LATE = 120.0
"""Seconds after the end of a job within which lines may still arrive."""


def follow_log(
    log: Log[L],
    status_of: Callable[[], RunStatus],
    on_status: OnStatus,
    pace: Pace,
    *,
    to_end: bool = True,
) -> Iterator[L]:
    """Yield the lines of a job as they arrive, until the job has ended and its log has no new
    lines. Without `to_end`, yield only the lines so far."""
    reported: RunStatus | None = None
    end_time: float | None = None  # when the end was first seen; only silence after it counts
    answer_time = quiet_since = time.monotonic()
    pause = pace.every
    while True:
        try:
            status = status_of()  # before the log, which may be complete when the status is final
            steady = replace(status, billable_seconds=None, cost=None)  # these change at every look
            if on_status is not None and steady != reported:
                on_status(status)
                reported = steady
            for line in log.new_lines():
                quiet_since = time.monotonic()
                yield line
        except TargetUnreachable:
            silence = time.monotonic() - answer_time
            if not to_end or silence > pace.patience:
                raise
            pause = min(pause * 2, pace.slowest)
        else:
            answer_time = time.monotonic()
            pause = max(pace.every, pace.per_stream * len(log.streams))
            if status.state.is_final:
                if end_time is None:
                    end_time = answer_time
                is_late = status.ended is not None and time.time() - status.ended > _LATE
                silence = time.monotonic() - max(quiet_since, end_time)
                if not to_end or is_late or silence >= pace.settle:
                    break
            elif not to_end:
                return
        time.sleep(pause)
    yield from log.rest()


HERE = Pace(every=0.05, per_stream=0.0, settle=0.0)
"""How often the journal of a followed run is read. It is complete when the run has ended."""


def log_batches(
    service: Service,
    ref: RunRef,
    *,
    follow: bool = False,
    rank: int | None = None,
    instance: int | None = None,
    on_status: OnStatus = None,
    skip: int = 0,
) -> Iterator[LogBatch]:
    """Yield what `logs` of a service yields, without the first `skip` lines, in batches of lines
    that one process wrote at the same time."""
    folder = service.journal_folder(ref)
    if folder is None:
        lines = service.logs(ref, follow=follow, rank=rank, instance=instance, on_status=on_status)
        return map(batch_of, islice(lines, skip, None))

    def now() -> RunStatus:
        return replace(service.status(ref), steps=newest_steps(f"{folder}/{FOLDER}"))

    journal = JournalIndex(folder, rank=rank, instance=instance, first=skip)
    return follow_log(journal, now, on_status, HERE, to_end=follow)


# Errors of a service in a common form for all providers.


class NotThere(TargetError):
    """The job, log, asset or file does not exist."""

    code = "CT947"


class Denied(TargetError):
    """The credentials are valid but lack the permission."""

    code = "CT943"


class Expired(TargetError):
    """The credentials have expired."""

    code = "CT944"


def contains(answer: object, request: object) -> bool:
    """Return whether a service's description contains all requested values. It may contain more,
    such as defaults."""
    if not isinstance(request, Mapping):
        return bool(answer == request)
    if not isinstance(answer, Mapping):
        return False
    return all(contains(answer.get(key), value) for key, value in request.items())


# Functions that the services' tuners share: the log of a sweep, and hyperparameters as the script
# gets them.


def trial_lines(
    tuner: Tuner,
    ref: RunRef,
    *,
    every: float,
    follow: bool,
    on_status: OnStatus,
) -> Iterator[LogLine]:
    """Yield a line for each trial that has started or ended. With `follow`, go on until the sweep
    has ended. `every`: seconds between two requests for the trials."""
    written: set[tuple[str, int]] = set()
    objective = tuner.objective(ref)
    while True:
        status = tuner.status(ref)
        if on_status is not None:
            on_status(status)

        trials = tuner.trials(ref)
        best = best_of(trials, objective)
        for trial in trials:
            for number, text in enumerate(_texts(trial, objective, best)):
                # not by its text, which changes when another trial becomes the best
                line = (trial.run, number)
                if line in written:
                    continue
                written.add(line)
                event_time = trial.ended or trial.started or time.time()
                yield LogLine(event_time, 0, None, "stdout", text)

        if status.state.is_final or not follow:
            return
        time.sleep(every)


def refuse_rank(ref: RunRef, rank: int | None, instance: int | None) -> None:
    """Raise a `UsageError` if a rank or an instance is given, because a sweep has only one log."""
    if rank is not None or instance is not None:
        raise UsageError(
            "a sweep has no ranks or instances; only its trials do",
            hint=f"name the trial: `cloudtrain logs {ref.name} --trial 1`",
            code="CT937",
        )


def own_value(text: object) -> Any:
    """Return the value that a tuner's text stands for. Anything that is not JSON text is returned
    unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _texts(trial: Trial, objective: Objective | None, best: Trial | None) -> Iterator[str]:
    """Yield the line about a trial's start, and if it has ended, the line about its end."""
    pairs = [f"{name}={value_text(value)}" for name, value in trial.values.items()]
    yield f"trial {trial.number} started as {trial.run}: {' '.join(pairs)}"
    if not trial.state.is_final:
        return
    end = ""
    if objective and trial.value is not None:
        end += f": {objective.metric}={trial.value:.4g}"
    if best is not None and best.number == trial.number:
        end += ", the best"
    if not end:
        end = f": {trial.reason}"
    yield f"trial {trial.number} {trial.state}{end}"
