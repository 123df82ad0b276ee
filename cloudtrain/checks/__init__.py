"""Preflight rules: what is wrong with a job before it costs money. One function per rule, registered with a code.

The rules of a target are imported with the first job for it, because a dry run on this machine should not wait for
those of a cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from cloudtrain.checks.rule import Rule, Subject, registered
from cloudtrain.errors import UsageError, did_you_mean
from cloudtrain.plans import Finding

__all__ = ["Rule", "Subject", "all_rules", "rule_named", "run_checks"]

_PORTABLE = ("job_rules", "bundle_rules", "processing_rules", "run_rules")

_FAMILIES: dict[str, tuple[str, ...]] = {
    "local": ("local_rules",),
    "sagemaker": (
        "sagemaker_account_rules",
        "sagemaker_request_rules",
        "sagemaker_machine_rules",
        "sagemaker_cluster_rules",
        "sagemaker_library_rules",
        "sagemaker_image_rules",
        "sagemaker_distribution_rules",
        "sagemaker_process_rules",
        "sagemaker_script_rules",
        "sagemaker_time_rules",
        "sagemaker_cost_rules",
        "sagemaker_data_rules",
        "sagemaker_parameter_rules",
        "sagemaker_network_rules",
    ),
    "azureml": (
        "azureml_account_rules",
        "azureml_request_rules",
        "azureml_machine_rules",
        "azureml_distribution_rules",
        "azureml_time_rules",
        "azureml_data_rules",
        "azureml_environment_rules",
        "azureml_variable_rules",
        "azureml_container_rules",
    ),
}
"""Target to the modules with its rules; importing them registers their rules."""

_ASKED = ("sagemaker_online", "azureml_online")
"""Modules whose rules a backend finds broken when it asks the account."""

_ANY_JOB = ("sagemaker_account_rules", "sagemaker_request_rules", "sagemaker_cost_rules")
"""Modules of SageMaker's whose rules hold for processing jobs as well."""


def all_rules() -> list[Rule]:
    """Every rule, by code."""
    _load_all()
    return [registered[code] for code in sorted(registered)]


def rule_named(code: str) -> Rule:
    """The rule of that code, whatever its case.

    Raises:
        UsageError: no rule has that code.
    """
    _load_all()
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
    _load(subject.plan.target)
    rules = [registered[code] for code in sorted(registered) if code not in ignored]
    findings = [found for rule in rules if _applies(rule, subject) for found in rule.findings(subject)]
    return tuple(sorted(findings, key=lambda found: (_ORDER.index(found.level.value), found.code)))


def _applies(rule: Rule, subject: Subject) -> bool:
    """SageMaker's rules about training do not look at the request of a processing job."""
    if not rule.applies_to(subject.plan.target):
        return False
    module = rule.check.__module__.rpartition(".")[2]
    return subject.processing is None or module not in _FAMILIES["sagemaker"] or module in _ANY_JOB


_ORDER = ("error", "warning", "notice")


def _load(target: str) -> None:
    """Import the portable rules and those of a target."""
    _import(*_PORTABLE, *_FAMILIES.get(target, ()))


def _load_all() -> None:
    _import(*_PORTABLE, *_ASKED, *(module for family in _FAMILIES.values() for module in family))


def _import(*modules: str) -> None:
    for module in modules:
        import_module(f"{__name__}.{module}")
