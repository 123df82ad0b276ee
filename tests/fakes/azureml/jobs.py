"""Jobs: made once per name, moved on by tests, described as ARM describes them."""

from __future__ import annotations

import copy
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from tests.fakes.azureml.assets import Assets
from tests.fakes.azureml.compute import Computes
from tests.fakes.azureml.identity import TENANT
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

STATES = (
    "NotStarted", "Queued", "Preparing", "Provisioning", "Starting", "Running", "Finalizing", "CancelRequested",
    "Completed", "Failed", "Canceled", "Paused", "NotResponding",
)  # fmt: skip
"""All that the service says (azure-ai-ml 1.35.2, _run_history_constants.py)."""

FINAL = ("Completed", "Failed", "Canceled")
MUTABLE = ("description", "tags", "displayName", "properties", "isArchived")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,254}")
_KIND = "Microsoft.MachineLearningServices/workspaces/jobs"


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
    order: int = 0
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
        self.status = status
        self.history.append((status, now))
        if status == "Running" and self.started is None:
            self.started = now
        if status in FINAL:
            self.ended = now

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
        """The answer to GET: what was sent, and what the service adds."""
        properties = copy.deepcopy(self.properties)
        properties["properties"] = {**(properties.get("properties") or {}), **self._added(), **self.run_properties}
        properties["tags"] = self.tags
        properties["isArchived"] = self.hidden
        properties["experimentName"] = properties.get("experimentName") or "Default"
        properties["displayName"] = properties.get("displayName") or self.name
        properties["outputs"] = {**(properties.get("outputs") or {}), "default": _default_output(self.name)}
        properties |= {"status": self.status, "parameters": {}, "services": self._services()}
        return {
            "id": f"{self.workspace}/jobs/{self.name}",
            "name": self.name,
            "type": _KIND,
            "properties": properties,
            "systemData": {"createdAt": stamp(self.created), "createdBy": "Ada", "createdByType": "User"},
        }

    def _added(self) -> dict[str, str]:
        return {
            "_azureml.ComputeTargetType": "amlctrain",
            "ContentSnapshotId": "33333333-3333-3333-3333-333333333333",
            "ProcessInfoFile": "azureml-logs/process_info.json",
        }

    def _services(self) -> Json:
        studio = f"https://ml.azure.com/runs/{self.name}?wsid={self.workspace}&tid={TENANT}"
        own = {**(self.properties.get("services") or {})}
        return {**own, "Studio": {"jobServiceType": "Studio", "port": None, "endpoint": studio, "status": None}}


class Jobs:
    """The jobs of the workspace. `on_create` and `on_cancel` are told of them; otherwise tests move them themselves."""

    def __init__(self, workspace: str, assets: Assets, computes: Computes) -> None:
        self.workspace, self.assets, self.computes = workspace, assets, computes
        self.by_name: dict[str, Job] = {}
        self.page_size = 100
        self.first_status = "Queued"
        self.cancel_polls = 0
        """How often the answer to a cancel must be asked for before it is 200; 0 is at once, without a Location."""
        self.cancel_lingers = False
        """Whether a job stays in CancelRequested until a test ends it."""
        self.on_create: Callable[[Job], object] | None = None
        self.on_cancel: Callable[[Job], object] | None = None
        self._operations: dict[str, int] = {}
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Job:
        return self.by_name[name]

    @property
    def routes(self) -> list[Route]:
        resource = "workspaces/jobs"
        return [
            Route("PUT", "{WS}/jobs/{name}", resource, self._put),
            Route("GET", "{WS}/jobs/{name}", resource, self._get),
            Route("GET", "{WS}/jobs", resource, self._list),
            Route("DELETE", "{WS}/jobs/{name}", resource, self._delete),
            Route("POST", "{WS}/jobs/{name}/cancel", resource, self._cancel),
            Route("GET", "{WS}/jobs/{name}/operationResults/{operation}", resource, self._operation),
        ]

    def known(self, name: str) -> Job:
        if name not in self.by_name:
            raise Refused(404, "UserError", f"Run {name} was not found", inner="NotFoundError")
        return self.by_name[name]

    def _put(self, request: Request, name: str) -> Reply:
        if not _NAME.fullmatch(name):
            message = f"Run id {name} is invalid: letters, digits, dashes and underscores, 255 at most."
            raise Refused(400, "UserError", message, inner="InvalidRunId")
        with self._lock:
            if name in self.by_name:
                return self._update(self.by_name[name], request.body)
            self._check(request.body["properties"])
            job = Job(name, request.body, self.workspace, created=time.time(), order=len(self.by_name))
            job.hidden = bool(job.properties.get("isArchived"))
            job.enter(self.first_status)
            self.by_name[name] = job
        if self.on_create is not None:
            self.on_create(job)
        return answer(job.describe(), 201)

    def _check(self, properties: Json) -> None:
        """What the job refers to in this workspace exists."""
        for key, exists in (
            ("codeId", self.assets.exists),
            ("environmentId", self.assets.exists),
            ("computeId", self.computes.exists),
        ):
            wanted = properties.get(key) or ""
            if wanted.lower().startswith(self.workspace.lower()) and not exists(wanted):
                raise Refused(400, "UserError", f"{key} {wanted} was not found.", inner="NotFoundError")

    def _update(self, job: Job, body: Json) -> Reply:
        """The service's words (azure-docs#122250): only five properties of a job that exists may change."""
        old, new = job.properties, body["properties"]
        for key in sorted(old.keys() | new.keys()):
            if key not in MUTABLE and old.get(key) != new.get(key):
                message = (
                    "A job with this name already exists. If you are trying to submit a new job, use a different name. "
                    f"If you are trying to update an existing job, the existing job's {key} cannot be changed. "
                    "Only description, tags, displayName, properties, and isArchived can be updated."
                )
                raise Refused(400, "UserError", message, inner="JobPropertyImmutable")
        job.request, job.hidden = body, bool(new.get("isArchived"))
        return answer(job.describe(), 200)

    def _get(self, request: Request, name: str) -> Reply:
        return answer(self.known(name).describe())

    def _list(self, request: Request) -> Reply:
        """Newest first, in pages that nextLink leads through."""
        query = request.query
        jobs = sorted(self.by_name.values(), key=lambda job: (job.created, job.order), reverse=True)
        view = query.get("listViewType", "ActiveOnly")
        jobs = [job for job in jobs if view == "All" or job.hidden == (view == "ArchivedOnly")]
        if "tag" in query:
            jobs = [job for job in jobs if _has_tag(job, query["tag"])]
        if "jobType" in query:
            jobs = [job for job in jobs if job.properties.get("jobType") == query["jobType"]]
        start = int(query.get("$skip", 0))
        end = start + self.page_size
        body: Json = {"value": [job.describe() for job in jobs[start:end]]}
        if end < len(jobs):
            body["nextLink"] = _next_link(request, end)
        return answer(body)

    def _delete(self, request: Request, name: str) -> Reply:
        job = self.known(name)
        if not job.is_final:
            message = f"Run {name} is in status {job.status} and cannot be deleted."
            raise Refused(409, "UserError", message, inner="Conflict")
        del self.by_name[name]
        return Reply(200)

    def _cancel(self, request: Request, name: str) -> Reply:
        """At once or by and by. That a job which has ended is refused is modelled, nobody measured it."""
        job = self.known(name)
        if job.is_final:
            message = f"Run {name} is in a terminal state: {job.status}."
            raise Refused(400, "UserError", message, inner="InvalidRunState")
        job.enter("CancelRequested")
        if self.on_cancel is not None:
            self.on_cancel(job)
        elif not self.cancel_lingers:
            job.end("Canceled")
        if not self.cancel_polls:
            return Reply(200)
        operation = f"cancel-{name}"
        self._operations[operation] = self.cancel_polls
        return self._accepted(request, name, operation)

    def _operation(self, request: Request, name: str, operation: str) -> Reply:
        if operation not in self._operations:
            raise Refused(404, "OperationNotFound", f"There is no operation {operation}.")
        self._operations[operation] -= 1
        return self._accepted(request, name, operation) if self._operations[operation] else Reply(200)

    def _accepted(self, request: Request, name: str, operation: str) -> Reply:
        path = f"{self.workspace}/jobs/{name}/operationResults/{operation}"
        version = request.query["api-version"]
        place = f"https://{request.headers['host']}{path}?api-version={version}"
        return Reply(202, headers={"Location": place, "Retry-After": "0"})


def _next_link(request: Request, skip: int) -> str:
    rest = "&".join(part for part in request.target.partition("?")[2].split("&") if not part.startswith("%24skip="))
    return f"https://{request.headers['host']}{request.target.partition('?')[0]}?{rest}&%24skip={skip}"


def _has_tag(job: Job, wanted: str) -> bool:
    """`name` or `name=value`."""
    name, equals, value = wanted.partition("=")
    return name in job.tags and (not equals or job.tags[name] == value)


def _default_output(name: str) -> Json:
    uri = f"azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{name}"
    return {"description": None, "uri": uri, "mode": "ReadWriteMount", "jobOutputType": "uri_folder"}
