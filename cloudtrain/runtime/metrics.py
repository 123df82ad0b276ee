"""Metric lines such as `[metrics] step=10 epoch=1 loss=0.25`. Rank 0 prints them for users,
services and cloudtrain."""

from __future__ import annotations

import atexit
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from threading import Event, RLock, Thread
from typing import Any, Literal, SupportsFloat

from .errors import SetupError
from .metrics_file import RUNTIME, MetricWriter, metrics_folder
from .pace import OWN, publish

PREFIX = "[metrics]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_VALUES = re.compile(r"(?: [A-Za-z_][A-Za-z0-9_./-]*=[^\s=]+)+\s*")


def report(ranks: Literal["main", "every"] = "main", /, **values: SupportsFloat) -> None:
    """Write the values into the run's metrics, and print them as one line on rank 0.

    Call it on every rank, so that cloudtrain can show which rank of a run falls behind. Rank 0
    writes all values, another rank only its newest step, once a second; `report("every", ...)`
    writes the values of every rank. If you pass `total`, the number of the last step, the line also
    has `seconds_left`. `cloudtrain status` shows `total` and `seconds_left` as progress.

    Where the run has a folder, as on this machine, every value is written into its `metrics/`, and
    at most ten lines a second are printed, the first and the last among them. Elsewhere every line
    is printed. Values may be numbers, tensors with one element or numpy scalars.

    Raises:
        ValueError: a name has a character that a metric line does not allow, there are no values,
            or `ranks` is neither `main` nor `every`.
    """
    if ranks not in ("main", "every"):
        raise ValueError(f"`{ranks}` is neither `main` nor `every`; values have a name: loss=0.25")
    reporter = _reporter_of(os.environ.get("RANK"), os.environ.get("CLOUDTRAIN_RUN_DIR"))
    reporter.report(values, of_every_rank=ranks == "every")


def check_finite(step: float, **values: SupportsFloat) -> None:
    """Check that the training has not diverged. Call it on every rank with the same values, for
    example the norm of the gradient, before you save a checkpoint: otherwise checkpoints of a
    diverged training replace the good ones.

    Raises:
        SetupError: a value is infinite or not a number.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise SetupError(
                f"`{name}` is {float(value)} at step {step}: the training has diverged",
                hint="lower the learning rate, and run it again: it resumes from the newest "
                "checkpoint",
            )


_LINES = 10
"""The most lines that are printed in a second."""

_FLUSH_EVERY = 0.5
_NOTE_EVERY = 1.0
"""Seconds between two writes into the metrics: of what rank 0 reports, and of other ranks."""

_PATIENCE = 2.0
"""Seconds for which a process waits at its end for a file that cannot be written."""


class _Reporter:
    """What `report` keeps of this process from call to call."""

    def __init__(self) -> None:
        from .environment import detect_environment
        from .taking_part import take_part

        take_part()
        environment = detect_environment()
        self._is_main = environment.is_main
        # a look at a variable takes a tenth of the time of a call
        self._sends = "MLFLOW_TRACKING_TOKEN" in os.environ  # as in every job of Azure ML
        self._holds = "CLOUDTRAIN_HOLD_AT_STEP" in os.environ
        self._known: set[str] = set()
        self._newest: tuple[dict[str, float], float] | None = None
        """What another rank than 0 has reported last, and when."""
        self._printing = RLock()
        self._printed: deque[float] = deque([-math.inf] * _LINES, maxlen=_LINES)
        self._unprinted: dict[str, float] = {}
        """The newest values, as long as their line is not printed."""
        self._is_written = False
        """Whether the values reach the file, so that not every line must be printed."""
        self._writer: MetricWriter | None = None
        folder = metrics_folder()
        if folder is not None:
            place = f"rank{environment.rank}"
            if environment.node_count > environment.world_size:  # each is rank 0
                place = f"instance{environment.node_rank}"
            self._writer = MetricWriter(folder, RUNTIME, place)
            self._start()

    def _start(self) -> None:
        """Write from a thread, so that no step waits for a file."""
        self._is_written = True
        end = Event()
        thread = Thread(target=self._work, args=(end,), name="cloudtrain-metrics", daemon=True)
        thread.start()

        def finish() -> None:
            end.set()
            thread.join(_PATIENCE)

        atexit.register(finish)
        # a process of multiprocessing calls only its own handlers
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:
            processes.Finalize(None, finish, exitpriority=0)

    def _work(self, end: Event) -> None:
        """Write what was reported, until the process ends."""
        assert self._writer is not None
        is_over = False
        while not is_over:
            is_over = end.wait(_FLUSH_EVERY if self._is_main else _NOTE_EVERY)
            publish()
            newest = self._newest
            if newest is not None:
                self._newest = None
                self._writer.add(*newest)
            try:
                self._writer.flush()
                self._is_written = True
            except OSError:  # such as a full disk: training goes on, and every line is printed
                self._is_written = False
            with self._printing:
                if self._unprinted:
                    self._print(self._unprinted)

    def report(self, values: Mapping[str, SupportsFloat], *, of_every_rank: bool) -> None:
        OWN.note(time.time())
        if not self._is_main and not of_every_rank:
            if self._writer is not None and "step" in values:
                self._newest = ({"step": float(values["step"])}, time.time())
            return
        if not values or not self._known.issuperset(values):
            check_names(values)
            self._known.update(values)

        plain = {name: _plain(value) for name, value in values.items()}
        if "step" in plain and "total" in plain:
            left = seconds_left(plain["step"], plain["total"])
            if left is not None:
                plain[LEFT] = round(left, 1)
        if self._writer is not None:
            self._writer.add(plain, time.time())
        if not self._is_main:
            return

        if self._holds and "step" in plain:
            from .holding import hold_at

            with hold_at(plain["step"]), self._printing:
                self._print(plain)
        else:
            with self._printing:
                self._unprinted = plain
                # if there were many lines lately, it is kept
                is_calm = time.monotonic() - self._printed[0] >= 1.0
                if is_calm or not self._is_written:
                    self._print(plain)
        if self._sends:
            from .azureml_metrics import send

            send({name: float(value) for name, value in plain.items()})

    def _print(self, values: dict[str, float]) -> None:
        self._unprinted = {}
        self._printed.append(time.monotonic())
        # one write, so that lines of other processes stay outside
        sys.stdout.write(format_metrics(values) + "\n")
        sys.stdout.flush()


@cache
def _reporter_of(*_variables: str | None) -> _Reporter:
    """Return the reporter of this process, and another one once its rank has changed."""
    return _Reporter()


# a forked process has neither the thread nor the rank of its parent
os.register_at_fork(after_in_child=_reporter_of.cache_clear)


def check_names(values: Mapping[str, object]) -> None:
    """Raises ValueError."""
    for name in values:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"`{name}` is not a name for a metric: use letters, digits and `_ . / -`"
            )
    if not values:
        raise ValueError("a metric line needs at least one value, for example `report(loss=0.25)`")


def format_metrics(values: Mapping[str, SupportsFloat]) -> str:
    """Return the metric line for `values`, in their order. Whole numbers are exact; other numbers
    have 7 digits, like float32.

    Raises:
        ValueError: a name has a character that a metric line does not allow, or `values` is empty.
    """
    check_names(values)
    words = [PREFIX]
    for name, value in values.items():
        plain = _plain(value)
        text = str(int(plain)) if isinstance(plain, int) else f"{plain:.7g}"
        words.append(f"{name}={text}")
    return " ".join(words)


def parse_metrics(line: str, prefix: str = PREFIX) -> dict[str, float] | None:
    """Return the values of a metric line, or None for any other line. A launcher's prefix before
    the metric line is skipped."""
    _, _, rest = line.rpartition(prefix)
    if len(rest) == len(line) or not _VALUES.fullmatch(rest):
        return None
    values: dict[str, float] = {}
    for pair in rest.split():
        name, _, text = pair.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            return None
    return values


def _plain(value: Any) -> float:
    """Return a whole number as int, any other number as float."""
    item = getattr(value, "item", None)  # tensors and numpy scalars know whether they are whole
    if callable(item):
        value = item()
    return value if isinstance(value, int) else float(value)


# The progress of a training. `report(step=10, total=460)` estimates the seconds left from the pace
# of this process.

LEFT = "seconds_left"
"""The name of the added value."""

# step and moment of the first report, which warm-up and compiling precede
_began: list[tuple[float, float]] = []


def seconds_left(step: float, total: float) -> float | None:
    """Estimate the seconds left from the steps since the first report. Return None at the first
    report, because the pace is still unknown."""
    now = time.monotonic()
    if not _began or step < _began[0][0]:
        _began[:] = [(step, now)]
    first, moment = _began[0]
    if step <= first:
        return None
    elapsed = now - moment
    return max(0.0, (total - step) * elapsed / (step - first))
