"""Documents as HTML: well-formed, escaped, and saying what the text says."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.document import (
    CommandLine,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Section,
    Span,
    Table,
    Text,
)
from cloudtrain.plans.html import to_html
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.plans.status import run_document
from tests.deadlines import DEADLINE

ATTACK = '<script>alert("x")</script>&\'`<b>`'


def everything(text: str) -> Document:
    """Every block, with `text` in every place that takes text."""
    return Document(
        [
            Heading(text),
            Text(text),
            Pairs([(text, text), (text, Span(text, "bad"))]),
            Table((text, text), [(text, Span(text, "good"))]),
            Lines([text]),
            CommandLine([text], [(text, text)]),
            Notice("error", text, text, text, (text,), text),
            Section(text, [Text(text)]),
        ]
    )


def words(html: str) -> str:
    """The text of the elements, without the style."""
    root = ET.fromstring(html)
    style = root.find("style")
    assert style is not None
    root.remove(style)
    return "".join(root.itertext())


def test_nothing_escapes_the_escaping() -> None:
    """No element but ours appears, wherever the text came from, and the text is there to read."""
    html = to_html(everything(ATTACK))
    assert "<script>" not in html
    assert {element.tag for element in ET.fromstring(html).iter()} <= {
        "div", "style", "h4", "p", "table", "tr", "th", "td", "pre", "code", "span", "details", "summary"
    }  # fmt: skip
    assert words(html).count('<script>alert("x")</script>&') >= 14


def test_backticks_become_code() -> None:
    """A literal is shown as code, without its backticks."""
    assert "<p>use <code>a &lt; b</code> now</p>" in to_html(Document([Text("use `a < b` now")]))


def test_nothing_is_fetched() -> None:
    """The HTML refers to nothing outside itself."""
    assert not re.search(r"https?:|src=|href=|@import|url\(", to_html(everything("x")))


def test_run_shows_its_state_and_reason() -> None:
    """A run in a notebook says its state and why it failed."""
    status = RunStatus(
        RunState.FAILED, "rank 1: ValueError: no", 10.0, 12.5, ("Traceback", "ValueError: no")
    )
    text = words(to_html(run_document("job-1", "local://host/job-1", status)))
    for part in ("job-1", "failed", "rank 1: ValueError: no", "2.5s", "Traceback"):
        assert part in text


def test_long_parts_are_folded() -> None:
    """Of a plan a notebook shows the summary and the findings at once; processes and request open at a click."""
    plan = ct.plan(ct.bundled_job("digits_ddp"), "local", ignore=[])
    root = ET.fromstring(plan.to_html())
    folded = [details.findtext("summary") for details in root.iter("details")]
    assert folded == ["Processes", f"Request (plan {plan.sha256[:12]})"]
    assert all("open" not in details.attrib for details in root.iter("details"))
    assert plan.run_name in "".join(heading.text or "" for heading in root.findall("h4"))


def test_tables_are_left_aligned_where_styles_are_removed() -> None:
    """JupyterLab removes `<style>` from a notebook that another user has run, and aligns its tables to the right. GitHub
    removes all styles; the lines of a cell stay lines."""
    plan = ct.plan(ct.bundled_job("digits_ddp"), "local")
    cells = [cell for cell in ET.fromstring(plan.to_html()).iter() if cell.tag in ("th", "td")]
    assert cells
    assert {(cell.attrib.get("style"), cell.attrib.get("align")) for cell in cells} == {
        ("text-align:left", "left")
    }
    assert ">2 files<br/>/a/b</td>" in to_html(Document([Pairs([("code", "2 files\n/a/b")])]))


def test_a_mistake_in_a_notebook_is_its_text_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the frames of cloudtrain above it, and with a hint that Python takes. The command line keeps its own."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    job = "ct.TrainingJob(name='a', entry_point='train.py', resources=ct.Resources(instance_type='ml.nothing'))"
    account = "ct.SageMaker(region='eu-west-1', role='arn:aws:iam::123456789012:role/R')"
    result = shell.run_cell(f"import cloudtrain as ct; ct.submit({job}, {account}, online=False)")
    assert isinstance(result.error_in_exec, ct.PreflightError)
    printed = capsys.readouterr().out
    assert "Traceback" not in printed
    assert "submit.py" not in printed
    assert printed.strip().startswith("PreflightError: ")
    assert "so nothing was sent" in printed
    assert "`ignore=[" in printed
    assert "--ignore" not in printed
    assert "--ignore" in (result.error_in_exec.hint or "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_site_does_not_stretch_the_rows(tmp_path: Path) -> None:
    """The style of Material for MkDocs gives each cell of a table without a class more than a line of padding."""
    package = pytest.importorskip("material")
    style = next(
        Path(package.__file__).parent.glob("templates/assets/stylesheets/main.*.css")
    ).read_text("utf-8")
    plan = to_html(Document([Table(("NAME", "STATE"), [("run-1", "lost"), ("run-2", "lost")])]))
    measure = "document.title = [...document.querySelectorAll('tr')].map(row => row.offsetHeight / 13).join(' ')"
    page = tmp_path / "page.html"
    page.write_text(
        f"<title></title><style>{style}</style><div class='md-typeset'>{plan}</div><script>{measure}</script>"
    )
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        page.as_uri(),
    ]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE
    ).stdout
    heights = [float(height) for height in re.search("<title>(.*)</title>", shown)[1].split()]  # type: ignore[index]
    assert len(heights) == 3
    assert max(heights) < 2.2, "in lines of text"
