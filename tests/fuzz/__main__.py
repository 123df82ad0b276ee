"""Fuzzing of the commands that read files and send nothing: `check`, `plan` in all its formats, `submit --dry-run`.

    python -m tests.fuzz                          20,000 cases of seed 1
    python -m tests.fuzz --seed 7 --cases 100000
    python -m tests.fuzz --seed 7 --case 4711     shows one case: its files, its command line, what it left

A right job (examples, training scripts, golden cases) is changed at random in its data, its bytes, its settings and on
the command line, and run by the real command. A traceback, an exit code that is not documented, an error without a code
or a hint, output that is not what its format promises, and too much time or memory are faults. The same seed and number
give the same case. Exit code 1 where there was a fault.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import defaultdict
from itertools import islice
from pathlib import Path

from tests.fuzz.mutations import case_of
from tests.fuzz.oracle import Sandbox, faults, run
from tests.fuzz.pool import Report, run_cases

_SHOWN = 2
"""Cases of a kind of fault that are listed."""


def main() -> int:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--case", type=int, help="show this one alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.case is not None:
        return _show(options.seed, options.case)
    kinds: dict[str, list[int]] = defaultdict(list)
    for item in run_cases(options.seed, range(options.cases), processes=options.processes):
        if not isinstance(item, Report):
            if sys.stderr.isatty():
                print(
                    f"\r{item:,} of {options.cases:,} cases, {len(kinds)} kinds of faults",
                    end="",
                    file=sys.stderr,
                )
            continue
        for fault in item.faults:
            numbers = kinds[_kind(fault)]
            numbers.append(item.number)
            if len(numbers) <= _SHOWN:
                print(
                    f"python -m tests.fuzz --seed {options.seed} --case {item.number}: {fault}",
                    flush=True,
                )
    print(
        f"{options.cases:,} cases of seed {options.seed}: {sum(map(len, kinds.values()))} faults of {len(kinds)} kinds"
    )
    return 1 if kinds else 0


def _kind(fault: str) -> str:
    """Faults that differ in names and numbers only are of one kind."""
    return re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'|[0-9]+|\S*/\S*", "_", fault)[:120]


def _show(seed: int, number: int) -> int:
    case = case_of(seed, number)
    print(f"seed {case.seed}, folder {case.folder}, special files {case.special or 'none'}")
    for name, content in case.files.items():
        print(f"--- {name}\n{content[:6000].decode('utf-8', 'backslashreplace')}")
    print("---\ncloudtrain " + " ".join(map(ascii, case.argv)))
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(case, Sandbox(Path(folder)))
    print(f"exit code {outcome.code}, {outcome.seconds:.2f} s of CPU time")
    print(f"--- stdout\n{outcome.out[:6000]}\n--- stderr\n{outcome.err[:6000]}")
    found = list(islice(faults(case, outcome), _SHOWN))
    print("\n".join(["--- faults", *found]) if found else "--- no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
