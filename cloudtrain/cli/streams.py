"""stdout and stderr of every command: they are open, take any character, and report a full disk."""

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
    """Replace the streams of the process by streams that escape what they cannot encode and report a full disk."""
    codecs.register_error(_ESCAPED, _escape)
    sys.stdout = _Stdout(**_as_given(sys.stdout, 1))
    sys.stderr = _Stderr(**_as_given(sys.stderr, 2))


def discard(stream: TextIO) -> None:
    """Point a stream at /dev/null, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_given(stream: Any, number: int) -> dict[str, Any]:
    """Return the arguments for a stream like `stream`. None is a stream that was closed (`>&-`). It gets /dev/null,
    so that the next file that is opened does not get its number."""
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return {"buffer": open(number, "wb"), "encoding": "utf-8", "errors": _ESCAPED}
    kept = {name: getattr(stream, name) for name in ("buffer", "encoding", "line_buffering", "write_through")}
    return kept | {"errors": _ESCAPED}


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Write what the encoding lacks as JSON does (`\\u00e9`), so that it is readable and the output of `--json` stays
    JSON."""
    from json import dumps

    assert isinstance(error, UnicodeEncodeError), "only output is escaped"
    return dumps(error.object[error.start : error.end])[1:-1], error.end


class _Stderr(io.TextIOWrapper):
    """A stream that keeps a command running when its messages cannot be written."""

    def write(self, text: str, /) -> int:
        with self._watch():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._watch():
            super().flush()

    def failed(self, error: OSError) -> None:
        """Accept the failure; the stream has been discarded."""

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            discard(self)
            self.failed(error)


class _Stdout(_Stderr):
    """A stream whose failures end the command. A reader that closes the pipe is not a failure, as with `| head`."""

    def failed(self, error: OSError) -> NoReturn:
        """Raise the failure; the stream has been discarded."""
        if isinstance(error, BrokenPipeError):
            raise error
        message = f"stdout cannot be written: {error.strerror}"
        raise OutputError(message, hint="free disk space there, or send the output to another place") from error
