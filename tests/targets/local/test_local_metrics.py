"""The job's `metrics` on this machine: regular expressions that read what an ordinary script prints."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.rehearse import rehearse, run_whole
from tests.cli.conftest import Cli, cli  # noqa: F401 - the fixture
from tests.deadlines import DEADLINE

pytestmark = pytest.mark.lifecycle

LOSS = {"train:loss": "loss: ([0-9.]+)"}


def job(folder: Path, script: str, metrics: dict[str, str]) -> ct.TrainingJob:
    """A script that knows nothing of cloudtrain."""
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script)
    return ct.TrainingJob(
        name="plain", source_dir=str(folder / "src"), entry_point="train.py", metrics=metrics
    )


def test_an_ordinary_script_has_a_curve(tmp_path: Path, cli: Cli) -> None:  # noqa: F811
    """The values of its lines are reports, the last ones are in the status, and the output is as it was printed."""
    script = "for step in (1, 2):\n    print(f'step {step} loss: {1 / step:.2f}')\nprint('saved')"
    run = ct.submit(job(tmp_path, script, LOSS))
    assert run.wait().metrics == {"step": 2.0, "train:loss": 0.5}
    assert run.metrics() == [{"step": 1.0, "train:loss": 1.0}, {"step": 2.0, "train:loss": 0.5}]
    assert [line.text for line in run.logs()] == ["step 1 loss: 1.00", "step 2 loss: 0.50", "saved"]
    assert json.loads(cli("status", run.name, "--json").out)["metrics"] == {
        "step": 2.0,
        "train:loss": 0.5,
    }
    column = run.metrics().columns()["train:loss"]
    assert (list(column.step), list(column.value)) == ([1.0, 2.0], [1.0, 0.5])
    assert (column.source, column.rank) == ("patterns", 0)


@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("loss: 0.5", {}),
        ("global_step=1200 loss: 0.5", {"step": 1200}),
        ("epoch 3 loss: 0.5", {"step": 3, "epoch": 3}),
        ("epoch: 2 iter: 17 loss: 0.5", {"step": 17, "epoch": 2}),
        ("Epoch [2/5], Step [100/600], loss: 0.5", {"step": 1300, "epoch": 2}),
        ("Train Epoch: 1 [640/60000 (1%)]\tloss: 0.5", {"step": 60640, "epoch": 1}),
        ("Epoch: [1][  6/12]\tloss: 0.5", {"step": 18, "epoch": 1}),
        ("Train: 1 [   6/12 ( 50%)]  loss: 0.5", {"step": 18, "epoch": 1}),
        ("train: 12 samples, loss: 0.5", {}),
        ("step time: 0.1 s, 12.5 steps/s, loss: 0.5", {}),
    ],
)
def test_the_step_is_that_of_the_line(tmp_path: Path, line: str, place: dict[str, float]) -> None:
    """As scripts write it; steps that begin anew with each epoch are counted on."""
    run = ct.submit(job(tmp_path, f"print({line!r})", LOSS))
    run.wait()
    assert run.metrics() == [{**place, "train:loss": 0.5}]


@pytest.mark.slow
def test_the_lowest_rank_that_prints_counts(tmp_path: Path) -> None:
    """Ranks that all print the same do not double the curve; a metric of another rank counts too."""
    script = (
        "import json, os, time\nrank = int(json.loads(os.environ['TF_CONFIG'])['task']['index'])\n"
        "time.sleep(0 if rank else 0.3)\nprint(f'step 1 loss: {rank}.5')\n"
        "if rank:\n    print('step 1 accuracy: 0.9')\n"
    )
    wanted = job(tmp_path, script, {**LOSS, "accuracy": "accuracy: ([0-9.]+)"})
    wanted = wanted.model_copy(update={"distribution": ct.TensorFlow()})
    run = ct.submit(wanted, target=ct.Local(instance_count=2))
    assert run.wait().metrics == {"step": 1.0, "train:loss": 0.5, "accuracy": 0.9}
    assert sorted(map(str, run.metrics())) == [
        "{'step': 1.0, 'accuracy': 0.9}",
        "{'step': 1.0, 'train:loss': 0.5}",
    ]


def test_a_metric_line_speaks_for_itself(tmp_path: Path) -> None:
    """A pattern written for SageMaker, which reads the same lines there, adds nothing to what `report` printed."""
    script = "from cloudtrain import runtime\nruntime.report(step=1, loss=0.5)"
    run = ct.submit(job(tmp_path, script, {"train:loss": "loss=([0-9.]+)"}))
    assert run.wait().metrics == {"step": 1.0, "loss": 0.5}
    assert run.metrics() == [{"step": 1.0, "loss": 0.5}]


@pytest.mark.slow
def test_a_pattern_without_end_stops_nothing(tmp_path: Path, cli: Cli) -> None:  # noqa: F811
    """One that backtracks for ever is read no more, and the output says so; other metrics, `logs` and the end of the
    run wait for nothing."""
    script = "for step in range(500):\n    print(f'step {step} ' + 'a' * 60 + ' loss: 0.5')"
    run = ct.submit(job(tmp_path, script, {"hostile": "(?:a+)+([0-9])b", **LOSS}))
    began = time.monotonic()
    assert run.wait(DEADLINE).metrics == {"step": 499.0, "train:loss": 0.5}
    assert time.monotonic() - began < DEADLINE / 2
    said = [line.text for line in run.logs() if line.rank is None]
    assert said == [
        "cloudtrain: metric `hostile` is no longer read, because its pattern needs more than 0.2 s for a line"
    ]
    assert len(run.metrics()) == 500
    assert said[0] in cli("logs", run.name).out


def test_who_finishes_a_lost_run_reads_no_pattern(tmp_path: Path) -> None:
    """The command that finds a killed supervisor completes the output at once, whatever the patterns are."""
    script = "import time\nprint('step 1 loss: 0.5', flush=True)\ntime.sleep(600)"
    run = ct.submit(job(tmp_path, script, LOSS))
    next(run.logs(follow=True))
    os.kill(json.loads((run.directory / "status.json").read_text())["pid"], signal.SIGKILL)  # type: ignore[operator]
    assert run.wait(DEADLINE).state is ct.RunState.LOST
    assert run.metrics() == [{"step": 1.0, "train:loss": 0.5}]


TRAIN = """\
import os, pathlib, time
kept, whole = pathlib.Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step"), pathlib.Path(WHOLE)
first = int(kept.read_text()) + 1 if kept.exists() else 1
for step in range(first, 9):
    part = kept.with_name("part")
    part.write_text(str(step))
    part.rename(kept)  # before the line after which SIGTERM may come
    print(f"step {step} loss: {1 / step:.4f}", flush=True)
    if step == 4 and whole.exists():  # the interrupted run: SIGTERM finds it here, however late it comes
        whole.unlink()
        time.sleep(3600)
whole.touch()
"""


@pytest.mark.slow
def test_an_ordinary_script_is_rehearsed(tmp_path: Path) -> None:
    """Its curve is what the patterns read: interrupted, resumed and compared without a change to the script."""
    script = TRAIN.replace("WHOLE", repr(str(tmp_path / "whole")))
    whole = run_whole(job(tmp_path, script, LOSS), lambda wanted: ct.submit(wanted))
    found = rehearse(whole)
    assert (found.verdict.kind, found.comparison.metrics, found.comparison.compared) == (
        "same",
        ("train:loss",),
        8,
    )
    assert found.comparison.resumed_at == found.comparison.stopped_at + 1


def test_an_emulation_reads_what_sagemaker_would(tmp_path: Path) -> None:
    """The patterns of the request count, overrides included."""
    wanted = job(tmp_path, "print('loss: 0.5 speed: 7')", LOSS)
    overrides = {
        "AlgorithmSpecification": {
            "MetricDefinitions": [{"Name": "speed", "Regex": "speed: ([0-9]+)"}]
        }
    }
    update = {
        "sagemaker_overrides": overrides,
        "resources": ct.Resources(instance_type="ml.g5.xlarge"),
    }
    wanted = wanted.model_copy(update=update)
    plan = ct.plan(wanted, target=ct.Local(emulate="sagemaker"))
    assert json.loads(plan.request_json)["metrics"] == {"speed": "speed: ([0-9]+)"}
