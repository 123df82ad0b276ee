"""Following a run: its output as it appears, and its metrics as a live view on a terminal. Ctrl-C
does not stop the run."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO, cast

from cloudtrain.cli.live import LineFormat, LiveView
from cloudtrain.cli.options import LogLevel
from cloudtrain.cli.runs import outlived_by, status_json
from cloudtrain.cli.terminal import OutputError, print_json, say, show, typed
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.job.model import format_size
from cloudtrain.plans.document import Document, Notice
from cloudtrain.plans.states import LogLine, Metrics, RunState, RunStatus
from cloudtrain.plans.status import OF_A_SWEEP, duration_of, metrics_text, number

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.runs.sweep import SweepRun

    OnStatus = Callable[[RunStatus], None] | None


# Selection of the printed lines of a run's output, by pattern, time or level.


_WORDS = {
    LogLevel.warning: (
        r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\b\w*(?:Warning|Error|"
        r"Exception)\b:"
    ),
    LogLevel.error: r"\b(?:ERROR|CRITICAL|FATAL)\b|\b\w*(?:Error|Exception)\b:",
}
"""The levels as Python's logging, warnings and exceptions write them."""

_TRACEBACK = "Traceback (most recent call last)"


class Selection(NamedTuple):
    """The conditions that a line must meet to be printed. Default: no condition."""

    pattern: re.Pattern[str] | None = None
    since: float | None = None
    """Seconds since the epoch."""
    level: LogLevel | None = None

    def of(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines that meet all conditions. All lines of a traceback count as an error."""
        open_tracebacks: set[tuple[int, int | None, str]] = set()
        for line in lines:
            if (
                (self.since is None or line.time >= self.since)
                and (self.pattern is None or self.pattern.search(line.text))
                and (self.level is None or _is_grave(line, self.level, open_tracebacks))
            ):
                yield line


def _is_grave(
    line: LogLine, level: LogLevel, open_tracebacks: set[tuple[int, int | None, str]]
) -> bool:
    source = (line.instance, line.rank, line.stream)
    if _TRACEBACK in line.text:
        open_tracebacks.add(source)
        return True
    if source in open_tracebacks:
        if line.text[:1] not in (" ", "\t", ""):  # the exception itself ends it
            open_tracebacks.discard(source)
        return True
    return re.search(_WORDS[level], line.text) is not None


def pattern_of(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        hint = (
            "to search for the text itself, put a backslash before special characters: "
            f"`{re.escape(text)}`"
        )
        raise UsageError(
            f"`{text}` is not a regular expression: {error}", hint=hint, code="CT901"
        ) from None


def instance_number(text: str) -> int:
    """Return the number of an instance, counted from 0. The text is that number, or a host name of
    SageMaker such as `algo-1`, which is instance 0."""
    host = text.removeprefix("algo-")
    if re.fullmatch("[0-9]{1,9}", host) and (host == text or int(host) > 0):
        return int(host) - (host != text)
    raise UsageError(
        f"`{text}` is not a valid instance",
        hint=(
            "write the instance's number, counted from 0, or on SageMaker its host name, such "
            "as `algo-1`"
        ),
    )


# The result of a run as text and as an exit code.


def exit_code(status: RunStatus) -> int:
    return 0 if status.state is RunState.SUCCEEDED else 1


def report_end(
    run: Run,
    status: RunStatus,
    metrics: Mapping[str, float] | None = None,
    printed: Iterable[str] = (),
) -> None:
    """Print on stderr how the run ended and what to type next. The last lines of its output are
    left out if they are among the lines `printed` before."""
    if status.state in (RunState.FAILED, RunState.LOST):
        is_known = {line.rstrip() for line in status.details} <= {line.rstrip() for line in printed}
        _report_failure(run, replace(status, details=()) if is_known else status)
        return
    if (
        status.state is RunState.STOPPED
        and status.started is None
        and status.reason
        and not run.is_sweep
    ):
        say(f"`{run.name}` was stopped: {status.reason}")
        return  # no process has started, so there is nothing to read or download

    values = _of_sweep(status) if run.is_sweep else metrics_text(metrics or status.metrics)
    word = "was stopped" if status.state is RunState.STOPPED else str(status.state)
    if status.state is RunState.STOPPED and status.started is None and status.reason:
        values = status.reason  # such as the run that it waited for
    say(f"`{run.name}` {word}{_after(status)}" + (f": {values}" if values else ""))
    source = _best_trial(run, status) if run.is_sweep else run
    work = {} if source is None else _working_files(source)
    folder = "" if source is None else _downloads_of(source, status, has_work=bool(work))
    fetch = typed("cloudtrain", "download", run.name, folder) if folder else ""
    if work:
        them = "it" if len(work) == 1 else "them"
        copy = (
            ""
            if folder == "work/"
            else f"; {typed('cloudtrain', 'download', run.name, 'work/')} copies {them}"
        )
        say(_words_of(work) + copy)
        keep = "pass the script the folder '${{outputs.model}}', or save in `runtime.model_dir()`"
        say(f"a cloud would lose {them}: {keep}")
    look = typed("cloudtrain", "trials" if run.is_sweep else "logs", run.name)
    say(f"next: {look}{fetch and f', {fetch}'}")


def _best_trial(run: Run, status: RunStatus) -> Run | None:
    """Return the run of a sweep's best trial, whose files `download` copies; None if there is
    none."""
    best = status.metrics.get("best_trial")
    with suppress(CloudtrainError):
        return None if best is None else cast("SweepRun", run).trial(int(best))
    return None


def _of_sweep(status: RunStatus) -> str:
    """Return the summary of a sweep: `trial 7 is the best, accuracy 0.97; 2 of 40 trials
    failed`."""
    values = [
        f"{name} {number(value)}"
        for name, value in status.metrics.items()
        if name not in OF_A_SWEEP
    ]
    best = status.metrics.get("best_trial")
    words = [f"trial {int(best)} is the best, {values[0]}"] if best is not None and values else []
    return "; ".join([*words, *([status.reason] if status.reason else [])])


_JOINING = r"\b(init_process_group|set_device)\("
"""A line of a traceback in which a script begins to work with others. It does so if it finds the
variable RANK."""


def _report_failure(run: Run, status: RunStatus) -> None:
    word = "was lost" if status.state is RunState.LOST else "failed"
    rank = ["--rank", str(status.failed_rank)] if status.failed_rank is not None else []
    reason = f": {status.reason}" if status.reason else ""
    hint = f"{typed('cloudtrain', 'logs', run.name, *rank)} prints its whole output"
    if run.is_sweep and f"continue {run.name}" in reason:  # its driver failed, not its trials
        hint = f"{typed('cloudtrain', 'trials', run.name)} lists its trials"
    elif run.is_sweep:
        hint = (
            f"{typed('cloudtrain', 'logs', run.name, '--trial', '1')} prints the whole "
            "output of its first trial"
        )
    elif (
        any(re.search(_JOINING, line) for line in run.last_status.details)
        and _distribution_of(run) != "none"
    ):
        hint += "; `--set distribution.type=none` runs the script in one process, as `python` does"
    message = f"`{run.name}` {word}{_after(status)}{reason}"
    show(Document([Notice("error", message, details=status.details, hint=hint)]), sys.stderr)


def _distribution_of(run: Run) -> str:
    with suppress(CloudtrainError):
        return str(run.show().job.get("distribution", {}).get("type", "none"))
    return "none"


def _after(status: RunStatus) -> str:
    return (
        f" after {duration_of(status)}"
        if status.started is not None and status.ended is not None
        else ""
    )


def _working_files(run: Run) -> dict[str, Path]:
    """Empty if they cannot be read, because the run has succeeded anyway."""
    try:
        return run.working_files
    except (OSError, CloudtrainError):
        return {}


def _words_of(work: Mapping[str, Path]) -> str:
    """Return a line with the number of working files and the name of the largest one, which may be
    the model."""
    sizes = {name: file.stat().st_size for name, file in work.items() if file.exists()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    count = (
        "1 file" if len(sizes) == 1 else f"{len(sizes)} files ({format_size(sum(sizes.values()))})"
    )
    description = (
        f"{'' if len(sizes) == 1 else 'the largest is '}`{largest}`, "
        f"{format_size(sizes.get(largest, 0))}"
    )
    return f"the script wrote {count} into its working folder: {description}"


def _downloads_of(run: Run, status: RunStatus, *, has_work: bool) -> str:
    """Return the folder to suggest for download: the checkpoint, the model, an output, or the
    working files; empty where a run of this machine wrote no file."""
    outputs = run.written
    is_stopped = status.state is RunState.STOPPED
    output = (
        "checkpoint"
        if is_stopped
        else "model"
        if not outputs or "model" in outputs
        else next(iter(outputs))
    )
    if (run.directory or Path("-")).is_dir() and not _has_files(outputs.get(output, "")):
        full = [
            name
            for name in outputs
            if re.match("model|outputs|checkpoint", name) and _has_files(outputs[name])
        ]
        output = "work/" if has_work else next(iter(full), "")
    return f"{output}/" if output in ("checkpoint", "model") else output


def _has_files(folder: str) -> bool:
    place = Path(folder)
    return bool(folder) and (place.is_file() or (place.is_dir() and any(place.iterdir())))


def follow(run: Run, *, as_json: bool = False, skip: int = 0) -> int:
    """Follow a run to its end and return the exit code. With `as_json`, print only the final status
    on stdout. The first `skip` lines of output are not printed."""
    stream = sys.stderr if as_json else sys.stdout
    with outlived_by(run, KeyboardInterrupt, OutputError, BrokenPipeError):
        form = LineFormat(prefix=not run.is_sweep)
        metrics, printed = _print(
            run,
            lambda watch: _fold_traces(islice(run.logs(follow=True, on_status=watch), skip, None)),
            form,
            stream,
        )
        status = run.wait()
    if as_json:
        print_json(status_json(run, status))
    else:
        report_end(run, status, metrics, printed)
    return exit_code(status)


def lines_so_far(run: Run) -> int:
    """The lines of output of a sweep before it continues; 0 for other runs, whose output starts
    anew."""
    return sum(1 for _ in run.logs()) if run.is_sweep else 0


def print_logs(
    run: Run,
    form: LineFormat,
    *,
    follow: bool,
    rank: int | None,
    instance: int | None,
    tail: int | None,
    selection: Selection,
) -> int:
    """Print a run's output on stdout (with `follow`, until the run ends) and return the exit code.
    `tail` is the number of newest lines to print, among the lines that match `selection`; None for
    all."""

    def selected(*, follow: bool = False, on_status: OnStatus = None) -> Iterator[LogLine]:
        return selection.of(
            run.logs(follow=follow, rank=rank, instance=instance, on_status=on_status)
        )

    with outlived_by(run, KeyboardInterrupt):
        if not follow:
            lines = selected()
            if selection == Selection():
                first = list(islice(lines, 1))
                lines = chain(first, lines)
                if not first:
                    words = [f"of rank {rank}"] if rank is not None else []
                    words += [f"of instance {instance}"] if instance is not None else []
                    say(
                        " ".join(
                            [
                                f"`{run.name}` has no output",
                                *words,
                                *(() if run.state.is_final else ("yet",)),
                            ]
                        )
                    )
            _write(
                lines if tail is None else deque(lines, maxlen=min(tail, sys.maxsize)),
                form,
                sys.stdout,
            )
            return 0
        skip = 0 if tail is None else max(0, sum(1 for _ in selected()) - tail)
        metrics, printed = _print(
            run,
            lambda watch: islice(selected(follow=True, on_status=watch), skip, None),
            form,
            sys.stdout,
        )
        if not form.as_json:
            report_end(run, run.wait(), metrics, printed)
    return 0


def _queue_news(name: str) -> Callable[[RunStatus], None]:
    """Return a function that reports on stderr when the place of the run `name` in the queue
    changes, and when the run leaves the queue and starts."""
    before: int | None = None

    def tell(status: RunStatus) -> None:
        nonlocal before
        place = status.queue_place
        if place is not None and place != before:
            say(f"`{name}` is queued: place {place}, {status.reason}")
        elif place is None and before is not None and not status.state.is_final:
            say(f"`{name}` starts")
        before = place

    return tell


def _fold_traces(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines without the traceback that a launcher prints when one of its ranks has
    failed. The report at the end of the run names the reason, and `logs` prints the whole
    traceback."""
    failing = set()
    for line in lines:
        if line.rank is None and line.text.startswith("Traceback (most recent call last)"):
            failing.add(line.instance)
        if line.rank is not None or line.instance not in failing:
            yield line


_FRAME = re.compile(r"(?:\[rank\d+\]: *)?frame #\d+: ")


def _without_frames(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines without the C++ frames that PyTorch prints, thirty for each process that
    loses another one."""
    return (line for line in lines if not _FRAME.match(line.text))


def _print(
    run: Run, lines_of: Callable[[OnStatus], Iterable[LogLine]], form: LineFormat, stream: TextIO
) -> tuple[dict[str, float], Iterable[str]]:
    """Print lines as they appear. Return the last value of each metric, and the texts of the newest
    lines. `lines_of` returns the lines; its argument is a function to call with every new status of
    the run."""
    printed: deque[str] = deque(maxlen=_SCREEN)

    def noted(lines: Iterable[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            printed.append(line.text)
            yield line

    if form.as_json or form.raw:
        return _write(noted(lines_of(_queue_news(run.name))), form, stream), printed
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return _write(
            noted(_without_frames(lines_of(_queue_news(run.name)))), form, stream
        ), printed
    with LiveView(form, stream) as live:
        for line in noted(_without_frames(lines_of(live.take_status))):
            live.show(line)
    return live.latest, printed


_SCREEN = 200
"""Lines that a terminal may still show when the run ends."""


def _write(lines: Iterable[LogLine], form: LineFormat, stream: TextIO) -> dict[str, float]:
    """Print and flush every line, so that a pipe's reader gets it at once. Return the last value of
    each metric."""
    latest: dict[str, float] = {}
    metrics = Metrics()
    for line in lines:
        stream.write(form.text(line) + "\n")
        stream.flush()
        latest |= metrics.of(line) or {}
    return latest


# The progress of an upload as one line on a terminal. Without a terminal, nothing is printed.

_PAUSE = 0.1
"""Seconds between two drawings of the line."""


def upload_progress() -> Callable[[int, int], None] | None:
    """The returned function takes the bytes sent and the total; None if stderr is not a
    terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    lock, draw_time = threading.Lock(), 0.0

    def show(amount: int, total: int) -> None:
        nonlocal draw_time
        with lock:  # parts of a large upload report from several threads
            now = time.monotonic()
            if amount < total and now - draw_time < _PAUSE:
                return
            draw_time = now
            share = amount / total if total else 1.0
            end = "\n" if amount >= total else ""
            sys.stderr.write(f"\r\033[Kuploading: {share:4.0%} of {format_size(total)}{end}")
            sys.stderr.flush()

    return show
