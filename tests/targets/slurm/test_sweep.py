"""A sweep on a real cluster: our driver submits each trial as a Slurm job, and everything that a sweep can do works."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.runs.sweep import SweepRun
from tests.targets.slurm.site import REPOSITORY, Site, command

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def here(site: Site, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The cluster as this process, its drivers and commands find it."""
    assert state_dir
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, site.environ[name])
    return site


def submitted(sweep: ct.Sweep, site: Site) -> SweepRun:
    run = ct.submit(sweep, site.settings())
    assert isinstance(run, SweepRun)
    return run


@pytest.mark.torch
def test_digits_to_the_end(here: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that runs on this machine: one Slurm job for each trial, the best one's model, and a look at a trial."""
    pytest.importorskip("torch")
    changes = [
        "trials=3",
        "strategy=random",
        "job.hyperparameters.epochs=2",
        "job.resources.instance_count=2",
    ]
    run = submitted(
        ct.load_sweep(REPOSITORY / "training_scripts/digits_ddp/sweep.yaml", changes), here
    )
    assert run.wait().state is ct.RunState.SUCCEEDED, run.last_status.reason
    trials = run.trials()
    assert [trial.state for trial in trials] == [ct.RunState.SUCCEEDED] * 3
    assert run.best is not None
    assert (run.best.value or 0) == max(trial.value or 0 for trial in trials)
    assert Counter(len(here.jobs_named(trial.run)) for trial in trials) == {1: 3}
    nodes = command(
        here.environ, "sacct", "-X", "-n", "-P", "--format=NNodes", f"--name={trials[0].run}"
    )
    assert nodes.split() == ["2"]

    for line, expected in {
        f"status {run.name}": "3 of 3 ended",
        f"trials {run.name} --best 1": f"{run.best.number}*",
        f"logs {run.name} --trial 2": "processes=2",
        f"logs {run.name}": "trial 3 succeeded: test_accuracy=",
    }.items():
        assert run_command(line.split()) == 0
        assert expected in capsys.readouterr().out
    assert run_command(["download", run.name, "model/", "--to", str(tmp_path / "best")]) == 0
    assert [file.name for file in (tmp_path / "best").rglob("*.pt")] == ["model.pt"]


def test_stopped_continued_and_its_failed_trials_again(here: Site, tmp_path: Path) -> None:
    """`stop` ends every trial's job; `rerun` starts those that were cut off once more; the rest follows."""
    go = tmp_path / "go"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os, time\nfrom cloudtrain import runtime\nprint('here', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.1)\nruntime.report(score=1.0)\n"
    )
    job = {"source_dir": str(tmp_path / "code"), "entry_point": "train.py"}
    search = {"rate": [0.1, 0.2, 0.3]}
    sweep = ct.Sweep(
        name="held",
        job=job,
        search=search,
        strategy="grid",
        objective={"maximize": "score"},
        parallel=2,
    )
    run = submitted(sweep, here)
    for line in run.logs(follow=True):
        if line.text.startswith("trial 2 started"):
            break
    run.stop()
    assert run.wait().state is ct.RunState.STOPPED
    assert [trial.state for trial in run.trials()] == [ct.RunState.STOPPED] * 2
    assert command(here.environ, "squeue", "--noheader").strip() == ""
    go.touch()
    assert run.rerun().wait().state is ct.RunState.SUCCEEDED
    assert [(trial.state, trial.value) for trial in run.trials()] == [
        (ct.RunState.SUCCEEDED, 1.0)
    ] * 3
    assert [trial.run for trial in run.trials()] == [
        f"{run.name}-t001-2",
        f"{run.name}-t002-2",
        f"{run.name}-t003",
    ]
