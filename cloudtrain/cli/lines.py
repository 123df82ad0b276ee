"""One line of a run's output, as it is printed."""

from __future__ import annotations

import json
import time
from math import isfinite
from typing import NamedTuple

from cloudtrain.core.states import LogLine
from cloudtrain.render.escape import visible_json, visible_output


class LineFormat(NamedTuple):
    """What stands before a line, or JSON instead of a line."""

    prefix: bool = True
    timestamps: bool = False
    as_json: bool = False
    raw: bool = False
    """As the run wrote it: a terminal obeys what it finds there."""
    color: bool = False
    """With the colours of the line itself."""

    def text(self, line: LogLine) -> str:
        """Return the line, without its end, as it is printed. A service may send several as one; each gets what
        stands before it."""
        if self.as_json:
            content = {name: value for name, value in line.__dict__.items() if name != "values"}
            if line.values is not None:
                content["values"] = {name: value if isfinite(value) else None for name, value in line.values.items()}
            return visible_json(json.dumps(content, ensure_ascii=False))
        lead = self.lead(line)
        return "\n".join(lead + part for part in self.parts(line))

    def parts(self, line: LogLine) -> list[str]:
        """Return the lines of the text as a terminal may show them."""
        parts = line.text.split("\n")
        return parts if self.raw else [visible_output(part, color=self.color) for part in parts]

    def lead(self, line: LogLine) -> str:
        """Return the prefix of the text: `2026-11-21T08:13:31.250Z [rank 0] `."""
        parts = []
        if self.timestamps:
            parts.append(_utc(line.time))
        if self.prefix:
            parts.append(f"[rank {line.rank}]" if line.rank is not None else f"[instance {line.instance}]")
        return "".join(f"{part} " for part in parts)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
