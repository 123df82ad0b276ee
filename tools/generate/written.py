"""Write a file that a program generates; with --check on the command line, compare it instead."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(target: Path, text: str, program: str) -> int:
    """Return the exit code of `program`, the path of the generator: 1 when the file is not this text."""
    if "--check" not in sys.argv[1:]:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return 0
    name = Path(program).name
    print(f"{target.name} is not up to date; run `python tools/generate/{name}`", file=sys.stderr)
    return 1
