"""Make the runs of a rehearsal from one launch specification. All runs have the same processes and code, but their own
names.

A run's folder has the run's name, so replacing the name everywhere in a specification gives the specification of
another run. Locations outside the run's folder (a job's `checkpoint.local`, outputs that are kept elsewhere) are moved
into the folder, so a rehearsal neither reads earlier checkpoints nor changes results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudtrain.core.plan import Plan, Upload
from cloudtrain.core.states import RunRef
from cloudtrain.core.targets import DEFAULT_TARGET
from cloudtrain.errors import TargetError
from cloudtrain.launch.specification import LaunchSpecification
from cloudtrain.lifecycle.inputs import outputs_of
from cloudtrain.lifecycle.run import Run
from cloudtrain.lifecycle.submission import Submission, submit_once
from cloudtrain.runtime.holding import VARIABLE as HOLD_AT_STEP
from cloudtrain.settings import Settings
from cloudtrain.store.opening import open_store
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.common.this_machine import LocalPlan
from cloudtrain.targets.local.service.folder import RunFolder
from cloudtrain.targets.registry import service_of

_NAMELESS = "job-00000000-0"


@dataclass(frozen=True)
class Original:
    """The run that a rehearsal repeats, with its launch specification."""

    spec: LaunchSpecification
    job_name: str
    ref: RunRef
    """The target and host of the run. Repetitions run there too."""

    @classmethod
    def of(cls, run: Run, job_name: str) -> Original:
        """Return the `Original` for a run on this machine. Its repetitions will be listed as runs of `job_name`.

        Raises:
            TargetError: the run's folder no longer exists.
        """
        return cls(RunFolder(str(run.directory)).read_launch(), job_name, run.ref)

    def repeat(self, name: str, *, checkpoint_of: str | None = None, hold_at: int | None = None) -> LaunchSpecification:
        """Return the original's specification for a run called `name`. `checkpoint_of` names the run whose checkpoints
        the repetition uses; default: its own. `hold_at` is the step at which the repetition waits for SIGTERM.
        """
        homes = self._homes(name, checkpoint_of or name)
        paths = "|".join(map(re.escape, homes))
        places_or_name = re.compile(rf"(?<![\w./-])(?:{paths})(?![\w.-])|{re.escape(self.spec.name)}(?!\d)")
        moved = _map_texts(
            self.spec.to_json(), lambda text: places_or_name.sub(lambda found: homes.get(found[0], name), text)
        )
        spec = LaunchSpecification.from_json(moved)
        if hold_at is None:
            return spec
        held = {HOLD_AT_STEP: str(hold_at)}
        return replace(spec, processes=tuple(replace(each, env=each.env | held) for each in spec.processes))

    def _homes(self, name: str, checkpoint_of: str) -> dict[str, str]:
        """Return a map from the original's locations to those of its repetition. Checkpoints move to the folder of the
        run `checkpoint_of`. Outputs outside the original's folder move to the folder of the run `name`.
        """
        run_dir = self.spec.run_dir
        links = {link.path: link.target for link in self.spec.links or ()}
        homes = {}
        for what, folders in self.spec.downloads().items():
            owner = checkpoint_of if what == "checkpoint" else name
            for folder in (links.get(str(path), str(path)) for path in folders):
                below = folder.removeprefix(f"{run_dir}/") if folder.startswith(f"{run_dir}/") else what
                if what == "checkpoint" or below == what:
                    homes[folder] = f"{run_dir.removesuffix(self.spec.name)}{owner}/{below}"
        return homes


def send(original: Original, settings: Settings, make: Callable[[str], LaunchSpecification]) -> Run:
    """Choose a name for a new run, and submit the specification that `make` returns for this name. `cloudtrain ps`
    lists the run like any other run.

    Raises:
        TargetError: the archive with the original's code no longer exists.
    """

    def plan(name: str) -> Plan:
        spec = make(name)
        upload = Upload("code", spec.code.sha256, spec.code.archive, 0, 0)
        return LocalPlan(DEFAULT_TARGET, name, original.job_name, spec.to_json(), (upload,), place=original.ref.place)

    key = submission_key(plan(_NAMELESS))
    with open_store(settings.state_dir) as store:
        submission = Submission(
            service=service_of(DEFAULT_TARGET, settings),
            key=key,
            submitter=settings.submitter,
            plan_of=lambda number: plan(run_name(original.job_name, key, settings.submitter, store.salt, number)),
            outputs_of=outputs_of,
            bundle=_NoBundle(),
            report=lambda _: None,
        )
        submitted = submit_once(store, submission, lambda name: service_of(name, settings))
    return Run(submitted.record, settings)


class _NoBundle:
    """A placeholder for the bundle of a repeated run. Nothing is uploaded, because the original's code archive is
    reused.
    """

    sha256 = ""

    def write(self, path: Path) -> None:
        """Raise a TargetError. This method is called only if the code archive `path` no longer exists."""
        raise TargetError(
            f"the archive with the run's code no longer exists: `{path}`",
            hint="rehearse the job file instead of the run",
            code="CT905",
        )


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_texts(inner, change) for inner in value]
    return value
