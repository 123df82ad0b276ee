"""Find the reason of a failed run, in one line, from the service's message and the failed rank's last output.

The service's message is a sentence about an exit code, a whole traceback, or JSON that contains the message (in
`NonCompliant` if it may quote the user's output, else in `Compliant`). These forms come from public error reports; not
all have been tested. A message in another form is shown unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from cloudtrain.core.states import RunStatus
from cloudtrain.errors import TargetError
from cloudtrain.targets.azureml.service.logs import LogFile, RunLog
from cloudtrain.targets.common.tracebacks import PEER_LOST, error_in, shorten_line

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
