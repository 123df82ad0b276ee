"""Read the notices of a run. `cloudtrain/runtime/notices.py` describes their form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.plans.progress import Notice
from cloudtrain.runtime.notices import PREFIX, SOURCE
from cloudtrain.system.private import replace_private

_TIME = (int, float)

_TYPES: tuple[Any, ...] = (str, str, _TIME, (int, type(None)), (*_TIME, type(None)))
"""The types of a notice's fields."""


def read_notices(folder: str) -> list[Notice]:
    """Return the notices in a folder for metrics, in the order of their times; none if the folder
    is missing. Of a state of one rank, the newest line counts."""
    notices = []
    for file in Path(folder).glob(f"{SOURCE}.*.jsonl"):
        with suppress(OSError):  # removed meanwhile
            lines = file.read_text("utf-8", "replace").split("\n")
            notices += parse_notices(lines[:-1])
    return newest_of(notices)


def parse_notices(lines: Iterable[str]) -> list[Notice]:
    """Return the notices in lines of a file, or in lines of output behind `[notice]`. Lines of
    another form are left out."""
    notices = []
    for line in lines:
        text = line if line.startswith("{") else line.partition(f"{PREFIX} ")[2]
        with suppress(ValueError, TypeError):
            notice = Notice(**json.loads(text))
            fields = zip(notice, _TYPES, strict=True)
            if all(isinstance(value, types) for value, types in fields):
                notices.append(notice)
    return notices


def write_notices(notices: Iterable[Notice], folder: str) -> None:
    """Write notices that were printed into a folder, instead of those of an earlier reading. Raises
    `OSError`."""
    lines = [json.dumps(notice._asdict()) + "\n" for notice in notices]
    replace_private(f"{folder}/{SOURCE}.log.0.jsonl", "".join(lines).encode("ascii"))


def newest_of(notices: Iterable[Notice]) -> list[Notice]:
    """Return each state once, as its newest line has it but with the time at which it began. Each
    text of an alert is a state of its own."""
    newest: dict[tuple[object, ...], Notice] = {}
    for notice in sorted(notices, key=lambda notice: notice.time):
        state = (notice.kind, notice.rank, notice.text if notice.kind == "alert" else "")
        before = newest.get(state)
        if before is not None and before.ended is None:
            notice = notice._replace(time=before.time)
        newest[state] = notice
    return sorted(newest.values(), key=lambda notice: notice.time)
