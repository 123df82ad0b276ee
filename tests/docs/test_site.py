"""The documents as a site."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """It is found by words of every part, also offline, and loads nothing from elsewhere."""
    pytest.importorskip("material", reason="pip install 'cloudtrain[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install 'cloudtrain[docs]'")
    argv = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    built = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / "site"
    index = (site / "search" / "search_index.js").read_text("utf-8")
    found = {
        entry["location"].partition("#")[0]
        for entry in json.loads(index.partition("=")[2].rstrip(" ;\n"))["docs"]
    }
    made = {"reference/job.html", "reference/api.html", "reference/runtime.html"}
    pages = {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")}
    folders = {
        f"training_scripts/{page.parent.name}/index.html"
        for page in ROOT.glob("training_scripts/*/README.md")
    }
    assert {
        "index.html",
        "examples/index.html",
        "notebooks/01_first_job.html",
    } | made | pages | folders <= found
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//", text), page
    assert "Rehearse an interruption" in (site / "tutorial.html").read_text("utf-8")
    assert "submit" in (site / "reference" / "api.html").read_text("utf-8")


def test_notebooks_are_shown_with_their_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell's code, then what the notebook in git has of it: printed text, tables, pictures."""
    pytest.importorskip("mkdocs", reason="pip install 'cloudtrain[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from site_hooks import notebook_page

    outputs = [
        {"text": ["bold\n", "and more\n"]},
        {"data": {"text/html": ["<b>plan</b>\n", "\n", "<i>x</i>"], "text/plain": ["plan"]}},
        {"data": {"image/png": "QUJD\n", "text/plain": "<Figure>"}},
        {"data": {"text/plain": ["'a'"]}},
        {"text": ["name   ms  MB\n", "ring  1.5   2\n", "DDP   1.2   2\n"]},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "text"]},
        {"cell_type": "code", "source": ["plan"], "outputs": outputs},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebook_page(tmp_path / "n.ipynb")
    assert page.startswith(
        "# A\ntext\n\n```python\nplan\n```\n\n```{.text .printed}\nbold\nand more\n```\n\n"
    )
    assert '<div class="notebook-output">\n<b>plan</b>\n<i>x</i>\n</div>' in page
    assert 'src="data:image/png;base64,QUJD"' in page
    assert "```{.text .printed}\n'a'\n```" in page
    assert page.endswith(
        "```{.text .printed .columns}\nname   ms  MB\nring  1.5   2\nDDP   1.2   2\n```\n"
    )
