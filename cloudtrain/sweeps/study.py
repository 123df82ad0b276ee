"""The journal of a sweep: one line for each thing that happened, on disk before the next one happens.

    asked      a trial has its values
    submitted  its run has its name
    told       it has ended: with a value, or with a reason why it has none
    extended   `continue` gave the sweep more trials
    again      `rerun` wants these trials, which had failed, to run once more with their values
    said       a sentence for the reader of the log

Whoever reads it sees the trials as they were left, wherever the driver was killed. The last line may be torn then; it
is cut off before the next one is written.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudtrain.core.states import LogLine, RunState
from cloudtrain.core.sweep import Objective
from cloudtrain.core.trial import Trial, best_of
from cloudtrain.system.private import open_private

FILE_NAME = "study.jsonl"

_KEPT_REPORTS = 2000
"""Of each trial: what early stopping compares."""


@dataclass
class Study:
    """The trials of a sweep, by number, and how many more than planned it has."""

    trials: dict[int, Trial]
    extended: int = 0
    events: tuple[dict[str, Any], ...] = ()

    def apply(self, event: dict[str, Any]) -> None:
        """Take one event of the journal."""
        number = event.get("trial", 0)
        if event["event"] == "asked":
            self.trials[number] = Trial(number, event["values"])
        elif event["event"] == "submitted":
            self._change(number, run=event["run"], state=RunState.RUNNING, started=event["at"])
        elif event["event"] == "told":
            names = ("value", "reason", "started", "ended", "stopped_early")
            found = {name: event[name] for name in names if event.get(name) is not None}
            reports = tuple(event.get("reports", ()))
            self._change(number, state=RunState(event["state"]), reports=reports, **found)
        elif event["event"] == "again":
            for number in event["trials"]:
                old = self.trials[number]
                self.trials[number] = Trial(number, old.values, earlier=(*old.earlier, *filter(None, [old.run])))
        elif event["event"] == "extended":
            self.extended += event["trials"]

    def _change(self, number: int, **fields: Any) -> None:
        self.trials[number] = replace(self.trials[number], **fields)

    @property
    def ended(self) -> list[Trial]:
        """The trials that will never change again."""
        return [trial for trial in self.trials.values() if trial.state.is_final]

    @property
    def open(self) -> list[Trial]:
        """The trials that were chosen and have not ended."""
        return [trial for trial in self.trials.values() if not trial.state.is_final]


class Journal:
    """The file, held by the driver: the only writer."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.study = read_study(folder)
        self._descriptor = open_private(self._file, os.O_RDWR | os.O_CREAT)
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        os.ftruncate(self._descriptor, self._end)

    def write(self, event: str, **fields: Any) -> None:
        """Write one event to the journal; it is on disk when this returns.

        Raises:
            OSError: the disk is full, for example; the journal is as it was.
        """
        entry = {"at": round(time.time(), 3), "event": event, **fields}
        line = (json.dumps(entry) + "\n").encode()
        try:
            written = os.pwrite(self._descriptor, line, self._end)
            if written < len(line):
                raise OSError(28, os.strerror(28))
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)
        self.study.apply(entry)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return every whole line of a sweep's journal."""
    try:
        content = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def read_study(folder: Path) -> Study:
    """Return the trials of a sweep from its journal."""
    study = Study({})
    for event in read_events(folder):
        study.apply(event)
    return study


def told(
    number: int, state: RunState, *, reports: tuple[float, ...] = (), stopped_early: bool = False, **fields: Any
) -> dict[str, Any]:
    """Return the fields of the event that ends a trial."""
    return {
        "trial": number,
        "state": str(state),
        "reports": list(reports[-_KEPT_REPORTS:]),
        "stopped_early": stopped_early,
        **fields,
    }


def lines_of(events: list[dict[str, Any]], objective: Objective | None) -> list[LogLine]:
    """Return the journal for a reader: one line for each event."""
    study, lines = Study({}), list[LogLine]()
    for event in events:
        before = best_of(study.trials.values(), objective)
        study.apply(event)
        text = _text(event, study, before, objective)
        if text is not None:
            lines.append(LogLine(event["at"], 0, None, "stdout", text))
    return lines


def _text(event: dict[str, Any], study: Study, before: Trial | None, objective: Objective | None) -> str | None:
    kind, number = event["event"], event.get("trial", 0)
    if kind == "said":
        return str(event["text"])
    if kind == "extended":
        return f"{event['trials']} more trials"
    if kind == "again":
        return f"these trials run again: {', '.join(map(str, event['trials']))}"
    if kind == "submitted":
        values = " ".join(f"{name}={shown(value)}" for name, value in study.trials[number].values.items())
        return f"trial {number} started: {values}"
    if kind != "told":
        return None
    trial = study.trials[number]
    words = f"trial {number} {'was stopped early' if trial.stopped_early else trial.state}"
    if trial.value is not None and objective is not None:
        best = best_of(study.trials.values(), objective)
        new = trial.counts and best is not None and best.number == number and best != before
        words += f": {objective.metric}={shown(trial.value)}{', the best so far' if new else ''}"
    elif trial.reason:
        words += f": {trial.reason}"
    return words


def shown(value: Any) -> str:
    """Format a value for a reader, with few digits."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
