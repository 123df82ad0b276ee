"""Which estimator a job becomes, and what is said where it is not the framework's with a `distribution`."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from tests.parity.conftest import Sent, session_of
from tests.parity.jobs import Case, machine, plan_of
from tests.parity.wire import Wire

pytestmark = pytest.mark.parity(2)

TORCH: dict[str, Any] = {"torch_distributed": {"enabled": True}}
KINDS = {
    "torch": ({"type": "torch"}, TORCH),
    "deepspeed": ({"type": "deepspeed"}, TORCH),
    "mpi": ({"type": "deepspeed", "launch": "mpi"}, {"mpi": {"enabled": True}}),
}


def case(kind: str, **fields: Any) -> Case:
    job = {"distribution": KINDS[kind][0], "resources": machine("ml.g5.12xlarge", 2), **fields}
    return Case(job)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "hyperparameters", [{}, {"flag": True}, {"flag": False, "lr": 1e-4}, {"options": {"a": 1}}]
)
def test_it_is_the_frameworks_with_a_distribution(
    kind: str, hyperparameters: dict[str, Any], wire: Wire
) -> None:
    """Without a warning, and with the hyperparameters as they are."""
    plan = plan_of(case(kind, hyperparameters=hyperparameters))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        estimator: Any = plan.to_estimator(session_of("us-west-2"))
    assert not [one for one in told if one.category is UserWarning and "SDK's" in str(one.message)]
    assert type(estimator).__name__ == "PyTorch"
    assert estimator.distribution == KINDS[kind][1]
    given = {name: json.loads(text) for name, text in estimator.hyperparameters().items()}
    assert hyperparameters.items() <= given.items()


@pytest.mark.parametrize("kind", ["torch", "deepspeed"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hyperparameters": {"layers": [1, 2]}}, "would break `layers`"),
        ({"hyperparameters": {"note": "two words"}}, "would break `note`"),
        ({"hyperparameters": {"flag": True}, "bare_flags": True}, "this job has `bare_flags`"),
        ({"arguments": ["--flag"]}, "this job has `arguments`"),
    ],
)
def test_what_it_became_is_told_at_the_call(
    kind: str, fields: dict[str, Any], reason: str, sent: Sent
) -> None:
    """The generic class sends what cloudtrain's launcher needs; the warning points at the caller and gives the reason."""
    plan = plan_of(case(kind, **fields))
    with pytest.warns(UserWarning, match="generic `Estimator`") as told:
        estimator: Any = plan.to_estimator(session_of("us-west-2"))
    (note,) = [one for one in told if "generic `Estimator`" in str(one.message)]
    assert note.filename == __file__
    assert reason in str(note.message)
    assert type(estimator).__name__ == "Estimator"
    assert sent(estimator, plan.fit_arguments()) == plan.request


def test_what_the_sdk_does_not_say_is_told(wire: Wire) -> None:
    """A number of processes goes beside the distribution."""
    fields = {"distribution": {"type": "torch", "processes_per_instance": 2}}
    plan = plan_of(case("torch", **fields))
    with pytest.warns(UserWarning, match="sagemaker_mpi_num_of_processes_per_host"):
        estimator: Any = plan.to_estimator(session_of("us-west-2"))
    assert estimator.distribution == TORCH
