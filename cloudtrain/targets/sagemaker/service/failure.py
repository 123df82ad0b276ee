"""Shorten the service's message about a failed job to one line with the reason, and find the rank that failed."""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudtrain.targets.common.tracebacks import error_in, shorten_line

_USER_SCRIPT = re.compile(r'ErrorMessage "(?P<message>.*?)"\s*(?:Command|$)', re.DOTALL)
r"""The toolkit's form: `ExecuteUserScriptError:\nExitCode 1\nErrorMessage "..."\nCommand "..."`."""

_EXIT_CODE = re.compile(r"(?:exit code:?|ExitCode)\s*(-?\d+)", re.IGNORECASE)
_ENDED = re.compile(r"\b(?:failed with exit code|was killed by) ")
"""Matches messages of cloudtrain's launchers: `the script on algo-2 failed with exit code 1: ValueError: ...`."""

_RANK = re.compile(r"\brank (\d+)\b")
_KIND = re.compile(r"^(?P<kind>[A-Za-z]+(?:Error|Exception)): *")
_LAST_EXIT_CODE = re.compile(r",? *exit code: *-?\d+\s*$")


class Reason(NamedTuple):
    """The reason for a failure in one line, further lines of the message, the failed rank and the exit code."""

    text: str
    details: tuple[str, ...]
    rank: int | None
    exit_code: int | None


def reason_of(said: str) -> Reason:
    """Parse SageMaker's `FailureReason`, and shorten it to one line. It may contain a traceback.

    An error type such as `ClientError` or `CapacityError` stays at the beginning of the line. `AlgorithmError` is
    dropped, because SageMaker reports it for every failure of the script.
    """
    head, body = _split(said.strip())
    script = _USER_SCRIPT.search(body)
    lines = [line.rstrip() for line in (script["message"] if script else body).splitlines() if line.strip()]
    rank, code = _RANK.search(body), _EXIT_CODE.search(said)
    first = _LAST_EXIT_CODE.sub("", lines[0]) if lines else ""
    named = error_in(lines)
    text = first if not script and (rank or len(lines) == 1 or _ENDED.search(first)) else named or first
    if script and code:
        text = f"the script failed with exit code {code[1]}" + (f": {text}" if text else "")
    return Reason(
        text=shorten_line(head + text) or "the service gives no reason",
        details=tuple(lines[1:] if len(lines) > 1 and not script else lines if len(lines) > 1 else ()),
        rank=int(rank[1]) if rank else None,
        exit_code=int(code[1]) if code else None,
    )


def _split(said: str) -> tuple[str, str]:
    """Split a message into its error type and the reason. The type is empty if missing, and for `AlgorithmError`."""
    match = _KIND.match(said)
    if match is None:
        return "", said
    kept = "" if match["kind"] == "AlgorithmError" else match[0].strip() + " "
    return kept, said[match.end() :]
