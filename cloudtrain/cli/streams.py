"""stdout and stderr as every command finds them: open, able to take any character, and clear about a full disk."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from cloudtrain.errors import CloudtrainError

_ESCAPED = "cloudtrain.escaped"


class OutputError(CloudtrainError):
    """stdout cannot be written, as on a full disk. What was not written yet is lost."""

    exit_code = 74
    code = "CT907"


def mend_streams() -> None:
    """Put streams that can be relied on in the place of those that the process was started with."""
    codecs.register_error(_ESCAPED, _escape)
    sys.stdout = _Stdout(**_as_given(sys.stdout, 1))
    sys.stderr = _Stderr(**_as_given(sys.stderr, 2))


def discard(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter's last flush has nobody to complain about."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_given(stream: Any, number: int) -> dict[str, Any]:
    """The arguments for a stream like `stream`. None is one that was closed (`>&-`): it leads nowhere, and keeps the
    next file that is opened from getting its number."""
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return {"buffer": open(number, "wb"), "encoding": "utf-8", "errors": _ESCAPED}
    kept = {name: getattr(stream, name) for name in ("buffer", "encoding", "line_buffering", "write_through")}
    return kept | {"errors": _ESCAPED}


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What the encoding lacks, as JSON writes it (`\\u00e9`): readable, and what `--json` prints stays JSON."""
    from json import dumps

    assert isinstance(error, UnicodeEncodeError), "only output is escaped"
    return dumps(error.object[error.start : error.end])[1:-1], error.end


class _Stderr(io.TextIOWrapper):
    """A command goes on without its messages where nobody can read them."""

    def write(self, text: str, /) -> int:
        with self._watch():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._watch():
            super().flush()

    def failed(self, error: OSError) -> None:
        """What follows a failure, when the stream has been discarded."""

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            discard(self)
            self.failed(error)


class _Stdout(_Stderr):
    """A command without its data has failed. That a reader went away is no failure: it has seen enough."""

    def failed(self, error: OSError) -> NoReturn:
        """What follows a failure, when the stream has been discarded."""
        if isinstance(error, BrokenPipeError):
            raise error
        message = f"stdout cannot be written: {error.strerror}"
        raise OutputError(message, hint="free disk space there, or send the output to another place") from error
