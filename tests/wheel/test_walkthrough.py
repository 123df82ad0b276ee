"""`docs/development/adding-a-target.md` is made of the sample target's own code."""

from __future__ import annotations

import re

import pytest

from tests.wheel.conftest import ROOT
from tests.wheel.test_sample_target import JOB, PACKAGE

PAGE = (ROOT / "docs" / "development" / "adding-a-target.md").read_text()
BLOCKS = re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = sorted(
    str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*") if file.suffix in (".py", ".toml")
)


@pytest.mark.parametrize("name", FILES)
def test_a_file_stands_there_whole(name: str) -> None:
    """The page has every line of the file, in the file's order, and no other."""
    shown = "".join(text for file, text in BLOCKS if file == name)
    assert [line for line in shown.splitlines() if line] == [
        line for line in (PACKAGE / name).read_text().splitlines() if line
    ]


def test_every_block_of_code_is_a_files() -> None:
    """No code stands there that is not in the package."""
    assert PAGE.count("```python\n") == sum(file.endswith(".py") for file, _ in BLOCKS)
    assert {file for file, _ in BLOCKS} == set(FILES)


def test_the_job_and_the_figure() -> None:
    """The job of the page is the one that the tests submit, and the package has as many lines as the page says."""
    assert f"```yaml{JOB}```" in PAGE
    lines = sum(len((PACKAGE / name).read_text().splitlines()) for name in FILES)
    assert f"`tests/sample_target/`: {lines} lines," in PAGE
