"""The page in Debian's Chromium: what a person sees of runs that other processes start, and what the browser asks for.

The browser, Playwright and axe-core are looked for, and these tests are skipped where one is missing; where
CLOUDTRAIN_TEST_BROWSER is set, as in CI, they fail instead.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from tests.page.hostile import HOSTILE
from tests.page.served import CHROMIUM, DIGITS, ROOT, Program

AXE = ROOT / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
IS_WANTED = "CLOUDTRAIN_TEST_BROWSER" in os.environ

browsers: Any
if IS_WANTED:
    browsers = import_module("playwright.sync_api")
else:
    browsers = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not IS_WANTED, reason="there is no Chromium"),
]

PATIENCE = 60_000
"""Milliseconds, for one look: a page that is wrong stays wrong."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program(tmp_path_factory.mktemp("page"), rates=[0.1, 0.5], texts=HOSTILE)
    yield program
    left = json.loads(program("ps", "--json"))
    unfinished = [run["name"] for run in left if run["state"] in ("queued", "running")]
    if unfinished:  # a test failed before it had stopped its runs
        program("stop", *unfinished)


@pytest.fixture(scope="module")
def link(program: Program) -> Iterator[str]:
    """The link that opens the page."""
    with program.page() as link:
        yield link


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    assert CHROMIUM is not None, "there is no Chromium"
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Seen(NamedTuple):
    """What a browser asked for, and what it complained about."""

    hosts: set[str]
    complaints: list[str]


@pytest.fixture
def seen() -> Seen:
    return Seen(set(), [])


@pytest.fixture
def context(chromium: Any, link: str, seen: Seen) -> Iterator[Any]:
    """A browser that has opened the link. Afterwards, it has asked no other host, and no script or
    policy has complained."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE)
    context.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    context.on("weberror", lambda error: seen.complaints.append(str(error.error)))
    context.on("console", lambda message: _note(seen, message))
    context.on("dialog", lambda dialog: seen.complaints.append(f"dialog: {dialog.message}"))
    yield context
    context.close()
    assert seen.hosts == {urlsplit(link).netloc}
    assert seen.complaints == []


def _note(seen: Seen, message: Any) -> None:
    if message.type in ("error", "warning"):
        seen.complaints.append(message.text)


@pytest.fixture
def page(context: Any, link: str) -> Any:
    page = context.new_page()
    page.goto(link)
    return page


def expect(found: Any) -> Any:
    """What is looked at until it is so."""
    browsers.expect.set_options(timeout=PATIENCE)
    return browsers.expect(found)


def link_to(page: Any, name: str) -> Any:
    return page.get_by_role("link", name=name, exact=True).first


@pytest.fixture(scope="module")
def ended(program: Program) -> dict[str, str]:
    """Two runs that succeeded, one that failed, and a sweep, by what they are called here."""
    runs = {
        "slow": program.submit("job.yaml", "--set", "hyperparameters.lr=0.05"),
        "fast": program.submit("job.yaml", "--set", "hyperparameters.lr=0.5"),
        "failed": program.submit("job.yaml", "--set", "hyperparameters.fails=1"),
        "sweep": program.submit("sweep.yaml"),
    }
    for called, name in runs.items():
        program.wait(name, code=1 if called == "failed" else 0)
    return runs


def test_a_training_is_followed_while_it_runs(page: Any, program: Program) -> None:
    """Its row comes by itself, its curve grows, and each rank's log is there."""
    expect(page.get_by_text("No run yet")).to_be_visible()
    epochs = ("--set", "hyperparameters.epochs=100")
    name = program.submit(DIGITS, "--processes-per-instance", "2", *epochs)
    row = page.get_by_role("row").filter(has=link_to(page, name))
    expect(row).to_contain_text("running")

    link_to(page, name).click()
    chart = page.get_by_role("img", name=re.compile("^loss[ :]"))
    expect(chart).to_be_visible()
    first = values_of(chart)
    page.wait_for_function(
        "([name, first]) => {"
        "  const found = [...document.querySelectorAll('[role=img]')].map((one) => one.ariaLabel);"
        "  const mine = found.find((text) => text?.startsWith(name));"
        "  return Number(/ (\\d+) values/.exec(mine)?.[1]) > first; }",
        arg=["loss ", first],
    )

    page.get_by_role("link", name="log", exact=True).click()
    log = page.get_by_role("log")
    expect(log).to_contain_text("epoch")
    page.get_by_label("rank").fill("1")
    others = log.locator(".line .rank").filter(has_not_text="1")
    expect(others).to_have_count(0)  # this script says little on rank 1

    program.wait(name)
    expect(page.locator(".run-head")).to_contain_text("succeeded")


def values_of(chart: Any) -> int:
    """Return how many values a chart says that it shows."""
    found = re.search(r" (\d+) values", chart.get_attribute("aria-label"))
    assert found is not None
    return int(found[1])


def test_the_error_of_a_failed_run_is_two_clicks_away(page: Any, ended: dict[str, str]) -> None:
    page.get_by_label("needs attention").get_by_role("link", name=ended["failed"]).click()
    page.get_by_role("link", name="go to the error").click()
    found = page.locator(".line.found")
    expect(found).to_contain_text("Traceback")
    expect(page.get_by_role("log")).to_contain_text("the picture <b>cat_0412.png</b> is broken")


def test_two_runs_are_compared(page: Any, ended: dict[str, str]) -> None:
    """With the one hyperparameter that differs, and a line of each in each chart."""
    for name in (ended["slow"], ended["fast"]):
        page.get_by_label(f"choose {name}").check()
    page.get_by_role("link", name="compare 2").click()
    row = page.get_by_role("row", name=re.compile("^lr "))
    expect(row).to_contain_text("0.05")
    expect(row).to_contain_text("0.5")
    chart = page.get_by_role("img", name=re.compile("^loss[ :]"))
    expect(chart).to_be_visible()
    label = chart.get_attribute("aria-label")
    assert ended["slow"] in label
    assert ended["fast"] in label
    expect(page.get_by_text("What differs")).to_be_visible()
    page.locator(".controls select").select_option("epoch")
    expect(chart).to_be_visible()


def test_code_is_opened_as_it_was(page: Any, ended: dict[str, str]) -> None:
    link_to(page, ended["slow"]).click()
    page.get_by_role("link", name="code", exact=True).click()
    page.get_by_role("link", name="train.py").click()
    expect(page.locator("pre")).to_contain_text("from cloudtrain.runtime import report")


def test_a_run_is_stopped(page: Any, program: Program) -> None:
    """After a question, which names the run."""
    name = program.submit("job.yaml", "--set", "hyperparameters.sleep=600")
    link_to(page, name).click()
    page.get_by_role("button", name="stop").click()
    question = page.get_by_role("alertdialog")
    expect(question).to_contain_text(name)
    question.get_by_role("button", name="no").click()
    expect(page.locator(".run-head")).to_contain_text("running")
    page.get_by_role("button", name="stop").click()
    question.get_by_role("button", name="stop").click()
    expect(page.locator(".run-head .state")).to_contain_text("stopped")


def test_a_sweep_shows_its_trials(page: Any, ended: dict[str, str]) -> None:
    link_to(page, ended["sweep"]).click()
    best = page.locator("tr.best")
    expect(best).to_contain_text("★")
    expect(best).to_contain_text("0.5")
    rows = page.get_by_role("table").first.get_by_role("row")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="continue").click()
    expect(page.get_by_role("alertdialog").get_by_label("more trials")).to_have_value("0")


def test_a_run_moves_in_the_queue(page: Any, program: Program) -> None:
    long = ("--set", "hyperparameters.sleep=600", "--queue")
    first, second, third = (program.submit("job.yaml", *long) for _ in range(3))
    page.get_by_role("link", name="queue", exact=True).click()
    names = page.locator("main tbody tr td:nth-child(2)")
    expect(names).to_have_text([first, second, third])
    page.get_by_label(f"move {third} up").click()
    expect(names).to_have_text([first, third, second])
    assert [run["name"] for run in json.loads(program("queue", "--json"))][-2:] == [third, second]
    program("stop", second, third, first)


VIEWS = ("#/", "#/run/{run}", "#/run/{run}/log", "#/run/{run}/plan", "#/run/{run}/code/train.py", "#/run/{run}/machines",
         "#/run/{run}/files", "#/queue",
         "#/cost", "#/compare/{run},{other}", "#/run/{sweep}")  # fmt: skip


def shown(page: Any, view: str, ended: dict[str, str]) -> None:
    """Open a view, and wait until it has what it asked for."""
    places = {"run": ended["slow"], "other": ended["failed"], "sweep": ended["sweep"]}
    go = "(place) => { location.hash = place }"
    if view == "#/":  # the list is kept up to date, and asks nothing when it is opened
        page.evaluate(go, view)
    else:
        with page.expect_response(lambda answer: "/api/" in answer.url):
            page.evaluate(go, view.format(**places))
    page.locator("main").wait_for()


def test_hostile_texts_are_shown_as_texts(
    page: Any, program: Program, ended: dict[str, str]
) -> None:
    """In notes, tags, the log and its search, on every view: no element of them, no address, no dialog."""
    headers = {"content-type": "application/json"}
    name = quote(ended["slow"])
    tags = {f"tag{number}": text for number, text in enumerate(HOSTILE)}
    sent = page.evaluate(
        "async ([address, headers, body]) =>"
        " (await fetch(address, { method: 'POST', headers, body })).status",
        [
            f"/api/runs/{name}/annotate",
            headers,
            json.dumps({"note": " ".join(HOSTILE), "tags": tags}),
        ],
    )
    assert sent == 200
    for view in VIEWS:
        shown(page, view, ended)
        page.wait_for_timeout(150)
        strange = page.evaluate(
            "() => [...document.querySelectorAll('main img, main iframe, main script, main object,"
            ' main svg[onload], main [onerror], main [onload], main a[href^="javascript:" i]\')]'
            ".map((one) => one.outerHTML)"
        )
        assert strange == [], view
    shown(page, "#/run/{run}/log", ended)
    expect(page.get_by_role("log")).to_contain_text("<script>alert(1)</script>")
    assert page.evaluate("() => globalThis.attacked") is None


def test_twelve_tabs_are_served(
    context: Any, link: str, program: Program, ended: dict[str, str]
) -> None:
    """A browser opens six connections to a host: one tab listens for all, and the next takes over."""
    tabs = [context.new_page() for _ in range(12)]
    for tab in tabs:
        tab.goto(link if tab is tabs[0] else link.partition("/?")[0])
        expect(link_to(tab, ended["slow"])).to_be_visible()
    name = program.submit("job.yaml")
    for tab in tabs:
        expect(link_to(tab, name)).to_be_visible()
    tabs[0].close()
    later = program.submit("job.yaml")
    for tab in tabs[1:]:
        expect(link_to(tab, later)).to_be_visible()


@pytest.mark.slow
def test_a_page_lives_on_after_a_new_start(chromium: Any, program: Program) -> None:
    """A tab of the first server has no token of the second one. A newer tab hears of changes all the
    same, and gives the older one its token."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE)
    older = context.new_page()
    newer = context.new_page()
    with program.page() as link:
        older.goto(link)
        older.locator(".list-view").wait_for()
        port = urlsplit(link).port
    expect(older.get_by_text("does not answer")).to_be_visible()
    with program.page(str(port)) as link:
        older.wait_for_event("response", lambda answer: answer.status == 401)
        newer.goto(link)
        name = program.submit("job.yaml")
        for tab in (newer, older):
            expect(link_to(tab, name)).to_be_visible()
            expect(tab.get_by_text("does not answer")).to_have_count(0)
    context.close()


@pytest.mark.skipif(not AXE.exists() and not IS_WANTED, reason="axe-core is not installed")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    chromium: Any, link: str, ended: dict[str, str], theme: str
) -> None:
    """On all views, at the width of a desk and of a phone."""
    context = chromium.new_context(color_scheme=theme)
    context.set_default_timeout(PATIENCE)
    context.add_init_script(path=AXE)  # the page's policy lets no other script in
    page = context.new_page()
    page.goto(link)
    found = []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for view in VIEWS:
            shown(page, view, ended)
            page.wait_for_timeout(150)
            for finding in page.evaluate("async () => (await axe.run()).violations"):
                if finding["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:200] for node in finding["nodes"][:3]]
                    found.append((width, view, finding["id"], nodes))
    context.close()
    assert found == []
