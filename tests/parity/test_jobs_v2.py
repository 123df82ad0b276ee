"""`plan.to_estimator().fit(...)` sends exactly `plan.request`, whole, for every job that version 2 can express."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.conftest import LOOKUPS, Sent, session_of
from tests.parity.jobs import CASES, plan_of
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)


def test_there_are_enough_cases() -> None:
    """The table does not shrink unseen."""
    assert len(CASES) >= 100


@pytest.mark.parametrize("name", CASES)
def test_the_sdk_sends_the_plan(name: str, sent: Sent) -> None:
    """The request that reaches CreateTrainingJob is the plan's, field for field."""
    plan = plan_of(CASES[name])
    session = session_of(plan.place)
    assert sent(plan.to_estimator(session), plan.fit_arguments()) == plan.request


@pytest.mark.parametrize("name", ["torch", "groups_mpi", "everything", "image_alone"])
def test_the_code_sends_the_plan(name: str, wire: Wire) -> None:
    """The printed code, run as it is, sends the same, with the session that it makes itself."""
    plan = plan_of(CASES[name])
    before = len(LOOKUPS)
    exec(compile(plan.to_python(), "job.py", "exec"), {})
    assert wire.training_jobs == [plan.request]
    assert wire.calls == ["sagemaker:CreateTrainingJob"]
    assert len(LOOKUPS) == before


def test_a_session_is_made_where_none_is_given(wire: Wire) -> None:
    """Without a session the estimator has one of the plan's region that makes no call of its own."""
    plan = plan_of(CASES["region_frankfurt"])
    before = len(LOOKUPS)
    estimator: Any = plan.to_estimator()
    estimator.fit(**plan.fit_arguments(), wait=False)
    assert estimator.sagemaker_session.boto_region_name == "eu-central-1"
    assert wire.training_jobs == [plan.request]
    assert wire.calls == ["sagemaker:CreateTrainingJob"]
    assert len(LOOKUPS) == before
