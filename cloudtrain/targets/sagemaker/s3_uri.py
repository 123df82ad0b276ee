"""`s3://bucket/key`, the form of all S3 addresses."""

from __future__ import annotations

from typing import NamedTuple


class S3Uri(NamedTuple):
    """`s3://bucket/key`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """Parse the bucket and the key, which may be empty."""
        bucket, _, key = text.removeprefix("s3://").partition("/")
        return cls(bucket, key)

    @property
    def folder(self) -> str:
        """Return the key as a prefix of others: with a slash at its end if it is not empty."""
        return f"{self.key.rstrip('/')}/" if self.key else ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"
