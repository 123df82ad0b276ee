"""Rules about the account settings of a SageMaker job: role, region, bucket and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.core.per_target import overrides_of
from cloudtrain.core.plan import Level
from cloudtrain.errors import did_you_mean
from cloudtrain.rules.rule import Fault, Subject, rule
from cloudtrain.targets.sagemaker.rules.view import image_path, text

_WANTED = {
    "role": ("no SageMaker execution role is configured", 'role = "arn:aws:iam::ACCOUNT:role/NAME"'),
    "region": ("no AWS region is configured", 'region = "eu-west-1"'),
    "bucket": ("no S3 bucket is configured for code and outputs", 'bucket = "NAME"'),
}  # fmt: skip

_ROLE = re.compile(r"arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{12}):role/?[\w+=,.@/-]+", re.ASCII)
_ASSUMED = re.compile(r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([^/]+)/.*")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")
_ZONE = re.compile(r"([a-z]{2,4}(?:-[a-z]+)+-\d+)[a-z]")
_BUCKET = re.compile(r"(?!xn--|sthree-)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_LEGACY_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
"""Bucket names that us-east-1 allowed until 2018; existing buckets keep them."""

_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_REGISTRY = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.[a-z.-]+/.+")

_PARTITIONS = {
    "cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "us-isob": "aws-iso-b", "eu-isoe": "aws-iso-e",
    "us-isof": "aws-iso-f", "eusc": "aws-eusc",
}  # fmt: skip
"""The prefixes of a partition's regions (botocore's endpoints.json); all other regions are in `aws`."""


@rule("SM101", Level.ERROR)
def account_incomplete(subject: Subject) -> Iterator[Fault]:
    """The role, region or bucket is not configured.

    A training job runs in a region, with an IAM role that SageMaker assumes, and keeps its code and outputs in a
    bucket. All jobs share these settings of the target. Write them into `cloudtrain.toml` once.
    """
    for name in subject.account.missing:
        if name == "role" and "RoleArn" in overrides_of(subject.job, "sagemaker"):
            continue
        if name == "bucket" and {"region", "role"} & set(subject.account.missing):
            continue  # region and role give the SDK's default bucket
        message, line = _WANTED[name]
        yield Fault(message, f"add `{line}` under `[sagemaker]` in `cloudtrain.toml`")


@rule("SM102", Level.ERROR)
def role_is_no_role(subject: Subject) -> Iterator[Fault]:
    """The execution role is not a valid ARN of an IAM role.

    The API takes only `arn:aws:iam::ACCOUNT:role/NAME`. It refuses the bare name of a role, a user, and the ARN of a
    session that assumed the role.
    """
    role = text(subject, "RoleArn")
    if "role" in subject.account.missing or _ROLE.fullmatch(role):
        return
    assumed = _ASSUMED.fullmatch(role)
    arn = f"arn:{assumed[1]}:iam::{assumed[2]}:role/{assumed[3]}" if assumed else "arn:aws:iam::ACCOUNT:role/NAME"
    if re.fullmatch(r"[\w+=,.@-]+", role):
        arn = f"arn:aws:iam::ACCOUNT:role/{role}"
    yield Fault(f"`{role}` is not the ARN of an IAM role", f'write `role = "{arn}"`')


@rule("SM103", Level.ERROR)
def role_of_another_partition(subject: Subject) -> Iterator[Fault]:
    """The role and the region belong to different AWS partitions.

    AWS, AWS China and AWS GovCloud are separate partitions. A job cannot use a role from another partition.
    """
    role, region = _ROLE.fullmatch(text(subject, "RoleArn")), subject.account.region
    if role is None or {"role", "region"} & set(subject.account.missing):
        return
    wanted = partition_of(region)
    if role["partition"] != wanted:
        yield Fault(
            f"the role is in the partition `{role['partition']}`, and the region `{region}` in `{wanted}`",
            f"use a role that begins with `arn:{wanted}:iam::`, or another region",
        )


@rule("SM104", Level.ERROR)
def region_misspelt(subject: Subject) -> Iterator[Fault]:
    """The name of the region is not valid.

    Region names look like `eu-west-1`. With an invalid name, cloudtrain cannot connect to AWS.
    """
    region = subject.account.region
    if "region" in subject.account.missing or _REGION.fullmatch(region):
        return
    zone = _ZONE.fullmatch(region)
    message = f"`{region}` is an availability zone" if zone else f"`{region}` is not a region"
    yield Fault(message, f'write `region = "{zone[1]}"`' if zone else did_you_mean(region, _regions()))


@rule("SM105", Level.ERROR)
def bucket_name(subject: Subject) -> Iterator[Fault]:
    """The name of the bucket is not valid.

    Bucket names have 3 to 63 lower-case letters, digits, dots and hyphens (S3's bucket naming rules). To use a folder
    in the bucket, set the target's `prefix`.
    """
    bucket = subject.account.bucket
    if "bucket" in subject.account.missing or is_bucket(bucket, subject.account.region):
        return
    name, _, prefix = bucket.removeprefix("s3://").strip("/").partition("/")
    hint = "use 3 to 63 lower-case letters, digits and hyphens"
    if is_bucket(name, subject.account.region):
        hint = f'write `bucket = "{name}"`' + (f' and `prefix = "{prefix}"`' if prefix else "")
    yield Fault(f"`{bucket}` is not the name of an S3 bucket", hint)


@rule("SM106", Level.ERROR)
def key_of_another_region(subject: Subject) -> Iterator[Fault]:
    """A key or a training plan is in another region than the job.

    A job can only use KMS keys and training plans of its own region. A multi-Region key has a separate ARN in each
    region.
    """
    target, region = subject.target, subject.account.region
    for setting in ("volume_kms_key", "output_kms_key", "training_plan"):
        fields = (getattr(target, setting) or "").split(":")
        if fields[0] == "arn" and len(fields) > 4 and fields[3] != region and "region" not in subject.account.missing:
            yield Fault(
                f"`{setting}` is in `{fields[3]}`, and the job runs in `{region}`",
                f"use one of `{region}`: `{':'.join([*fields[:3], region, *fields[4:]])}` if it exists",
            )


@rule("SM107", Level.WARNING)
def image_of_another_region(subject: Subject) -> Iterator[Fault]:
    """The image is in another region than the job.

    Every instance would pull gigabytes across regions, which is slow and billed as data transfer. A VPC endpoint for
    ECR only reaches its own region.
    """
    region = subject.account.region
    uri = text(subject, "AlgorithmSpecification", "TrainingImage") or text(subject, "AppSpecification", "ImageUri")
    match = _REGISTRY.fullmatch(uri)
    known = "region" not in subject.account.missing and _REGION.fullmatch(region)
    if match and known and match["region"] != region:
        yield Fault(
            f"the image is in `{match['region']}`, and the job runs in `{region}`",
            f"use the copy of the image in `{region}`, or make one",
            image_path(subject),
        )


def is_bucket(name: str, region: str) -> bool:
    """Return whether a bucket in the region can have this name."""
    if region == "us-east-1" and _LEGACY_BUCKET.fullmatch(name):
        return True
    return bool(_BUCKET.fullmatch(name)) and not _ADDRESS.fullmatch(name)


def partition_of(region: str) -> str:
    """Return a region's partition: `aws-cn` for `cn-north-1`."""
    starts = (partition for start, partition in _PARTITIONS.items() if region.startswith(f"{start}-"))
    return next(starts, "aws")


def _regions() -> set[str]:
    """Return the regions that have training images."""
    from cloudtrain.targets.sagemaker.catalogue.image_data import registries

    return {region for table in registries() for region in table}
