"""The middle part of a run's reference, which gives the region and profile: `eu-west-1` or `research@eu-west-1`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote


class AccountRef(NamedTuple):
    """A region, and the AWS profile whose credentials are used.

    Without a profile, boto3 finds the credentials itself.
    """

    region: str | None
    profile: str | None

    @classmethod
    def parse(cls, text: str) -> AccountRef:
        """Parse the text that `SageMakerAccount.place` returns."""
        profile, _, region = text.rpartition("@")
        return cls(region or None, unquote(profile) or None)
