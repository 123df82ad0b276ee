"""One job: its thirteen states, its life, and how ARM describes it."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from tests.fakes.azureml.identity import TENANT
from tests.fakes.azureml.messages import Json

STATES = (
    "NotStarted", "Queued", "Preparing", "Provisioning", "Starting", "Running", "Finalizing", "CancelRequested",
    "Completed", "Failed", "Canceled", "Paused", "NotResponding",
)  # fmt: skip
"""All that the service says (azure-ai-ml 1.35.2, _run_history_constants.py)."""

FINAL = ("Completed", "Failed", "Canceled")
_KIND = "Microsoft.MachineLearningServices/workspaces/jobs"

_NULL = (
    "parentJobName", "computeId", "componentId", "notificationSetting", "codeId", "distribution", "limits", "identity",
    "description", "resources", "queueSettings",
)  # fmt: skip
"""What an answer says of a command job even where the body was silent."""

_RESOURCES = {
    "instanceCount": 1, "instanceType": None, "properties": None, "shmSize": "2g", "dockerArgs": None,
    "dockerArgsList": None,
}  # fmt: skip


def stamp(moment: float | None) -> str | None:
    """A time as the service writes it: seven digits behind the dot."""
    if moment is None:
        return None
    at = datetime.fromtimestamp(moment, timezone.utc)
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}0+00:00"


@dataclass
class Job:
    """One job. `enter`, `end` and `script` move it on; times are seconds since the epoch."""

    name: str
    request: Json
    """The body of the PUT that made it."""
    workspace: str
    created: float
    status: str = "NotStarted"
    started: float | None = None
    ended: float | None = None
    error: Json | None = None
    warnings: list[str] = field(default_factory=list)
    run_tags: dict[str, str] = field(default_factory=dict)
    run_properties: dict[str, str] = field(default_factory=dict)
    hidden: bool = False
    is_step: bool = False
    """Whether it is a pipeline's step."""
    order: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    logged: dict[str, list[tuple[int, int, float | str]]] = field(default_factory=dict)
    """What was logged with MLflow: milliseconds, step and value."""
    """What its script logged last."""
    history: list[tuple[str, float]] = field(default_factory=list)
    _script: deque[str | Callable[[], object]] = field(default_factory=deque)

    @property
    def properties(self) -> Json:
        """The JobBase that was sent last."""
        found: Json = self.request["properties"]
        return found

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def tags(self) -> dict[str, str]:
        return {**(self.properties.get("tags") or {}), **self.run_tags}

    def enter(self, status: str, *, at: float | None = None) -> None:
        """The next status; Running starts the clock, a final one stops it."""
        if status not in STATES:
            raise ValueError(f"the service has no status {status}")
        now = time.time() if at is None else at
        self.history.append((status, now))
        if status == "Running" and self.started is None:
            self.started = now
        if status in FINAL:
            self.ended = now
        self.status = status  # last: whoever sees it in another thread finds the times too

    def end(self, status: str, *, error: str | Json | None = None, at: float | None = None) -> None:
        """The last status; an error is a message, or the whole `{"code", "message", ...}`."""
        self.error = {"code": "UserError", "message": error} if isinstance(error, str) else error
        self.enter(status, at=at)

    def script(self, *steps: str | Callable[[], object]) -> None:
        """What happens at the next questions for its status, one step at each: a status, or something to call."""
        self._script.extend(steps)

    def advance(self) -> None:
        """Somebody asked for the status."""
        if not self._script:
            return
        step = self._script.popleft()
        if callable(step):
            step()
        else:
            self.enter(step)

    def describe(self) -> Json:
        """The answer to GET: what was sent, and what the service adds, as recorded in March 2026."""
        properties = copy.deepcopy(self.properties)
        if properties.get("jobType") == "Command":
            properties = {**dict.fromkeys(_NULL), **properties}
            properties["resources"] = {**_RESOURCES, **(properties["resources"] or {})}
            properties["queueSettings"] = {"jobTier": "Null", **(properties["queueSettings"] or {})}
        properties["properties"] = {
            **(properties.get("properties") or {}),
            **self._added(),
            **self.run_properties,
        }
        properties["tags"] = self.tags
        properties["isArchived"] = self.hidden
        properties["experimentName"] = properties.get("experimentName") or "Default"
        properties["displayName"] = properties.get("displayName") or self.name
        properties["outputs"] = {
            **(properties.get("outputs") or {}),
            "default": _default_output(self.name),
        }
        properties |= {"status": self.status, "parameters": {}, "services": self._services()}
        return {
            "id": f"{self.workspace}/jobs/{self.name}",
            "name": self.name,
            "type": _KIND,
            "properties": properties,
            "systemData": {
                "createdAt": stamp(self.created),
                "createdBy": "Ada",
                "createdByType": "User",
            },
        }

    def _added(self) -> dict[str, str | None]:
        cluster = (self.properties.get("computeId") or "").rpartition("/computes/")[2] or None
        snapshot = (
            {"ContentSnapshotId": "33333333-3333-3333-3333-333333333333"}
            if self.properties.get("codeId")
            else {}
        )
        return {
            "_azureml.ComputeTargetType": "amlctrain",
            "_azureml.ClusterName": cluster,
            **snapshot,
        }

    def _services(self) -> Json:
        studio = f"https://ml.azure.com/runs/{self.name}?wsid={self.workspace}&tid={TENANT}"
        own = {**(self.properties.get("services") or {})}
        return {
            **own,
            "Studio": {
                "jobServiceType": "Studio",
                "port": None,
                "endpoint": studio,
                "status": None,
            },
        }


def _default_output(name: str) -> Json:
    uri = f"azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{name}"
    return {
        "description": None,
        "uri": uri,
        "mode": "ReadWriteMount",
        "jobOutputType": "uri_folder",
    }
