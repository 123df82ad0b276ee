"""Preflight rules: what is wrong with a job before it costs money. One function per rule, registered with a code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudtrain.checks import bundle_rules, job_rules, local_rules
from cloudtrain.checks.rule import Rule, Subject, registered
from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.plans import Finding

__all__ = ["Rule", "Subject", "all_rules", "rule_named", "run_checks"]

_FAMILIES = (job_rules, bundle_rules, local_rules)  # importing them registers their rules


def all_rules() -> list[Rule]:
    """Every rule, by code."""
    return [registered[code] for code in sorted(registered)]


def rule_named(code: str) -> Rule:
    """The rule of that code, whatever its case.

    Raises:
        UsageError: no rule has that code.
    """
    rule = registered.get(code.upper())
    if rule is None:
        raise UsageError(
            f"there is no rule `{code}`",
            hint=did_you_mean(code.upper(), registered) if len(code) > 3 else "see `cloudtrain explain`",
        )
    return rule


def run_checks(subject: Subject, *, ignore: Sequence[str] = ()) -> tuple[Finding, ...]:
    """All findings for a plan, errors first, without those whose code is ignored.

    Raises:
        UsageError: `ignore` names a rule that does not exist.
    """
    ignored = {rule_named(code).code for code in ignore}
    applicable: Iterable[Rule] = (rule for rule in all_rules() if rule.applies_to(subject.plan.target))
    findings = [found for rule in applicable if rule.code not in ignored for found in rule.findings(subject)]
    return tuple(sorted(findings, key=lambda found: (_ORDER.index(found.level.value), found.code)))


_ORDER = ("error", "warning", "notice")
