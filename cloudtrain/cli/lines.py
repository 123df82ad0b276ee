"""The printed form of a line of a run's output."""

from __future__ import annotations

import json
import time
from math import isfinite
from typing import NamedTuple

from cloudtrain.core.states import LogLine
from cloudtrain.render.escape import visible_json, visible_output


class LineFormat(NamedTuple):
    """How lines are printed: with which prefix, raw or escaped, or as JSON."""

    prefix: bool = True
    timestamps: bool = False
    as_json: bool = False
    raw: bool = False
    """Print the line unchanged. A terminal obeys the control characters in it."""
    color: bool = False
    """Keep the colours that the line itself contains."""

    def text(self, line: LogLine) -> str:
        """Return the printed form of a line, without the line break. If the text of `line` contains line
        breaks, each part gets the prefix."""
        if self.as_json:
            content = {name: value for name, value in line.__dict__.items() if name != "values"}
            if line.values is not None:
                content["values"] = {name: value if isfinite(value) else None for name, value in line.values.items()}
            return visible_json(json.dumps(content, ensure_ascii=False))
        lead = self.lead(line)
        return "\n".join(lead + part for part in self.parts(line))

    def parts(self, line: LogLine) -> list[str]:
        """Return the text of `line`, split at its line breaks; without `raw`, each part is escaped for a terminal."""
        parts = line.text.split("\n")
        return parts if self.raw else [visible_output(part, color=self.color) for part in parts]

    def lead(self, line: LogLine) -> str:
        """Return the prefix of the line, such as `2026-11-21T08:13:31.250Z [rank 0] `."""
        parts = []
        if self.timestamps:
            parts.append(_utc(line.time))
        if self.prefix:
            parts.append(f"[rank {line.rank}]" if line.rank is not None else f"[instance {line.instance}]")
        return "".join(f"{part} " for part in parts)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
