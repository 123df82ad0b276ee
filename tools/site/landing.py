"""The first page of the site: what cloudtrain is, one job, and what becomes of it on each target.

`hooks.py` makes the page when the site is built. Job, plans and status are those of the README.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from pages import first_plans

ROOT = Path(__file__).parents[2]

REHEARSAL = """\
`cloudtrain rehearse` stops a training in the middle, resumes it from its checkpoint, and compares every loss. So you
know that a job survives spot capacity before you pay for it.

[Spot, from start to finish](guides/spot.md){ .md-button }
"""

TILES = (
    (
        "compared",
        "Requests are compared with what the SDKs send, field by field.",
        "reference/tested.md#requests",
    ),
    (
        "exactly once",
        "200 random kills on each of three targets: one run each.",
        "reference/tested.md#exactly-once",
    ),
    ("rehearsed", "An interruption is tried here, and the losses are compared.", "guides/spot.md"),
    (
        "measured",
        "Every figure has a command, a machine and a date.",
        "development/measurements.md",
    ),
)
"""What proves it: a word, a sentence and a page."""

WISHES = (
    ("see it work", "start/five-minutes.md", "Train a real model here, without an account."),
    ("run my own script", "start/your-script.md", "Ranks, packages, data and outputs."),
    (
        "fine-tune a language model",
        "training_scripts/llm_finetune/index.md",
        "All weights, LoRA or QLoRA.",
    ),
    ("run on AWS", "start/first-run-on-aws.md", "From nothing to one small job on SageMaker."),
    ("run on Azure", "start/first-run-on-azure.md", "From nothing to one small job on Azure ML."),
    ("run on Slurm", "start/first-run-on-slurm.md", "Your cluster, or one on this computer."),
    ("know where my files go", "guides/where-files-go.md", "One table for four targets."),
    ("know what it costs", "guides/cost.md", "Before, during and after a run."),
    ("follow or stop a run", "guides/following.md", "Logs, a graceful stop, downloads."),
    ("use spot capacity", "guides/spot.md", "Save, resume, and rehearse the interruption."),
    ("work in a notebook", "guides/in-a-notebook.md", "Every command is a function."),
    ("set up an account", "reference/settings.md", "Everything that cloudtrain.toml can hold."),
    ("choose a tool", "start/which-tool.md", "What others do better, and what this does."),
    (
        "switch from another tool",
        "guides/coming-from.md",
        "torchrun, accelerate, sbatch, the SDKs.",
    ),
    ("find out what is wrong", "guides/troubleshooting.md", "Symptoms, and a command for each."),
)
"""What a visitor wants, where it is, and what is there."""


def landing_page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    readme = (ROOT / "README.md").read_text("utf-8")
    job = (ROOT / "examples" / "first.yaml").read_text("utf-8")
    yield "---\ntitle: cloudtrain\nhide: [navigation, toc]\n---\n"
    yield '<div class="landing" markdown>\n<div markdown>\n\n# One training job, four places to run it\n'
    yield "Your machine, Amazon SageMaker, Azure Machine Learning, Slurm. You see the exact request, its cost and its"
    yield "mistakes before anything is sent.\n"
    yield "```\npip install '.[torch]'\ncloudtrain submit bundled:digits_ddp\n```\n"
    yield "[Five minutes](start/five-minutes.md){ .md-button .md-button--primary }"
    yield "[What has been tested](reference/tested.md){ .md-button }\n\n</div>\n<div markdown>\n"
    yield f'```yaml title="job.yaml"\n{job}```\n\n</div>\n</div>\n\n## What `cloudtrain plan` makes of it\n'
    for title, plan in first_plans().items():
        shown = "\n".join(
            f"{label:<13} {text}" for label, text in plan.summary if label not in ("settings",)
        )
        yield f'=== "{title[0].upper()}{title[1:]}"\n\n' + indent(
            f"```text\n{_elsewhere(shown)}\n```\n", "    "
        )
    yield f'<div class="landing" markdown>\n<div markdown>\n\n## An interruption, before it costs money\n\n{REHEARSAL}'
    yield "\n</div>\n<div markdown>\n\n![The verdict: all values are the same](assets/picture.svg)\n\n</div>\n</div>\n"
    status = re.search(r"^\*\*Status: alpha\.\*\*.*?\n\n", readme, re.MULTILINE | re.DOTALL)
    assert status
    yield f'<div class="status" markdown>\n\n{status[0].replace("](docs/", "](")}</div>\n'
    yield '<div class="tiles" markdown>\n'
    for word, sentence, link in TILES:
        yield f"<div markdown>\n\n**[{word}]({link})**\n\n{sentence}\n\n</div>\n"
    yield "</div>\n\n## I want to ...\n\n" + '<div class="tiles three" markdown>\n'
    for wish, link, sentence in WISHES:
        yield f"<div markdown>\n\n**[{wish}]({link})**\n\n{sentence}\n\n</div>\n"
    yield "</div>\n"


def _elsewhere(text: str) -> str:
    """Return the text with the reader's state folder instead of this machine's."""
    return re.sub(r"/\S+(?=/(?:runs|checkpoint)/)", "~/.local/state/cloudtrain", text)
