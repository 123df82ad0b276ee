"""Wait until host names resolve, map them to real addresses, and report the chief's end to all
hosts."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from cloudtrain.runtime.errors import SetupError, tell

EMULATION = "CLOUDTRAIN_EMULATED_ENDPOINTS"
"""The variable with a JSON object, `algo-1:7777` to `127.0.0.1:20123`. It is set where several
hosts are simulated on one machine: their names do not exist, and their ports must differ. Nothing
is installed there either."""

PATIENCE = 900.0
"""Seconds that hosts may start apart. sagemaker-pytorch-training waits as long for a name to
resolve."""

LATECOMERS = 30.0
"""Seconds that the chief's host stays after its end for hosts that have not connected yet."""

_RETRY = 0.2


class Network:
    """Maps `host:port` to the real address. Under emulation this is another port on this machine;
    else it is `host:port` itself."""

    def __init__(self, endpoints: Mapping[str, str] | None = None) -> None:
        self.is_emulated: bool = endpoints is not None
        """Whether all hosts are this machine, so that nothing needs to listen on the network."""
        self._endpoints = dict(endpoints or {})

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Network:
        """Return the network that the environment variables describe."""
        text = variables.get(EMULATION)
        return cls() if text is None else cls(json.loads(text))

    def place(self, host: str, port: int) -> tuple[str, int]:
        """Return the real address and port of `host:port`."""
        endpoint = self._endpoints.get(f"{host}:{port}")
        if endpoint is None:
            return host, port
        address, _, number = endpoint.rpartition(":")
        return address, int(number)


def wait_for_name(address: str, *, patience: float = PATIENCE) -> None:
    """Wait until the host name resolves, because hosts start at different times. A message tells
    that it waits."""
    deadline = time.monotonic() + patience
    has_told = False
    while True:
        try:
            socket.getaddrinfo(address, None)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"the host `{address}` has no address after {patience:.0f} s: {error}"
                raise SetupError(
                    message, hint="the other instance may not have started; look at its log"
                ) from None
        if not has_told:
            tell(f"waiting for the host `{address}`")
            has_told = True
        time.sleep(_RETRY)


class Beacon:
    """A server on the chief's host. Each other host connects to it, and receives the chief's exit
    code when the chief has ended."""

    def __init__(self, port: int, others: int, *, address: str = "") -> None:
        """Listen on every interface of the host, or only at `address`."""
        self._others = others
        self._held: list[socket.socket] = []
        self._came = threading.Condition()
        self._server = socket.create_server((address, port), backlog=others + 1)
        threading.Thread(target=self._accept, daemon=True).start()

    def tell(self, exit_code: int, *, patience: float) -> None:
        """Send the exit code to all other hosts.

        Before sending, wait up to `patience` seconds for hosts that have not connected yet, because
        a host that connects later would never receive the code.
        """
        with self._came:
            self._came.wait_for(lambda: len(self._held) >= self._others, timeout=patience)
            connections = list(self._held)
        for connection in connections:
            with suppress(OSError), connection:
                connection.sendall(f"{exit_code}\n".encode("ascii"))
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                connection = self._server.accept()[0]
                with self._came:
                    self._held.append(connection)
                    self._came.notify()


def watch_chief(place: tuple[str, int], on_end: Callable[[int | None], None]) -> None:
    """Call `on_end` with the chief's exit code when the chief has ended, or with None if the
    chief's host was lost or never reached."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection(place, timeout=10)
            break
        except OSError:
            if time.monotonic() > deadline:
                on_end(None)
                return
        time.sleep(_RETRY)
    connection.settimeout(None)
    text = ""
    with suppress(OSError), connection, connection.makefile("r", encoding="ascii") as stream:
        text = stream.readline().strip()
    on_end(int(text) if text.isdecimal() else None)
