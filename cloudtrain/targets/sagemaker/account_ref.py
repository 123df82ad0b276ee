"""`eu-west-1` or `research@eu-west-1`: the middle of a run's reference, which says where and as whom to ask."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote


class AccountRef(NamedTuple):
    """A region, and the AWS profile whose credentials are used. None leaves it to the surroundings."""

    region: str | None
    profile: str | None

    @classmethod
    def parse(cls, text: str) -> AccountRef:
        """What `SageMakerAccount.place` wrote."""
        profile, _, region = text.rpartition("@")
        return cls(region or None, unquote(profile) or None)
