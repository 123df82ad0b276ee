"""The shell scripts of a run on Slurm: one file each, beside this one."""

from __future__ import annotations

import re
from pathlib import Path

_PARTS = re.compile(r"^source (?P<file>\w+)\.sh\n|@(?P<value>[a-z]+)@", re.MULTILINE)


def shell_script(script: str, /, **values: object) -> str:
    """Return the text of `SCRIPT.sh`. `@NAME@` becomes the value with that name. A line `source FILE.sh` becomes the
    text of that file, because the cluster gets one text."""
    text = Path(__file__).with_name(f"{script}.sh").read_text("utf-8")
    return _PARTS.sub(lambda part: shell_script(part["file"]) if part["file"] else str(values[part["value"]]), text)
