"""Report a failure. The first 1,024 characters of `/opt/ml/output/failure` become the job's
FailureReason."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cloudtrain.runtime.errors import PEER_LOST, find_told, tell

LIMIT = 1024

_HEADER = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"\[rank(\d+)\]: ?")
_ROOT_CAUSE = re.compile(
    r"^Root Cause.*?^\s*rank\s*: (\d+) \(local_rank: (\d+)\).*?^\s*exitcode\s*: (-?\d+)",
    re.DOTALL | re.MULTILINE,
)
"""What torchrun prints at its end about the rank that failed first."""

_LAUNCHER_ERRORS = ("torch.distributed.elastic.", "ChildFailedError", "SignalException")
"""torchrun's own exceptions, which follow those of the ranks."""

_LAUNCHER_LINES = re.compile(r"^(?:[EWI]\d{4} |\*{5,}|={5,}|-{5,}|WARNING:torch\.distributed)")


def failure_text(role: str, exit_code: int, stderr: str, files: Iterable[Path] = ()) -> str:
    """Return the text of the failure file: the failed process, its exit code or signal (negative),
    the error, and as many last lines of the traceback as fit. `stderr` is the last part of the
    process's stderr; `files` are those with the ranks' stderr, if torchrun redirected it."""
    lines = stderr.splitlines()
    cause = _ROOT_CAUSE.search(stderr)
    if cause:
        role = f"rank {cause[1]}"
        exit_code = int(cause[3])
        own: list[str] = []
        for path in files:
            if path.parent.name == cause[2]:
                with suppress(OSError):
                    own += path.read_text("utf-8", "replace").splitlines()[-400:]
        lines = own or _lines_of_rank(lines, cause[1])
    message, details = last_error(lines)
    head = f"{role} {how_it_ended(exit_code)}"
    if message:
        head += f": {message}"
    return fitting(head, details)


def how_it_ended(exit_code: int) -> str:
    """Describe an exit code: `failed with exit code 1`, `was killed by SIGKILL (...)`."""
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (most likely the host ran out of memory)"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def last_error(lines: Sequence[str]) -> tuple[str, list[str]]:
    """Return the line with the error, and the lines that explain it: the last traceback that is not
    the launcher's own. If the runtime told an error, tracebacks of ranks that lost contact with
    another rank do not count. If there is no such traceback, return the error that was told, or the
    last line and the last ten lines."""
    clean = [_RANK_PREFIX.sub("", line, count=1).rstrip() for line in lines]
    others = [line for line in clean if line.strip() and not _LAUNCHER_LINES.match(line)]
    message = "".join(others[-1:]).strip()
    error = message, others[-10:]
    report = find_told(clean)
    if report is not None:
        end = report[0]
        while "hint: " not in clean[end]:
            end += 1
        told = clean[report[0] : end + 1]
        error = report[1], list(filter(None, told))

    for start, line in enumerate(clean):
        if line.strip() != _HEADER:
            continue
        traceback = _traceback_at(clean, start)
        if not traceback or traceback[-1].startswith(_LAUNCHER_ERRORS):
            continue
        is_lost_peer = re.search(PEER_LOST, traceback[-1])
        if report is None or (start > report[0] and not is_lost_peer):
            error = traceback[-1], traceback
    return error


def _traceback_at(lines: list[str], start: int) -> list[str]:
    """Return the traceback whose header is the line `start`, up to the line that is not indented;
    nothing if it is incomplete."""
    for end in range(start + 1, len(lines)):
        line = lines[end]
        if line and not line[0].isspace():
            return lines[start : end + 1]
    return []


def fitting(head: str, details: Sequence[str]) -> str:
    """Return `head` and as many of the last `details` as fit into the length limit. A `head` that
    is too long is shortened in its middle."""
    if len(head) > LIMIT:
        half = (LIMIT - 3) // 2
        return f"{head[:half]}...{head[-half:]}"
    start = len(details)
    room = LIMIT - len(head)
    while start > 0 and room > len(details[start - 1]):
        start -= 1
        room -= len(details[start]) + 1
    return "\n".join([head, *details[start:]])


def write_once(path: Path, text: str) -> None:
    """Write the failure's reason, `text`, to `path`, unless the script has written this file
    itself. If writing fails, print the reason to stderr."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        tell(f"the reason cannot be written to `{path}`: {error}; it is: {text.rstrip()}")


def _lines_of_rank(lines: list[str], rank: str) -> list[str]:
    """Return the lines with the rank's prefix, such as `[rank3]:`, or all lines if no traceback has
    this prefix. torch adds the prefix to tracebacks once the process group exists."""
    own = [line for line in lines if line.startswith(f"[rank{rank}]:")]
    return own if _HEADER in "\n".join(own) else lines
