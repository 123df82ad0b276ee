"""Write what a run does not report itself into metrics files: what other libraries wrote in their
own formats, and what is recognised in lines of output."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.runtime.metrics_file import MetricWriter
from cloudtrain.signals.lines import RECOGNISED, RECOGNISED_PROGRESS, place_of
from cloudtrain.signals.log import LogBatch
from cloudtrain.signals.progress import LinePosition
from cloudtrain.signals.readers import (
    CsvPosition,
    Scalar,
    read_events,
    read_lightning,
    read_wandb,
)
from cloudtrain.signals.recognise import Recogniser


class _Format(NamedTuple):
    """A source, the names of its files, their reader, and the position at which it starts."""

    source: str
    pattern: str
    read: Callable[[Path, Any], tuple[list[Scalar], Any]]
    start: Any


_FORMATS = (
    _Format("tensorboard", "*tfevents*", read_events, 0),
    _Format("lightning", "metrics.csv", read_lightning, CsvPosition()),
    _Format("wandb", "*.wandb", read_wandb, 0),
)

_WRITTEN = tuple(f"{form.source}." for form in _FORMATS)
"""How the names of the files begin in which their values are written."""

_BATCH = 10_000
"""Values after which they are written."""

_VERSION = re.compile(r"version_[0-9]+|(?:offline-)?run-[0-9_]+-\w+")
"""A folder that a library makes anew at each start."""


def write_found(files: Iterable[Path], folder: str, positions: Mapping[str, Any]) -> dict[str, Any]:
    """Read those of the files that have a known format, and write their values. Files in the same
    folder are attempts of one writer. If files of one format are in several folders, such as
    `train` and `validation`, the path below their common folder stands before the metric's name.

    Return how far each file was read. With these `positions` the next call goes on there, as long
    as there are no other files; otherwise it writes all values anew.
    """
    known: list[tuple[_Format, Path]] = []
    for file in sorted(files, key=_natural):
        known += [(form, file) for form in _FORMATS if fnmatch(file.name, form.pattern)]
    names = [str(file) for _, file in known]
    if list(positions) != names:
        positions = {}
        for written in Path(folder).iterdir():
            if written.name.startswith(_WRITTEN):
                written.unlink()

    by_format: dict[_Format, dict[Path, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for form, file in known:
        by_format[form][_home(file)].append(file)
    reached: dict[str, Any] = {}
    for form, homes in by_format.items():
        top = os.path.commonpath(homes)
        for number, (home, attempts) in enumerate(homes.items()):
            inside = home.relative_to(top)
            prefix = f"{inside.as_posix()}/" if inside.parts else ""
            for attempt, file in enumerate(attempts):
                writer = MetricWriter(folder, form.source, f"file{number}", attempt=attempt)
                with suppress(OSError):  # removed meanwhile
                    time = file.stat().st_mtime
                    position = positions.get(str(file), form.start)
                    scalars, reached[str(file)] = form.read(file, position)
                    write_scalars(scalars, writer, time, prefix)
                writer.close()
    return {name: reached[name] for name in names if name in reached}


def _home(file: Path) -> Path:
    """Return the folder of a file, above those that are made anew at each start."""
    home = file.parent
    while _VERSION.fullmatch(home.name):
        home = home.parent
    return home


def _natural(file: Path) -> str:
    """Sort `version_10` after `version_9`."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(20), str(file))


def write_scalars(
    scalars: Iterable[Scalar], writer: MetricWriter, time: float, prefix: str = ""
) -> None:
    """Write scalars. Those of one step that follow each other are one call. `time` is that of those
    that have none."""
    values: dict[str, float] = {}
    moment = time
    for number, scalar in enumerate(scalars):
        name = prefix + scalar.name
        if name in values or values.get("step") != scalar.step:
            if values:
                writer.add(values, moment)
            values = {} if scalar.step is None else {"step": scalar.step}
        values[name] = scalar.value
        moment = time if scalar.seconds is None else scalar.seconds
        if number % _BATCH == 0:
            writer.flush()
    if values:
        writer.add(values, moment)
    writer.flush()


class RecognisedMetrics:
    """Writes what a `Recogniser` reads in lines, each rank's apart. With the `states` of an earlier
    one, it goes on where that one stopped."""

    def __init__(self, folder: str, states: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._of: dict[str, _Reader] = {}
        for place, state in (states or {}).items():
            self._of[place] = _Reader(folder, place, state)

    @property
    def states(self) -> dict[str, Any]:
        """What was learnt in the lines of each place, as JSON."""
        return {place: reader.state for place, reader in self._of.items()}

    def take(self, batches: Iterable[LogBatch]) -> None:
        by_place: dict[str, list[LogBatch]] = defaultdict(list)
        for batch in batches:
            by_place[place_of(batch.rank, batch.instance)].append(batch)
        for place, some in by_place.items():
            if place not in self._of:
                self._of[place] = _Reader(self._folder, place, {})
            texts: list[str] = []
            moments: list[float] = []
            for batch in some:
                texts += batch.texts
                moments += [batch.time] * len(batch.texts)
            self._of[place].take(texts, moments)

    def flush(self) -> None:
        for reader in self._of.values():
            reader.writer.flush()
            reader.of_progress.flush()

    def close(self) -> None:
        for reader in self._of.values():
            reader.writer.close()
            reader.of_progress.close()


class _Reader:
    """What reads the lines of one rank."""

    def __init__(self, folder: str, place: str, state: Mapping[str, Any]) -> None:
        self.writer = MetricWriter(folder, RECOGNISED, place, attempt=0)
        self.of_progress = MetricWriter(folder, RECOGNISED_PROGRESS, place, attempt=0)
        self._recogniser = Recogniser(state.get("learnt"))
        self._position = LinePosition()
        vars(self._position).update(state.get("position", {}))
        self._curves = set(state.get("curves", ()))
        """The metrics that have had a step."""

    @property
    def state(self) -> dict[str, Any]:
        return {
            "learnt": self._recogniser.state,
            "position": vars(self._position),
            "curves": sorted(self._curves),
        }

    def take(self, texts: list[str], moments: list[float]) -> None:
        start = self._recogniser.count
        for block in self._recogniser.blocks(texts):
            columns: dict[str, list[float]] = {}
            steps = block.steps
            times = moments[block.line - start :][: len(steps)]
            # of lines that arrived together, the last one says where the training is
            for number, moment in enumerate(times):
                if times[number + 1 : number + 2] != [moment]:
                    progress = block.progress(number)
                    place = self._position.values(progress, has_values=bool(block.values))
                    if place:
                        self.of_progress.add(place, moment)
            if not block.values or not steps:
                continue

            # many scripts print epochs alone, and Trainers fractions of them
            if math.isnan(steps[0]) and "epoch" in block.said:
                steps = [block.said["epoch"]] * len(steps)
            for name, values in block.values.items():
                if not math.isnan(steps[0]):
                    self._curves.add(name)
                elif name in self._curves:
                    # beside the curve it is something else, such as the result over all batches
                    name = f"summary_{name}"
                columns[name] = values
            self.writer.add_calls(columns, steps, times)
