"""What a driver sends for each trial is what the dry run of the same job shows: on every target, and emulated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.sweep_driver import drive
from cloudtrain.lifecycle.sweeps.plan import prepare_sweep
from cloudtrain.lifecycle.sweeps.service import SweepService
from cloudtrain.lifecycle.sweeps.study import propose
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.targets.registry import all_targets, service_of
from cloudtrain.targets.settings import TargetSettings, load_settings
from cloudtrain.targets.where import where
from tests.lifecycle.sweeps.conftest import MakeSweep

SETTINGS = """
[sagemaker]
region = "eu-west-1"
role = "arn:aws:iam::111122223333:role/train"
launch = "entrypoint"

[slurm]
shared_dir = "/fsx"
"""

WORKSPACE = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "rg",
    "workspace_name": "ws",
}

JOB: dict[str, Any] = {
    "name": "small",
    "source_dir": "src",
    "entry_point": "train.py",
    "environment": {"framework": "pytorch", "version": "2.8", "requirements": "requirements.txt"},
    "distribution": {"type": "torch", "processes_per_instance": 1},
    "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_D4s_v3"}},
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{target.name: (target.name, {}) for target in all_targets()},
    **{
        f"emulated {target.name}": ("local", {"emulate": target.name})
        for target in all_targets()
        if "emulate" in target.parts
    },
    "built environment": ("local", {"build_environment": True}),
    "built environment, not queued": ("local", {"build_environment": True, "queue": False}),
}


@pytest.fixture
def sweep(make_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> ct.Sweep:
    """A sweep in a project whose folder is the working directory. The account's files lie there too."""
    files = {
        "src/train.py": "print(1)\n",
        "src/requirements.txt": "einops\n",
        "cloudtrain.toml": SETTINGS,
    }
    project = make_source({**files, "config.json": json.dumps(WORKSPACE)}, "project")
    fields = {
        "kind": "sweep",
        "name": "tune",
        "driver": "cloudtrain",
        "job": JOB,
        "search": {"lr": [0.5, 0.25, 0.1]},
    }
    (project / "sweep.json").write_text(json.dumps({**fields, "strategy": "grid"}))
    monkeypatch.chdir(project)
    return ct.load_sweep("sweep.json")


def renamed(request: Any, old: str, new: str) -> Any:
    """The request of the run `old`, for the run `new`."""
    return json.loads(re.sub(rf"{re.escape(old)}(?![0-9])", new, json.dumps(request)))


def drive_elsewhere(name: str, state_dir: Path) -> None:
    """Run a driver to the end in another working directory, as `continue` may."""
    child = os.fork()
    if child == 0:
        os.chdir("/")
        drive(DrivenFolder(state_dir, "sweep", name), lambda: None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def submit_without_driver(
    sweep: ct.Sweep, target: TargetSettings, folder: Path, patch: pytest.MonkeyPatch
) -> str:
    """Submit the sweep, and return its name. The target's service will leave what it is to send in `folder`."""

    def submit(_: Any, plan: ct.Plan, *, again: bool = False) -> Any:
        (folder / plan.run_name).write_text(json.dumps(plan.request))
        return plan.ref

    folder.mkdir()
    service = type(service_of(target.type, load_settings()))
    patch.setattr(service, "upload", lambda *_, **__: True)
    patch.setattr(service, "has", lambda *_: False)
    patch.setattr(service, "submit", submit)
    patch.setattr(service, "status", lambda *_: RunStatus(RunState.SUCCEEDED, None, 1.0, 2.0))
    patch.setattr(SweepService, "_start", lambda *_: None)
    # nothing starts, so PyTorch is not needed
    patch.setattr("cloudtrain.targets.local.rules.find_spec", lambda _: True)
    return ct.submit(sweep, target, online=False).name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_after(3)
def test_each_trial_is_sent_as_planned(
    case: str, sweep: ct.Sweep, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of every trial is that of its job alone, and the sweep's plan shows the processes of the first."""
    name, flags = CASES[case]
    target = load_settings(sweep.folder).target(name, **flags)
    waits = "queue" in type(target).model_fields and "queue" not in target.model_fields_set
    alone = target.replace(queue=True) if waits else target
    shown = ct.plan(sweep, target)
    run = submit_without_driver(sweep, target, tmp_path / "sent", monkeypatch)
    drive_elsewhere(run, state_dir)
    assert shown.run_name == run
    for number in (1, 2, 3):
        job = (
            sweep.trial_job(propose(sweep, number))
            .from_folder(sweep.folder)
            .model_copy(update={"name": "tune"})
        )
        plan, trial = ct.plan(job, alone), f"{run}-t{number:03d}"
        sent = json.loads((tmp_path / "sent" / trial).read_text())
        assert sent == renamed(plan.request, plan.run_name, trial)
        if number == 1:
            processes = plan.to_dict()["processes"]
            assert renamed(shown.to_dict()["processes"], trial, plan.run_name) == processes
            assert "environments/" in json.dumps(sent) or not flags.get("build_environment")


def test_a_sweep_of_an_earlier_version_is_read(
    sweep: ct.Sweep, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its specification is the request alone. The driver then reads the account in its own working directory."""
    target = load_settings().target("local")
    request = ct.plan(sweep, target).request
    run = submit_without_driver(sweep, target, tmp_path / "sent", monkeypatch)
    folder = DrivenFolder(state_dir, "sweep", run)
    data = json.loads(folder.specification.read_bytes())
    assert data.pop("cwd") == str(Path.cwd())
    assert data.pop("requirements")
    assert data == request
    folder.specification.write_text(json.dumps(data))
    drive_elsewhere(run, state_dir)
    assert len(list((tmp_path / "sent").iterdir())) == 3


def test_a_sweep_is_submitted_again_from_another_folder(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was not started yet. What lies beside the request, such as the folder, may differ then."""
    monkeypatch.setattr(SweepService, "_start", lambda *_: None)
    sweep = make_sweep()
    plan, service = ct.plan(sweep, "local"), prepare_sweep(sweep, where("local")).service
    service.submit(plan)
    monkeypatch.chdir(tmp_path)
    service = prepare_sweep(sweep, where("local")).service
    assert service.submit(plan, again=True) == plan.ref
    with pytest.raises(ct.TargetError, match="exists already"):
        service.submit(plan)
