"""Requests that the SDK once sent, turned into calls of the SDK, are sent again without a difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.backends.sagemaker.export.calls import build
from cloudtrain.backends.sagemaker.export.estimator import estimator_program
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)

REGION = "us-west-2"
FOLDER = Path(__file__).parent.parent / "golden" / "sagemaker_sdk_v2"


def recorded() -> list[Any]:
    """Every recorded training request, by its name."""
    files = {file.stem: json.loads(file.read_text())["request"] for file in sorted(FOLDER.glob("*.json"))}
    return [pytest.param(request, id=name) for name, request in files.items() if "AlgorithmSpecification" in (request or {})]


@pytest.mark.parametrize("request_", recorded())
def test_a_recorded_request_is_sent_again(
    request_: dict[str, Any], wire: Wire, sent: Callable[[Any, dict[str, Any]], dict[str, Any]]
) -> None:
    """The estimator made from a request sends that request, whole, and makes no other call."""
    estimator, arguments = build(estimator_program(request_, REGION))
    assert sent(estimator, arguments) == request_
    assert wire.calls == ["sagemaker:CreateTrainingJob"]
