"""Adopt every command-job file below a folder, and print how many are equal, and why the others are not.

python tools/measure_adoption.py FOLDER          # a checkout of Azure/azureml-examples, say
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudtrain as ct

SIGN = "commandJob.schema.json"


def job_files(folder: Path) -> Iterator[Path]:
    """The files that say they are command jobs."""
    for file in sorted([*folder.rglob("*.yml"), *folder.rglob("*.yaml")]):
        if file.is_file() and SIGN in file.read_text(encoding="utf-8", errors="replace"):
            yield file


def main() -> int:
    """Print one line for each file, and the share."""
    folder = Path(sys.argv[1])
    outcomes: Counter[str] = Counter()
    for file in job_files(folder):
        try:
            found = ct.adopt(file)
        except ct.CloudtrainError as error:
            outcome, why = "refused", error.message
        else:
            outcome = "equal" if found.equal else "different"
            fields_alone = not any(name.endswith("_overrides") for name in found.fields)
            why = "; ".join(f"{item.path}: {item.reason}" for item in found.differences)
            why = why or ("by fields alone" if fields_alone else "with overrides")
        outcomes[outcome] += 1
        print(f"{outcome:10} {file.relative_to(folder)}  {why}")
    total = sum(outcomes.values())
    shares = ", ".join(f"{count} {name} ({100 * count / total:.0f}%)" for name, count in outcomes.most_common())
    print(f"{total} files: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
