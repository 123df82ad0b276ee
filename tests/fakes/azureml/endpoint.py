"""HTTP: a request is read, kept, perhaps spoiled, and answered; with a certificate, over https."""

from __future__ import annotations

import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from tests.fakes.azureml.faults import Fault
from tests.fakes.azureml.messages import Reply, Request

if TYPE_CHECKING:
    from tests.fakes.azureml.server import FakeAzure


def serve(
    fake: FakeAzure, handler: type[BaseHTTPRequestHandler], certificate: Path | None = None
) -> Server:
    """Listen on a free port of loopback until `close`."""
    server = Server(("127.0.0.1", 0), handler)
    server.fake = fake
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake is made by the thread that reads the request, not by the one that takes
        # connections.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class Server(ThreadingHTTPServer):
    """One port, with a thread for every connection."""

    fake: FakeAzure
    daemon_threads = True
    request_queue_size = 128

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle of a request is what these tests are about."""


class _Base(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def _request(self) -> Request:
        path, _, query = self.path.partition("?")
        return Request(
            method=self.command,
            path=unquote(path),
            query=dict(parse_qsl(query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            raw=self._body(),
            short=self.server.fake.shorten(unquote(path)),
            target=self.path,
        )

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return _unchunked(self.rfile)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, reply: Reply, *, cut_at: int | None = None) -> None:
        self.send_response(reply.status)
        for name, value in {"x-ms-request-id": "0" * 8, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header(
            "Content-Length", str(len(reply.body) if reply.length is None else reply.length)
        )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[:cut_at])
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are kept."""


class Services(_Base):
    """ARM, run history and the blob store."""

    def _serve(self) -> None:
        fake, request = self.server.fake, self._request()
        fake.requests.append(request)
        fake.run_hooks("before", request)
        fault = fake.faults.next_for(request)
        if _is(fault, "close before"):
            self.close_connection = True
            return
        said = fault.reply if fault else None
        reply = said or fake.handle(request, fault.refusal if fault else None)
        fake.run_hooks("after", request)
        if _is(fault, "close after"):
            self.close_connection = True
            return
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.amount)
        cut = int(fault.amount) if fault is not None and fault.kind == "cut" else None
        self._send(reply, cut_at=cut)
        if cut is not None:
            self.close_connection = True

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()


class SignIn(_Base):
    """The managed identity's endpoint."""

    def do_GET(self) -> None:
        self._send(self.server.fake.identity.handle(self._request()))


def _is(fault: Fault | None, kind: str) -> bool:
    return fault is not None and fault.kind == kind


def _unchunked(stream: Any) -> bytes:
    data = b""
    while size := int(stream.readline().split(b";")[0].strip() or b"0", 16):
        data += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
    return data
