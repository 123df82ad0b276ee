"""Describe why a run failed: the rank that failed first, how it ended, and its last lines of output."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cloudtrain.runtime.errors import find_told
from cloudtrain.targets.common.tracebacks import PEER_LOST


class Death(NamedTuple):
    """A rank that failed. `order`: its position among all ranks that ended. `attempt`: how often the rank had been
    started when it failed."""

    rank: int
    instance: int
    role: str
    exit_code: int
    order: int
    attempt: int


class Verdict(NamedTuple):
    """The explanation why a run failed, for the run's status."""

    reason: str
    details: list[str]
    rank: int | None = None
    exit_code: int | None = None


DETAILS = 20
"""Maximum number of output lines in an explanation."""

_LONGEST_REASON = 400

FAILURE_LIMIT = 1024
"""Number of characters that SageMaker shows of a failure file."""

_RANK_PREFIX = re.compile(r"\[rank\d+\]: ?")
_NO_TORCH = re.compile(r"No module named '?torch\b")
_HEADER = "Traceback (most recent call last):"


def first_failure(deaths: Iterable[Death], lines_of: Callable[[Death], list[str]]) -> Death | None:
    """Return the failure that caused the others: the first one that is not a consequence, or else the first one; None
    if no rank failed. If a rank was terminated or lost contact with another rank, its failure is a consequence.

    The rank with the original error may end after the ranks that lost contact with it, because it shuts down its
    process group first. An error that every rank finds is told by one of them, while the others exit in silence.
    """
    in_order = sorted(deaths, key=lambda death: death.order)
    own = [death for death in in_order if not _is_consequence(death, lines_of(death))]
    if own and own[0].exit_code == 1 and not any(line.strip() for line in lines_of(own[0])):
        own = [death for death in own if find_told(lines_of(death)) is not None] or own
    return next(iter(own or in_order), None)


def rank_verdict(death: Death, lines: list[str], *, instances: int) -> Verdict:
    """Describe the failure of a rank. `lines` are the last lines of its stderr (or stdout)."""
    where = [f"instance {death.instance}"] if instances > 1 else []
    if death.role not in ("process", "torchrun", "mpirun"):
        where.insert(0, death.role)
    who = f"rank {death.rank}" + (f" ({', '.join(where)})" if where else "")
    message, details = explain(lines)
    if death.exit_code < 0:
        reason = f"{who} was killed by {_signal_name(-death.exit_code)} (exit code {death.exit_code})"
        if death.exit_code == -signal.SIGABRT and message:  # torch may abort while it cleans up after an error
            reason += f" after {message}"
        if death.exit_code == -signal.SIGKILL:
            reason += "; unless someone sent it, the machine most likely ran out of memory"
    else:
        reason = f"{who} failed with exit code {death.exit_code}" + (f": {message}" if message else "")
    return Verdict(_shorten(reason), details, death.rank, death.exit_code)


def launcher_verdict(role: str, instance: int, argv: Sequence[str], exit_code: int, lines: list[str]) -> Verdict:
    """Describe the failure of a launcher. `lines` are the last lines of its stderr (or stdout)."""
    message, details = explain(lines)
    if _NO_TORCH.search(message):
        reason = (
            f"`{argv[0]}` has no PyTorch ({message}); `pip install torch` there, or name another interpreter: "
            "`python` of the local target"
        )
    elif exit_code < 0:
        reason = f"{role} of instance {instance} was killed by {_signal_name(-exit_code)} (exit code {exit_code})"
    else:
        reason = f"{role} of instance {instance} ended with exit code {exit_code}" + (f": {message}" if message else "")
    return Verdict(_shorten(reason), details, None, exit_code)


def in_own_words(verdict: Verdict, failure_files: Iterable[str]) -> Verdict:
    """Return the verdict with the first line of the oldest failure file as its reason, and the other lines as details.
    Return it unchanged if no failure file has content.

    A failure file is the `/opt/ml/output/failure` of an emulated host. As in SageMaker, only 1,024 characters are used.
    """
    files = [path for path in map(Path, failure_files) if path.is_file()]
    found = sorted(files, key=lambda path: path.stat().st_mtime)
    text = found[0].read_text("utf-8", "replace")[:FAILURE_LIMIT].strip() if found else ""
    if not text:
        return verdict
    first, *rest = text.splitlines()
    return verdict._replace(reason=_shorten(first), details=rest[-DETAILS:] or verdict.details)


def explain(lines: list[str]) -> tuple[str, list[str]]:
    """Return the line that names the error in the last traceback, and the lines of this traceback. If the runtime told
    an error after the last traceback, return its message, and its lines. Without both, return the last line, and the
    last lines."""
    clean = [_RANK_PREFIX.sub("", line, count=1) if line.startswith("[rank") else line for line in lines]
    clean = [line.rstrip() for line in clean if line.strip()]
    starts = [index for index, line in enumerate(clean) if line.strip() == _HEADER]
    told = find_told(clean)
    if told is not None and not any(start > told[0] for start in starts):
        return told[1], clean[told[0] :][:DETAILS]
    if not starts:
        return (clean[-1].strip() if clean else ""), clean[-DETAILS:]
    for index in range(starts[-1] + 1, len(clean)):
        if not clean[index][0].isspace():
            return clean[index], clean[starts[-1] : index + 4][-DETAILS:]
    return "", clean[-DETAILS:]


def _is_consequence(death: Death, lines: list[str]) -> bool:
    if death.exit_code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS):
        return False
    return death.exit_code == -signal.SIGTERM or bool(PEER_LOST.search("\n".join(explain(lines)[1][-6:])))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
