"""What each address of the page answers, about runs of this machine and about those that only the store knows."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra `ui` is not installed")

import cloudtrain as ct
from cloudtrain.lifecycle.store.records import Label, Origin
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.page.app import make_app
from cloudtrain.page.forms import json_text
from cloudtrain.plans.progress import LogLine
from cloudtrain.signals.log import LogIndex
from cloudtrain.system.files import STORE_FILE
from tests.deadlines import DEADLINE
from tests.lifecycle.store.records import record
from tests.page.asgi import Answer, ask
from tests.page.hostile import HOSTILE

SCRIPT = """\
import sys
from cloudtrain.runtime import report

for step in range(1, 21):
    report(step=step, total=20, epoch=step // 5, loss=2.0 / step)
print("one \\x1b[31mred\\x1b[0m word\\u202e and <b>bold</b>")
print("Traceback (most recent call last):", file=sys.stderr)
open("notes.txt", "w").write("a result")
"""


@pytest.fixture
def app() -> Any:
    return make_app()


@pytest.fixture
def run(tmp_path: Path) -> ct.Run:
    """A run that has ended on this machine."""
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2")
    job = ct.TrainingJob(
        name="small",
        source_dir=str(tmp_path),
        entry_point="train.py",
        distribution=ct.NoDistribution(),
        hyperparameters={"learning_rate": 0.5},
        tags={"team": "vision"},
    )
    run = ct.submit(job, ct.Local())
    run.wait(DEADLINE)
    return run


def get(app: Any, path: str) -> Any:
    answer = ask(app, path)
    assert answer.status == 200, answer
    return answer.json


def post(app: Any, path: str, **body: object) -> Answer:
    return ask(app, path, "POST", json.dumps(body).encode())


def stored(state_dir: Path, name: str = "job-1-1", **changes: object) -> None:
    """Write a run into the store, whose target knows nothing of it."""
    labels = (Label("tag", "team", "audio"), Label("hyperparameter", "lr", "0.1"))
    with open_store(state_dir) as store:
        lock = store.reserve(
            record(name, **changes),  # type: ignore[arg-type]
            origin=Origin("/somewhere", labels=labels),
        )
        assert lock is not None
        lock.release(remove=True)
        for stage in ("uploaded", "sent", "accepted", "reported"):
            store.advance(name, stage)


def test_a_run_is_shown_from_all_sides(app: Any, run: ct.Run) -> None:
    """Its row, its state, its curve, its output, its files, and what was sent."""
    row = get(app, "/api/runs")["runs"][0]
    assert (row["name"], row["state"], row["target"]) == (run.name, "succeeded", "local")
    assert row["tags"] == {"team": "vision"}
    assert row["hyperparameters"] == {"learning_rate": "0.5"}

    details = get(app, f"/api/runs/{run.name}")
    assert (details["is_final"], details["is_free"], details["sweep"]) == (True, True, False)
    assert details["started"] <= details["ended"]

    curves = get(app, f"/api/runs/{run.name}/curves")
    assert list(curves) == ["loss"]
    assert curves["loss"]["step"] == list(range(1, 21))
    assert curves["loss"]["value"][:2] == [2.0, 1.0]
    epochs = dict(zip(curves["loss"]["step"], curves["loss"]["epoch"], strict=True))
    assert (epochs[3], epochs[5], epochs[7], epochs[20]) == (0.5, 1.0, 1.4, 4.0)
    part = get(app, f"/api/runs/{run.name}/curves?start=5&end=7&name=loss")
    assert part["loss"]["step"] == [5, 6, 7]

    log = get(app, f"/api/runs/{run.name}/log?first=-3&count=3")
    whole = get(app, f"/api/runs/{run.name}/log?first=0&count=100")
    assert log["first"] == log["total"] - 3
    assert log["lines"] == whole["lines"][-3:]
    # the two streams of a process come in no certain order
    found = get(app, f"/api/runs/{run.name}/find?text=traceBACK")
    *_, text = whole["lines"][found["line"]]
    assert text == "Traceback (most recent call last):"
    assert get(app, f"/api/runs/{run.name}/find?text=nowhere") == {"line": None}

    files = {file["path"]: file["size"] for file in get(app, f"/api/runs/{run.name}/files")}
    assert files["work/notes.txt"] == 8
    answer = ask(app, f"/api/runs/{run.name}/file/work/notes.txt")
    assert (answer.status, answer.body) == (200, b"a result")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"

    sent = get(app, f"/api/runs/{run.name}/sent")
    assert [block["kind"] for block in sent["document"]] == [
        "heading",
        "pairs",
        "section",
        "section",
    ]
    assert sent["before"] is None


def test_the_code_is_shown_as_it_was(app: Any, run: ct.Run, tmp_path: Path) -> None:
    """Whatever has become of its folder since. Nothing but the run's code can be asked for."""
    (tmp_path / "train.py").write_text("raise SystemExit\n", "utf-8")
    code = get(app, f"/api/runs/{run.name}/code")
    assert {file["path"]: file["size"] for file in code["files"]} == {
        "train.py": len(SCRIPT),
        "weights.bin": 3,
    }
    assert code["is_here"]
    assert get(app, f"/api/runs/{run.name}/code/train.py")["text"] == SCRIPT
    assert ask(app, f"/api/runs/{run.name}/code/weights.bin").status == 400
    for path in (
        "",
        "other.py",
        "../train.py",
        "/etc/passwd",
        "%2e%2e/x",
        "cloudtrain/__init__.py",
    ):
        assert ask(app, f"/api/runs/{run.name}/code/{path}").status == 404


def test_code_that_is_elsewhere_is_not_fetched(
    app: Any, run: ct.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed, with the command that copies it."""
    monkeypatch.setattr(ct.Run, "directory", None)
    assert not get(app, f"/api/runs/{run.name}/code")["is_here"]
    answer = ask(app, f"/api/runs/{run.name}/code/train.py")
    assert answer.status == 400
    assert f"cloudtrain code {run.name}" in answer.json["error"]["hint"]


def test_output_cannot_turn_the_page(app: Any, run: ct.Run) -> None:
    """Controls and marks of direction are written out; markup stays text."""
    lines = get(app, f"/api/runs/{run.name}/log?first=0&count=100")["lines"]
    text = next(text for _, _, _, text in lines if "red" in text)
    assert text == "one \\x1b[31mred\\x1b[0m word\\u202e and <b>bold</b>"


def test_a_saved_page_loads_nothing(app: Any, run: ct.Run) -> None:
    """One file for a run, and one for a comparison."""
    for path in (f"/api/runs/{run.name}/saved", f"/api/saved?run={run.name}"):
        answer = ask(app, path)
        assert answer.status == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        text = answer.body.decode()
        assert run.name in text
        assert "<script" not in text
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text


def test_links_and_other_paths_are_no_files(app: Any, run: ct.Run) -> None:
    """Nothing leads out of a run."""
    assert run.directory is not None
    link = run.directory / "logs" / "link.txt"
    link.symlink_to("/etc/passwd")
    shown = [file["path"] for file in get(app, f"/api/runs/{run.name}/files")]
    assert "logs/link.txt" not in shown
    for path in (
        "logs/link.txt",
        "../../../etc/passwd",
        "/etc/passwd",
        "logs/../run.json",
        "",
        "work/%2e%2e/x",
    ):
        assert ask(app, f"/api/runs/{run.name}/file/{path}").status == 404


NAMES = ["nothing", "last", "small", "local://x/y"]
PARTS = ["", "/curves", "/log", "/find?text=x", "/files", "/sent", "/saved", "/file/x"]


def test_only_whole_names_are_runs(app: Any, run: ct.Run) -> None:
    """An address names one run: neither `last` nor the beginning of a name."""
    assert run.name.startswith("small")
    for name, part in product(NAMES, PARTS):
        answer = ask(app, f"/api/runs/{quote(name, safe='')}{part}")
        assert answer.status in (400, 404)
        if answer.headers["content-type"] == "application/json":
            error = answer.json["error"]
            assert error["message"]
            assert error["hint"]


def test_only_runs_are_compared(app: Any, run: ct.Run, tmp_path: Path) -> None:
    """On the command line, a file can be compared with a run."""
    file = quote(str(tmp_path / "train.py"))
    for path in (
        f"/api/difference?before={run.name}&after={file}",
        f"/api/difference?before={file}&after={run.name}",
        f"/api/compared?run={file}",
        f"/api/saved?run={run.name}&run=last",
        f"/api/compared?run={quote(str(run.ref))}",
    ):
        assert ask(app, path).status == 404
    assert ask(app, f"/api/difference?before={run.name}&after={run.name}").status == 200


WRONG = [
    "log?first=x",
    "log?count=1e9",
    "log?rank=one",
    "find?text=x&first=y",
    "curves?start=nan",
    "curves?end=x",
]


def test_a_wrong_query_is_an_error_with_a_hint(app: Any, run: ct.Run) -> None:
    """As the command line says it."""
    for query in WRONG:
        answer = ask(app, f"/api/runs/{run.name}/{query}")
        assert answer.status == 400
        assert answer.json["error"]["hint"]


def test_what_the_browser_has_is_not_sent_again(app: Any, run: ct.Run) -> None:
    """By the tag of the answer."""
    for path in ("/api/runs", f"/api/runs/{run.name}/curves"):
        first = ask(app, path)
        again = ask(app, path, if_none_match=first.headers["etag"])
        assert (again.status, again.body) == (304, b"")


def test_only_what_changed_is_listed(app: Any, state_dir: Path) -> None:
    """With the number of runs, by which a page sees that some were removed."""
    stored(state_dir, "job-1-1", counter=1)
    stored(state_dir, "job-2-1", counter=2)
    whole = get(app, "/api/runs")
    assert [row["name"] for row in whole["runs"]] == ["job-2-1", "job-1-1"]
    since = f"/api/runs?since={whole['revision']}"
    assert get(app, since)["runs"] == []

    with open_store(state_dir) as store:
        store.record("job-1-1", ct.RunStatus(ct.RunState.SUCCEEDED, started=1.0, ended=2.0))
    assert [row["name"] for row in get(app, since)["runs"]] == ["job-1-1"]

    with open_store(state_dir) as store:
        store.remove("job-2-1")
    left = get(app, since)
    assert (left["number"], [row["name"] for row in left["runs"]]) == (1, ["job-1-1"])
    assert left["revision"] > whole["revision"]
    assert get(app, "/api/runs") == left


def test_the_cost_of_a_run_that_lasts_is_its_price(app: Any, state_dir: Path) -> None:
    """The browser counts the hours. The estimate of a run that is over stays."""
    stored(state_dir, target="sagemaker", place="eu-west-1", state="running", started=5.0)
    with closing(sqlite3.connect(state_dir / STORE_FILE)) as db:
        db.execute("INSERT INTO money (name, hourly) VALUES ('job-1-1', 3.6)")
        db.commit()
    row = get(app, "/api/runs")["runs"][0]
    assert row["hourly"] == 3.6
    assert "estimate" not in row

    with open_store(state_dir) as store:
        store.record("job-1-1", ct.RunStatus(ct.RunState.STOPPED, started=5.0, ended=1005.0))
    row = get(app, "/api/runs")["runs"][0]
    assert row["estimate"] == 1.0
    assert "hourly" not in row


@pytest.fixture
def asked(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked about `job-1-1`, which a service runs."""
    stored(state_dir, target="sagemaker", place="eu-west-1", state="running", started=5.0)
    questions: list[str] = []

    def answer(question: str, value: object) -> Any:
        def method(run: ct.Run, **_: object) -> object:
            questions.append(question)
            return value

        return method

    status = ct.RunStatus(ct.RunState.RUNNING, started=5.0)
    lines = [LogLine(1.0, 0, 0, "stdout", f"line {number}") for number in range(5)]
    monkeypatch.setattr(ct.Run, "observe", answer("state", status))
    monkeypatch.setattr(ct.Run, "status", answer("status", status))
    monkeypatch.setattr(ct.Run, "log_index", answer("log", LogIndex(lines)))
    monkeypatch.setattr(ct.Run, "stop", answer("stop", None))
    return questions


def test_all_pages_share_an_answer_of_a_service(app: Any, asked: list[str]) -> None:
    """A change asks again."""
    for _ in range(3):
        assert get(app, "/api/runs/job-1-1")["state"] == "running"
    assert asked == ["state"]
    assert get(app, "/api/runs/job-1-1")["every"] >= 30
    assert post(app, "/api/runs/job-1-1/stop").status == 200
    get(app, "/api/runs/job-1-1")
    assert asked == ["state", "stop", "state"]


def test_a_log_of_a_service_is_not_fetched_for_each_window(app: Any, asked: list[str]) -> None:
    for first in (0, 2, -1):
        lines = get(app, f"/api/runs/job-1-1/log?first={first}&count=1")["lines"]
        assert lines[0][3] == f"line {first % 5}"
    assert get(app, "/api/runs/job-1-1/find?text=line%203") == {"line": 3}
    assert asked.count("log") == 1


def test_numbers_that_json_lacks_are_texts() -> None:
    """So that a page with a lost loss is still a page."""
    values = {"x": [math.nan, -math.inf, {"y": math.inf}], "z": 1.5}
    assert json.loads(json_text(values)) == {"x": ["nan", "-inf", {"y": "inf"}], "z": 1.5}


@pytest.mark.parametrize("text", ["\\u202e", "\\x1b\\", 'a "b" \n c', "\U0001f600 é"])
def test_visible_texts_stay_as_they_are(text: str) -> None:
    assert json.loads(json_text([text, {text: text}])) == [text, {text: text}]


def test_nothing_changes_by_recording_the_same_again(state_dir: Path) -> None:
    """So an idle page stays idle."""
    stored(state_dir)
    status = ct.RunStatus(ct.RunState.RUNNING, started=5.0)
    with open_store(state_dir) as store:
        store.record("job-1-1", status)
    revision = ct.runs(limit=1, target=None).revision
    with open_store(state_dir) as store:
        store.record("job-1-1", status)
        assert store.revision == revision
    assert ct.runs(changed_since=revision) == []


def test_people_annotate_runs(app: Any, state_dir: Path) -> None:
    """A note, a pin and tags, each by itself; the list shows them, and `ps --tag` finds them."""
    stored(state_dir)
    assert post(app, "/api/runs/job-1-1/annotate", note="the good one").status == 200
    assert post(app, "/api/runs/job-1-1/annotate", pinned=True).status == 200
    assert (
        post(app, "/api/runs/job-1-1/annotate", tags={"team": None, "paper": "fig 3"}).status == 200
    )
    row = get(app, "/api/runs")["runs"][0]
    assert (row["note"], row["pinned"], row["tags"]) == ("the good one", True, {"paper": "fig 3"})
    assert [run.name for run in ct.runs(tags={"paper": "fig 3"})] == ["job-1-1"]

    for wrong in (
        {"note": 5},
        {"pinned": "yes"},
        {"tags": ["x"]},
        {"tags": {"x": 1}},
        {"note": "x" * 20_000},
        {"note": "\ud800"},
        {"tags": {"": "x"}},
        {"tags": {"x": "\ud800"}},
    ):
        assert post(app, "/api/runs/job-1-1/annotate", **wrong).status == 400
    assert get(app, "/api/runs")["runs"][0] == row


def test_a_run_is_stopped_and_run_again(app: Any, tmp_path: Path) -> None:
    """From the page, on this machine."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n", "utf-8")
    job = ct.TrainingJob(
        name="long",
        source_dir=str(tmp_path),
        entry_point="train.py",
        distribution=ct.NoDistribution(),
    )
    run = ct.submit(job, ct.Local())
    assert post(app, f"/api/runs/{run.name}/stop").status == 200
    assert run.wait(DEADLINE).state == "stopped"

    again = json.loads(post(app, f"/api/runs/{run.name}/rerun").body)
    assert again["run"] != run.name
    ct.run(again["run"]).stop()
    ct.run(again["run"]).wait(DEADLINE)


@pytest.mark.parametrize("target", ["sagemaker", "azureml"])
def test_what_costs_money_is_not_sent(app: Any, state_dir: Path, target: str) -> None:
    """The page shows the command instead."""
    stored(state_dir, target=target, place="eu-west-1", state="succeeded")
    answer = post(app, "/api/runs/job-1-1/rerun")
    assert json.loads(answer.body) == {"command": "cloudtrain rerun job-1-1"}
    answer = post(app, "/api/runs/job-1-1/continue", trials=3)
    assert json.loads(answer.body) == {"command": "cloudtrain continue job-1-1 --trials 3"}
    for wrong in (-1, "3", 1.5, True, None):
        assert post(app, "/api/runs/job-1-1/continue", trials=wrong).status == 400
    assert len(ct.runs()) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"{", b"\xff", b'"x"', b"{" + b" " * 200_000 + b"}"]
)
def test_a_wrong_body_changes_nothing(app: Any, state_dir: Path, body: bytes) -> None:
    stored(state_dir, state="succeeded")
    answer = ask(app, "/api/runs/job-1-1/annotate", "POST", body)
    assert answer.status == (200 if body == b"" else 400)
    assert ask(app, "/api/runs/job-1-1/explode", "POST", b"{}").status == 404


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_arrive_as_texts(app: Any, state_dir: Path, text: str) -> None:
    """In a reason, a tag, a hyperparameter and a folder."""
    safe = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    labels = (Label("tag", "key", safe), Label("hyperparameter", safe, safe))
    with open_store(state_dir) as store:
        lock = store.reserve(
            record(state="failed", reason=safe), origin=Origin(safe, labels=labels)
        )
        assert lock is not None
        lock.release(remove=True)
    data = get(app, "/api/runs")["runs"][0]
    shown = json.dumps([data["reason"], data["tags"], data["hyperparameters"]], ensure_ascii=False)
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
    assert not set(shown) & set("\u202e\u2066\u2069\u200b\ufeff\U000e0041")


@pytest.mark.slow
def test_ten_thousand_runs_are_listed_at_once(app: Any, state_dir: Path) -> None:
    """Nothing is asked of a target. (`make bench` has the time.)"""
    with open_store(state_dir) as store:
        rows = [
            (
                f"job-{n}-1",
                "sagemaker",
                "eu-west-1",
                "job",
                f"{n}",
                "me",
                "",
                1,
                "reported",
                "succeeded",
                1000.0 + n,
            )
            for n in range(10_000)
        ]
        store._db.executemany(
            "INSERT INTO runs (name, target, place, job_name, key, submitter, store, counter, stage, state, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    answer = ask(app, "/api/runs")
    assert answer.json["number"] == len(answer.json["runs"]) == 10_000
    assert len(answer.body) < 500_000


def test_a_waiting_run_is_moved(app: Any, tmp_path: Path) -> None:
    """To the front, to the end, and never to where it cannot be."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n", "utf-8")
    job = ct.TrainingJob(
        name="waits",
        source_dir=str(tmp_path),
        entry_point="train.py",
        distribution=ct.NoDistribution(),
    )
    target = ct.Local(slots=1)
    first, second, third = (ct.submit(job, target, queue=True) for _ in range(3))
    try:
        assert post(app, f"/api/runs/{third.name}/move", before=second.name).status == 200
        names = [run["name"] for run in get(app, "/api/queue")]
        assert names == [first.name, third.name, second.name]
        assert post(app, f"/api/runs/{third.name}/move", last=True).status == 200
        names = [run["name"] for run in get(app, "/api/queue")]
        assert names == [first.name, second.name, third.name]
        assert post(app, f"/api/runs/{third.name}/move", before="nothing").status == 404
    finally:
        for run in (third, second, first):
            run.stop()
            run.wait(DEADLINE)
