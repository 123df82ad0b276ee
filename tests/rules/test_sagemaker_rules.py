"""Every SageMaker rule: a bad job that it finds, and the nearest good one that it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext, Finding
from cloudtrain.rules.engine import all_rules, check_plan, rule_named
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from tests.rules.sagemaker_rule_cases import CASES, Case
from tests.rules.subjects import subject_of as make_subject

MakeSource = Callable[..., Path]


def check(case: Case, make_source: MakeSource, ignore: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """The findings for a case, through the real scan and the real compile."""
    job, target = case.training_job, ct.SageMaker(**case.target)
    tree = scan(make_source(case.files))
    plan = compile_sagemaker(
        job, target, CompileContext("job-1a2b3c4d-1", tree.identity, case.account)
    )
    return check_plan(make_subject(job, target, case.account, plan, tree), ignore=ignore)


def test_every_rule_has_a_case() -> None:
    """No rule without a bad and a good case. Those that ask the account are tested with their service."""
    online = ("SM9", "SM522")
    rules = {
        rule.code
        for rule in all_rules()
        if rule.code.startswith("SM") and not rule.code.startswith(online)
    }
    assert rules == CASES.keys()
    assert len(rules) >= 40


@pytest.mark.parametrize("code", CASES)
def test_the_bad_case_is_found(code: str, make_source: MakeSource) -> None:
    """The rule speaks, with its level, in one line, and its hint says what to type. A finding's place leads to a field
    that the job has, or to nothing: a setting of the target."""
    bad, _, hint = CASES[code]
    everything = check(bad, make_source)
    assert all(
        not finding.path or finding.path[0] in ct.TrainingJob.model_fields for finding in everything
    )
    found = [finding for finding in everything if finding.code == code]
    assert found
    assert found[0].level is rule_named(code).level
    assert hint in (found[0].hint or "")
    assert "\n" not in found[0].message
    assert not found[0].message.endswith(".")


@pytest.mark.parametrize("code", CASES)
def test_the_good_case_is_left_alone(code: str, make_source: MakeSource) -> None:
    """The nearest good case has no such finding."""
    _, good, _ = CASES[code]
    assert code not in {finding.code for finding in check(good, make_source)}


@pytest.mark.parametrize("code", ["SM201", "SM411", "SM601"])
def test_an_ignored_rule_is_silent(code: str, make_source: MakeSource) -> None:
    """`--ignore CODE` drops exactly that rule."""
    bad, _, _ = CASES[code]
    everything = {finding.code for finding in check(bad, make_source)}
    without = {finding.code for finding in check(bad, make_source, ignore=(code.lower(),))}
    assert everything - without == {code}
