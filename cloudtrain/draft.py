"""From a job and the user's surroundings to a plan: reads the files and the settings, then compiles and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.backends.base import Backend
from cloudtrain.backends.registry import backend_of
from cloudtrain.bundle.tree import Tree, scan
from cloudtrain.compile.common import run_name
from cloudtrain.job import BUNDLED, TrainingJob
from cloudtrain.plans import CompileContext, Finding, Plan
from cloudtrain.settings import Settings
from cloudtrain.targets import AzureML, Local, SageMaker

if TYPE_CHECKING:
    from collections.abc import Mapping

PlaceOf = Callable[[tuple[str | int, ...]], str | None]
"""From the way to a value in the job to where it stands in its file."""

_NAMELESS = "job-00000000-0"
"""Stands for the run name while the plan's hash, on which the name depends, is computed."""


@dataclass(frozen=True)
class Draft:
    """A job that is ready to be compiled under any run name."""

    job: TrainingJob
    target: Local | SageMaker | AzureML
    backend: Backend
    account: Any
    tree: Tree
    submitter: str
    ignore: Sequence[str]
    place_of: PlaceOf | None

    @classmethod
    def of(
        cls,
        job: TrainingJob,
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
        source, job = _source_of(job, settings.cwd), _absolute(job, settings.cwd)
        tree, account = scan(source), backend.account(model)
        return cls(job, model, backend, account, tree, settings.submitter, tuple(ignore), place_of)

    @cached_property
    def key(self) -> str:
        """Hash of the plan without its run name: what makes two submissions the same."""
        return self._compiled(_NAMELESS).sha256

    def plan(self, counter: int) -> Plan:
        """The plan of the run with that number, with the findings that need nothing but this machine."""
        from cloudtrain.checks import Subject, run_checks

        plan = self._compiled(run_name(self.job.name, self.key, self.submitter, counter))
        subject = Subject(self.job, self.target, self.account, plan, self.tree)
        findings = run_checks(subject, ignore=self.ignore)
        return plan.with_findings(tuple(self._placed(finding) for finding in findings))

    def asked(self, plan: Plan) -> Plan:
        """The plan with what the target says about it too. One that has errors already is not worth asking about."""
        from cloudtrain.checks import rule_named

        if plan.errors:
            return plan
        ignored = {rule_named(code).code for code in self.ignore}
        found = [item for item in self.backend.check(self.job, self.target, plan) if item.code not in ignored]
        return plan.with_findings((*plan.findings, *(self._placed(finding) for finding in found)))

    def _compiled(self, name: str) -> Plan:
        context = CompileContext(run_name=name, bundle=self.tree.identity, account=self.account)
        return self.backend.compile(self.job, self.target, context)

    def _placed(self, finding: Finding) -> Finding:
        if self.place_of is None or not finding.path:
            return finding
        return replace(finding, place=self.place_of(finding.path))


def _source_of(job: TrainingJob, cwd: Path) -> Path:
    if job.source_dir.startswith(BUNDLED):
        from cloudtrain.scripts import script_path

        return script_path(job.source_dir.removeprefix(BUNDLED))
    return cwd / Path(job.source_dir).expanduser()


def _absolute(job: TrainingJob, cwd: Path) -> TrainingJob:
    """The job with its local places made absolute, as the processes of a run need them."""

    def fixed(places: Any) -> Any:
        if places is None or places.local is None:
            return places
        return places.model_copy(update={"local": str(cwd / Path(places.local).expanduser())})

    def all_fixed(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fixed(places) for name, places in named.items()}

    update = {"inputs": all_fixed(job.inputs), "outputs": all_fixed(job.outputs), "checkpoint": fixed(job.checkpoint)}
    return job.model_copy(update=update)
