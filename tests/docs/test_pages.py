"""The first screen of the README, and the pages that show what commands print."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import COMMANDS, run_command
from cloudtrain.job.problems import error_codes
from cloudtrain.rules.engine import all_rules
from cloudtrain.targets.registry import all_targets

ROOT = Path(__file__).parents[2]
TOOLS = [str(ROOT / "tools" / folder) for folder in ("generate", "site")]
sys.path[:0] = TOOLS
try:
    import chart
    import pages
    import picture
    import settings_docs
    import width
finally:
    del sys.path[: len(TOOLS)]

REFERENCE = ROOT / "docs" / "reference"
README = (ROOT / "README.md").read_text("utf-8")
SLOW = {"guides/spot.md", "guides/cost.md", "guides/coming-from.md", "guides/troubleshooting.md"}
"""Pages on which something trains, or with many commands."""
IN_CI = {
    "start/five-minutes.md",
    "start/first-run-on-aws.md",
    "guides/hugging-face.md",
    "guides/lightning.md",
    "start/your-script.md",
}
"""Pages with the commands that take longest; `make test` has the others."""
TORCH = {"guides/hugging-face.md", "guides/lightning.md", "start/your-script.md"}
"""Pages with a plan of torch processes for this machine."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.slow] if name in SLOW else []),
                *([pytest.mark.in_ci] if name in IN_CI else []),
            ],
        )
        for name in pages.PAGES
    ],
)
def test_commands_print_what_a_page_shows(name: str) -> None:
    """Each command of the page, one after another, in a new folder with the page's files."""
    if name in TORCH:
        pytest.importorskip("torch")
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert "$ " in text
    assert pages.page(text) == text


def test_a_page_that_shows_something_else_is_found(tmp_path: Path) -> None:
    """Another word of an output is another page; another hash, time or size is not."""
    shown = "```console\n$ echo a-0123abcd-1 took 3 s\na-deadbeef-1 took 28.5 s\n```\n"
    assert pages.page(shown) == shown
    assert (
        pages.page(shown.replace("took 28.5", "costs 28.5"))
        == "```console\n$ echo a-0123abcd-1 took 3 s\na-0123abcd-1 took 3 s\n```\n"
    )
    elided = "```console\n$ printf 'one\\ntwo\\nthree\\n'\none\n...\nthree\n```\n"
    assert pages.page(elided) == elided
    assert "\n...\nthree\n" in pages.page(elided.replace("\none\n...", "\nzero\n..."))
    written = "`a.txt`:\n\n```text\nhello\n```\n\n```console\n$ cat a.txt\n```\n"
    assert pages.page(written).endswith("$ cat a.txt\nhello\n```\n")


@pytest.mark.skipif(find_spec("torch") is None, reason="a plan for this machine needs PyTorch")
def test_the_first_screen() -> None:
    """Its job and the table of its plans are made from the code, in 45 lines above the picture."""
    assert pages.readme(README) == README
    screen = README[: README.index("![")]
    assert len(screen.rstrip().splitlines()) <= 45
    job = (ROOT / "examples" / "first.yaml").read_text("utf-8")
    assert len(job.splitlines()) == 7
    assert f"```yaml\n{job}```\n" in screen
    assert "**Status: alpha.**" in screen
    claims = re.findall(r"^\* .*$", screen, re.MULTILINE)
    assert len(claims) == 5
    assert all(re.search(r"\]\(docs/[\w/-]+\.md(#[\w-]+)?\)", claim) for claim in claims)


@pytest.mark.skipif(find_spec("torch") is None, reason="a plan for this machine needs PyTorch")
def test_the_table_follows_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the instances are twice the processes and twice the price."""
    load = ct.load_job
    monkeypatch.setattr(ct, "load_job", lambda path: load(path, ["resources.instance_count=4"]))
    rows = "\n".join(pages.plans())
    assert "4 x ml.p4d.24xlarge (8 x A100-40GB, EFA) | 32 |" in rows
    assert "$101.01" in rows


def test_measured_claims_are_measured() -> None:
    """The README's seconds are those of the measurements, and so are the bars of the chart."""
    page = (ROOT / "docs" / "development" / "measurements.md").read_text("utf-8")
    measured = {pair.title: pair for pair in chart.pairs(page)}
    first = measured["the first step of a run here"]
    assert f"after {first.ours:.2f} s, with bare torchrun after {first.theirs:.2f} s" in README
    drawn = chart.chart()
    for pair in measured.values():
        assert f">{pair.ours:.2f} s<" in drawn
        assert f">{pair.theirs:.2f} s<" in drawn
    assert chart.caption(page).startswith("make bench, 2026-11-21, 2 cores: ")


def test_the_number_of_compared_requests() -> None:
    """What the page about tests says of them."""
    from tests.parity import azureml_jobs, jobs

    page = (REFERENCE / "tested.md").read_text("utf-8")
    assert f"{len(jobs.CASES)} jobs are built by SDK v2" in page
    assert f"{len(azureml_jobs.CASES)} jobs are built by azure-ai-ml" in page


def test_the_picture_is_small() -> None:
    """At most 62 columns and 18 lines, with every loss of the tutorial's run."""
    drawn = picture.picture()
    assert drawn.count("<circle") == 12
    rows = {int(float(y)) for y in re.findall(r'<text [^>]*y="([\d.]+)"', drawn)}
    assert len(rows) <= 18
    assert "same: all 12 values" in drawn


def test_every_setting_is_described() -> None:
    """The reference of cloudtrain.toml has each setting of each target, with a meaning."""
    text = settings_docs.document()
    assert (REFERENCE / "settings.md").read_text("utf-8") == text
    for target in all_targets():
        section = text.split(f"\n## [{target.name}]\n")[1].split("\n## ")[0]
        named = re.findall(
            r"^\| `(\w+)` \| [^|]*\w[^|]* \| [^|]* \| .*\w.* \|$", section, re.MULTILINE
        )
        assert set(named) == target.settings.model_fields.keys() - {"type"}


def test_no_line_is_wider_than_a_block() -> None:
    """Code and commands stand whole on a page; what a program prints may be wider."""
    for file in width.documents():
        assert [*width.wide_lines(file.read_text("utf-8"), file)] == []
    long = "cloudtrain plan job.yaml " + "x" * 70
    for language, found in (
        ("", 1),
        ("sh", 1),
        ("python", 1),
        ("yaml", 1),
        ("console", 0),
        ("text", 0),
        ("json", 0),
    ):
        assert len([*width.wide_lines(f"```{language}\n{long}\n```\n", Path("a.md"))]) == found
    for command in (f"$ {long}\n{long}", f"$ a \\\n{long}\n{long}"):
        assert (
            len(
                [
                    *width.wide_lines(
                        f"```yaml\na: 1\n```\n\n```console\n{command}\n```\n", Path("a.md")
                    )
                ]
            )
            == 1
        )


def test_wide_outputs_are_marked() -> None:
    """The style sheet makes the letters of blocks smaller whose text, without its tags, is wider than 82 columns."""
    for columns, marked in ((82, False), (83, True)):
        page = f'<p>a</p><div class="highlight"><pre><code><a id="x"></a>{"&lt;" * columns}\n</code></pre></div>'
        assert ('class="wide highlight"' in width.on_page_content(page)) == marked
    assert width.on_page_content("<code>--ignore</code>") == '<code class="short">--ignore</code>'
    assert width.on_page_content(f"<code>{'x' * 21}</code>") == f"<code>{'x' * 21}</code>"


@pytest.mark.slow
def test_what_a_browser_cuts_off_is_found(tmp_path: Path) -> None:
    """A line that does not wrap, on a phone; it is the only one of the two pages."""
    browser = shutil.which("chromium") or pytest.skip("no Chromium")
    for name, style in (("cut", "overflow: auto"), ("whole", "white-space: pre-wrap")):
        page = f'<article><pre style="{style}">{"a word " * 20}</pre></article>'
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><head></head><body>{page}</body>")
    (found,) = width.cut_off(tmp_path, browser)
    assert "cut.html, 390 pixels: PRE is " in found


def commands() -> list[str]:
    """The commands that pages name in blocks without `$`, because they need an account or take long."""
    texts = [README, *(page.read_text("utf-8") for page in (ROOT / "docs").glob("*/*.md"))]
    found = set()
    for text in texts:
        for kind, block in re.findall(
            r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            if kind == "":
                found |= {
                    line.partition("#")[0].strip()
                    for line in block.splitlines()
                    if line.startswith("cloudtrain ")
                }
        found |= set(re.findall(r"`(cloudtrain [a-z][^`]*)`", text))
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_commands_and_their_options_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As the help text of the command has them."""
    # another program's command, also where it is quoted
    line = re.sub(r'(?<= train\.py) .*|(?<= --) .*|"[^"]*"', "", line)
    words = line.split()
    of_all = words[1].startswith("-")
    assert of_all or words[1] in COMMANDS
    run_command(["--help"] if of_all else [words[1], "--help"])
    shown = capsys.readouterr().out
    for option in (word.partition("=")[0] for word in words[1:] if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown), option


def test_rules_have_titles() -> None:
    """A heading of a rule's page says what is wrong. The list has each rule and error, with a link to its heading."""
    headings = [
        heading
        for file in [*REFERENCE.glob("rules-*.md"), REFERENCE / "errors.md"]
        for heading in re.findall(r"^## (.*)$", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert all(re.fullmatch(r"[A-Z]{2}\d{3} · \S.*[^.]", heading) for heading in headings)
    listed = re.findall(
        r"^\| \[(\w+)\]\([\w-]+\.md#", (REFERENCE / "rules.md").read_text("utf-8"), re.MULTILINE
    )
    codes = {rule.code for rule in all_rules()} | {*error_codes()}
    assert {heading[:5] for heading in headings} == codes == {*listed}
    assert len(headings) == len(listed)


def test_the_landing_page_has_the_plans_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab for each target, with what `plan` prints for the README's job."""
    pytest.importorskip("mkdocs", reason="pip install 'cloudtrain[docs]'")
    for folder in TOOLS:
        monkeypatch.syspath_prepend(folder)
    import landing

    text = landing.landing_page()
    job = (ROOT / "examples" / "first.yaml").read_text("utf-8")
    assert job in text
    for title in ("This machine", "SageMaker", "Azure ML", "Slurm"):
        assert f'=== "{title}"' in text
    assert "at most $50.50 at list prices" in text
    assert str(ROOT) not in text
    for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text):
        page = link.replace("index.md", "README.md")
        assert (ROOT / "docs" / page).is_file() or (ROOT / page).is_file(), link
