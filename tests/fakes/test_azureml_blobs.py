"""The fake blob store behaves as Azurite, Microsoft's own emulator, does under azure-storage-blob.

Every test runs against both. Azurite is looked for on the PATH (`npm install azurite`, 186 MB); where it is not, its
half is skipped. It was measured with 3.35.0; azure-storage-blob 12.31.1 sends a version that it does not know yet,
hence `--skipApiVersionCheck`.
"""

from __future__ import annotations

import io
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.azureml.account import KEY
from tests.ports import free_port

pytestmark = pytest.mark.lifecycle

AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The same for everybody: Azurite's documentation has it."""


@dataclass(frozen=True)
class Store:
    """An account with one container, `files`. `name` is what signatures call the account."""

    url: str
    name: str
    key: str
    denied: str = "AuthenticationFailed"
    """The code where a signature does not fit; the service's."""

    def container(self, credential: Any = "", **options: Any) -> Any:
        """A client; by default with the account's key. It does not retry."""
        from azure.storage.blob import ContainerClient

        return ContainerClient(
            self.url,
            "files",
            credential=self.key if credential == "" else credential,
            retry_total=0,
            **options,
        )

    def signature(self, *, blob: str = "", permission: str = "rcwdl", seconds: float = 600) -> str:
        """A shared access signature, as azure-storage-blob makes it."""
        from azure.storage.blob import generate_blob_sas, generate_container_sas

        until = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        what: dict[str, Any] = {"account_key": self.key, "permission": permission, "expiry": until}
        if blob:
            return generate_blob_sas(self.name, "files", blob, **what)
        return generate_container_sas(self.name, "files", **what)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Azurite on a free port, with everything in memory."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip(
            "azurite-blob is not on the PATH: npm install azurite, and put node_modules/.bin there"
        )
    port = free_port()
    folder = tmp_path_factory.mktemp("azurite")
    command = [
        program, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
        "--silent",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(port, process)
            name = "devstoreaccount1"
            yield Store(
                f"http://127.0.0.1:{port}/{name}", name, AZURITE_KEY, denied="AuthorizationFailure"
            )
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("Azurite does not listen")


@pytest.fixture(params=["fake", "azurite"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty container of either."""
    pytest.importorskip("azure.storage.blob")
    if request.param == "azurite":
        found: Store = request.getfixturevalue("azurite")
        container = found.container()
        container.create_container()
        yield found
        container.delete_container()
        return
    with FakeAzure() as fake:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(fake.authority))
        fake.blobs.add_container("files")
        yield Store(fake.blobs.url, fake.blobs.account, KEY)


@pytest.fixture
def container(store: Store) -> Any:
    return store.container()


def refused(ask: Callable[[], Any]) -> tuple[int, str]:
    """The status and the code of the error."""
    from azure.core.exceptions import HttpResponseError

    with pytest.raises(HttpResponseError) as raised:
        ask()
    response: Any = raised.value.response
    return response.status_code, response.headers["x-ms-error-code"]


def test_blobs_are_put_and_got(container: Any) -> None:
    """Whole, empty ones too, under names with whatever is in them, with their properties."""
    for name, data in {"a.bin": bytes(range(256)), "e": b"", "with space/ä+%&?#.txt": b"x"}.items():
        container.upload_blob(name, data, metadata={"kind": "test"})
        assert container.download_blob(name).readall() == data
        properties = container.get_blob_client(name).get_blob_properties()
        assert (properties.size, properties.metadata, properties.blob_type) == (
            len(data),
            {"kind": "test"},
            "BlockBlob",
        )
    assert {blob.name for blob in container.list_blobs()} == {"a.bin", "e", "with space/ä+%&?#.txt"}


def test_a_blob_is_not_written_over_unless_asked(container: Any) -> None:
    """409."""
    container.upload_blob("a", b"1")
    assert refused(lambda: container.upload_blob("a", b"2")) == (409, "BlobAlreadyExists")
    container.upload_blob("a", b"3", overwrite=True)
    assert container.download_blob("a").readall() == b"3"


def test_large_blobs_go_in_blocks(store: Store) -> None:
    """In the order of the list, whatever order they came in; and they come out in ranges."""
    container = store.container(
        max_single_put_size=1000,
        max_block_size=1000,
        max_single_get_size=700,
        max_chunk_get_size=700,
    )
    data = bytes(range(256)) * 40
    container.upload_blob("a", io.BytesIO(data), max_concurrency=4)
    assert container.download_blob("a", max_concurrency=4).readall() == data


def test_ranges(container: Any) -> None:
    """From a byte, so many bytes, as far as there are any; nothing beyond the end."""
    container.upload_blob("a", b"0123456789")
    assert container.download_blob("a", offset=3).readall() == b"3456789"
    assert container.download_blob("a", offset=3, length=2).readall() == b"34"
    assert container.download_blob("a", offset=8, length=100).readall() == b"89"
    assert refused(lambda: container.download_blob("a", offset=11)) == (416, "InvalidRange")


def test_conditions(container: Any) -> None:
    """A blob that did not change is not sent again, one that did is not taken for the old one."""
    from azure.core import MatchConditions

    container.upload_blob("a", b"1")
    blob = container.get_blob_client("a")
    etag = blob.get_blob_properties().etag
    changed, same = MatchConditions.IfModified, MatchConditions.IfNotModified
    assert refused(lambda: blob.download_blob(etag=etag, match_condition=changed))[0] == 304
    assert blob.download_blob(etag=etag, match_condition=same).readall() == b"1"
    blob.upload_blob(b"2", overwrite=True)
    assert blob.download_blob(etag=etag, match_condition=changed).readall() == b"2"
    assert refused(lambda: blob.download_blob(etag=etag, match_condition=same)) == (
        412,
        "ConditionNotMet",
    )


def test_metadata_are_replaced(container: Any) -> None:
    """All at once; the blob is another then."""
    container.upload_blob("a", b"1", metadata={"x": "1"})
    blob = container.get_blob_client("a")
    etag = blob.get_blob_properties().etag
    blob.set_blob_metadata({"upload_status": "completed"})
    assert blob.get_blob_properties().metadata == {"upload_status": "completed"}
    assert blob.get_blob_properties().etag != etag
    assert [found.metadata for found in container.list_blobs(include=["metadata"])] == [
        {"upload_status": "completed"}
    ]
    assert not next(iter(container.list_blobs())).metadata


def test_lists(container: Any) -> None:
    """By prefix, in pages, in the order of names, and as folders."""
    names = ["a/1", "a/2", "a/b/3", "c", "d/4"]
    for name in reversed(names):
        container.upload_blob(name, b"x" * len(name))
    assert [blob.name for blob in container.list_blobs(results_per_page=2)] == names
    assert len(list(container.list_blobs(results_per_page=2).by_page())) == 3
    assert [blob.name for blob in container.list_blobs(name_starts_with="a/")] == names[:3]
    assert {item.name for item in container.walk_blobs(delimiter="/")} == {"a/", "c", "d/"}
    assert {item.name for item in container.walk_blobs(name_starts_with="a/", delimiter="/")} == {
        "a/1",
        "a/2",
        "a/b/",
    }
    assert [blob.size for blob in container.list_blobs()] == [3, 3, 5, 1, 3]


def test_what_is_not_there(store: Store, container: Any) -> None:
    """A blob, a container."""
    from azure.storage.blob import ContainerClient

    assert refused(lambda: container.download_blob("nope")) == (404, "BlobNotFound")
    assert not container.get_blob_client("nope").exists()
    other = ContainerClient(store.url, "other", credential=store.key, retry_total=0)
    assert refused(lambda: list(other.list_blobs())) == (404, "ContainerNotFound")


def test_blobs_are_deleted(container: Any) -> None:
    """Once."""
    container.upload_blob("a", b"1")
    container.delete_blob("a")
    assert refused(lambda: container.delete_blob("a")) == (404, "BlobNotFound")


def test_a_signature_opens_what_it_is_for(store: Store) -> None:
    """A container or one blob of it, for what it permits."""
    container = store.container(store.signature())
    container.upload_blob("a", b"1")
    container.upload_blob("b", b"2")
    one = store.container(store.signature(blob="a", permission="r"))
    assert one.download_blob("a").readall() == b"1"
    assert refused(lambda: one.download_blob("b")) == (403, store.denied)
    assert refused(lambda: one.upload_blob("a", b"3", overwrite=True)) == (
        403,
        "AuthorizationPermissionMismatch",
    )
    no_lists = store.container(store.signature(permission="r"))
    assert refused(lambda: list(no_lists.list_blobs())) == (403, "AuthorizationPermissionMismatch")


def test_a_signature_that_is_over_or_wrong_opens_nothing(store: Store) -> None:
    """403 in the service's words."""
    old = store.container(store.signature(seconds=-60))
    assert refused(lambda: list(old.list_blobs())) == (403, store.denied)
    parts = dict(parse_qsl(store.signature(permission="r"))) | {"sp": "rl"}
    forged = store.container(urlencode(parts))
    assert refused(lambda: list(forged.list_blobs())) == (403, store.denied)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """The fake alone, for what Azurite does not do or does otherwise."""
    pytest.importorskip("azure.storage.blob")
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        service.blobs.put("files", "a", b"1")
        yield service


def test_a_token_opens_everything(fake: FakeAzure) -> None:
    """One for the storage audience, which azure-storage-blob asks for by itself."""
    from azure.identity import ManagedIdentityCredential
    from azure.storage.blob import ContainerClient

    with ManagedIdentityCredential() as credential:
        container = ContainerClient(fake.blobs.url, "files", credential=credential, retry_total=0)
        assert container.download_blob("a").readall() == b"1"
    assert fake.identity.asked == ["https://storage.azure.com"]


def test_a_range_from_the_end_on_is_refused(fake: FakeAzure) -> None:
    """416, and of an empty blob every range. Azurite 3.35 lets the first one pass."""
    container = Store(fake.blobs.url, fake.blobs.account, KEY).container()
    assert refused(lambda: container.download_blob("a", offset=1)) == (416, "InvalidRange")
    fake.blobs.put("files", "empty", b"")
    assert refused(lambda: container.download_blob("empty", offset=0, length=5)) == (
        416,
        "InvalidRange",
    )


def test_nothing_is_public(fake: FakeAzure) -> None:
    """409, as an account answers that does not allow it."""
    store = Store(fake.blobs.url, fake.blobs.account, KEY)
    assert refused(lambda: store.container(None).download_blob("a")) == (
        409,
        "PublicAccessNotPermitted",
    )


def test_an_account_can_do_without_keys(fake: FakeAzure) -> None:
    """Then the key is refused, whoever has it."""
    fake.blobs.allows_shared_key = False
    store = Store(fake.blobs.url, fake.blobs.account, KEY)
    assert refused(lambda: store.container().download_blob("a")) == (
        403,
        "KeyBasedAuthenticationNotPermitted",
    )


def test_its_own_signatures_are_those_of_the_library(fake: FakeAzure) -> None:
    """An address that it gives opens the blob, and no other."""
    from azure.storage.blob import BlobClient

    url = fake.blobs.sas_url("files", "a")
    assert BlobClient.from_blob_url(url, retry_total=0).download_blob().readall() == b"1"
    fake.blobs.put("files", "b", b"2")
    other = BlobClient.from_blob_url(url.replace("/a?", "/b?"), retry_total=0)
    assert refused(lambda: other.download_blob()) == (403, "AuthenticationFailed")


def test_what_grows_while_it_is_read_is_refused(fake: FakeAzure) -> None:
    """A log that gets more lines has a new ETag, and azure-storage-blob asks for further parts of the old one."""
    fake.blobs.put("files", "log", b"x" * 1000)
    store = Store(fake.blobs.url, fake.blobs.account, KEY)
    stream = store.container(max_single_get_size=500, max_chunk_get_size=500).download_blob("log")
    fake.blobs.append("files", "log", b"more")
    assert refused(stream.readall) == (412, "ConditionNotMet")


def test_the_certificate_is_for_this_host_and_by_this_authority(fake: FakeAzure) -> None:
    """Strict verification takes it for both names of loopback; without the authority nobody does."""
    host, _, port = fake.blobs.host.partition(":")
    for context, name in (
        (_trusting(fake.authority), "127.0.0.1"),
        (_trusting(fake.authority), "localhost"),
    ):
        with (
            socket.create_connection((host, int(port))) as raw,
            context.wrap_socket(raw, server_hostname=name) as safe,
        ):
            assert safe.version() == "TLSv1.3"
    with (
        socket.create_connection((host, int(port))) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(raw, server_hostname="localhost")


def _trusting(authority: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
