"""The requests to AWS. Each method sends one or a few requests; other modules of this package read
the responses."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.documents.document import load_toml
from cloudtrain.errors import NameTaken, SettingsError, TargetError, TargetUnreachable, UsageError
from cloudtrain.job.model import format_duration
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.overlay import Overlay, type_named, user_overlay
from cloudtrain.machines.table import hourly, over
from cloudtrain.plans.plan import Finding, Plan, Upload
from cloudtrain.plans.states import ListedRun, LogLine, RunRef, RunState, RunStatus, Transition
from cloudtrain.targets.common.services import Denied, NotThere, Pace, contains, follow
from cloudtrain.targets.common.tracebacks import error_in, shorten_line
from cloudtrain.targets.contract import BundleWriter, ByteProgress
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


# Check whether cloudtrain created a job: by the job's tag, or by the job's fields if the tags
# cannot be read.

_COMPARED = ("RoleArn", "HyperParameters", "OutputDataConfig", "StoppingCondition", "Environment")
"""Fields that a description repeats unchanged from the request.

The hyperparameters contain the bundle's address, which contains its hash.
"""


def is_ours(
    clients: Clients, kind: JobKind, description: JsonMapping, request: JsonMapping | None = None
) -> bool:
    """Return whether cloudtrain created the described job for this run. The job's tag tells this.

    If permission to read tags is missing, or if `request` sets no tag, the job is compared with
    `request`. Without both permission and `request`, the result is True, because the job's name
    contains a hash of plan and submitter.
    """
    name = description[kind.name]
    try:
        pages = clients.pages("sagemaker", "list_tags", ResourceArn=description[kind.arn])
        tags = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
    except Denied:
        return request is None or _same(description, request)
    if RUN_TAG in tags:
        return bool(tags[RUN_TAG] == name)
    if request is None or any(tag["Key"] == RUN_TAG for tag in request.get("Tags", ())):
        return False
    return _same(description, request)  # the overrides remove the tag


def _same(description: JsonMapping, request: JsonMapping) -> bool:
    return all(
        contains(description.get(field), request[field]) for field in _COMPARED if field in request
    )


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
    kind, body = _KIND.match(message.strip()), _KIND.sub("", message.strip())
    head = f"{kind[0].strip()} " if kind is not None and kind["kind"] != "AlgorithmError" else ""
    script = _USER_SCRIPT.search(body)
    lines = [
        line.rstrip()
        for line in (script["message"] if script else body).splitlines()
        if line.strip()
    ]
    rank, code = _RANK.search(body), _EXIT_CODE.search(message)
    first = _LAST_EXIT_CODE.sub("", lines[0]) if lines else ""
    error = error_in(lines)
    text = (
        first
        if not script and (rank or len(lines) == 1 or _ENDED.search(first))
        else error or first
    )
    if script and code:
        text = f"the script failed with exit code {code[1]}" + (f": {text}" if text else "")
    return FailureReason(
        text=shorten_line(head + text) or "the service gives no reason",
        details=tuple(
            lines[1:] if len(lines) > 1 and not script else lines if len(lines) > 1 else ()
        ),
        rank=int(rank[1]) if rank else None,
        exit_code=int(code[1]) if code else None,
    )


# Turn the service's job description into a `RunStatus`: state, reason, phases, times, metrics and
# cost.

STATES = {
    table: {word: RunState(state) for word, state in rows.items()}
    for table, rows in load_toml(Path(__file__).with_name("states.toml").read_text("utf-8")).items()
}
"""Maps the service's states to those of runs: a job's primary and secondary status, and a tuning
job's status."""

_BILLED_FROM = ("Downloading", "DownloadingTrainingImage", "Training")
"""Billing starts with the first of these phases; looking for instances is free."""


def state_of(primary: str, secondary: str | None) -> RunState:
    """Return the state for a job's primary and secondary status. A job with an unknown status
    counts as running."""
    return STATES["primary"].get(primary) or STATES["secondary"].get(
        secondary or "", RunState.RUNNING
    )


def job_state(description: JsonMapping, kind: JobKind) -> RunState:
    return state_of(description[kind.status], description.get("SecondaryStatus"))


def status_of(description: JsonMapping, kind: JobKind, rate: float | None, now: float) -> RunStatus:
    """Return the status of a described job. Its instances cost `rate` US dollars per hour, if
    known."""
    state, rows = job_state(description, kind), description.get("SecondaryStatusTransitions", ())
    status = RunStatus(
        state=state,
        reason=_reason(description, state),
        created=seconds(description.get("CreationTime")),
        started=seconds(description.get(kind.start_time)),
        # of a job that never started, the time of its last change
        ended=seconds(description.get(kind.end_time) or description.get("LastModifiedTime"))
        if state.is_final
        else None,
        transitions=tuple(
            Transition(
                row["Status"],
                row["StartTime"].timestamp(),
                seconds(row.get("EndTime")),
                row.get("StatusMessage"),
            )
            for row in rows
        ),
        metrics={
            item["MetricName"]: item["Value"] for item in description.get("FinalMetricDataList", ())
        },
        restarts=sum(row["Status"] in ("Interrupted", "Restarting") for row in rows),
    )
    return _with_money(_with_failure(status, description), description, rate, now)


def listed_status(summary: JsonMapping, kind: JobKind) -> RunStatus:
    state = job_state(summary, kind)
    created = seconds(summary.get("CreationTime"))
    end_time = seconds(summary.get(kind.end_time)) if state.is_final else None
    return RunStatus(state, created=created, started=created if end_time else None, ended=end_time)


def _reason(description: JsonMapping, state: RunState) -> str | None:
    secondary, stopping = (
        description.get("SecondaryStatus"),
        description.get("StoppingCondition", {}),
    )
    if secondary == "MaxRuntimeExceeded":
        return f"it reached `max_runtime` ({_duration(stopping.get('MaxRuntimeInSeconds'))})"
    if secondary == "MaxWaitTimeExceeded":
        return f"it reached `spot.max_wait` ({_duration(stopping.get('MaxWaitTimeInSeconds'))})"
    if secondary == "Interrupted":
        return "spot capacity was taken away; the job continues when capacity returns"
    if state is RunState.LOST:
        return "the service is deleting the job"
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    message = transitions[-1].get("StatusMessage") if state is RunState.PENDING else None
    return " ".join(message.split()) if message else None


def _with_failure(status: RunStatus, description: JsonMapping) -> RunStatus:
    reason, message = description.get("FailureReason"), description.get("ExitMessage")
    # a processing job's own message replaces a reason that is missing or says only that the script
    # failed
    text = message if message and (not reason or reason.startswith("AlgorithmError")) else reason
    if status.state is not RunState.FAILED and not (text and status.state is RunState.STOPPED):
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
    billed, trained = (
        description.get("BillableTimeInSeconds"),
        description.get("TrainingTimeInSeconds"),
    )
    lasted = float(billed) if billed is not None else _metered_seconds(status, now)
    is_spot = description.get("EnableManagedSpotTraining")
    return replace(
        status,
        billable_seconds=lasted,
        cost=None if lasted is None or rate is None else over(rate, lasted),
        saved=1 - billed / trained if billed is not None and trained and is_spot else None,
    )


def hourly_price(description: JsonMapping, overlay: Overlay) -> float | None:
    """Return the US dollars per hour for all instances of the job; None if a price is unknown."""
    resources = description.get("ResourceConfig") or description.get("ProcessingResources", {}).get(
        "ClusterConfig", {}
    )
    groups = resources.get("InstanceGroups") or [resources]
    return hourly(
        (
            type_named("sagemaker", group.get("InstanceType") or "", overlay),
            group.get("InstanceCount", 1),
        )
        for group in groups
    )


def _metered_seconds(status: RunStatus, now: float) -> float | None:
    """Return the seconds from the start of billing, if it has started, to the job's end, or to
    `now`."""
    starts = (item.started for item in status.transitions if item.phase in _BILLED_FROM)
    end = status.ended if status.ended is not None else now
    return next((max(0.0, end - start) for start in starts), None)


def _duration(seconds: int | None) -> str:
    return "the limit" if seconds is None else format_duration(seconds)


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


_TAIL_STREAMS, _TAIL_EVENTS = 4, 40
"""The part of a failed job's output that is searched for the reason: the last events of the first
streams."""


class SageMakerService:
    """Submits and manages runs. A run is a training job or processing job with the run's name."""

    in_flight = 60.0
    names_are_unique = True
    kinds: tuple[JobKind, ...] = KINDS
    """The types of jobs that a run can be."""

    def __init__(self, environ: Mapping[str, str], pace: Pace | None = None) -> None:
        self._environ = environ
        self._pace = pace or Pace()
        self._overlay = cache(user_overlay)
        self._clients: dict[str, Clients] = {}

    def can_check(self, settings: SageMaker) -> bool:
        return credentials_in_sight(settings, self._environ)

    # the promise's
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

        from cloudtrain.targets.sagemaker.service.online import pricing_region, refresh

        account = account_of(settings, self._environ)
        if "region" in account.missing:
            message = "prices depend on the region, and none is set"
            raise SettingsError(message, hint="set `region` under `[sagemaker]` in cloudtrain.toml")
        folder, today = (
            user_config_path("cloudtrain", appauthor=False),
            datetime.now(timezone.utc).date(),
        )
        clients = self._at(account._replace(region=pricing_region(account.region)).place)
        return refresh(clients, account.region, folder=folder, date=today.isoformat())

    def upload(
        self, plan: Plan, bundle: BundleWriter, *, on_bytes: ByteProgress | None = None
    ) -> bool:
        from cloudtrain.targets.sagemaker.service.transfer import upload

        clients = self._at(plan.place)
        owner = account_id(plan.request.get("RoleArn", ""))
        kms_key = plan.request.get(kind_of(plan.request).outputs, {}).get("KmsKeyId")

        results = []
        for item in plan.uploads:
            bucket_owner = owner if owner and f"-{owner}/" in item.destination else None
            results.append(
                upload(
                    clients, item, bundle, owner=bucket_owner, kms_key=kms_key, on_bytes=on_bytes
                )
            )
        return any(results)

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
            # The answer is lost, but the job may exist.
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
        return (
            self._explain(ref, kind, description, status)
            if status.state is RunState.FAILED
            else status
        )

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: Callable[[RunStatus], None] | None = None,
    ) -> Iterator[LogLine]:
        kind, description = self._find_job(ref)
        log = self._log(ref, kind, description, instance)
        lines = (
            self._follow(ref, kind, log, on_status) if follow else self._so_far(ref, log, on_status)
        )
        return lines if rank is None else _of_rank(lines, rank)

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
            if not self._state(ref).is_final:  # it may have ended between the two requests
                raise

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
                    yield ListedRun(
                        RunRef("sagemaker", place, summary[kind.name]), listed_status(summary, kind)
                    )
        except Denied:
            if kind is TRAINING:  # users without permission for processing jobs have none to list
                raise

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        from cloudtrain.targets.common.archives import unpacked
        from cloudtrain.targets.sagemaker.service.transfer import fetch

        where, archive = S3Uri.parse(upload.destination), scratch / "sourcedir.tar.gz"
        with suppress(NotThere):
            fetch(self._at(ref.place), where.bucket, where.key, archive)
            yield from unpacked(archive, upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        from cloudtrain.targets.sagemaker.service.transfer import download

        kind, description = self._find_job(ref)
        places = places_of(description, kind)
        log = self._log(ref, kind, description, None)
        return download(self._at(ref.place), places, path, destination, log.new_lines)

    def _at(self, place: str) -> Clients:
        if place not in self._clients:
            self._clients[place] = Clients(AwsPlace.parse(place), self._environ)
        return self._clients[place]

    def _describe(self, ref: RunRef, kind: JobKind) -> JsonObject | None:
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
        for kind in kinds or self.kinds:
            description = self._describe(ref, kind)
            if description is not None:
                return kind, description
        raise not_found(ref.name, self._at(ref.place).region())

    def _state(self, ref: RunRef) -> RunState:
        kind, description = self._find_job(ref)
        return job_state(description, kind)

    def _status(self, kind: JobKind, description: JsonMapping) -> RunStatus:
        return status_of(description, kind, hourly_price(description, self._overlay()), time.time())

    def _ours(self, ref: RunRef, kind: JobKind, request: JsonMapping | None = None) -> bool:
        """Return whether the job exists, and refuse one that cloudtrain did not create (see
        `is_ours`)."""
        description = self._describe(ref, kind)
        if description is None:
            return False
        if not is_ours(self._at(ref.place), kind, description, request):
            raise NameTaken(
                f"the account already has a different {kind.noun} job named `{ref.name}`",
                hint=f"see it with `cloudtrain status {ref}`, or give your job another name",
                code="CT945",
            )
        return True

    def _log(
        self, ref: RunRef, kind: JobKind, description: JsonMapping, instance: int | None
    ) -> JobLog:
        ranks = ranks_of(description, self._overlay())
        return JobLog(self._at(ref.place), kind.log_group, ref.name, ranks=ranks, instance=instance)

    def _follow(
        self, ref: RunRef, kind: JobKind, log: JobLog, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        return follow(
            log, lambda: self._status(*self._find_job(ref, (kind,))), on_status, self._pace
        )

    def _so_far(
        self, ref: RunRef, log: JobLog, on_status: Callable[[RunStatus], None] | None
    ) -> Iterator[LogLine]:
        if on_status is not None:
            on_status(self.status(ref))
        yield from log.new_lines()

    def _explain(
        self, ref: RunRef, kind: JobKind, description: JsonMapping, status: RunStatus
    ) -> RunStatus:
        """Add the reason from a failed job's output to its status, if the service's own message has
        no details."""
        if status.details:
            return status
        log = self._log(ref, kind, description, None)
        try:
            log.discover()
            for stream in log.streams[:_TAIL_STREAMS]:
                lines = log.tail(stream, _TAIL_EVENTS)
                error = error_in([line.text for line in lines])
                if error is not None:
                    return _with_output(status, lines, error)
        except TargetError:
            return status  # unreadable logs must not hide the reason
        return status


def _of_rank(lines: Iterator[LogLine], rank: int) -> Iterator[LogLine]:
    marked = unmarked = False
    for line in lines:
        marked, unmarked = marked or line.rank is not None, unmarked or line.rank is None
        if line.rank == rank:
            yield line
    if unmarked and not marked:
        hint = (
            'use `--host algo-1`; with `environment: {variables: {PET_TEE: "3"}}` torchrun '
            "marks each line"
        )
        raise UsageError("the lines of this log do not name their ranks", hint=hint, code="CT937")


def _with_output(status: RunStatus, lines: list[LogLine], error: str) -> RunStatus:
    rank = next(
        (line.rank for line in reversed(lines) if line.text.strip().startswith(error[:40])), None
    )
    reason = status.reason or ""
    return replace(
        status,
        reason=reason if error in reason else f"{reason}: {error}",
        details=tuple(line.text for line in lines[-20:]),
        failed_rank=status.failed_rank if status.failed_rank is not None else rank,
    )
