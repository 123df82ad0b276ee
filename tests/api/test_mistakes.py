"""Mistakes in Python that no type checker has stopped: a typed error that says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import UsageError
from tests.hints import suggested


@pytest.mark.parametrize("job", ["job.yaml", Path("job.yaml"), None, {"name": "a"}])
@pytest.mark.parametrize("call", [ct.plan, ct.check, ct.submit, ct.upload])
def test_a_file_is_not_a_job(clean_environment: Path, call: Any, job: Any) -> None:
    """The hint reads the file."""
    with pytest.raises(UsageError) as caught:
        call(job)
    assert caught.value.hint == 'read a job file first: `ct.load_job("job.yaml")`'


def test_arguments_are_not_one_text(clean_environment: Path) -> None:
    """Its letters would each be an argument of the script."""
    (clean_environment / "train.py").touch()
    with pytest.raises(UsageError) as caught:
        ct.TrainingJob.from_script("train.py", "--steps 3")
    assert caught.value.hint == "write `['--steps', '3']`"


def test_an_error_of_the_checks_says_which(clean_environment: Path) -> None:
    """The traceback of a refused submit names what is wrong and what to do, without a second call."""
    (clean_environment / "train.py").touch()
    job = ct.TrainingJob(name="a", source_dir=".", entry_point="tran.py")
    with pytest.raises(ct.PreflightError) as caught:
        ct.submit(job)
    assert (
        f"there is no file `tran.py` in the source folder [CT101]\n  hint: {suggested('train.py')}"
        in str(caught.value)
    )


def test_one_condition_may_be_a_text(state_dir: Path) -> None:
    """`where="lr<1"` is one condition, not four."""
    assert ct.runs(where="learning_rate<0.01") == []
