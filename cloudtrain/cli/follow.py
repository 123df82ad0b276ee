"""Following a run: its output as it appears, and its metrics as a live view on a terminal. Ctrl-C does not stop the
run."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, TextIO

from cloudtrain.cli.failures import EXIT_INTERRUPTED
from cloudtrain.cli.lines import LineFormat
from cloudtrain.cli.report import exit_code, goes_on, report_end, status_json
from cloudtrain.cli.selection import EVERY_LINE, Selection
from cloudtrain.cli.streams import OutputError
from cloudtrain.cli.terminal import print_json, say

if TYPE_CHECKING:
    from cloudtrain.core.states import LogLine, RunStatus
    from cloudtrain.lifecycle.run import Run

    OnStatus = Callable[[RunStatus], None] | None


def follow(run: Run, *, as_json: bool = False, skip: int = 0) -> int:
    """Follow a run to its end and return the exit code. With `as_json`, print only the final status on stdout. The
    first `skip` lines of output are not printed."""
    stream = sys.stderr if as_json else sys.stdout
    try:
        form = LineFormat(prefix=not run.is_sweep)
        metrics = _print(
            run, lambda told: _fold_traces(islice(run.logs(follow=True, on_status=told), skip, None)), form, stream
        )
        status = run.wait()
    except KeyboardInterrupt:
        goes_on(run)
        return EXIT_INTERRUPTED
    except (OutputError, BrokenPipeError):
        goes_on(run)
        raise
    if as_json:
        print_json(status_json(run, status))
    else:
        report_end(run, status, metrics)
    return exit_code(status)


def lines_so_far(run: Run) -> int:
    """Return the number of lines of output that a sweep has before it continues; 0 for other runs, whose output
    starts anew."""
    return sum(1 for _ in run.logs()) if run.is_sweep else 0


def print_logs(
    run: Run,
    form: LineFormat,
    *,
    follow: bool,
    rank: int | None,
    instance: int | None,
    tail: int | None,
    selection: Selection = EVERY_LINE,
) -> int:
    """Print a run's output on stdout (with `follow`, until the run ends) and return the exit code. `tail` is the
    number of newest lines to print, among the lines that match `selection`; None for all."""

    def selected(*, follow: bool = False, on_status: OnStatus = None) -> Iterator[LogLine]:
        return selection.of(run.logs(follow=follow, rank=rank, instance=instance, on_status=on_status))

    try:
        if not follow:
            lines = selected()
            if selection == EVERY_LINE:
                first = list(islice(lines, 1))
                lines = chain(first, lines)
                if not first:
                    say(_without_output(run, rank, instance))
            _write(lines if tail is None else deque(lines, maxlen=min(tail, sys.maxsize)), form, sys.stdout)
            return 0
        skipped = 0 if tail is None else max(0, sum(1 for _ in selected()) - tail)
        metrics = _print(
            run, lambda told: islice(selected(follow=True, on_status=told), skipped, None), form, sys.stdout
        )
        if not form.as_json:
            report_end(run, run.wait(), metrics)
        return 0
    except KeyboardInterrupt:
        goes_on(run)
        return EXIT_INTERRUPTED


def _without_output(run: Run, rank: int | None, instance: int | None) -> str:
    words = [f"of rank {rank}"] if rank is not None else []
    words += [f"of instance {instance}"] if instance is not None else []
    return " ".join([f"`{run.name}` has no output", *words, *(() if run.state.is_final else ("yet",))])


class _QueueNews:
    """Reports on stderr when a followed run's place in the queue changes and when the run starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._place: int | None = None

    def tell(self, status: RunStatus) -> None:
        """Report the run's place in the queue if it has changed, or that the run has left the queue and starts."""
        place = status.queue_place
        if place is not None and place != self._place:
            say(f"`{self._name}` is queued: place {place}, {status.reason}")
        elif place is None and self._place is not None and not status.state.is_final:
            say(f"`{self._name}` starts")
        self._place = place


def _fold_traces(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines without the traceback that a launcher prints when one of its ranks has failed. The report at the
    end of the run names the reason, and `logs` prints the whole traceback."""
    failing = set()
    for line in lines:
        if line.rank is None and line.text.startswith("Traceback (most recent call last)"):
            failing.add(line.instance)
        if line.rank is not None or line.instance not in failing:
            yield line


def _print(
    run: Run, lines_of: Callable[[OnStatus], Iterable[LogLine]], form: LineFormat, stream: TextIO
) -> dict[str, float]:
    """Print lines as they appear and return the last value of each metric. `lines_of` returns the lines; its argument
    is a function to call with every new status of the run."""
    if form.as_json or form.raw or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return _write(lines_of(_QueueNews(run.name).tell), form, stream)
    from cloudtrain.cli.live import LiveView

    with LiveView(form, stream) as live:
        for line in lines_of(live.take_status):
            live.show(line)
    return live.latest


def _write(lines: Iterable[LogLine], form: LineFormat, stream: TextIO) -> dict[str, float]:
    """Print and flush every line, so that a pipe's reader gets it at once. Return the last value of each metric."""
    from cloudtrain.core.states import Metrics

    latest: dict[str, float] = {}
    metrics = Metrics()
    for line in lines:
        stream.write(form.text(line) + "\n")
        stream.flush()
        latest |= metrics.of(line) or {}
    return latest
