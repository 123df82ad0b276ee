"""Turn the service's description of a job into a `RunStatus`: states, reasons, times and cost.

The job's body comes from the resource manager. Its state and times come from the workspace's run history, which has
three times: when the run was created, when it began to run, and when it ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from cloudtrain.catalogue.cost import over
from cloudtrain.core.states import RunState, RunStatus, Transition
from cloudtrain.core.units import format_duration
from cloudtrain.targets.azureml.compile.summary import max_runtime
from cloudtrain.targets.azureml.service.failure import reason_of

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
