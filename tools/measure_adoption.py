"""Adopt every command-job file below a folder, and print how many are equal, and why the others are not.

python tools/measure_adoption.py FOLDER                    # a checkout of Azure/azureml-examples, say
python tools/measure_adoption.py FOLDER --notebooks PY     # its notebooks with `command(...)` instead, run by the
                                                           # interpreter PY, which has azure-ai-ml
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudtrain as ct

SIGN = re.compile(r"commandJob\.schema\.json|\A(?![\s\S]*^\$schema:)(?![\s\S]*^(jobs|trial):)[\s\S]*^command:", re.M)
"""A file says that it is a command job, or has a command and does not say what it is."""

CREATES = re.compile(r"\bcommand\([\s\S]*create_or_update\(")
OTHER_JOBS = re.compile(r"@(dsl\.)?pipeline\b|automl\.|load_component\(")
"""What makes the first job of a notebook another kind of job."""


def job_files(folder: Path) -> Iterator[Path]:
    """The files that are command jobs."""
    for file in sorted([*folder.rglob("*.yml"), *folder.rglob("*.yaml")]):
        if file.is_file() and SIGN.search(file.read_text(encoding="utf-8", errors="replace")):
            yield file


def notebooks(folder: Path) -> Iterator[Path]:
    """The notebooks that create a command job."""
    for file in sorted(folder.rglob("*.ipynb")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if CREATES.search(text) and not OTHER_JOBS.search(text):
            yield file


def main() -> int:
    """Print one line for each file, and the share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--notebooks", metavar="PY")
    given = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for file in notebooks(given.folder) if given.notebooks else job_files(given.folder):
        try:
            found = ct.adopt(file, execute=given.notebooks is not None, python=given.notebooks)
        except ct.CloudtrainError as error:
            outcome, why = "refused", error.message
        else:
            outcome = "equal" if found.equal else "different"
            fields_alone = not any(name.endswith("_overrides") for name in found.fields)
            why = "; ".join(f"{item.path}: {item.reason}" for item in found.differences)
            why = why or ("by fields alone" if fields_alone else "with overrides")
        outcomes[outcome] += 1
        print(f"{outcome:10} {file.relative_to(given.folder)}  {why}", flush=True)
    total = sum(outcomes.values())
    shares = ", ".join(f"{count} {name} ({100 * count / total:.0f}%)" for name, count in outcomes.most_common())
    print(f"{total} files: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
