"""Measure the budgets: each figure against its reference, in turn, in one run, as ratios of medians.

    python bench/run.py [--json FILE] [--only NAME ...] [--runs N]        (make bench)

Prints one row per budget and writes them as JSON (default: bench.json). Exit code 1 when a budget is exceeded. Absolute
times depend on the machine, so only the ratios are compared. The SageMaker SDK is measured where `make test-parity` has
installed it, and the peer torchx where it is installed:

    python -m venv .venv-torchx && .venv-torchx/bin/pip install -r constraints.txt
    .venv-torchx/bin/pip install torchx==0.7.0 numpy
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from measure import ROOT, Result, Timed, at_most, command, environment, medians, processor_time
from reporting import log_cost, machine_cost, metrics_cost, million_lines, watching_cost

PYTHON = sys.executable
CLOUDTRAIN = str(Path(PYTHON).with_name("cloudtrain"))
TORCHX_VENV = ROOT / ".venv-torchx"
SDK_PYTHON = ROOT / ".venv-sagemaker-v2" / "bin" / "python"
AZURE_PYTHON = ROOT / ".venv-azureml" / "bin" / "python"
CIFAR = str(ROOT / "examples" / "torch_cifar10.yaml")
DIGITS = str(ROOT / "training_scripts" / "digits_ddp" / "job.yaml")


def import_time(runs: int) -> list[Result]:
    """Measure `import cloudtrain`: within 10 ms of bare Python."""
    a, b = medians(command(PYTHON, "-c", "import cloudtrain"), command(PYTHON, "-c", "pass"), runs)
    return [Result("import cloudtrain", a, "bare python", b, a / b, "within 10 ms", a - b <= 0.010)]


REFERENCE = ("-c", "import pydantic, typer")
LIBRARIES = (
    "-c",
    "import typer, yaml\nfrom pydantic import BaseModel\nclass One(BaseModel): field: int",
)
"""What every plan needs of other packages: Typer, PyYAML, and pydantic for one model."""


def help_time(runs: int) -> list[Result]:
    """Measure `cloudtrain --help`."""
    return [at_most("cloudtrain --help", command(CLOUDTRAIN, "--help"), command(PYTHON, *REFERENCE),
                    "import pydantic, typer", factor=1.5, runs=runs)]  # fmt: skip


def plan_time(runs: int) -> list[Result]:
    """Measure a dry run, as a whole process, on this machine and on both clouds; there also against their SDKs' own
    way."""
    python = command(PYTHON, *REFERENCE)
    with tempfile.TemporaryDirectory() as state:
        local = command(CLOUDTRAIN, "submit", DIGITS, "--dry-run", CLOUDTRAIN_STATE_DIR=state)
        cloud = command(CLOUDTRAIN, "plan", CIFAR, "--target", "sagemaker", "--format", "aws-cli",
                        CLOUDTRAIN_STATE_DIR=state)  # fmt: skip
        azure = command(CLOUDTRAIN, "plan", CIFAR, "--target", "azureml", "--format", "az-cli",
                        CLOUDTRAIN_STATE_DIR=state)  # fmt: skip
        floor, base = medians(
            command(PYTHON, *LIBRARIES, PYDANTIC_DISABLE_PLUGINS="__all__"), python, runs
        )
        results = [
            Result(
                "libraries of a plan",
                floor,
                "import pydantic, typer",
                base,
                floor / base,
                "none: not ours",
                True,
            ),
            at_most("dry run", local, python, "import pydantic, typer", factor=3, runs=runs),
            at_most(
                "plan for SageMaker", cloud, python, "import pydantic, typer", factor=3, runs=runs
            ),
            at_most(
                "plan for Azure ML", azure, python, "import pydantic, typer", factor=3, runs=runs
            ),
        ]
        for name, ours, sdk, interpreter, script in (
            ("plan for SageMaker", cloud, "SDK v2", SDK_PYTHON, "bench/sdk_request.py"),
            ("plan for Azure ML", azure, "azure-ai-ml", AZURE_PYTHON, "bench/azure_request.py"),
        ):
            if interpreter.exists():
                a, b = medians(ours, command(str(interpreter), script), max(3, runs // 3))
                results.append(Result(name, a, sdk, b, a / b, "at most 1/8", a <= b / 8))
    return results


def lock_time(runs: int) -> list[Result]:
    """Measure a plan for SageMaker with a uv.lock of 110 and of 500 packages, against the same job without a lock."""
    return [_lock_time(runs, 110, 0.060), _lock_time(runs, 500, 0.200)]


def _lock_time(runs: int, count: int, most: float) -> Result:
    """Measure a plan with a uv.lock of `count` packages, which may take `most` seconds more."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        names = [f"package{number}" for number in range(count - 1)]
        project = (
            f'[project]\nname = "own"\nversion = "0.1"\ndependencies = {json.dumps(names[:8])}\n'
        )
        settings = '[sagemaker]\nrole = "arn:aws:iam::123456789012:role/R"\nbucket = "b-b"\nregion = "eu-west-1"\n'
        files = {"train.py": "import os\n", "cloudtrain.toml": settings}
        timed = []
        for name, more in (
            ("uv.lock", {"uv.lock": _lock_of(names), "pyproject.toml": project}),
            ("none", {}),
        ):
            environment = {"framework": "pytorch", "version": "2.13", "requirements": name}
            fields = {"name": "own", "entry_point": "train.py", "environment": environment,
                      "resources": {"instance_type": "ml.g5.2xlarge"}}  # fmt: skip
            (work / name).mkdir()
            for file, text in {**files, **more, "job.json": json.dumps(fields)}.items():
                (work / name / file).write_text(text)
            argv = (
                CLOUDTRAIN,
                "plan",
                str(work / name / "job.json"),
                "--target",
                "sagemaker",
                "--format",
                "request",
            )
            timed.append(processor_time(argv, CLOUDTRAIN_STATE_DIR=folder))
        a, b = medians(timed[0], timed[1], runs)
        return Result(
            f"plan with {count} packages",
            a,
            "plan without; CPU time",
            b,
            a / b,
            f"within {1000 * most:.0f} ms",
            a - b <= most,
        )


def _lock_of(names: list[str]) -> str:
    """Return a uv.lock as large as that of torch, transformers and datasets: each package has 16 archives, and most are
    needed by a marker, as nvidia's packages are."""

    def archive(name: str, number: int) -> str:
        place = f"https://files.pythonhosted.org/packages/{number % 256:02x}/bb/{'c' * 60}"
        file = f"{name}-1.{number}-cp312-cp312-manylinux_2_28_x86_64.whl"
        more = 'size = 100000, upload-time = "2026-01-01T00:00:00.000Z"'
        return f'{{ url = "{place}/{file}", hash = "sha256:{number:064d}", {more} }}'

    def package(name: str, source: str, needs: str, rest: str) -> str:
        head = f'[[package]]\nname = "{name}"\nversion = "0.1"\nsource = {{ {source} }}\n'
        return f"{head}dependencies = [\n{needs}]\n{rest}\n"

    direct = "".join(f'    {{ name = "{name}" }},\n' for name in names[:8])
    own = package(
        "own", 'virtual = "."', direct, f"\n[package.metadata]\nrequires-dist = [\n{direct}]\n"
    )
    parts = ['version = 1\nrevision = 5\nrequires-python = ">=3.10"\n\n', own]
    for number, name in enumerate(names):
        marker = f"python_full_version >= '3.{number % 9}' and sys_platform == 'linux'"
        others = names[8 + 3 * number : 11 + 3 * number]
        needs = "".join(f'    {{ name = "{other}", marker = "{marker}" }},\n' for other in others)
        wheels = "".join(f"    {archive(name, 20 * number + each)},\n" for each in range(15))
        files = f"sdist = {archive(name, number)}\nwheels = [\n{wheels}]\n"
        parts.append(package(name, 'registry = "https://pypi.org/simple"', needs, files))
    return "".join(parts)


def bundle_time(_: int) -> list[Result]:
    """Measure 5,000 files, 200 MB: against the gzip tar of the SageMaker SDK, and hashing again against reading
    again."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "bundle.json"
        subprocess.run(
            [PYTHON, "bench/bundle.py", "--json", str(report)],
            check=False,
            capture_output=True,
            cwd=ROOT,
        )
        rows = {row["name"]: row["seconds"] for row in json.loads(report.read_text())["rows"]}
    ours, sdk = (
        rows["cloudtrain: read, hash and write"],
        rows["tarfile w:gz, level 9 (SageMaker SDK)"],
    )
    again, read = (
        rows["cloudtrain: read and hash, from the disk"],
        rows["plain read, from the disk"],
    )
    data, hashed = (
        rows["data: cloudtrain reads, hashes, searches; CPU"],
        rows["data: read and hash with hashlib; CPU"],
    )
    return [
        Result(
            "bundle 200 MB", ours, "SDK's gzip tar", sdk, ours / sdk, "at most 1/3", ours <= sdk / 3
        ),
        Result(
            "unchanged bundle", again, "reading its bytes", read, again / read, "reported", True
        ),
        Result(
            "bundle of data",
            data,
            "hashing its bytes",
            hashed,
            data / hashed,
            "at most 1.3 x",
            data <= 1.3 * hashed,
        ),
    ]


def launch_time(runs: int) -> list[Result]:
    """Measure until the first training step is done, with two processes: `cloudtrain submit` against bare torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "src").mkdir()
        (work / "src" / "first_step.py").write_text((ROOT / "bench" / "first_step.py").read_text())
        job = work / "job.json"
        mark = work / "mark"
        fields = {"name": "first-step", "source_dir": "src", "entry_point": "first_step.py",
                  "hyperparameters": {"mark": str(mark)}, "distribution": {"type": "torch"}}  # fmt: skip
        job.write_text(json.dumps(fields))

        def until_mark(*argv: str) -> Timed:
            def once() -> float:
                mark.unlink(missing_ok=True)
                start = time.time()
                path = f"{Path(argv[0]).parent}{os.pathsep}{os.environ['PATH']}"
                env = environment(
                    CLOUDTRAIN_STATE_DIR=str(work / "state"), OMP_NUM_THREADS="1", PATH=path
                )
                subprocess.run(argv, check=True, capture_output=True, env=env, cwd=work / "src")
                return float(mark.read_text()) - start

            return once

        torchrun = str(Path(PYTHON).with_name("torchrun"))
        script = str(work / "src" / "first_step.py")
        bare = until_mark(torchrun, "--nproc-per-node", "2", script, "--mark", str(mark))
        ours = until_mark(CLOUDTRAIN, "submit", str(job), "--processes-per-instance", "2")
        results = [at_most("first step", ours, bare, "bare torchrun", factor=1.10, runs=runs)]
        torchx = TORCHX_VENV / "bin" / "torchx"
        if torchx.exists():
            peer = until_mark(str(torchx), "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2",
                              "--script", "first_step.py", "--", "--mark", str(mark))  # fmt: skip
            a, b = medians(ours, peer, runs)
            results.append(
                Result("first step", a, "torchx run -s local_cwd", b, a / b, "reported", True)
            )
        return results


def first_line_time(runs: int) -> list[Result]:
    """Measure until the script's first line is on the screen: `cloudtrain submit` against bare torchrun. The minimum of
    the turns counts, because other processes can only delay a line."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "src").mkdir()
        # in one piece
        (work / "src" / "first_line.py").write_text("import os\nos.write(1, b'first line\\n')\n")
        fields = {"name": "first-line", "source_dir": "src", "entry_point": "first_line.py",
                  "distribution": {"type": "torch"}}  # fmt: skip
        (work / "job.json").write_text(json.dumps(fields))

        def until_line(*argv: str) -> float:
            start = time.perf_counter()
            path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
            env = environment(
                CLOUDTRAIN_STATE_DIR=str(work / "state"), OMP_NUM_THREADS="1", PATH=path
            )
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd=work
            )
            assert process.stdout is not None
            with process.stdout as lines:
                found = next(time.perf_counter() for line in lines if b"first line" in line)
                lines.read()
            assert process.wait() == 0
            return found - start

        torchrun = str(Path(PYTHON).with_name("torchrun"))
        bare_argv = (torchrun, "--nproc-per-node", "2", "src/first_line.py")
        ours_argv = (CLOUDTRAIN, "submit", "job.json", "--processes-per-instance", "2")
        turns = [(until_line(*ours_argv), until_line(*bare_argv)) for _ in range(runs + 1)]
        ours, bare = (min(times) for times in zip(*turns, strict=True))
        return [
            Result(
                "first line",
                ours,
                "bare torchrun",
                bare,
                ours / bare,
                "within 0.3 s",
                ours - bare <= 0.3,
            )
        ]


def fork_time(runs: int) -> list[Result]:
    """Measure a whole job of two processes on real data, from the command to its exit code: forked ranks against
    torchrun's."""
    with tempfile.TemporaryDirectory() as state:
        argv = (CLOUDTRAIN, "submit", DIGITS, "--processes-per-instance", "2", "--launcher")
        forked, usual = (
            command(*argv, name, CLOUDTRAIN_STATE_DIR=state) for name in ("fork", "torchrun")
        )
        return [at_most("launch fork", forked, usual, "launch torchrun", factor=0.7, runs=runs)]


def listing_time(runs: int) -> list[Result]:
    """Measure `ps` with 10,000 runs in the store against `ps` with 10."""
    with tempfile.TemporaryDirectory() as folder:
        stores = {count: Path(folder) / str(count) for count in (10, 10_000)}
        for count, state in stores.items():
            _fill_store(state, count)
        many, few = (
            command(CLOUDTRAIN, "ps", CLOUDTRAIN_STATE_DIR=str(stores[n])) for n in (10_000, 10)
        )
        return [at_most("ps with 10,000 runs", many, few, "ps with 10 runs", factor=2, runs=runs)]


PAGE = """
import asyncio, sys, time
from cloudtrain.page.feed import Feed
from cloudtrain.page.details import Listing

listing = Listing()
listing.runs(newest=0)  # as when the page starts
before = time.process_time()
packed = listing.packed()
print(time.process_time() - before, file=sys.stderr)
assert len(packed.data) > 10_000

async def follow(stream):
    async for _ in stream:
        pass

async def idle():
    feed = Feed()
    pages = [asyncio.create_task(follow(feed.events())) for _ in range(50)]
    await asyncio.sleep(5)  # the first looks read what the store holds
    before = time.process_time()
    await asyncio.sleep(20)
    print((time.process_time() - before) / 20, file=sys.stderr)
    for page in pages:
        page.cancel()
    feed.close()

asyncio.run(idle())
"""
"""Prints the seconds that the list of all runs takes, and the share of a core of 50 pages that wait."""


def page_cost(runs: int) -> list[Result]:
    """Measure the page's server with 10,000 runs, in processor time: 0.15 s for the whole list, and 0.5% of a core
    while 50 pages wait and nothing happens."""
    with tempfile.TemporaryDirectory() as folder:
        _fill_store(Path(folder), 10_000)
        env = environment(CLOUDTRAIN_STATE_DIR=folder)
        lists = []
        shares = []
        for _ in range(min(runs, 3)):
            done = subprocess.run([PYTHON, "-c", PAGE], check=True, capture_output=True, text=True, env=env, cwd=ROOT)  # fmt: skip
            spent, share = map(float, done.stderr.split())
            lists.append(spent)
            shares.append(share)
    whole = statistics.median(lists)
    idle = 100 * statistics.median(shares)
    return [
        Result("page, 10,000 runs", whole, "limit: 0.15 s", 0.15, whole / 0.15, "at most 0.15 s", whole <= 0.15),
        Result("50 pages, 100 s idle", idle, "0.5% of a core", 0.5, idle / 0.5, "at most 0.5%", idle <= 0.5),
    ]  # fmt: skip


def browser_times(runs: int) -> list[Result]:
    """Measure the page in Chromium: from a click, 0.4 s until the newest of 10,000 runs are on the screen and 0.8 s
    until all are in the list; 0.1 s until any place of a log of 1,000,000 lines is on the screen."""
    import pages

    if not pages.has_browser:
        return []
    with tempfile.TemporaryDirectory() as folder:
        _fill_store(Path(folder, "many"), 10_000)
        times = pages.list_times(Path(folder, "many"), max(runs, 9))
        first, whole = (statistics.median(part) for part in zip(*times, strict=True))
        state = million_lines(Path(folder))
        (run,) = (state / "runs").iterdir()
        places = statistics.quantiles(pages.log_times(state, run.name), n=10)[-1]
    return [
        Result("10,000 runs: a screen", first, "limit; from the click", 0.4, first / 0.4, "at most 0.4 s", first <= 0.4),
        Result("10,000 runs: all", whole, "limit; from the click", 0.8, whole / 0.8, "at most 0.8 s", whole <= 0.8),
        Result("9 of 10 places in log", places, "limit", 0.1, places / 0.1, "at most 0.1 s", places <= 0.1),
    ]  # fmt: skip


def beside_others(runs: int) -> list[Result]:
    """Measure the page against TensorBoard and trackio, with the same scalars: at most 0.7 of their time, and no more
    memory."""
    import pages

    found = pages.beside_others(min(runs, 3))
    ours = found.pop("cloudtrain")
    kinds = (
        ("page: first answer", 1.0, 0.7),
        ("page: first curve", 1.0, 0.7),
        ("page: memory in GB", 1e9, 1.0),
    )
    results = []
    for name, theirs in found.items():
        for (what, unit, limit), mine, other in zip(kinds, ours, theirs, strict=True):
            ratio = mine / other
            verdict = (ratio, f"at most {limit:g} x", ratio <= limit)
            results.append(Result(what, mine / unit, name, other / unit, *verdict))
    return results


def scaling(_: int) -> list[Result]:
    """Measure how the processor time of a check grows with each thing of which a user may have thousands."""
    import scaling as cases

    results = []
    for name in cases.CASES:
        times, slope = cases.measure(name)
        size = f"{cases.SIZES[0]:,} of {cases.SIZES[-1]:,}; exponent"
        limit = f"at most {cases.LIMIT}"
        results.append(
            Result(name[:22], times[-1], size, times[0], slope, limit, slope <= cases.LIMIT)
        )
    return results


def _fill_store(state: Path, count: int) -> None:
    import sqlite3

    from cloudtrain.lifecycle.store.schema import open_store
    from cloudtrain.plans.progress import MetricSummary
    from cloudtrain.system.files import STORE_FILE

    with open_store(state) as store:
        salt = store.salt
    trend = tuple(1 / step for step in range(1, 33))
    summary = MetricSummary(
        "loss", "runtime", 0, True, 32, 1.0, trend[-1], 32.0, trend[-1], 32.0, trend
    )
    main = json.dumps(summary._asdict())
    db = sqlite3.connect(state / STORE_FILE)
    rows = [
        (i + 1, f"job-{i:08d}-1", "local", "here", f"job{i % 50}", f"{i:064d}", "me@here", salt, 1, "reported",
         "succeeded", None, 1e9 + i, 1e9 + i, 1e9 + i + 60, main)
        for i in range(count)
    ]  # fmt: skip
    with db:
        columns = "seq name target place job_name key submitter store counter stage state reason created started ended main"
        into = f"runs ({', '.join(columns.split())}) VALUES ({', '.join('?' * 16)})"
        db.executemany(f"INSERT INTO {into}", rows)
    db.close()


BUDGETS: dict[str, Callable[[int], list[Result]]] = {
    "import": import_time,
    "help": help_time,
    "plan": plan_time,
    "lock": lock_time,
    "ps": listing_time,
    "page": page_cost,
    "browser": browser_times,
    "peers": beside_others,
    "launch": launch_time,
    "line": first_line_time,
    "fork": fork_time,
    "bundle": bundle_time,
    "metrics": metrics_cost,
    "machine": machine_cost,
    "watching": watching_cost,
    "log": log_cost,
    "scaling": scaling,
}


def main() -> int:
    """Measure, print, write. Return 1 when a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=ROOT / "bench.json", metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    results: list[Result] = []
    print(f"{'what':22} {'ours':>9}  {'reference':26} {'':>9} {'ratio':>7}  limit")
    for name in options.only:
        for result in BUDGETS[name](options.runs):
            results.append(result)
            verdict = "" if result.ok else "  EXCEEDED"
            print(
                f"{result.name:22} {result.ours_s:8.3f}s  {result.reference:26} {result.reference_s:8.3f}s "
                f"{result.ratio:6.2f}x  {result.limit}{verdict}",
                flush=True,
            )
    options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
