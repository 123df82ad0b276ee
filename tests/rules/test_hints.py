"""A hint is true: who does what it says is rid of the finding, and meets no error that was not there before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.plans.plan import Finding, Level
from tests.rules import azureml_rule_cases as azure
from tests.rules import sagemaker_rule_cases as aws
from tests.rules import (
    test_azureml_rules,
    test_azureml_rules_edges,
    test_overrides,
    test_places,
    test_rules,
    test_sagemaker_rules,
    test_sagemaker_rules_edges,
)
from tests.rules.following import followed, ways

MakeSource = Callable[..., Path]

SMDDP, HOROVOD, EIGHT_A10G = aws.SMDDP, {"type": "horovod"}, aws.on("ml.g5.48xlarge", 2)
NEW_IMAGE = aws.image(f"{aws.DLC}/pytorch-training:2.8.0-gpu-py312")
CPU_IMAGE = f"{aws.DLC}/pytorch-training:2.8.0-cpu-py312"

MORE: dict[str, tuple[str, Any]] = {
    "SMDDP with a new TensorFlow": (
        "SM301", aws.job(resources=aws.P4D, distribution=SMDDP, environment=aws.tensorflow("2.14")),
    ),
    "SMDDP in an image that is named": ("SM301", aws.job(resources=aws.P4D, distribution=SMDDP, environment=NEW_IMAGE)),
    "SMDDP with options of mpirun": (
        "SM301", aws.job(resources=aws.P4D, distribution=SMDDP | {"mpi_options": "-x A=b"}, environment=aws.pytorch("2.8")),
    ),
    "SMDDP with TensorFlow on A10G": (
        "SM302", aws.job(resources=EIGHT_A10G, distribution=SMDDP, environment=aws.tensorflow("2.11")),
    ),
    "SMDDP on the wrong type in the wrong image": (
        "SM302", aws.job(resources=EIGHT_A10G, distribution=SMDDP, environment=aws.pytorch("2.8")),
    ),
    "SMDDP without GPUs": (
        "SM302", aws.job(resources=aws.on("ml.m5.xlarge", 2), distribution=SMDDP, environment=aws.pytorch("2.2.0")),
    ),
    "SMDDP on Trainium": ("SM302", aws.job(resources=aws.on("ml.trn1.32xlarge", 2), distribution=SMDDP)),
    "SMDDP on a group": (
        "SM302",
        aws.job(
            resources={"instance_groups": [{"name": "a", "instance_type": "ml.g5.48xlarge", "instance_count": 2}]},
            distribution=SMDDP, environment=aws.pytorch("2.2.0"),
        ),
    ),
    "SMP's first version with a new PyTorch": (
        "SM304", aws.job(resources=aws.P4D, distribution=aws.SMP1, environment=aws.pytorch("2.8")),
    ),
    "an old image for SMDDP": (
        "SM309", aws.job(resources=aws.P4D, distribution=SMDDP, environment=aws.pytorch("2.2.0")),
    ),
    "Horovod with TensorFlow": (
        "SM311", aws.job(resources=aws.G5, distribution=HOROVOD, environment=aws.tensorflow("2.14")),
    ),
    "Horovod alone without a GPU": (
        "SM334", aws.job(resources=aws.CPU, distribution=HOROVOD, environment=aws.pytorch("1.13.1")),
    ),
    "an image without CUDA on Trainium": (
        "SM306", aws.job(resources=aws.TRN, distribution=aws.TORCH, environment=aws.image(CPU_IMAGE)),
    ),
    "an image without CUDA by the overrides": (
        "SM306", aws.overrides(AlgorithmSpecification={"TrainingImage": CPU_IMAGE}),
    ),
    "TensorFlow on two instances": (
        "CT501", aws.job(resources=aws.on("ml.g5.8xlarge", 2), environment=aws.tensorflow("2.14")),
    ),
    "TensorFlow on two instances of Azure": (
        "CT501", azure.job(resources=azure.on(azure.CPU, 2), environment={"framework": "tensorflow"}),
    ),
    "MPI alone without a GPU": ("AZ324", azure.job(resources=azure.on(azure.CPU), distribution=azure.MPI)),
    "an old key file, by its name": (
        "CT304", test_rules.Case(files={**test_rules.SOURCE, ".env.prod": "A=1\n", ".cloudtrainignore": "!.env.*\n"}),
    ),
}  # fmt: skip
"""Jobs whose hints were wrong once, or are easily: another framework, another kind of machine, a part that is given."""

JOBS: dict[str, tuple[str, Any]] = {
    **{
        code: (code, bad)
        for rules in (test_rules, aws, azure)
        for code, (bad, *_) in rules.CASES.items()
    },
    **{f"overrides: {name}": (code, bad) for name, (code, bad, *_) in test_overrides.WRONG.items()},
    **{
        f"azureml: {name}": (code, bad)
        for name, (code, bad, _) in test_azureml_rules_edges.WRONG.items()
    },
    **{
        f"sagemaker: {name}": (code, bad)
        for name, (code, bad, _) in test_sagemaker_rules_edges.WRONG.items()
    },
    **{f"places: {name}": (code, bad) for name, (code, bad, _) in test_places.COLLIDE.items()},
    **MORE,
}

HUMAN = {
    "CT202": "script", "CT220": "script", "CT205": "secret", "CT305": "secret", "CT404": "script", "CT214": "script", "CT215": "script", "CT405": "script",
    "SM521": "script", "AZ520": "vault",
    "LO204": "notice", "LO205": "notice", "LO209": "notice",
    "SM103": "role", "SM106": "key", "SM107": "image", "SM113": "script", "SM305": "image", "SM308": "image",
    "SM415": "data", "SM327": "script", "SM347": "packages", "SM502": "name", "SM603": "script", "SM604": "algorithm", "SM702": "image",
    "AZ102": "account", "AZ118": "files", "AZ119": "script", "AZ308": "type", "AZ504": "value",
    "AZ603": "image", "AZ605": "image", "AZ606": "image", "AZ722": "account",
}  # fmt: skip
"""Rules whose hints nobody can follow without knowing more, and what has to be known."""

OF_THE_INTERPRETER = {"LO103"}
"""Errors about the Python that runs these tests, which may have no PyTorch."""

LEADS_ON = {
    "overrides: several instances on Azure": "AZ203",
    "overrides: a distribution that is taken away": "AZ203",
    "sagemaker: a type that nobody knows has no price either": "SM412",
}
"""A rule that has something to look at only afterwards: the network of processes that talk, a cost that is known."""


def check(case: Any, make_source: MakeSource, ignore: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """The findings for a case of any target."""
    rules = test_sagemaker_rules if isinstance(case, aws.Case) else test_azureml_rules
    return (test_rules if isinstance(case, test_rules.Case) else rules).check(
        case, make_source, ignore
    )


def errors(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings if finding.level is Level.ERROR}


EACH_CODE = {code for rules in (test_rules, aws, azure) for code in rules.CASES}


@pytest.mark.slow_after(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in EACH_CODE | MORE.keys() else pytest.mark.slow)
        for name in JOBS
    ],
)
def test_a_hint_that_is_followed_helps(name: str, tmp_path: Path) -> None:
    """Each way out that a hint offers: the finding is gone, and no error is new. Only a notice may have no hint."""
    code, case = JOBS[name]
    folders = iter(range(100))

    def make_source(files: dict[str, str]) -> Path:
        root = tmp_path / str(next(folders))
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return root

    before = check(case, make_source)
    assert not [
        finding for finding in before if not finding.hint and finding.level is not Level.NOTICE
    ]
    told = [finding for finding in before if finding.code == code]
    for way, mended, ignore in followed(case, told[0]):
        after = check(mended, make_source, ignore)
        left = [finding for finding in after if finding.code == code]
        assert len(left) < len(told), f"still there after `{way}`: {left}"
        new = errors(after) - errors(before) - {LEADS_ON.get(name)} - OF_THE_INTERPRETER
        assert not new, (
            f"new after `{way}`: {[finding for finding in after if finding.code in new]}"
        )


@pytest.mark.slow
def test_most_hints_can_be_followed(make_source: MakeSource) -> None:
    """Every rule has a job whose hint says what to type, but for those that need a human."""
    typed, told = set(), set()
    for code, case in JOBS.values():
        finding = next(finding for finding in check(case, make_source) if finding.code == code)
        told.add(code)
        if next(followed(case, finding), None):
            typed.add(code)
    assert told - typed == HUMAN.keys()
    assert len(typed) > 4 * len(HUMAN)


def test_the_ways_of_a_hint() -> None:
    """A hint is cut where it offers something else; a value has the verb of the one before it."""
    assert ways("use `a` or `b`; or write `c: 1`, and remove `d`") == [
        "use `a`", "use `b`", "write `c: 1`, and remove `d`",
    ]  # fmt: skip
    assert ways("set `x` to 2 or more, or leave it out") == ["set `x` to 2 or more", "leave it out"]
