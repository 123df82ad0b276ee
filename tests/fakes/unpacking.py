"""Archives of ours, unpacked as a container does."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def unpack(data: bytes, folder: Path) -> None:
    """Unpack a tar. Python 3.10.11 and 3.11.3 and older know no filters; the archives here are our own."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
