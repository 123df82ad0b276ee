"""Report a failure. The first 1,024 characters of `/opt/ml/output/failure` become the job's
FailureReason."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cloudtrain.runtime.errors import PEER_LOST, find_told

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
    who = role
    cause = _ROOT_CAUSE.search(stderr)
    lines = stderr.splitlines()
    if cause:
        who = f"rank {cause[1]}"
        exit_code = int(cause[3])
        own = [line for path in files if path.parent.name == cause[2] for line in _read(path)]
        lines = own or _lines_of_rank(lines, cause[1])
    message, details = last_error(lines)
    head = f"{who} {how_it_ended(exit_code)}" + (f": {message}" if message else "")
    return fitting(head, details)


def how_it_ended(exit_code: int) -> str:
    """Describe an exit code: `failed with exit code 1`, `was killed by SIGKILL (...)`."""
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}" + (
        " (most likely the host ran out of memory)" if name == "SIGKILL" else ""
    )


def last_error(lines: Sequence[str]) -> tuple[str, list[str]]:
    """Return the line with the error, and the lines that explain it: the last traceback that is not
    the launcher's own. If the runtime told an error, tracebacks of ranks that lost contact with
    another rank do not count. If there is no such traceback, return the error that was told, or the
    last line and the last ten lines."""
    clean = [_RANK_PREFIX.sub("", line, count=1).rstrip() for line in lines]
    error: tuple[str, list[str]] | None = None
    report = find_told(clean)
    if report is not None:
        hint = next(index for index in range(report[0], len(clean)) if "hint: " in clean[index])
        error = report[1], [line for line in clean[report[0] : hint + 1] if line]
    for start in (index for index, line in enumerate(clean) if line.strip() == _HEADER):
        end = next(
            (i for i in range(start + 1, len(clean)) if clean[i] and not clean[i][0].isspace()),
            None,
        )
        if end is None or clean[end].startswith(_LAUNCHER_ERRORS):
            continue
        if report is None or (start > report[0] and not re.search(PEER_LOST, clean[end])):
            error = clean[end], clean[start : end + 1]
    if error is not None:
        return error
    others = [line for line in clean if line.strip() and not _LAUNCHER_LINES.match(line)]
    return (others[-1].strip() if others else ""), others[-10:]


def fitting(head: str, details: Sequence[str]) -> str:
    """Return `head` and as many of the last `details` as fit into the length limit. A `head` that
    is too long is shortened in its middle."""
    if len(head) > LIMIT:
        half = (LIMIT - 3) // 2
        return f"{head[:half]}...{head[-half:]}"
    room = LIMIT - len(head)
    count = 0
    for line in reversed(details):
        room -= len(line) + 1
        if room < 0:
            break
        count += 1
    return "\n".join([head, *details[len(details) - count :]])


def write_once(path: Path, content: bytes) -> None:
    """Write the failure's reason, `content`, to `path`, unless the script has written this file
    itself. If writing fails, print the reason to stderr."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(content)
    except OSError as error:
        text = content.decode("utf-8", "replace").rstrip()
        sys.stderr.write(
            f"cloudtrain: the reason cannot be written to `{path}`: {error}; it is: {text}\n"
        )


def _lines_of_rank(lines: Sequence[str], rank: str) -> list[str]:
    """Return the lines with the rank's prefix, such as `[rank3]:`, or all lines if no traceback has
    this prefix. torch adds the prefix to tracebacks once the process group exists."""
    own = [line for line in lines if line.startswith(f"[rank{rank}]:")]
    return own if any(_HEADER in line for line in own) else list(lines)


def _read(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()[-400:]
    except OSError:
        return []
