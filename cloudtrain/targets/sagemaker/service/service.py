"""The requests to AWS. Each method sends one or a few requests; other modules of this package read
the responses."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.errors import (
    NameTaken,
    SettingsError,
    TargetError,
    TargetUnreachable,
    UsageError,
)
from cloudtrain.job.model import format_duration
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.overlay import Overlay, type_named, user_overlay
from cloudtrain.machines.table import InstanceType, hourly, over
from cloudtrain.plans.plan import Finding, Plan, Upload
from cloudtrain.plans.progress import ListedRun, LogLine, OnStatus, RunStatus, Transition
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.signals.readers import Scalar
from cloudtrain.targets.capacity import read_words
from cloudtrain.targets.common.services import (
    Denied,
    NotThere,
    Pace,
    contains,
    follow_log,
    name_taken,
    why_unasked,
)
from cloudtrain.targets.common.tracebacks import error_in, shorten_line
from cloudtrain.targets.contract import (
    BundleWriter,
    ByteProgress,
    OwnMetrics,
    Service,
    Unasked,
)
from cloudtrain.targets.inside import NotOpen
from cloudtrain.targets.sagemaker.plan import (
    KINDS,
    RUN_TAG,
    TRAINING,
    JobKind,
    S3Uri,
    kind_of,
    places_of,
)
from cloudtrain.targets.sagemaker.request import JsonMapping, JsonObject
from cloudtrain.targets.sagemaker.service.clients import Clients, not_found, was_repeated
from cloudtrain.targets.sagemaker.service.inside import enter
from cloudtrain.targets.sagemaker.service.logs import JobLog, ranks_of
from cloudtrain.targets.sagemaker.settings import (
    AwsPlace,
    SageMaker,
    account_id,
    account_of,
    credentials_in_sight,
)

if TYPE_CHECKING:
    from cloudtrain.machines.overlay import Refreshed
    from cloudtrain.targets.inside import ExecRequest, Session


# Check whether cloudtrain created a job: by the job's tag, or by the job's fields if the tags
# cannot be read.

_COMPARED = ("RoleArn", "HyperParameters", "OutputDataConfig", "StoppingCondition", "Environment")
"""Fields that a description repeats unchanged from the request.

The hyperparameters contain the bundle's address, which contains its hash.
"""


def is_ours(
    clients: Clients, kind: JobKind, description: JsonMapping, request: JsonMapping | None
) -> bool:
    """Return whether cloudtrain created the described job for this run. The job's tag tells this.

    If permission to read tags is missing, or if `request` sets no tag, the job is compared with
    `request`. Without both permission and `request`, the result is True, because the job's name
    contains a hash of plan and submitter.
    """
    tags: dict[str, str] = {}
    try:
        for page in clients.pages("sagemaker", "list_tags", ResourceArn=description[kind.arn]):
            for tag in page["Tags"]:
                tags[tag["Key"]] = tag["Value"]
    except Denied:
        return request is None or _has_values_of(description, request)
    if RUN_TAG in tags:
        return bool(tags[RUN_TAG] == description[kind.name])
    if request is None:
        return False
    if any(tag["Key"] == RUN_TAG for tag in request.get("Tags", ())):
        return False
    return _has_values_of(description, request)  # the overrides remove the tag


def _has_values_of(description: JsonMapping, request: JsonMapping) -> bool:
    """Return whether a job has the values of the request in the fields `_COMPARED`."""
    return contains(description, {key: request[key] for key in _COMPARED if key in request})


# Shorten the service's message about a failed job to one line with the reason, and find the rank
# that failed.

_USER_SCRIPT = re.compile(r'ErrorMessage "(?P<message>.*?)"\s*(?:Command|$)', re.DOTALL)
r"""The toolkit's form: `ExecuteUserScriptError:\nExitCode 1\nErrorMessage "..."\nCommand "..."`."""

_EXIT_CODE = re.compile(r"(?:exit code:?|ExitCode)\s*(-?\d+)", re.IGNORECASE)
_ENDED = re.compile(r"\b(?:failed with exit code|was killed by) ")
"""Matches messages of cloudtrain's launchers: `the script on algo-2 failed with exit code 1:
ValueError: ...`."""

_RANK = re.compile(r"\brank (\d+)\b")
_KIND = re.compile(r"^(?P<kind>[A-Za-z]+(?:Error|Exception)): *")
_LAST_EXIT_CODE = re.compile(r",? *exit code: *-?\d+\s*$")


class FailureReason(NamedTuple):
    """The reason for a failure in one line, further lines of the message, the failed rank and the
    exit code."""

    text: str
    details: tuple[str, ...]
    rank: int | None
    exit_code: int | None


def reason_of(message: str) -> FailureReason:
    """Parse SageMaker's `FailureReason`, which may contain a traceback.

    An error type such as `ClientError` or `CapacityError` stays at the beginning of the line.
    `AlgorithmError` is dropped, because SageMaker reports it for every failure of the script.
    """
    body = message.strip()
    head = ""
    kind = _KIND.match(body)
    if kind is not None:
        body = body[kind.end() :]
        if kind["kind"] != "AlgorithmError":
            head = f"{kind[0].strip()} "

    script = _USER_SCRIPT.search(body)
    output = script["message"] if script else body
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]

    text = _LAST_EXIT_CODE.sub("", lines[0]) if lines else ""
    rank = _RANK.search(body)
    # the first line of a traceback says nothing, that of cloudtrain's launchers everything
    says_all = rank or len(lines) == 1 or _ENDED.search(text)
    if script or not says_all:
        text = error_in(lines) or text

    code = _EXIT_CODE.search(message)
    if script and code:
        text = f"the script failed with exit code {code[1]}: {text}".removesuffix(": ")
    details = lines[1:]
    if script and details:
        details = lines
    return FailureReason(
        text=shorten_line(head + text) or "the service gives no reason",
        details=tuple(details),
        rank=int(rank[1]) if rank else None,
        exit_code=int(code[1]) if code else None,
    )


# Turn the service's job description into a `RunStatus`: state, reason, phases, times, metrics and
# cost.

STATES: dict[str, dict[str, RunState]] = {
    table: {word: RunState(state) for word, state in rows.items()}
    for table, rows in load_table(__file__, "states.toml").items()
}
"""Maps the service's states to those of runs: a job's primary and secondary status, and a tuning
job's status."""

CAPACITY = read_words(__file__)

_BILLED_FROM = ("Downloading", "DownloadingTrainingImage", "Training")
"""Billing starts with the first of these phases; looking for instances is free."""


def state_of(primary: str, secondary: str | None) -> RunState:
    """Return the state for a job's primary and secondary status. A job with an unknown status
    counts as running."""
    state = STATES["primary"].get(primary)
    return state or STATES["secondary"].get(secondary or "", RunState.RUNNING)


def job_state(description: JsonMapping, kind: JobKind) -> RunState:
    return state_of(description[kind.status], description.get("SecondaryStatus"))


def status_of(description: JsonMapping, kind: JobKind, rate: float | None, now: float) -> RunStatus:
    """Return the status of a described job. Its instances cost `rate` US dollars per hour, if
    known."""
    state = job_state(description, kind)
    rows = description.get("SecondaryStatusTransitions", ())
    metrics = description.get("FinalMetricDataList", ())
    # a job that never started has no end time, but one of its last change
    end = description.get(kind.end_time) or description.get("LastModifiedTime")
    status = RunStatus(
        state=state,
        reason=_reason(description, state),
        created=seconds(description.get("CreationTime")),
        started=seconds(description.get(kind.start_time)),
        ended=seconds(end) if state.is_final else None,
        transitions=tuple(map(_transition, rows)),
        metrics={item["MetricName"]: item["Value"] for item in metrics},
        restarts=sum(row["Status"] in ("Interrupted", "Restarting") for row in rows),
    )
    return _with_money(_with_failure(status, description), description, rate, now)


def _transition(row: JsonMapping) -> Transition:
    start = row["StartTime"].timestamp()
    end = seconds(row.get("EndTime"))
    return Transition(row["Status"], start, end, row.get("StatusMessage"))


def listed_status(summary: JsonMapping, kind: JobKind) -> RunStatus:
    """Return a job's status as a list of jobs has it. Lists have no start times, so a job that
    has ended counts as started when it was created."""
    state = job_state(summary, kind)
    created = seconds(summary.get("CreationTime"))
    end_time = seconds(summary.get(kind.end_time)) if state.is_final else None
    started = created if end_time else None
    return RunStatus(state, created=created, started=started, ended=end_time)


_LIMITS = {
    "MaxRuntimeExceeded": ("max_runtime", "MaxRuntimeInSeconds"),
    "MaxWaitTimeExceeded": ("spot.max_wait", "MaxWaitTimeInSeconds"),
}
"""Maps secondary states to the limit of the job that was reached, and to its key in the service's
description."""


def _reason(description: JsonMapping, state: RunState) -> str | None:
    """Return why a job is in its state, except for failures; None if there is nothing to say."""
    secondary = description.get("SecondaryStatus", "")
    if secondary in _LIMITS:
        field, key = _LIMITS[secondary]
        limit = description.get("StoppingCondition", {}).get(key)
        length = f" ({format_duration(limit)})" if limit else ""
        return f"it reached `{field}`{length}"
    if secondary == "Interrupted":
        return "spot capacity was taken away; the job continues when capacity returns"
    if state is RunState.LOST:
        return "the service is deleting the job"
    if state is not RunState.PENDING:
        return None

    # what a pending job waits for
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    message = transitions[-1].get("StatusMessage")
    return " ".join(message.split()) if message else None


def _with_failure(status: RunStatus, description: JsonMapping) -> RunStatus:
    """Return the status with the reason of a failure, or unchanged for a job that did not fail."""
    text = description.get("FailureReason")
    # a processing job's own message replaces a reason that is missing or says only that the script
    # failed
    message = description.get("ExitMessage")
    if message and (not text or text.startswith("AlgorithmError")):
        text = message

    has_stopped_for = status.state is RunState.STOPPED and text
    if status.state is not RunState.FAILED and not has_stopped_for:
        return status
    failure = reason_of(text or "")
    return replace(
        status,
        reason=failure.text,
        details=failure.details,
        failed_rank=failure.rank,
        exit_code=failure.exit_code,
    )


def _with_money(
    status: RunStatus, description: JsonMapping, rate: float | None, now: float
) -> RunStatus:
    """Return the status with the billed seconds, the cost in US dollars, and for spot capacity the
    saved share. Until the service tells the billed seconds, those so far are used."""
    billed = description.get("BillableTimeInSeconds")
    billable = _metered_seconds(status, now) if billed is None else float(billed)
    cost = None
    if billable is not None and rate is not None:
        cost = over(rate, billable)

    saved = None
    trained = description.get("TrainingTimeInSeconds")
    is_spot = description.get("EnableManagedSpotTraining")
    if is_spot and billed is not None and trained is not None:
        saved = 1 - billed / trained
    return replace(status, billable_seconds=billable, cost=cost, saved=saved)


def hourly_price(description: JsonMapping, overlay: Overlay) -> float | None:
    """Return the US dollars per hour for all instances of the job; None if a price is unknown."""
    resources = description.get("ResourceConfig")
    if not resources:
        resources = description.get("ProcessingResources", {}).get("ClusterConfig", {})
    machines: list[tuple[InstanceType | None, int]] = []
    for group in resources.get("InstanceGroups") or [resources]:
        entry = type_named("sagemaker", group.get("InstanceType") or "", overlay)
        machines.append((entry, group.get("InstanceCount", 1)))
    return hourly(machines)


def _metered_seconds(status: RunStatus, now: float) -> float | None:
    """Return the seconds from the start of billing, if it has started, to the job's end, or to
    `now`."""
    end = now if status.ended is None else status.ended
    for item in status.transitions:
        if item.phase in _BILLED_FROM:
            return max(0.0, end - item.started)
    return None


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


_TAIL_STREAMS = 4
_TAIL_EVENTS = 40
"""The part of a failed job's output that is searched for the reason: the last events of the first
streams."""


class SageMakerService(Service):
    """Submits and manages runs. A run is a training job or processing job with the run's name."""

    in_flight: float = 60.0
    names_are_unique = True
    kinds: tuple[JobKind, ...] = KINDS
    """The types of jobs that a run can be."""

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(user_overlay)
        self._clients: dict[str, Clients] = {}

    def unasked(self, settings: SageMaker) -> Unasked | None:
        return why_unasked(
            "sagemaker",
            "boto3",
            "AWS",
            "`aws sso login` or `aws configure`",
            has_credentials=credentials_in_sight(settings, self._environ),
        )

    def check(
        self,
        job: TrainingJob,  # noqa: ARG002
        settings: SageMaker,  # noqa: ARG002
        plan: Plan,
    ) -> list[Finding]:
        from cloudtrain.targets.sagemaker.service.online import check

        return check(self._at(plan.place), plan)

    def refresh_catalogue(self, settings: SageMaker) -> Refreshed:
        """Download the region's prices into a file in the user's configuration folder."""
        from platformdirs import user_config_path

        from cloudtrain.targets.sagemaker.service.online import refresh

        account = account_of(settings, self._environ)
        if "region" in account.missing:
            raise SettingsError(
                "prices depend on the region, and none is set",
                hint="set `region` under `[sagemaker]` in cloudtrain.toml",
            )
        folder = user_config_path("cloudtrain", appauthor=False)
        today = datetime.now(timezone.utc).date()
        # the region whose API has the price list; those in China have an API of their own
        serving = "cn-northwest-1" if account.region.startswith("cn-") else "us-east-1"
        served_by = account._replace(region=serving)
        return refresh(
            self._at(served_by.place), account.region, folder=folder, date=today.isoformat()
        )

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        from cloudtrain.targets.sagemaker.service.transfer import upload

        clients = self._at(plan.place)
        owner = account_id(plan.request.get("RoleArn", ""))
        outputs = plan.request.get(kind_of(plan.request).outputs, {})
        is_new = False
        for item in plan.uploads:
            uploaded = upload(
                clients,
                item,
                bundle,
                owner=owner if owner and f"-{owner}/" in item.destination else None,
                kms_key=outputs.get("KmsKeyId"),
                on_bytes=on_bytes,
            )
            is_new = is_new or uploaded
        return is_new

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """If SageMaker refuses the request because the job exists, the job may be this run's:
        botocore may have repeated the request, or an earlier process may have sent it (`again`). If
        it is this run's job, the call succeeds."""
        kind = kind_of(plan.request, self.kinds)
        try:
            self._at(plan.place).call("sagemaker", kind.create, **plan.request)
        except NameTaken as error:
            if not (again or was_repeated(error)):
                raise
            self._ours(plan.ref, kind, plan.request if kind in KINDS else None)
        except TargetUnreachable:
            # the answer is lost, but the job may exist
            if not self.has(plan.ref):
                raise
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        return any(self._ours(ref, kind) for kind in self.kinds)

    def withdraw(self, ref: RunRef) -> bool:
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        kind, description = self._find_job(ref)
        status = self._status(kind, description)
        if status.state is not RunState.FAILED:
            return status
        return self._explain(ref, kind, description, status)

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        kind, description = self._find_job(ref)
        log = self._log(ref, kind, description, instance=instance)
        if follow:
            lines = follow_log(log, partial(self._look, ref, kind), on_status, self._pace)
        else:
            if on_status is not None:
                on_status(self.status(ref))
            lines = log.new_lines()
        return lines if rank is None else _of_rank(lines, rank)

    def log_after(self, ref: RunRef, mark: Any) -> JobLog:
        kind, description = self._find_job(ref)
        return self._log(ref, kind, description, mark=mark)

    def own_metrics(self, ref: RunRef, mark: Any) -> OwnMetrics:
        """Return the newest value of each metric that the service reads in the log, and the job's
        definitions, with which all values are found in the log."""
        _, description = self._find_job(ref)
        known = mark or {}
        values = []
        marks = {}
        for item in description.get("FinalMetricDataList", ()):
            name = item["MetricName"]
            time = item["Timestamp"].timestamp()
            marks[name] = [time, str(item["Value"])]
            if known.get(name) != marks[name]:
                values.append(Scalar(name, None, time, item["Value"]))
        definitions = description.get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
        patterns = {item["Name"]: item["Regex"] for item in definitions}
        return OwnMetrics(values, marks, patterns)

    def stop(self, ref: RunRef) -> None:
        """Stop the job: SageMaker sends SIGTERM, and SIGKILL after two minutes. Does nothing if the
        job has ended."""
        kind, description = self._find_job(ref)
        state = job_state(description, kind)
        if state.is_final or state is RunState.STOPPING:
            return
        try:
            self._at(ref.place).call("sagemaker", kind.stop, **{kind.name: ref.name})
        except TargetUnreachable:
            raise
        except TargetError:
            # it may have ended between the two requests
            kind, description = self._find_job(ref)
            if not job_state(description, kind).is_final:
                raise

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        kind, description = self._find_job(ref)
        if kind is not TRAINING:
            hint = f"`cloudtrain logs {ref.name}` shows its output"
            raise NotOpen(f"SageMaker lets nobody into a {kind.noun} job", hint=hint)
        ranks = ranks_of(description, self._overlay())
        return enter(self._at(ref.place), description, ranks, self._environ, asked)

    def runs(self, place: str) -> Iterator[ListedRun]:
        """Yield the account's training and processing jobs, newest first. Reads 100 jobs of each
        type per request."""
        lists = [self._list(place, kind) for kind in KINDS]
        return merge(*lists, key=lambda item: item.status.created or 0.0, reverse=True)

    def _list(self, place: str, kind: JobKind) -> Iterator[ListedRun]:
        clients = self._at(place)
        pages = clients.pages(
            "sagemaker", kind.list, SortBy="CreationTime", SortOrder="Descending", MaxResults=100
        )
        try:
            for page in pages:
                for summary in page[kind.summaries]:
                    ref = RunRef("sagemaker", place, summary[kind.name])
                    yield ListedRun(ref, listed_status(summary, kind))
        except Denied:
            if kind is TRAINING:  # users without permission for processing jobs have none to list
                raise

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        from cloudtrain.targets.common.archives import unpacked
        from cloudtrain.targets.sagemaker.service.transfer import fetch

        where = S3Uri.parse(upload.destination)
        archive = scratch / "sourcedir.tar.gz"
        with suppress(NotThere):
            fetch(self._at(ref.place), where.bucket, where.key, archive)
            yield from unpacked(archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        from cloudtrain.targets.sagemaker.service.transfer import download

        kind, description = self._find_job(ref)
        places = places_of(description, kind)
        log = self._log(ref, kind, description)
        return download(self._at(ref.place), places, path, destination, log.new_lines)

    def _at(self, place: str) -> Clients:
        """Return the clients for the middle part of a reference, such as `research@eu-west-1`."""
        if place not in self._clients:
            self._clients[place] = Clients(AwsPlace.parse(place), self._environ)
        return self._clients[place]

    def _describe(self, ref: RunRef, kind: JobKind) -> JsonObject | None:
        """Return the service's description of a job; None if there is none of this kind."""
        try:
            return self._at(ref.place).call("sagemaker", kind.describe, **{kind.name: ref.name})
        except NotThere:
            return None
        except Denied:
            if kind is TRAINING:  # users without permission for processing jobs have made none
                raise
            return None

    def _find_job(
        self, ref: RunRef, kinds: tuple[JobKind, ...] | None = None
    ) -> tuple[JobKind, JsonObject]:
        """Return the kind and the description of a run's job. Raises `RunNotFound`."""
        for kind in kinds or self.kinds:
            description = self._describe(ref, kind)
            if description is not None:
                return kind, description
        raise not_found(ref.name, self._at(ref.place).region())

    def _look(self, ref: RunRef, kind: JobKind) -> RunStatus:
        _, description = self._find_job(ref, (kind,))
        return self._status(kind, description)

    def _status(self, kind: JobKind, description: JsonMapping) -> RunStatus:
        return status_of(description, kind, hourly_price(description, self._overlay()), time.time())

    def _ours(self, ref: RunRef, kind: JobKind, request: JsonMapping | None = None) -> bool:
        """Return whether the job exists, and refuse one that cloudtrain did not create (see
        `is_ours`)."""
        description = self._describe(ref, kind)
        if description is None:
            return False
        if not is_ours(self._at(ref.place), kind, description, request):
            raise name_taken("account", f"{kind.noun} job", ref)
        return True

    def _log(self, ref: RunRef, kind: JobKind, description: JsonMapping, **only: Any) -> JobLog:
        ranks = ranks_of(description, self._overlay())
        return JobLog(self._at(ref.place), kind.log_group, ref.name, ranks=ranks, **only)

    def _explain(
        self, ref: RunRef, kind: JobKind, description: JsonMapping, status: RunStatus
    ) -> RunStatus:
        """Add the reason from a failed job's output to its status, if the service's own message has
        no details."""
        if status.details:
            return status
        log = self._log(ref, kind, description)
        with suppress(TargetError):  # unreadable logs must not hide the reason
            log.discover()
            for stream in log.streams[:_TAIL_STREAMS]:
                lines = log.tail(stream, _TAIL_EVENTS)
                error = error_in([line.text for line in lines])
                if error is not None:
                    return _with_output(status, lines, error)
        return status


def _of_rank(lines: Iterator[LogLine], rank: int) -> Iterator[LogLine]:
    """Yield the lines of one rank. Raises `UsageError` at the end if no line names its rank."""
    has_lines = False
    has_ranks = False
    for line in lines:
        has_lines = True
        has_ranks = has_ranks or line.rank is not None
        if line.rank == rank:
            yield line
    if has_lines and not has_ranks:
        raise UsageError(
            "the lines of this log do not name their ranks",
            hint=(
                'use `--host algo-1`; with `environment: {variables: {PET_TEE: "3"}}` torchrun '
                "marks each line"
            ),
            code="CT937",
        )


def _with_output(status: RunStatus, lines: list[LogLine], error: str) -> RunStatus:
    """Return the status of a failed job with the error from its output: its reason, the last lines,
    and the rank that wrote the error, if the service names none."""
    rank = status.failed_rank
    if rank is None:
        for line in lines:
            if line.text.strip().startswith(error[:40]):  # `error_in` shortens long lines
                rank = line.rank
    reason = status.reason or ""
    if error not in reason:
        reason = f"{reason}: {error}"
    details = tuple(line.text for line in lines[-20:])
    return replace(status, reason=reason, details=details, failed_rank=rank)
