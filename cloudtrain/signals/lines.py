"""Write the metrics in a run's output into metrics files: those of `[metrics]` lines, and those
that the job's `metrics` patterns find.

The supervisor of a run imports this module, which must load quickly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

from cloudtrain.runtime.metrics import PREFIX, parse_metrics
from cloudtrain.runtime.metrics_file import MACHINE, MACHINE_LINE, MetricWriter
from cloudtrain.system.patterns import MetricPatterns

PATTERNS = "patterns"
"""The source of what the job's `metrics` patterns found in the output."""

PRINTED = "printed"
"""The source of `[metrics]` lines in the output."""

RECOGNISED = "recognised"
"""The source of values in output of no known form."""

RECOGNISED_PROGRESS = "progress"
"""The source of what such output says about the progress."""


def place_of(rank: int | None, instance: int) -> str:
    """Return the place of a rank, or of an instance's launcher, as the names of files have it."""
    return f"instance{instance}" if rank is None else f"rank{rank}"


def machine_values(line: str) -> dict[str, float] | None:
    """Return what a line of the runtime says about a machine; None for another line."""
    values = parse_metrics(line, MACHINE_LINE) if MACHINE_LINE in line else None
    is_sane = values is not None and all(0 <= value < math.inf for value in values.values())
    return values if is_sane else None


class LineMetrics:
    """Finds metrics in lines of output. `latest` holds the newest value of each metric. If several
    ranks print lines that a pattern matches, only the lowest rank counts."""

    def __init__(
        self, folder: str, patterns: Mapping[str, str] | None, *, attempt: int | None = None
    ) -> None:
        """With `attempt`, go on behind what was written as this attempt."""
        self.latest: dict[str, float] = {}
        self._attempt = attempt
        self._folder = folder
        self._patterns = MetricPatterns(patterns) if patterns else None
        self._writers: dict[tuple[str, str], MetricWriter] = {}
        self._lowest: dict[str, int] = {}

    def take(self, lines: Iterable[str], rank: int | None, instance: int, moment: float) -> None:
        """Search lines of a rank, or of an instance's launcher if `rank` is None. `[metrics]` lines
        are not searched with patterns."""
        order = sys.maxsize if rank is None else rank  # a launcher counts after all ranks
        place = place_of(rank, instance)
        for line in lines:
            machine = machine_values(line)
            if machine is not None:
                self._add(MACHINE, place_of(None, instance), machine, moment)
                continue
            printed = parse_metrics(line) if PREFIX in line else None
            if printed is not None:
                self.latest.update(printed)
                self._add(PRINTED, place, printed, moment)
                continue
            found = None if self._patterns is None else self._patterns.read(line)
            if found is None:
                continue
            self._add(PATTERNS, place, found, moment)
            for name, value in found.items():
                if order <= self._lowest.setdefault(name, order):
                    self._lowest[name] = order
                    self.latest[name] = value

    def _add(self, source: str, place: str, values: Mapping[str, float], moment: float) -> None:
        key = (source, place)
        if key not in self._writers:
            self._writers[key] = MetricWriter(self._folder, *key, attempt=self._attempt)
        self._writers[key].add(values, moment)

    def complaints(self) -> list[str]:
        """Return one message for each pattern that was dropped since the last call."""
        if self._patterns is None:
            return []
        complaints = self._patterns.complaints
        self._patterns.complaints = []
        return complaints

    def flush(self) -> None:
        """Write what was found. Raises `OSError`."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
