"""Check job files in a GitHub workflow: what `action.yml` runs.

Prints what `cloudtrain check` finds as GitHub's workflow commands, which mark the lines in a pull request:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands. The exit code is 1 where a check
finds an error. FILES, TARGETS and IGNORE are the action's inputs. It uses the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

NOT_RUN_HERE = ("LO103", "CT541")
"""PyTorch is missing on this machine, which only checks jobs, and asks no account."""


def main() -> int:
    """Check each file for each target."""
    files = matching(os.environ.get("FILES", "").split())
    failed = not files
    if not files:
        print(command("error", f"no job file matches `{os.environ.get('FILES', '')}`"))
    said: set[str] = set()
    for file in files:
        for target in os.environ.get("TARGETS", "").split() or [None]:
            failed |= not check(file, target, os.environ.get("IGNORE", "").split(), said)
    return int(failed)


def matching(patterns: list[str]) -> list[str]:
    """Return the files that match a pattern, without those in hidden folders. A name without wildcards stays
    unchanged."""
    found: dict[str, None] = {}
    for pattern in patterns:
        paths = sorted(Path().glob(pattern)) if re.search(r"[*?[]", pattern) else [Path(pattern)]
        visible = (
            path
            for path in paths
            if not any(part.startswith(".") and part != ".." for part in path.parts[:-1])
        )
        found |= dict.fromkeys(path.as_posix() for path in visible)
    return list(found)


def check(file: str, target: str | None, ignore: list[str], said: set[str]) -> bool:
    """Check a file and print the findings that were not yet `said` for another target. Return whether it has no
    error."""
    options = ["--target", target] if target else []
    # -I: the working directory is the repository that is checked, and nothing in it may stand for a
    # module.
    argv = [
        sys.executable,
        "-I",
        "-m",
        "cloudtrain",
        "check",
        file,
        "--json",
        "--offline",
        *options,
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    all_findings = json.loads(done.stdout) if done.stdout else []
    # here and not by `--ignore`, which refuses codes about the account: a workflow may have none
    accepted = {*NOT_RUN_HERE, *map(str.upper, ignore)}
    findings = [finding for finding in all_findings if finding["code"] not in accepted]
    for line in dict.fromkeys(annotation(finding, file) for finding in findings):
        if line not in said:
            print(line)
        said.add(line)
    if done.returncode and not all_findings:
        print(command("error", "cloudtrain could not check this file; the log says why", file=file))
    errors = sum(finding["level"] == "error" for finding in findings)
    print(
        f"{file}{f' on {target}' if target else ''}: {errors or 'no'} error{'s' if errors != 1 else ''}",
        flush=True,
    )
    return not errors and (bool(all_findings) or done.returncode == 0)


def annotation(finding: dict[str, Any], file: str) -> str:
    """Return the workflow command of a finding, at its own place, else on the job file's first line."""
    place = re.fullmatch(r"(.+):(\d+):(\d+)", finding["place"] or "")
    if place and Path(place[1]).is_file():
        where = {"file": os.path.relpath(place[1]), "line": place[2], "col": place[3]}
    else:
        where = {"file": file, "line": str(finding["line"] or 1)}
    words = [finding["message"], *finding["details"]]
    words += [f"hint: {finding['hint']}"] if finding["hint"] else []
    return command(finding["level"], "\n".join(words), **where, title=finding["code"])


def command(level: str, text: str, **properties: str) -> str:
    """Return a workflow command, escaped as GitHub's own toolkit does it."""
    escaped = {"%": "%25", "\r": "%0D", "\n": "%0A"}
    inner = {**escaped, ":": "%3A", ",": "%2C"}
    shown = ",".join(f"{name}={_escape(value, inner)}" for name, value in properties.items())
    return f"::{level}{' ' if shown else ''}{shown}::{_escape(text, escaped)}"


def _escape(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)


if __name__ == "__main__":
    sys.exit(main())
