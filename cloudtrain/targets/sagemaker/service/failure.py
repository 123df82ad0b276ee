"""Tell in one line why a job failed, and on which rank, from the service's message without its boilerplate."""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudtrain.targets.common.tracebacks import error_in, shorten_line

_USER_SCRIPT = re.compile(r'ErrorMessage "(?P<message>.*?)"\s*(?:Command|$)', re.DOTALL)
r"""The toolkit's form: `ExecuteUserScriptError:\nExitCode 1\nErrorMessage "..."\nCommand "..."`."""

_EXIT_CODE = re.compile(r"(?:exit code:?|ExitCode)\s*(-?\d+)", re.IGNORECASE)
_ENDED = re.compile(r"\b(?:failed with exit code|was killed by) ")
"""The beginning of our own launchers' messages: `the script on algo-2 failed with exit code 1: ValueError: ...`."""

_RANK = re.compile(r"\brank (\d+)\b")
_KIND = re.compile(r"^(?P<kind>[A-Za-z]+(?:Error|Exception)): *")
_LAST_EXIT_CODE = re.compile(r",? *exit code: *-?\d+\s*$")


class Reason(NamedTuple):
    """The reason in one line, the fields that it contains, and the lines that explain it."""

    text: str
    details: tuple[str, ...]
    rank: int | None
    exit_code: int | None


def reason_of(said: str) -> Reason:
    """Return `FailureReason`, which may hold a traceback, as one line.

    The first word stays if it tells whose fault it was (`ClientError`, `CapacityError`). All failures of the script
    itself begin with `AlgorithmError`, which adds nothing and is dropped.
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
    """Split a message into the text before the reason, and the reason."""
    match = _KIND.match(said)
    if match is None:
        return "", said
    kept = "" if match["kind"] == "AlgorithmError" else match[0].strip() + " "
    return kept, said[match.end() :]
