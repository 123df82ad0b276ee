"""`s3://bucket/key`, the form of all S3 addresses."""

from __future__ import annotations

from typing import NamedTuple


class S3Uri(NamedTuple):
    """An S3 address: `s3://bucket/key`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """Parse an address into bucket and key. The key may be empty."""
        bucket, _, key = text.removeprefix("s3://").partition("/")
        return cls(bucket, key)

    @property
    def folder(self) -> str:
        """Return the prefix of all keys in this folder: `data/` for the key `data`; empty if the key is empty."""
        return f"{self.key.rstrip('/')}/" if self.key else ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"
