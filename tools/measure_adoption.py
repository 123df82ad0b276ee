"""Adopt every job below a folder, and print how many are equal, and why the others differ.

python tools/measure_adoption.py azureml-examples                         # its command-job files
python tools/measure_adoption.py azureml-examples --notebooks PYTHON      # its notebooks that create a command job, run
                                                                          # by an interpreter with the SDK
python tools/measure_adoption.py amazon-sagemaker-examples --notebooks PYTHON --distributed    # distributed notebooks
python tools/measure_adoption.py notebooks/sagemaker --notebooks PYTHON --training             # all that train
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudtrain as ct

SIGN = re.compile(
    r"(command|sweep)Job\.schema\.json|\A(?![\s\S]*^\$schema:)(?![\s\S]*^(jobs|trial):)[\s\S]*^command:",
    re.M,
)
"""Matches a file that declares a command job or a sweep, or has a command without declaring a type."""

CREATES = re.compile(r"\bcommand\([\s\S]*create_or_update\(")
OTHER_JOBS = re.compile(r"@(dsl\.)?pipeline\b|automl\.|load_component\(")
"""Marks that the first job of a notebook is of another kind."""

DISTRIBUTED = r"smdistributed|torch_distributed|pytorchddp|pytorchxla|parameter_server|multi_worker_mirrored|[\"']mpi|Torchrun"
"""Words of which the code of a distributed notebook has one."""


def job_files(folder: Path) -> Iterator[Path]:
    """Yield the files that are command jobs."""
    for file in sorted([*folder.rglob("*.yml"), *folder.rglob("*.yaml")]):
        if file.is_file() and SIGN.search(file.read_text(encoding="utf-8", errors="replace")):
            yield file


TRAINING = r"\.(fit|train)\(|create_training_job|create_hyper_parameter_tuning_job"


def notebooks(folder: Path, sign: str | None) -> Iterator[Path]:
    """Yield the notebooks whose text matches `sign`; without one, those that create a command job of Azure ML."""
    for file in sorted(folder.rglob("*.ipynb")):
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        if sign is not None:
            chosen = re.search(sign, text.replace('\\"', '"'))
        else:
            chosen = None if OTHER_JOBS.search(text) else CREATES.search(text)
        if chosen:
            yield file


def main() -> int:
    """Print one line for each file, and the share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--notebooks", metavar="PYTHON", help="adopt notebooks, executed by this interpreter"
    )
    parser.add_argument(
        "--distributed", action="store_true", help="those of SageMaker's that are distributed"
    )
    parser.add_argument("--training", action="store_true", help="those of SageMaker's that train")
    given = parser.parse_args()
    sign = DISTRIBUTED if given.distributed else TRAINING if given.training else None
    files = notebooks(given.folder, sign) if given.notebooks else job_files(given.folder)
    outcomes: Counter[str] = Counter()
    for file in files:
        outcome, why = outcome_of(file, given.notebooks)
        outcomes[outcome] += 1
        print(f"{outcome:10} {file.relative_to(given.folder)}  {why}", flush=True)
    total = sum(outcomes.values())
    shares = ", ".join(
        f"{count} {name} ({100 * count / total:.0f}%)" for name, count in outcomes.most_common()
    )
    print(f"{total} files: {shares}")
    return 0


def outcome_of(file: Path, python: str | None) -> tuple[str, str]:
    """Return `equal`, `different`, or `refused`, and the reason. `no request`: the script creates no training job
    here."""
    try:
        found = ct.adopt(file, execute=python is not None, python=python)
    except ct.CloudtrainError as error:
        return ("no request" if error.code == "CT984" else "refused"), error.message
    why = "; ".join(f"{item.path}: {item.reason}" for item in found.differences)
    if not why:
        by_fields = not any(name.endswith("_overrides") for name in found.fields)
        why = "by fields alone" if by_fields else "with overrides"
    return ("equal" if found.equal else "different"), why


if __name__ == "__main__":
    sys.exit(main())
