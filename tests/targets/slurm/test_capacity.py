"""Lists that go from a cloud to a real cluster, and through the entries of one that lacks capacity."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.capacity.service import CapacityService
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.watcher import watch
from tests.deadlines import DEADLINE
from tests.fakes.sagemaker.server import FakeAws
from tests.targets.sagemaker.place import ROLE
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for training job usage' is 0 Instances, with current "
    "utilization of 0 Instances and a request delta of 1 Instances. Please contact AWS support to request "
    "an increase for this limit."
)


def test_from_a_cloud_to_the_cluster(
    site: Site, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SageMaker refuses; what the list says then is what the cluster's job says."""
    pytest.importorskip("boto3")
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print('trained')\n")
    settings = {"shared_dir": str(site.settings().shared_dir)}
    monkeypatch.setattr(CapacityService, "_start", lambda _self, _folder: None)
    with FakeAws() as aws:
        environ = {name: site.environ[name] for name in ("PATH", "SLURM_CONF")}
        for name, value in {**aws.environ, **environ, "CLOUDTRAIN_WATCH_INTERVAL": "0.2"}.items():
            monkeypatch.setenv(name, value)
        aws.faults.refuse("CreateTrainingJob", "ResourceLimitExceeded", QUOTA)
        job = ct.TrainingJob(
            name="train",
            source_dir=str(source),
            entry_point="train.py",
            resources={"instance_type": {"sagemaker": "ml.g5.xlarge"}},
            environment={"framework": "pytorch", "version": "2.8"},
            max_runtime="10m",
            capacity={"alternatives": [{"target": "slurm", "settings": settings}]},
        )
        target = ct.SageMaker(region="eu-west-1", role=ROLE)
        run = ct.submit(job, target, online=False)
        watch(DrivenFolder(state_dir, "chain", run.name), lambda: None)
        status = run.wait(DEADLINE)
        first, second = status.transitions[:2]
        assert "account-level service limit" in (first.message or "")
        assert (status.state, second.message) == (ct.RunState.SUCCEEDED, None), status
        assert [line.text for line in run.logs() if line.stream == "stdout"] == ["trained"]
        assert len(site.jobs_named(f"{run.name}-t002")) == 1


SUBMIT = {"memory": ("--mem=999G",), "drained": ("--partition=closed",)}


@pytest.fixture
def closed(site: Site) -> Iterator[None]:
    """A partition that takes no jobs."""
    change = partial(subprocess.run, env={**os.environ, **site.environ}, check=True)
    change(["scontrol", "create", "partition=closed", "nodes=n1", "state=drain"])
    yield
    change(["scontrol", "delete", "partition=closed"])


@pytest.mark.parametrize("lack", SUBMIT)
@pytest.mark.usefixtures("closed")
def test_what_the_cluster_says_of_a_lack(
    site: Site, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    """The real answer of sbatch moves the list on. `check` says it of the entry before, and when the other one would
    start beside it."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print('trained')\n")
    monkeypatch.setattr(CapacityService, "_start", lambda _self, _folder: None)
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, site.environ[name])
    monkeypatch.setenv("CLOUDTRAIN_WATCH_INTERVAL", "0.2")
    job = ct.TrainingJob(
        name="train",
        source_dir=str(source),
        entry_point="train.py",
        max_runtime="10m",
        capacity={"alternatives": [{"settings": {"extra_sbatch": []}}]},
    )
    settings = site.settings(extra_sbatch=SUBMIT[lack])
    plan = ct.check(job, settings, online=True)
    assert [error.code for error in plan.errors] in (["SL901"], ["SL903"])
    assert "would start" not in dict(plan.summary)["try 1"]
    assert "start at" in dict(plan.summary)["try 2"]

    run = ct.submit(job, settings, online=False)
    watch(DrivenFolder(state_dir, "chain", run.name), lambda: None)
    status = run.wait(DEADLINE)
    first = status.transitions[0]
    assert (first.message or "").startswith("Slurm refused the job: ")
    assert status.state is ct.RunState.SUCCEEDED
