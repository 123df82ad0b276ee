"""The table of metrics below a run's output: the numbers of any course, and work that does not grow with it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest

from cloudtrain.cli.lines import LineFormat
from cloudtrain.cli.live import LiveMetrics, sparkline
from cloudtrain.core.states import LogLine


def table_of(values: Sequence[float]) -> str:
    """The table on the screen when a run has reported `values` as its loss."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with LiveMetrics(LineFormat(), screen) as live:
        for step, value in enumerate(values):
            live.show(LogLine(0.0, 0, 0, "stdout", f"[metrics] step={step} loss={value!r}"))
    screen.seek(0)
    text = screen.read()
    return text[text.rindex("METRIC") :]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([2.0, 1.0, 3.0], r"loss +3 +1 +3 +▄▁█"),
        ([1.0], r"loss +1 +1 +1 +▁"),
        ([1.0, 2.0, float("nan")], r"loss +nan +1 +2 +▁█ *$"),
        ([float("nan")], r"loss +nan +nan +nan *$"),
        ([1.7e308, -1.7e308, 0.0], r"loss +0 +-1\.7e\+308 +1\.7e\+308 +█▁▄"),
        ([5e-324, 0.0], r"loss +0 +0 +4\.941e-324 +"),
    ],
)
def test_a_course_in_a_row(values: list[float], row: str) -> None:
    """Last, smallest, largest and the trend, for diverged and extreme values too."""
    assert re.search(row, table_of(values))


@pytest.mark.parametrize("count", [768, 769, 770, 1537, 5000])
def test_a_long_course_keeps_its_bounds_and_its_ends(count: int) -> None:
    """A fall with a spike and a last jump: no bound is thinned away, the trend begins and ends as the values do."""
    values = [1.0 - step / count for step in range(count)]
    values[count // 2 + 1], values[-1] = 50.0, 100.0
    row = re.search(r"loss +100 +(\S+) +100 +([▁-█]+)", table_of(values))
    assert row is not None
    assert float(row[1]) == pytest.approx(values[-2], rel=1e-3)
    assert len(row[2]) == 24
    assert (row[2][0], row[2][-1]) == ("▁", "█")


def test_the_table_is_built_when_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times a second, not with every line: a run of 100,000 steps is followed as quickly as one of 100."""
    from rich import table

    built = []

    class Counted(table.Table):
        def __init__(self, *arguments: object, **options: object) -> None:
            built.append(self)
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "Table", Counted)
    assert "step 9999" in table_of([0.5] * 10_000)
    assert 1 <= len(built) < 1000


def test_the_trend_of_extremes() -> None:
    """Differences that no float holds are drawn all the same."""
    assert sparkline([1.7e308, -1.7e308, 0]) == "█▁▄"


def test_lines_that_patterns_read_are_printed_too() -> None:
    """Such a line is the script's own: it stays in the output, and its values are in the table."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with LiveMetrics(LineFormat(), screen) as live:
        live.show(LogLine(0.0, 0, 0, "stdout", "step 3 loss: 0.5", {"step": 3.0, "train:loss": 0.5}))
        live.show(LogLine(0.0, 0, 1, "stdout", "step 3 loss: 0.7", {"step": 3.0, "train:loss": 0.7}))
    assert live.latest == {"step": 3.0, "train:loss": 0.5}
    screen.seek(0)
    text = screen.read()
    assert "step 3 loss: 0.7" in text
    assert re.search(r"train:loss +0\.5 +0\.5 +0\.5", text)
