"""Read the metrics that other libraries wrote in their own formats."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Scalar(NamedTuple):
    """One value of a file."""

    name: str
    step: float | None
    seconds: float | None
    """Since 1970."""
    value: float


# Protobuf messages by number.


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


# Scalars of TensorBoard's event files: records of TFRecord, each a protobuf message `Event`.
#
# Event: 1 wall_time, 2 step, 5 summary. Summary: 1 value. Value: 1 tag, 2 simple_value, 8 tensor.
# TensorProto: 1 dtype, 2 shape, 4 tensor_content, 5 float_val, 6 double_val.
# (tensorflow/core/util/event.proto, summary.proto, tensor.proto.)

MAX_RECORD = 1 << 28
_RECORD_HEADER = 12
"""Bytes before a record's data: its length and the checksum of that."""
_LIKE_HEADER = re.compile(rb"(?=[^\0].{3}\0{4}|\0[^\0].{2}\0{4})", re.DOTALL)
"""Eight bytes that may be a length."""


def read_events(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the scalars from an offset on, and the offset of the next read.

    A record that is not complete yet is left for the next time. Records whose checksum is wrong are
    left out; after damage the next whole record is looked for.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    scalars: list[Scalar] = []
    at = 0
    while at + _RECORD_HEADER <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD or not _is_intact(data, at, 8):
            at = _next_record(data, at + 1)
            continue
        end = at + _RECORD_HEADER + length + 4
        if end > len(data):
            # Either a record that is being written, or damage to a length and its checksum.
            break
        with suppress(ValueError, struct.error):
            record = data[at + _RECORD_HEADER : end - 4]
            found = list(_scalars(record))
            # the checksum takes time, and most records hold no scalars
            if found and _is_intact(data, at + _RECORD_HEADER, length):
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
    end = max(at, len(data) - _RECORD_HEADER + 1)
    for like in _LIKE_HEADER.finditer(data, at):
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


# Values of a W&B run that was written offline: `run-ID.wandb`, a LevelDB log of protobuf records.
#
# After 7 bytes come blocks of 32 KiB with chunks: CRC-32, length, kind (1 whole, 2 first, 3 middle,
# 4 last). Record: 2 history. HistoryRecord: 1 item, 2 step. Item: 1 key, 2 nested_key, 16
# value_json.
# (wandb/sdk/internal/datastore.py, wandb/proto/wandb_internal.proto.)

BLOCK = 32_768
_WANDB_START = 7
_CHUNK_HEADER = 7
_WHOLE = 1
_FIRST = 2
_LAST = 4


def read_wandb(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the values from an offset on, and the offset of the next read.

    A record that is not complete yet is left for the next time. After damage the next block is
    read.
    """
    offset = max(offset, _WANDB_START)
    with path.open("rb") as file:
        if file.read(4) != b":W&B":
            return [], 0
        file.seek(offset)
        data = file.read()
    scalars: list[Scalar] = []
    for record, end in _records(data, offset):
        offset = end
        with suppress(ValueError):
            scalars += _values_of(record)
    return scalars, offset


def _records(data: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole records, each with the offset behind it; `data` begins at `offset`."""
    at = 0
    gathered: bytes | None = None
    while at + _CHUNK_HEADER <= len(data):
        left = BLOCK - (offset + at) % BLOCK
        if left < _CHUNK_HEADER:
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        begin = at + _CHUNK_HEADER
        chunk = data[begin : begin + length]
        if length > left - _CHUNK_HEADER or (
            len(chunk) == length and zlib.crc32(data[at + 6 : begin + length]) != crc
        ):
            gathered = None
            at += left
            continue
        if len(chunk) < length:
            return
        at = begin + length
        if kind in (_WHOLE, _FIRST):
            gathered = b""
        if gathered is None:
            continue
        gathered += chunk
        if kind in (_WHOLE, _LAST):
            yield gathered, offset + at
            gathered = None


def _values_of(record: bytes) -> Iterator[Scalar]:
    """Yield the numbers of a record of history."""
    for history in parts(record, 2):
        row = {}
        for item in parts(history, 1):
            names = parts(item, 1) or parts(item, 2)
            for text in parts(item, 16):
                row["/".join(name.decode() for name in names)] = json.loads(text)
        numbers = {name: value for name, value in row.items() if type(value) in (int, float)}
        step = numbers.get("_step")
        seconds = numbers.get("_timestamp")
        for name, value in numbers.items():
            if not name.startswith("_"):
                yield Scalar(name, step, seconds, float(value))


# Values of `metrics.csv`, which Lightning's CSVLogger writes: a row for each step.
#
# The logger writes the file anew when a metric is new, with the old rows first; so the rows that
# were read are counted, and the header says whether an offset is still right.


class CsvPosition(NamedTuple):
    """How far the file was read."""

    offset: int = 0
    rows: int = 0
    header: str = ""


def read_lightning(
    path: Path, position: CsvPosition = CsvPosition()
) -> tuple[list[Scalar], CsvPosition]:
    """Return the values after a position, and the next position. A last line without its end is
    left for the next time."""
    offset, rows, known = position
    with path.open("rb") as file:
        header = file.readline().decode("utf-8", "replace")
        if not header.endswith("\n"):
            return [], position
        size = file.seek(0, io.SEEK_END)
        seen = 0
        if header != known or size < offset:
            offset = len(header.encode())
            seen = rows
        file.seek(offset)
        data = file.read()
    text = data[: data.rfind(b"\n") + 1]
    scalars = []
    names = next(csv.reader([header]))
    table = io.StringIO(text.decode("utf-8", "replace"))
    lines = list(csv.reader(table))[seen:]
    for cells in lines:
        numbers = {}
        for name, cell in zip(names, cells, strict=False):
            with suppress(ValueError):
                numbers[name] = float(cell)
        step = numbers.pop("step", None)
        scalars += [Scalar(name, step, None, value) for name, value in numbers.items()]
    return scalars, CsvPosition(offset + len(text), rows + len(lines), header)
