"""Split the bytes of one stream into lines of text, as a terminal would show them."""

from __future__ import annotations

LONGEST = 32 * 1024
"""Maximum length of a line in bytes. A longer line is split."""

PROGRESS_EVERY = 5.0
"""Seconds between two recorded states of a progress bar that is still running."""


class Lines:
    """Splits one stream into lines. `pending` holds the bytes after the last complete line.

    Invalid UTF-8 is replaced. If a line contains carriage returns, only the text after the last one is kept. While a
    progress bar runs, its current text is added as a line every few seconds.
    """

    def __init__(self) -> None:
        self.pending = b""
        self._progress_at = 0.0

    def feed(self, chunk: bytes, now: float) -> list[str]:
        """Return the lines that `chunk` completes. `now` is the current time in seconds, by any clock."""
        data = self.pending + chunk
        end = data.rfind(b"\n") + 1
        lines = _texts(data[:end]) if end else []
        self.pending = data[end:]
        if b"\r" in self.pending:
            lines += self._progress(now)
        while len(self.pending) > LONGEST:
            cut = _boundary(self.pending, LONGEST)
            lines.append(self.pending[:cut].decode("utf-8", "replace"))
            self.pending = self.pending[cut:]
        return lines

    def flush(self) -> list[str]:
        """At the end of the stream, return the incomplete last line as a list; empty if there is none."""
        rest, self.pending = self.pending, b""
        return _texts(rest + b"\n") if rest.strip(b"\r") else []

    def _progress(self, now: float) -> list[str]:
        states = self.pending.split(b"\r")
        self.pending = b"\r".join(states[-2:])  # the newest state, and the one before it, for when the newest is empty
        whole = [state for state in states[:-1] if state]
        if not whole or now - self._progress_at < PROGRESS_EVERY:
            return []
        self._progress_at = now
        return _texts(whole[-1] + b"\n")


def _texts(data: bytes) -> list[str]:
    """Split `data`, which ends with a newline, into lines."""
    lines = data.decode("utf-8", "replace").split("\n")
    lines.pop()
    if b"\r" in data:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST // 4:
        return [piece for line in lines for piece in _pieces(line)]
    return lines


def _pieces(line: str) -> list[str]:
    data = line.encode()
    if len(data) <= LONGEST:
        return [line]
    pieces = []
    while data:
        cut = _boundary(data, LONGEST)
        pieces.append(data[:cut].decode("utf-8", "replace"))
        data = data[cut:]
    return pieces


def _boundary(data: bytes, limit: int) -> int:
    """Return the last position up to `limit` at which a UTF-8 character begins."""
    if len(data) <= limit:
        return len(data)
    cut = limit
    while cut > limit - 3 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut
