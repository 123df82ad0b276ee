"""Settings of the Azure ML target. They belong to a workspace and are never part of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from cloudtrain.core.model import Model, all_at_once
from cloudtrain.core.units import Count
from cloudtrain.errors import Problem
from cloudtrain.problems.names import PLACE_NAME
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.arguments import Fields, Texts

Credential = Literal["cli", "powershell", "developer_cli", "environment", "managed_identity", "workload_identity"]
"""Kinds of azure-identity's credentials that need no browser."""


class Service(Model):
    """An interactive service of a job on Azure ML. Open it from the job's page in the studio while the job runs."""

    type: Literal["ssh", "tensor_board", "jupyter_lab", "vs_code"]
    all_instances: bool = Field(default=False, strict=True)
    """Run the service on every instance instead of only the first one."""
    ssh_public_key: str | None = None
    """`ssh`: the public key that may log in."""
    log_dir: str | None = None
    """`tensor_board`: the folder with its events, such as `outputs/runs`."""


class Notifications(Model):
    """Emails that the service sends about a job."""

    emails: tuple[str, ...] = Field(min_length=1)
    """The addresses that get the emails."""
    on: tuple[Literal["completed", "failed", "cancelled"], ...] = ("completed", "failed", "cancelled")
    """The events that cause an email. Default: all three."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            emails: Texts,
            on: tuple[Literal["completed", "failed", "cancelled"], ...] = ("completed", "failed", "cancelled"),
        ) -> None: ...


def _azureml_rules(target: Mapping[str, Any]) -> Iterator[Problem]:
    identity = target.get("identity")
    for name in ("managed_identity_client_id", "managed_identity_resource_id"):
        if target.get(name) is not None and identity not in (None, "managed"):
            message = f"`{name}` has no effect with `identity: {identity}`"
            yield Problem((name,), message, "remove it, or write `identity: managed`", code="CT018")


class AzureML(TargetSettings):
    """An Azure Machine Learning workspace. Without `compute`, jobs run serverless."""

    type: Literal["azureml"] = "azureml"
    subscription_id: str | None = None
    """Needs `resource_group` and `workspace` beside it. Default: from `config.json` or the defaults of `az`."""
    resource_group: str | None = None
    workspace: str | None = None
    credential: Credential | None = None
    """The kind of azure-identity credential. Default: the first that works (DefaultAzureCredential)."""
    cloud: str | None = None
    """`AzureCloud`, `AzureUSGovernment`, `AzureChinaCloud`, or one that `ARM_CLOUD_METADATA_URL` lists."""
    compute: str | None = None
    """Name of a compute cluster, whose instance type the service then uses; of an attached one (Kubernetes), for which
    the job names the instance type; `virtualClusters/NAME`; or `serverless`.
    """
    experiment: str | None = None
    """The experiment. Default: the job's name."""
    display_name: str | None = None
    """The name in the studio. Default: the run's name."""
    job_tier: Literal["basic", "standard", "premium"] | None = None
    """Serverless: the quality of the capacity. For spare capacity, use the job's `spot`."""
    priority: Literal["low", "medium", "high"] | None = None
    identity: Literal["user", "managed", "aml_token"] | None = None
    """The identity with which the job reads its data. Default: the service's."""
    managed_identity_client_id: str | None = None
    managed_identity_resource_id: str | None = None
    """The identity's id in Azure Resource Manager, instead of its client id."""
    notifications: Notifications | None = None
    """Emails about the job. Only the REST API offers them; the SDK does not."""
    docker_args: str | tuple[str, ...] | None = None
    """Options of `docker run`, as one string or as a list."""
    locations: tuple[str, ...] = ()
    """Serverless: the regions that the job may run in."""
    max_instance_count: Count | None = None
    services: dict[Annotated[str, Field(pattern=PLACE_NAME)], Service] = Field(default_factory=dict)
    """Interactive services by name: ssh, TensorBoard, JupyterLab, VS Code."""
    max_cost: float | None = Field(default=None, gt=0)
    """Budget in US dollars. A job that could cost more within its `max_runtime` is an error."""

    _rules = all_at_once(_azureml_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["azureml"] = "azureml",
            subscription_id: str | None = None,
            resource_group: str | None = None,
            workspace: str | None = None,
            credential: Credential | None = None,
            cloud: str | None = None,
            compute: str | None = None,
            experiment: str | None = None,
            display_name: str | None = None,
            job_tier: Literal["basic", "standard", "premium"] | None = None,
            priority: Literal["low", "medium", "high"] | None = None,
            identity: Literal["user", "managed", "aml_token"] | None = None,
            managed_identity_client_id: str | None = None,
            managed_identity_resource_id: str | None = None,
            notifications: Notifications | Fields | None = None,
            docker_args: str | Texts | None = None,
            locations: Texts = (),
            max_instance_count: int | None = None,
            services: Mapping[str, Service | Fields] = ...,
            max_cost: float | None = None,
        ) -> None: ...
