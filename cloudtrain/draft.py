"""From a job and the user's surroundings to a plan: reads the files and the settings, then compiles and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.backends.base import Backend
from cloudtrain.backends.registry import backend_of
from cloudtrain.bundle.entries import below, content_hash
from cloudtrain.bundle.tree import Tree, scan
from cloudtrain.compile.common import run_name, without_literals
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import BUNDLED, TrainingJob
from cloudtrain.jobfile.files import anchored
from cloudtrain.plans import CompileContext, Finding, Plan
from cloudtrain.references import is_run_input
from cloudtrain.settings import Settings
from cloudtrain.targets import AzureML, Local, SageMaker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudtrain.lineage import Awaited
    from cloudtrain.processing import AnyJob

PlaceOf = Callable[[tuple[str | int, ...]], str | None]
"""From the way to a value in the job to where it stands in its file."""

_NAMELESS = "job-00000000-0"
"""Stands for the run name while the plan's hash, on which the name depends, is computed."""


@dataclass(frozen=True)
class Draft:
    """A job that is ready to be compiled under any run name."""

    job: AnyJob
    target: Local | SageMaker | AzureML
    backend: Backend
    account: Any
    tree: Tree
    submitter: str
    ignore: Sequence[str]
    place_of: PlaceOf | None
    notes: tuple[str, ...] = ()
    """What was found out while the draft was made, for the reader of the plan."""
    awaited: tuple[Awaited, ...] = ()
    """Earlier runs that the job reads from, and that had not ended when they were last seen."""

    @classmethod
    def of(
        cls,
        job: AnyJob,
        target: str | Local | SageMaker | AzureML | None,
        settings: Settings,
        *,
        profile: str | None,
        ignore: Sequence[str],
        place_of: PlaceOf | None,
    ) -> Draft:
        """Read what compile needs: the settings, the source folder, the account."""
        model = settings.target(target, profile=profile) if target is None or isinstance(target, str) else target
        backend = backend_of(model.type, settings)
        job = anchored(job, settings.cwd)
        source, (job, notes, awaited) = _source_of(job), _with_runs(job, model.type, settings)
        job = job if model.type == "azureml" else without_literals(job)
        tree, account = scan(source), backend.account(model)
        return cls(job, model, backend, account, tree, settings.submitter, tuple(ignore), place_of, notes, awaited)

    @cached_property
    def key(self) -> str:
        """Hash of the plan without its run name: what makes two submissions the same."""
        return self._compiled(_NAMELESS).sha256

    @cached_property
    def _conda(self) -> str | None:
        """The conda file's text; that it is missing is for compile to say. Raises: JobError."""
        name = self.job.environment.conda_file
        entry = next((entry for entry in self.tree.entries if entry.path == name), None)
        try:
            return None if entry is None else Path(self.tree.location(entry)).read_text("utf-8")
        except UnicodeDecodeError:
            problem = Problem(("environment", "conda_file"), f"`{name}` is not UTF-8", "save it as UTF-8")
            raise JobError([problem]) from None

    @cached_property
    def _build(self) -> str | None:
        """The hash of the build folder's content, wherever it lies."""
        if self.job.environment.build is None:
            return None
        found = below(self.tree.entries, self.job.environment.build)
        return content_hash(found) if any(entry.path == "Dockerfile" for entry in found) else None

    @property
    def view(self) -> TrainingJob:
        """What checks look at: of a processing job, what it shares with a training job."""
        return self.job if isinstance(self.job, TrainingJob) else self.job.as_training()

    def plan(self, counter: int) -> Plan:
        """The plan of the run with that number, with the findings that need nothing but this machine."""
        from cloudtrain.checks import Subject, run_checks

        plan = self._compiled(run_name(self.job.name, self.key, self.submitter, counter))
        processing = None if isinstance(self.job, TrainingJob) else self.job
        subject = Subject(self.view, self.target, self.account, plan, self.tree, processing)
        findings = run_checks(subject, ignore=self.ignore)
        return plan.with_findings(tuple(self._placed(finding) for finding in findings))

    def asked(self, plan: Plan) -> Plan:
        """The plan with what the target says about it too. One that has errors already is not worth asking about."""
        from cloudtrain.checks import rule_named

        if plan.errors:
            return plan
        ignored = {rule_named(code).code for code in self.ignore}
        asked = [*self.backend.check(self.view, self.target, plan), *self._about_runs()]
        found = [item for item in asked if item.code not in ignored]
        return plan.with_findings((*plan.findings, *(self._placed(finding) for finding in found)))

    def _about_runs(self) -> Iterable[Finding]:
        if not self.awaited:
            return ()
        from cloudtrain.lineage import not_ready

        return not_ready(self.awaited, self.backend)

    def _compiled(self, name: str) -> Plan:
        context = CompileContext(name, self.tree.identity, self.account, conda=self._conda, build=self._build)
        plan = self.backend.compile(self.job, self.target, context)
        return replace(plan, notes=(*plan.notes, *self.notes)) if self.notes else plan

    def _placed(self, finding: Finding) -> Finding:
        if self.place_of is None or not finding.path:
            return finding
        return replace(finding, place=self.place_of(finding.path))


def _with_runs(job: AnyJob, target: str, settings: Settings) -> tuple[AnyJob, tuple[str, ...], tuple[Awaited, ...]]:
    """The job with what earlier runs wrote in the place of their names; see `lineage.Resolved`."""
    if not any(is_run_input(item.of(target)) for item in job.inputs.values()):
        return job, (), ()
    from cloudtrain.lineage import with_runs

    return with_runs(job, target, settings)


def _source_of(job: AnyJob) -> Path:
    if job.source_dir.startswith(BUNDLED):
        from cloudtrain.scripts import script_path

        return script_path(job.source_dir.removeprefix(BUNDLED))
    return Path(job.source_dir)
