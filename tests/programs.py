"""Python programs that stand for others on the PATH."""

from __future__ import annotations

import sys
from pathlib import Path


def write_program(path: Path, code: str) -> None:
    """Write a program that the interpreter of the tests runs, wherever that lies: a kernel reads neither spaces nor
    more than 127 letters in a first line, so a shell reads the path, in what is an empty text for Python."""
    path.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n{code}")
    path.chmod(0o755)
