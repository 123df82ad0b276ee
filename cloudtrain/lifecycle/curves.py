"""Compare the losses of an interrupted and resumed run with the losses of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import NamedTuple

Curve = Mapping[int, Mapping[str, float]]
"""Maps a step to the values reported at that step."""

TOLERANCE = 1e-5

_AT_THE_FIRST_STEP = (
    "data order: which samples a step sees must follow from the step, or its position must be saved",
    "random numbers: seed dropout and augmentation from the step, or save the generators' states",
    "weights: are all of them saved, and loaded before the first step?",
)
_AFTER_IT = (
    "optimizer state: save and load `optimizer.state_dict()`",
    "learning-rate schedule: set the rate from the step, or save the scheduler's state",
)
"""Likely causes of a difference. The loss of the first step after a resumption depends on the loaded weights and the
drawn samples. The optimizer and its rate affect only the later steps."""

_NOTHING_SAVED = "checkpoints: none was saved, or none was found in the checkpoint folder of the run"
_NOT_FOUND = "checkpoints: the script said that it saved, but not where the next run looks (`runtime.checkpoint_dir()`)"


class Verdict(NamedTuple):
    """The result of a rehearsal. `kind` is `same` if the training survived, otherwise a name for the problem, such as
    `skipped`. `words` is the result in one line; `look_at` lists possible causes, the most likely first."""

    kind: str
    words: str
    look_at: tuple[str, ...] = ()

    @property
    def survives(self) -> bool:
        """Whether the losses are the same with and without the interruption."""
        return self.kind == "same"


class CurveDifference(NamedTuple):
    """A metric of one step with its values in the uninterrupted run (`whole`) and in another run (`found`)."""

    step: int
    metric: str
    whole: float
    found: float


@dataclass(frozen=True)
class Comparison:
    """The curves of the three runs: for each run, the reported metrics by step. `saved_at` is the step at which the
    script saved, by its own report; None without a report."""

    whole: Curve
    interrupted: Curve
    resumed: Curve
    metrics: tuple[str, ...]
    tolerance: float = TOLERANCE
    saved_at: int | None = None
    joined: dict[int, Mapping[str, float]] = field(init=False)
    """The curve of the interrupted run, continued and overridden by the curve of the resumed run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "joined", {**self.interrupted, **self.resumed})

    @property
    def stopped_at(self) -> int:
        """The last step that the interrupted run reported; 0 if it reported none."""
        return max(self.interrupted, default=0)

    @property
    def resumed_at(self) -> int | None:
        """The first step that the resumed run reported; None if it reported none."""
        return min(self.resumed, default=None)

    @property
    def repeated(self) -> int:
        """The number of steps that both the interrupted and the resumed run computed, according to their reports."""
        return 0 if self.resumed_at is None else max(0, self.stopped_at - self.resumed_at + 1)

    @property
    def compared(self) -> int:
        """The number of compared values: those reported for the same step with and without the interruption."""
        return len(_pairs(self.whole, self.joined, self.metrics))

    @property
    def largest_difference(self) -> float:
        """The largest difference of all compared values."""
        pairs = _pairs(self.whole, self.joined, self.metrics)
        return max((_distance(pair.whole, pair.found) for pair in pairs), default=0.0)

    def first_difference(self, curve: Curve) -> CurveDifference | None:
        """Return the first value of `curve` that differs from the uninterrupted run by more than the tolerance; None
        without a difference. The tolerance is relative for values above 1."""
        for pair in _pairs(self.whole, curve, self.metrics):
            size = abs(pair.whole) if isfinite(pair.whole) else 1.0
            is_close = _distance(pair.whole, pair.found) <= self.tolerance * max(1.0, size)
            if not is_close:
                return pair
        return None

    def verdict(self) -> Verdict:
        """Return the verdict. The checks run in a fixed order, and the first failed check decides."""
        first = (self._does_not_repeat, self._saved_nothing, self._went_too_far)
        for question in (*first, self._left_out_steps, self._differs):
            if (verdict := question()) is not None:
                return verdict
        if not self.largest_difference:
            return Verdict("same", f"all {self.compared} values are exactly those of the run without interruption")
        largest = f"differ by at most {self.largest_difference:.2g}, within the tolerance of {self.tolerance:g}"
        return Verdict("same", f"the {self.compared} values {largest}")

    def _does_not_repeat(self) -> Verdict | None:
        if not self.interrupted:
            words = "the interrupted run reported nothing, and the same job without an interruption did"
            return Verdict("unrepeatable", words, ("reports: every run of the job must report its losses",))
        difference = self.first_difference(self.interrupted)
        if difference is None:
            return None
        words = f"two runs differ before the interruption already: {_words(difference)}"
        return Verdict("unrepeatable", words, ("seed: the script must repeat before its interruptions can be judged",))

    def _saved_nothing(self) -> Verdict | None:
        first = min(self.whole)
        if self.resumed_at is None or self.resumed_at > first or self.stopped_at <= first:
            return None
        words = f"the resumed run began again at step {self.resumed_at}, so an interruption costs all that was done"
        return Verdict("started_over", words, (_NOTHING_SAVED if self.saved_at is None else _NOT_FOUND,))

    def _went_too_far(self) -> Verdict | None:
        last, end = max(self.whole), max(self.resumed, default=0)
        if end <= last:
            return None
        words = f"the resumed run went on to step {end}, and without interruption the training ends at {last}"
        return Verdict("overrun", words, ("the end: count steps from the start of the training, not of the process",))

    def _left_out_steps(self) -> Verdict | None:
        due = [step for step in self.whole if step > self.stopped_at]
        missing = [step for step in due if step not in self.resumed]
        if not missing:
            return None
        if len(missing) == len(due) and self.resumed:
            words = f"after the interruption no loss is reported at a step of the whole run ({due[0]}, ...)"
            advice = "reports: report when `step % n == 0`, with the step of the training"
            return Verdict("incomparable", words, (advice,))
        words = f"{len(missing)} reported steps are missing, the first is {missing[0]}"
        return Verdict("skipped", words, ("position: the resumed run must go on with the step after the saved one",))

    def _differs(self) -> Verdict | None:
        difference = self.first_difference(self.joined)
        return None if difference is None else Verdict("differs", _words(difference), self._suspects(difference.step))

    def _suspects(self, step: int) -> tuple[str, ...]:
        """Return the possible causes of a difference that begins at `step`. At the first resumed step, these are causes
        such as the data order; at a later step, causes such as the optimizer state. If the steps around the resumption
        were not reported, return all of these causes."""
        first = self.resumed_at
        if first is None or first not in self.whole or first - 1 not in {*self.whole, self.saved_at}:
            return (*_AT_THE_FIRST_STEP, *_AFTER_IT)
        return _AT_THE_FIRST_STEP if step == first else _AFTER_IT


def curve_of(reports: Iterable[Mapping[str, float]], metrics: Sequence[str]) -> dict[int, dict[str, float]]:
    """Return a curve, which maps each step to its metrics. Reports without a step or without any of the metrics are
    skipped. The last report of a step counts."""
    curve: dict[int, dict[str, float]] = {}
    for report in reports:
        values = {name: report[name] for name in metrics if name in report}
        if values and "step" in report:
            curve.setdefault(int(report["step"]), {}).update(values)
    return curve


def loss_names(reports: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """Return the metrics whose names end with `loss`, such as `train_loss` or `val/loss`."""
    names = dict.fromkeys(name for report in reports for name in report)
    return tuple(name for name in names if name.lower().endswith("loss"))


def _pairs(whole: Curve, other: Curve, metrics: Sequence[str]) -> list[CurveDifference]:
    return [
        CurveDifference(step, name, whole[step][name], other[step][name])
        for step in sorted(whole.keys() & other.keys())
        for name in metrics
        if name in whole[step] and name in other[step]
    ]


def _distance(one: float, other: float) -> float:
    """Return the absolute difference of two values: zero if both are equal or both are NaN, infinite if only one is
    NaN."""
    if one == other or (isnan(one) and isnan(other)):
        return 0.0
    return abs(one - other) if isfinite(one) and isfinite(other) else inf


def _words(difference: CurveDifference) -> str:
    step, metric, whole, other = difference
    return f"at step {step} `{metric}` is {other:.7g}, and without interruption {whole:.7g}"
