"""One line of a run's output, as it is printed."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from cloudtrain.states import LogLine


class LineFormat(NamedTuple):
    """What stands before a line, or JSON instead of a line."""

    prefix: bool = True
    timestamps: bool = False
    as_json: bool = False

    def text(self, line: LogLine) -> str:
        """The line without colour and without its end."""
        if self.as_json:
            return json.dumps(line.__dict__, ensure_ascii=False)
        return self.lead(line) + line.text

    def lead(self, line: LogLine) -> str:
        """What stands before the text: `2026-11-21T08:13:31.250Z [rank 0] `."""
        parts = []
        if self.timestamps:
            parts.append(_utc(line.time))
        if self.prefix:
            parts.append(f"[rank {line.rank}]" if line.rank is not None else f"[instance {line.instance}]")
        return "".join(f"{part} " for part in parts)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
