"""The service of the Azure ML target: each method sends one or a few requests; other modules interpret the answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.errors import NameTaken, SettingsError, TargetError, TargetUnreachable
from cloudtrain.job.model import format_duration
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.overlay import Overlay, type_named, user_overlay
from cloudtrain.machines.table import hourly, over
from cloudtrain.plans.plan import Finding, Plan, Upload
from cloudtrain.plans.states import ListedRun, LogLine, RunRef, RunState, RunStatus, Transition
from cloudtrain.targets.azureml.compile.job import max_runtime
from cloudtrain.targets.azureml.service.blobs import Blobs
from cloudtrain.targets.azureml.service.client import CANCEL, COMPUTE, JOB, SUBMIT, Client, Labels
from cloudtrain.targets.azureml.service.logs import Layout, LogFile, RunLog
from cloudtrain.targets.azureml.service.provider_errors import not_found
from cloudtrain.targets.azureml.settings import AccountRef, AzureML
from cloudtrain.targets.common.services import Denied, NotThere, Pace, follow
from cloudtrain.targets.common.tracebacks import PEER_LOST, error_in, shorten_line
from cloudtrain.targets.contract import BundleWriter, ByteProgress

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.machines.overlay import Refreshed


# Find out whether cloudtrain created a job, from one of the job's properties or from its content.

MARK = "cloudtrain.run"
"""The property of every job that cloudtrain makes; its value is the run's name."""


def is_ours(job: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> bool:
    """Return whether cloudtrain created the job, for the run of the same name.

    cloudtrain's jobs have the property `MARK`. If overrides removed the property from `request`, the job is compared
    with `request` instead. Without `request`, a job that lacks the property counts as someone else's.
    """
    found = job["properties"]
    mark = (found.get("properties") or {}).get(MARK)
    if mark is not None:
        return bool(mark == job["name"])
    if request is None or MARK in (request["properties"].get("properties") or {}):
        return False
    return _contains(found, request["properties"])


def _contains(found: Any, asked: Any) -> bool:
    """Return whether the answer `found` contains all values of the request `asked`. Additional values are ignored."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), asked[key]) for key in asked)
    return bool(found == asked)


# Find the reason of a failed run, in one line, from the service's message and the failed rank's last output.
#
# The service's message is a sentence about an exit code, a whole traceback, or JSON that contains the message (in
# `NonCompliant` if it may quote the user's output, else in `Compliant`). These forms come from public error reports;
# not all have been tested. A message in another form is shown unchanged.

_DETAILS, _TAIL, _FILES, _AT_ONCE = 20, 8192, 64, 8
"""Limits: lines that explain a failure, bytes read from a file's end to find them, files, and files at a time."""

_CEREMONY = re.compile(
    r"^(?:\s|AzureMLCompute job failed\.?|(?:JobFailed|ExecutionFailed): *|Execution failed\.|Reason: *)+",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(
    r"(?:Submitted script failed with a non-zero exit code|Job failed with non-zero exit code|"
    r"(?:User )?process '[^']*' (?:exited|completed) with)",
    re.IGNORECASE,
)
_EXIT_CODE = re.compile(
    r"exit(?:ed)?(?: with)?(?: status)?[ _]codes?\b[\"':,\s]*(?:\"?value\"?[\"':\s]*)?(-?\d+)", re.IGNORECASE
)
_FILE = re.compile(r"user_logs/std_log[\w-]*\.txt")
_PLAIN = ("", "UserError", "ExecutionFailed")
"""Codes that tell nothing, because every failure of a script has them."""


class Reason(NamedTuple):
    """The reason of a failure in one line (`text`), the lines that explain it and, if known, exit code and log file."""

    text: str
    details: tuple[str, ...] = ()
    exit_code: int | None = None
    file: str | None = None
    """The log file that the reason refers to."""


def reason_of(error: Any) -> Reason:
    """Convert the `error` of a run, in any of its forms, to a reason."""
    root = _root(error)
    said = str(root.get("message") or next(_messages(root), ""))
    body = _unpack(said)
    lines = [line.rstrip() for line in body.splitlines() if line.strip()]
    code, file, named = _EXIT_CODE.search(said), _FILE.search(body), error_in([_behind_colon(line) for line in lines])
    text = _CEREMONY.sub("", shorten_line(body))
    if named or _SAYS_NOTHING.match(text):
        text = "the script failed" + (f" with exit code {code[1]}" if code else "") + (f": {named}" if named else "")
    kind = str(root.get("code") or "")
    if kind not in _PLAIN and kind not in text:
        text = f"{kind}: {text}" if text else kind
    return Reason(
        text=shorten_line(text) or "the service gives no reason",
        details=tuple(lines[-_DETAILS:]) if len(lines) > 1 else (),
        exit_code=int(code[1]) if code else None,
        file=file[0] if file else None,
    )


def explain(status: RunStatus, log: RunLog) -> RunStatus:
    """Return a failed run's status with the last output of the rank that failed first. `log` must include all ranks.

    If the logs cannot be read or contain no error, the status is returned unchanged.
    """
    try:
        log.discover()
        found = _first_failure(log, reason_of(log.details.get("error")))
    except TargetError:
        return status
    if found is None:
        return status
    reason = status.reason or "the service gives no reason"
    return replace(
        status,
        reason=shorten_line(reason if found.error in reason else f"{reason}: {found.error}"),
        details=tuple(found.lines[-_DETAILS:]),
        failed_rank=found.file.writer.rank,
    )


class _End(NamedTuple):
    """The last lines of a log file, and the error in them."""

    file: LogFile
    changed: float
    lines: list[str]
    error: str


def _first_failure(log: RunLog, reason: Reason) -> _End | None:
    """Return the end of the log of the rank that failed first; None if no log ends with an error.

    Ranks that only lost their connection to another rank are chosen last, because such an error often appears before
    the error that caused it. Among the other ranks, the one whose log the service names is chosen, or else the one
    whose log ended first.
    """
    ends = list(_ends(log, log.streams[:_FILES]))
    ends = ends or list(_ends(log, log.system_files[:_AT_ONCE]))
    return min(ends, key=_suspicion(reason), default=None)


def _suspicion(reason: Reason) -> Callable[[_End], tuple[bool, bool, float]]:
    def key(end: _End) -> tuple[bool, bool, float]:
        return bool(PEER_LOST.search("\n".join(end.lines[-6:]))), end.file.name != reason.file, end.changed

    return key


def _ends(log: RunLog, files: Sequence[LogFile]) -> Iterator[_End]:
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        for file, (changed, lines) in zip(files, pool.map(lambda file: log.tail(file, _TAIL), files), strict=True):
            error = error_in(lines)
            if error is not None:
                yield _End(file, changed, [line for line in lines if line.strip()], error)


def _root(error: Any) -> Mapping[str, Any]:
    """Return the error's fields, without the run history's outer object `{"error": ...}`."""
    inner = error.get("error", error) if isinstance(error, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _messages(error: Mapping[str, Any]) -> Iterator[str]:
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping):
            if detail.get("message"):
                yield str(detail["message"])
            yield from _messages(detail)


def _unpack(said: str) -> str:
    """Return the message, taken out of JSON if necessary."""
    try:
        found, _ = json.JSONDecoder().raw_decode(said.strip())
    except ValueError:
        return said
    texts = [found.get(name) for name in ("NonCompliant", "Compliant", "message")] if isinstance(found, dict) else []
    return next((text for text in texts if isinstance(text, str) and text.strip()), said)


def _behind_colon(line: str) -> str:
    """Remove the text before an error's name, as in `Error: ValueError: bad` or `... error message 'ValueError:
    bad`.
    """
    return re.sub(r"^.*?\b(?:Error|error message):? '?(?=\w+(?:\.\w+)*(?:Error|Exception|Interrupt|Exit)\b)", "", line)


# Turn the service's description of a job into a `RunStatus`: states, reasons, times and cost.
#
# The job's body comes from the resource manager. Its state and times come from the workspace's run history, which has
# three times: when the run was created, when it began to run, and when it ended.

STATES: dict[str, RunState] = {
    "NotStarted": RunState.PENDING,
    "Queued": RunState.PENDING,
    "Provisioning": RunState.PREPARING,
    "Preparing": RunState.PREPARING,
    "Starting": RunState.PREPARING,
    "Running": RunState.RUNNING,
    "Finalizing": RunState.RUNNING,
    "CancelRequested": RunState.STOPPING,
    "Completed": RunState.SUCCEEDED,
    "Failed": RunState.FAILED,
    "Canceled": RunState.STOPPED,
    "Paused": RunState.PENDING,
    "NotResponding": RunState.RUNNING,
}
"""Maps every state that azure-ai-ml 1.35.2 knows to ours.

The SDK stops waiting for a run that is `Paused` or `NotResponding`, but neither has ended. According to the API's
documentation, a paused run may continue, and a run that does not respond may return to any state.
"""

_WHY = {
    "Paused": "the run was paused; it can be resumed in the studio",
    "NotResponding": "the run gives no sign of life; it may come back",
}

_MOMENT = re.compile(r"(?P<seconds>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<fraction>\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?")


def state_of(status: str) -> RunState:
    """Return cloudtrain's state for the service's `status`. An unknown status counts as running."""
    return STATES.get(status, RunState.RUNNING)


def status_of(job: Mapping[str, Any], details: Mapping[str, Any], hourly: float | None, now: float) -> RunStatus:
    """Return the status of a job.

    Args:
        job: the resource manager's description of the job.
        details: the run's details; empty if the run history does not have the run yet.
        hourly: price of all the job's machines in US dollars per hour; None if unknown.
        now: the current time in seconds since the epoch, for jobs that have not ended yet.
    """
    word = details.get("status") or job["properties"]["status"]
    state = state_of(word)
    created = seconds(details.get("createdTimeUtc")) or created_at(job)
    started, ended = seconds(details.get("startTimeUtc")), None
    if state.is_final:
        ended = seconds(details.get("endTimeUtc") or details.get("lastModifiedUtc"))
    status = RunStatus(
        state=state,
        reason=_WHY.get(word),
        created=created,
        started=started,
        ended=ended,
        transitions=_transitions(word, created, started, ended),
        page=_page(job),
    )
    return _with_money(_with_reason(status, job, details), hourly, now)


def listed_status(job: Mapping[str, Any]) -> RunStatus:
    """Return the status of one job in a list of jobs, which lacks the job's start, end and cost."""
    word = job["properties"].get("status") or ""
    return RunStatus(state_of(word), reason=_WHY.get(word), created=created_at(job), page=_page(job))


def seconds(moment: str | None) -> float | None:
    """Convert a time of the service, with up to seven decimal places, to seconds since the epoch.

    Returns None for a text of another form.
    """
    match = _MOMENT.fullmatch(moment or "")
    if match is None:
        return None
    zone = (match["zone"] or "Z").replace("Z", "+00:00")
    whole = datetime.fromisoformat(match["seconds"] + (zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"))
    return whole.astimezone(timezone.utc).timestamp() + float(match["fraction"] or 0)


def created_at(job: Mapping[str, Any]) -> float | None:
    return seconds((job.get("systemData") or {}).get("createdAt"))


def _page(job: Mapping[str, Any]) -> str | None:
    """Return the address of the job's page in the studio; the service lists it among the job's services."""
    page: str | None = ((job["properties"].get("services") or {}).get("Studio") or {}).get("endpoint")
    return page


def _transitions(
    word: str, created: float | None, started: float | None, ended: float | None
) -> tuple[Transition, ...]:  # fmt: skip
    """Return the phases whose beginning is known: waiting, running and the end."""
    if created is None:
        return ()
    waiting = word if started is None and ended is None else "Queued"
    phases = [Transition(waiting, created, started if started is not None else ended)]
    if started is not None:
        phases.append(Transition("Running" if ended is not None else word, started, ended))
    if ended is not None:
        phases.append(Transition(word, ended, ended))
    return tuple(phases)


def _with_reason(status: RunStatus, job: Mapping[str, Any], details: Mapping[str, Any]) -> RunStatus:
    if status.state is RunState.FAILED:
        reason = reason_of(details.get("error"))
        return replace(status, reason=reason.text, details=reason.details, exit_code=reason.exit_code)
    if status.state is RunState.STOPPED:
        return replace(status, reason=_limit(status, job) or _failure_reason(details))
    if status.reason is None and status.state in (RunState.PENDING, RunState.PREPARING):
        return replace(status, reason=_warning(details))
    return status


def _limit(status: RunStatus, job: Mapping[str, Any]) -> str | None:
    """Return a note if a job reached its time limit, else None."""
    allowed = max_runtime(job["properties"])
    if not allowed or status.started is None or status.ended is None or status.ended - status.started < allowed:
        return None
    return f"it reached `max_runtime` ({format_duration(allowed)})"


def _failure_reason(details: Mapping[str, Any]) -> str | None:
    error = details.get("error")
    return reason_of(error).text if error else None


def _warning(details: Mapping[str, Any]) -> str | None:
    """Return the service's last warning, which usually explains why a job is waiting; None without warnings."""
    messages = [item.get("message") for item in details.get("warnings") or () if item.get("message")]
    return " ".join(str(messages[-1]).split()) if messages else None


def _with_money(status: RunStatus, hourly: float | None, now: float) -> RunStatus:
    """Add the billable seconds since the job began to run, and their cost.

    A cluster's idle minutes before and after the job do not count.
    """
    if status.started is None:
        return status
    lasted = max(0.0, (status.ended if status.ended is not None else now) - status.started)
    return replace(status, billable_seconds=lasted, cost=None if hourly is None else over(hourly, lasted))


# The billed machines of a job, and their cost per hour at list prices or at the user's own prices.

ClusterOf = Callable[[str], Mapping[str, Any] | None]
"""Returns the resource manager's description of a compute by its id; None if there is none."""

_SPARE = ("spot", "lowpriority")


class Paid(NamedTuple):
    """The machines of a job. `is_spare` marks spot capacity, for which no list price exists."""

    instance_type: str
    instances: int
    is_spare: bool = False

    def hourly_price(self, overlay: Overlay) -> float | None:
        """Return the price of all instances in US dollars per hour; None if unknown."""
        known = None if self.is_spare else type_named("azureml", self.instance_type, overlay)
        return hourly([(known, self.instances)])


def paid_machines(properties: Mapping[str, Any], details: Mapping[str, Any], cluster_of: ClusterOf) -> Paid | None:
    """Return the machines of a job, from the run history, the job's body or the job's cluster; None if unknown.

    Args:
        properties: the job's body.
        details: the run's details from the run history, which may lack the machines.
        cluster_of: returns a cluster's description; called only if the other sources lack the machines.
    """
    resources = properties.get("resources") or {}
    tier = (properties.get("queueSettings") or {}).get("jobTier")
    seen = details.get("compute") or {}
    count = int(seen.get("instanceCount") or resources.get("instanceCount") or 1)
    instance_type, priority = seen.get("vmSize"), seen.get("priority") or tier
    compute = properties.get("computeId") or ""
    if not instance_type and not _is_cluster(compute):
        instance_type = resources.get("instanceType")
    if not instance_type and _is_cluster(compute):
        made = ((cluster_of(compute) or {}).get("properties") or {}).get("properties") or {}
        instance_type, priority = made.get("vmSize"), made.get("vmPriority")
    return Paid(str(instance_type), count, _is_spare(priority)) if instance_type else None


def _is_cluster(compute: str) -> bool:
    return "/computes/" in compute and not compute.endswith("/serverless")


def _is_spare(word: Any) -> bool:
    return str(word or "").replace("_", "").lower() in _SPARE


_TOKEN = "x-azureml-token"
"""Header with a token with which a job acts for its user to read the data."""


class AzureMLService:
    """Azure ML's service. Each run is a command job with the run's name."""

    in_flight = 60.0
    names_are_unique = True
    submit_version = SUBMIT
    """The version of the API that makes a job."""

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(partial(user_overlay, target="azureml"))
        self._clients: dict[str, Client] = {}
        self._blobs: dict[str, Blobs] = {}
        self._clusters: dict[str, Mapping[str, Any] | None] = {}
        self._labels = Labels()

    def can_check(self, settings: AzureML) -> bool:
        """Return whether this machine seems to have credentials."""
        from cloudtrain.targets.azureml.service.client import credentials_in_sight

        return settings.credential is not None or credentials_in_sight(self._environ)

    def check(self, job: TrainingJob, settings: AzureML, plan: Plan) -> list[Finding]:
        """Check workspace, compute, quota, environment and data, as far as the credentials allow it."""
        from cloudtrain.targets.azureml.compile.parts import machines_of
        from cloudtrain.targets.azureml.service.online import check
        from cloudtrain.targets.azureml.settings import account_of

        account = account_of(settings, self._environ, Path.cwd())._replace(overlay=self._overlay() or None)
        return check(self._at(plan.place), plan, machines_of(job, account).instance_type, self._labels)

    def pin(self, job: AnyJob, settings: AzureML) -> AnyJob:
        """Return the job with the newest versions in place of the labels of environment and data; see `labels.py`."""
        from cloudtrain.targets.azureml.settings import account_of

        account = account_of(settings, self._environ, Path.cwd())
        if account.missing:
            hint = "set `subscription_id`, `resource_group` and `workspace` under `[azureml]` in cloudtrain.toml"
            raise SettingsError("cloudtrain cannot look up `@latest`, because no workspace is configured", hint=hint)
        return self._labels.pinned(self._at(account.place), job)

    def refresh_catalogue(self, settings: AzureML) -> Refreshed:
        """Write the workspace's instance types, prices and quotas into a file in the user's configuration folder.

        Raises:
            SettingsError: the settings do not name the workspace.
        """
        from datetime import datetime, timezone

        from platformdirs import user_config_path

        from cloudtrain.targets.azureml.service.online import refresh
        from cloudtrain.targets.azureml.settings import account_of

        account = account_of(settings, self._environ, Path.cwd())
        if account.missing:
            message = "cloudtrain cannot list instance types, because no workspace is configured"
            hint = "set `subscription_id`, `resource_group` and `workspace` under `[azureml]` in cloudtrain.toml"
            raise SettingsError(message, hint=hint)
        folder, today = user_config_path("cloudtrain", appauthor=False), datetime.now(timezone.utc).date()
        client = self._at(account.place)
        return refresh(client, client.place.subscription_id, folder=folder, date=today.isoformat())

    def upload(self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None) -> bool:
        """Upload the data and create the assets that the plan needs; return False if all of them exist already."""
        from cloudtrain.targets.azureml.service.transfer import make_asset, upload_data

        client = self._at(plan.place)
        data = [item for item in plan.uploads if item.kind == "data"]
        made = [upload_data(client, item, on_bytes) for item in data]
        made += [make_asset(client, item, bundle, on_bytes) for item in plan.uploads if item not in data]
        return any(made)

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Send the request, with each label replaced by the version that the check reported.

        If an earlier process may have sent the request (`again`), the name is looked up first, because a PUT to an
        existing job changes its properties, tags and description. If the answer to a PUT is lost, the PUT is repeated:
        the same content does not create a second job. If the service then refuses the PUT because the job exists,
        cloudtrain recognizes the job as its own.

        Raises:
            NameTaken: the workspace has another job of that name.
            TargetError: Azure ML refuses the job.
        """
        client = self._at(plan.place)
        if again and self._ours(plan.ref, plan.request):
            return plan.ref
        content = self._labels.body(client, plan.request, plan.request_json).encode()
        headers = self._headers(client, plan)
        try:
            client.send(
                "PUT", f"jobs/{plan.run_name}", api_version=self.submit_version, content=content, headers=headers
            )
        except (NameTaken, TargetUnreachable):
            if not self._ours(plan.ref, plan.request):
                raise
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        """Return whether the workspace has the run.

        Raises:
            NameTaken: the workspace has a run of that name that another tool or user made.
        """
        return self._ours(ref)

    def withdraw(self, ref: RunRef) -> bool:
        """Return True if the workspace does not have the run, and False if it does.

        Sends nothing else: an earlier request to create the run has arrived by now, or is lost.
        """
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        """Return the job's current status; for a failed job, with the last lines that it wrote."""
        job = self._job(ref)
        status = self._status(ref, job)
        return explain(status, self._log(ref, job)) if status.state is RunState.FAILED else status

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        """Yield the output so far. With `follow`, continue until the job has ended and no more lines arrive."""
        job = self._job(ref)
        log = self._log(ref, job, rank=rank, instance=instance)
        return self._follow(ref, job, log, on_status) if follow else self._so_far(ref, log, on_status)

    def stop(self, ref: RunRef) -> None:
        """Ask the service to cancel the job, which takes some time. Does nothing if the job has ended or is ending."""
        if _is_ending(self._job(ref)):
            return
        try:
            self._at(ref.place).post(f"jobs/{ref.name}/cancel", api_version=CANCEL)
        except TargetUnreachable:
            raise
        except TargetError:
            if not _is_ending(self._job(ref)):  # it may have ended between the two requests
                raise

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the workspace's jobs, whoever made them, page by page.

        The service lists the newest first, but does not promise the order within a page, so each page is sorted.
        """
        pages = self._at(place).pages("jobs", api_version=JOB, query={"listViewType": "ActiveOnly"})
        for page in pages:
            listed = [ListedRun(RunRef("azureml", place, job["name"]), listed_status(job)) for job in page]
            yield from sorted(listed, key=lambda item: item.status.created or 0.0, reverse=True)

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        """Copy the files of the code asset to `scratch/code`, and yield the folder; nothing if the asset is missing."""
        from cloudtrain.targets.azureml.service.transfer import fetch_code

        with suppress(NotThere):
            yield fetch_code(self._stores(ref.place), upload.destination, scratch / "code")

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        """Copy the job's results; see `download.py`."""
        from cloudtrain.targets.azureml.service.transfer import download

        return download(self._stores(ref.place), self._job(ref), path, destination)

    def _at(self, place: str) -> Client:
        if place not in self._clients:
            self._clients[place] = Client(AccountRef.parse(place), self._environ)
        return self._clients[place]

    def _stores(self, place: str) -> Blobs:
        if place not in self._blobs:
            self._blobs[place] = Blobs(self._at(place))
        return self._blobs[place]

    def _job(self, ref: RunRef) -> dict[str, Any]:
        """Return the job that `ref` names.

        Raises:
            RunNotFound: the workspace has no such job.
        """
        job = self._find(ref)
        if job is None:
            raise not_found(ref.name, self._at(ref.place).place.workspace)
        return job

    def _find(self, ref: RunRef) -> dict[str, Any] | None:
        try:
            job: dict[str, Any] = self._at(ref.place).get(f"jobs/{ref.name}", api_version=JOB)
        except NotThere:
            return None
        return job

    def _ours(self, ref: RunRef, request: Mapping[str, Any] | None = None) -> bool:
        """Return whether the job exists and cloudtrain created it.

        Raises:
            NameTaken: the job exists, and another tool or user made it.
        """
        job = self._find(ref)
        if job is None:
            return False
        if not is_ours(job, request):
            raise NameTaken(
                f"the workspace already has a different job named `{ref.name}`",
                hint=f"see it with `cloudtrain status {ref}`, or give your job another name",
                code="CT945",
            )
        return True

    def _headers(self, client: Client, plan: Plan) -> dict[str, str]:
        identity = plan.request["properties"].get("identity") or {}
        if identity.get("identityType") != "UserIdentity":
            return {}
        return {_TOKEN: client.token(client.cloud.job_scope)}

    def _status(self, ref: RunRef, job: Mapping[str, Any]) -> RunStatus:
        client, details = self._at(ref.place), self._details(ref)
        paid = None
        if details.get("startTimeUtc"):  # billing begins at this time
            paid = paid_machines(job["properties"], details, self._cluster_at(client))
        return status_of(job, details, paid.hourly_price(self._overlay()) if paid else None, time.time())

    def _details(self, ref: RunRef) -> dict[str, Any]:
        try:
            details: dict[str, Any] = self._at(ref.place).history(f"runs/{ref.name}/details")
        except (NotThere, Denied):
            return {}  # the run history shows a new job with a delay, and may be forbidden
        return details

    def _cluster_at(self, client: Client) -> ClusterOf:
        def cluster_of(compute: str) -> Mapping[str, Any] | None:
            if compute not in self._clusters:
                try:
                    self._clusters[compute] = client.get(compute, api_version=COMPUTE)
                except (NotThere, Denied):
                    self._clusters[compute] = None
            return self._clusters[compute]

        return cluster_of

    def _log(self, ref: RunRef, job: Mapping[str, Any], **only: int | None) -> RunLog:
        return RunLog(self._stores(ref.place), ref.name, Layout.of(job["properties"]), **only)

    def _follow(
        self, ref: RunRef, job: Mapping[str, Any], log: RunLog, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        yield from follow(log, lambda: self._status(ref, job), on_status, self._pace)
        yield from log.rest()

    def _so_far(self, ref: RunRef, log: RunLog, on_status: Callable[[RunStatus], None] | None) -> Iterator[LogLine]:
        status = self.status(ref)
        if on_status is not None:
            on_status(status)
        yield from log.new_lines()
        if status.state.is_final:
            yield from log.rest()


def _is_ending(job: Mapping[str, Any]) -> bool:
    """Return whether the job has ended or is ending, so that it cannot be cancelled.

    The service also refuses to cancel a job while it saves the job's outputs (`Finalizing`).
    """
    word = job["properties"]["status"]
    state = state_of(word)
    return state.is_final or state is RunState.STOPPING or word == "Finalizing"
