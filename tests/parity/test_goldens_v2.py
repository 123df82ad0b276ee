"""Requests that the SDK once sent, turned into calls of the SDK, are sent again without a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.targets.common.export import build, python_code
from cloudtrain.targets.sagemaker.export.exports import estimator_program
from tests.parity.conftest import LOOKUPS, Sent
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)

REGION = "us-west-2"
FOLDER = Path(__file__).parent.parent / "golden" / "sagemaker_sdk_v2"


def recorded() -> list[Any]:
    """Every recorded training request, by its name."""
    files = {
        file.stem: json.loads(file.read_text())["request"] for file in sorted(FOLDER.glob("*.json"))
    }
    return [
        pytest.param(request, id=name)
        for name, request in files.items()
        if "AlgorithmSpecification" in (request or {})
    ]


@pytest.mark.parametrize("request_", recorded())
def test_a_recorded_request_is_sent_again(
    request_: dict[str, Any], session: Any, sent: Sent
) -> None:
    """The estimator made from a request sends that request, whole, and makes no other call."""
    estimator, arguments = build(estimator_program(request_, REGION), session=session)
    assert sent(estimator, arguments) == request_


@pytest.mark.parametrize(
    "request_",
    [one for one in recorded() if one.id in ("pt_full_lifecycle", "pt_hetero_mpi", "tf_ps")],
)
def test_the_code_sends_the_request_by_itself(request_: dict[str, Any], wire: Wire) -> None:
    """The printed code, run as it is, sends the request; its own session asks for nothing else."""
    before = len(LOOKUPS)
    exec(
        compile(python_code(estimator_program(request_, REGION), title="A job"), "job.py", "exec"),
        {},
    )
    assert wire.training_jobs == [request_]
    assert wire.calls == ["sagemaker:CreateTrainingJob"]
    assert len(LOOKUPS) == before
