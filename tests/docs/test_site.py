"""The documents as a site."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deadlines import DEADLINE

ROOT = Path(__file__).parents[2]


BEFORE_FOLDERS = (
    "adding-a-target adopting azureml azureml-launch azureml-sdk budgets bundle cli coming-from concepts cost "
    "emulation environments errors fields first-run-on-aws first-run-on-azure first-run-on-slurm five-minutes "
    "following github-action hangs history how-a-plan-is-made hugging-face in-a-notebook inside install "
    "leaving-the-sdk lightning local machines measurements metrics notifications originals page platforms "
    "processing queue releasing rules rules-azureml rules-local rules-portable rules-sagemaker rules-slurm runtime "
    "sagemaker sagemaker-launch sagemaker-permissions sagemaker-sdk settings slurm spot sweeps tested "
    "torch-versions tracking training-scripts troubleshooting tutorial where-files-go which-tool your-repository "
    "your-script"
).split()
"""The pages that lay at the top of the site, where links of others still lead."""


class Configuration(yaml.SafeLoader):
    """Reads mkdocs.yml, and leaves out the functions that it names."""


Configuration.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """It is found by words of every part, also offline, and loads nothing from elsewhere."""
    pytest.importorskip("material", reason="pip install 'cloudtrain[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install 'cloudtrain[docs]'")
    pytest.importorskip("mkdocs_redirects", reason="pip install 'cloudtrain[docs]'")
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
    pages = {
        page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    }
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
    assert "Rehearse an interruption" in (site / "start" / "tutorial.html").read_text("utf-8")
    assert "submit" in (site / "reference" / "api.html").read_text("utf-8")
    for name in BEFORE_FOLDERS:
        text = (site / f"{name}.html").read_text("utf-8")
        leads_to = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', text)
        assert leads_to, name
        assert (site / leads_to[1]).is_file(), name


def test_each_address_from_before_the_folders_leads_to_a_page() -> None:
    """The page has the same name, unless it was renamed; no page lies outside of the folders."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Configuration)
    (moved,) = (
        plugin["redirects"]["redirect_maps"]
        for plugin in config["plugins"]
        if "redirects" in plugin
    )
    assert {name.removesuffix(".md") for name in moved} >= {*BEFORE_FOLDERS}
    assert [page for page in moved.values() if not (ROOT / "docs" / page).is_file()] == []
    assert [*(ROOT / "docs").glob("*.*")] == []


def test_notebooks_are_shown_with_their_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell's code, then what the notebook in git has of it: printed text, tables, pictures."""
    pytest.importorskip("mkdocs", reason="pip install 'cloudtrain[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    from hooks import notebook_page

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
