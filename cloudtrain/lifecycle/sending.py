"""The check before a plan is sent, shared by all commands that send one."""

from __future__ import annotations

from cloudtrain.core.plan import Finding, Plan
from cloudtrain.errors import PreflightError


def stop_on_errors(plan: Plan) -> None:
    """Raise PreflightError if the plan has errors, so that it is not sent.

    Raises:
        PreflightError: a check found an error.
    """
    if plan.errors:
        count, code = len(plan.errors), plan.errors[0].code
        raise PreflightError(
            f"{count} check{'s' if count > 1 else ''} found an error, so nothing was sent",
            findings=plan.findings,
            errors=[_text_of(error) for error in plan.errors],
            hint=f"`cloudtrain explain {code}` explains it, and `--ignore {code}` ignores it",
        )


def _text_of(finding: Finding) -> str:
    hint = f"\n  hint: {finding.hint}" if finding.hint else ""
    return f"{finding.message} [{finding.code}]{hint}"
