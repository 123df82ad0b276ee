"""Jobs that are right: no error, and no warning or notice but those that are worth saying."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Finding, Level
from cloudtrain.targets.sagemaker.rules import distribution
from tests.rules.sensible_jobs import SENSIBLE, Sensible

TARGETS = {
    "sagemaker": ct.SageMaker(
        region="us-west-2", role="arn:aws:iam::123456789012:role/R", bucket="my-bucket"
    ),
    "azureml": ct.AzureML(
        subscription_id="11111111-2222-3333-4444-555555555555",
        resource_group="group",
        workspace="ws",
    ),
}


def findings(case: Sensible, make_source: Callable[..., Path]) -> tuple[Finding, ...]:
    """What a plan says about the job, through the public API."""
    fields = {
        "name": "job",
        "entry_point": "train.py",
        "source_dir": str(make_source(case.files)),
    } | case.job
    kind = ct.TrainingJob if case.kind == "training" else ct.ProcessingJob
    job = kind(**{name: value for name, value in fields.items() if value is not None})
    target = type(TARGETS[case.target])(
        **TARGETS[case.target].model_dump(exclude_unset=True), **case.settings
    )
    return ct.plan(job, target).findings


class Day(date):
    """The day on which the table was written: images that were patched then are not one day."""

    @classmethod
    def today(cls) -> Day:
        return cls(2026, 11, 27)


@pytest.mark.parametrize("name", SENSIBLE)
def test_a_sensible_job_is_left_alone(
    name: str, make_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stops it, and what is said about it is what the table says."""
    monkeypatch.setattr(distribution, "date", Day)
    found = findings(SENSIBLE[name], make_source)
    told = {finding.code: finding.message for finding in found}
    assert [
        finding
        for finding in found
        if finding.level is Level.ERROR and finding.code not in SENSIBLE[name].told
    ] == []
    assert told.keys() == set(SENSIBLE[name].told), told
