"""What the readers of metric files share: the value they yield, and protobuf messages by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Scalar(NamedTuple):
    """One value of a file."""

    name: str
    step: float | None
    seconds: float | None
    """Since 1970."""
    value: float


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the content of each field; fixed-width ones stay bytes.

    Raises:
        ValueError: it is not a protobuf message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _varint(message, at)
            if size is None or at + size > len(message):
                raise ValueError("not a protobuf message")
            value = message[at : at + size]
            at += size
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("not a protobuf message")


def parts(message: bytes, number: int) -> list[bytes]:
    """Return the contents of all fields of that number that have bytes."""
    return [value for key, value in fields(message) if key == number and isinstance(value, bytes)]
