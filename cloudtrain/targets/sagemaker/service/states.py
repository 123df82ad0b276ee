"""Turn the service's job description into a `RunStatus`: state, reason, phases, times, metrics and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from cloudtrain.catalogue.cost import hourly, over
from cloudtrain.catalogue.overlay import Overlay, type_named
from cloudtrain.core.states import RunState, RunStatus, Transition
from cloudtrain.core.units import format_duration
from cloudtrain.targets.sagemaker.jobs import JobKind
from cloudtrain.targets.sagemaker.service.failure import reason_of

PRIMARY: dict[str, RunState | None] = {
    "InProgress": None,
    "Completed": RunState.SUCCEEDED,
    "Failed": RunState.FAILED,
    "Stopping": RunState.STOPPING,
    "Stopped": RunState.STOPPED,
    "Deleting": RunState.LOST,
}
"""Maps `TrainingJobStatus` and `ProcessingJobStatus` to states. None: the secondary status decides."""

SECONDARY: dict[str, RunState] = {
    "Pending": RunState.PENDING,
    "Interrupted": RunState.PENDING,
    "Starting": RunState.PREPARING,
    "LaunchingMLInstances": RunState.PREPARING,
    "PreparingTrainingStack": RunState.PREPARING,
    "Downloading": RunState.PREPARING,
    "DownloadingTrainingImage": RunState.PREPARING,
    "Restarting": RunState.PREPARING,
    "Training": RunState.RUNNING,
    "Updating": RunState.RUNNING,
    "Uploading": RunState.RUNNING,
    "Stopping": RunState.STOPPING,
    "MaxRuntimeExceeded": RunState.STOPPING,
    "MaxWaitTimeExceeded": RunState.STOPPING,
    "Stopped": RunState.STOPPED,
    "Completed": RunState.SUCCEEDED,
    "Failed": RunState.FAILED,
}
"""Maps `SecondaryStatus` of a job that is `InProgress` to states."""

_BILLED_FROM = ("Downloading", "DownloadingTrainingImage", "Training")
"""Billing starts with the first of these phases; looking for instances is free."""


def state_of(primary: str, secondary: str | None) -> RunState:
    """Return the state for a job's primary and secondary status. A job with an unknown status counts as running."""
    state = PRIMARY.get(primary)
    return state if state is not None else SECONDARY.get(secondary or "", RunState.RUNNING)


def job_state(description: Mapping[str, Any], kind: JobKind) -> RunState:
    """Return the state in a job description or in an entry of a job list."""
    return state_of(description[kind.status], description.get("SecondaryStatus"))


def status_of(description: Mapping[str, Any], kind: JobKind, rate: float | None, now: float) -> RunStatus:
    """Return the status of a described job.

    Args:
        description: the service's job description.
        kind: the type of the job: training or processing.
        rate: US dollars per hour for all of the job's instances; None if unknown.
        now: seconds since the epoch, for jobs and phases that have not ended yet.
    """
    state = job_state(description, kind)
    status = RunStatus(
        state=state,
        reason=_reason(description, state),
        created=seconds(description.get("CreationTime")),
        started=seconds(description.get(kind.started)),
        ended=_end_time(description, kind, state),
        transitions=tuple(_transition(item) for item in description.get("SecondaryStatusTransitions", ())),
        metrics={item["MetricName"]: item["Value"] for item in description.get("FinalMetricDataList", ())},
    )
    restarts = sum(transition.phase in ("Interrupted", "Restarting") for transition in status.transitions)
    return _with_money(_with_failure(replace(status, restarts=restarts), description), description, rate, now)


def listed_status(summary: Mapping[str, Any], kind: JobKind) -> RunStatus:
    """Return the status in an entry of a job list."""
    state = job_state(summary, kind)
    created = seconds(summary.get("CreationTime"))
    ended = seconds(summary.get(kind.ended)) if state.is_final else None
    return RunStatus(state, created=created, started=created if ended else None, ended=ended)


def _reason(description: Mapping[str, Any], state: RunState) -> str | None:
    secondary, stopping = description.get("SecondaryStatus"), description.get("StoppingCondition", {})
    if secondary == "MaxRuntimeExceeded":
        return f"it reached `max_runtime` ({_duration(stopping.get('MaxRuntimeInSeconds'))})"
    if secondary == "MaxWaitTimeExceeded":
        return f"it reached `spot.max_wait` ({_duration(stopping.get('MaxWaitTimeInSeconds'))})"
    if secondary == "Interrupted":
        return "spot capacity was taken away; the job continues when capacity returns"
    if state is RunState.LOST:
        return "the service is deleting the job"
    if state is RunState.PENDING:
        return _last_message(description)
    return None


def _with_failure(status: RunStatus, description: Mapping[str, Any]) -> RunStatus:
    said = _failure_reason(description)
    if status.state is not RunState.FAILED and not (said and status.state is RunState.STOPPED):
        return status
    reason = reason_of(said or "")
    return replace(
        status, reason=reason.text, details=reason.details, failed_rank=reason.rank, exit_code=reason.exit_code
    )


def _failure_reason(description: Mapping[str, Any]) -> str | None:
    """Return the service's reason for a failure; None if it gives none.

    A processing job's own `ExitMessage` replaces a reason that is missing or begins with `AlgorithmError`.
    """
    reason, message = description.get("FailureReason"), description.get("ExitMessage")
    return message if message and (not reason or reason.startswith("AlgorithmError")) else reason


def _with_money(status: RunStatus, description: Mapping[str, Any], rate: float | None, now: float) -> RunStatus:
    billed, trained = description.get("BillableTimeInSeconds"), description.get("TrainingTimeInSeconds")
    lasted = float(billed) if billed is not None else _metered_seconds(status, now)
    return replace(
        status,
        billable_seconds=lasted,
        cost=None if lasted is None or rate is None else over(rate, lasted),
        saved=1 - billed / trained if billed is not None and trained and _is_spot(description) else None,
    )


def hourly_price(description: Mapping[str, Any], overlay: Overlay) -> float | None:
    """Return the US dollars per hour for all instances of the job, at the prices in `overlay` or the catalogue.

    Returns None if a price is unknown.
    """
    resources = description.get("ResourceConfig") or description.get("ProcessingResources", {}).get("ClusterConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    return hourly(
        (type_named("sagemaker", group.get("InstanceType") or "", overlay), group.get("InstanceCount", 1))
        for group in groups
    )


def _metered_seconds(status: RunStatus, now: float) -> float | None:
    """Return the seconds from the start of billing to the job's end, or to `now` for a running job.

    Returns None if billing has not started.
    """
    start = next((item.started for item in status.transitions if item.phase in _BILLED_FROM), None)
    if start is None:
        return None
    return max(0.0, (status.ended if status.ended is not None else now) - start)


def _is_spot(description: Mapping[str, Any]) -> bool:
    return bool(description.get("EnableManagedSpotTraining"))


def _end_time(description: Mapping[str, Any], kind: JobKind, state: RunState) -> float | None:
    """Return when a job ended, in seconds since the epoch; None if it has not ended.

    For a job that never started, this is the time of its last change.
    """
    if not state.is_final:
        return None
    return seconds(description.get(kind.ended) or description.get("LastModifiedTime"))


def _transition(item: Mapping[str, Any]) -> Transition:
    start = seconds(item["StartTime"])
    assert start is not None
    return Transition(item["Status"], start, seconds(item.get("EndTime")), item.get("StatusMessage"))


def _last_message(description: Mapping[str, Any]) -> str | None:
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    message = transitions[-1].get("StatusMessage")
    return " ".join(message.split()) if message else None


def _duration(seconds: int | None) -> str:
    return "the limit" if seconds is None else format_duration(seconds)


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
