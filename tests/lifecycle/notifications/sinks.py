"""Servers of this machine to which notifications are sent, and that keep what they get."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Posted(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def id(self) -> str:
        """The event."""
        return self.headers["Idempotency-Key"]

    @property
    def data(self) -> Any:
        """The content as JSON."""
        return json.loads(self.content)


class Web:
    """A web server that keeps the requests, and answers with `status`, `headers`."""

    def __init__(self) -> None:
        self.got: list[Posted] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.address = ""

    @property
    def ids(self) -> list[str]:
        """The events that it got, in order."""
        return [request.id for request in self.got]


@contextmanager
def web_server() -> Iterator[Web]:
    """A web server."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            web.got.append(Posted(self.path, dict(self.headers), content))
            self.send_response(web.status)
            for name, value in web.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        web.address = f"http://127.0.0.1:{port}"
        yield web


class Mail(NamedTuple):
    """A mail server that keeps the letters."""

    got: list[Message]
    address: str

    @property
    def ids(self) -> list[str]:
        """The events that it got, in order, with dots."""
        return [letter["Message-ID"].strip("<>").removesuffix("@cloudtrain") for letter in self.got]


@contextmanager
def mail_server() -> Iterator[Mail]:
    """A server that speaks as much SMTP as a client without encryption needs."""
    letters: list[Message] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say(220)
            for line in self.rfile:
                word = line[:4].upper()
                if word == b"DATA":
                    self.say(354)
                    letters.append(message_from_bytes(self.read_letter()))
                self.say(221 if word == b"QUIT" else 250)

        def say(self, code: int) -> None:
            self.wfile.write(b"%d ok\r\n" % code)

        def read_letter(self) -> bytes:
            lines = []
            for line in iter(self.rfile.readline, b".\r\n"):
                lines.append(line.removeprefix(b"."))
            return b"".join(lines)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with _serving(server) as port:
        yield Mail(letters, f"127.0.0.1:{port}")


@contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
