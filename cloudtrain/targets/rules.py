"""Find rules by code, and check a job's plan with the rules of its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import TargetUnavailable, UsageError, did_you_mean, shortened
from cloudtrain.rules.engine import Rule, Subject, Where, load_rules, registered, run_checks
from cloudtrain.system.plugins import OWN_PACKAGE, package_of_target
from cloudtrain.targets.registry import all_targets, target_of

if TYPE_CHECKING:
    from cloudtrain.code.tree import Tree
    from cloudtrain.job.processing import ProcessingJob
    from cloudtrain.job.training import TrainingJob
    from cloudtrain.plans.plan import Finding, Plan
    from cloudtrain.targets.settings import TargetSettings


def all_rules() -> list[Rule]:
    """Return all rules of all targets, sorted by code."""
    for target in all_targets():
        with suppress(TargetUnavailable):  # the rules of a broken package; its own jobs report them
            load_rules_of(target, (*target.rule_modules, *target.online_rule_modules))
    return [registered[code] for code in sorted(registered)]


def load_rules_of(target: Where, modules: Iterable[str]) -> None:
    """Import the portable rules, and the target's rules in `modules`.

    Raises:
        TargetUnavailable: a module of another package cannot be imported, or its rules have wrong codes.
    """
    package = package_of_target(target.name)
    if package == OWN_PACKAGE:
        load_rules(modules)
        return
    load_rules()
    known = set(registered)
    try:
        load_rules(modules)
        wrong = next((code for code in registered.keys() - known if not code.startswith(target.rule_prefix)), None)
        if wrong is not None:
            raise ValueError(f"the code `{wrong}` does not begin with `{target.rule_prefix}`")
    except Exception as error:
        for code in registered.keys() - known:
            del registered[code]
        message = f"the rules of the target `{target.name}` cannot be loaded: {type(error).__name__}: {error}"
        hint = f"upgrade its package `{package}`, or uninstall it: `pip uninstall {package}`"
        raise TargetUnavailable(message, hint=hint) from error


def rule_named(code: str) -> Rule:
    """Return the rule with the code `code`, in upper or lower case.

    Raises:
        UsageError: the code is unknown.
    """
    all_rules()
    rule = registered.get(code.upper())
    if rule is not None:
        return rule
    from cloudtrain.job.codes import error_codes

    if code.upper() in error_codes():
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
    reading = where.read(job, settings, account, plan, processing)
    return Subject(reading, where, settings, tree)


def check_plan(subject: Subject, *, ignore: Sequence[str] = (), portable: bool = False) -> tuple[Finding, ...]:
    """Check a plan with all rules except those in `ignore`. Return the findings, errors first. `portable`: use only the
    rules that apply to all targets and need no request.

    Raises:
        UsageError: `ignore` names a rule that does not exist.
    """
    ignored = {rule_named(code).code for code in ignore}
    load_rules_of(subject.where, subject.where.rule_modules)
    return run_checks(subject, ignored=ignored, portable=portable)
