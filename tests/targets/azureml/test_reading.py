"""One body has one meaning: the processes, the rules, the summary, adoption, export and emulation agree about it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError, TargetError
from cloudtrain.job.distribution import launcher_of
from cloudtrain.machines.table import hourly
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.azureml.adopt.requests import drafts_of
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.emulate import ACCOUNT
from cloudtrain.targets.azureml.export import job_of as exported
from cloudtrain.targets.azureml.reading import AzureMLReading, Body
from cloudtrain.targets.local.compile import compile_local
from tests.targets.azureml.test_emulate import BUNDLE, HERE, azureml_request, job_of

DISTRIBUTIONS = {
    "torch": ct.Torch(),
    "torch, 2": ct.Torch(processes_per_instance=2),
    "mpi": ct.MPI(),
    "mpi, 2": ct.MPI(processes_per_instance=2),
    "horovod": ct.Horovod(),
    "deepspeed": ct.DeepSpeed(),
    "deepspeed by mpi": ct.DeepSpeed(launch="mpi"),
    "deepspeed's launcher": ct.DeepSpeed(launch="launcher"),
    "tensorflow": ct.TensorFlow(),
    "tensorflow, 3 workers": ct.TensorFlow(workers=3),
    "parameter servers": ct.TensorFlow(strategy="parameter_server", parameter_servers=1),
    "ray": ct.Ray(),
    "none": ct.NoDistribution(),
}

OVERRIDES: tuple[dict[str, Any], ...] = (
    {},
    {"distribution": {"distributionType": "PyTorch", "processCountPerInstance": 3}},
    {"distribution": {"distributionType": "pytorch", "processCountPerInstance": 3}},
    {"distribution": {"distributionType": "Mpi", "processCountPerInstance": 3}},
    {
        "distribution": {
            "distributionType": "TensorFlow",
            "parameterServerCount": 1,
            "workerCount": 2,
        }
    },
    {"distribution": {"distributionType": "Ray", "port": 6379}},
    {"distribution": {"processCountPerInstance": None}},
    {"distribution": None},
    {"resources": {"instanceCount": 3}},
    {"resources": {"instanceType": "Standard_NC24ads_A100_v4"}},
    {"computeId": f"{ACCOUNT.workspace_id}/computes/cluster", "resources": {"instanceType": None}},
    {"queueSettings": {"jobTier": "spot"}},
    {"limits": {"jobLimitsType": "Command", "timeout": "PT3H"}},
)

KINDS = {"torchrun": "PyTorch", "mpirun": "Mpi", "tensorflow": "TensorFlow"}
TYPES = {"PyTorch": "torch", "Mpi": "mpi", "TensorFlow": "tensorflow", "Ray": "ray", "": None}


def readings(distribution: ct.Distribution) -> list[tuple[AzureMLReading, Plan]]:
    """The plan and its reading, for each number of instances and each of the overrides."""
    found = []
    for count, overrides in product((1, 2), OVERRIDES):
        resources = {"instance_count": count, "instance_type": {"azureml": "Standard_ND96asr_v4"}}
        job = job_of(
            distribution=distribution,
            resources=resources,
            azureml_overrides=overrides,
            max_runtime="1h",
        )
        plan = compile_azureml(job, ct.AzureML(), CompileContext("job-1", BUNDLE, ACCOUNT))
        found.append((AzureMLReading("azureml", job, ACCOUNT, plan), plan))
    return found


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_all_readers_agree(name: str) -> None:
    """About who starts the processes, how many there are, and on which machines."""
    for reading, plan in readings(DISTRIBUTIONS[name]):
        body = reading.body
        launched(body, plan)
        judged(reading)
        told(reading, dict(plan.summary))
        adopted(body)
        written(body)


def launched(body: Body, plan: Plan) -> None:
    """The processes of the plan are those of the body."""
    expected = {"Ray": 0, "": 1}.get(body.kind, body.ranks)
    assert len(plan.processes) == expected
    assert {process.instance for process in plan.processes} <= set(range(body.instances))
    if body.kind in ("PyTorch", "Mpi"):
        assert (
            sum(process.instance == 0 for process in plan.processes) == body.processes_per_instance
        )


def judged(reading: AzureMLReading) -> None:
    """The rules see the launcher and its numbers, but for MPI without a count, which is an error (AZ302)."""
    body, distribution = reading.body, reading.distribution
    assert (distribution.type == "ray") is (body.kind == "Ray")
    if body.kind != "Ray":
        assert KINDS.get(launcher_of(distribution), "") == body.kind
    count = getattr(distribution, "processes_per_instance", None)
    if (
        body.kind in ("PyTorch", "Mpi")
        and body.distribution.get("processCountPerInstance") is not None
    ):
        assert count in (None, body.processes_per_instance)
    assert reading.machines.groups == (reading.group,)
    assert reading.group.count == reading.resources.instance_count == body.instances
    assert (reading.spot is not None) is body.is_spot
    assert reading.max_runtime == reading.longest_run == body.max_runtime


def told(reading: AzureMLReading, summary: dict[str, str]) -> None:
    """The first lines of the plan say the same."""
    body, group = reading.body, reading.group
    assert summary["distribution"] == reading.distribution.type
    assert summary["compute"] == body.compute_name
    assert summary["instances"].startswith(f"{body.instances} x {group.instance_type}")
    assert summary["max runtime"] == f"{(body.max_runtime or 0) // 3600}h"
    price = (hourly([(group.known, group.count)]) or 0) * (body.max_runtime or 0) / 3600
    assert summary["cost"].startswith(f"at most ${price:,.2f} ")
    assert ("spot" in summary["cost"]) is body.is_spot
    assert summary.get("tier", "") == body.tier


def adopted(body: Body) -> None:
    """A job that is made of the body starts the same."""
    (draft,) = drafts_of(Original("azureml", body.request, "", ""))
    distribution = draft.job.get("distribution", {})
    assert distribution.get("type") == TYPES[body.kind]
    if body.kind in ("PyTorch", "Mpi"):
        assert distribution["processes_per_instance"] == body.processes_per_instance
    if body.kind == "TensorFlow":
        assert distribution.get("parameter_servers", 0) == body.parameter_servers
        assert distribution.get("workers", body.instances) == body.workers
    assert draft.job["resources"].get("instance_count", 1) == body.instances
    assert ("spot" in draft.job) is body.is_spot
    assert draft.job["max_runtime"] == body.max_runtime


FIELDS = {"TensorFlow": {"parameterServerCount", "workerCount"}, "Ray": {"port"}}


def written(body: Body) -> None:
    """The SDK's job says the same, or the SDK cannot express the body: another spelling, fields of another kind."""
    fields = {"distributionType", *FIELDS.get(body.kind, {"processCountPerInstance"})}
    is_spelt = body.distribution.get("distributionType", "") == body.kind and body.tier != "spot"
    if (
        not is_spelt
        or not body.distribution.keys() <= fields
        or body.properties.get("distribution") == {}
    ):
        with pytest.raises(TargetError, match="cannot express"):
            exported(body.request, "job-1")
        return
    job = exported(body.request, "job-1")
    assert job.get("distribution", {}).get("type", "") == body.kind.lower()
    assert job.get("resources", {}).get("instance_count", 1) == body.instances
    assert job["limits"]["timeout"] == body.max_runtime


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_an_emulation_starts_what_the_body_says(name: str) -> None:
    """On this machine, with the counts that fit it."""
    for overrides in OVERRIDES:
        job = job_of(distribution=DISTRIBUTIONS[name], azureml_overrides=overrides)
        context = CompileContext("job-1", BUNDLE, HERE)
        if name in ("horovod", "ray"):
            with pytest.raises(JobError, match=name.capitalize()):
                compile_local(job, ct.Local(emulate="azureml"), context)
            continue
        body = Body(azureml_request(job))
        if body.kind == "Ray":
            with pytest.raises(JobError, match="Ray"):
                compile_local(job, ct.Local(emulate="azureml"), context)
            continue
        plan = compile_local(job, ct.Local(emulate="azureml"), context)
        assert len(plan.request["processes"]) == (body.ranks if body.kind else 1)
        assert plan.request["instances"] == body.instances
        assert (
            dict(plan.summary)["started by"]
            == f"the service itself ({body.kind or 'no distribution'})"
        )
