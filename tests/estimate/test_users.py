"""Scripts as users write them are followed as they are. Those of libraries on top of torch run where an interpreter has
these:

    python tools/run/training_scripts.py integrations llm
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import cloudtrain as ct
from tests.estimate import users

KINDS = {
    "nanoGPT's style": (users.NANO, "", 2.0),
    "torchvision's style, with an average of the weights": (users.TORCHVISION, "", 0.5),
    "values and prints everywhere": (users.PRINTS, "", 2.0),
    "autograd functions of its own": (users.FUNCTION, "", 1.0),
    "the Trainer of transformers": (users.TRAINER, "LLM", 2.0),
    "TRL with LoRA": (users.LORA, "LLM", 0.04),
    "Lightning": (users.LIGHTNING, "INTEGRATIONS", 2.0),
    "Accelerate": (users.ACCELERATE, "INTEGRATIONS", 2.0),
}
"""Each kind with its script, the word in the variable for an interpreter that has its libraries, and the bytes of the
optimizer's state for each byte of parameters."""

PYTHONS = {
    word: os.environ.get(f"CLOUDTRAIN_{word}_PYTHON") for word in ("", "LLM", "INTEGRATIONS")
}
"""Read here, because a test's environment has no such variable."""


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_a_users_script_is_estimated_unchanged(
    kind: str, job_of: Callable[..., ct.TrainingJob], sagemaker: ct.SageMaker
) -> None:
    """On a GPU that is not there: its parameters, and the state of its optimizer."""
    script, word, ratio = KINDS[kind]
    if word and not PYTHONS[word]:
        pytest.skip(f"CLOUDTRAIN_{word}_PYTHON names no interpreter")
    report = ct.fit(job_of(script), sagemaker, python=PYTHONS[word])
    assert report.kinds["activations"] > 0
    share = report.kinds["optimizer"] / report.kinds["parameters"]
    assert share == pytest.approx(ratio, rel=0.15)
