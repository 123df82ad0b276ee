"""Settings of an Amazon SageMaker account, which are never part of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from cloudtrain.core.units import Duration
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.arguments import DurationInput, Texts


class SageMaker(TargetSettings):
    """An Amazon SageMaker account. Missing settings come from the AWS profile and the environment at submit."""

    type: Literal["sagemaker"] = "sagemaker"
    role: str | None = None
    """ARN of the execution role."""
    region: str | None = None
    profile: str | None = None
    """Name of an AWS profile."""
    bucket: str | None = None
    """S3 bucket for code and outputs. Default: `sagemaker-REGION-ACCOUNT`, as in the SDK."""
    prefix: str = "cloudtrain"
    """Keys of uploads and outputs start with this prefix."""
    output: str | None = None
    """`s3://` URI of the folder for models and outputs. Default: `s3://BUCKET/PREFIX/output`."""
    compress_output: bool = Field(default=True, strict=True)
    """False: the service keeps the model as files instead of one `model.tar.gz`."""
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
    experiment_run: str | None = None
    """Name of the job's run in the experiment (`RunName`)."""
    mlflow: str | None = None
    """ARN of the MLflow server, or app, that the job logs to."""
    mlflow_experiment: str | None = None
    mlflow_run: str | None = None
    tensorboard: str | None = None
    """`s3://` URI for the files that the script writes to `/opt/ml/output/tensorboard`."""
    session_tags: bool = Field(default=False, strict=True)
    """Pass the tags of your own session on to the job's session (`SessionChainingConfig`)."""
    input_mode: Literal["download", "mount", "pipe"] = "download"
    """Input mode of the whole job in the request; each input has its own `mode`."""
    max_cost: float | None = Field(default=None, gt=0)
    """Budget in US dollars. A job that could cost more within its `max_runtime` is an error."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["sagemaker"] = "sagemaker",
            role: str | None = None,
            region: str | None = None,
            profile: str | None = None,
            bucket: str | None = None,
            prefix: str = "cloudtrain",
            output: str | None = None,
            compress_output: bool = True,
            launch: Literal["auto", "toolkit", "entrypoint"] = "auto",
            subnets: Texts = (),
            security_group_ids: Texts = (),
            volume_kms_key: str | None = None,
            output_kms_key: str | None = None,
            network_isolation: bool = False,
            encrypt_inter_container_traffic: bool = False,
            keep_alive: DurationInput | None = None,
            max_retries: int | None = None,
            max_pending: DurationInput | None = None,
            training_plan: str | None = None,
            remote_debug: bool = False,
            infra_check: bool = False,
            profiler: bool = False,
            debugger: bool = False,
            experiment: str | None = None,
            trial: str | None = None,
            trial_component: str | None = None,
            experiment_run: str | None = None,
            mlflow: str | None = None,
            mlflow_experiment: str | None = None,
            mlflow_run: str | None = None,
            tensorboard: str | None = None,
            session_tags: bool = False,
            input_mode: Literal["download", "mount", "pipe"] = "download",
            max_cost: float | None = None,
        ) -> None: ...
