"""The target `folder`: its settings, and what a job becomes. Pure; `service.py` does what the plan says."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import quote

from cloudtrain.errors import Problem, did_you_mean
from cloudtrain.job.model import merged, overrides_of
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.plans.processes import Process
from cloudtrain.targets.common.compiling import Problems, arguments_of, resolve_text
from cloudtrain.targets.contract import Service, Target, TargetFacts
from cloudtrain.targets.settings import TargetSettings

NICE = {"normal": 0, "background": 10}  # instance types, and how far processes of each give way to others


class Folder(TargetSettings):
    """The table `[folder]` of cloudtrain.toml."""

    type: Literal["folder"] = "folder"
    root: str | None = None
    """The folder that holds the runs and their code."""


class FolderAccount(NamedTuple):
    """What compile needs to know of this machine. `place` stands in references, so it has no slash."""

    root: str
    python: str
    place: str


def examine(settings: Folder, account: FolderAccount) -> str | None:
    return f"runs in {account.root}" if settings.root is not None else None


class FolderTarget(Target):
    """Plain processes, recorded in a folder."""

    name = "folder"
    title = "the drop folder"
    prefix = "FO"
    settings = Folder
    facts = TargetFacts(
        is_paid=False, place_example="data/train", place_help="A path below the root, or an absolute one."
    )
    parts: ClassVar = {"rules": "cloudtrain_folder.rules", "examine": "cloudtrain_folder.target:examine"}

    def account(self, settings: Folder, *, environ: Mapping[str, str], state_dir: Path, cwd: Path) -> FolderAccount:
        root = os.path.normpath(cwd / Path(settings.root or "no-root").expanduser())
        return FolderAccount(root, sys.executable, quote(root, safe=""))

    def service(self, *, environ: Mapping[str, str], state_dir: Path) -> Service:
        from cloudtrain_folder.service import FolderService

        return FolderService(environ)

    def compile(self, job: Any, settings: Folder, context: CompileContext) -> Plan:
        job = job.view
        problems, kind = Problems(), job.resources.instance_type
        machine = (kind.of(self.name) if kind is not None else None) or "normal"
        if job.distribution.type != "none" or job.resources.instance_count != 1:
            hint = "write `distribution: {type: none}` and one instance"
            problems.append(Problem(("distribution",), "a drop folder starts one process", hint, code="CT030"))
        if machine not in NICE:
            message, near = f"`{machine}` is not an instance type here", did_you_mean(machine, NICE)
            problems.append(Problem(("resources", "instance_type", self.name), message, near, code="CT033"))
        problems.refuse()
        root, bundle = Path(context.account.root), context.bundle
        run = root / "runs" / context.run_name
        paths = {f"inputs.{name}": str(root / (item.of(self.name) or run)) for name, item in job.inputs.items()}
        kept = job.checkpoint.of(self.name) if job.checkpoint else None
        written = {"model": str(run / "model"), "checkpoint": str(root / (kept or run / "checkpoint"))}
        for name, item in job.outputs.items():
            own = "model" if name == "model" else f"outputs/{name}"
            written[own] = str(root / (item.of(self.name) or run / own))
        paths |= {own.replace("/", "."): path for own, path in written.items()} | {"outputs.model": written["model"]}
        env = {f"CLOUDTRAIN_{word.replace('s.', '_').upper()}": path for word, path in paths.items() if "." in word}
        env |= {"CLOUDTRAIN_MODEL_DIR": written["model"], "CLOUDTRAIN_CHECKPOINT_DIR": written["checkpoint"]}
        script = [context.account.python, "-u", job.entry_point, *arguments_of(job, paths)]
        argv = script if job.command is None else ["bash", "-c", resolve_text(job.command, paths)]
        compiled = {
            "archive": f"{root}/bundles/{bundle.sha256}/sourcedir.tar.gz",
            "sha256": bundle.sha256,
            "argv": ["nice", "-n", str(NICE[machine]), *argv],
            "env": env | {name: resolve_text(text, paths) for name, text in job.environment.variables.items()},
            "outputs": written,
            "max_runtime": job.max_runtime,
        }
        request: dict[str, Any] = merged(compiled, overrides_of(job, self.name))
        upload = Upload("code", bundle.sha256, request["archive"], bundle.size, bundle.file_count)
        process = Process(0, "process", tuple(request["argv"]), request["env"], rank=0, local_rank=0)
        plan = Plan(self.name, context.run_name, job.name, request, (upload,), (process,), outputs=written)
        return replace(plan, summary=(("folder", str(run)), ("machine", machine)), place=context.account.place)
