"""The words for where a job is are those that the real SDK knows."""

from __future__ import annotations

import pytest

from cloudtrain.targets.azureml.service.status import STATES

pytestmark = pytest.mark.parity("azureml")


def test_the_states_are_those_of_the_sdk() -> None:
    """All of them, and none that it does not have."""
    from azure.ai.ml.operations._run_history_constants import JobStatus

    assert {word for name, word in vars(JobStatus).items() if not name.startswith("_")} == set(
        STATES
    )
