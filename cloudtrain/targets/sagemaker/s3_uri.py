"""`s3://bucket/key`, as every place of data on S3 is written."""

from __future__ import annotations

from typing import NamedTuple


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
