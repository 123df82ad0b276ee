"""How the blob store is asked."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError  # noqa: TID253
from azure.core.pipeline.transport import HttpTransport  # noqa: TID253
from azure.storage.blob import BlobClient  # noqa: TID253

from cloudtrain.targets.azureml.service.blobs import RETRIES


class NoNetwork(HttpTransport[Any, Any]):
    """Nothing gets through, and pauses are noted instead of waited for."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def send(self, request: Any, **_: Any) -> Any:
        raise ServiceRequestError("refused")

    def sleep(self, duration: float) -> None:
        self.pauses.append(duration)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...


def test_three_more_tries_and_the_pauses_between_them() -> None:
    """As the docstring of RETRIES says; the package adds 2 to the power of the try, counted from one."""
    transport = NoNetwork()
    blob = BlobClient.from_blob_url(
        "https://account.blob.core.windows.net/logs/a.txt", transport=transport, **RETRIES
    )
    with pytest.raises(ServiceRequestError):
        blob.get_blob_properties()
    assert transport.pauses == pytest.approx([2.3, 4.3, 8.3], abs=0.2)
