"""stdout and stderr of every command: always open, able to print any character, and prepared for a full disk."""

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
    """stdout cannot be written, for example on a full disk. The rest of the output is lost."""

    exit_code = 74
    code = "CT907"


def mend_streams() -> None:
    """Replace stdout and stderr by streams that escape characters they cannot encode. Write errors, for example on a
    full disk, end the command on stdout and are ignored on stderr."""
    codecs.register_error(_ESCAPED, _escape)
    sys.stdout = _Stdout(**_as_given(sys.stdout, 1))
    sys.stderr = _Stderr(**_as_given(sys.stderr, 2))


def discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_given(stream: Any, number: int) -> dict[str, Any]:
    """Return arguments for `io.TextIOWrapper` that make a stream like `stream`. If the user closed the stream (`>&-`),
    `stream` is None, and /dev/null is opened as file descriptor `number`, so that no other file gets this number."""
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return {"buffer": open(number, "wb"), "encoding": "utf-8", "errors": _ESCAPED}
    kept = {name: getattr(stream, name) for name in ("buffer", "encoding", "line_buffering", "write_through")}
    return kept | {"errors": _ESCAPED}


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes (`\\u00e9`) for the characters that the encoding lacks, and the offset after these
    characters. With such escapes, `--json` stays valid JSON."""
    from json import dumps

    assert isinstance(error, UnicodeEncodeError), "only output is escaped"
    return dumps(error.object[error.start : error.end])[1:-1], error.end


class _Stderr(io.TextIOWrapper):
    """A stream that ignores write errors, so that the command continues."""

    def write(self, text: str, /) -> int:
        with self._watch():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._watch():
            super().flush()

    def failed(self, error: OSError) -> None:
        """Ignore the error. The stream has been redirected to /dev/null."""

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            discard(self)
            self.failed(error)


class _Stdout(_Stderr):
    """A stream whose write errors end the command. A reader that closes the pipe, as `| head` does, causes no
    message."""

    def failed(self, error: OSError) -> NoReturn:
        """Raise a broken pipe unchanged, and any other error as `OutputError`. Called after the stream was redirected
        to /dev/null."""
        if isinstance(error, BrokenPipeError):
            raise error
        message = f"stdout cannot be written: {error.strerror}"
        raise OutputError(message, hint="free disk space, or redirect the output to another disk") from error
