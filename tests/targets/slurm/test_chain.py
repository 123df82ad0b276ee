"""A job that reads from a run that has not ended, on a real cluster: it waits here, and becomes one Slurm job then."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from tests.targets.places import eventually
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

PREPARE = """\
import os, pathlib, time
while not os.path.exists("GO"):
    time.sleep(0.2)
pathlib.Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "x.txt").write_text("prepared")
"""
TRAIN = "import sys\nprint(open(sys.argv[-1] + '/x.txt').read())\n"


def test_it_is_sent_once_when_the_other_has_succeeded(
    site: Site, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the process that waits is killed, and started again with `continue`."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, site.environ[name])
    monkeypatch.setenv("CLOUDTRAIN_WATCH_INTERVAL", "0.5")
    source, go = tmp_path / "src", tmp_path / "go"
    source.mkdir()
    (source / "prepare.py").write_text(PREPARE.replace("GO", str(go)))
    (source / "train.py").write_text(TRAIN)
    first = ct.submit(
        ct.TrainingJob(name="prepare", source_dir=str(source), entry_point="prepare.py"),
        site.settings(),
    )
    job = ct.TrainingJob(
        name="train",
        source_dir=str(source),
        entry_point="train.py",
        inputs={"data": {"slurm": f"run:{first.name}/model"}},
        hyperparameters={"data": "${{inputs.data}}"},
    )
    run = ct.submit(job, site.settings())
    assert (run.status().state, run.status().reason) == (
        ct.RunState.QUEUED,
        f"waits for {first.name}",
    )
    os.kill(
        json.loads((state_dir / "chains" / run.name / "status.json").read_text())["pid"],
        signal.SIGKILL,
    )
    eventually(lambda: run.status().state is ct.RunState.LOST)
    go.touch()
    assert first.wait().state is ct.RunState.SUCCEEDED
    assert site.jobs_named(run.name) == []
    assert run_command(["continue", run.name]) == 0
    assert run.wait().state is ct.RunState.SUCCEEDED
    assert [line.text for line in run.logs() if line.stream == "stdout"] == ["prepared"]
    assert len(site.jobs_named(run.name)) == 1
