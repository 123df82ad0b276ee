"""Runs, as the page gets them: one with all that is known of it, and the list of all."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloudtrain.api import diff
from cloudtrain.errors import CloudtrainError, RunNotFound, UsageError
from cloudtrain.lifecycle.runs.costs import is_free
from cloudtrain.lifecycle.runs.find import run as find_run
from cloudtrain.lifecycle.runs.overview import Overview, StoredRun, overview, previous_of
from cloudtrain.lifecycle.runs.run import ChainedRun, Run
from cloudtrain.lifecycle.runs.sweep import SweepRun, sweep_document
from cloudtrain.page.feed import pause_of
from cloudtrain.page.forms import Packed, document_data, pack
from cloudtrain.plans.chart import heights
from cloudtrain.plans.progress import PLACES, MetricSummary, RunStatus, Trial, best_of
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import PROGRESS, run_document
from cloudtrain.signals.curves import thin
from cloudtrain.signals.log import JournalIndex, LogIndex
from cloudtrain.signals.rows import Column, MetricRows
from cloudtrain.signals.stacks import stacks_document


def details(run: Run, status: RunStatus) -> dict[str, Any]:
    """Return the state of a run, without its curves and its output."""
    answer: dict[str, Any] = {
        "name": run.name,
        "ref": str(run.ref),
        "job": run.job_name,
        "target": run.target,
        "state": status.state,
        "reason": status.reason,
        "created": run.created,
        "started": status.started,
        "ended": status.ended,
        "is_final": status.state.is_final,
        "is_free": is_free(run.target),
        "can_continue": can_continue(run, status),
        "every": pause_of(run),
        "sweep": run.is_sweep,
        "page": status.page,
        "progress": None if status.progress is None else status.progress._asdict(),
        "failed_rank": status.failed_rank,
        "cost": status.cost,
        "notices": [notice._asdict() for notice in status.notices],
        "phases": [phase._asdict() for phase in status.transitions],
    }
    if not isinstance(run, SweepRun):
        page = run_document(run.name, str(run.ref), status, {"job": run.job_name})
        answer["status"] = document_data(page)
        return answer
    trials = run.trials()
    objective = run.objective
    best = best_of(trials, objective)
    answer["status"] = document_data(sweep_document(run, status, trials))
    answer["trials"] = list(map(Trial.row, trials))
    answer["objective"] = None if objective is None else objective.metric
    answer["best"] = None if best is None else best.number
    return answer


def can_continue(run: Run, status: RunStatus) -> bool:
    """Return whether a run is a sweep that has ended, or waits for others without a watcher."""
    if isinstance(run, ChainedRun):
        return run.waits and status.state is RunState.LOST
    return run.is_sweep and status.state.is_final


def sent(run: Run) -> dict[str, Any]:
    """Return what was sent for a run, and what has changed since the run before it of the same job.
    Raises RunNotFound without a record."""
    answer: dict[str, Any] = {"document": document_data(run.show().document())}
    answer |= {"before": None, "changes": None}
    before = previous_of(run)
    if before is not None:
        with suppress(CloudtrainError):  # such as a run without a record
            answer["changes"] = document_data(diff(before, run.name).document())
            answer["before"] = before
    return answer


def compared(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the metrics of runs, by the run."""
    return {run.name: curves(run.metrics(), ()) for run in runs}


def stacks(run: Run) -> list[Any]:
    """Return where each rank is in its code now. Raises UsageError if the run is over."""
    return document_data(stacks_document(run.stacks()))


# Curves.


def curves(
    rows: MetricRows, names: Sequence[str], start: float = -math.inf, end: float = math.inf
) -> dict[str, Any]:
    """Return metrics, or those of these names, between two steps. Steps that are not known are
    counted. Of long curves, the lowest and the highest value of each part are kept."""
    columns = rows.columns()
    epochs = _Epochs(columns.get("epoch"))
    found = {}
    for name, column in columns.items():
        if name in (*PLACES, *PROGRESS) or (names and name not in names):
            continue
        steps = [
            position if math.isnan(step) else step
            for position, step in enumerate(column.step, start=1)
        ]
        places = [
            position
            for position, value in enumerate(column.value)
            if start <= steps[position] <= end and math.isfinite(value)
        ]
        kept = [places[index] for index in thin([column.value[place] for place in places])]
        found[name] = {
            "source": column.source,
            "rank": column.rank,
            "number": len(column.value),
            "step": [steps[place] for place in kept],
            "time": [column.time[place] for place in kept],
            "epoch": epochs.at(column, kept),
            "value": [column.value[place] for place in kept],
            "last": column.value[-1],
        }
    return found


class _Epochs:
    """Where each epoch begins: a script may report it with each step, or once."""

    def __init__(self, column: Column | None) -> None:
        self._has_steps = column is not None and not math.isnan(column.step[0])
        self._marks: list[tuple[float, float]] = []
        """The first step, or else the first time, of each epoch."""
        if column is None:
            return
        for place, epoch in zip(self._places(column), column.value, strict=True):
            before = self._marks[-1] if self._marks else (-math.inf, -math.inf)
            if place > before[0] and epoch > before[1]:
                self._marks.append((place, epoch))

    def _places(self, column: Column) -> Sequence[float]:
        return column.step if self._has_steps else column.time

    def at(self, column: Column, positions: Sequence[int]) -> list[float] | None:
        """Return the epoch of each of these values of a metric, with the part of it that is over;
        None if it is not known."""
        places = self._places(column)
        is_known = len(self._marks) > 1 and not math.isnan(sum(places))
        return [self._at(places[index]) for index in positions] if is_known else None

    def _at(self, place: float) -> float:
        found = bisect_left(self._marks, (place,))
        # before the first mark and after the last one, the pace is that of the nearest epoch
        index = min(max(1, found), len(self._marks) - 1)
        first_place, first_epoch = self._marks[index - 1]
        next_place, next_epoch = self._marks[index]
        pace = (next_epoch - first_epoch) / (next_place - first_place)
        return first_epoch + (place - first_place) * pace


# Output.

_LONGEST = 4000
"""Characters of a line of output that are sent. The download has all of them."""

_ERROR = re.compile(
    r"Traceback|[A-Z]\w*Error\b|\b[Ee]rror\b|ERROR|CRITICAL|FATAL|Exception", re.ASCII
)

_AGAIN = 30.0
"""Seconds after which the log of another machine is asked for again."""

_LATE = 120.0
"""Seconds after the end of a run within which lines of its log may still arrive."""


class OpenLog:
    """The output of a run or of one rank. It is kept between two looks, so that a look reads only
    what is new. A service gives only whole logs, so it is asked rarely."""

    def __init__(self, name: str, rank: int | None) -> None:
        self._run = find_run(name)
        self._rank = rank
        self._lock = threading.Lock()
        self._index = LogIndex()
        self._due = -math.inf

    def window(self, first: int, count: int) -> dict[str, Any]:
        """Return `count` lines from the number `first` on; from the end if it is negative."""
        with self._lock:
            self._update()
            total = len(self._index)
            if first < 0:
                first = max(0, total + first)
            found = self._index.window(first, count)
        lines = [[line.time, line.rank, line.stream, line.text[:_LONGEST]] for line in found]
        return {"total": total, "first": first, "lines": lines}

    def find(self, text: str | None, first: int) -> dict[str, Any]:
        """Return the number of the next line that has the text, or without a text, that looks like
        an error; None if there is none."""
        # an expression of a person could take forever
        pattern = _ERROR if text is None else re.compile(re.escape(text), re.IGNORECASE)
        with self._lock:
            self._update()
            return {"line": self._index.find(pattern, first)}

    def _update(self) -> None:
        if time.monotonic() < self._due:
            self._index.update()
            return
        status = self._run.status()  # before the log, which may be complete when it is final
        self._index = self._run.log_index(rank=self._rank)
        is_late = time.time() - (status.ended or 0.0) > _LATE
        is_complete = status.state.is_final and is_late
        is_growing = isinstance(self._index, JournalIndex)
        self._due = math.inf if is_complete or is_growing else time.monotonic() + _AGAIN


# Code and files.

_LARGEST_TEXT = 1_000_000
"""Bytes of a file of code that is shown."""


def code(run: Run) -> dict[str, Any]:
    """Return the files of the code as it was submitted, and whether they can be opened here."""
    files = [{"path": file.path, "size": file.size} for file in run.show().files]
    return {"files": files, "is_here": run.directory is not None}


def code_file(run: Run, path: str) -> dict[str, str]:
    """Return the text of a file of the code as it was submitted.

    Raises:
        RunNotFound: the code has no such file.
        UsageError: the file is on another machine, or no text.
        TargetError: the code no longer exists.
    """
    sizes = {file.path: file.size for file in run.show().files if file.target is None}
    hint = f"`cloudtrain code {run.name} ./code` writes all of it into a folder"
    if path not in sizes:
        raise RunNotFound(f"the code of `{run.name}` has no file `{path}`", hint=hint)
    if run.directory is None:
        raise UsageError(f"the code of `{run.name}` is kept by {run.target}", hint=hint)
    if sizes[path] > _LARGEST_TEXT:
        raise UsageError(f"`{path}` has more than a million bytes", hint=hint)
    with TemporaryDirectory(prefix="cloudtrain-") as folder:
        run.save_code(folder, only=[path])
        content = Path(folder, path).read_bytes()
    if b"\0" in content:
        raise UsageError(f"`{path}` is no text", hint=hint)
    return {"path": path, "text": content.decode("utf-8", "replace")}


def files(run: Run) -> list[dict[str, Any]]:
    """Return the files of a run on this machine, with their sizes. Links are left out: they may
    lead out of the run."""
    found = []
    for shown, path in _files(run):
        with suppress(OSError):  # removed meanwhile
            found.append({"path": shown, "size": path.stat().st_size})
    return found


def file_of(run: Run, shown: str) -> Path | None:
    """Return the place of a file that `files` lists; None for any other path."""
    return next((path for name, path in _files(run) if name == shown), None)


def _files(run: Run) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run, each with the path that is shown: outputs, working files, logs."""
    if run.directory is None:
        return
    folders = {name: Path(place) for name, place in run.written.items()}
    folders["logs"] = run.directory / "logs"
    for name, folder in folders.items():
        for place, _, names in os.walk(folder):
            for file in sorted(names):
                path = Path(place, file)
                if path.is_file() and not path.is_symlink():
                    yield f"{name}/{path.relative_to(folder)}", path
    with suppress(CloudtrainError):  # the folder is damaged
        for name, path in run.working_files.items():
            if not path.is_symlink():
                yield f"work/{name}", path


# The list of runs.

Row = dict[str, Any]
"""A run, or what the page is told of runs, as JSON."""

_LEVELS = "0123456789abcdef"
"""The heights of a trend, one character each: of 10,000 runs, numbers would take 6 MB."""


class Listing:
    """The rows of all runs. They are kept between two looks: those of 10,000 runs take 0.3 s."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._revision: int | None = None
        self._rows: dict[str, Row] = {}
        """By the run's name, the newest last."""
        self._changed: dict[str, int] = {}
        """The revision at which each row was read, the newest last."""
        self._packed: Packed | None = None

    def runs(self, since: int | None = None, newest: int | None = None) -> Row:
        """Return the runs with what the store knows of them, newest first: all, those that changed
        after a revision, or the newest ones."""
        with self._lock:
            number = self._update()
            rows = list(reversed(self._rows.values()))
            if since is not None:
                newest_first = reversed(self._changed.items())
                changed = takewhile(lambda item: item[1] > since, newest_first)
                rows = [self._rows[name] for name, _ in changed]
            return {"revision": self._revision, "number": number, "runs": rows[:newest]}

    def packed(self) -> Packed:
        """Return all runs as they are sent. Until something changes, they are packed once: 10,000
        take 0.1 s."""
        with self._lock:
            self._update()
            if self._packed is None:
                self._packed = pack(self.runs())
            return self._packed

    def _update(self) -> int:
        """Read what has changed, and return how many runs there are."""
        seen = overview(changed_since=self._revision)
        self._take(seen)
        if len(self._rows) != seen.number:  # some were removed
            self._rows.clear()
            self._changed.clear()
            self._revision = None
            seen = overview()
            self._take(seen)
        return seen.number

    def _take(self, seen: Overview) -> None:
        for stored in reversed(seen.runs):
            name = stored.record.name
            self._rows[name] = _row(stored)
            self._changed.pop(name, None)
            self._changed[name] = seen.revision
        if seen.revision != self._revision:
            self._packed = None
        self._revision = seen.revision


def _row(stored: StoredRun) -> Row:
    """Return a run as JSON data. What is empty is left out, because the list is long."""
    record = stored.record
    summary = record.summary
    cost = stored.cost
    is_over = RunState(record.state).is_final
    row = {
        "name": record.name,
        "job": record.job_name,
        "target": record.target,
        "state": record.state,
        "created": record.created,
        "started": record.started,
        "ended": record.ended,
        "reason": record.reason,
        "metrics": record.last_metrics,
        "main": None if summary is None else _main(summary),
        "folder": stored.folder,
        "tags": stored.tags,
        "hyperparameters": stored.hyperparameters,
        "cost": None if cost is None else cost.billed,
        "estimate": None if cost is None or not is_over else cost.estimated,
        "hourly": None if is_over else stored.hourly,
        "note": stored.note,
        "pinned": stored.is_pinned,
        "sweep": stored.is_sweep,
    }
    return {name: value for name, value in row.items() if value}


def _main(summary: MetricSummary) -> Row:
    """Return what the list shows of the main metric."""
    trend = ""
    for height in heights(summary.trend):
        trend += _LEVELS[int(15 * height)]
    return {
        "name": summary.name,
        "last": summary.last,
        "best": summary.best,
        "trend": trend,
    }
