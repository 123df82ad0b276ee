"""Write what commands print into pages, and the table of the README's job.

python tools/generate/pages.py [PAGE ...]      write them; `make docs` does, too

A page of PAGES is a reader's session in a new folder. A block below a line such as
"`job.yaml`:" is a file of that name. The lines with `$` of a `console` block are commands, and what stands below one is
what it prints; a line `...` stands for any lines. No command may reach a network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import cloudtrain as ct

ROOT = Path(__file__).parents[2]

PAGES = (
    "start/five-minutes.md",
    "start/your-script.md",
    "guides/where-files-go.md",
    "start/first-run-on-aws.md",
    "start/first-run-on-azure.md",
    "start/first-run-on-slurm.md",
    "guides/spot.md",
    "guides/troubleshooting.md",
    "guides/cost.md",
    "guides/coming-from.md",
    "guides/hugging-face.md",
    "guides/lightning.md",
    "guides/in-a-notebook.md",
)

HOME = "/home/ada"
"""Stands on a page for the reader's home."""

ROLE = "arn:aws:iam::111122223333:role/SageMakerTraining"
WORKSPACE = ct.AzureML(
    subscription_id="11112222-3333-4444-5555-666677778888",
    resource_group="training",
    workspace="vision",
)
"""Accounts that stand for the reader's."""

BLOCK = re.compile(
    r"^(?:`(?P<name>[\w./-]+)`:\n\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
VARYING = re.compile(
    r"(?<=-)[0-9a-f]{8}(?=-\d)|\b[0-9a-f]{12}\b|\b[0-9a-f]{16}\b|\b[0-9a-f]{40,64}\b|(?<=\()\d+ CPUs?, [^)]*(?=\))"
    r"|\d+(\.\d+)? (B|[KM]iB|s)\b"
)
"""What depends on the user, the machine or the version: hashes, sizes and processors."""


class Session(NamedTuple):
    """A new home, with the folder in which a page's commands run."""

    home: Path

    def run(self, command: str) -> str:
        """Return what a command prints on both streams."""
        folder = self.home / "project"
        environ = {
            name: value
            for name, value in os.environ.items()
            if name in ("LANG", "LC_ALL", "TMPDIR")
        }
        path = f"{self.home / 'bin'}:{self.home / '.venv/bin'}:{os.environ['PATH']}"
        environ |= {
            "PATH": path,
            "HOME": str(self.home),
            "COLUMNS": "80",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        printed = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
        ).stdout  # fmt: skip
        if "Traceback" in printed:
            raise SystemExit(f"$ {command}\n{printed}")
        printed = printed.replace(str(self.home), HOME)
        return "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"


def new_session(home: Path) -> Session:
    """Return a session whose Python lies in its home. How a command is wrapped depends on the length
    of the path of Python, which is that of the checkout otherwise."""
    (home / "project").mkdir()
    (home / ".venv").symlink_to(Path(sys.executable).parents[1])
    command = home / "bin" / "cloudtrain"
    command.parent.mkdir()
    python = home / ".venv" / "bin" / "python"
    command.write_text(f"#!{python}\nfrom cloudtrain.cli import command\n\ncommand()\n")
    command.chmod(0o755)
    return Session(home)


def page(text: str) -> str:
    """Return a page with what its commands print now. What differs only in hashes and sizes stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        session = new_session(Path(folder).resolve())
        return BLOCK.sub(lambda block: _block(session, block), text)


def _block(session: Session, block: re.Match[str]) -> str:
    if block["name"]:
        file = session.home / "project" / block["name"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block["text"], "utf-8")
    if block["kind"] != "console":
        return block[0]
    body = COMMAND.sub(
        lambda command: f"$ {command[1]}\n{_output(session, *command.groups())}", block["text"]
    )
    start, end = block.span("text")
    return block[0][: start - block.start()] + body + block[0][end - block.start() :]


def _output(session: Session, command: str, shown: str) -> str:
    printed = session.run(command)
    return shown if _agree(shown, printed) else _elided(shown, printed)


def _agree(shown: str, printed: str) -> bool:
    parts = [
        re.escape(comparable(part)) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    ]
    return re.fullmatch(r"\s*.*\s*".join(parts), comparable(printed)) is not None


def comparable(text: str) -> str:
    """Return a text without what varies, on one line."""
    return " ".join(VARYING.sub("<varies>", text).split())


def _elided(shown: str, printed: str) -> str:
    """Return `printed` without the lines that the page leaves out: as many stand before and after `...`."""
    before, dots, after = shown.partition("...\n")
    if not dots:
        return printed
    lines = printed.splitlines(keepends=True)
    return "".join([*lines[: before.count("\n")], dots, *lines[len(lines) - after.count("\n") :]])


def readme(text: str) -> str:
    """Return the README with its job file, and the table of what becomes of it."""
    job = (ROOT / "examples" / "first.yaml").read_text("utf-8")
    made = "\n".join(("```yaml", f"{job}```", "", *plans(), ""))
    text, count = re.subn(
        r"(?<=makes of it:\n\n)```yaml\n.*?(?=\n\* )",
        lambda _: made,
        text,
        count=1,
        flags=re.DOTALL,
    )
    assert count, "README.md has no place for the job"
    return text


def first_plans() -> dict[str, ct.Plan]:
    """Return the plans of the README's job by the title of the target, each for an account of an example."""
    job = ct.load_job(ROOT / "examples" / "first.yaml")
    # A plan looks into the run store for a free name: an empty one gives everybody the same plans.
    with tempfile.TemporaryDirectory() as folder, _variables(CLOUDTRAIN_STATE_DIR=folder):
        return {
            "this machine": ct.plan(job, ct.Local(instance_count=2, processes_per_instance=8)),
            "SageMaker": ct.plan(job, ct.SageMaker(region="us-west-2", role=ROLE)),
            "Azure ML": ct.plan(job, WORKSPACE),
            "Slurm": ct.plan(job, ct.Slurm(shared_dir="/shared/ada", gpu_type="a100")),
        }


def plans() -> Iterator[str]:
    """Yield a table of the plans of the README's job, one row per target."""
    planned = first_plans()
    requests = [plan.request for plan in planned.values()]
    sent = (
        "nothing; counts shrink to fit a small machine",
        f"one `CreateTrainingJob` of {len(requests[1])} fields",
        f"one job of {len(requests[2]['properties'])} fields",
        f"one `sbatch` script of {len(requests[3]['script'].splitlines())} lines",
    )
    yield "| target | machines | processes | `submit` sends | at most |\n|---|---|---|---|---|"
    for (title, plan), what in zip(planned.items(), sent, strict=True):
        assert not plan.errors
        summary = dict(plan.summary)
        cost = re.search(r"\$[\d,.]+\d", summary.get("cost", ""))
        ranks = re.match(r"\d+", summary["processes"])
        assert ranks
        machines = summary["instances"].replace(" on this machine", "")
        yield f"| {title} | {machines} | {ranks[0]} | {what} | {cost[0] if cost else '-'} |"


@contextmanager
def _variables(**variables: str) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def update(names: Sequence[str]) -> list[str]:
    """Write pages of docs/, and return the names of those that showed something else."""
    files = [ROOT / "docs" / name for name in names]
    texts = [file.read_text("utf-8") for file in files]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(page, texts))
    for file, new in zip(files, made, strict=True):
        file.write_text(new, "utf-8")
    return [name for name, text, new in zip(names, texts, made, strict=True) if text != new]


if __name__ == "__main__":
    print("\n".join(update(sys.argv[1:] or PAGES)))
