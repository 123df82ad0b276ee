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
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
CLOUDTRAIN = str(Path(PYTHON).with_name("cloudtrain"))
TORCHX_VENV = ROOT / ".venv-torchx"
SDK_PYTHON = ROOT / ".venv-sagemaker-v2" / "bin" / "python"
AZURE_PYTHON = ROOT / ".venv-azureml" / "bin" / "python"
CIFAR = str(ROOT / "examples" / "torch_cifar10.yaml")
DIGITS = str(ROOT / "training_scripts" / "digits_ddp" / "job.yaml")

Timed = Callable[[], float]
"""Runs once and returns the seconds that count."""


@dataclass(frozen=True)
class Result:
    """One budget: median seconds of cloudtrain and of the reference, and the limit on their relation."""

    name: str
    ours_s: float
    reference: str
    reference_s: float
    ratio: float
    limit: str
    ok: bool


def environment(**more: str) -> dict[str, str]:
    """Return this environment with compiled modules kept, as on a user's machine."""
    return {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | more


def command(*argv: str, **env: str) -> Timed:
    """Return the seconds that a command takes as a whole process."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True, env=environment(**env), cwd=ROOT)
        return time.perf_counter() - start

    return once


def processor_time(argv: tuple[str, ...], **env: str) -> Timed:
    """Return the seconds that a command and its own processes compute, however busy the machine is."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, capture_output=True, env=environment(**env), cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return once


def medians(ours: Timed, reference: Timed, runs: int) -> tuple[float, float]:
    """Run both in turn, after one warm-up each, so that a machine that slows down slows both."""
    ours(), reference()
    pairs = [(ours(), reference()) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def at_most(
    name: str, ours: Timed, reference: Timed, what: str, *, factor: float, runs: int
) -> Result:
    """Allow cloudtrain at most `factor` times the reference."""
    a, b = medians(ours, reference, runs)
    return Result(name, a, what, b, a / b, f"at most {factor:g} x", a <= factor * b)


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
    return [
        Result(
            "bundle 200 MB", ours, "SDK's gzip tar", sdk, ours / sdk, "at most 1/3", ours <= sdk / 3
        ),
        Result(
            "unchanged bundle", again, "reading its bytes", read, again / read, "reported", True
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
    from cloudtrain.system.files import STORE_FILE

    with open_store(state) as store:
        salt = store.salt
    db = sqlite3.connect(state / STORE_FILE)
    rows = [
        (i + 1, f"job-{i:08d}-1", "local", "here", f"job{i % 50}", f"{i:064d}", "me@here", salt, 1, "reported",
         "succeeded", None, 1e9 + i, 1e9 + i, 1e9 + i + 60)
        for i in range(count)
    ]  # fmt: skip
    with db:
        columns = "seq name target place job_name key submitter store counter stage state reason created started ended"
        into = f"runs ({', '.join(columns.split())}) VALUES ({', '.join('?' * 15)})"
        db.executemany(f"INSERT INTO {into}", rows)
    db.close()


BUDGETS: dict[str, Callable[[int], list[Result]]] = {
    "import": import_time,
    "help": help_time,
    "plan": plan_time,
    "lock": lock_time,
    "ps": listing_time,
    "launch": launch_time,
    "line": first_line_time,
    "fork": fork_time,
    "bundle": bundle_time,
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
