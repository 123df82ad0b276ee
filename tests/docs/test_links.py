"""Every link of the documents leads somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = sorted([
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("examples/**/*.md"),
    *ROOT.glob("training_scripts/*/*.md"),
])  # fmt: skip

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """What a link to a place of a page may name: its headings in GitHub's spelling, which is the site's too."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file or a folder of the repository, and a heading of that page."""
    wrong = []
    for link in LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_pages_are_reached() -> None:
    """The README, or a page that it leads to, leads to every page of docs/."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = {
            (page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page))
        }
        waiting += [
            target for target in links - reached if target.suffix == ".md" and target.is_file()
        ]
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= reached
