"""Of a damaged row in the run store, one run is lost at most: every other run is listed, shown and run again."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

VALUES = ("nonsense", b"\xff\x00", 1e308, -5, "not UTF-8")
TABLES = ("runs", "origins", "labels", "sent", "money", "written", "journal")


@pytest.fixture
def runs(cli: Cli, scripted: Path, job: str) -> tuple[str, str]:
    """The names of two ended runs: the first will be damaged."""
    names = []
    for epochs in ("2", "3"):
        changes = ("--set", f"hyperparameters.epochs={epochs}", "--set", "tags.team=vision")
        names.append(cli("submit", job, *changes, "--detach").out.strip())
        assert cli("wait", names[-1]).code == 0
    return names[0], names[1]


@contextmanager
def damaged(state_dir: Path, name: str, table: str, column: str, value: object) -> Iterator[bool]:
    """Write a value into the rows of a run, and the old ones back; False if the schema refuses the value."""
    with closing(sqlite3.connect(state_dir / "runs.db")) as db:
        old = db.execute(f"SELECT rowid, {column} FROM {table} WHERE name = ?", (name,)).fetchall()
        mark = "CAST(x'66ff' AS TEXT)" if value == "not UTF-8" else "?"
        values = () if value == "not UTF-8" else (value,)
        try:
            with db:
                db.execute(f"UPDATE {table} SET {column} = {mark} WHERE name = ?", (*values, name))
        except sqlite3.IntegrityError:
            yield False
            return
        yield bool(old)
        with db:
            db.executemany(
                f"UPDATE {table} SET {column} = ? WHERE rowid = ?", [(was, row) for row, was in old]
            )


def columns(state_dir: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(state_dir / "runs.db")) as db:
        found = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
    return [name for name in found if name not in ("seq", "id", "name")]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.slow
def test_one_bad_value_costs_one_run(
    cli: Cli, runs: tuple[str, str], state_dir: Path, table: str
) -> None:
    """Whatever is in whichever column, `ps` lists both runs, and no command reports a defect."""
    bad, good = runs
    for column in columns(state_dir, table):
        for value in VALUES:
            with damaged(state_dir, bad, table, column, value) as is_there:
                if not is_there:
                    continue
                where = (table, column, value)
                listed = cli("ps", "--json", "--all")
                assert listed.code == 0, (where, listed.err)
                assert good in {item["name"] for item in json.loads(listed.out)}, where
                assert len(json.loads(listed.out)) == 2, where
                for command in (
                    ("ps",),
                    ("cost", "--by", "tag:team"),
                    ("show", bad),
                    ("status", bad),
                ):
                    result = cli(*command)
                    assert result.code in (0, 3, 4), (where, command, result.err)


def test_a_bad_date_and_a_bad_state(cli: Cli, runs: tuple[str, str], state_dir: Path) -> None:
    """The target is asked for the state, and the date of the start stands for the missing one."""
    bad, good = runs
    with (
        damaged(state_dir, bad, "runs", "created", "yesterday"),
        damaged(state_dir, bad, "runs", "state", 5),
    ):
        found = {item["name"]: item for item in json.loads(cli("ps", "--json").out)}
        assert {name: item["state"] for name, item in found.items()} == {
            bad: "succeeded",
            good: "succeeded",
        }
        assert bad in cli("ps").out


@pytest.mark.slow
@pytest.mark.parametrize("counter", [1e308, "many", b"\xff", 2**63 - 1])
def test_runs_are_counted_after_a_bad_counter(
    cli: Cli, runs: tuple[str, str], job: str, state_dir: Path, counter: object
) -> None:
    """`rerun` and `submit` find the next free name and come to an end."""
    bad, _ = runs
    with closing(sqlite3.connect(state_dir / "runs.db")) as db, db:
        db.execute("UPDATE runs SET counter = ? WHERE name = ?", (counter, bad))
    names = {bad}
    for command in (("rerun", bad), ("submit", job, "--set", "tags.team=vision")):
        result = cli(*command, "--detach")
        assert result.code == 0, result.err
        assert result.out.strip() not in names
        names.add(result.out.strip())


def changed(content: dict[str, Any]) -> Iterator[object]:
    """The record of a job with values of the wrong kind."""
    yield from ([], {}, None, "text", 5)
    for part in content:
        for value in (5, "text", [1], {"a": 1}, None):
            yield content | {part: value}
    for part in content["plan"]:
        for value in (5, "text", [1], None):
            yield content | {"plan": content["plan"] | {part: value}}


@pytest.mark.slow
def test_a_record_of_the_wrong_kind(
    cli: Cli, runs: tuple[str, str], job: str, state_dir: Path
) -> None:
    """What was sent is not known then, which is an error of that run alone; the job can be submitted again."""
    bad, good = runs
    with closing(sqlite3.connect(state_dir / "runs.db")) as db:
        (packed,) = db.execute("SELECT content FROM sent WHERE name = ?", (bad,)).fetchone()
    wrong = [
        zlib.compress(json.dumps(value).encode())
        for value in changed(json.loads(zlib.decompress(packed)))
    ]
    for value in (b"", b"nonsense", zlib.compress(b"nonsense"), "nonsense", *wrong):
        with damaged(state_dir, bad, "sent", "content", value):
            for command in (
                ("ps",),
                ("show", bad),
                ("diff", bad, good),
                ("code", bad, "x"),
                ("plan", job),
                ("cost",),
            ):
                result = cli(*command)
                assert result.code in (0, 1, 2, 3, 4), (command, value, result.err)
