"""The HTTP endpoint: which request is for whom, what is kept of it, and what goes wrong.

python -m tests.fakes.sagemaker.server --port-file FILE      serves until it is killed; FILE gets the port
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.fakes.sagemaker.faults import Fault, Faults, Refused
from tests.fakes.sagemaker.identity import Identity
from tests.fakes.sagemaker.jobs import ACCOUNT, Jobs
from tests.fakes.sagemaker.logs import Logs
from tests.fakes.sagemaker.prices import price_page
from tests.fakes.sagemaker.s3 import S3, Reply, Target, target_of

_JSON_SERVICES = {
    "SageMaker": "sagemaker",
    "Logs_20140328": "logs",
    "ServiceQuotasV20190624": "service-quotas",
    "AWSPriceListService": "pricing",
    "AmazonSSM": "ssm",
}
_QUERY_SERVICES = {"2011-06-15": "sts", "2010-05-08": "iam"}


@cache
def _keep_models() -> None:
    """Let botocore read each file of its models once. It reads them anew for each session, and each test has its own."""
    with suppress(ImportError):  # no SDK, as in the environment of a user of another target
        from botocore.loaders import JSONFileLoader

        JSONFileLoader.load_file = _load_once(JSONFileLoader.load_file)


def _load_once(load: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    contents: dict[str, Any] = {}

    def load_file(loader: Any, path: str) -> Any:
        if path not in contents:
            contents[path] = load(loader, path)
        return contents[path]

    return load_file


@dataclass(frozen=True)
class Received:
    """One request as it came. `body` is the parsed JSON or form; S3's is left as bytes."""

    service: str
    operation: str
    raw: bytes
    body: dict[str, Any]
    headers: dict[str, str]
    path: str


@dataclass
class FakeAws:
    """All services of one account in one region. Use it as a context manager; `url` is its endpoint."""

    region: str = "eu-west-1"
    received: list[Received] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    port: int = 0
    price_list: list[dict[str, Any]] = field(default_factory=list)
    """Products with their terms, as AWS's price list has them."""

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.region)
        self.logs = Logs()
        self.s3 = S3(self.region, ACCOUNT)
        self.identity = Identity()

    def __enter__(self) -> FakeAws:
        _keep_models()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        """What makes boto3 talk to this service, with credentials that it does not look at."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def operations(self, *names: str) -> list[Received]:
        """The requests of these operations (of all), in the order in which they came."""
        return [item for item in self.received if not names or item.operation in names]

    def handle(self, service: str, operation: str, body: dict[str, Any]) -> bytes:
        """The body of the answer of a JSON or query service."""
        if service == "sagemaker":
            return json.dumps(self.jobs.handle(operation, body)).encode()
        if service == "logs":
            return json.dumps(self.logs.handle(operation, body)).encode()
        if service == "ssm":
            return json.dumps(self.jobs.session(operation, body)).encode()
        if service == "pricing":
            return json.dumps(price_page(self.price_list, body)).encode()
        if service == "service-quotas":
            return json.dumps(self.identity.quota_page(body)).encode()
        inner = self.identity.query(operation, body)
        return f"<{operation}Response><{operation}Result>{inner}</{operation}Result></{operation}Response>".encode()

    @cached_property
    def _server(self) -> ThreadingHTTPServer:
        server = _Server(("127.0.0.1", self.port), _Handler)
        server.fake = self
        return server


class _Server(ThreadingHTTPServer):
    fake: FakeAws
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle of a request is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        fake, raw = self.server.fake, self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        item, target = _read(self.command, self.path, headers, raw)
        fake.received.append(item)
        fault = fake.faults.next_for(item.operation)
        if fault is not None and fault.kind == "close before":
            self.close_connection = True
            return
        reply = _work(fake, item, target, fault)
        if fault is not None and fault.kind == "close after":
            self.close_connection = True
            return
        self._send(reply, head=self.command == "HEAD")

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            raw = _unchunked(self.rfile)
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            from io import BytesIO

            raw = _unchunked(BytesIO(raw))
        return raw

    def _send(self, reply: Reply, *, head: bool) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header(
            "Content-Length", str(len(reply.body) if reply.length is None else reply.length)
        )
        self.end_headers()
        if not head:
            self.wfile.write(reply.body)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Out at once: boto3 waits a second for it before it sends the body."""
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        return True

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are kept."""


def _unchunked(stream: Any) -> bytes:
    """The data of a chunked body; `aws-chunked` puts signatures behind the lengths, and checksums at the end."""
    data = b""
    while size := int(stream.readline().split(b";")[0].strip() or b"0", 16):
        data += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
    return data


def _read(
    method: str, path: str, headers: dict[str, str], raw: bytes
) -> tuple[Received, Target | None]:
    if "x-amz-target" in headers:
        prefix, _, operation = headers["x-amz-target"].partition(".")
        return Received(
            _JSON_SERVICES[prefix], operation, raw, json.loads(raw), headers, path
        ), None
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        form = dict(parse_qsl(raw.decode()))
        return Received(
            _QUERY_SERVICES[form["Version"]], form["Action"], raw, form, headers, path
        ), None
    target = target_of(method, path)
    return Received("s3", target.operation, raw, {}, headers, path), target


def _work(fake: FakeAws, item: Received, target: Target | None, fault: Fault | None) -> Reply:
    try:
        if fault is not None and fault.refusal is not None:
            raise fault.refusal
        if fault is not None and fault.answer is not None:
            return Reply(body=json.dumps(fault.answer).encode())
        if target is not None:
            return fake.s3.handle(target, item.headers, item.raw)
        return Reply(body=fake.handle(item.service, item.operation, item.body))
    except Refused as refusal:
        return _refusal(item.service, refusal)


def _refusal(service: str, refusal: Refused) -> Reply:
    """The error in the protocol of its service."""
    if service in ("sts", "iam", "s3"):
        inner = f"<Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
        text = (
            f"<Error>{inner}</Error>"
            if service == "s3"
            else f"<ErrorResponse><Error>{inner}</Error></ErrorResponse>"
        )
        return Reply(refusal.status, text.encode())
    return Reply(
        refusal.status, json.dumps({"__type": refusal.code, "message": refusal.message}).encode()
    )


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    with FakeAws(port=given.port) as fake:
        temporary = given.port_file.with_suffix(".tmp")
        temporary.write_text(fake.url.rsplit(":", 1)[1])
        temporary.replace(given.port_file)
        threading.Event().wait()


if __name__ == "__main__":
    main()
