"""What is in a container: blobs, and lists of their names in pages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from xml.sax.saxutils import escape

_VERSIONS = count(1)


@dataclass
class Blob:
    """The bytes, the metadata (`x-ms-meta-...`, without the prefix), and an ETag of its own for every change."""

    data: bytes
    metadata: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    made: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.touch()

    def touch(self) -> None:
        """A new version."""
        self.changed, self.etag = time.time(), f'"0x8DE{next(_VERSIONS):012X}"'

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.changed, usegmt=True),
            "x-ms-creation-time": formatdate(self.made, usegmt=True),
            "x-ms-blob-type": "BlockBlob",
            "Content-Type": self.content_type,
            "Accept-Ranges": "bytes",
            **{f"x-ms-meta-{name}": value for name, value in self.metadata.items()},
        }


def list_blobs(blobs: Mapping[str, Blob], query: Mapping[str, str], page_size: int) -> bytes:
    """The XML of the page that the query asks for: prefix, delimiter, marker, maxresults, include=metadata."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    marker, size = query.get("marker", ""), min(page_size, int(query.get("maxresults", page_size)))
    rest = [entry for entry in _entries(blobs, prefix, delimiter) if entry >= marker]
    page, more = rest[:size], (rest[size] if len(rest) > size else "")
    with_metadata = "metadata" in query.get("include", "")
    items = "".join(
        _listed(entry, blobs[entry], with_metadata=with_metadata)
        if entry in blobs
        else f"<BlobPrefix><Name>{escape(entry)}</Name></BlobPrefix>"
        for entry in page
    )
    text = (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
        f"<Prefix>{escape(prefix)}</Prefix><Marker>{escape(marker)}</Marker><MaxResults>{size}</MaxResults>"
        f"<Blobs>{items}</Blobs><NextMarker>{escape(more)}</NextMarker></EnumerationResults>"
    )
    return text.encode()


def _entries(blobs: Iterable[str], prefix: str, delimiter: str) -> list[str]:
    """Names and, up to the delimiter, the beginnings of names, in order."""
    found = set()
    for name in blobs:
        if not name.startswith(prefix):
            continue
        head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        found.add(prefix + head + cut if cut else name)
    return sorted(found)


def _listed(name: str, blob: Blob, *, with_metadata: bool) -> str:
    metadata = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in blob.metadata.items())
    properties: Mapping[str, str] = {
        "Creation-Time": blob.headers["x-ms-creation-time"],
        "Last-Modified": blob.headers["Last-Modified"],
        "Etag": blob.etag.strip('"'),
        "Content-Length": str(len(blob.data)),
        "Content-Type": blob.content_type,
        "BlobType": "BlockBlob",
    }
    inner = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in properties.items())
    tail = f"<Metadata>{metadata}</Metadata>" if with_metadata else ""
    return f"<Blob><Name>{escape(name)}</Name><Properties>{inner}</Properties>{tail}</Blob>"
