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
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from cloudtrain.cli.live import LineFormat, LiveView, NewValues
from cloudtrain.cli.options import LogLevel
from cloudtrain.cli.runs import outlived_by, status_json
from cloudtrain.cli.terminal import OutputError, print_json, say, show, typed
from cloudtrain.documents import JsonMapping
from cloudtrain.errors import CloudtrainError, UsageError, counted
from cloudtrain.job.model import format_size
from cloudtrain.plans.document import Document, Notice
from cloudtrain.plans.progress import OnStatus, RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import best_words, duration_of, metrics_text
from cloudtrain.runtime.metrics import PREFIX
from cloudtrain.runtime.metrics_file import FOLDER
from cloudtrain.signals.lines import PATTERNS, machine_values
from cloudtrain.signals.log import LogBatch, LogIndex
from cloudtrain.signals.rows import NewRows

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run
    from cloudtrain.lifecycle.runs.sweep import SweepRun


# Selection of the printed lines of a run's output, by pattern, time or level.

_WORDS = {
    LogLevel.warning: (
        r"\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\b\w*(?:Warning|Error|"
        r"Exception)\b:"
    ),
    LogLevel.error: r"\b(?:ERROR|CRITICAL|FATAL)\b|\b\w*(?:Error|Exception)\b:",
}
"""The levels as Python's logging, warnings and exceptions write them."""

_Source = tuple[int, int | None, str]
"""The instance, the rank and the stream of a line."""

_TRACEBACK = "Traceback (most recent call last)"


class Selection:
    """The conditions that a line must meet to be printed. Default: no condition."""

    def __init__(
        self,
        pattern: re.Pattern[str] | None = None,
        since: float | None = None,
        level: LogLevel | None = None,
    ) -> None:
        """`since`: seconds since the epoch."""
        self.since = since
        self.level = level
        self.is_empty: bool = pattern is None and since is None and level is None
        self._pattern = pattern
        self._open_tracebacks: set[_Source] = set()
        """The sources in the middle of a traceback."""

    def of(self, batches: Iterable[LogBatch]) -> Iterator[LogBatch]:
        """Yield the lines that meet all conditions. All lines of a traceback count as an error.
        Values of machines are left out, unless a pattern finds them."""
        for batch in batches:
            if self.since is not None and batch.time < self.since:
                continue
            texts = batch.texts
            if self._pattern is not None:
                texts = list(filter(self._pattern.search, texts))
            else:
                texts = [text for text in texts if machine_values(text) is None]
            if self.level is not None:
                texts = [text for text in texts if self._is_grave(batch, text, self.level)]
            if texts:
                yield batch._replace(texts=texts)

    def newest(self, index: LogIndex, most: int) -> list[LogBatch]:
        """Return the newest `most` of these lines, the oldest first."""
        if self.level is None:
            batches = self.of(index.newest(self.since))
        else:  # tracebacks are read from the top
            all_batches = (batch for _, batch in index.batches())
            batches = reversed(list(self.of(all_batches)))

        found: list[LogBatch] = []
        left = most
        while left > 0 and (batch := next(batches, None)) is not None:
            found.append(batch._replace(texts=batch.texts[-left:]))
            left -= len(batch.texts)
        return found[::-1]

    def _is_grave(self, batch: LogBatch, text: str, level: LogLevel) -> bool:
        """Return whether a line has the level, or belongs to a traceback."""
        source = (batch.instance, batch.rank, batch.stream)
        if _TRACEBACK in text:
            self._open_tracebacks.add(source)
            return True
        if source in self._open_tracebacks:
            if text[:1] not in (" ", "\t", ""):  # the exception itself ends it
                self._open_tracebacks.discard(source)
            return True
        return re.search(_WORDS[level], text) is not None


def pattern_of(text: str | None) -> re.Pattern[str] | None:
    """Raises UsageError if the text is not a regular expression."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        hint = (
            "to search for the text itself, put a backslash before special characters: "
            f"`{re.escape(text)}`"
        )
        message = f"`{text}` is not a regular expression: {error}"
        raise UsageError(message, hint=hint, code="CT909") from None


def instance_number(text: str | None) -> int | None:
    """Return the number of an instance, counted from 0. The text is that number, or a host name of
    SageMaker such as `algo-1`, which is instance 0."""
    if text is None:
        return None
    number = text.removeprefix("algo-")
    first = 0 if number == text else 1  # the names of hosts count from 1
    if re.fullmatch("[0-9]{1,9}", number) and int(number) >= first:
        return int(number) - first
    hint = (
        "write the instance's number, counted from 0, or on SageMaker its host name, such as "
        "`algo-1`"
    )
    raise UsageError(f"`{text}` is not a valid instance", hint=hint, code="CT909")


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
        details = set(map(str.rstrip, status.details))
        if details <= set(map(str.rstrip, printed)):  # they are still on the screen
            status = replace(status, details=())
        _report_failure(run, status)
        return

    is_stopped = status.state is RunState.STOPPED
    # the status of a run on this machine has all of them
    if run.directory is not None and status.metrics:
        metrics = status.metrics
    values = metrics_text(metrics or status.metrics)
    if is_stopped and status.started is None and status.reason:
        if not run.is_sweep:
            say(f"`{run.name}` was stopped: {status.reason}")
            return  # no process has started, so there is nothing to read or download
        values = status.reason  # such as the run that it waited for
    elif run.is_sweep:
        best = best_words(status.metrics)
        words = (f"best {best}" if best else "", status.reason)
        values = "; ".join(filter(None, words))

    word = "was stopped" if is_stopped else str(status.state)
    result = f"`{run.name}` {word}{_after(status)}"
    if values:
        result += f": {values}"
    say(result)

    if run.is_sweep:
        source = None
        trial = status.metrics.get("best_trial")
        if trial is not None:
            with suppress(CloudtrainError):
                source = cast("SweepRun", run).trial(int(trial))
        next_words = typed("cloudtrain", "trials", run.name)
    else:
        source = run
        next_words = typed("cloudtrain", "logs", run.name)
    if source is not None:
        work: dict[str, Path] = {}
        with suppress(OSError, CloudtrainError):  # the run has succeeded anyway
            work = source.working_files
        folder = _folder_to_download(source, status, has_work=bool(work))
        if work:
            _say_working_files(run, work)
        if folder:
            next_words += f", {typed('cloudtrain', 'download', run.name, folder)}"
    say(f"next: {next_words}")


def _say_working_files(run: Run, work: Mapping[str, Path]) -> None:
    """Say which files the script left in its working folder. The largest may be the model."""
    sizes = {name: file.stat().st_size for name, file in work.items() if file.exists()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    count = counted(len(sizes), "file")
    total = format_size(sum(sizes.values()))
    say(
        f"the script wrote {count} ({total}) into its working folder, such as `{largest}`; "
        f"{typed('cloudtrain', 'download', run.name, 'work/')} copies the folder"
    )
    keep = "pass the script the folder '${{outputs.model}}', or save in `runtime.model_dir()`"
    say(f"a cloud would lose it: {keep}")


_JOINING = r"\b(init_process_group|set_device)\("
"""A line of a traceback in which a script begins to work with others. It does so if it finds the
variable RANK."""


def _report_failure(run: Run, status: RunStatus) -> None:
    word = "was lost" if status.state is RunState.LOST else "failed"
    message = f"`{run.name}` {word}{_after(status)}"
    if status.reason:
        message += f": {status.reason}"
    notice = Notice("error", message, details=status.details, hint=_hint_of_failure(run, status))
    show(Document([notice]), sys.stderr)


def _hint_of_failure(run: Run, status: RunStatus) -> str:
    """Return the command that shows more, and for a script that joined others in vain how to run it
    alone."""
    if run.is_sweep:
        if f"continue {run.name}" in (status.reason or ""):  # its driver failed, not its trials
            return f"{typed('cloudtrain', 'trials', run.name)} lists its trials"
        command = typed("cloudtrain", "logs", run.name, "--trial", "1")
        return f"{command} prints the whole output of its first trial"

    words = ["cloudtrain", "logs", run.name]
    if status.failed_rank is not None:
        words += ["--rank", str(status.failed_rank)]
    hint = f"{typed(*words)} prints its whole output"

    for pattern, advice in _ADVICE.items():
        if re.search(pattern, status.reason or ""):
            return f"{advice}; {hint}"
    joins = any(re.search(_JOINING, line) for line in run.last_status.details)
    if joins and _distribution_of(run) != "none":
        hint += "; `--set distribution.type=none` runs the script in one process, as `python` does"
    return hint


_ADVICE = {
    "(?i)out of memory": (
        "`cloudtrain fit` with the job says what needs the memory, and with `--all` the cheapest "
        "instance type that holds it"
    ),
    "No module named": (
        "list its package in `requirements.txt`, or name the file that lists it: `--set "
        "environment.requirements=pyproject.toml`; for a package in `src`: `--set "
        "environment.variables.PYTHONPATH=src`"
    ),
    "no attribute '_cuda_|not compiled with CUDA|No CUDA GPUs|no NVIDIA driver": (
        "the script needs a GPU, and a PyTorch that is built for it"
    ),
    "relative import with no known parent": (
        "start it as a module of its package: `cloudtrain submit -m PACKAGE.MODULE`"
    ),
    "variable (RANK|WORLD_SIZE|MASTER_ADDR) expected|KeyError: '((LOCAL_)?RANK|WORLD_SIZE)'": (
        "a launcher sets this variable: `--nproc 1` starts the script under torchrun"
    ),
    "KeyError: 'SLURM_": (
        "only Slurm sets this variable: read `RANK`, `LOCAL_RANK` and `WORLD_SIZE`, which are set "
        "on every target"
    ),
    "KeyError: 'SM_": "only SageMaker sets this variable: `--emulate sagemaker` sets it here",
    "KeyError: 'AZUREML_": "only Azure ML sets this variable: `--emulate azureml` sets it here",
}
"""What to do about a reason for a failure. The first pattern that the reason contains counts."""


def _distribution_of(run: Run) -> str:
    """Return the type of the run's `distribution`; `none` also if the job cannot be read."""
    with suppress(CloudtrainError):
        return str(run.show().job.get("distribution", {}).get("type", "none"))
    return "none"


def _after(status: RunStatus) -> str:
    """Return how long the run took, as ` after 3m`; empty if it is unknown."""
    if status.started is None or status.ended is None:
        return ""
    return f" after {duration_of(status)}"


def _folder_to_download(run: Run, status: RunStatus, *, has_work: bool) -> str:
    """Return the folder to suggest for download: the checkpoint, the model, an output, or the
    working files; empty where a run of this machine wrote no file."""
    outputs = run.written
    if status.state is RunState.STOPPED:
        output = "checkpoint"
    elif not outputs or "model" in outputs:
        output = "model"
    else:
        output = next(iter(outputs))

    # what a run elsewhere has written is not known here
    is_here = run.directory is not None and run.directory.is_dir()
    if is_here and not _has_files(outputs.get(output, "")):
        names = (name for name in outputs if re.match("model|outputs|checkpoint", name))
        output = next((name for name in names if _has_files(outputs[name])), "")
        if has_work:
            output = "work/"
    return f"{output}/" if output in ("checkpoint", "model") else output


def _has_files(output: str) -> bool:
    """Return whether the output, a folder or a file, holds anything; False for an empty path."""
    place = Path(output)
    if not output:
        return False
    return place.is_file() or (place.is_dir() and any(place.iterdir()))


def follow(run: Run, *, as_json: bool = False, skip: int = 0) -> int:
    """Follow a run to its end and return the exit code. With `as_json`, print only the final status
    on stdout. The first `skip` lines of output are not printed."""
    stream = sys.stderr if as_json else sys.stdout

    def batches(watch: OnStatus) -> Iterator[LogBatch]:
        return _fold_traces(run.log_batches(follow=True, on_status=watch, skip=skip))

    with outlived_by(run, KeyboardInterrupt, OutputError, BrokenPipeError):
        form = LineFormat(prefix=not run.is_sweep)
        metrics, printed = _print(run, batches, form, stream)
        status = run.wait()
    if as_json:
        print_json(status_json(run, status))
    else:
        report_end(run, status, metrics, printed)
    return exit_code(status)


def lines_so_far(run: Run) -> int:
    """The lines of output of a sweep before it continues; 0 for other runs, whose output starts
    anew."""
    return len(run.log_index()) if run.is_sweep else 0


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
    earlier: list[LogBatch] = []
    index: LogIndex | None = None
    skip = 0

    def batches(on_status: OnStatus = None) -> Iterator[LogBatch]:
        yield from earlier
        new = run.log_batches(
            follow=follow, rank=rank, instance=instance, on_status=on_status, skip=skip
        )
        yield from selection.of(new)

    with outlived_by(run, KeyboardInterrupt):
        if tail is not None or selection.since is not None:
            index = run.log_index(rank=rank, instance=instance)
            earlier = selection.newest(index, len(index) if tail is None else tail)
            skip = len(index)
        if follow:
            metrics, printed = _print(run, batches, form, sys.stdout)
            if not form.as_json:
                report_end(run, run.wait(), metrics, printed)
            return 0

        # otherwise, the conditions may leave out all lines
        may_be_empty = not selection.is_empty or tail == 0
        for batch in batches() if index is None else earlier:
            sys.stdout.write(form.batch(batch))
            may_be_empty = True
        if not may_be_empty:
            words = f"`{run.name}` has no output"
            if rank is not None:
                words += f" of rank {rank}"
            if instance is not None:
                words += f" of instance {instance}"
            say(words if run.state.is_final else f"{words} yet")
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


def _fold_traces(batches: Iterable[LogBatch]) -> Iterator[LogBatch]:
    """Yield the lines without the traceback that a launcher prints when one of its ranks has
    failed. The report at the end of the run names the reason, and `logs` prints the whole
    traceback."""
    failing = set()
    for batch in batches:
        if batch.rank is not None:
            yield batch
            continue
        # lines without a rank are those of an instance's launcher
        texts = []
        for text in batch.texts:
            if text.startswith(_TRACEBACK):
                failing.add(batch.instance)
            if batch.instance not in failing:
                texts.append(text)
        if texts:
            yield batch._replace(texts=texts)


_FRAME = re.compile(r"(?:\[rank\d+\]: *)?frame #\d+: ")


def _without_frames(batches: Iterable[LogBatch]) -> Iterator[LogBatch]:
    """Yield the lines without the C++ frames that PyTorch prints, thirty for each process that
    loses another one."""
    for batch in batches:
        texts = [text for text in batch.texts if not _FRAME.match(text)]
        if texts:
            yield batch._replace(texts=texts)


def _print(
    run: Run,
    batches_of: Callable[[OnStatus], Iterable[LogBatch]],
    form: LineFormat,
    stream: TextIO,
) -> tuple[dict[str, float], Iterable[str]]:
    """Print lines as they appear, on a terminal with the live view. Return the last value of each
    metric, and the texts of the newest lines.

    `batches_of` returns the lines; its argument is a function to call with every new status of the
    run.
    """
    printed: deque[str] = deque(maxlen=_SCREEN)

    def noted(batches: Iterable[LogBatch]) -> Iterator[LogBatch]:
        for batch in batches:
            printed.extend(batch.texts[-_SCREEN:])
            yield batch

    is_exact = form.as_json or form.raw
    if is_exact or not _is_screen(stream):
        batches = batches_of(_queue_news(run.name))
        if not is_exact:
            batches = _without_frames(batches)
        latest: dict[str, float] = {}
        for batch in noted(batches):
            stream.write(form.batch(batch))
            stream.flush()  # so that a pipe's reader gets it at once
            if PREFIX in "\n".join(batch.texts):
                for line in batch.lines():
                    latest |= line.metrics or {}
        return latest, printed

    new_rows: NewValues = list
    if run.directory is not None:
        new_rows = NewRows(str(run.directory / FOLDER), (PATTERNS,)).read
    job: JsonMapping | None = None
    with suppress(CloudtrainError):  # such as for a run that another machine submitted
        job = None if run.is_sweep else run.show().job
    with LiveView(form, stream, new_rows, job) as live:
        batches = _without_frames(batches_of(live.take_status))
        for batch in noted(batches):
            for line in batch.lines():
                live.show(line)
    return live.latest, printed


def _is_screen(stream: TextIO) -> bool:
    """Return whether the stream is a terminal on which lines can be drawn again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


_SCREEN = 200
"""Lines that a terminal may still show when the run ends."""


# The progress of an upload as one line on a terminal. Without a terminal, nothing is printed.

_PAUSE = 0.1
"""Seconds between two drawings of the line."""


def upload_progress() -> Callable[[int, int], None] | None:
    """Return a function that draws the line for a number of bytes sent and the total; None if
    stderr is not a terminal."""
    if not _is_screen(sys.stderr):
        return None
    lock = threading.Lock()
    draw_time = 0.0

    def show(amount: int, total: int) -> None:
        nonlocal draw_time
        with lock:  # parts of a large upload report from several threads
            now = time.monotonic()
            if amount < total and now - draw_time < _PAUSE:
                return
            draw_time = now

            share = amount / total if total else 1.0
            sys.stderr.write(f"\r\033[Kuploading: {share:4.0%} of {format_size(total)}")
            if amount >= total:
                sys.stderr.write("\n")
            sys.stderr.flush()

    return show
