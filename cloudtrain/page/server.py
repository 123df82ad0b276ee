"""Serve the page on this machine."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from typing import NamedTuple

import uvicorn

from cloudtrain.errors import UsageError
from cloudtrain.page.app import make_app
from cloudtrain.page.guard import Guard, Keys

LOOPBACK = "127.0.0.1"

_TRIED = 20
"""Ports that are tried, from the usual one on."""

PORT = 8765


class Page(NamedTuple):
    """A page that is ready to be served."""

    address: str
    keys: Keys
    server: uvicorn.Server
    listener: socket.socket

    @property
    def link(self) -> str:
        """The address with the token."""
        return f"{self.address}/?token={self.keys.token}"

    def serve(self) -> None:
        """Answer until the process is interrupted."""
        self.server.run(sockets=[self.listener])


def make_page(port: int | None = None, host: str = LOOPBACK) -> Page:
    """Return a page at a port, by default the first free one from 8765 on. A page that other
    machines can reach is for reading only.

    Raises:
        UsageError: the port is taken, or the host is not this machine's.
    """
    listener = _listen(host, port)
    number = listener.getsockname()[1]
    keys = Keys(number)
    is_readonly = host not in (LOOPBACK, "localhost", "::1")
    names = {LOOPBACK, "localhost", "[::1]"}
    if is_readonly:
        names |= {host, socket.gethostname(), socket.getfqdn()}
    hosts = [f"{name.lower()}:{number}" for name in names]
    app = Guard(make_app(), keys, hosts, is_readonly=is_readonly)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # the first address holds the token
        timeout_graceful_shutdown=1,  # open streams would wait for their browsers
        server_header=False,
        ws="none",
        loop="asyncio",
        http="h11",
        lifespan="on",
    )
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return Page(f"http://{shown}:{number}", keys, uvicorn.Server(config), listener)


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens at the port, or at the first free one."""
    ports = range(PORT, PORT + _TRIED) if port is None else (port,)
    why = ""
    for number in ports:
        try:
            listener = socket.create_server((host, number))
        except OSError as error:
            why = f"at port {number}: {error.strerror}"
        else:
            # Its connections inherit this. A body would wait 40 ms for the acknowledgement of its
            # headers: asyncio sets it only where a socket names its protocol.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    hint = "name a free port: `cloudtrain ui --port 0`"
    raise UsageError(f"the page cannot listen on `{host}` {why}", hint=hint)


def open_browser(link: str) -> bool:
    """Open an address in the person's browser. Return False if there is none, such as on a machine
    without a screen."""
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if sys.platform == "linux" and not has_screen:
        return False
    try:
        return webbrowser.open(link)
    except webbrowser.Error:
        return False


def forwarding(address: str) -> str | None:
    """Return the command that brings the page to the machine from which this one is used by ssh;
    None for a person in front of it."""
    server = os.environ.get("SSH_CONNECTION", "").split()
    if not server:
        return None
    port = address.rpartition(":")[2]
    host = server[2] if len(server) > 2 else socket.gethostname()
    return f"ssh -N -L {port}:127.0.0.1:{port} {os.environ.get('USER', 'you')}@{host}"
