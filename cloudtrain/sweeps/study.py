"""The journal of a sweep: one line for each event. Each line is on disk before the next event happens.

    asked      a trial was chosen, with these values
    submitted  the trial was submitted, under this run name
    told       the trial has ended, with a value, or with the reason why it has none
    extended   `continue` added this many trials
    again      `rerun` repeats these failed trials with the same values
    said       a message for the reader of the log

After a crash of the driver, the journal still gives the state of all trials. The last line may be incomplete; it is
removed before the next line is written.
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
from cloudtrain.core.value_text import value_text
from cloudtrain.errors import TargetError
from cloudtrain.system.private import open_private

FILE_NAME = "study.jsonl"

_KEPT_REPORTS = 2000
"""Maximum number of reports that are kept for each trial, for early stopping."""


@dataclass
class Study:
    """The state of a sweep's trials: `trials` maps each number to its trial; `extended` is the number of
    trials that `continue` has added."""

    trials: dict[int, Trial]
    extended: int = 0
    events: tuple[dict[str, Any], ...] = ()

    def apply(self, event: dict[str, Any]) -> None:
        """Update the trials from one event of the journal."""
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
        """The trials that have ended."""
        return [trial for trial in self.trials.values() if trial.state.is_final]

    @property
    def open(self) -> list[Trial]:
        """The trials that were chosen and have not ended."""
        return [trial for trial in self.trials.values() if not trial.state.is_final]


class Journal:
    """The journal's file, open for writing. Only one process writes it at a time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.study = read_study(folder)
        self._descriptor = open_private(self._file, os.O_RDWR | os.O_CREAT)
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        os.ftruncate(self._descriptor, self._end)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event to the journal. The event is on disk when this method returns.

        Raises:
            OSError: the event cannot be written, for example because the disk is full. The journal stays unchanged.
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
    """Return the events in a sweep's journal, without an incomplete last line.

    Raises:
        TargetError: a line of the journal is damaged.
    """
    file, events = folder / FILE_NAME, list[dict[str, Any]]()
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            message = f"line {number} of the sweep's journal is damaged: {error}"
            raise TargetError(message, hint=f"restore or remove the line in `{file}`", code="CT994") from error
    return events


def read_study(folder: Path) -> Study:
    """Return the trials of a sweep from its journal."""
    study = Study({})
    for event in read_events(folder):
        study.apply(event)
    return study


def told(
    number: int, state: RunState, *, reports: tuple[float, ...] = (), stopped_early: bool = False, **fields: Any
) -> dict[str, Any]:
    """Return the fields of the event `told`, which records that a trial has ended."""
    return {
        "trial": number,
        "state": str(state),
        "reports": list(reports[-_KEPT_REPORTS:]),
        "stopped_early": stopped_early,
        **fields,
    }


def lines_of(events: list[dict[str, Any]], objective: Objective | None) -> list[LogLine]:
    """Return the events as log lines for users. Events that tell users nothing new are left out."""
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
        values = " ".join(f"{name}={value_text(value)}" for name, value in study.trials[number].values.items())
        return f"trial {number} started: {values}"
    if kind != "told":
        return None
    trial = study.trials[number]
    words = f"trial {number} {'was stopped early' if trial.stopped_early else trial.state}"
    if trial.value is not None and objective is not None:
        best = best_of(study.trials.values(), objective)
        new = trial.counts and best is not None and best.number == number and best != before
        words += f": {objective.metric}={trial.value:.4g}{', the best so far' if new else ''}"
    elif trial.reason:
        words += f": {trial.reason}"
    return words
