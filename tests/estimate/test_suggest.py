"""The search for the largest batch that fits: against the answer that counting up finds, and with real runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import UsageError
from cloudtrain.estimate.memory import Need
from cloudtrain.estimate.scaling import MOST_RUNS, largest_that_fits

MOST = 3000
numbers = st.floats(0.01, 30, allow_nan=False)


@given(
    fixed=numbers,
    of_each=numbers,
    squared=st.sampled_from([0.0, 0.0, 0.001, 0.1]),
    block=st.sampled_from([0.0, 5.0]),
    multiple=st.sampled_from([1, 1, 2, 3, 4, 5, 8, 12]),
    count=st.integers(1, 40),
    memory=st.floats(1, 400),
)
def test_it_finds_what_counting_up_finds(
    fixed: float,
    of_each: float,
    squared: float,
    block: float,
    multiple: int,
    count: int,
    memory: float,
) -> None:
    """The script takes multiples of a number. What it needs grows evenly, faster, or in blocks."""

    def need_of(value: int) -> Need | None:
        if value % multiple:
            return None
        need = fixed + of_each * value + squared * value**2
        if block:
            need = block * (need // block + 1)
        return Need(need, need)

    found = largest_that_fits("batch", multiple * count, need_of, memory)
    if found.end == "level":
        return
    assert found.end == "limit"
    assert len(found.needs) <= MOST_RUNS
    fitting = []
    for value in range(multiple, 40_000, multiple):
        need = need_of(value)
        assert need is not None
        if need.most > memory:
            break
        fitting.append(value)
    assert found.value == (fitting[-1] if fitting else None)


def test_a_need_that_grows_evenly_takes_four_runs() -> None:
    found = largest_that_fits("batch", 8, lambda value: Need(0, 3.0 + 2 * value), 100.0)
    assert found.value == 48
    assert list(found.needs) == [8, 16, 48, 49]


def test_a_value_that_changes_nothing_ends_the_search() -> None:
    found = largest_that_fits("batch", 8, lambda value: Need(0, 3.0), 100.0)
    assert (found.value, found.end) == (16, "level")


def test_a_large_first_value_is_no_limit() -> None:
    """It may count tokens."""
    found = largest_that_fits("tokens", 2_000_000, lambda value: Need(0, float(value)), 2_500_000.0)
    assert (found.value, found.end) == (2_500_000, "limit")


def test_a_search_needs_the_script(
    tmp_path: Path, job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    """Formulas know no script, so `--config` beside it is refused and not ignored."""
    job = job_of("raise SystemExit('it ran')", hyperparameters={"batch": 1, "layers": 9})
    for question in ({"suggest": "batch"}, {"layers": "layers"}):
        with pytest.raises(UsageError, match="run the script"):
            ct.fit(job, sagemaker, config=tmp_path, **question)


def test_a_script_that_refuses_large_values_keeps_the_largest_that_ran() -> None:
    def need_of(value: int) -> Need | None:
        return Need(0, 1.0 * value) if value <= 300 else None

    found = largest_that_fits("batch", 1, need_of, 10_000.0)
    assert (found.value, found.end) == (300, "limit")


SCRIPT = """
    import argparse
    import torch
    from torch import nn
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int)
    options = parser.parse_args()
    if options.batch_size % 4:
        raise SystemExit("no multiple of 4")
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(9):
        x = torch.randn(options.batch_size, 1024, 4096, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_largest_batch_of_a_script_fits_and_the_next_does_not(
    job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    """Eight times the batch is too much at first, and multiples of four are all that the script takes."""
    job = job_of(SCRIPT, hyperparameters={"batch_size": 512})
    runs: list[str] = []
    report = ct.fit(job, sagemaker, suggest="batch_size", on_run=runs.append)
    assert report.verdict == "does not fit"
    found = report.suggestion
    assert found is not None
    assert found.value is not None
    assert found.value % 4 == 0
    assert runs[0] == "rank 0"
    assert len(runs) == len(found.needs)

    for value, verdict in ((found.value, "fits"), (found.value + 4, "tight")):
        changed = job.model_copy(update={"hyperparameters": {"batch_size": value}})
        assert ct.fit(changed, sagemaker).verdict == verdict
    row = next(line for line in str(report).splitlines() if "largest" in line)
    assert f"batch_size={found.value} fits, with up to" in row
    assert f"; {found.value + 4} needs up to" in row
    assert json.loads(json.dumps(report.to_dict()))["suggestion"]["value"] == found.value


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("batch", {"batch_size": 8, "lr": 0.1}, "the job has `batch_size`; "),
        ("batch", {}, "`--set hyperparameters.batch=1` adds it"),
        ("batch", {"batch": "eight"}, "adds it, if the script has it"),
        ("batch", {"batch": 0}, "adds it, if the script has it"),
    ],
)
def test_a_name_without_a_number_is_refused_before_anything_runs(
    name: str,
    values: dict[str, object],
    words: str,
    job_of: Callable[..., ct.TrainingJob],
    sagemaker: ct.SageMaker,
) -> None:
    job = job_of("raise SystemExit('it ran')", hyperparameters=values)
    with pytest.raises(UsageError) as raised:
        ct.fit(job, sagemaker, suggest=name)
    assert raised.value.code == "CT948"
    assert f"no hyperparameter `{name}`" in raised.value.message
    assert words in (raised.value.hint or "")


def test_without_a_gpu_there_is_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    code = run_command(
        ["fit", "--set", "hyperparameters.batch=1", "--suggest", "batch", "train.py"]
    )
    assert code == 2
    assert "no GPU is known that a batch could fit" in capsys.readouterr().err
