"""Find rules by code, and check a job's plan with the rules of its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError, did_you_mean, shortened
from cloudtrain.rules import load_rules, run_checks
from cloudtrain.rules.rule import Rule, Subject, registered
from cloudtrain.targets.registry import all_targets, target_of

if TYPE_CHECKING:
    from cloudtrain.bundle.tree import Tree
    from cloudtrain.core.job import TrainingJob
    from cloudtrain.core.plan import Finding, Plan
    from cloudtrain.core.processing import ProcessingJob
    from cloudtrain.targets.settings import TargetSettings


def all_rules() -> list[Rule]:
    """Return all rules of all targets, sorted by code."""
    load_rules(module for target in all_targets() for module in (*target.rule_modules, *target.online_rule_modules))
    return [registered[code] for code in sorted(registered)]


def rule_named(code: str) -> Rule:
    """Return the rule with the code `code`, in upper or lower case.

    Raises:
        UsageError: the code is unknown.
    """
    all_rules()
    rule = registered.get(code.upper())
    if rule is not None:
        return rule
    from cloudtrain.problems.codes import ERROR_CODES

    if code.upper() in ERROR_CODES:
        hint = f"`cloudtrain explain {code.upper()}` explains how to correct it"
        raise UsageError(f"`{code.upper()}` is an error code, and errors cannot be ignored", hint=hint)
    near = did_you_mean(code.upper(), registered) if len(code) > 3 else None
    hint = near if near and near.startswith("did you mean") else "`cloudtrain explain` lists all codes"
    raise UsageError(f"the rule `{shortened(code)}` does not exist", hint=hint)


def subject_of(
    job: TrainingJob,
    settings: TargetSettings,
    account: Any,
    plan: Plan,
    tree: Tree,
    processing: ProcessingJob | None = None,
) -> Subject:
    """Return the subject of the rules: the job, its target and settings, its plan and its files."""
    where = target_of(settings.type)
    return Subject(job, where, settings, where.request_view(settings), account, plan, tree, processing)


def check_plan(subject: Subject, *, ignore: Sequence[str] = (), portable: bool = False) -> tuple[Finding, ...]:
    """Check a plan with all rules except those in `ignore`. Return the findings, errors first. `portable`: use only the
    rules that apply to all targets and need no request.

    Raises:
        UsageError: `ignore` names a rule that does not exist.
    """
    ignored = {rule_named(code).code for code in ignore}
    load_rules(subject.where.rule_modules)
    return run_checks(subject, ignored=ignored, portable=portable)
