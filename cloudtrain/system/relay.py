"""Carry the connections to a port of this machine through one process to a port elsewhere.

    relay.py PORT WORD PROGRAM...   the near end, which listens on 127.0.0.1, and then prints WORD
    relay.py PORT                   the far end, which connects to a port of its machine

The program of the near end may be ssh, srun or any other that has the pipes of the far end as its
stdin and stdout. The far end is this very file, which `relay_argv` of `targets/inside.py` hands
over as text. So it imports only the standard library, and works with Python 3.8. No other machine
can reach the port: the far end connects to its own machine, and the near end listens on loopback.

Both ends send frames: the number of the connection, a length, and that many bytes. The first frame
of a connection opens it, and is empty. Each end sends one more empty frame when it has no more to
send. An end whose stdin is closed ends itself.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from contextlib import suppress
from itertools import count

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

_HEAD = struct.Struct("!IH")
_MOST = 0xFFFF
"""Maximum number of bytes in a frame."""

_MARK = b"\x01cloudtrain relay\x01\n"
"""What the far end writes first, because a login shell may greet before."""


class _Ends:
    """The connections of one end, by their numbers. `out` leads to the other end."""

    def __init__(self, out: asyncio.StreamWriter) -> None:
        self._out = out
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._half_closed: set[int] = set()

    def add(self, number: int, writer: asyncio.StreamWriter) -> None:
        self._writers[number] = writer

    async def carry(self, number: int, reader: asyncio.StreamReader) -> None:
        """Send what a connection receives until its end."""
        data = b"..."
        while data:
            try:
                data = await reader.read(_MOST)
            except OSError:
                data = b""
            await self.send(number, data)
        self._close_half(number)

    async def send(self, number: int, data: bytes = b"") -> None:
        self._out.write(_HEAD.pack(number, len(data)) + data)
        with suppress(OSError):
            await self._out.drain()

    async def receive(
        self, frames: asyncio.StreamReader, on_new: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """Give each frame to its connection, until the other end is gone."""
        newest = 0
        with suppress(asyncio.IncompleteReadError):
            while True:
                number, length = _HEAD.unpack(await frames.readexactly(_HEAD.size))
                data = await frames.readexactly(length)
                writer = self._writers.get(number)
                if writer is not None:
                    await self._give(number, writer, data)
                elif on_new is not None and number > newest:
                    newest = number
                    await on_new(number)

    async def _give(self, number: int, writer: asyncio.StreamWriter, data: bytes) -> None:
        with suppress(OSError):
            if data:
                writer.write(data)
                await writer.drain()
            else:
                writer.write_eof()
        if not data:
            self._close_half(number)

    def _close_half(self, number: int) -> None:
        """Close a connection when both directions have ended."""
        if number not in self._half_closed:
            self._half_closed.add(number)
            return
        self._half_closed.discard(number)
        self._writers.pop(number).close()


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader


async def _stdout() -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    # asyncio has no public protocol for a writer without a reader
    pipe: Any = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    transport, protocol = pipe
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _be_far_end(port: int) -> None:
    """Connect what comes through stdin to a port of this machine, until stdin ends."""
    frames = await _stdin()
    out = await _stdout()
    out.write(_MARK)
    ends = _Ends(out)
    carrying = set()  # asyncio itself does not keep them alive

    async def connect(number: int) -> None:
        """Open a connection for one that has begun at the other end, and carry its data."""
        try:
            reader, writer = await asyncio.open_connection("localhost", port)
        except OSError:
            sys.stderr.write(f"cloudtrain: nothing listens on port {port} of {os.uname()[1]}\n")
            sys.stderr.flush()
            await ends.send(number)  # the other end closes its connection then
            return
        ends.add(number, writer)
        carrying.add(asyncio.ensure_future(ends.carry(number, reader)))

    await ends.receive(frames, connect)


async def _be_near_end(port: int, word: str, argv: Sequence[str]) -> None:
    """Carry the connections to a port of this machine through a program, until it or stdin ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    ends = _Ends(process.stdin)
    numbers = count(1)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        ends.add(number, writer)
        await ends.send(number)
        await ends.carry(number, reader)

    async def carry(frames: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError):
            await frames.readuntil(_MARK)
            await asyncio.start_server(accept, "127.0.0.1", port)
            sys.stdout.write(f"{word}\n")
            sys.stdout.flush()
            await ends.receive(frames)

    stdin = await _stdin()
    works = {asyncio.ensure_future(carry(process.stdout)), asyncio.ensure_future(stdin.read())}
    done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
    for work in done:
        work.result()  # raises what went wrong


if __name__ == "__main__":
    own_port = int(sys.argv[1])
    if sys.argv[2:]:
        asyncio.run(_be_near_end(own_port, sys.argv[2], sys.argv[3:]))
    else:
        asyncio.run(_be_far_end(own_port))
