"""What the service says about a job as a `RunStatus`: states, reasons, phases, times, metrics and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from cloudtrain.backends.sagemaker.failure import reason_of
from cloudtrain.backends.sagemaker.jobs import JobKind
from cloudtrain.catalogue.instances import instance_named
from cloudtrain.states import RunState, RunStatus, Transition
from cloudtrain.units import format_duration

PRIMARY: dict[str, RunState | None] = {
    "InProgress": None,
    "Completed": RunState.SUCCEEDED,
    "Failed": RunState.FAILED,
    "Stopping": RunState.STOPPING,
    "Stopped": RunState.STOPPED,
    "Deleting": RunState.LOST,
}
"""`TrainingJobStatus` and `ProcessingJobStatus`. None: the secondary status says more."""

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
"""`SecondaryStatus` of a job that is `InProgress`."""

_BILLED_FROM = ("Downloading", "DownloadingTrainingImage", "Training")
"""The first of these phases starts the meter; while instances are looked for it stands still."""


def state_of(primary: str, secondary: str | None) -> RunState:
    """The state of a job; words that a newer service may add mean that it goes on."""
    state = PRIMARY.get(primary)
    return state if state is not None else SECONDARY.get(secondary or "", RunState.RUNNING)


def status_of(description: Mapping[str, Any], kind: JobKind, now: float) -> RunStatus:
    """The status of a described job; `now` in seconds since the epoch is for what has not ended yet."""
    state = state_of(description[kind.status], description.get("SecondaryStatus"))
    status = RunStatus(
        state=state,
        reason=_reason(description, state),
        created=_seconds(description.get("CreationTime")),
        started=_seconds(description.get(kind.started)),
        ended=_ended(description, kind, state),
        transitions=tuple(_transition(item) for item in description.get("SecondaryStatusTransitions", ())),
        metrics={item["MetricName"]: item["Value"] for item in description.get("FinalMetricDataList", ())},
    )
    restarts = sum(transition.phase in ("Interrupted", "Restarting") for transition in status.transitions)
    return _with_money(_with_failure(replace(status, restarts=restarts), description), description, now)


def listed_status(summary: Mapping[str, Any], kind: JobKind) -> RunStatus:
    """What a list of jobs tells about one of them."""
    state = state_of(summary[kind.status], summary.get("SecondaryStatus"))
    created = _seconds(summary.get("CreationTime"))
    ended = _seconds(summary.get(kind.ended)) if state.is_final else None
    return RunStatus(state, created=created, started=created if ended else None, ended=ended)


def _reason(description: Mapping[str, Any], state: RunState) -> str | None:
    secondary, stopping = description.get("SecondaryStatus"), description.get("StoppingCondition", {})
    if secondary == "MaxRuntimeExceeded":
        return f"it reached `max_runtime` ({_duration(stopping.get('MaxRuntimeInSeconds'))})"
    if secondary == "MaxWaitTimeExceeded":
        return f"it reached `spot.max_wait` ({_duration(stopping.get('MaxWaitTimeInSeconds'))})"
    if secondary == "Interrupted":
        return "spot capacity was taken away; it goes on when there is some again"
    if state is RunState.LOST:
        return "the service is deleting the job"
    if state is RunState.PENDING:
        return _last_message(description)
    return None


def _with_failure(status: RunStatus, description: Mapping[str, Any]) -> RunStatus:
    said = _said(description)
    if status.state is not RunState.FAILED and not (said and status.state is RunState.STOPPED):
        return status
    reason = reason_of(said or "")
    return replace(
        status, reason=reason.text, details=reason.details, failed_rank=reason.rank, exit_code=reason.exit_code
    )


def _said(description: Mapping[str, Any]) -> str | None:
    """The reason of the service, or where that only says that the script failed, what a processing job's containers
    left as their message."""
    reason, message = description.get("FailureReason"), description.get("ExitMessage")
    return message if message and (not reason or reason.startswith("AlgorithmError")) else reason


def _with_money(status: RunStatus, description: Mapping[str, Any], now: float) -> RunStatus:
    billed, trained = description.get("BillableTimeInSeconds"), description.get("TrainingTimeInSeconds")
    seconds = float(billed) if billed is not None else _metered(status, now)
    hourly = hourly_price(description)
    return replace(
        status,
        billable_seconds=seconds,
        cost=None if seconds is None or hourly is None else seconds / 3600 * hourly,
        saved=1 - billed / trained if billed is not None and trained and _is_spot(description) else None,
    )


def hourly_price(description: Mapping[str, Any]) -> float | None:
    """US dollars an hour for all instances of the job by the catalogue's list prices; None where one is unknown."""
    resources = description.get("ResourceConfig") or description.get("ProcessingResources", {}).get("ClusterConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    total = 0.0
    for group in groups:
        price = _price(group.get("InstanceType"))
        if price is None:
            return None
        total += price * float(group.get("InstanceCount", 1))
    return total


def _price(instance_type: str | None) -> float | None:
    known = instance_named("sagemaker", instance_type) if instance_type else None
    return known.price if known is not None else None


def _metered(status: RunStatus, now: float) -> float | None:
    """Seconds since the meter started, for a job of which the service does not say them yet."""
    start = next((item.started for item in status.transitions if item.phase in _BILLED_FROM), None)
    if start is None:
        return None
    return max(0.0, (status.ended if status.ended is not None else now) - start)


def _is_spot(description: Mapping[str, Any]) -> bool:
    return bool(description.get("EnableManagedSpotTraining"))


def _ended(description: Mapping[str, Any], kind: JobKind, state: RunState) -> float | None:
    """A job that never started has no end of its own; the last change is it."""
    if not state.is_final:
        return None
    return _seconds(description.get(kind.ended) or description.get("LastModifiedTime"))


def _transition(item: Mapping[str, Any]) -> Transition:
    start = _seconds(item["StartTime"])
    assert start is not None
    return Transition(item["Status"], start, _seconds(item.get("EndTime")), item.get("StatusMessage"))


def _last_message(description: Mapping[str, Any]) -> str | None:
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    message = transitions[-1].get("StatusMessage")
    return " ".join(message.split()) if message else None


def _duration(seconds: int | None) -> str:
    return "the limit" if seconds is None else format_duration(seconds)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
