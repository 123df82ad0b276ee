"""The runs of a rehearsal, made of one launch specification: the same processes on the same code, under other names.

A run's folder is named after it, so a specification becomes another run's when the name is replaced wherever it stands.
Places outside that folder (a job's own `checkpoint.local`, outputs that are kept elsewhere) move into it: a rehearsal
neither reads earlier checkpoints nor touches results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.backends.local.backend import LocalBackend
from cloudtrain.backends.local.download import places
from cloudtrain.backends.local.folder import RunFolder
from cloudtrain.backends.registry import backend_of
from cloudtrain.compile.common import run_name
from cloudtrain.errors import TargetError
from cloudtrain.handle import Run
from cloudtrain.plans import Plan, Upload
from cloudtrain.runtime.holding import VARIABLE as HOLD_AT_STEP
from cloudtrain.settings import Settings
from cloudtrain.states import RunRef
from cloudtrain.store.store import open_store
from cloudtrain.submission import Submission, submit_once

_NAMELESS = "job-00000000-0"


@dataclass(frozen=True)
class Original:
    """A run whose launch is repeated."""

    spec: Mapping[str, Any]
    job_name: str
    ref: RunRef
    """Where it ran: repetitions run there too."""

    @classmethod
    def of(cls, run: Run, job_name: str) -> Original:
        """A run of this machine; its repetitions are listed as runs of `job_name`.

        Raises:
            TargetError: its folder is gone.
        """
        try:
            spec = RunFolder(str(run.directory)).read_launch()
        except (OSError, ValueError) as error:
            raise TargetError(f"the folder of `{run.name}` cannot be read: {error}", hint="rehearse the job") from error
        return cls(spec, job_name, run.ref)

    def repeated(self, name: str, *, checkpoint_of: str | None = None, hold_at: int | None = None) -> dict[str, Any]:
        """The specification under another name. `checkpoint_of` is the run whose checkpoints it finds, itself unless
        given; `hold_at` is the step at which it waits for its signal.
        """
        homes = self._homes(name, checkpoint_of or name)
        paths = "|".join(map(re.escape, homes))
        places_or_name = re.compile(rf"(?<![\w./-])(?:{paths})(?![\w.-])|{re.escape(self.name)}(?!\d)")
        spec: dict[str, Any] = _mapped(
            self.spec, lambda text: places_or_name.sub(lambda found: homes.get(found[0], name), text)
        )
        if hold_at is not None:
            for process in spec["processes"]:
                process["env"][HOLD_AT_STEP] = str(hold_at)
        return spec

    @property
    def name(self) -> str:
        """The run's name, as it stands in the specification."""
        return str(self.spec["name"])

    def _homes(self, name: str, checkpoint_of: str) -> dict[str, str]:
        """Where each place of the original lies now, its checkpoints and what lies outside its folder."""
        run_dir = str(self.spec["run_dir"])
        links = {link["path"]: link["target"] for link in self.spec.get("links", ())}
        homes = {}
        for what, folders in places(self.spec).items():
            owner = checkpoint_of if what == "checkpoint" else name
            for folder in (links.get(str(path), str(path)) for path in folders):
                below = folder.removeprefix(f"{run_dir}/") if folder.startswith(f"{run_dir}/") else what
                if what == "checkpoint" or below == what:
                    homes[folder] = f"{run_dir.removesuffix(self.name)}{owner}/{below}"
        return homes


def send(original: Original, settings: Settings, make: Callable[[str], dict[str, Any]]) -> Run:
    """Send the specification that `make` gives for a run name. Its run is like any other: `ps` lists it.

    Raises:
        TargetError: the original's code is no longer there.
    """
    backend = backend_of("local", settings)
    assert isinstance(backend, LocalBackend)

    def plan(name: str) -> Plan:
        spec = make(name)
        code = spec["code"]
        upload = Upload("code", code["sha256"], code["archive"], 0, 0)
        return Plan("local", name, original.job_name, spec, (upload,), place=original.ref.place)

    key = plan(_NAMELESS).sha256
    with open_store(settings.state_dir) as store:
        row = submit_once(
            store,
            Submission(
                backend,
                key,
                settings.submitter,
                lambda counter: plan(run_name(original.job_name, key, settings.submitter, counter)),
                _NoBundle(),
            ),
        )
    return Run(row, settings)


class _NoBundle:
    """The code of a repeated run is there already."""

    sha256 = ""

    def write(self, path: Path) -> None:
        """Never asked for an archive that exists."""
        raise TargetError(f"the run's code is gone: `{path}`", hint="rehearse the job's file instead of the run")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, change) for inner in value]
    return value
