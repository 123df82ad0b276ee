"""Scalars of TensorBoard's event files: records of TFRecord, each a protobuf message `Event`.

Event: 1 wall_time, 2 step, 5 summary. Summary: 1 value. Value: 1 tag, 2 simple_value, 8 tensor.
TensorProto: 1 dtype, 2 shape, 4 tensor_content, 5 float_val, 6 double_val.
(tensorflow/core/util/event.proto, summary.proto, tensor.proto.)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .fields import Scalar, fields, parts

MAX_RECORD = 1 << 28
_HEADER = 12
"""Bytes before a record's data: its length and the checksum of that."""
_HEADER_LIKE = re.compile(rb"(?=[^\0].{3}\0{4}|\0[^\0].{2}\0{4})", re.DOTALL)
"""Eight bytes that may be a length."""


def read(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the scalars from an offset on, and the offset of the next read.

    A record that is not complete yet is left for the next time. Records whose checksum is wrong are
    left out; after damage the next whole record is looked for.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    scalars: list[Scalar] = []
    at = 0
    while at + _HEADER <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD or not _is_intact(data, at, 8):
            at = _next_record(data, at + 1)
            continue
        end = at + _HEADER + length + 4
        if end > len(data):
            # Either a record that is being written, or damage to a length and its checksum.
            break
        record = data[at + _HEADER : end - 4]
        try:
            found = list(_scalars(record))
        except (ValueError, struct.error):
            found = []
        if found and _is_intact(data, at + _HEADER, length):
            scalars += found
        at = end
    return scalars, offset + at


def _scalars(event: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an event."""
    summaries = parts(event, 5)
    if not summaries:
        return
    (seconds,) = struct.unpack("<d", b"".join(parts(event, 1)))
    step = float(dict(fields(event)).get(2, 0))
    for value in parts(summaries[0], 1):
        tags = parts(value, 1)
        simple = parts(value, 2)
        tensors = parts(value, 8)
        number = None
        if simple:
            (number,) = struct.unpack("<f", simple[0])
        elif tensors:
            number = _number(tensors[0])
        if tags and number is not None:
            yield Scalar(tags[0].decode(), step, seconds, number)


def _number(tensor: bytes) -> float | None:
    """Return the number that a tensor without dimensions holds, if it is a float."""
    if any(parts(shape, 2) for shape in parts(tensor, 2)):
        return None
    for field, code in ((4, "f"), (4, "d"), (5, "f"), (6, "d")):
        for content in parts(tensor, field):
            if len(content) == struct.calcsize(code):
                return float(struct.unpack(f"<{code}", content)[0])
    return None


def _next_record(data: bytes, at: int) -> int:
    """Return where the next header with a right checksum begins, or where one may be cut off."""
    end = max(at, len(data) - _HEADER + 1)
    for like in _HEADER_LIKE.finditer(data, at):
        start = like.start()
        if start < end and _is_intact(data, start, 8):
            return start
    return end


def _is_intact(data: bytes, start: int, size: int) -> bool:
    """Return whether the masked CRC-32C that follows some bytes is theirs."""
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data[start : start + size]:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (written,) = struct.unpack_from("<I", data, start + size)
    return bool(masked == written)


@cache
def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ 0x82F63B78 if number & 1 else number >> 1
        table.append(number)
    return table
