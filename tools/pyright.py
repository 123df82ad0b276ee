"""Check the package with pyright, as editors do, and that the types of what it exports are known. Part of `make check`.

    python tools/pyright.py

basedpyright is pyright with its own Node.js, so that nothing is fetched when it runs. Its mode is pyright's `standard`
(pyproject.toml); `pyright` itself prints the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KNOWN = 0.98
"""The share of exported symbols whose type is known and cannot be inferred in two ways."""


def main() -> int:
    """Return the exit code."""
    errors = _run(ROOT, "--level", "error").returncode
    with (
        tempfile.TemporaryDirectory() as elsewhere
    ):  # else the checkout counts as somebody's project
        answer = _run(
            Path(elsewhere), "--outputjson", "--ignoreexternal", "--verifytypes", "cloudtrain"
        )
    report: dict[str, Any] = json.loads(answer.stdout)["typeCompleteness"]
    share = report["completenessScore"]
    counts = report["exportedSymbolCounts"]
    symbols = sum(counts.values())
    print(f"{share:.1%} of {symbols:,} exported symbols have a known type, of at least {KNOWN:.0%}")
    if share >= KNOWN:
        return errors
    print(
        "see `basedpyright --ignoreexternal --verifytypes cloudtrain` from another folder",
        file=sys.stderr,
    )
    return 1


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run basedpyright; show what it prints, unless that is JSON."""
    command = [
        str(Path(sys.executable).with_name("basedpyright")),
        "--pythonpath",
        sys.executable,
        *arguments,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if "--outputjson" not in arguments:
        sys.stdout.write(answer.stdout)
    sys.stderr.write(answer.stderr)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
