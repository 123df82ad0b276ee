"""Values of a W&B run that was written offline: `run-ID.wandb`, a LevelDB log of protobuf records.

After 7 bytes come blocks of 32 KiB with chunks: CRC-32, length, kind (1 whole, 2 first, 3 middle,
4 last). Record: 2 history. HistoryRecord: 1 item, 2 step. Item: 1 key, 2 nested_key, 16 value_json.
(wandb/sdk/internal/datastore.py, wandb/proto/wandb_internal.proto.)
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from .fields import Scalar, parts

BLOCK = 32_768
_START = 7
_HEADER = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read(path: Path, offset: int = 0) -> tuple[list[Scalar], int]:
    """Return the values from an offset on, and the offset of the next read.

    A record that is not complete yet is left for the next time. After damage the next block is
    read.
    """
    offset = max(offset, _START)
    with path.open("rb") as file:
        if file.read(4) != b":W&B":
            return [], 0
        file.seek(offset)
        data = file.read()
    scalars: list[Scalar] = []
    for record, end in _records(data, offset):
        offset = end
        try:
            scalars += _values(record)
        except ValueError:
            continue
    return scalars, offset


def _records(data: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole records, each with the offset behind it; `data` begins at `offset`."""
    at = 0
    gathered: bytes | None = None
    while at + _HEADER <= len(data):
        left = BLOCK - (offset + at) % BLOCK
        if left < _HEADER:
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        begin = at + _HEADER
        chunk = data[begin : begin + length]
        if length > left - _HEADER or (
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


def _values(record: bytes) -> Iterator[Scalar]:
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
