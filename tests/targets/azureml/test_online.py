"""Checks that ask the workspace: what is wrong is found, what may not be looked at is a warning, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Finding
from cloudtrain.rules.engine import registered
from cloudtrain.targets.azureml.service.service import AzureMLService
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.compute import Quota
from tests.targets.azureml.conftest import WORKSPACE, environment_plan, plan_of

GPU, CPU = "Standard_ND96isr_H100_v5", "Standard_DS3_v2"
SMALL = "Standard_NC24ads_A100_v4"
VIRTUAL = WORKSPACE.partition("/workspaces/")[0] + "/virtualclusters/vc1"
CLIENT = "11111111-2222-3333-4444-555555555555"
ASSETS = {
    "environmentId": f"{WORKSPACE}/environments/env/versions/3",
    "inputs": {
        "train": {"jobInputType": "uri_folder", "uri": f"{WORKSPACE}/data/cifar/versions/1"},
        "more": {
            "jobInputType": "uri_folder",
            "uri": "azureml://datastores/workspaceblobstore/paths/x/",
        },
        "rate": {"jobInputType": "literal", "value": "0.1"},
        "far": {"jobInputType": "uri_file", "uri": "https://example.org/iris.csv"},
    },
    "outputs": {
        "model": {"jobOutputType": "uri_folder"},
        "plots": {"jobOutputType": "uri_folder", "uri": "azureml://datastores/results/paths/p/"},
    },
}
SERVERLESS = {**ASSETS, "resources": {"instanceCount": 2, "instanceType": SMALL}}
CLUSTER = {
    **ASSETS,
    "computeId": f"{WORKSPACE}/computes/gpu-cluster",
    "resources": {"instanceCount": 2},
}


def check(
    fake: FakeAzure, service: AzureMLService, body: dict[str, Any], kind: str, **more: Any
) -> list[Finding]:
    """The findings for a body planned for that type of machines, and never anything but questions."""
    given = ct.Resources(instance_type={"azureml": kind}, instance_count=2)
    job = ct.TrainingJob(name="digits", entry_point="train.py", resources=given)
    target = ct.AzureML(
        compute=str(body["computeId"]).rpartition("/")[2] if "computeId" in body else None,
        **more,
    )
    found = service.check(job, target, plan_of(**body))
    assert {request.method for request in fake.requests} <= {"GET"}
    return found


@pytest.fixture(autouse=True)
def workspace(fake: FakeAzure) -> None:
    """A workspace in which everything is right."""
    fake.assets.add("environments", "env", "3", image="image:1")
    fake.assets.add(
        "data", "cifar", "1", dataUri="azureml://datastores/workspaceblobstore/paths/cifar/"
    )
    fake.datastores.add(type(fake.datastores["workspaceblobstore"])("results", "results", "sas"))
    fake.computes.quotas.append(Quota("TotalLowPriorityCores", 100))


def test_all_is_well_on_a_cluster(fake: FakeAzure, service: AzureMLService) -> None:
    """No finding, whatever the case of the size's name, and each thing was looked at once."""
    assert check(fake, service, CLUSTER, GPU) == []
    assert sorted(call for call in fake.calls() if "{WS}" in call) == [
        "GET {WS}", "GET {WS}/computes/gpu-cluster", "GET {WS}/data/cifar/versions/1", "GET {WS}/datastores/results",
        "GET {WS}/datastores/workspaceblobstore", "GET {WS}/environments/env/versions/3",
    ]  # fmt: skip


def test_all_is_well_serverless(fake: FakeAzure, service: AzureMLService) -> None:
    """Sizes and quota of the workspace's region are asked for."""
    assert check(fake, service, SERVERLESS, SMALL) == []
    assert {call.rpartition("/")[2] for call in fake.calls("GET", "locations/eastus")} == {
        "vmSizes",
        "usages",
    }


def test_serverless_by_name_is_no_cluster(fake: FakeAzure, service: AzureMLService) -> None:
    """The SDK sends it as an id of the workspace; sizes and quota are looked at, and no compute."""
    body = {**SERVERLESS, "computeId": f"{WORKSPACE}/computes/serverless"}
    assert check(fake, service, body, SMALL) == []
    assert not fake.calls("GET", "computes/")
    assert fake.calls("GET", "locations/eastus")


def test_a_virtual_cluster_is_not_asked_for(fake: FakeAzure, service: AzureMLService) -> None:
    """It is beside the workspace; environment and data are looked at all the same."""
    body = {**SERVERLESS, "computeId": VIRTUAL}
    (found,) = check(fake, service, body, "Singularity.ND40rs_v2")
    assert (found.code, str(found.level)) == ("CT541", "notice")
    assert not fake.calls("GET", "virtualclusters")
    assert fake.calls("GET", "environments/env/versions/3")


def test_an_environment_that_the_submit_makes(fake: FakeAzure, service: AzureMLService) -> None:
    """It does not exist yet, and need not."""
    job = ct.TrainingJob(name="digits", entry_point="train.py")
    assert service.check(job, ct.AzureML(), environment_plan()) == []


def kind_of(fake: FakeAzure, name: str, **properties: Any) -> None:
    fake.computes.clusters[name].more = properties


def quota(fake: FakeAzure, family: str, limit: int, used: int = 0) -> None:
    fake.computes.quotas = [item for item in fake.computes.quotas if item.family != family]
    fake.computes.quotas.append(Quota(family, limit, used))


FAMILY = "StandardNCADSA100v4Family"
SPOT = {**SERVERLESS, "queueSettings": {"jobTier": "Spot"}}
INSTANCE = {
    "computeType": "ComputeInstance",
    "properties": {"vmSize": GPU.upper(), "state": "Stopped"},
}
NEWEST_DATA = {
    "train": {"jobInputType": "uri_folder", "uri": f"{WORKSPACE}/data/cifar/labels/latest"}
}
ONE = {**CLUSTER, "resources": {"instanceCount": 1}}
MANAGED = {"identity": {"identityType": "Managed", "clientId": CLIENT}}

Case = tuple[Callable[[FakeAzure], object], dict[str, Any], str, str, str]
CASES: dict[str, Case] = {
    "no compute": (
        lambda fake: fake.computes.add("gpu-clusters", GPU) and fake.computes.clusters.pop("gpu-cluster"),
        CLUSTER, GPU, "AZ904", "no compute `gpu-cluster`",
    ),
    "a database": (
        lambda fake: kind_of(fake, "gpu-cluster", computeType="Databricks"), CLUSTER, GPU, "AZ905", "of the type Databricks",
    ),
    "one machine for two": (
        lambda fake: kind_of(fake, "gpu-cluster", **{**INSTANCE, "properties": {"vmSize": GPU, "state": "Running"}}),
        CLUSTER, GPU, "AZ905", "is one machine, and the job needs 2",
    ),
    "a stopped instance": (
        lambda fake: kind_of(fake, "gpu-cluster", **INSTANCE), ONE, GPU, "AZ906", "does not run: Stopped",
    ),
    "a failed cluster": (
        lambda fake: kind_of(
            fake, "gpu-cluster", provisioningState="Failed",
            provisioningErrors=[{"error": {"code": "Subnet", "message": "the subnet\nis full"}}],
        ),
        CLUSTER, GPU, "AZ906", "in the state Failed: the subnet is full",
    ),
    "another type": (lambda fake: None, CLUSTER, SMALL, "AZ907", f"and the job was planned for {SMALL}"),
    "too small a cluster": (
        lambda fake: setattr(fake.computes.clusters["gpu-cluster"], "most", 1), CLUSTER, GPU, "AZ908", "may have 1 instances",
    ),
    "not offered": (
        lambda fake: fake.computes.sizes.pop(1), SERVERLESS, SMALL, "AZ909", f"offers no {SMALL} in eastus",
    ),
    "no quota": (lambda fake: quota(fake, FAMILY, 0), SERVERLESS, SMALL, "AZ910", "is 0 vCPUs, and the job needs 48"),
    "quota of all": (
        lambda fake: quota(fake, "TotalLowPriorityCores", 47), SPOT, SMALL, "AZ910", "`TotalLowPriorityCores` in eastus is 47",
    ),
    "in use": (lambda fake: quota(fake, FAMILY, 50, 10), SERVERLESS, SMALL, "AZ911", "10 of the 50 vCPUs"),
    "no quota listed": (
        lambda fake: setattr(fake.computes, "quotas", []), SERVERLESS, SMALL, "AZ902", f"lists no quota `{FAMILY}`",
    ),
    "no environment": (
        lambda fake: fake.assets._versions.pop(("environments", "env", "3")),
        CLUSTER, GPU, "AZ912", "no environment `env:3`",
    ),
    "no data": (
        lambda fake: fake.assets._versions.pop(("data", "cifar", "1")), CLUSTER, GPU, "AZ913", "no data `cifar:1`",
    ),
    "no datastore of an input": (
        lambda fake: fake.datastores.by_name.pop("workspaceblobstore"), CLUSTER, GPU, "AZ913", "no datastore `workspaceblobstore`",
    ),
    "no datastore of an output": (
        lambda fake: fake.datastores.by_name.pop("results"), CLUSTER, GPU, "AZ914", "no datastore `results`",
    ),
    "the newest environment": (
        lambda fake: None, {**CLUSTER, "environmentId": f"{WORKSPACE}/environments/env/labels/latest"}, GPU,
        "AZ916", "`env@latest` is the version `3` now",
    ),
    "the newest data": (
        lambda fake: fake.assets.add("data", "cifar", "2"), {**CLUSTER, "inputs": NEWEST_DATA}, GPU,
        "AZ916", "`cifar@latest` is the version `2` now",
    ),
    "the newest of nothing": (
        lambda fake: None, {**CLUSTER, "environmentId": f"{WORKSPACE}/environments/envy/labels/latest"}, GPU,
        "AZ912", "no environment `envy`",
    ),
    "the newest of no data": (
        lambda fake: fake.assets._versions.pop(("data", "cifar", "1")), {**CLUSTER, "inputs": NEWEST_DATA}, GPU,
        "AZ913", "no data `cifar`",
    ),
    "no identity of that id": (
        lambda fake: None, {**CLUSTER, "identity": {"identityType": "Managed", "resourceId": "/subscriptions/s/me"}}, GPU,
        "AZ915", "no managed identity `/subscriptions/s/me`",
    ),
    "no identity": (lambda fake: None, {**CLUSTER, **MANAGED}, GPU, "AZ915", f"no managed identity `{CLIENT}`"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_after(8)
def test_found(fake: FakeAzure, service: AzureMLService, case: str) -> None:
    """One finding, at the level of its rule, with a hint."""
    spoil, body, kind, code, part = CASES[case]
    spoil(fake)
    (found,) = check(fake, service, body, kind)
    assert (found.code, found.level) == (code, registered[code].level)
    assert part in found.message
    assert found.hint


UNTOLD: dict[str, tuple[Callable[[FakeAzure], object], dict[str, Any]]] = {
    "a virtual cluster": (lambda fake: None, {**SERVERLESS, "computeId": VIRTUAL}),
    "Kubernetes": (lambda fake: kind_of(fake, "gpu-cluster", computeType="Kubernetes", properties={}), CLUSTER),
    "no permission": (lambda fake: fake.faults.refuse("GET", "computes/gpu-cluster", 403, "AuthorizationFailed", times=9), CLUSTER),
    "no answer": (lambda fake: fake.faults.refuse("GET", "workspaces", 403, "AuthorizationFailed", times=9), CLUSTER),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTOLD)
def test_a_cap_needs_the_type_of_a_compute(
    fake: FakeAzure, service: AzureMLService, case: str
) -> None:
    """A service that does not tell it is no reason to trust the job; without a cap it is none to refuse the job."""
    spoil, body = UNTOLD[case]
    spoil(fake)
    codes = {item.code for item in check(fake, service, body, GPU, max_cost_per_day=1e6)}
    assert "AZ907" in codes
    assert "AZ907" not in {item.code for item in check(fake, service, body, GPU)}


def test_a_cap_trusts_the_workspace(fake: FakeAzure, service: AzureMLService) -> None:
    """A cluster with the type of the job is enough; the type that overrides name instead is compared too."""
    assert check(fake, service, CLUSTER, GPU, max_cost=1e6) == []
    cheap = {**CLUSTER, "resources": {"instanceCount": 2, "instanceType": CPU}}
    (found,) = check(fake, service, cheap, GPU, max_cost=1e6)
    assert found.code == "AZ907"


def test_every_rule_has_a_case(fake: FakeAzure) -> None:
    """Those about credentials and the workspace are below."""
    rules = {code for code in registered if code.startswith("AZ9")}
    assert {case[3] for case in CASES.values()} | {"AZ901", "AZ903"} == rules


def test_spot_has_a_quota_of_its_own(fake: FakeAzure, service: AzureMLService) -> None:
    """That of the family does not limit it."""
    quota(fake, FAMILY, 0)
    assert check(fake, service, SPOT, SMALL) == []


def test_sizes_that_are_not_sold_as_spot(
    fake: FakeAzure, service: AzureMLService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The region says which."""
    described = {**fake.computes.sizes[1].describe(), "lowPriorityCapable": False}
    monkeypatch.setattr(type(fake.computes.sizes[1]), "describe", lambda _: described)
    (found,) = check(fake, service, SPOT, SMALL)
    assert (found.code, "not sold as spot capacity" in found.message) == ("AZ909", True)


def test_one_good_region_is_enough(fake: FakeAzure, service: AzureMLService) -> None:
    """A serverless job runs in any of its `locations`."""
    body = {
        **SERVERLESS,
        "resources": {**SERVERLESS["resources"], "locations": ["westus", "eastus"]},
    }
    fake.before("GET", "locations/westus/usages", lambda _: quota(fake, FAMILY, 0))
    fake.before("GET", "locations/eastus/usages", lambda _: quota(fake, FAMILY, 48))
    assert check(fake, service, body, SMALL) == []


def test_a_region_where_it_only_waits_is_better_than_one_without_the_size(
    fake: FakeAzure, service: AzureMLService
) -> None:
    """Two warnings about the queue stop no job; an error of another region would."""
    body = {
        **SERVERLESS,
        "resources": {**SERVERLESS["resources"], "locations": ["westus", "eastus"]},
    }
    size = next(size for size in fake.computes.sizes if size.name == SMALL)
    fake.before("GET", "locations/westus/vmSizes", lambda _: fake.computes.sizes.remove(size))
    fake.before("GET", "locations/eastus/vmSizes", lambda _: fake.computes.sizes.append(size))
    quota(fake, FAMILY, 50, 10)
    quota(fake, "TotalDedicatedCores", 50, 10)
    assert [found.code for found in check(fake, service, body, SMALL)] == ["AZ911", "AZ911"]


def test_an_identity_that_the_cluster_has(
    fake: FakeAzure, service: AzureMLService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the id of its client, in any case."""
    users = {f"{WORKSPACE}/x": {"clientId": CLIENT.upper(), "principalId": "p"}}
    cluster = fake.computes.clusters["gpu-cluster"]
    described = {
        **cluster.describe(WORKSPACE, "eastus"),
        "identity": {"type": "UserAssigned", "userAssignedIdentities": users},
    }
    monkeypatch.setattr(cluster, "describe", lambda *_: described)
    assert check(fake, service, {**CLUSTER, **MANAGED}, GPU) == []


LOOKS = ["computes/gpu-cluster", "environments/env", "data/cifar", "datastores/results"]


@pytest.mark.parametrize("path", LOOKS)
def test_what_may_not_be_looked_at(fake: FakeAzure, service: AzureMLService, path: str) -> None:
    """A warning with the role that would let the check look; the other checks go on."""
    fake.faults.forbid("GET", path, times=9)
    (found,) = check(fake, service, CLUSTER, GPU)
    assert (found.code, str(found.level)) == ("AZ902", "warning")
    assert "role" in (found.hint or "")
    assert all(fake.received("GET", other) for other in LOOKS)


def test_a_workspace_that_may_not_be_looked_at(fake: FakeAzure, service: AzureMLService) -> None:
    """One warning, and nothing else is asked."""
    fake.faults.forbid("GET", r"^\{WS\}$", times=9)
    (found,) = check(fake, service, CLUSTER, GPU)
    assert (found.code, str(found.level)) == ("AZ902", "warning")
    assert fake.received("GET", "computes") == []


def test_no_workspace(fake: FakeAzure, service: AzureMLService) -> None:
    """An error that says how to see those that there are."""
    message = "The Resource 'Microsoft.MachineLearningServices/workspaces/ws' under resource group 'rg' was not found."
    fake.faults.refuse("GET", r"^\{WS\}$", 404, "ResourceNotFound", message, times=9)
    (found,) = check(fake, service, CLUSTER, GPU)
    assert found.code == "AZ903"
    assert "az ml workspace list" in (found.hint or "")


def test_credentials_that_do_not_work(fake: FakeAzure, service: AzureMLService) -> None:
    """One error that says how to log in."""
    fake.faults.expire_token("GET", r"^\{WS\}$", times=9)
    (found,) = check(fake, service, CLUSTER, GPU)
    assert found.code == "AZ901"
    assert "az login" in (found.hint or "")


def test_no_network(fake: FakeAzure, service: AzureMLService) -> None:
    """One warning: a plan can be checked on a train."""
    fake.faults.close_before("*", ".", times=99)
    (found,) = check(fake, service, CLUSTER, GPU)
    assert (found.code, str(found.level)) == ("AZ902", "warning")
