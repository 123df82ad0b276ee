"""The environment that cloudtrain builds for a job's requirements: its folder and its entry in a plan.

This module is pure.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.launch.specification import BuiltEnvironment

if TYPE_CHECKING:
    from cloudtrain.core.plan import CompileContext
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.targets.common.this_machine import LocalPlan
    from cloudtrain.targets.local.settings import Local

_FORMAT = 1
"""Version of the layout of environments. A new version gets new folders, so that every environment is built again."""


def environment_of(job: AnyJob, settings: Local, context: CompileContext) -> BuiltEnvironment | None:
    """Return the environment to build for the job; None if the job uses the interpreter directly."""
    file = job.environment.requirements
    if not settings.build_environment or file is None or context.requirements is None:
        return None
    python, real = context.account.interpreter
    content = json.dumps([_FORMAT, python, real, context.requirements])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    return BuiltEnvironment(f"{context.account.state_dir}/environments/{key}", python, file)


def settings_in(environment: BuiltEnvironment, settings: Local) -> Local:
    """Return the settings with `python` set to the environment's interpreter."""
    return settings.model_copy(update={"python": f"{environment.folder}/bin/python"})


def plan_with(environment: BuiltEnvironment, plan: LocalPlan) -> LocalPlan:
    """Return the plan with the environment added to its request and to its summary."""
    request: dict[str, Any] = {**plan.request, "environment": environment.to_json()}
    words = f"{environment.folder}\n`{environment.requirements}` on top of what `{environment.python}` has"
    return replace(plan, request=request, summary=(*plan.summary, ("environment", words)))
