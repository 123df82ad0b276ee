"""Measure what a run's own measurements cost: its metrics, the looks at its machine, its watches and its log."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT, Result, environment, processor_time

PYTHON = sys.executable
CLOUDTRAIN = str(Path(PYTHON).with_name("cloudtrain"))


REPORTING = """
import sys, time
from cloudtrain.runtime import report
def compute(report):
    began = time.thread_time()
    for step in range(1, 3001):
        report(step=step, total=3000, loss=0.5)
    return time.thread_time() - began
report(step=0)
time.sleep(0.7)
compute(report)
print(compute(report) / 3, file=sys.stderr)
"""
"""Prints the seconds of processor time of 1,000 calls."""

READING = """
import sys, time
from cloudtrain.runtime.metrics_file import MetricWriter
from cloudtrain.signals.rows import MetricRows, read_files
folder = sys.argv[1] + "/metrics"
if sys.argv[2] == "write":
    writer = MetricWriter(folder, "runtime", "rank0")
    for step in range(500_000):
        writer.add({"step": step, "loss": 1 / (step + 1), "accuracy": 0.5}, time.time())
        if step % 10_000 == 0:
            writer.flush()
    writer.flush()
else:
    before = time.process_time()
    rows = MetricRows(read_files(folder))
    found = rows.columns() if sys.argv[2] == "columns" else list(rows)
    spent = time.process_time() - before
    # what getrusage has as the maximum begins with that of the process that started this one
    lines = open("/proc/self/status").read().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    print(spent, int(peak.split()[1]) / 1024, file=sys.stderr)
"""
"""Writes a million rows, or prints the seconds and the megabytes that reading them takes."""


def metrics_cost(runs: int) -> list[Result]:
    """Measure `runtime.report` and the reading of a million rows, in processor time: at most 20 us a call on one rank
    and on eight, 0.5 s and 150 MB for columns, 1.5 s and 400 MB for dictionaries."""
    results = []

    def output(code: str, *argv: str, **env: str) -> list[float]:
        argv = (PYTHON, "-c", code, *argv)
        done = subprocess.run(
            argv, check=True, capture_output=True, text=True, env=environment(**env), cwd=ROOT
        )
        return [float(word) for word in done.stderr.split()]

    with tempfile.TemporaryDirectory() as folder:
        for world_size in ("1", "8"):
            env = {
                "RANK": "0",
                "WORLD_SIZE": world_size,
                "LOCAL_WORLD_SIZE": world_size,
                "LOCAL_RANK": "0",
            }
            times = [output(REPORTING, CLOUDTRAIN_RUN_DIR=folder, **env)[0] for _ in range(runs)]
            spent = statistics.median(times)
            results.append(Result(f"1,000 reports, 1 of {world_size}", spent, "2% of a second", 0.02, spent / 0.02,
                                  "at most 20 us a call", spent <= 0.02))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        output(READING, folder, "write")
        for form, limit, megabytes in (("columns", 0.5, 150), ("dictionaries", 1.5, 400)):
            figures = [output(READING, folder, form) for _ in range(runs)]
            spent = statistics.median(seconds for seconds, _ in figures)
            memory = max(size for _, size in figures)
            results.append(Result(f"1,000,000 rows, {form}", spent, f"{memory:.0f} of {megabytes} MB", limit, spent / limit,
                                  f"at most {limit} s, {megabytes} MB", spent <= limit and memory <= megabytes))  # fmt: skip
    return results


WATCHING = """
import sys, time
from cloudtrain.runtime.machine import Machine
from cloudtrain.runtime.machine_watch import EVERY, MachineWatch, written_folders
watch = MachineWatch(Machine(written_folders(), library=sys.argv[2]), folder=sys.argv[1] + "/metrics")
spent = 0.0
for number in range(51):
    time.sleep(0.1)
    before = time.thread_time()
    watch.look(1.7e9 + EVERY * number)
    if number:
        spent += time.thread_time() - before
print(spent / 50 / EVERY, file=sys.stderr)
"""
"""Prints the share of a core that the looks at a machine take. Each wakes up from a sleep."""


def machine_cost(runs: int) -> list[Result]:
    """Measure the looks at a machine with 8 GPUs, which one thread of each machine takes: at most 0.1% of a core. The
    ranks take no part in it, so their number does not matter."""
    source = ROOT / "tests" / "runtime" / "fake_nvml.c"
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "libnvidia-ml.so.1"))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        shares = []
        for _ in range(runs):
            argv = (PYTHON, "-c", WATCHING, folder, library)
            env = environment(FAKE_NVML_GPUS="8", CLOUDTRAIN_RUN_DIR=folder)
            done = subprocess.run(
                argv, check=True, capture_output=True, text=True, env=env, cwd=ROOT
            )
            shares.append(float(done.stderr))
    spent = 1000 * statistics.median(shares)
    return [Result("machine, 1,000 s", spent, "0.1% of a core", 1.0, spent, "at most 0.1%", spent <= 1.0)]  # fmt: skip


WATCHED_RUN = """
import os, subprocess, sys, time
from cloudtrain.runtime.machine_watch import start_watch, written_folders
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.hangs import RunWatch
from cloudtrain.targets.local.processes import Exits, RankTable
rank = "import sys, time; from cloudtrain.runtime import report; report(step=1); sys.stdin.read()"
own = {"CLOUDTRAIN_RUN_DIR": os.getcwd(), "CLOUDTRAIN_RUN_TOKEN": "supervised", "WORLD_SIZE": "8"}
ranks = []
for number in range(8):
    env = {**os.environ, **own, "RANK": str(number), "LOCAL_RANK": str(number)}
    ranks.append(subprocess.Popen([sys.executable, "-c", rank], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
while len([name for name in os.listdir(".") if name == "ranks"]) == 0 or len(os.listdir("ranks")) < 24:
    time.sleep(0.1)
watch = RunWatch(RunFolder("."), RankTable(Exits()), [])
start_watch(os.path.abspath("metrics"), folders=written_folders())
time.sleep(6)  # what is imported and opened once
before = time.process_time()
time.sleep(20)
print((time.process_time() - before) / 20, file=sys.stderr)
for process in ranks:
    process.communicate()
"""
"""Prints the share of a core that a supervisor takes to watch 8 ranks and the machine."""

WATCHING_RANK = """
import sys, time
from cloudtrain.runtime.taking_part import take_part
take_part(1800.0)
time.sleep(8)
before = time.process_time()
time.sleep(20)
print((time.process_time() - before) / 20, file=sys.stderr)
"""
"""Prints the share of a core that a rank takes which nobody watches from outside."""

FIRST_REPORT = """
import sys, types
if sys.argv[1] == "without":
    stub = types.ModuleType("cloudtrain.runtime.taking_part")
    stub.take_part = lambda timeout=None: None
    sys.modules[stub.__name__] = stub
import dataclasses, glob, json, random, tempfile, typing  # as torch has them
import time
before = time.thread_time()
from cloudtrain import runtime
runtime.report(step=1, loss=0.5)
print(time.thread_time() - before, file=sys.stderr)
"""
"""Prints the seconds of processor time until a rank has reported its first step."""


def watching_cost(runs: int) -> list[Result]:
    """Measure all that watches a run of 8 ranks: hangs and the machine, by the supervisor here and by the ranks
    themselves elsewhere, and the sender of notifications. Together at most 0.3% of a core. A rank's first step comes at
    most 20 ms later."""
    few = min(runs, 3)
    with tempfile.TemporaryDirectory() as folder:
        here = [_stderr_of(WATCHED_RUN, Path(folder, str(number))) for number in range(few)]
        there = [_of_eight_ranks(Path(folder, f"ranks{number}")) for number in range(few)]
        sender = _sender_share(Path(folder, "sender"))
        times = {}
        for word in ("with", "without"):
            times[word] = [
                _stderr_of(FIRST_REPORT, Path(folder, f"{word}{number}"), word)
                for number in range(runs)
            ]
    results = []
    for name, shares in (("8 ranks here", here), ("8 ranks elsewhere", there)):
        share = 100 * (statistics.median(shares) + sender)
        limit = "at most 0.3% of a core"
        results.append(
            Result(f"watch {name}", share, "limit, %", 0.3, share / 0.3, limit, share <= 0.3)
        )
    share = 100 * sender
    results.append(
        Result("of it, the sender", share, "limit, %", 0.3, share / 0.3, "in the sum", True)
    )
    late, early = (statistics.median(times[word]) for word in ("with", "without"))
    results.append(
        Result(
            "first step, watched",
            late,
            "without",
            early,
            late / early,
            "within 20 ms",
            late - early <= 0.02,
        )
    )
    return results


def _stderr_of(code: str, folder: Path, *argv: str, **env: str) -> float:
    """Run code in a new folder, which is that of a run, and return the number that it prints."""
    folder.mkdir()
    done = subprocess.run(
        [PYTHON, "-c", code, *argv],
        check=True,
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=str(ROOT), CLOUDTRAIN_RUN_DIR=str(folder), **env),
        cwd=folder,
    )
    return float(done.stderr.split()[-1])


def _of_eight_ranks(folder: Path) -> float:
    """Return the share of a core that 8 ranks take which watch themselves, as on a cloud."""
    folder.mkdir()
    ranks = []
    for rank in map(str, range(8)):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
        env = environment(PYTHONPATH=str(ROOT), AZUREML_RUN_ID="job", TMPDIR=str(folder), **own)
        argv = [PYTHON, "-c", WATCHING_RANK]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True))
    return sum(float(rank.communicate()[1].split()[-1]) for rank in ranks)


def _sender_share(folder: Path) -> float:
    """Return the share of a core that the sender of notifications takes while a run goes on here."""
    import psutil

    (folder / "cloudtrain").mkdir(parents=True)
    (folder / "cloudtrain" / "cloudtrain.toml").write_text('[notify]\ncommand = ["true"]\n')
    source = folder / "src"
    source.mkdir()
    (source / "train.py").write_text("import time\ntime.sleep(600)\n")
    (source / "job.json").write_text('{"name": "idle", "entry_point": "train.py"}')
    env = environment(
        PYTHONPATH=str(ROOT),
        XDG_CONFIG_HOME=str(folder),
        CLOUDTRAIN_STATE_DIR=str(folder / "state"),
    )

    def cloudtrain(*argv: str) -> None:
        argv = (PYTHON, "-m", "cloudtrain", *argv)
        subprocess.run(argv, check=True, capture_output=True, env=env, cwd=source)

    cloudtrain("submit", "job.json", "--detach")
    try:
        senders = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or ()
            if str(folder / "state") in words and "cloudtrain.lifecycle.sender" in " ".join(words):
                senders.append(process)
        (sender,) = senders
        time.sleep(6)
        before = sum(sender.cpu_times()[:2])
        time.sleep(30)
        return (sum(sender.cpu_times()[:2]) - before) / 30
    finally:
        cloudtrain("stop", "last", "--wait")


PRINTING = """
import sys
for step in range(1_000_000):
    sys.stdout.write(f"step {step:7} of 1000000: the loss of this batch is loss={1 / (step + 1):.9f}, going on now\\n")
"""
"""Prints a million lines, 90 MB."""

LOG = """
import sys, time
import cloudtrain as ct
run = ct.runs()[0]
def spent(act):
    before = time.process_time()
    result = act()
    print(time.process_time() - before, file=sys.stderr)
    return result
first = spent(lambda: len(run.metrics()))
assert first == len(run.metrics()) == 1_000_000, first
index = run.log_index(rank=0)
windows = lambda: [index.window(place, 60) for place in range(0, len(index), 10_000)]
assert sum(map(len, spent(windows))) == 6000
assert spent(lambda: index.find("step  999999 ")) == 999_999
"""
"""Prints the seconds of the first read of a log's metrics, of a hundred windows of 60 lines, and of a search."""


def million_lines(folder: Path) -> Path:
    """Run a script that prints a million lines, and return the state folder."""
    Path(folder, "train.py").write_text(PRINTING)
    Path(folder, "job.json").write_text('{"name": "lines", "entry_point": "train.py"}')
    state = Path(folder, "state")
    env = environment(CLOUDTRAIN_STATE_DIR=str(state))
    submit = [CLOUDTRAIN, "submit", f"{folder}/job.json", "--detach"]
    subprocess.run(submit, check=True, capture_output=True, env=env)
    subprocess.run([CLOUDTRAIN, "wait", "last"], check=True, env=env)
    return state


def log_cost(runs: int) -> list[Result]:
    """Measure a log of a million lines, in processor time: 3 us a line of a command that follows, 0.3 s for `--tail 5`,
    4 s for the first `run.metrics()`, and 1.3 x its text on disk."""
    with tempfile.TemporaryDirectory() as folder:
        state = million_lines(Path(folder))
        env = {"CLOUDTRAIN_STATE_DIR": str(state)}
        (run,) = (state / "runs").iterdir()
        files = [*run.glob("output.*"), *(run / "logs").rglob("*")]
        size = sum(file.stat().st_size for file in files if file.is_file())
        text = 1_000_000 * 82
        results = [Result("log of 1,000,000 lines", size / 1e9, "its text; GB on disk", text / 1e9, size / text,
                          "at most 1.3 x", size <= 1.3 * text)]  # fmt: skip

        idle = statistics.median(
            processor_time((CLOUDTRAIN, "logs", "last", "--tail", "0"), **env)()
            for _ in range(runs)
        )
        for name, words, limit, what in (
            ("logs --follow", ("--follow",), 3.0 + idle, "3 us a line"),
            ("logs --tail 5", ("--tail", "5"), 0.3, "0.3 s"),
        ):
            timed = processor_time((CLOUDTRAIN, "logs", "last", *words), **env)
            spent = statistics.median(timed() for _ in range(runs))
            results.append(
                Result(
                    name,
                    spent,
                    f"limit: {what}",
                    limit,
                    spent / limit,
                    f"at most {what}",
                    spent <= limit,
                )
            )

        done = subprocess.run(
            [PYTHON, "-c", LOG], check=True, capture_output=True, text=True, env=environment(**env)
        )
        first, windows, search = map(float, done.stderr.split())
        for name, spent, limit in (
            ("its first metrics", first, 4.0),
            ("100 windows of it", windows, 10.0),
            ("a search in it", search, 2.0),
        ):
            results.append(
                Result(
                    name,
                    spent,
                    "limit; CPU time",
                    limit,
                    spent / limit,
                    f"at most {limit:g} s",
                    spent <= limit,
                )
            )
        return results
