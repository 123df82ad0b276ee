"""The account part of a run's reference: `[CREDENTIAL@]SUBSCRIPTION:GROUP:WORKSPACE[:CLOUD]`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from cloudtrain.errors import UsageError


class AccountRef(NamedTuple):
    """A workspace, its cloud and the kind of credential.

    If `cloud` is None, environment variables name the cloud; if `credential` is None, any credential is used.
    """

    subscription_id: str
    resource_group: str
    workspace: str
    credential: str | None = None
    cloud: str | None = None

    @classmethod
    def parse(cls, text: str) -> AccountRef:
        """Parse the text that `AzureMLAccount.place` wrote.

        Raises:
            UsageError: the text does not have that form.
        """
        credential, _, rest = text.rpartition("@")
        parts = [unquote(part) for part in rest.split(":")]
        if len(parts) not in (3, 4) or not all(parts):
            hint = "write `azureml://SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE/RUN`, as `cloudtrain ps` shows it"
            raise UsageError(f"`{text}` does not name a workspace", hint=hint, code="CT933")
        return cls(parts[0], parts[1], parts[2], credential or None, parts[3] if len(parts) == 4 else None)

    @property
    def workspace_id(self) -> str:
        """Return the workspace's id in Azure Resource Manager."""
        from cloudtrain.targets.azureml.account import AzureMLAccount

        return AzureMLAccount(self.subscription_id, self.resource_group, self.workspace).workspace_id
