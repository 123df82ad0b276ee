"""Measure how the time of a check grows with each thing that a user may have many of: `python bench/scaling.py [NAME ...]`.

Each case is a job that has N of something. The exponent is that of the processor time over three sizes, without what
does not grow: 1 is proportional, 2 is quadratic. Python collects garbage as in a command.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudtrain as ct
from cloudtrain.api import load_job_file
from cloudtrain.errors import CloudtrainError

SETTINGS = """\
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::111122223333:role/Train"
bucket = "my-bucket"
"""
LIMIT = 1.1
SIZES = (4000, 8000, 16000)
TURNS = 3
COLLECTIONS = (200_000, 20, 100)
"""When Python collects garbage in a command: as `cloudtrain.cli.main` sets it."""

_UNREAD = ("CT006",)
"""A job file that is too large is never read, and its time says nothing."""

Case = tuple[dict[str, Any], dict[str, str], list[str]]
"""Fields of a job, files beside it, and overrides."""


def lines(template: str, count: int) -> str:
    """Return the template `count` times, with the number in place of `#`."""
    return "".join(template.replace("#", str(number)) for number in range(count))


def script(text: str, **files: str) -> Case:
    return {}, {"train.py": f"import argparse, torch\n{text}", **files}, []


def fields(**values: Any) -> Case:
    return values, {}, []


def each(count: int, value: object, key: str = "a#") -> dict[str, Any]:
    """Return a mapping of `count` keys. `#` is the number, in the key and in the value."""
    rows = {}
    for number in range(count):
        text = json.dumps(value).replace("#", str(number))
        rows[key.replace("#", str(number))] = json.loads(text)
    return rows


def files(count: int, start: str = "e") -> dict[str, str]:
    return {f"{start}{number // 100}/f{number}.txt": "a" for number in range(count)}


PARSER = "p = argparse.ArgumentParser()\n"
READ = "a = p.parse_args()\n"
OPTION = "p.add_argument('--a#', default='x', required=True)\n"
S3 = {"sagemaker": "s3://b-bucket/#/"}

CASES: dict[str, Callable[[int], Case]] = {
    "imports": lambda n: script(lines("import m#\n", n)),
    "imports of one module": lambda n: script("import own\n" * n, **{"own.py": "x = 1\n" * 500}),
    "statements before `input`": lambda n: script("x = 1\n" * n + "input()\n"),
    "calls": lambda n: script("x = f(a, b=[1])\n" * 9 * n),
    "options and hyperparameters": lambda n: (
        {"hyperparameters": each(n, "1")}, {"train.py": f"import argparse\n{PARSER}{lines(OPTION, n)}{READ}"}, [],
    ),
    "unknown hyperparameters": lambda n: (
        {"hyperparameters": each(n, "1", "b#")}, {"train.py": f"import argparse\n{PARSER}{lines(OPTION, n)}{READ}"}, [],
    ),
    "groups of options": lambda n: script(PARSER + lines("g# = p.add_argument_group('g')\ng#.add_argument('--a#')\n", n) + READ),
    "saves by options": lambda n: script(PARSER + lines(OPTION, n) + READ + lines("torch.save(m, a.a#)\n", n)),
    "files": lambda n: ({}, files(n), []),
    "files and writes": lambda n: ({}, files(n) | {"train.py": lines("open('d#/f', 'w')\n", n)}, []),
    "ignore lines": lambda n: ({}, files(200) | {".cloudtrainignore": lines("x#*y\n", n)}, []),
    "variables": lambda n: fields(environment={"framework": "pytorch", "version": "2.10", "variables": each(n, "b", "A#")}),
    "tags": lambda n: fields(tags=each(n, "b")),
    # A quarter, because of more values no job file is read.
    "inputs": lambda n: fields(inputs=each(n // 4, S3)),
    "references": lambda n: fields(
        inputs=each(n // 4, S3), hyperparameters=each(n // 4, "${{inputs.a#}}"),
    ),
    "metrics": lambda n: fields(metrics=each(n, "x=([0-9.]+)")),
    "arguments": lambda n: fields(arguments=[f"--a{number}" for number in range(n)]),
    "secrets": lambda n: fields(tags=each(n // 16, "hunter2abc#xyz", "a#_token")),
    "overrides": lambda n: ({}, {}, [f"hyperparameters.a{number}=1" for number in range(n)]),
    "overrides of a list": lambda n: ({}, {}, [f"arguments[{number}]=a" for number in range(n)]),
    "unknown fields": lambda n: fields(**each(n, 1, "zz#")),
    "profiles": lambda n: ({}, {"cloudtrain.toml": SETTINGS + lines('[profiles.p#.sagemaker]\nregion = "us-east-1"\n', n // 4)}, []),
    "requirements": lambda n: (
        {"environment": {"framework": "pytorch", "version": "2.10", "requirements": "r.txt"}},
        {"r.txt": lines("package#==1.#\n", n)}, [],
    ),
}  # fmt: skip


def write(case: Case, folder: Path) -> list[str]:
    """Write the job and its files, and return its overrides."""
    values, more, overrides = case
    job = {
        "name": "many", "entry_point": "train.py", "max_runtime": "2h",
        "resources": {"instance_type": {"sagemaker": "ml.p4d.24xlarge"}},
        "environment": {"framework": "pytorch", "version": "2.10"},
    } | values  # fmt: skip
    texts = {
        "cloudtrain.toml": SETTINGS,
        "train.py": "x = 1\n",
        **more,
        "job.yaml": json.dumps(job, indent=1),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return overrides


def seconds(case: Case, turns: int = TURNS) -> float:
    """Return the least processor time that a plan with its checks takes."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        overrides = write(case, Path(folder))
        os.chdir(folder)
        times = []
        try:
            for _ in range(turns):
                gc.collect()  # of the turn before
                start = time.process_time()
                check(overrides)
                times.append(time.process_time() - start)
        finally:
            os.chdir(before)
    return min(times)


def check(overrides: list[str]) -> None:
    try:
        file = load_job_file("job.yaml", overrides)
        ct.plan(file.work, "sagemaker", place_of=file.place_of)
    except CloudtrainError as error:  # a refusal takes time as well
        if error.problems[0].code in _UNREAD:
            raise


def exponent(times: Iterable[float], sizes: Iterable[int]) -> float:
    """Return the slope of the line through the logarithms of sizes and times."""
    points = [
        (math.log(size), math.log(max(took, 1e-4))) for size, took in zip(sizes, times, strict=True)
    ]
    middle = [sum(values) / len(points) for values in zip(*points, strict=True)]
    over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return over / sum((x - middle[0]) ** 2 for x, _ in points)


def measure(name: str) -> tuple[list[float], float]:
    """Return the times of a case by its sizes, and the exponent."""
    none = seconds(CASES[name](0))
    times = [seconds(CASES[name](size)) for size in SIZES]
    # A job that is refused ends earlier than the one with none, so its fixed part may be smaller.
    line = 2 * times[-2] - times[-1]
    fixed = max(0.0, min(none, line))
    return times, exponent([took - fixed for took in times], SIZES)


def main() -> int:
    """Print a row for each case. Return 1 when one grows too fast."""
    gc.set_threshold(*COLLECTIONS)
    is_fine = True
    for name in sys.argv[1:] or CASES:
        times, slope = measure(name)
        is_fine = is_fine and slope <= LIMIT
        shown = " ".join(f"{took:7.3f}s" for took in times)
        print(
            f"{name:30} {shown}  exponent {slope:.2f}{'' if slope <= LIMIT else '  EXCEEDED'}",
            flush=True,
        )
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
