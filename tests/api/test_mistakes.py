"""Mistakes in Python that no type checker has stopped: a typed error that says what to write."""

from __future__ import annotations

from collections.abc import Callable
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


ROLE = "arn:aws:iam::111122223333:role/train"
CHANGES: dict[str, tuple[Callable[[ct.TrainingJob], Any], str, str]] = {
    "a wrong duration": (lambda job: job.model_copy(update={"max_runtime": "8 hours"}), "max_runtime", "CT015"),
    "a field that does not exist": (lambda job: job.model_copy(update={"max_runtim": 60}), "max_runtim", "CT010"),
    "a wrong type": (lambda job: job.model_copy(update={"hyperparameters": [1]}), "hyperparameters", "CT012"),
    "a wrong count inside": (
        lambda job: job.model_copy(update={"resources": job.resources.model_copy(update={"instance_count": "2 or 3"})}),
        "resources.instance_count", "CT012",
    ),
    "a model without checks": (
        lambda job: ct.TrainingJob.model_construct(name="a b", entry_point="train.py"), "name", "CT016",
    ),
    "a trial's job": (
        lambda job: ct.Sweep(name="s", job=job, search={"a": [1]}, strategy="grid").model_copy(update={"parallel": "all"}),
        "parallel", "CT012",
    ),
}  # fmt: skip
"""What pydantic's own methods put into a job, where the mistake is, and its code."""


@pytest.mark.parametrize("call", [ct.plan, ct.check, ct.submit, ct.upload, ct.pin])
@pytest.mark.parametrize("name", CHANGES)
def test_what_nobody_has_checked_is_checked(clean_environment: Path, call: Any, name: str) -> None:
    """`model_copy(update=...)` and `model_construct` of pydantic check nothing; whoever gets the job does."""
    (clean_environment / "train.py").write_text("")
    change, place, code = CHANGES[name]
    job = change(ct.TrainingJob(name="j", entry_point="train.py"))
    with pytest.raises(ct.JobError) as error:
        call(job, ct.SageMaker(role=ROLE, region="us-west-2"))
    assert [(problem.dotted, problem.code) for problem in error.value.problems] == [(place, code)]


def test_a_copy_with_a_value_of_another_type(clean_environment: Path) -> None:
    """A text that a job file may have means what it means there, and the rest of the job stays."""
    (clean_environment / "train.py").write_text("")
    (clean_environment / "sub").mkdir()
    (clean_environment / "sub/job.yaml").write_text(
        "name: j\nsource_dir: ..\nentry_point: train.py\ndistribution: {type: torch}\nmetrics: none\n"
        "inputs: {a: {sagemaker: 's3://b/a'}}\ncheckpoint: {sagemaker: 's3://b/c'}\n"
        "resources: {instance_type: ml.m5.large}\nenvironment: {framework: pytorch, version: '2.10'}\n"
    )
    target = ct.SageMaker(role=ROLE, region="us-west-2", max_cost=10)
    job = ct.load_job("sub/job.yaml")
    plan = ct.plan(job.model_copy(update={"max_runtime": "8h"}), target)
    assert plan.request["StoppingCondition"] == {"MaxRuntimeInSeconds": 8 * 3600}
    assert plan.to_dict() == ct.plan(job.replace(max_runtime="8h"), target).to_dict()
    for wrong in ({"max_cost": "ten"}, {"max_cots": 5}):
        with pytest.raises(ct.JobError) as error:
            ct.plan(job, target.model_copy(update=wrong))
        (problem,) = error.value.problems
        assert problem.dotted in wrong
