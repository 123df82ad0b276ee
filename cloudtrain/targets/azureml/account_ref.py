"""`SUBSCRIPTION:GROUP:WORKSPACE`: the middle of a run's reference, which says where and as whom to ask."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from cloudtrain.errors import UsageError


class AccountRef(NamedTuple):
    """A workspace, and which credential is used in which cloud. None leaves that to the surroundings."""

    subscription_id: str
    resource_group: str
    workspace: str
    credential: str | None = None
    cloud: str | None = None

    @classmethod
    def parse(cls, text: str) -> AccountRef:
        """What `AzureMLAccount.place` wrote.

        Raises:
            UsageError: it is not written so.
        """
        credential, _, rest = text.rpartition("@")
        parts = [unquote(part) for part in rest.split(":")]
        if len(parts) not in (3, 4) or not all(parts):
            hint = "it is `azureml://SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE/RUN`; `cloudtrain ps` shows whole ones"
            raise UsageError(f"`{text}` does not name a workspace", hint=hint, code="CT933")
        return cls(parts[0], parts[1], parts[2], credential or None, parts[3] if len(parts) == 4 else None)

    @property
    def workspace_id(self) -> str:
        """The workspace's id in Azure Resource Manager."""
        from cloudtrain.targets.azureml.account import AzureMLAccount

        return AzureMLAccount(self.subscription_id, self.resource_group, self.workspace).workspace_id
