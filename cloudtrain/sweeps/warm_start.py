"""Continue a sweep of a service's tuner as a new run, in which the tuner uses the results of the earlier run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cloudtrain.core.plan import Plan, Upload
from cloudtrain.errors import UsageError
from cloudtrain.lifecycle.code import SameCode
from cloudtrain.lifecycle.inputs import outputs_of
from cloudtrain.lifecycle.submission import Submission, Submitted, submit_once
from cloudtrain.settings import Settings
from cloudtrain.store.history import Kept
from cloudtrain.store.kinds import TUNER
from cloudtrain.store.opening import open_store
from cloudtrain.store.origin import origin_here
from cloudtrain.store.store import RunRecord
from cloudtrain.sweeps.services import service_named
from cloudtrain.targets.base import Tuner
from cloudtrain.targets.common.compiling import run_name, submission_key

_NAMELESS = "sweep-00000000-0"


def continue_sweep(
    row: RunRecord, kept: Kept, settings: Settings, tuner: Tuner, trials: int, report: Callable[[Submitted], None]
) -> Submitted:
    """Submit the run that continues the sweep `row` with `trials` additional trials, exactly once.

    Args:
        kept: the store's record of the request that was sent for `row`.
        report: shows the new run to the user.

    Raises:
        UsageError: the tuner cannot continue the sweep, or its request had a secret, which the store does not keep
            (CT973).
        TargetError: the target refused or could not be reached.
    """
    if kept.hidden:
        message = f"the store keeps no secrets, and `{row.name}` had one in `{kept.hidden[0]}`"
        raise UsageError(message, hint="submit the sweep again", code="CT973")
    started = len(tuner.trials(row.ref))

    def plan_as(name: str) -> Plan:
        text = json.dumps({key: kept.plan[key] for key in ("request", "uploads")})
        content = json.loads(re.sub(rf"{re.escape(row.name)}(?![0-9])", name, text))
        return Plan(
            target=row.target,
            run_name=name,
            job_name=row.job_name,
            request=tuner.continued(content["request"], row.name, trials, started),
            uploads=tuple(Upload(**item) for item in content["uploads"]),
            place=row.place or "",
        )

    def sent(plan: Plan) -> Kept:
        import cloudtrain

        fields = {**kept.plan, "run_name": plan.run_name, "request": plan.request, "sha256": plan.sha256}
        job = {**kept.job, "trials": trials}
        return replace(kept, job=job, plan=fields, version=cloudtrain.__version__, rerun_of=row.name)

    key = TUNER + submission_key(plan_as(_NAMELESS))
    with open_store(settings.state_dir) as store:
        old = store.origin_of(row.name)
        submission = Submission(
            service=tuner,
            key=key,
            submitter=settings.submitter,
            plan_of=lambda counter: plan_as(run_name(row.job_name, key, settings.submitter, store.salt, counter)),
            outputs_of=outputs_of,
            bundle=SameCode(kept, row.ref, tuner),
            report=report,
            origin=origin_here(Path.cwd())._replace(project=old.project, labels=old.labels),
            kept_of=sent,
        )
        return submit_once(store, submission, lambda name: service_named(name, settings))
