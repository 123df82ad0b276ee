"""`eu-west-1` or `research@eu-west-1`: the middle of a run's reference, which says where and as whom to ask."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote


class Place(NamedTuple):
    """A region, and the AWS profile whose credentials are used. None leaves it to the surroundings."""

    region: str | None
    profile: str | None

    @classmethod
    def parse(cls, text: str) -> Place:
        """What `SageMakerAccount.place` wrote."""
        profile, _, region = text.rpartition("@")
        return cls(region or None, unquote(profile) or None)


class S3Uri(NamedTuple):
    """`s3://bucket/key`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """The bucket and the key, which may be empty."""
        bucket, _, key = text.removeprefix("s3://").partition("/")
        return cls(bucket, key)

    @property
    def folder(self) -> str:
        """The key as a prefix of others: with a slash at its end, unless it is empty."""
        return f"{self.key.rstrip('/')}/" if self.key else ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"
