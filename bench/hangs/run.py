"""Hang in ten ways under every launcher, and print what was named, and when.

    python bench/hangs/run.py                            all, with a timeout of 90 seconds
    python bench/hangs/run.py --timeout 30 --kinds asleep collective --launchers torchrun fork
    python bench/hangs/run.py --share SEED               two of them, in about a minute

A hang counts as named if the first notice, before the timeout, has the words of its row. The exit
code is 1 if, of any kind or under any launcher, fewer than nine of ten are named. A share has only
two, of which each may be tried once more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cloudtrain.signals.notices import read_notices

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

KINDS = {
    "asleep": r"rank 1: in fall_asleep \(train\.py:\d+\), standing still",
    "data-loader": r"rank 1: in \w+, called by train \(train\.py:\d+\), standing still",
    "collective": r"different collectives: rank 0: waits in all_reduce.*rank 1: waits in broadcast",
    "rank-zero": r"different collectives: rank 0: waits in broadcast.*rank 1: waits in all_reduce",
    "swallowed": r"different collectives: rank 0: waits in all_reduce.*rank 1: waits in broadcast",
    "disk": r"rank 1: in save \(train\.py:\d+\), standing still",
    "stopped": r"rank 1: (.*stopped by a signal|no answer from its machine `n\d`)",
    "slow": r"rank 1: in \w+.* \(train\.py:\d+\), at \d+% CPU",
    "all-wait": r"no rank is outside of a collective: ranks 0, 1: waits in recv",
    "frozen-node": r"rank 1: no answer from its machine `n\d`",
}
"""What is said about each kind. On a node of its own, nobody is left who could see that a rank was
stopped."""

LAUNCHERS: dict[str, Sequence[str]] = {
    "torchrun": ("--set", "distribution.type=torch", "--nproc", "2"),
    "two-instances": ("--set", "distribution.type=torch", "--instances", "2", "--nproc", "1"),
    "fork": ("--set", "distribution.type=torch", "--launcher", "fork", "--nproc", "2"),
    "mpirun": ("--set", "distribution.type=mpi", "--nproc", "2"),
    "deepspeed": ("--set", "distribution.type=deepspeed", "--nproc", "2"),
    "sagemaker": ("--set", "distribution.type=torch", "--emulate", "sagemaker", "--nproc", "2"),
    "azureml": ("--set", "distribution.type=torch", "--emulate", "azureml", "--nproc", "2"),
    "slurm": (
        "--target", "slurm", "--set", "distribution.type=torch",
        "--set", "resources.instance_count=2",
    ),
}  # fmt: skip
_FOR_CLOUDS: dict[str, Sequence[str]] = {
    "sagemaker": (
        "--set",
        "environment.framework=pytorch",
        "--set",
        "resources.instance_type=ml.g5.12xlarge",
    ),
    "azureml": ("--set", "environment.framework=pytorch"),
}

_LATE = 60.0
"""Seconds that a busy machine has to start a run, and to notice what was written."""


class Outcome(NamedTuple):
    """What was named. `seconds` without a step had passed then."""

    kind: str
    launcher: str
    is_named: bool
    seconds: float
    text: str


class Bench:
    """Starts runs with a store of its own."""

    def __init__(self, folder: Path, timeout: float, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._timeout = timeout
        self._environ = {
            **os.environ,
            **environ,
            "CLOUDTRAIN_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
        }

    def hang(self, kind: str, launcher: str) -> Outcome:
        """Start a run that hangs, and return what the first notice says."""
        name = f"{kind}-{launcher}"
        shown = "stopped" if kind == "frozen-node" else kind
        options = ["--set", f"name={name}", "--detach", "--json", *LAUNCHERS[launcher]]
        options += _FOR_CLOUDS.get(launcher, ())
        script = [str(HERE / "train.py"), "--kind", shown, "--timeout", str(self._timeout)]
        answer = self._call("submit", *options, *script)
        if answer.returncode:
            return Outcome(kind, launcher, False, 0.0, answer.stderr.strip().splitlines()[0])
        run = json.loads(answer.stdout)["name"]
        try:
            return self._first_notice(kind, launcher, run)
        finally:
            self._call("stop", run)
            self._call("wait", run)

    def _first_notice(self, kind: str, launcher: str, run: str) -> Outcome:
        deadline = time.monotonic() + self._timeout + _LATE
        while time.monotonic() < deadline:
            time.sleep(1.0)
            for notice in read_notices(str(self._run_folder(launcher, run) / "metrics")):
                match = re.match(r"no step for (\d+) s: ", notice.text)
                if notice.kind not in ("waiting", "stalled") or match is None:
                    continue
                seconds = float(match[1])
                is_named = re.search(KINDS[kind], notice.text) is not None
                return Outcome(
                    kind, launcher, is_named and seconds < self._timeout, seconds, notice.text
                )
        state = self._call("status", run).stdout
        return Outcome(kind, launcher, False, 0.0, f"nothing was named: {state}")

    def _run_folder(self, launcher: str, run: str) -> Path:
        if launcher == "slurm":
            return self._folder / "shared" / "runs" / run
        return self._folder / "state" / "runs" / run

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cloudtrain", *arguments],
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def slurm(folder: Path, *, is_wanted: bool) -> Iterator[dict[str, str]]:
    """Start a cluster for tests, if it is wanted, and yield the variables that find it."""
    if not is_wanted:
        yield {}
        return
    starter = str(ROOT / "tools" / "slurm_cluster.py")
    with tempfile.TemporaryDirectory(prefix="slurm-") as cluster:
        start = [sys.executable, starter, "start", cluster, "3", f"--until={os.getpid()}"]
        subprocess.run(start, check=True, capture_output=True)
        settings = f'[slurm]\nshared_dir = "{folder}/shared"\npython = "{sys.executable}"\n'
        settings += 'rendezvous_host = "127.0.0.1"\n'
        (folder / "cloudtrain.toml").write_text(settings)
        yield {"SLURM_CONF": f"{cluster}/slurm.conf"}


def cells_of(kinds: Sequence[str], launchers: Sequence[str]) -> list[tuple[str, str]]:
    """Return each kind with each launcher that can have it."""
    cells = []
    for launcher in launchers:
        cells += [
            (kind, launcher) for kind in kinds if kind != "frozen-node" or launcher == "slurm"
        ]
    return cells


def share_of(seed: int) -> list[tuple[str, str]]:
    """Return two cells with different launchers. None has a cluster, which has tests of its own."""
    chance = random.Random(seed)
    launchers = chance.sample([name for name in LAUNCHERS if name != "slurm"], 2)
    kinds = chance.sample([kind for kind in KINDS if kind != "frozen-node"], 2)
    return list(zip(kinds, launchers, strict=True))


def hang_all(bench: Bench, cells: Sequence[tuple[str, str]], at_once: int) -> list[Outcome]:
    with ThreadPoolExecutor(at_once) as pool, ThreadPoolExecutor(1) as on_nodes:
        waiting = []
        for cell in cells:
            # the cluster has nodes for one run at a time
            where = on_nodes if cell[1] == "slurm" else pool
            waiting.append(where.submit(bench.hang, *cell))
        return [one.result() for one in waiting]


def show(outcomes: Sequence[Outcome]) -> None:
    print("| kind | launcher | named | after | what was said |")
    print("|---|---|---|---|---|")
    for outcome in outcomes:
        word = "yes" if outcome.is_named else "**no**"
        text = outcome.text.replace("|", "/").replace("\n", " ")
        print(
            f"| {outcome.kind} | {outcome.launcher} | {word} | {outcome.seconds:.0f} s | {text} |"
        )
    named = sum(outcome.is_named for outcome in outcomes)
    print(f"\n{named} of {len(outcomes)} were named before the timeout.", flush=True)


def weak_rows(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the kinds and launchers of which fewer than nine of ten were named."""
    rows: dict[str, list[bool]] = {}
    for outcome in outcomes:
        for name in (outcome.kind, outcome.launcher):
            rows.setdefault(name, []).append(outcome.is_named)
    # of fewer than ten, one may be missed
    return [name for name, named in rows.items() if named.count(False) > max(1, len(named) // 10)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--launchers", nargs="*", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--timeout", type=float, default=90.0, help="of the process group, seconds")
    parser.add_argument("--at-once", type=int, default=4, help="runs at the same time")
    parser.add_argument("--share", metavar="SEED", type=int)
    options = parser.parse_args()
    cells = cells_of(options.kinds, options.launchers)
    if options.share is not None:
        options.timeout = 60.0
        cells = share_of(options.share)
    needs_cluster = any(launcher == "slurm" for _, launcher in cells)
    with tempfile.TemporaryDirectory(prefix="hangs-") as name:
        folder = Path(name)
        with slurm(folder, is_wanted=needs_cluster) as environ:
            bench = Bench(folder, options.timeout, environ)
            outcomes = hang_all(bench, cells, options.at_once)
            show(outcomes)
            if options.share is not None:
                missed = [outcome[:2] for outcome in outcomes if not outcome.is_named]
                outcomes = hang_all(bench, missed, options.at_once)
                if missed:
                    show(outcomes)
                return 0 if all(outcome.is_named for outcome in outcomes) else 1
    weak = weak_rows(outcomes)
    if weak:
        print(f"fewer than nine of ten: {', '.join(weak)}")
    return 1 if weak else 0


if __name__ == "__main__":
    raise SystemExit(main())
