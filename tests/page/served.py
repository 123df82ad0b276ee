"""Small runs of this machine for the page, and the programs that a person uses beside it. tools/screenshots.py and
bench/page.py have it too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.deadlines import DEADLINE

ROOT = Path(__file__).parent.parent.parent
DIGITS = str(ROOT / "training_scripts" / "digits_ddp" / "job.yaml")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

SCRIPT = """\
import argparse, json, math, time
from pathlib import Path
from cloudtrain.runtime import report

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--fails", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0.0)
given = parser.parse_args()
for text in json.loads(Path("texts.json").read_text()):
    print("says", text)
for step in range(1, 201):
    loss = 2.3 * math.exp(-step * given.lr / 20) + 0.05 * math.sin(step / 3)
    report(step=step, epoch=step // 50, total=200, loss=loss)
    print(f"step {step} loss={loss:.4f}")
    if step == 120 and given.fails:
        raise RuntimeError("the picture <b>cat_0412.png</b> is broken")
time.sleep(given.sleep)
"""

JOB = {
    "name": "picture-model",
    "source_dir": ".",
    "entry_point": "train.py",
    "distribution": {"type": "none"},
    "hyperparameters": {"lr": 0.1},
    "tags": {"team": "vision"},
}


class Program:
    """The command line, as another process uses it, with runs of its own."""

    def __init__(
        self, folder: Path, *, rates: Sequence[float] = (), texts: Sequence[str] = ()
    ) -> None:
        """`rates` are those of the sweep, `texts` what the script prints at its end."""
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CLOUDTRAIN_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT),
        }
        sweep = {
            "kind": "sweep",
            "name": "rates",
            "job": "job.yaml",
            "search": {"lr": list(rates)},
            "strategy": "grid",
            "objective": {"minimize": "loss"},
        }
        (folder / "cloudtrain.toml").write_text("[local]\nslots = 1\n", "utf-8")
        (folder / "train.py").write_text(SCRIPT, "utf-8")
        (folder / "job.yaml").write_text(json.dumps(JOB), "utf-8")
        (folder / "sweep.yaml").write_text(json.dumps(sweep), "utf-8")
        (folder / "texts.json").write_text(json.dumps(texts), "utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cloudtrain", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Return what a command prints."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, output
        return output

    def submit(self, job: str, *arguments: str) -> str:
        """Return the name of the new run."""
        return str(json.loads(self("submit", job, "--detach", "--json", *arguments))["name"])

    def wait(self, name: str, code: int = 0) -> None:
        self("wait", name, code=code)

    @contextmanager
    def page(self, port: str = "0") -> Iterator[str]:
        """Serve the page, and yield the link that opens it."""
        process = self.start("ui", "--no-browser", "--port", port)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate()
