"""Settings of the Azure ML target. They belong to a workspace and are never part of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.parse import quote, unquote

from pydantic import Field

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import Unreadable, read_bytes, read_text, read_trusted
from cloudtrain.errors import Problem, UsageError
from cloudtrain.job.model import Count, Model, all_at_once
from cloudtrain.job.nodes import PLACE_NAME
from cloudtrain.system.files import expand_home
from cloudtrain.targets.settings import Dollars, TargetSettings, ini_sections

if TYPE_CHECKING:
    from cloudtrain.job.model import Fields, Texts
    from cloudtrain.machines.overlay import Overlay


Credential = Literal[
    "cli", "powershell", "developer_cli", "environment", "managed_identity", "workload_identity"
]
"""Kinds of azure-identity's credentials that need no browser."""


ASKED = "the credentials, the compute, the environment, the data and the quota"
"""What the checks of the workspace are about."""


class Service(Model):
    """An interactive service of a job on Azure ML. Open it from the job's page in the studio while
    the job runs."""

    type: Literal["ssh", "tensor_board", "jupyter_lab", "vs_code"]
    all_instances: bool = Field(default=False, strict=True)
    """Run the service on every instance instead of only the first one."""
    ssh_public_key: str | None = None
    """`ssh`: the public key that may log in."""
    log_dir: str | None = None
    """`tensor_board`: the folder with its events, such as `outputs/runs`."""


Event = Literal["completed", "failed", "cancelled"]
"""What happens to a job."""


class Notifications(Model):
    """Emails that the service sends about a job."""

    emails: tuple[str, ...] = Field(min_length=1)
    """The addresses that get the emails."""
    on: tuple[Event, ...] = ("completed", "failed", "cancelled")
    """The events that cause an email. Default: all three."""

    if TYPE_CHECKING:

        def __init__(
            self, *, emails: Texts, on: tuple[Event, ...] = ("completed", "failed", "cancelled")
        ) -> None: ...


def _azureml_rules(target: JsonMapping) -> Iterator[Problem]:
    """Yield the problems of the settings `target`, whose values may still have any type."""
    identity = target.get("identity")
    for name in ("managed_identity_client_id", "managed_identity_resource_id"):
        if target.get(name) is not None and identity not in (None, "managed"):
            message = f"`{name}` has no effect with `identity: {identity}`"
            yield Problem((name,), message, "remove it, or write `identity: managed`", code="CT018")


class AzureML(TargetSettings):
    """An Azure Machine Learning workspace. Without `compute`, jobs run serverless."""

    type: Literal["azureml"] = "azureml"
    subscription_id: str | None = None
    """Needs `resource_group` and `workspace` beside it. Default: from `config.json` or the defaults
    of `az`."""
    resource_group: str | None = None
    workspace: str | None = None
    credential: Credential | None = None
    """The kind of azure-identity credential. Default: the first that works
    (DefaultAzureCredential)."""
    cloud: str | None = None
    """`AzureCloud`, `AzureUSGovernment`, `AzureChinaCloud`, or one that `ARM_CLOUD_METADATA_URL`
    lists."""
    compute: str | None = None
    """Name of a compute cluster, whose instance type the service then uses; of an attached one
    (Kubernetes), for which the job names the instance type; `virtualClusters/NAME`; or
    `serverless`."""
    experiment: str | None = None
    """The experiment. Default: the job's name."""
    display_name: str | None = None
    """The name in the studio. Default: the run's name."""
    job_tier: Literal["basic", "standard", "premium"] | None = None
    """Serverless: the quality of the capacity. For spare capacity, use the job's `spot`."""
    priority: Literal["low", "medium", "high"] | None = None
    identity: Literal["user", "managed", "aml_token"] | None = None
    """The identity with which the job reads its data. Default: the service's."""
    managed_identity_client_id: str | None = None
    managed_identity_resource_id: str | None = None
    """The identity's id in Azure Resource Manager, instead of its client id."""
    notifications: Notifications | None = None
    """Emails about the job. Only the REST API offers them; the SDK does not."""
    docker_args: str | tuple[str, ...] | None = None
    """Options of `docker run`, as one string or as a list."""
    locations: tuple[str, ...] = ()
    """Serverless: the regions that the job may run in."""
    max_instance_count: Count | None = None
    services: dict[Annotated[str, Field(pattern=PLACE_NAME)], Service] = Field(default_factory=dict)
    """Interactive services by name: ssh, TensorBoard, JupyterLab, VS Code."""
    max_cost: Dollars | None = None
    """The most US dollars that one command can spend, all trials and the warm pool included."""
    max_cost_per_day: Dollars | None = None
    """The most US dollars that the submissions of 24 hours can spend together."""

    _rules = all_at_once(_azureml_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["azureml"] = "azureml",
            subscription_id: str | None = None,
            resource_group: str | None = None,
            workspace: str | None = None,
            credential: Credential | None = None,
            cloud: str | None = None,
            compute: str | None = None,
            experiment: str | None = None,
            display_name: str | None = None,
            job_tier: Literal["basic", "standard", "premium"] | None = None,
            priority: Literal["low", "medium", "high"] | None = None,
            identity: Literal["user", "managed", "aml_token"] | None = None,
            managed_identity_client_id: str | None = None,
            managed_identity_resource_id: str | None = None,
            notifications: Notifications | Fields | None = None,
            docker_args: str | Texts | None = None,
            locations: Texts = (),
            max_instance_count: int | None = None,
            services: Mapping[str, Service | Fields] = ...,
            max_cost: float | None = None,
            max_cost_per_day: float | None = None,
        ) -> None: ...


# Read the files that the az command keeps on this machine.


def az_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder where the az command keeps its files."""
    home = environ.get("HOME") or environ.get("USERPROFILE") or "~"
    return expand_home(environ.get("AZURE_CONFIG_DIR") or f"{home}/.azure")


def az_subscriptions(folder: Path) -> list[JsonMapping]:
    """Return the subscriptions of the logged-in user. They are in `azureProfile.json` of az's
    `folder`, until `az logout` removes them."""
    try:
        # az writes a byte order mark
        rows = json.loads(read_text(folder / "azureProfile.json"))["subscriptions"]
    except (OSError, ValueError, RecursionError, Unreadable, LookupError, TypeError):
        return []
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, Mapping)]


# Find the account settings on this machine, without the network and without Azure packages.
#
# The target's own settings come first. Missing settings come from the SDK's `config.json` (in the
# job's folder or one above it, also in `.azureml`), or else from the defaults of `az`. A source
# that contradicts a known setting is ignored as a whole. `config.json` is used only if no other
# user could have written it (`cloudtrain/system/files.py`).

PLACEHOLDERS = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "RESOURCE_GROUP",
    "workspace": "WORKSPACE",
}
"""Placeholders for settings that are missing; a rule stops the submit and says what to type."""

_CONFIG_NAMES = {
    "subscription_id": "subscription_id",
    "resource_group": "resource_group",
    "workspace": "workspace_name",
}
"""Maps our names to those of the SDK's `config.json`."""

_LONGEST = 64 * 1024
"""Largest accepted `config.json` in bytes; a real one has about three hundred."""


def workspace_id(subscription: str, group: str, name: str) -> str:
    """Return a workspace's id in Azure Resource Manager."""
    provider = "providers/Microsoft.MachineLearningServices"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/{provider}/workspaces/{name}"


class AzureMLAccount(NamedTuple):
    """The account settings of the Azure ML target, as far as they are known without the network."""

    subscription_id: str
    resource_group: str
    workspace: str
    missing: tuple[str, ...] = ()
    """The names of the three settings that are missing; a placeholder stands in for each."""
    credential: str | None = None
    """The kind of azure-identity credential. None: the first kind that works."""
    cloud: str | None = None
    """The name of the Azure cloud. None: the environment decides; its default is the public
    cloud."""
    overlay: Overlay | None = None
    """The user's own corrections of the instance catalogue, or None."""
    files: tuple[str, ...] = ()
    """The SDK's `config.json`, if it was used."""

    @property
    def place(self) -> str:
        """Return the account part of a run's reference:
        `[CREDENTIAL@]SUBSCRIPTION:GROUP:WORKSPACE[:CLOUD]`."""
        parts = [self.subscription_id, self.resource_group, self.workspace]
        if self.cloud:
            parts.append(self.cloud)
        place = ":".join(quote(part, safe="") for part in parts)
        return place if self.credential is None else f"{self.credential}@{place}"

    @classmethod
    def parse(cls, place: str) -> AzureMLAccount:
        """Return the account in the text of `place`. Raises `UsageError` if it has another form."""
        credential, _, rest = place.rpartition("@")
        parts = [unquote(part) for part in rest.split(":")]
        if len(parts) not in (3, 4) or not all(parts):
            raise UsageError(
                f"`{place}` does not name a workspace",
                hint="write `azureml://SUBSCRIPTION:RESOURCE_GROUP:WORKSPACE/RUN`, as `cloudtrain "
                "ps` shows it",
                code="CT933",
            )
        subscription_id, resource_group, workspace, *clouds = parts
        return cls(
            subscription_id,
            resource_group,
            workspace,
            credential=credential or None,
            cloud=clouds[0] if clouds else None,
        )

    @property
    def workspace_id(self) -> str:
        return workspace_id(self.subscription_id, self.resource_group, self.workspace)


# Every target's function takes the settings.
def examine(settings: AzureML, account: AzureMLAccount) -> str:  # noqa: ARG001
    """Describe the configured workspace and the file that names it."""
    if account.missing:
        return "no workspace is configured"
    source = f", from {account.files[0]}" if account.files else ""
    return f"workspace {account.workspace}{source}"


def account_of(target: AzureML, environ: Mapping[str, str], folder: Path) -> AzureMLAccount:
    """Missing settings come from the nearest `config.json` in `folder` or above, and from the
    defaults of `az`. Raises `SettingsError` if another user could have written that file."""
    values: dict[str, str] = {}
    for name in PLACEHOLDERS:
        if value := getattr(target, name):
            values[name] = value

    files: tuple[str, ...] = ()
    if len(values) < len(PLACEHOLDERS) and (found := _config(folder)):
        file, config = found
        if _agree(values, config):
            files = (str(file),)
            # The trusted content counts: the file may have changed since the first look.
            config = _workspace_in(read_trusted(file))
        if _agree(values, config):
            values = config | values

    defaults = _defaults_of_az(environ)
    if _agree(values, defaults):
        values = defaults | values

    known = PLACEHOLDERS | values
    return AzureMLAccount(
        known["subscription_id"],
        known["resource_group"],
        known["workspace"],
        missing=tuple(name for name in PLACEHOLDERS if name not in values),
        credential=target.credential,
        cloud=target.cloud or environ.get("AZUREML_CURRENT_CLOUD") or None,
        files=files,
    )


def _agree(values: dict[str, str], source: dict[str, str]) -> bool:
    """Return whether a source contradicts none of the values that are known."""
    return values | source == source | values


def _config(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """Return the nearest `config.json` and the workspace in it. The file may come from the studio
    or from an unrelated program, so the caller decides whether to use it."""
    for place in (folder, *folder.parents):
        for file in (place / ".azureml" / "config.json", place / "config.json"):
            with suppress(OSError):
                if names := _workspace_in(read_bytes(file, _LONGEST)):
                    return file, names
    return None


def _workspace_in(content: bytes) -> dict[str, str]:
    """Return the workspace that a `config.json` names completely; empty for other content."""
    try:
        names = json.loads(content.decode("utf-8-sig"))
        json.dumps(names, ensure_ascii=False).encode()  # half of a character cannot be sent
    except (ValueError, RecursionError):
        return {}
    if not isinstance(names, Mapping):
        return {}
    if not all(names.get(theirs) for theirs in _CONFIG_NAMES.values()):
        return {}
    return {ours: str(names[theirs]) for ours, theirs in _CONFIG_NAMES.items()}


def _defaults_of_az(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what `az configure --defaults group=... workspace=...` and `az account set` have stored.
    The environment variables of az take precedence."""
    folder = az_folder(environ)
    defaults = ini_sections(folder / "config").get("defaults", {})
    settings = {
        "resource_group": environ.get("AZURE_DEFAULTS_GROUP") or defaults.get("group"),
        "workspace": environ.get("AZURE_DEFAULTS_WORKSPACE") or defaults.get("workspace"),
        "subscription_id": environ.get("AZURE_SUBSCRIPTION_ID"),
    }
    if not settings["subscription_id"]:
        for row in az_subscriptions(folder):
            if row.get("isDefault") and row.get("id"):
                settings["subscription_id"] = str(row["id"])
                break
    return {name: value for name, value in settings.items() if value}
