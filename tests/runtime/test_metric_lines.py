"""Metric lines: written by rank 0, read back by cloudtrain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime import format_metrics, parse_metrics, report

NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_./-]{0,20}\Z")
NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(width=32))


def test_the_line_is_what_the_documentation_says(capsys: pytest.CaptureFixture[str]) -> None:
    """`report` prints exactly this line."""
    report(step=10, epoch=1, loss=0.25)
    assert capsys.readouterr().out == "[metrics] step=10 epoch=1 loss=0.25\n"


def test_only_rank_0_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank calls `report`; one line comes out."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    report(step=1, loss=0.5)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    report(step=1, loss=0.5)
    assert capsys.readouterr().out == "[metrics] step=1 loss=0.5\n"


@given(st.dictionaries(NAMES, NUMBERS, min_size=1))
def test_values_survive_the_way_there_and_back(values: dict[str, float]) -> None:
    """Whole numbers come back exact, others to 7 digits, NaN and infinity as such."""
    found = parse_metrics(format_metrics(values))
    assert found is not None
    assert list(found) == list(values)
    for name, value in values.items():
        if isinstance(value, int):
            assert found[name] == value
        elif math.isnan(value):
            assert math.isnan(found[name])
        else:
            assert found[name] == pytest.approx(value, rel=5e-7)


@given(st.text(max_size=60))
def test_other_lines_are_not_metrics(line: str) -> None:
    """A line without the prefix is never read as one."""
    if "[metrics]" not in line:
        assert parse_metrics(line) is None


@given(st.text(alphabet="[]metrics =.0x1\n\t", max_size=40))
def test_the_parser_never_raises(tail: str) -> None:
    """Whatever a script prints, the client goes on."""
    found = parse_metrics("[metrics]" + tail)
    assert found is None or all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[default0]:", "rank 0 | ", "2026-01-02T03:04:05Z "]
)
def test_a_launchers_prefix_does_not_matter(prefix: str) -> None:
    """mpirun, torchrun and the clouds put their own text in front."""
    assert parse_metrics(prefix + "[metrics] loss=1e-05\n") == {"loss": 1e-05}


@pytest.mark.parametrize(
    "line",
    ["[metrics]", "[metrics] loss", "[metrics] loss=", "[metrics] loss=low", "[metrics] a=1,b"],
)
def test_half_a_line_is_no_metric(line: str) -> None:
    """A line cut short or hand-written wrongly is ignored, not half read."""
    assert parse_metrics(line) is None


@pytest.mark.parametrize("name", ["a b", "a=b", "", "1a"])
def test_names_that_would_not_come_back_are_refused(name: str) -> None:
    """The mistake is told where it is made."""
    with pytest.raises(ValueError, match="is not a name for a metric"):
        format_metrics({name: 1.0})


def test_a_whole_number_of_any_size_is_printed() -> None:
    assert format_metrics({"n": 10**400}) == f"[metrics] n={10**400}"


@pytest.mark.torch
def test_tensors_are_numbers() -> None:
    """A loss tensor needs no `.item()`, and a whole one stays whole."""
    import torch

    assert (
        format_metrics({"n": torch.tensor(3), "loss": torch.tensor(0.1)})
        == "[metrics] n=3 loss=0.1"
    )
