"""Measure the page in Chromium and beside TensorBoard and trackio, which show the same scalars.

    python bench/pages.py            (make bench; python bench/run.py --only browser peers)

TensorBoard and trackio are measured where they are installed, the browser where Playwright and Chromium are:

    python -m venv .venv-peers && .venv-peers/bin/pip install tensorboard==2.21.0 trackio==0.43.0
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.page.served import CHROMIUM  # noqa: E402

PEERS = ROOT / ".venv-peers" / "bin" / "python"
STEPS = 10_000

has_browser = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None


class Shown(NamedTuple):
    """Seconds from the start of a program to its first answer and to the values of a curve, and its memory in bytes."""

    answer: float
    curve: float
    memory: float


# The same scalars, in the form of each program.

REPORTING = f"""
import math
from cloudtrain.runtime import report
for step in range(1, {STEPS} + 1):
    report(step=step, loss=1 / step, accuracy=1 - 1 / step, rate=math.sin(step))
"""

TENSORBOARD = f"""
import math, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(1, {STEPS} + 1):
    values = dict(loss=1 / step, accuracy=1 - 1 / step, rate=math.sin(step))
    rows = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=rows)))
writer.close()
"""

TRACKIO = f"""
import math
from trackio.sqlite_storage import SQLiteStorage
steps = list(range(1, {STEPS} + 1))
rows = [dict(loss=1 / step, accuracy=1 - 1 / step, rate=math.sin(step)) for step in steps]
SQLiteStorage.bulk_log("bench", "run", rows, steps=steps)
"""


class Peer(NamedTuple):
    """A program with a page: how it is started, at which address it answers, and where a curve is."""

    argv: list[str]
    env: dict[str, str]
    address: str
    curve: str
    body: dict[str, str] | None
    """Of the request for the curve, if it is a POST."""


def peers(folder: Path) -> dict[str, Peer]:
    """Write the scalars for each program that is installed, and return how it is started."""
    state = {"CLOUDTRAIN_STATE_DIR": str(folder / "state")}
    (folder / "train.py").write_text(REPORTING)
    (folder / "job.json").write_text(
        '{"name": "bench", "entry_point": "train.py", "distribution": {"type": "none"}}'
    )
    program = [sys.executable, "-m", "cloudtrain"]
    env = {**os.environ, **state}
    submitted = subprocess.run(
        [*program, "submit", str(folder / "job.json"), "--detach", "--json"],
        check=True, capture_output=True, text=True, env=env, cwd=ROOT,
    )  # fmt: skip
    name = json.loads(submitted.stdout)["name"]
    subprocess.run([*program, "wait", name], check=True, capture_output=True, env=env, cwd=ROOT)
    ours = [*program, "ui", "--no-browser", "--port", "8801"]
    found = {
        "cloudtrain": Peer(
            ours, state, "http://127.0.0.1:8801/", f"api/runs/{name}/curves?name=loss", None
        )
    }
    if not PEERS.exists():
        return found

    events = str(folder / "events" / "run")
    subprocess.run([PEERS, "-c", TENSORBOARD, events], check=True, capture_output=True)
    argv = [
        str(PEERS),
        "-m",
        "tensorboard.main",
        "--logdir",
        str(folder / "events"),
        "--port",
        "8802",
    ]
    argv += ["--samples_per_plugin", f"scalars={STEPS}"]
    curve = "data/plugin/scalars/scalars?run=run&tag=loss"
    found["tensorboard"] = Peer(argv, {}, "http://127.0.0.1:8802/", curve, None)

    place = {
        "TRACKIO_DIR": str(folder / "trackio"),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_SERVER_PORT": "8803",
    }
    subprocess.run(
        [PEERS, "-c", TRACKIO], check=True, capture_output=True, env={**os.environ, **place}
    )
    show = "import trackio; trackio.show(project='bench', open_browser=False)"
    body = {"project": "bench", "run": "run"}
    found["trackio"] = Peer(
        [str(PEERS), "-c", show], place, "http://127.0.0.1:8803/", "api/get_logs", body
    )
    return found


@contextmanager
def started(peer: Peer) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and end it with its processes."""
    env = {**os.environ, **peer.env}
    process = subprocess.Popen(peer.argv, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.communicate()


def measure(peer: Peer) -> Shown:
    """Start a program, and ask it until it shows the last value of a curve."""
    start = time.perf_counter()
    with started(peer) as process:
        headers = {}
        if "cloudtrain" in peer.argv:
            assert process.stdout is not None
            token = process.stdout.readline().strip().partition("token=")[2]
            headers = {"Authorization": f"Bearer {token}"}
        _ask_until(lambda: _get(peer.address, headers), b"<")
        answer = time.perf_counter() - start
        # the last value; of a float of four bytes it is 9.9999e-05
        _ask_until(
            lambda: _get(peer.address + peer.curve, headers, peer.body), b"0.0001", b"9.9999"
        )
        curve = time.perf_counter() - start
        tree = psutil.Process(process.pid)
        memory = sum(part.memory_info().rss for part in [tree, *tree.children(recursive=True)])
    return Shown(answer, curve, memory)


def _ask_until(ask: Callable[[], bytes], *wanted: bytes) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            data = ask()
        except (OSError, urllib.error.URLError):
            data = b""
        if any(text in data for text in wanted):
            return
        time.sleep(0.02)
    raise TimeoutError(f"no answer has {wanted!r}")


def _get(address: str, headers: dict[str, str], body: dict[str, str] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, {**kind, **headers})
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def beside_others(runs: int) -> dict[str, Shown]:
    """Return the medians of each program, started in turn."""
    with tempfile.TemporaryDirectory() as folder:
        programs = peers(Path(folder))
        measured: dict[str, list[Shown]] = {name: [] for name in programs}
        for _ in range(runs):
            for name, peer in programs.items():
                measured[name].append(measure(peer))
    return {
        name: Shown(*map(statistics.median, zip(*found, strict=True)))
        for name, found in measured.items()
    }


# In a browser.


@contextmanager
def browser_with(state: Path) -> Iterator[tuple[Any, str]]:
    """Serve the runs of a state folder, and open a browser. Yield it with the page's link."""
    argv = [sys.executable, "-m", "cloudtrain", "ui", "--no-browser", "--port", "0"]
    peer = Peer(argv, {"CLOUDTRAIN_STATE_DIR": str(state)}, "", "", None)
    with (
        started(peer) as process,
        import_module("playwright.sync_api").sync_playwright() as playwright,
    ):
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser, link
        browser.close()


def list_times(state: Path, runs: int) -> list[tuple[float, float]]:
    """Return the seconds from a click on the link until the screen is full of runs, and until all of them are in the
    list, each in a new browser window."""
    times = []
    with browser_with(state) as (browser, link):
        for _ in range(runs):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            page.goto(link)
            page.wait_for_function("() => performance.getEntriesByName('complete').length > 0")
            marks = page.evaluate(
                "() => performance.getEntriesByType('mark').map((one) => [one.name, one.startTime])"
            )
            seconds = {name: start / 1000 for name, start in reversed(marks)}  # the first ones
            times.append((seconds["listed"], seconds["complete"]))
            context.close()
    return times


JUMPS = """async (places) => {
  const box = document.querySelector(".log");
  const frame = () => new Promise(requestAnimationFrame);
  const isShown = (line) => {
    const { top, height } = box.getBoundingClientRect();
    const at = line.getBoundingClientRect().top;
    return at >= top && at < top + height;
  };
  const times = [];
  for (const place of places) {
    const start = performance.now();
    box.scrollTop = place * box.scrollHeight;
    do await frame(); while (![...box.querySelectorAll(".line")].some(isShown));
    times.push((performance.now() - start) / 1000);
  }
  return times;
}"""
"""Scrolls a log to each place, and returns the seconds until its lines are on the screen."""


def log_times(state: Path, name: str) -> list[float]:
    """Return the seconds until the lines of 50 places of a log are on the screen, from one end to the other in leaps."""
    places = [(number * 0.618) % 1 * 0.999 for number in range(1, 51)]
    with browser_with(state) as (browser, link):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(link)
        page.evaluate("(place) => { location.hash = place }", f"#/run/{name}/log")
        page.locator(".log .line").first.wait_for()
        page.wait_for_timeout(500)
        times: list[float] = page.evaluate(JUMPS, places)
    return times


def main() -> int:
    """Print what each program takes."""
    found = beside_others(3)
    print(f"{'':12} {'first answer':>13} {'first curve':>12} {'memory':>9}")
    for name, shown in found.items():
        print(
            f"{name:12} {shown.answer:11.2f} s {shown.curve:10.2f} s {shown.memory / 1e6:6.0f} MB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
