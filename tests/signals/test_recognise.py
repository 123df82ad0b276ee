"""What a script prints becomes data: formats of some 80 programs, and logs without any metric."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.signals.recognise import LineBlock, Recogniser

HERE = Path(__file__).parent
FILES = (
    "logs_first.txt",
    "logs_second.txt",
    "logs_third.txt",
    "logs_fourth.txt",
    "logs_fifth.txt",
    "logs_scripts.txt",
)
ESCAPES = {"\\r": "\r", "\\e": "\x1b", "\\_": "\xa0"}
PLACES = ("step", "epoch")


def read_logs() -> dict[str, list[tuple[str, dict[str, float]]]]:
    """Logs by name: each line, and what it says, which stands behind an arrow."""
    logs: dict[str, list[tuple[str, dict[str, float]]]] = {}
    for file in FILES:
        for text in (HERE / file).read_text("utf-8").splitlines():
            if text.startswith("## "):
                lines = logs.setdefault(text[3:], [])
                continue
            line, _, truth = text.partition("  <= ")
            for name, character in ESCAPES.items():
                line = line.replace(name, character)
            pairs = [item.rpartition("=") for item in truth.split()]
            lines.append((line, {name: float(value) for name, _, value in pairs}))
    return logs


LOGS = read_logs()
TWO_TABLES = {"ultralytics", "yolov5", "scikit-learn"}
"""A pattern cannot tell rows of two tables: only the newest has some."""
THOUSANDS = {"nanochat", "olmo"}
"""Services read no number with a comma in it, so the patterns of `21,400` find another one."""


class Reading(NamedTuple):
    """What one line says; the step is None if it is unknown."""

    line: int
    step: float | None
    values: dict[str, float]
    progress: dict[str, float]


def readings_of(blocks: Iterable[LineBlock]) -> list[Reading]:
    readings = []
    for block in blocks:
        for number, step in enumerate(block.steps):
            values = {name: column[number] for name, column in block.values.items()}
            place = None if math.isnan(step) else step
            readings.append(Reading(block.line + number, place, values, block.progress(number)))
    return readings


def read(lines: Iterable[str]) -> list[Reading]:
    return readings_of(Recogniser().blocks(lines))


def said(readings: Iterable[Reading]) -> dict[int, dict[str, float]]:
    """What each line says, its place included."""
    found: dict[int, dict[str, float]] = {}
    for reading in readings:
        row = found.setdefault(reading.line, {})
        row |= reading.values
        row |= {k: v for k, v in reading.progress.items() if k in PLACES}
        if reading.step is not None:
            row["step"] = reading.step
    return found


@pytest.mark.parametrize("name", LOGS)
def test_each_value_and_place_that_a_line_says_is_found(name: str) -> None:
    """All values of the truth with their places, and nothing in lines that say nothing."""
    lines = LOGS[name]
    found = said(read(line for line, _ in lines))
    for number, (line, truth) in enumerate(lines):
        got = found.get(number, {})
        assert truth == {key: got.get(key) for key in truth}, line
        if not truth:
            assert not got.keys() - {"step", "epoch"}, line


def test_the_page_names_the_scripts_whose_logs_are_here() -> None:
    """Lightning's script prints no metric; its file is read."""
    page = Path(__file__).parents[2].joinpath("docs", "guides", "metrics.md").read_text("utf-8")
    table = page.partition("| script | file | curves |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| ([A-Za-z' ]+) \|", table, re.MULTILINE)
    sections = (HERE / "logs_scripts.txt").read_text("utf-8")
    assert len(names) == 12
    assert names == [*re.findall("^## (.*)", sections, re.MULTILINE), "Lightning"]
    for name, row in zip(names[:-1], table.strip().splitlines()[1:], strict=False):
        found = {
            metric for reading in read(line for line, _ in LOGS[name]) for metric in reading.values
        }
        assert found & set(re.findall("`([^`]+)`", row.split("|")[3])), name


def test_a_later_process_goes_on_with_what_was_learnt() -> None:
    """State travels as JSON after every line; the values are those of one reading."""
    for name in ("torch basic mnist", "ultralytics", "keras 3", "rsl_rl", "fastai"):
        lines = [line for line, _ in LOGS[name]]
        state = None
        found = []
        for line in lines:
            recogniser = Recogniser(state)
            found += readings_of(recogniser.blocks([line]))
            state = json.loads(json.dumps(recogniser.state))
        assert found == read(lines)


def test_steps_go_on_where_a_counter_begins_again() -> None:
    lines = [
        f"Train Epoch: {epoch} [{sample}/2000 ({sample // 20}%)]\tLoss: 0.{epoch}{sample}"
        for epoch in (1, 2, 3)
        for sample in (0, 640, 1920)
    ]
    readings = read(lines)
    assert [reading.step for reading in readings] == [
        0, 640, 1920, 2000, 2640, 3920, 4000, 4640, 5920,
    ]  # fmt: skip
    assert readings[2].progress == {"epoch": 1, "step": 1920, "total": 2000, "percent": 96}


def test_a_bar_says_how_far_it_is() -> None:
    bar = "Epoch 3:  45%|████▌     | 9/20 [00:10<00:12,  1.2it/s]"
    (reading,) = read(["\r" + bar])
    assert not reading.values
    assert reading.progress == {"epoch": 3, "percent": 45, "step": 9, "total": 20}
    (reading,) = read(["Epoch 1/4"])
    assert reading.progress == {"epoch": 1, "epochs": 4}


def test_rank_0_speaks_for_all_once_it_spoke() -> None:
    lines = [f"[1,{rank}]<stdout>:step {i} loss 0.{i}{rank}" for i in (1, 2) for rank in (1, 0)]
    assert [reading.values["loss"] for reading in read(lines)] == [0.11, 0.10, 0.20]


@pytest.mark.parametrize("name", LOGS)
def test_the_patterns_find_the_same_values(name: str) -> None:
    lines = []
    for line, _ in LOGS[name]:
        lines += re.split("\r", re.sub(r"\x1b\[[0-9;]*m", "", line).replace("#011", "\t"))
    recogniser = Recogniser()
    wanted: dict[str, set[float]] = {}
    for reading in readings_of(recogniser.blocks(lines)):
        for metric, value in reading.values.items():
            wanted.setdefault(metric, set()).add(value)
    patterns = recogniser.patterns()
    if name in TWO_TABLES:
        assert patterns.keys() < wanted.keys()
    else:
        assert patterns.keys() == wanted.keys()
    for metric, pattern in patterns.items():
        expression = re.compile(pattern)
        assert expression.groups == 1
        matches = [match for line in lines if (match := expression.search(line))]
        if name not in THOUSANDS:
            assert wanted[metric] <= {float(match[1]) for match in matches}


def test_rows_belong_to_the_header_above_them() -> None:
    """Also if two tables look alike, come by turns, and had rows before their headers."""
    first = ["epoch  train_loss  acc", "1  0.5  0.75"]
    second = ["epoch  val_loss  f1", "1  0.4  0.25"]
    readings = read(["1  0.1  0.2", *first, *second, *first, *second])
    names = [set(reading.values) for reading in readings]
    assert names == [{"train_loss", "acc"}, {"val_loss", "f1"}] * 2


def test_a_header_is_forgotten_far_from_its_rows() -> None:
    lines = ["epoch,loss", *[f"nothing {'x' * i}" for i in range(60)], "2,0.25"]
    assert not read(lines)
    assert read(lines[:40] + lines[-1:])[0].values == {"loss": 0.25}


def test_lines_of_one_form_are_read_at_once() -> None:
    """Twenty thousand lines without a metric are not looked at one by one."""
    recogniser = Recogniser()
    lines = [f"{i:06} loader opened shard {i}, loss of time {i % 7}.5 s" for i in range(20_000)]
    assert not list(recogniser.blocks(lines))
    assert recogniser.state["_looks"] < 20
    list(recogniser.blocks(["step 7 loss 0.5"]))
    (reading,) = readings_of(recogniser.blocks(["step 8 loss 0.25"]))
    assert reading == Reading(20_001, 8, {"loss": 0.25}, {"step": 8})


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text("loss acEpoch=:0159.,|/%[](){}'\"\t\r\x1b\0-+eE█#@\ud800\n", max_size=80)))
def test_no_text_breaks_it(lines: list[str]) -> None:
    recogniser = Recogniser()
    for reading in readings_of(recogniser.blocks(lines)):
        assert reading.line < len(lines)
    json.dumps(recogniser.state)
    for pattern in recogniser.patterns().values():
        assert re.compile(pattern).groups == 1


@pytest.mark.parametrize(
    "line",
    [
        "loss " * 390,
        "loss=" + "1" * 1_900,
        "step 1 loss 0.5 " + " " * 1_900 + "x",
        "step 1 loss 0.5 " + "=" * 1_900 + "x",
        "step 1 loss: " + "1d" * 900,
        "step 1 " + "loss=0.5 " * 200,
        "step 1 acc: " + "(" * 1_900,
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """Neither while it is learnt nor afterwards, with something else at its end."""
    recogniser = Recogniser()
    begun = time.process_time()
    list(recogniser.blocks([line, line + "?", line.replace("1", "2"), line[:-2]]))
    assert time.process_time() - begun < 2
