"""Preflight rules, which find mistakes in a job before it costs money. Each rule is a function with a code.

A target's rules are in the target's folder. They are imported with the first job for that target, so a local dry run
does not wait for the rules of a cloud. `cloudtrain.targets.rules` lists the rules of all targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib import import_module

from cloudtrain.core.plan import Finding
from cloudtrain.rules.rule import PORTABLE, Rule, Subject, registered

__all__ = ["Rule", "Subject", "load_rules", "run_checks"]

_PORTABLE = tuple(
    f"{__name__}.portable.{name}" for name in ("job", "value", "bundle", "image", "place", "processing", "run")
)

_ORDER = ("error", "warning", "notice")


def load_rules(modules: Iterable[str] = ()) -> None:
    """Import the portable rules and the rules in `modules`. Importing a module registers its rules."""
    for module in (*_PORTABLE, *modules):
        import_module(module)


def run_checks(subject: Subject, *, ignored: Collection[str] = (), portable: bool = False) -> tuple[Finding, ...]:
    """Return all findings for a job, errors first. The rules must have been loaded with `load_rules`.

    Args:
        subject: the object that the rules check.
        ignored: codes of rules to skip.
        portable: apply only the portable rules, for a job that could not be compiled to a request.
    """
    prefixes = (PORTABLE,) if portable else (PORTABLE, subject.where.rule_prefix)
    codes = (code for code in sorted(registered) if code.startswith(prefixes) and code not in ignored)
    rules = [registered[code] for code in codes]
    if subject.processing is not None:
        rules = [rule for rule in rules if rule.module not in subject.where.only_training_rule_modules]
    findings = [found for rule in rules for found in rule.findings(subject)]
    return tuple(sorted(findings, key=lambda found: (_ORDER.index(found.level.value), found.code)))
