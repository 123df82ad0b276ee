"""The progress of a run, computed from its output and status: step, pace, time left, slow ranks, and what it waits for.

No function reads the clock; the current time is an argument.
"""

from __future__ import annotations

from collections import deque

from cloudtrain.core.states import LogLine, RunState, RunStatus
from cloudtrain.core.units import format_duration
from cloudtrain.render.escape import on_one_line
from cloudtrain.render.status import number

_REPORTS = 30
"""The number of newest reports over which the pace is measured."""

_QUIET = 10.0
"""Seconds without a line after which the view reports silence."""


class Pace:
    """The progress of a run so far."""

    def __init__(self, now: float) -> None:
        self._latest: dict[str, float] = {}
        self._reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        self._step_of: dict[int, float] = {}
        self._stride = 0.0
        self._status: RunStatus | None = None
        self._has_lines = False
        self._news_at = now

    def take_line(self, line: LogLine, now: float) -> None:
        """Record the time of a line, and the step of its rank if the line reports one."""
        self._has_lines, self._news_at = True, now
        if line.rank is not None and "step" in (values := line.metrics or {}):
            self._note_step(line.rank, values["step"])

    def take_values(self, values: dict[str, float], moment: float) -> None:
        """Record metrics of the run, which were written at `moment`."""
        step, before = values.get("step"), self._latest.get("step")
        if step is not None and (before is None or step != before):
            if before is not None and step < before:
                self._reports.clear()  # the ranks were started again
            self._reports.append((moment, step))
        self._latest |= values

    def take_status(self, status: RunStatus, now: float) -> None:
        """Record a new status of the run."""
        if self._status is None or (status.state, status.transitions) != (self._status.state, self._status.transitions):
            self._news_at = now
        self._status = status
        for rank, step in status.steps.items():
            self._note_step(rank, step)

    def _note_step(self, rank: int, step: float) -> None:
        before = self._step_of.get(rank)
        if before is not None and step > before:
            self._stride = max(self._stride, step - before)
        self._step_of[rank] = step

    @property
    def fraction(self) -> float | None:
        """The finished part of the steps, from 0 to 1; None unless the script reports `step` and `total`."""
        step, total = self._latest.get("step"), self._latest.get("total")
        return None if step is None or not total else max(0.0, min(1.0, step / total))

    @property
    def per_second(self) -> float | None:
        """Steps per second over the newest reports; None if it cannot be computed."""
        if len(self._reports) < 2:
            return None
        (began, first), (ended, last) = self._reports[0], self._reports[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None

    @property
    def seconds_left(self) -> float | None:
        """The seconds left, as reported by the script, else estimated from the newest reports; None if unknown."""
        step, total, pace = self._latest.get("step"), self._latest.get("total"), self.per_second
        if step is None or total is None or step >= total:
            return None
        return self._latest.get("seconds_left", (total - step) / pace if pace else None)

    def progress(self) -> str:
        """Return a text such as `step 120 of 460  26%  epoch 5.2  38 steps/s  9s left`, without the unknown parts."""
        parts = []
        if "step" in self._latest:
            total = self._latest.get("total")
            parts.append(f"step {number(self._latest['step'])}" + (f" of {number(total)}" if total else ""))
        parts += [f"{self.fraction:.0%}"] if self.fraction is not None else []
        parts += [f"epoch {number(self._latest['epoch'])}"] if "epoch" in self._latest else []
        if self.per_second is not None:
            parts.append(_pace_words(self.per_second))
        if self.seconds_left is not None and not self._is_over:
            parts.append(f"{format_duration(max(1, round(self.seconds_left)))} left")
        return "  ".join(parts)

    def waiting_for(self, now: float) -> str:
        """Return what the run waits for, such as the target, its first line of output, or slow ranks. Return an empty
        text while the run makes progress."""
        if self._is_over:
            return ""
        quiet = now - self._news_at
        since = f" {format_duration(int(quiet))}" if quiet >= 1 else ""
        if self._status is None:
            return f"asking for the run's state{since}"
        if self._status.state is RunState.STOPPING:
            return f"stopping: the script has time to save and leave{since}"
        if self._status.queue_place is not None:
            return f"queued: place {self._status.queue_place}, {self._status.reason}{since}"
        if self._status.state in (RunState.PENDING, RunState.PREPARING):
            return f"{self._status.state}{self._phase()}{since}"
        if not self._has_lines:
            return f"the processes have started; waiting for their first line{since}"
        lag = self.lag(is_quiet=quiet >= _QUIET)
        if quiet >= _QUIET:
            return f"nothing new for{since}" + (f"; {lag}" if lag else "")
        return lag

    def lag(self, *, is_quiet: bool) -> str:
        """Describe the ranks that are behind the foremost rank by at least two reports, or with `is_quiet` by at least
        one report. Return an empty text if there are none."""
        if len(self._step_of) < 2 or not self._stride:
            return ""
        first = max(self._step_of.values())
        least = self._stride if is_quiet else 2 * self._stride
        behind = {rank: step for rank, step in sorted(self._step_of.items()) if first - step >= least}
        if not behind:
            return ""
        named = [f"rank {rank} at step {number(step)}" for rank, step in list(behind.items())[:3]]
        more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
        return f"behind: {', '.join(named)}{more}; the others at step {number(first)}"

    @property
    def _is_over(self) -> bool:
        return self._status is not None and self._status.state.is_final

    def _phase(self) -> str:
        """Return a comma and the provider's name for the current phase; an empty text if the provider names no
        phase."""
        phases = [item for item in self._status.transitions if item.ended is None] if self._status else []
        if not phases:
            return ""
        newest = phases[-1]
        words = newest.phase if newest.message in (None, newest.phase) else f"{newest.phase}: {newest.message}"
        return f", {on_one_line(words)}"


def _pace_words(per_second: float) -> str:
    return f"{number(per_second)} steps/s" if per_second >= 1 else f"{number(1 / per_second)} s/step"
