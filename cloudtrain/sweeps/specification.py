"""The input of cloudtrain's driver: the request of a sweep's plan, written once into the sweep's folder and never
changed.

It holds everything that the plan of a trial depends on. So each trial runs as the sweep's plan shows, even if the
user's files change meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.core.data import Checkpoint, Output
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Bundle, CompileContext, Plan
from cloudtrain.core.sweep import Sweep
from cloudtrain.sweeps.names import trial_name
from cloudtrain.targets.base import Target
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import TargetSettings


@dataclass(frozen=True)
class Specification:
    """A sweep under its run name, with everything that the plans of its trials need."""

    name: str
    sweep: Sweep
    settings: TargetSettings
    bundle: Bundle
    conda: str | None = None
    build: str | None = None
    package: bool = False

    @classmethod
    def of(cls, sweep: Sweep, target: TargetSettings, context: CompileContext) -> Specification:
        """Return the specification of a sweep for this target and context."""
        rest = {name: getattr(context, name) for name in ("conda", "build", "package")}
        return cls(context.run_name, sweep, target, context.bundle, **rest)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Specification:
        """Return the specification from the JSON data that `to_json` has returned."""
        settings = target_of(data["target"]["type"]).settings_model(**data["target"])
        rest = {name: data[name] for name in ("conda", "build", "package")}
        return cls(data["name"], _sweep_of(data["sweep"]), settings, Bundle(**data["bundle"]), **rest)

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON data."""
        sweep = self.sweep.model_dump(mode="json", exclude_unset=True, exclude={"job"})
        job = self.sweep.job.model_dump(mode="json", exclude_unset=True)
        return {
            "name": self.name,
            "sweep": {**sweep, "kind": "sweep", "job": job},
            "target": {**self.settings.model_dump(mode="json", exclude_unset=True), "type": self.settings.type},
            "bundle": self.bundle._asdict(),
            "conda": self.conda,
            "build": self.build,
            "package": self.package,
        }

    @property
    def where(self) -> Target:
        """The target of the trials."""
        return target_of(self.settings.type)

    def account(self, environ: Mapping[str, str], state_dir: Path) -> Any:
        """Return the facts about the target's account that this machine knows."""
        return self.where.account(self.settings, environ=environ, state_dir=state_dir, cwd=Path.cwd())

    def trial_job(self, number: int, values: Mapping[str, Any], counter: int = 1) -> TrainingJob:
        """Return the job of one trial, with its own storage paths for checkpoints and outputs."""
        name, job = trial_name(self.name, number, counter), self.sweep.trial_job(values)
        changes: dict[str, Any] = {"name": self.sweep.name}
        if job.checkpoint is not None:
            changes["checkpoint"] = self._own(job.checkpoint, name)
        if job.outputs:
            changes["outputs"] = {key: self._own(item, name) for key, item in job.outputs.items()}
        return job.model_copy(update=changes)

    def trial_plan(self, account: Any, number: int, values: Mapping[str, Any], counter: int = 1) -> Plan:
        """Return the plan of one trial.

        Raises:
            JobError: the target does not support these values.
        """
        name = trial_name(self.name, number, counter)
        context = CompileContext(name, self.bundle, account, conda=self.conda, build=self.build, package=self.package)
        return self.where.compile(self.trial_job(number, values, counter), self.settings, context)

    def _own(self, place: Checkpoint | Output, name: str) -> Checkpoint | Output:
        """Return a copy of the checkpoint or output `place`, stored in the subfolder `name` of the storage path that
        the job gives. If the job gives no storage path, return `place` unchanged: the path then depends on the run."""
        given = place.of(self.where.name)
        if given is None:
            return place
        return place.model_copy(update={self.where.name: f"{given.rstrip('/')}/{name}"})


def _sweep_of(data: Mapping[str, Any]) -> Sweep:
    """Return the sweep as it was planned. The checks for job files are skipped, because a planned job may contain
    values that are not allowed in a job file, such as the storage path of an earlier run's output."""
    return Sweep(**data)
