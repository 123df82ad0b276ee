"""How far a training is, from what a script reports, prints, or has in its hyperparameters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cloudtrain.plans.progress import RunStatus, TrainingProgress
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import progress_text
from cloudtrain.runtime.metrics_file import MetricWriter
from cloudtrain.signals.found import RecognisedMetrics
from cloudtrain.signals.log import LogBatch
from cloudtrain.signals.main_metric import with_metrics
from cloudtrain.signals.progress import TrainingPace
from cloudtrain.signals.rows import MetricRows, read_files

RUNNING = RunStatus(RunState.RUNNING)


def pace_of(*reports: dict[str, float], **hyperparameters: object) -> TrainingPace:
    """The pace after these reports, one each ten seconds."""
    pace = TrainingPace(hyperparameters)
    for number, values in enumerate(reports):
        pace.take(values, 10.0 * number)
    return pace


@pytest.mark.parametrize(
    ("reports", "hyperparameters", "expected"),
    [
        ([{"step": 10, "total": 40}, {"step": 20}], {}, ("step", 20, 40, 20.0)),
        ([{"step": 1, "total": 4, "seconds_left": 7}], {}, ("step", 1, 4, 7)),
        ([{"step": 10}, {"step": 20}], {"max_steps": 40}, ("step", 20, 40, 20.0)),
        ([{"epoch": 0.5}, {"epoch": 1.0}], {"num-train-epochs": 3}, ("epoch", 1.0, 3, 40.0)),
        ([{"epoch": 1.0, "epochs": 4.0, "step": 7, "total": 9}], {}, ("epoch", 1, 4, None)),
        ([{"bar": 5, "bar_total": 20}], {}, ("step", 5, 20, None)),
        ([{"bar": 5, "bar_total": 9, "epoch": 1.0}], {"epochs": 2}, ("epoch", 1, 2, None)),
        # no end, and one that is none
        ([{"step": 10}, {"step": 20}], {}, None),
        ([{"step": 10}], {"max_steps": -1, "epochs": True, "n_epochs": "3"}, None),
        ([{"step": 10, "total": 0.0}], {}, None),
        # at the end, nothing is left
        ([{"step": 10, "total": 20}, {"step": 20}], {}, ("step", 20, 20, None)),
    ],
)
def test_progress_comes_from_what_says_most(
    reports: list[dict[str, float]], hyperparameters: dict[str, object], expected: object
) -> None:
    """The script, then the job's hyperparameters, then a bar; no time left without a pace."""
    assert pace_of(*reports, **hyperparameters).progress == expected


@pytest.mark.parametrize("steps", [[1.0, 1.0], [5.0, 3.0]])
def test_no_pace_where_there_is_none(steps: list[float]) -> None:
    """One step, and ranks that began anew."""
    pace = pace_of(*({"step": step, "total": 9.0} for step in steps))
    assert pace.per_second is None
    assert pace.progress == TrainingProgress("step", steps[-1], 9.0)


def read_lines(folder: Path, *lines: str) -> RunStatus:
    """The status of a run that printed these lines, one each ten seconds."""
    found = RecognisedMetrics(str(folder))
    found.take(LogBatch(10.0 * number, 0, 0, "stdout", [line]) for number, line in enumerate(lines))
    found.flush()
    found.close()
    return with_metrics(RUNNING, read_files(str(folder)), {})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Epoch 1/4", "16/16 - 4s - loss: 1.2", "Epoch 2/4", "16/16 - 4s - loss: 1.1"], "25%"),
        (["Epoch [1/5], Step [100/200], Loss: 0.9", "Epoch [2/5], Step [100/200], Loss: 0.8"], "30%"),
        (["Epoch 0:  50%|█ | 5/10 [0:1<0:1, loss=0.5]"], None),
        (["iter 10/40 loss=0.9", "iter 20/40 loss=0.8"], "50%, step 20 of 40, 20s left"),
        (
            ["{'loss': 0.9, 'epoch': 0.1}", "{'loss': 0.8, 'epoch': 0.2}", " 25%|██▌       | 5/20 [00:10<00:30,  2.00s/it]"],
            "25%, step 5 of 20",
        ),
    ],
)  # fmt: skip
def test_lines_of_no_known_form_say_how_far_it_is(
    tmp_path: Path, lines: list[str], expected: str | None
) -> None:
    """Epochs that begin at 1 are not over yet; bars of an epoch count as a part of it."""
    status = read_lines(tmp_path, *lines)
    assert status.main is not None
    text = progress_text(status)
    assert text.startswith(expected or "")
    assert bool(text) is (expected is not None)


def test_bars_before_the_first_metric_are_no_progress(tmp_path: Path) -> None:
    """Such as downloads; and what is known of the progress is no metric."""
    bars = ["Downloading:  45%|████  | 9/20 [00:01<00:02]"] * 3
    assert read_lines(tmp_path, *bars) == RUNNING
    status = read_lines(tmp_path, *bars, "iter 1/4 loss=0.5", "iter 2/4 loss=0.4")
    assert status.progress == TrainingProgress("step", 2.0, 4.0, 20.0)
    assert MetricRows(read_files(str(tmp_path))).names == ["loss"]


def test_progress_of_rows_that_a_script_reported(tmp_path: Path) -> None:
    """The times of the rows are the pace, whoever wrote the total."""
    writer = MetricWriter(str(tmp_path), "runtime", "rank0")
    for step in range(100):
        writer.add({"step": step, "loss": 1.0 / (step + 1)}, 1000.0 + 2 * step)
    writer.flush()
    writer.close()
    files = read_files(str(tmp_path))
    job = {"hyperparameters": {"max_steps": 199}}
    status = with_metrics(RUNNING, files, job)
    assert status.progress == TrainingProgress("step", 99.0, 199.0, 200.0)
    assert with_metrics(RUNNING, files, {}).progress is None
    assert status.main is not None
    assert math.isclose(status.main.last, 0.01)
