"""The account settings that can be read on this machine, without the network and without boto3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.system.paths import expand_home
from cloudtrain.targets.sagemaker.settings import SageMaker

REGION = "us-east-1"
ROLE = "arn:aws:iam::000000000000:role/ROLE"
BUCKET = "BUCKET"
"""Placeholders for missing settings. SM101 then stops the submit."""

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>\d{12}):role/.+")


class SageMakerAccount(NamedTuple):
    """The account settings of the SageMaker target that can be read without the network."""

    region: str
    role: str
    """ARN of the execution role."""
    bucket: str
    missing: tuple[str, ...] = ()
    """The settings among `region`, `role` and `bucket` that are missing; a placeholder stands in for each."""
    profile: str | None = None
    """The AWS profile whose credentials are used. None: boto3 finds the credentials itself."""
    overlay: Any = None
    """The user's own corrections of the instance catalogue, or None."""

    @property
    def place(self) -> str:
        """Return the middle part of run references: `eu-west-1`, or `research@eu-west-1` with a profile."""
        from urllib.parse import quote

        return self.region if self.profile is None else f"{quote(self.profile, safe='')}@{self.region}"


def account_of(target: SageMaker, environ: Mapping[str, str]) -> SageMakerAccount:
    """Return the target's account settings, completed from the environment and from the AWS configuration file.

    Default for `bucket`: `sagemaker-REGION-ACCOUNT`, as in the SageMaker SDK.
    """
    region = target.region or _region(target.profile, environ)
    owner = account_id(target.role or "")
    bucket = target.bucket or (f"sagemaker-{region}-{owner}" if region and owner else None)
    known = {"region": region, "role": target.role, "bucket": bucket}
    return SageMakerAccount(
        region=region or REGION,
        role=target.role or ROLE,
        bucket=bucket or BUCKET,
        missing=tuple(name for name, value in known.items() if not value),
        profile=target.profile,
    )


def account_id(role: str) -> str | None:
    """Return the twelve-digit account number in a role's ARN; None if the role is only a name."""
    match = _ROLE_ARN.fullmatch(role)
    return match["account"] if match else None


def credentials_in_sight(target: SageMaker, environ: Mapping[str, str]) -> bool:
    """Return whether this machine seems to have credentials, without using the network.

    Credentials from the metadata service of AWS machines do not count, because asking it needs the network.
    """
    if target.profile or any(environ.get(name) for name in _CREDENTIALS):
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
    given = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if given:
        return given
    name = profile or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    sections = (_section(file, name) for file in _files(environ))
    return next((section["region"] for section in sections if section.get("region")), None)


def _files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the paths of the AWS configuration file and of the AWS credentials file."""
    home = expand_home(environ.get("HOME") or "~") / ".aws"
    given = environ.get("AWS_CONFIG_FILE"), environ.get("AWS_SHARED_CREDENTIALS_FILE")
    config, credentials = (expand_home(path) if path else None for path in given)
    return config or home / "config", credentials or home / "credentials"


def _section(file: Path, profile: str) -> Mapping[str, str]:
    """Return the profile's section, `[profile NAME]` or `[NAME]`; empty if it is missing or `file` cannot be read."""
    import configparser

    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    for name in (f"profile {profile}", profile):
        if parser.has_section(name):
            return dict(parser.items(name))
    return {}
