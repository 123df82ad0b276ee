"""Settings of an Amazon SageMaker account. They belong to the target, not to a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import Field

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import Problem
from cloudtrain.job.model import Duration, Model, Size, all_at_once
from cloudtrain.system.files import expand_home
from cloudtrain.targets.settings import Dollars, TargetSettings, ini_sections

if TYPE_CHECKING:
    from cloudtrain.job.model import DurationInput, Fields, SizeInput, Texts


CHECKPOINT_PATH = r"/[A-Za-z0-9_./-]+"
"""Matches absolute paths without characters that a shell would interpret."""


Switch = Annotated[bool, Field(strict=True)]
"""`true` or `false`, and no word such as `yes`."""


class MonitoringRule(Model):
    """A rule of the debugger or the profiler: a container that watches the job."""

    name: str = Field(min_length=1)
    image: str
    """The image that evaluates the rule. AWS lists those of its own rules by region."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """Parameters of the rule, such as `rule_to_invoke`, which names the rule in the image."""
    instance_type: str | None = None
    """Default: the service's own instance, for AWS's rules."""
    volume_size: Size | None = None
    output: str | None = None
    """`s3://` URI of the folder for the rule's output."""
    local_path: str | None = None
    """The folder in the container for the rule's output."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            image: str,
            parameters: Mapping[str, str] = ...,
            instance_type: str | None = None,
            volume_size: SizeInput | None = None,
            output: str | None = None,
            local_path: str | None = None,
        ) -> None: ...


def _sagemaker_rules(target: JsonMapping) -> Iterator[Problem]:
    path = target.get("checkpoint_path")
    if isinstance(path, str) and not re.fullmatch(CHECKPOINT_PATH, path):
        yield Problem(
            ("checkpoint_path",),
            f"`{path}` cannot be the folder of checkpoints",
            "write an absolute path of letters, digits, `_`, `.` and `-`, such as `/opt/ml/mine`",
            code="CT016",
        )
    for name in sorted(target.keys() - {"profiler_rules"}):
        switch = name.partition("_")[0]
        is_detail = name.startswith(("debugger_", "profiler_"))
        if is_detail and target[name] and not target.get(switch):
            message = f"`{name}` has no effect without `{switch}`"
            yield Problem((name,), message, f"write `{switch} = true`, or remove it", code="CT018")


class SageMaker(TargetSettings):
    """An Amazon SageMaker account. Missing settings come from the AWS profile and the environment
    at submit."""

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
    compress_output: Switch = True
    """False: the service keeps the model as files instead of one `model.tar.gz`."""
    launch: Literal["auto", "toolkit", "entrypoint"] = "auto"
    """What starts the processes: the container's training toolkit, or cloudtrain's launcher
    (ContainerEntrypoint)."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    volume_kms_key: str | None = None
    output_kms_key: str | None = None
    network_isolation: Switch = False
    encrypt_inter_container_traffic: Switch = False
    keep_alive: Duration | None = None
    """Warm pool: how long instances wait for the next job (at most 6h)."""
    max_retries: int | None = Field(default=None, ge=1, le=30, strict=True)
    """Restarts after an InternalServerError of the service."""
    max_pending: Duration | None = None
    training_plan: str | None = None
    """ARN of a training plan."""
    remote_debug: Switch = False
    infra_check: Switch = False
    """Test the health of instances and their network before the job starts."""
    profiler: Switch = False
    profiler_output: str | None = None
    """`s3://` URI of the profiler's output. Default: the job's output folder."""
    profiler_interval: int | None = Field(default=None, ge=1, strict=True)
    """Milliseconds between two samples of the system's load."""
    profiler_parameters: dict[str, str] = Field(default_factory=dict)
    """`ProfilingParameters`, as the service writes them."""
    profiler_rules: tuple[MonitoringRule, ...] = ()
    debugger: Switch = False
    debugger_output: str | None = None
    """`s3://` URI of the debugger's output. Default: the job's output folder."""
    debugger_path: str | None = None
    """The folder in the container for the debugger's tensors."""
    debugger_parameters: dict[str, str] = Field(default_factory=dict)
    """`HookParameters`, as the service writes them."""
    debugger_collections: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The parameters of each collection of tensors, by its name."""
    debug_rules: tuple[MonitoringRule, ...] = ()
    experiment: str | None = None
    """Name of an existing experiment."""
    trial: str | None = None
    """Name of an existing trial of the experiment."""
    trial_component: str | None = None
    """Display name of the job in the experiment."""
    experiment_run: str | None = None
    """Name of the job's run in the experiment (`RunName`)."""
    mlflow: str | None = None
    """ARN of the MLflow server or app to which the job logs."""
    mlflow_experiment: str | None = None
    mlflow_run: str | None = None
    tensorboard: str | None = None
    """`s3://` URI for the files that the script writes to `tensorboard_path`."""
    tensorboard_path: str | None = None
    """Default: `/opt/ml/output/tensorboard`."""
    checkpoint_path: str | None = None
    """The folder of checkpoints in the container. Default: `/opt/ml/checkpoints`."""
    session_tags: Switch = False
    """Pass the tags of your own AWS session to the job's session (`SessionChainingConfig`)."""
    input_mode: Literal["download", "mount", "pipe"] = "download"
    """Input mode of the whole job in the request; each input has its own `mode`."""
    max_cost: Dollars | None = None
    """The most US dollars that one command can spend, all trials and the warm pool included."""
    max_cost_per_day: Dollars | None = None
    """The most US dollars that the submissions of 24 hours can spend together."""

    _rules = all_at_once(_sagemaker_rules)

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
            profiler_output: str | None = None,
            profiler_interval: int | None = None,
            profiler_parameters: Mapping[str, str] = ...,
            profiler_rules: tuple[MonitoringRule | Fields, ...] = (),
            debugger: bool = False,
            debugger_output: str | None = None,
            debugger_path: str | None = None,
            debugger_parameters: Mapping[str, str] = ...,
            debugger_collections: Mapping[str, Mapping[str, str]] = ...,
            debug_rules: tuple[MonitoringRule | Fields, ...] = (),
            experiment: str | None = None,
            trial: str | None = None,
            trial_component: str | None = None,
            experiment_run: str | None = None,
            mlflow: str | None = None,
            mlflow_experiment: str | None = None,
            mlflow_run: str | None = None,
            tensorboard: str | None = None,
            tensorboard_path: str | None = None,
            checkpoint_path: str | None = None,
            session_tags: bool = False,
            input_mode: Literal["download", "mount", "pipe"] = "download",
            max_cost: float | None = None,
            max_cost_per_day: float | None = None,
        ) -> None: ...


# The account settings that can be read on this machine, without the network and without boto3.

REGION = "us-east-1"
ROLE = "arn:aws:iam::000000000000:role/ROLE"
BUCKET = "BUCKET"
"""Placeholders for missing settings. SM101 then stops the submit."""

_ROLE_ARN = r"arn:aws[a-z-]*:iam::(?P<account>\d{12}):role/.+"


class SageMakerAccount(NamedTuple):
    """The account settings of the SageMaker target that can be read without the network."""

    region: str
    role: str
    """ARN of the execution role."""
    bucket: str
    missing: tuple[str, ...] = ()
    """The settings among `region`, `role` and `bucket` that are missing; a placeholder stands in
    for each."""
    profile: str | None = None
    """The AWS profile whose credentials are used. None: boto3 finds the credentials itself."""
    overlay: Any = None
    """The user's own corrections of the instance catalogue, or None."""

    @property
    def place(self) -> str:
        """Return the middle part of run references: `eu-west-1`, or `research@eu-west-1` with a
        profile."""
        if self.profile is None:
            return self.region
        return f"{quote(self.profile, safe='')}@{self.region}"


def account_of(target: SageMaker, environ: Mapping[str, str]) -> SageMakerAccount:
    """Return the target's account settings, completed from the environment and from the AWS
    configuration file.

    Default for `bucket`: `sagemaker-REGION-ACCOUNT`, as in the SageMaker SDK.
    """
    region = target.region or _region(target.profile, environ)
    bucket = target.bucket
    owner = account_id(target.role or "")
    if not bucket and region and owner:
        bucket = f"sagemaker-{region}-{owner}"
    values = {"region": region, "role": target.role, "bucket": bucket}
    return SageMakerAccount(
        region=region or REGION,
        role=target.role or ROLE,
        bucket=bucket or BUCKET,
        missing=tuple(name for name, value in values.items() if not value),
        profile=target.profile,
    )


def account_id(role: str) -> str | None:
    """Return the twelve-digit account number in a role's ARN; None if the role is only a name."""
    match = re.fullmatch(_ROLE_ARN, role)
    return match["account"] if match else None


ASKED = "the role, the buckets, the inputs, the secrets and the quota"
"""What the checks of the account are about."""


def credentials_in_sight(target: SageMaker, environ: Mapping[str, str]) -> bool:
    """Return whether this machine seems to have credentials, without using the network.

    Credentials from the metadata service of AWS machines do not count, because asking it needs the
    network.
    """
    if target.profile or any(map(environ.get, _CREDENTIALS)):
        return True
    return any(_section(file, "default") for file in _files(environ))


_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_BEARER_TOKEN_SAGEMAKER",
)


def _region(profile: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the region of the environment, or else of the profile; None if neither has one."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        return region

    name = profile or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    regions = (_section(file, name).get("region") for file in _files(environ))
    return next(filter(None, regions), None)


def _files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the paths of the AWS configuration file and of the AWS credentials file."""
    folder = expand_home(environ.get("HOME") or "~") / ".aws"
    return (
        expand_home(environ.get("AWS_CONFIG_FILE") or f"{folder}/config"),
        expand_home(environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{folder}/credentials"),
    )


def _section(file: Path, profile: str) -> Mapping[str, str]:
    """Return the profile's section, `[profile NAME]` or `[NAME]`; empty if it is missing or `file`
    cannot be read."""
    sections = ini_sections(file, default_section="")
    return sections.get(f"profile {profile}", sections.get(profile, {}))


def regions_of_profiles(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the region of each AWS profile in the user's files; an empty text for a profile
    without one."""
    regions = {"default": ""}
    for file in _files(environ):
        for name, fields in ini_sections(file, default_section="").items():
            profile = name.removeprefix("profile ").strip(" \"'")
            regions[profile] = regions.get(profile) or fields.get("region", "")
    return regions


# The middle part of a run's reference, which gives the region and profile: `eu-west-1` or
# `research@eu-west-1`.


class AwsPlace(NamedTuple):
    """A region, and the AWS profile whose credentials are used; without one, boto3 finds the
    credentials itself."""

    region: str | None
    profile: str | None

    @classmethod
    def parse(cls, text: str) -> AwsPlace:
        """Parse the text that `SageMakerAccount.place` returns."""
        profile, _, region = text.rpartition("@")
        return cls(region or None, unquote(profile) or None)
