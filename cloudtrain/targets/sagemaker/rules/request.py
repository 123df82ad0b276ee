"""Rules about the account settings of a SageMaker job: role, region, bucket and keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.errors import did_you_mean
from cloudtrain.job.model import overrides_of
from cloudtrain.plans.plan import Level
from cloudtrain.rules import machines as shared
from cloudtrain.rules.engine import (
    Fault,
    Nature,
    Subject,
    ValuePath,
    mapping_at,
    rows_at,
    rule,
    text_at,
    value_at,
)
from cloudtrain.targets.sagemaker import fields
from cloudtrain.targets.sagemaker.catalogue.images import registries
from cloudtrain.targets.sagemaker.catalogue.shapes import ShapeViolation, violations
from cloudtrain.targets.sagemaker.compile.machines import DEFAULT_VOLUME_GIB
from cloudtrain.targets.sagemaker.plan import PROCESSING, RUN_TAG, TRAINING
from cloudtrain.targets.sagemaker.reading import read
from cloudtrain.targets.sagemaker.request import JsonMapping
from cloudtrain.targets.settings import CAPS

_WANTED = {
    "role": (
        "no SageMaker execution role is configured",
        'role = "arn:aws:iam::ACCOUNT:role/NAME"',
    ),
    "region": ("no AWS region is configured", 'region = "eu-west-1"'),
    "bucket": ("no S3 bucket is configured for code and outputs", 'bucket = "NAME"'),
}  # fmt: skip

_ROLE = r"(?a)arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{12}):role/?[\w+=,.@/-]+"
_ASSUMED = r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([^/]+)/.*"
_REGION = r"[a-z]{2,4}(-[a-z]+)+-\d+"
_BUCKET = r"(?!xn--|sthree-)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]"
_LEGACY_BUCKET = r"[A-Za-z0-9._-]{3,255}"
"""Bucket names that us-east-1 allowed until 2018; existing buckets keep them."""

_ADDRESS = r"\d+\.\d+\.\d+\.\d+"
_REGISTRY = r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z.-]+/.+"

_PARTITIONS = {
    "cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "us-isob": "aws-iso-b",
    "eu-isoe": "aws-iso-e",
    "us-isof": "aws-iso-f", "eusc": "aws-eusc",
}  # fmt: skip
"""The prefixes of a partition's regions (botocore's endpoints.json); all other regions are in
`aws`."""


@rule("SM101", Level.ERROR, Nature.FACT, needs_request=False)
def account_incomplete(subject: Subject) -> Iterator[Fault]:
    """The role, region or bucket is not configured.

    A training job runs in a region, with an IAM role that SageMaker assumes, and keeps its code and
    outputs in a bucket. All jobs share these settings of the target. Write them into
    `cloudtrain.toml` once.
    """
    missing = subject.account.missing
    overrides = overrides_of(subject.job, "sagemaker")
    role_is_overridden = "role" in missing and "RoleArn" in overrides
    # the role of an override is no setting, so it gives the bucket no default
    bucket_will_follow = not role_is_overridden and ("region" in missing or "role" in missing)
    for name in missing:
        if name == "role" and role_is_overridden:
            continue
        if name == "bucket" and bucket_will_follow:
            continue  # once region and role are set, the bucket has a default
        message, line = _WANTED[name]
        yield Fault(message, f"add `{line}` under `[sagemaker]` in `cloudtrain.toml`")


@rule("SM102", Level.ERROR, Nature.FACT)
def role_is_no_role(subject: Subject) -> Iterator[Fault]:
    """The execution role is not a valid ARN of an IAM role.

    The API takes only `arn:aws:iam::ACCOUNT:role/NAME`. It refuses the bare name of a role, a user,
    and the ARN of a session that assumed the role.
    """
    role = text_at(subject.plan.request, "RoleArn")
    if "role" in subject.account.missing or re.fullmatch(_ROLE, role):
        return

    arn = "arn:aws:iam::ACCOUNT:role/NAME"
    assumed = re.fullmatch(_ASSUMED, role)
    if assumed:
        arn = f"arn:{assumed[1]}:iam::{assumed[2]}:role/{assumed[3]}"
    elif re.fullmatch(r"[\w+=,.@-]+", role):
        arn = f"arn:aws:iam::ACCOUNT:role/{role}"
    yield Fault(f"`{role}` is not the ARN of an IAM role", f'write `role = "{arn}"`')


@rule("SM103", Level.ERROR)
def role_of_another_partition(subject: Subject) -> Iterator[Fault]:
    """The role and the region belong to different AWS partitions.

    AWS, AWS China and AWS GovCloud are separate partitions. A job cannot use a role from another
    partition.
    """
    account = subject.account
    if "role" in account.missing or "region" in account.missing:
        return

    own = "aws"
    for start, partition in _PARTITIONS.items():
        if account.region.startswith(f"{start}-"):
            own = partition

    role = re.fullmatch(_ROLE, text_at(subject.plan.request, "RoleArn"))
    if role is not None and role["partition"] != own:
        of_role = role["partition"]
        message = (
            f"the role is in the partition `{of_role}`, and the region `{account.region}` in "
            f"`{own}`"
        )
        yield Fault(message, f"use a role that begins with `arn:{own}:iam::`, or another region")


@rule("SM104", Level.ERROR, Nature.FACT)
def region_misspelt(subject: Subject) -> Iterator[Fault]:
    """The name of the region is not valid.

    Region names look like `eu-west-1`. With an invalid name, cloudtrain cannot connect to AWS.
    """
    region = subject.account.region
    if "region" in subject.account.missing or re.fullmatch(_REGION, region):
        return

    zone = re.fullmatch(rf"({_REGION})[a-z]", region)
    if zone:
        hint = f'write `region = "{zone[1]}"`'
        yield Fault(f"`{region}` is an availability zone", hint)
        return

    regions: set[str] = set()
    for table in registries():
        regions.update(table)
    yield Fault(f"`{region}` is not a region", did_you_mean(region, regions))


@rule("SM105", Level.ERROR, Nature.FACT)
def bucket_name(subject: Subject) -> Iterator[Fault]:
    """The name of the bucket is not valid.

    Bucket names have 3 to 63 lower-case letters, digits, dots and hyphens (S3's bucket naming
    rules). To use a folder in the bucket, set the target's `prefix`.
    """
    bucket = subject.account.bucket
    region = subject.account.region
    if "bucket" in subject.account.missing or is_bucket(bucket, region):
        return

    path = bucket.removeprefix("s3://").strip("/")
    name, _, prefix = path.partition("/")
    hint = "use 3 to 63 lower-case letters, digits and hyphens"
    if is_bucket(name, region):
        hint = f'write `bucket = "{name}"`'
        if prefix:
            hint += f' and `prefix = "{prefix}"`'
    yield Fault(f"`{bucket}` is not the name of an S3 bucket", hint)


@rule("SM106", Level.ERROR)
def key_of_another_region(subject: Subject) -> Iterator[Fault]:
    """A key or a training plan is in another region than the job.

    A job can only use KMS keys and training plans of its own region. A multi-Region key has a
    separate ARN in each region.
    """
    if "region" in subject.account.missing:
        return

    region = subject.account.region
    for setting in ("volume_kms_key", "output_kms_key", "training_plan"):
        arn = (getattr(subject.settings, setting) or "").split(":")
        if arn[0] != "arn" or len(arn) < 5:
            continue
        other = arn[3]
        if other != region:
            arn[3] = region
            message = f"`{setting}` is in `{other}`, and the job runs in `{region}`"
            own = ":".join(arn)
            yield Fault(message, f"use one of `{region}`: `{own}` if it exists")


@rule("SM107", Level.WARNING)
def image_of_another_region(subject: Subject) -> Iterator[Fault]:
    """The image is in another region than the job.

    Every instance would pull gigabytes across regions, which is slow and billed as data transfer. A
    VPC endpoint for ECR only reaches its own region.
    """
    region = subject.account.region
    if "region" in subject.account.missing:
        return
    if not re.fullmatch(_REGION, region):
        return

    request = subject.plan.request
    uri = text_at(request, "AlgorithmSpecification", "TrainingImage")
    match = re.fullmatch(_REGISTRY, uri or text_at(request, "AppSpecification", "ImageUri"))
    if match and match["region"] != region:
        message = f"the image is in `{match['region']}`, and the job runs in `{region}`"
        yield Fault(
            message,
            f"use the copy of the image in `{region}`, or make one",
            read(subject).image_path,
        )


def is_bucket(name: str, region: str) -> bool:
    """Return whether a bucket in the region can have this name."""
    if region == "us-east-1" and re.fullmatch(_LEGACY_BUCKET, name):
        return True
    return bool(re.fullmatch(_BUCKET, name)) and not re.fullmatch(_ADDRESS, name)


# Rules about the whole request: fields that the service's API model forbids, and overrides that
# break a run.


@rule("SM110", Level.ERROR)
def refused_by_service(subject: Subject) -> Iterator[Fault]:
    """The service would refuse a part of the request.

    This rule checks the request against botocore's model of CreateTrainingJob: unknown and missing
    fields, types, lengths and counts, patterns, and enums. The SDKs and boto3 do not check maxima,
    patterns and enums, so the job would fail after the upload of its code. Other rules check
    instance types and the role.
    """
    operation = "CreateTrainingJob" if subject.processing is None else "CreateProcessingJob"
    for violation in violations(subject.plan.request, operation):
        if not _has_rule_of_its_own(violation, operation):
            yield Fault(violation.message, violation.hint, _place(subject, violation))


@rule("SM111", Level.ERROR)
def identity_overridden(subject: Subject) -> Iterator[Fault]:
    """`sagemaker_overrides` change the job's name or remove its tag.

    cloudtrain finds its job by this name and this tag. Without them, it could submit a job twice
    after an interruption, and you could not follow, stop or download the run.
    """
    name = subject.plan.run_name
    kind = TRAINING if subject.processing is None else PROCESSING
    field = kind.name

    sent_name = subject.plan.request.get(field)
    if sent_name != name:
        yield Fault(
            f"the overrides name the job `{sent_name}`, and cloudtrain would look for `{name}`",
            f"remove `{field}` from `sagemaker_overrides`; a job's `name` begins the name of "
            "its runs",
            ("sagemaker_overrides", field),
        )

    if {"Key": RUN_TAG, "Value": name} not in rows_at(subject.plan.request, "Tags"):
        yield Fault(
            f"the overrides remove the tag `{RUN_TAG}`, by which cloudtrain recognises its own job",
            "move the tags of `sagemaker_overrides` to `tags`",
            ("sagemaker_overrides", "Tags"),
        )


@rule("SM112", Level.ERROR)
def reserved_tag(subject: Subject) -> Iterator[Fault]:
    """The key of a tag is reserved or repeated.

    AWS refuses keys that begin with `aws:`. cloudtrain uses the key `cloudtrain:run` for the run's
    name. Each key may appear only once.
    """
    if RUN_TAG in subject.job.tags:
        message = f"the tag `{RUN_TAG}` is cloudtrain's own"
        yield Fault(message, "remove it, or use another key", ("tags", RUN_TAG))

    keys = Counter(str(tag.get("Key")) for tag in rows_at(subject.plan.request, "Tags"))
    for key, count in keys.items():
        path = ("sagemaker_overrides", "Tags")
        if key in subject.job.tags:
            path = ("tags", key)
        if key.lower().startswith("aws:"):
            message = f"the tag `{key}` begins with `aws:`, which AWS refuses"
            better = key[4:] or "team"
            yield Fault(message, f"write `{better}`", path)
        if count > 1:
            yield Fault(f"the tag `{key}` comes {count} times", "remove all but one", path)


@rule("SM113", Level.NOTICE)
def without_effect(subject: Subject) -> Iterator[Fault]:
    """A field of the job has no effect on SageMaker.

    CreateTrainingJob has no field for the size of `/dev/shm`, because SageMaker itself decides how
    much of the instance's memory is shared memory. The API also has no field for a description,
    which stays in the job file. Conda files, assets and kinds of data are words of Azure ML.
    """
    return fields.without_effect(subject)


def _has_rule_of_its_own(violation: ShapeViolation, operation: str) -> bool:
    """Return whether SM102 reports the violation (roles), SM701 (networks) or SM201 (types of
    training jobs)."""
    path = violation.path
    if path[0] == "RoleArn":
        return len(path) == 1
    if path[0] == "VpcConfig":
        return violation.kind in ("min", "missing")
    if path[0] == "ResourceConfig" and path[-1] == "InstanceType":
        return operation == "CreateTrainingJob" and violation.kind == "enum"
    return False


def _place(subject: Subject, violation: ShapeViolation) -> ValuePath:
    """Return the path of the job field that caused a violation; empty if the target's settings
    caused it."""
    path = violation.path
    overrides = overrides_of(subject.job, "sagemaker")

    overridden = _in_overrides(overrides, path)
    # a missing field is reported at its own place
    if not overridden and violation.kind == "missing":
        overridden = _in_overrides(overrides, path[:-1])
    if overridden:
        return ("sagemaker_overrides", *overridden)

    if path[:2] == ("AlgorithmSpecification", "TrainingImage"):
        return read(subject).image_path
    parameter = path[1:2]
    if path[0] == "HyperParameters":
        if parameter and parameter[0] not in subject.job.hyperparameters:
            return ("distribution",)
        return ("hyperparameters", *parameter)
    for start, place in _PLACES.items():
        if path[: len(start)] == start:
            key = _key_at(subject, start, path[len(start) :])
            return (*place, *key)
    return ()


def _in_overrides(overrides: JsonMapping, path: ValuePath) -> ValuePath:
    """Return `path`, or the shorter path of a value that the overrides set around it; empty if they
    do not set it."""
    value: Any = overrides
    for length, key in enumerate(path):
        if not isinstance(value, Mapping):
            return path if isinstance(value, list) else path[:length]
        if key not in value:
            return ()
        value = value[key]
    return path


_PLACES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("Environment",): ("environment", "variables"),
    ("Tags",): ("tags",),
    ("AlgorithmSpecification", "MetricDefinitions"): ("metrics",),
    ("InputDataConfig",): ("inputs",),
    ("CheckpointConfig",): ("checkpoint", "sagemaker"),
    ("ResourceConfig", "InstanceGroups"): ("resources", "instance_groups"),
    ("ResourceConfig", "InstancePreferences"): ("resources", "instance_preferences"),
    ("ResourceConfig", "InstanceCount"): ("resources", "instance_count"),
    ("ResourceConfig", "VolumeSizeInGB"): ("resources", "volume_size"),
    ("StoppingCondition", "MaxRuntimeInSeconds"): ("max_runtime",),
    ("StoppingCondition", "MaxWaitTimeInSeconds"): ("spot", "max_wait"),
    ("TrainingJobName",): ("name",),
}
"""Maps the beginning of a path in the request to the job field from which it is written."""

_NAMES = {
    ("Tags",): "Key",
    ("AlgorithmSpecification", "MetricDefinitions"): "Name",
    ("InputDataConfig",): "ChannelName",
}
"""The mappings of a job that a request has as lists, each with the key of an element's name."""


def _key_at(subject: Subject, start: tuple[str, ...], rest: ValuePath) -> ValuePath:
    """Return the key in the job's mapping that the path `rest` below `start` of the request means;
    empty if there is none."""
    if start == ("Environment",):
        return rest[:1]
    if start not in _NAMES or not rest:
        return ()
    row = value_at(subject.plan.request, *start)[rest[0]]
    name = value_at(row, _NAMES[start])
    if isinstance(name, str) and name in getattr(subject.job, _PLACES[start][0]):
        return (name,)
    return ()


# Rules about the maximum cost of a SageMaker job: its hourly price for its whole time limit.


@rule("SM411", Level.WARNING)
def default_runtime(subject: Subject) -> Iterator[Fault]:
    """An expensive job has no time limit.

    Without `max_runtime` a job may run for a day, the service's default. A job that hangs, for
    example in a collective that one rank never joins, is billed until then.
    """
    return shared.no_limit(subject, "SageMaker's default")


@rule("SM412", Level.ERROR, Nature.CAP)
def over_budget(subject: Subject) -> Iterator[Fault]:
    """This could spend more than your cap.

    `max_cost` and `max_cost_per_day` are compared with the list price of everything that the
    request pays for: all instances over the whole `max_runtime`, times the trials of a sweep, the
    warm pool (`keep_alive`), and the instances of debugger and profiler rules. Spot capacity costs
    less; waiting for it costs nothing. `max_runtime` holds for all retries of a job together.
    Prices come from the catalogue or from your own `instances.toml`.
    """
    return shared.over_budget(subject)


rule("SM413", Level.ERROR, Nature.CAP)(shared.budget_without_price)


@rule("SM414", Level.NOTICE)
def warm_pool_costs(subject: Subject) -> Iterator[Fault]:
    """The warm pool is billed.

    Instances that wait for the next job cost as much as instances that train. You pay until another
    job uses them or `keep_alive` ends.
    """
    pool = shared.spending_of(subject.reading).pool
    if pool:
        yield Fault(
            f"after the job, the warm pool costs up to ${pool:,.2f}",
            "remove `keep_alive` from the target's settings if no other job follows",
        )


@rule("SM415", Level.NOTICE)
def volume_beside_cap(subject: Subject) -> Iterator[Fault]:
    """Your cap does not count the volume of the instances.

    SageMaker bills every gigabyte of a volume while the job runs, and while its warm pool waits.
    cloudtrain has no price list of volumes, so the cost in a plan, `max_cost` and
    `max_cost_per_day` are about the instances alone. The notice appears if `volume_size` is more
    than the default. Types with local disks have no volume.
    """
    capped = [name for name in CAPS if getattr(subject.settings, name) is not None]
    groups = subject.reading.machines.groups
    has_volume = any(group.known is None or not group.known.nvme_gb for group in groups)
    if not capped or not has_volume:
        return
    for place in ((fields.MACHINES,), fields.CLUSTER):
        size = mapping_at(subject.plan.request, *place).get("VolumeSizeInGB")
        if isinstance(size, int) and size > DEFAULT_VOLUME_GIB:
            message = (
                f"`{capped[0]}` does not count the volumes of {size:,} GiB, because cloudtrain "
                "knows no price of them"
            )
            path = subject.reading.override_of(*place, "VolumeSizeInGB")
            yield Fault(
                message,
                "ask for no more than the data needs, or read it with `mode: mount`",
                path or ("resources", "volume_size"),
            )
