"""A plan in its forms: text, HTML and rich, all with the same content."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Finding, Level, Machine, Plan
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.local.compile import compile_local

CONTEXT = CompileContext(
    "digits-3f9a1c22-1",
    Bundle("ab" * 32, 34_212, 12),
    LocalAccount("/state", "/usr/bin/python3", Machine(4)),
)


def plan_for(instances: int = 2) -> Plan:
    """The plan of a small job on several simulated instances."""
    job = ct.TrainingJob(
        name="digits",
        entry_point="train.py",
        hyperparameters={"epochs": 2, "note": "it's <b>"},
        distribution=ct.Torch(),
        resources=ct.Resources(instance_count=instances),
    )
    return compile_local(job, ct.Local(instance_count=instances), CONTEXT)


FINDING = Finding(
    "LO201",
    Level.WARNING,
    "smaller",
    "add instances",
    ("resources", "instance_count"),
    "job.yaml:3:5",
)


def test_text_holds_the_exact_request() -> None:
    """The request block of the text is the request, and parses back to it."""
    text = plan_for().to_text()
    block = text[text.index("\n  {\n") : text.rindex("\n  }\n") + 5]
    assert json.loads(block) == plan_for().request


@pytest.mark.parametrize(
    ("instances", "whole"), [(140, True), (150, True), (160, False), (1024, False)]
)
@pytest.mark.slow_after(1)
def test_the_middle_of_a_very_long_request_is_counted(instances: int, whole: bool) -> None:
    """The first and the last lines are there, and one between them says how many are not."""
    plan = plan_for(instances)
    text = plan.to_text(width=None)
    lines = [
        line.removeprefix("  ") for line in text[text.index("\n  {\n") + 1 :].splitlines() if line
    ]
    wanted = json.dumps(plan.request, indent=2).splitlines()
    places = [number for number, line in enumerate(lines) if "more lines of the request: " in line]
    assert (places == []) == whole
    for place in places:
        count = int(lines[place].split()[0].replace(",", ""))
        lines[place : place + 1] = wanted[place : place + count]
    assert lines[: len(wanted)] == wanted
    assert len(text) < 250_000


def test_text_is_the_same_twice() -> None:
    """Two plans of one job have the same text."""
    assert plan_for().to_text() == plan_for().to_text()


def test_every_process_is_shown() -> None:
    """Launchers one by one; ranks that differ in their numbers alone together, with the count plain."""
    text = plan_for().to_text()
    assert "torchrun on instance 0\n" in text
    assert "torchrun on instance 1\n" in text
    assert "ranks 0 to 3 on instances 0 to 1\n" in text
    assert "OMP_NUM_THREADS" in text


@pytest.mark.parametrize("instances", [8, 9, 40])
def test_many_instances_that_start_the_same_are_told(instances: int) -> None:
    """More than eight: the first two, the last, and a line that counts the others. JSON has all of them."""
    plan = plan_for(instances)
    text = plan.to_text()
    shown = [line for line in text.splitlines() if line.startswith("torchrun on instance ")]
    told = f"{instances - 3} more like these, on instances 2 to {instances - 2}: `--format json` has them all\n"
    every = [f"torchrun on instance {number}" for number in range(instances)]
    assert shown == (every if instances == 8 else [every[0], every[1], every[-1]])
    assert (told in text) is (instances > 8)
    launchers = [
        process for process in plan.to_dict()["processes"] if process["role"] == "torchrun"
    ]
    assert [process["instance"] for process in launchers] == list(range(instances))


def test_findings_come_before_the_pages_with_their_place() -> None:
    """What the checks found stands below the summary, errors first, and above the processes and the request."""
    error = Finding("LO101", Level.ERROR, "missing", "install it")
    text = plan_for().with_findings((FINDING, error)).to_text()
    found = "warning: smaller [LO201]\n  job.yaml:3:5  resources.instance_count\n\nhint: add instances\n\n"
    assert text.index("error: missing [LO101]") < text.index(found) < text.index("\nUploads\n")


def test_summary_leaves_the_request_out() -> None:
    """The short document has what a person reads first, and the findings."""
    from cloudtrain.plans.document import to_text

    text = to_text(plan_for().with_findings((FINDING,)).document(whole=False))
    assert "processes" in text
    assert "[LO201]" in text
    assert '"version"' not in text


def test_print_shows_the_summary_and_the_findings() -> None:
    """`print(plan)` is what a submit prints, without the secrets, the processes and the request."""
    from cloudtrain.plans.document import to_text

    plan = replace(plan_for().with_findings((FINDING,)), hidden=("digits",))
    assert str(plan) + "\n" == to_text(plan.document(whole=False))
    assert "[LO201]" in str(plan)
    assert "digits" not in str(plan)
    assert len(str(plan).splitlines()) < 20 < len(plan.to_text().splitlines())


def test_notebook_gets_html_and_text() -> None:
    """The mime bundle has both forms, and the HTML is escaped."""
    plan = plan_for()
    bundle = plan._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": plan.to_text(), "text/html": plan._repr_html_()}
    assert "<b>" not in bundle["text/html"]


@pytest.mark.parametrize("width", [60, 100])
def test_rich_prints_the_text_of_its_width(width: int) -> None:
    """`rich.print(plan)` has the words of `to_text`; what is longer than the console is folded, not cut."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(plan_for())
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "".join(printed.split()) == "".join(plan_for().to_text(width=width).split())
