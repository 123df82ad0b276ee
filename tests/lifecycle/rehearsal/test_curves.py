"""From curves to a verdict: what is said about each way in which an interruption can change a training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.lifecycle.rehearse import Comparison, curve_of, loss_names

Losses = dict[int, dict[str, float]]


def losses(first: int, last: int, *, plus: float = 0.0, since: int = 0, every: int = 1) -> Losses:
    """1 / step at each reported step; from `since` on with something added."""
    steps = (step for step in range(first, last + 1) if step % every == 0)
    return {step: {"loss": 1 / step + (plus if step >= since else 0.0)} for step in steps}


def compared(
    interrupted: Losses, resumed: Losses, whole: Losses | None = None, saved_at: int | None = None
) -> Comparison:
    """Against twelve steps, unless another whole run is given."""
    return Comparison(
        losses(1, 12) if whole is None else whole,
        interrupted,
        resumed,
        ("loss",),
        saved_at=saved_at,
    )


DATA, OPTIMIZER, REPORTS = "data order", "optimizer state", "reports"

CASES = {
    "goes on": (compared(losses(1, 6), losses(7, 12)), "same", "all 12 values are exactly", ()),
    "without a word before its interruption": (
        compared({}, losses(1, 12)), "unrepeatable", "the interrupted run reported nothing", (REPORTS,),
    ),
    "some steps twice": (compared(losses(1, 6), losses(5, 12)), "same", "all 12 values are exactly", ()),
    "within the tolerance": (
        compared(losses(1, 6), losses(7, 12, plus=1e-6)), "same", "the 12 values differ by at most 1e-06", (),
    ),
    "reports every third step, and its first": (
        compared(losses(1, 7, every=3), {8: {"loss": 9.0}} | losses(9, 12, every=3), losses(1, 12, every=3)),
        "same", "all 4 values are exactly", (),
    ),
    "other samples": (
        compared(losses(1, 6), losses(7, 12, plus=0.1)), "differs", "at step 7 `loss` is 0.2428571", (DATA,),
    ),
    "other update": (
        compared(losses(1, 6), losses(7, 12, plus=0.1, since=8)), "differs", "at step 8 `loss`", (OPTIMIZER,),
    ),
    "differs, and nobody knows how soon": (
        compared(losses(1, 6, every=3), losses(9, 12, plus=0.1, every=3), losses(1, 12, every=3)),
        "differs", "at step 9 `loss`", (DATA, OPTIMIZER),
    ),
    "the marker tells how soon": (
        compared(losses(1, 6, every=3), losses(9, 12, plus=0.1, every=3), losses(1, 12, every=3), saved_at=8),
        "differs", "at step 9 `loss`", (DATA,),
    ),
    "differs before it was interrupted": (
        compared(losses(1, 6, plus=0.1, since=3), losses(7, 12)),
        "unrepeatable", "two runs differ before the interruption already: at step 3", ("seed",),
    ),
    "saved nothing": (
        compared(losses(1, 6), losses(1, 12)), "started_over", "began again at step 1", ("none was saved",),
    ),
    "saved where nobody looks": (
        compared(losses(1, 6), losses(1, 12), saved_at=6), "started_over", "began again at step 1", ("said that it saved",),
    ),
    "counts epochs of the process": (
        compared(losses(1, 6), losses(7, 18)), "overrun", "went on to step 18, and", ("the end",),
    ),
    "leaves out steps": (
        compared(losses(1, 6), losses(9, 12)), "skipped", "2 reported steps are missing, the first is 7", ("position",),
    ),
    "ends early": (
        compared(losses(1, 6), losses(7, 10)), "skipped", "2 reported steps are missing, the first is 11", ("position",),
    ),
    "reports nothing any more": (
        compared(losses(1, 6), {}), "skipped", "6 reported steps are missing, the first is 7", ("position",),
    ),
    "reports at other steps": (
        compared(losses(1, 6, every=3), {7: {"loss": 1.0}, 10: {"loss": 1.0}}, losses(1, 12, every=3)),
        "incomparable", "(9, ...)", ("reports",),
    ),
    "not a number, both times": (
        compared({5: {"loss": float("nan")}}, losses(6, 12), {5: {"loss": float("nan")}} | losses(6, 12)),
        "same", "8 values", (),
    ),
    "not a number, since the interruption": (
        compared(losses(1, 6), losses(7, 12, plus=float("nan"))), "differs", "at step 7 `loss` is nan", (DATA,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case: str) -> None:
    """The kind, the words with the first step that differs, and what to look at, and nothing else."""
    comparison, kind, words, look_at = CASES[case]
    verdict = comparison.verdict()
    assert (verdict.kind, verdict.survives) == (kind, kind == "same")
    assert words in verdict.words
    if kind == "differs":
        named = {
            cause
            for cause in (DATA, OPTIMIZER)
            if any(item.startswith(cause) for item in verdict.look_at)
        }
        assert named == set(look_at)
    else:
        assert len(verdict.look_at) == len(look_at)
        assert all(word in item for word, item in zip(look_at, verdict.look_at, strict=True))


@given(
    stop=st.integers(2, 11), back=st.integers(0, 10), at=st.integers(1, 12), by=st.floats(0.01, 10)
)
def test_any_change_after_the_resumption_is_found(stop: int, back: int, at: int, by: float) -> None:
    """Wherever the run stopped and from wherever it went on, the first changed value is the one that is named."""
    resumed_at = max(2, stop + 1 - back)
    comparison = compared(losses(1, stop), losses(resumed_at, 12, plus=by, since=at))
    difference = comparison.first_difference(comparison.joined)
    assert difference is not None
    assert difference.step == max(at, resumed_at)
    assert comparison.repeated == stop - resumed_at + 1
    assert comparison.verdict().kind == "differs"


def test_several_metrics_are_compared_together() -> None:
    """The first that differs is named."""
    whole = {step: {"loss": 1.0, "test_loss": 2.0} for step in (1, 2, 3)}
    resumed = {2: {"loss": 1.0}, 3: {"loss": 1.0, "test_loss": 2.5}}
    comparison = Comparison(whole, {1: whole[1]}, resumed, ("loss", "test_loss"))
    assert "at step 3 `test_loss` is 2.5" in comparison.verdict().words


def test_curves_of_reports() -> None:
    """Reports of one step are one point, the last value counts; without a step or a chosen metric they are none."""
    reports = [{"step": 1.0, "loss": 3.0}, {"step": 1.0, "accuracy": 0.5}, {"step": 2.0, "loss": 2.0}, {"loss": 9.0},
               {"step": 2.0, "loss": 1.0}]  # fmt: skip
    assert curve_of(reports, ("loss",)) == {1: {"loss": 3.0}, 2: {"loss": 1.0}}
    assert curve_of(reports, ("loss", "accuracy"))[1] == {"loss": 3.0, "accuracy": 0.5}


def test_losses_are_known_by_their_names() -> None:
    """`train_loss` and `val/loss` are losses, an accuracy and a rate are none."""
    assert loss_names(
        [{"train_loss": 1, "accuracy": 1}, {"val/loss": 1, "loss": 1, "loss_scale": 1}]
    ) == (
        "train_loss",
        "val/loss",
        "loss",
    )
