"""Turn the service's description of a job into a `RunStatus`: state, reason, times and cost.

The job's body comes from the resource manager. Its state and times come from the workspace's run
history, which has three times: when the run was created, when it began to run, and when it ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from cloudtrain.documents import JsonMapping
from cloudtrain.documents.document import load_table
from cloudtrain.errors import TargetError
from cloudtrain.job.model import format_duration
from cloudtrain.machines.overlay import Overlay, type_named
from cloudtrain.machines.table import hourly, over
from cloudtrain.plans.progress import RunStatus, Transition
from cloudtrain.plans.states import RunState
from cloudtrain.rules.engine import mapping_at, value_at
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.azureml.service.logs import LogFile, RunLog
from cloudtrain.targets.azureml.service.provider_errors import detail_messages, error_fields
from cloudtrain.targets.capacity import read_words
from cloudtrain.targets.common.tracebacks import PEER_LOST, error_in, shorten_line

# The reason of a failed run, in one line, from the service's message and the failed rank's last
# output.
#
# The service's message is a sentence about an exit code, a whole traceback, JSON that contains the
# message (in `NonCompliant` if it may quote the user's output, else in `Compliant`), or the three
# parts `Error Code:`, `Native Error:` and `Error Message:`. The last form was recorded in February
# 2026, of jobs that could not open their data; the others come from public error reports, and not
# all have been tested. A message in another form is shown unchanged.

_DETAILS = 20
_TAIL = 8192
_FILES = 64
_AT_ONCE = 8
"""Limits: lines that explain a failure, bytes read from a file's end to find them, files, and files
at a time."""

_CEREMONY = re.compile(
    (
        r"^(?:\s|AzureMLCompute job failed\.?|(?:JobFailed|ExecutionFailed): *|Execution failed\.|"
        r"Reason: *)+"
    ),
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(
    r"(?:Submitted script failed with a non-zero exit code|Job failed with non-zero exit code|"
    r"(?:User )?process '[^']*' (?:exited|completed) with)",
    re.IGNORECASE,
)
_EXIT_CODE = re.compile(
    r"exit(?:ed)?(?: with)?(?: status)?[ _]codes?\b[\"':,\s]*(?:\"?value\"?[\"':\s]*)?(-?\d+)",
    re.IGNORECASE,
)
_FILE = r"user_logs/std_log[\w-]*\.txt"
_BEFORE_ERROR = re.compile(
    r"^.*?\b(?:Error|error message):? '?(?=\w+(?:\.\w+)*(?:Error|Exception|Interrupt|Exit)\b)"
)
"""The text before an error's name, as in `Error: ValueError: bad` or `... error message
'ValueError: bad`."""
_IN_PARTS = re.compile(
    r"Error Code:\s*(?P<code>\S+)\n(?:.*?\n)?Error Message:\s*(?P<text>.+)", re.DOTALL
)
_APPENDIX = re.compile(
    r"(?:\s*Err\(\"\"\))?\s*(?:For troubleshooting help, see:|\|\s*session_id=).*", re.DOTALL
)
_PLAIN = ("", "UserError", "ExecutionFailed")
"""Codes that tell nothing, because every failure of a script has them."""
_UNKNOWN = "the service gives no reason"


class Reason(NamedTuple):
    """The reason of a failure in one line (`text`), the lines that explain it and, if known, exit
    code and log file."""

    text: str
    details: tuple[str, ...] = ()
    exit_code: int | None = None
    file: str | None = None
    """The log file that the reason refers to."""


def reason_of(error: object) -> Reason:
    """Convert the `error` of a run, in any of its forms, to a reason."""
    fields = error_fields(error)
    message = str(fields.get("message") or next(detail_messages(fields), ""))
    body = _unpack(message)
    lines = [line.rstrip() for line in body.splitlines() if line.strip()]
    # The exit code may stand in the JSON around the body.
    exit_code = _EXIT_CODE.search(message)
    file = re.search(_FILE, body)

    parts = _IN_PARTS.search(body)
    if parts:
        # `Error Code:`, `Native Error:` and `Error Message:`.
        kind = parts["code"]
        cause = None
        text = _APPENDIX.sub("", parts["text"])
    else:
        # A sentence, a traceback, or a text that stood in JSON.
        kind = str(fields.get("code") or "")
        cause = error_in([_BEFORE_ERROR.sub("", line) for line in lines])
        text = _CEREMONY.sub("", shorten_line(body))

    if cause or _SAYS_NOTHING.match(text):
        text = "the script failed"
        if exit_code:
            text += f" with exit code {exit_code[1]}"
        if cause:
            text += f": {cause}"
    if kind not in _PLAIN and kind not in text:
        text = f"{kind}: {text}" if text else kind

    return Reason(
        text=shorten_line(text) or _UNKNOWN,
        details=tuple(lines[-_DETAILS:]) if len(lines) > 1 else (),
        exit_code=int(exit_code[1]) if exit_code else None,
        file=file[0] if file else None,
    )


def explain(status: RunStatus, log: RunLog) -> RunStatus:
    """Return a failed run's status with the last output of the rank that failed first. `log` must
    include all ranks. If the logs cannot be read or contain no error, the status is returned
    unchanged."""
    try:
        log.discover()
        end = _first_failure(log, reason_of(log.details.get("error")).file)
    except TargetError:
        return status
    if end is None:
        return status

    reason = status.reason or _UNKNOWN
    if end.error not in reason:
        reason = f"{reason}: {end.error}"
    details = tuple(end.lines[-_DETAILS:])
    rank = end.file.writer.rank
    return replace(status, reason=shorten_line(reason), details=details, failed_rank=rank)


class _End(NamedTuple):
    """The last lines of a log file, and the error in them."""

    file: LogFile
    last_modified: float
    lines: list[str]
    error: str


def _first_failure(log: RunLog, file_name: str | None) -> _End | None:
    """Return the end of the log of the rank that failed first; None if no log contains an error.

    Ranks that only lost their connection to another rank are chosen last, because such an error
    often appears before the error that caused it. Among the others, the log that the service names
    (`file_name`) is chosen, or else the log that ended first."""

    def order(end: _End) -> tuple[bool, bool, float]:
        last_lines = "\n".join(end.lines[-6:])
        is_consequence = PEER_LOST.search(last_lines) is not None
        return (is_consequence, end.file.name != file_name, end.last_modified)

    ends = _ends(log, log.streams[:_FILES]) or _ends(log, log.system_files[:_AT_ONCE])
    return min(ends, key=order, default=None)


def _ends(log: RunLog, files: Sequence[LogFile]) -> list[_End]:
    """Return the ends of the files that contain an error."""
    ends = []
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        tails = pool.map(lambda file: log.tail(file, _TAIL), files)
        for file, (last_modified, lines) in zip(files, tails, strict=True):
            error = error_in(lines)
            if error is not None:
                full_lines = [line for line in lines if line.strip()]
                ends.append(_End(file, last_modified, full_lines, error))
    return ends


def _unpack(message: str) -> str:
    """Return the message, taken out of JSON if necessary."""
    try:
        data, _ = json.JSONDecoder().raw_decode(message.strip())
    except ValueError:
        return message
    if isinstance(data, dict):
        for name in ("NonCompliant", "Compliant", "message"):
            text = data.get(name)
            if isinstance(text, str) and text.strip():
                return text
    return message


# State, times, reason and cost.

_TABLES = load_table(__file__, "states.toml")
CAPACITY = read_words(__file__)
STATES: dict[str, RunState] = {word: RunState(ours) for word, ours in _TABLES["states"].items()}
_WHY: dict[str, str] = _TABLES["reasons"]

_MOMENT = (
    r"(?P<seconds>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<fraction>\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)


def state_of(status: str) -> RunState:
    """Return cloudtrain's state for the service's `status`. An unknown status counts as running."""
    return STATES.get(status, RunState.RUNNING)


def is_ending(job: JsonMapping) -> bool:
    """Return whether the job has ended or is ending, so that it cannot be cancelled. The service
    also refuses to cancel a job while it saves the job's outputs (`Finalizing`)."""
    word = job["properties"].get("status") or ""
    state = state_of(word)
    return state.is_final or state is RunState.STOPPING or word == "Finalizing"


def status_of(job: JsonMapping, details: JsonMapping, price: float | None, now: float) -> RunStatus:
    """`job` is the resource manager's description, `details` the run history's (empty if it lacks
    the run). `price` is that of all the job's machines, in US dollars an hour. `now` counts for
    jobs that have not ended yet. Raises `TargetError` if neither has a state."""
    word = details.get("status") or job["properties"].get("status")
    if word is None:
        raise TargetError(
            f"Azure ML does not tell the state of `{job['name']}`, which is probably a "
            "step of a pipeline",
            hint="ask for access to the workspace's run history, or name the pipeline's own job",
        )

    state = state_of(word)
    creation_time = seconds(details.get("createdTimeUtc")) or _created_at(job)
    start_time = seconds(details.get("startTimeUtc"))
    end_time = None
    if state.is_final:
        # `lastModifiedUtc` is earlier than the end (recorded 2026)
        end_time = seconds(details.get("endTimeUtc"))
    # A cluster's idle minutes before and after the job do not count.
    last_time = end_time if state.is_final else now
    billable = None
    if start_time is not None and last_time is not None:
        billable = max(0.0, last_time - start_time)
    why = _why(word, job, details, billable)
    return RunStatus(
        state=state,
        reason=why.text or None,
        details=why.details,
        exit_code=why.exit_code,
        created=creation_time,
        started=start_time,
        ended=end_time,
        transitions=_transitions(word, creation_time, start_time, end_time),
        page=_page(job),
        billable_seconds=billable,
        cost=None if price is None or billable is None else over(price, billable),
    )


def listed_status(job: JsonMapping) -> RunStatus:
    """Return the status of one job in a list of jobs, which lacks the job's start, end and cost."""
    word = job["properties"].get("status") or ""
    reason = _WHY.get(word)
    return RunStatus(state_of(word), reason=reason, created=_created_at(job), page=_page(job))


def seconds(moment: str | None) -> float | None:
    """Return a time of the service, which has up to seven decimal places, as seconds since the
    epoch. None for a text of another form."""
    match = re.fullmatch(_MOMENT, moment or "")
    if match is None:
        return None
    zone = (match["zone"] or "Z").replace("Z", "+00:00")
    if ":" not in zone:
        zone = f"{zone[:3]}:{zone[3:]}"
    start = datetime.fromisoformat(match["seconds"] + zone)
    return start.timestamp() + float(match["fraction"] or 0)


def _created_at(job: JsonMapping) -> float | None:
    return seconds(value_at(job, "systemData", "createdAt"))


def _page(job: JsonMapping) -> str | None:
    """The service lists the address of the job's page in the studio among the job's services."""
    page: str | None = value_at(job, "properties", "services", "Studio", "endpoint")
    return page


def _transitions(
    word: str, creation_time: float | None, start_time: float | None, end_time: float | None
) -> tuple[Transition, ...]:
    """Return the states of a run with their times. `word` is the service's state now."""
    if creation_time is None:
        return ()
    if start_time is None:
        waiting = word if end_time is None else "Queued"
        phases = [Transition(waiting, creation_time, end_time)]
    else:
        running = word if end_time is None else "Running"
        phases = [
            Transition("Queued", creation_time, start_time),
            Transition(running, start_time, end_time),
        ]
    if end_time is not None:
        phases.append(Transition(word, end_time, end_time))
    return tuple(phases)


def _why(word: str, job: JsonMapping, details: JsonMapping, billable: float | None) -> Reason:
    """Return why a run failed, was stopped, or waits; without a text if that is not known. `word`
    is the service's state now, and `billable` the seconds that the job has run."""
    state = state_of(word)
    error = details.get("error")
    if state is RunState.FAILED:
        return reason_of(error)
    if state is RunState.STOPPED:
        limit = Body(job).max_runtime
        if limit and billable is not None and billable >= limit:
            return Reason(f"it reached `max_runtime` ({format_duration(limit)})")
        return Reason(reason_of(error).text if error else "")

    text = _WHY.get(word, "")
    if not text and state in (RunState.PENDING, RunState.PREPARING):
        # The service's last warning usually explains why a job is waiting.
        for item in details.get("warnings") or ():
            text = str(item.get("message") or text)
    return Reason(" ".join(text.split()))


# The billed machines of a job, and their cost per hour at list prices or at the user's own prices.

ClusterOf = Callable[[str], JsonMapping | None]
"""Returns the resource manager's description of a compute by its id; None if there is none."""


def hourly_price(
    body: Body,
    details: JsonMapping,
    cluster_of: ClusterOf,
    overlay: Overlay,
) -> float | None:
    """Return the price in US dollars for all instances; None if unknown, as it is for spot
    capacity. `cluster_of` is called only if both `details` and the job's body lack the machines."""
    machines = mapping_at(details, "compute")
    count = int(machines.get("instanceCount") or body.instances)
    priority = machines.get("priority") or body.tier
    instance_type = machines.get("vmSize") or body.instance_type

    is_told = machines.get("vmSize") or body.is_on_virtual_cluster
    if body.compute and not is_told:
        cluster = mapping_at(cluster_of(body.compute), "properties", "properties")
        instance_type = cluster.get("vmSize")
        priority = cluster.get("vmPriority")

    tier = str(priority).replace("_", "").lower()
    if not instance_type or tier in ("spot", "lowpriority"):
        return None
    return hourly([(type_named("azureml", str(instance_type), overlay), count)])
