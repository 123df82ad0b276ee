"""Submission of an earlier run again, with the same code, and the same request except for the run's name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.core.fields import fields_of, model_of_kind
from cloudtrain.core.plan import Plan, Upload
from cloudtrain.errors import JobError, UsageError, dotted
from cloudtrain.lifecycle.code import SameCode, code_of
from cloudtrain.lifecycle.keeping import keep_plan, settings_of
from cloudtrain.lifecycle.planning import prepare_job
from cloudtrain.lifecycle.secrets import is_hidden, texts_of
from cloudtrain.lifecycle.sending import stop_on_errors
from cloudtrain.lifecycle.submission import Submission, Submitted, submit_once
from cloudtrain.settings import Settings
from cloudtrain.store.history import Kept
from cloudtrain.store.kinds import TRIAL
from cloudtrain.store.opening import open_store
from cloudtrain.store.origin import Origin, origin_here
from cloudtrain.store.store import RunRecord, Store
from cloudtrain.system.git import Commit
from cloudtrain.targets.base import ByteProgress
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.registry import service_of

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

_NAMELESS = "job-00000000-0"


@dataclass(frozen=True)
class Again:
    """A run to send again.

    Attributes:
        on_plan: receives the plan before anything is sent.
        report: tells the user about the new run.
    """

    row: RunRecord
    kept: Kept
    settings: Settings
    report: Callable[[Submitted], None]
    on_plan: Callable[[Plan], None] | None = None
    on_bytes: ByteProgress | None = None

    def same(self, name: str | None) -> Submitted:
        """Send the same request under a new run name. The new run belongs to the job `name`; None: to the same job.

        Raises:
            UsageError: the run had secrets, which are not kept (CT973).
        """
        self._refuse_hidden()
        job_name, key, kept = self.row.job_name, self.row.key, self.kept
        if key.startswith(TRIAL) or (name is not None and name != job_name):  # a trial becomes an ordinary run
            name = name or job_name
            job_name = _job(kept.kind, {**kept.job, "name": name}).name
            nameless = replace(self._plan(_NAMELESS, kept), job_name=job_name)
            key = submission_key(nameless)
            kept = replace(kept, job={**kept.job, "name": job_name}, overrides=(*kept.overrides, f"name={job_name}"))
        service = service_of(self.row.target, self.settings)

        def sent(plan: Plan) -> Kept:
            import cloudtrain

            content = {"run_name": plan.run_name, "job_name": plan.job_name, "request": plan.request}
            fields = {**kept.plan} | content | {"sha256": plan.sha256, "findings": []}
            return replace(kept, plan=fields, version=cloudtrain.__version__, rerun_of=self.row.name)

        with open_store(self.settings.state_dir) as store:
            outputs = store.outputs_of(self.row.name)

            def plan_of(counter: int) -> Plan:
                new = run_name(job_name, key, self.settings.submitter, store.salt, counter)
                plan = replace(self._plan(new, kept), job_name=job_name)
                if self.on_plan is not None:
                    self.on_plan(plan)
                return plan

            def outputs_of(plan: Plan) -> dict[str, str]:
                return {what: self._rename(place, plan.run_name) for what, place in outputs.items()}

            old = store.origin_of(self.row.name)
            submission = Submission(
                service=service,
                key=key,
                submitter=self.settings.submitter,
                plan_of=plan_of,
                outputs_of=outputs_of,
                bundle=SameCode(kept, self.row.ref, service),
                report=self.report,
                on_bytes=self.on_bytes,
                origin=origin_here(Path.cwd())._replace(project=old.project, labels=old.labels),
                kept_of=sent,
            )
            return self._submit(store, submission)

    def changed(self, overrides: Sequence[str], *, ignore: Sequence[str], online: bool) -> Submitted:
        """Compile the job with overrides, and submit it with the same code and the same settings of the target.

        Raises:
            JobError: an override is not valid, or the target does not support the changed job.
            UsageError: the run had secrets, and the overrides do not supply all of them (CT973).
        """
        from cloudtrain.lifecycle.inputs import outputs_of

        kept, settings = self.kept, self.settings
        job = _overridden(kept.kind, kept.prepared or kept.job, overrides)
        written = _overridden(kept.kind, kept.job, overrides)
        hidden = [dotted(path) for path, text in texts_of(fields_of(job)) if is_hidden(text)]
        missing = [way for way in hidden if way in kept.hidden]  # any other asterisks are the user's own text
        own = settings_of(kept)
        if missing or own is None:
            raise self._not_kept(missing)
        service = service_of(self.row.target, settings)
        with code_of(kept, self.row.ref, service) as tree, open_store(settings.state_dir) as store:
            prepared = prepare_job(job, own, settings, profile=None, ignore=ignore, place_of=None, tree=tree)
            commit = Commit(kept.commit, kept.branch, kept.dirty, kept.difference)

            def approved_plan(counter: int) -> Plan:
                plan = prepared.check_online(prepared.plan(counter, store.salt), ask=online)
                if self.on_plan is not None:
                    self.on_plan(plan)
                stop_on_errors(plan)
                return plan

            def sent(plan: Plan) -> Kept:
                both = (*kept.overrides, *overrides)
                new = keep_plan(prepared, written, plan, commit, file=kept.file, text=kept.text, overrides=both)
                return replace(new, rerun_of=self.row.name)

            submission = Submission(
                service=service,
                key=prepared.key,
                submitter=settings.submitter,
                plan_of=approved_plan,
                outputs_of=outputs_of,
                bundle=SameCode(kept, self.row.ref, service),
                report=self.report,
                on_bytes=self.on_bytes,
                origin=self._origin(store, prepared.labels),
                kept_of=sent,
            )
            return self._submit(store, submission)

    def _submit(self, store: Store, submission: Submission) -> Submitted:
        return submit_once(store, submission, lambda name: service_of(name, self.settings))

    def _origin(self, store: Store, labels: Any) -> Origin:
        return origin_here(Path.cwd())._replace(project=store.origin_of(self.row.name).project, labels=labels)

    def _plan(self, new: str, kept: Kept) -> Plan:
        """Return the plan that was sent, with the run name `new`."""
        content = json.loads(self._rename(json.dumps({key: kept.plan[key] for key in _RENAMED}), new))
        return Plan(
            target=self.row.target,
            run_name=new,
            job_name=self.row.job_name,
            request=content["request"],
            uploads=tuple(Upload(**item) for item in content["uploads"]),
            summary=tuple(content["summary"].items()),
            notes=(f"the code and the request are those of `{self.row.name}`",),
            place=self.row.place or "",
        )

    def _rename(self, text: str, new: str) -> str:
        """Replace the run's name in a text with `new`. A longer name is unchanged: `job-3f9a1c22-1` is not replaced in
        `job-3f9a1c22-12`.
        """
        return re.sub(rf"{re.escape(self.row.name)}(?![0-9])", new, text)

    def _refuse_hidden(self) -> None:
        if self.kept.hidden:
            raise self._not_kept([way for way in self.kept.hidden if way not in ("settings", "request")])

    def _not_kept(self, ways: Sequence[str]) -> UsageError:
        what = ", ".join(f"`{way}`" for way in dict.fromkeys(ways)) or "an address in the settings or the request"
        given = " ".join(f"--set {way}=VALUE" for way in dict.fromkeys(ways))
        hint = f"give it again: `cloudtrain rerun {self.row.name} {given}`" if given else "submit the job again"
        return UsageError(
            f"the store does not keep secrets, and `{self.row.name}` had a secret in {what}", hint=hint, code="CT973"
        )


_RENAMED = ("request", "uploads", "summary")


def _overridden(kind: str, fields: Any, overrides: Sequence[str]) -> AnyJob:
    """Return the job of the given kind (`training` or `processing`) with the given fields and overrides.

    Raises:
        JobError: a field or an override is wrong.
    """
    from cloudtrain.jobfile.overrides import override

    model = model_of_kind(kind)
    data, changes = override(deepcopy(dict(fields)), overrides, model)
    if changes.problems:
        raise JobError(changes.problems)
    return _job(kind, data)


def _job(kind: str, fields: Any) -> AnyJob:
    job: AnyJob = model_of_kind(kind)(**fields)
    return job
