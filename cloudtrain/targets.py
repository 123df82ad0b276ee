"""Where a job runs and with which account settings. Never part of a job: profiles, flags or these models hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from cloudtrain._model import Model, all_at_once
from cloudtrain.errors import Problem
from cloudtrain.problems.names import PLACE_NAME
from cloudtrain.units import Count, Duration

Credential = Literal["cli", "powershell", "developer_cli", "environment", "managed_identity", "workload_identity"]
"""Kinds of azure-identity's credentials that need no browser."""


_EMULATED = {"sagemaker": "SageMaker", "azureml": "Azure ML"}


def _local_rules(local: Mapping[str, Any]) -> Iterator[Problem]:
    service = _EMULATED.get(str(local.get("emulate")))
    if service and local.get("max_restarts"):
        message = f"`max_restarts` has no effect with `emulate`: {service} starts no rank again"
        yield Problem(("max_restarts",), message, "remove one of them")
    if service and local.get("launcher") == "fork":
        message = f"`launcher: fork` has no effect with `emulate`: the ranks start as {service} starts them"
        yield Problem(("launcher",), message, "remove one of them")


class Local(Model):
    """This machine. Instances are simulated: each is one launcher with its own environment, joined over loopback."""

    type: Literal["local"] = "local"
    python: str | None = None
    """The interpreter that runs the script; the one that runs cloudtrain unless given."""
    instance_count: Count | None = None
    """Simulated instances, instead of the job's count scaled down to this machine."""
    processes_per_instance: Count | None = None
    """Processes per simulated instance, instead of the job's count scaled down to this machine."""
    max_restarts: int = Field(default=0, ge=0, strict=True)
    """How many times all ranks are started again after one of them dies (torchrun's --max-restarts)."""
    launcher: Literal["torchrun", "fork"] = "torchrun"
    """What starts the ranks of a `torch` job: torchrun, or forks of one process that has imported torch (CPU only)."""
    grace_period: Duration = 30
    """After SIGTERM, how long processes may take to save and leave before SIGKILL."""
    emulate: Literal["sagemaker", "azureml"] | None = None
    """Run the job as this service would: its paths, files, variables and command lines, on this machine."""

    _rules = all_at_once(_local_rules)


class SageMaker(Model):
    """An Amazon SageMaker account. What is not given comes from the AWS profile and environment at submit."""

    type: Literal["sagemaker"] = "sagemaker"
    role: str | None = None
    """ARN of the execution role."""
    region: str | None = None
    profile: str | None = None
    """Name of an AWS profile."""
    bucket: str | None = None
    """S3 bucket for code and outputs; `sagemaker-REGION-ACCOUNT`, the SDK's default bucket, unless given."""
    prefix: str = "cloudtrain"
    """Keys of uploads and outputs start with this."""
    output: str | None = None
    """`s3://` URI under which models and outputs are kept; `s3://BUCKET/PREFIX/output` unless given."""
    compress_output: bool = Field(default=True, strict=True)
    """False: the model is kept as files instead of one `model.tar.gz`."""
    launch: Literal["auto", "toolkit", "entrypoint"] = "auto"
    """Who starts the processes: the container's training toolkit, or our launcher through ContainerEntrypoint."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    volume_kms_key: str | None = None
    output_kms_key: str | None = None
    network_isolation: bool = Field(default=False, strict=True)
    encrypt_inter_container_traffic: bool = Field(default=False, strict=True)
    keep_alive: Duration | None = None
    """Warm pool: how long instances wait for the next job (at most 6h)."""
    max_retries: int | None = Field(default=None, ge=1, le=30, strict=True)
    """Restarts after an InternalServerError of the service."""
    max_pending: Duration | None = None
    training_plan: str | None = None
    """ARN of a training plan."""
    remote_debug: bool = Field(default=False, strict=True)
    infra_check: bool = Field(default=False, strict=True)
    """Test the health of instances and their network before the job starts."""
    profiler: bool = Field(default=False, strict=True)
    debugger: bool = Field(default=False, strict=True)
    experiment: str | None = None
    """Name of an existing experiment."""
    trial: str | None = None
    """Name of an existing trial of the experiment."""
    trial_component: str | None = None
    """Display name of the job in the experiment."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars. A job that could cost more by its `max_runtime` is an error."""


class Service(Model):
    """An interactive service of a job on Azure ML: reached from the job's page in the studio while it runs."""

    type: Literal["ssh", "tensor_board", "jupyter_lab", "vs_code"]
    all_instances: bool = Field(default=False, strict=True)
    """On every instance; on the first one unless given."""
    ssh_public_key: str | None = None
    """`ssh`: the public key that may log in."""
    log_dir: str | None = None
    """`tensor_board`: the folder with its events, `outputs/runs`."""


def _azureml_rules(target: Mapping[str, Any]) -> Iterator[Problem]:
    client, identity = target.get("managed_identity_client_id"), target.get("identity")
    if client is not None and identity not in (None, "managed"):
        message = f"`managed_identity_client_id` has no effect with `identity: {identity}`"
        yield Problem(("managed_identity_client_id",), message, "remove it, or write `identity: managed`")


class AzureML(Model):
    """An Azure Machine Learning workspace. Without `compute` the job runs serverless."""

    type: Literal["azureml"] = "azureml"
    subscription_id: str | None = None
    """With `resource_group` and `workspace`; from `config.json` or the defaults of `az` unless given."""
    resource_group: str | None = None
    workspace: str | None = None
    credential: Credential | None = None
    """Whose credential: one kind of azure-identity's; the first that works (DefaultAzureCredential) unless given."""
    cloud: str | None = None
    """`AzureCloud`, `AzureUSGovernment`, `AzureChinaCloud`, or one that `ARM_CLOUD_METADATA_URL` lists."""
    compute: str | None = None
    """Name of a compute cluster, whose instance type the service then uses; or `serverless`."""
    experiment: str | None = None
    """The job's name unless given."""
    display_name: str | None = None
    """What the studio shows; the run's name unless given."""
    job_tier: Literal["basic", "standard", "premium"] | None = None
    """Serverless: the quality of the capacity. Spare capacity is asked for with the job's `spot`."""
    priority: Literal["low", "medium", "high"] | None = None
    identity: Literal["user", "managed", "aml_token"] | None = None
    """As whom the job reads its data; the service's default unless given."""
    managed_identity_client_id: str | None = None
    docker_args: str | tuple[str, ...] | None = None
    """Options of `docker run`, as one string or as a list."""
    locations: tuple[str, ...] = ()
    """Serverless: the regions that the job may run in."""
    max_instance_count: Count | None = None
    services: dict[Annotated[str, Field(pattern=PLACE_NAME)], Service] = Field(default_factory=dict)
    """Interactive services by name: ssh, TensorBoard, JupyterLab, VS Code."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars. A job that could cost more by its `max_runtime` is an error."""

    _rules = all_at_once(_azureml_rules)


Target = Annotated[Local | SageMaker | AzureML, Field(discriminator="type")]

TARGETS: dict[str, type[Local] | type[SageMaker] | type[AzureML]] = {
    "local": Local,
    "sagemaker": SageMaker,
    "azureml": AzureML,
}
