"""The jobs of a workspace: made once per name, listed in pages, canceled, deleted."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable

from tests.fakes.azureml.assets import Assets
from tests.fakes.azureml.compute import Computes
from tests.fakes.azureml.identity import STUDIO, read_claims
from tests.fakes.azureml.job import Job
from tests.fakes.azureml.messages import Json, Refused, Reply, Request, Route, answer

MUTABLE = ("description", "tags", "displayName", "properties", "isArchived")
"""The properties of a job that exists which may still change."""

_PLACES = "{SUB}/providers/Microsoft.MachineLearningServices/locations/{location}"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,254}")


class Jobs:
    """The jobs of the workspace. `on_create` and `on_cancel` are told of them; otherwise tests move them themselves."""

    def __init__(self, workspace: str, assets: Assets, computes: Computes) -> None:
        self.workspace, self.assets, self.computes = workspace, assets, computes
        self.by_name: dict[str, Job] = {}
        self.page_size = 100
        self.first_status = "Starting"
        """As recorded in March 2026, never Queued."""
        self.cancel_polls = 1
        """How often the answer to a cancel is 202 when it is asked for, before it is 200."""
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
            Route("GET", f"{_PLACES}/mfeOperationResults/{{operation}}", resource, self._operation),
        ]

    def known(self, name: str) -> Job:
        if name not in self.by_name:
            raise Refused(404, "UserError", f"Run {name} was not found", inner="NotFoundError")
        return self.by_name[name]

    def add_trial(self, sweep: str, values: Json, **metrics: float) -> Job:
        """The next trial of a sweep job, which runs with these values."""
        asked = self.known(sweep).properties
        name = f"{sweep}_{len(self.trials_of(sweep))}"
        kept = {
            key: asked[key]
            for key in ("computeId", "resources", "experimentName", "outputs")
            if key in asked
        }
        body = {
            "properties": {"jobType": "Command", **asked["trial"], **kept, "parentJobName": sweep}
        }
        job = Job(
            name,
            body,
            self.workspace,
            created=time.time(),
            order=len(self.by_name),
            metrics=metrics,
        )
        job.run_tags["hyperparameters"] = json.dumps(values)
        job.enter("Running")
        self.by_name[name] = job
        return job

    def trials_of(self, sweep: str) -> list[Job]:
        return [
            job for job in self.by_name.values() if job.properties.get("parentJobName") == sweep
        ]

    def _put(self, request: Request, name: str) -> Reply:
        if not _NAME.fullmatch(name):
            message = (
                f"Run id {name} is invalid: letters, digits, dashes and underscores, 255 at most."
            )
            raise Refused(400, "UserError", message, inner="InvalidRunId")
        with self._lock:
            if name in self.by_name:
                return self._update(self.by_name[name], request.body)
            _check_fields(request)
            self._check_references(request.body["properties"])
            _check_user(request)
            job = Job(
                name, request.body, self.workspace, created=time.time(), order=len(self.by_name)
            )
            job.hidden = bool(job.properties.get("isArchived"))
            job.enter(self.first_status)
            self.by_name[name] = job
        if self.on_create is not None:
            self.on_create(job)
        return answer(job.describe(), 201)

    def _check_references(self, properties: Json) -> None:
        """What the job refers to in this workspace exists. The answers for a cluster (2026) and for what a body names by
        its version (2023) were recorded; that for code is a guess.
        """
        code, environment, compute = (
            properties.get(key) or "" for key in ("codeId", "environmentId", "computeId")
        )
        if self._lacks(code, self.assets.exists):
            raise Refused(400, "UserError", f"codeId {code} was not found.", inner="NotFoundError")
        if self._lacks(environment, self.assets.exists):
            *_, name, _, version = environment.split("/")
            message = (
                f"key: {environment}, Message: Not found environment {name} (version: {version})."
            )
            raise Refused(404, "NotFound", message)
        if self._lacks(compute, self.computes.exists):
            message = f"Unknown compute target '{compute.rpartition('/')[2]}'."
            raise Refused(400, "UserError", message, inner="UnknownTargetType")

    def _lacks(self, wanted: str, exists: Callable[[str], bool]) -> bool:
        return wanted.lower().startswith(self.workspace.lower()) and not exists(wanted)

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
        """Of a pipeline's step the service says only that there is one (recorded in 2022)."""
        described = self.known(name).describe()
        if self.known(name).is_step:
            del described["properties"]
        return answer(described)

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
        """As recorded in March 2026: 202, the JSON value `null`, and where to ask for the result. A job that is
        finalizing is refused (azureml-assets#2496); so, here, is one that ended.
        """
        job = self.known(name)
        if job.is_final or job.status == "Finalizing":
            message = f"Run {name} cannot be canceled in status {job.status}."
            raise Refused(400, "UserError", message, inner="InvalidRunState")
        job.enter("CancelRequested")
        if self.on_cancel is not None:
            self.on_cancel(job)
        elif not self.cancel_lingers:
            job.end("Canceled")
        operation = f"jc:44444444-4444-4444-4444-444444444444:{name}"
        self._operations[operation] = self.cancel_polls
        return self._accepted(request, operation, b"null")

    def _operation(self, request: Request, location: str, operation: str) -> Reply:
        if operation not in self._operations:
            raise Refused(404, "OperationNotFound", f"There is no operation {operation}.")
        if not self._operations[operation]:
            return Reply(200)
        self._operations[operation] -= 1
        return self._accepted(request, operation, b"{}")

    def _accepted(self, request: Request, operation: str, body: bytes) -> Reply:
        """The service gives no Retry-After, so its SDK waits 30 s between two questions; tests have no time for it."""
        path = _PLACES.format(
            SUB=self.workspace.split("/resourceGroups/")[0], location=self.computes.location
        )
        query = f"api-version={request.query['api-version']}&t=1&c=MII&s=ab&h=cd"
        headers = {
            "Content-Type": "application/json; charset=utf-8", "x-ms-async-operation-timeout": "PT1H",
            "Location": f"https://{request.headers['host']}{path}/mfeOperationResults/{operation}?{query}",
            "Retry-After": "0",
        }  # fmt: skip
        return Reply(202, body, headers)


def _check_fields(request: Request) -> None:
    """The fields that this version of the API does not have, as recorded in March 2026 for `assetVersion`."""
    outputs = request.body["properties"].get("outputs") or {}
    if request.query["api-version"] == "2025-01-01-preview":
        details = tuple(
            f"Could not find member '{field}' on object of type 'UriFolderJobOutput'. Path '{field}', line 1, position 604."
            for output in outputs.values()
            for field in ("assetVersion", "pathOnCompute", "autoDeleteSetting")
            if (output or {}).get(field) is not None
        )
        if details:
            message = "Request is invalid and/or missing fields."
            raise Refused(400, "UserError", message, inner="RequestInvalid", details=details)


def _check_user(request: Request) -> None:
    """A job that acts for its user brings the user's token: azure-ai-ml sends it in this header."""
    identity = request.body["properties"].get("identity") or {}
    if identity.get("identityType") != "UserIdentity":
        return
    try:
        audience = read_claims(request.headers.get("x-azureml-token", ""))["aud"]
    except ValueError:
        raise Refused(
            400, "UserError", "A job with user identity needs the header x-azureml-token."
        ) from None
    if audience.rstrip("/") != STUDIO:
        raise Refused(
            400, "UserError", f"The token in x-azureml-token is for {audience}, not for {STUDIO}."
        )


def _next_link(request: Request, skip: int) -> str:
    rest = "&".join(
        part
        for part in request.target.partition("?")[2].split("&")
        if not part.startswith("%24skip=")
    )
    return (
        f"https://{request.headers['host']}{request.target.partition('?')[0]}?{rest}&%24skip={skip}"
    )


def _has_tag(job: Job, wanted: str) -> bool:
    """`name` or `name=value`."""
    name, equals, value = wanted.partition("=")
    return name in job.tags and (not equals or job.tags[name] == value)
