"""Compile a job, settings and context to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.per_target import OVERRIDES
from cloudtrain.core.plan import CompileContext, Plan, Upload
from cloudtrain.core.processes import Processes
from cloudtrain.core.units import format_duration
from cloudtrain.errors import JobError, Problem
from cloudtrain.targets.common.problems import Problems
from cloudtrain.targets.slurm.compile.cluster_run import NAME, ClusterRun
from cloudtrain.targets.slurm.compile.launchers import Launch, launch
from cloudtrain.targets.slurm.compile.options import Options, is_fixed, sbatch_argv, sbatch_options
from cloudtrain.targets.slurm.compile.problems import job_problems
from cloudtrain.targets.slurm.compile.script import batch_script
from cloudtrain.targets.slurm.plan import SlurmPlan
from cloudtrain.targets.slurm.settings import Slurm

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob


def compile_slurm(job: AnyJob, settings: Slurm, context: CompileContext) -> SlurmPlan:
    """Return the plan of a job on a Slurm cluster. `context.account` must be a `SlurmAccount`. The plan's `request` has

        argv        the command line of sbatch
        script      the text of the batch script; the last word of `argv` is its path
        options     the options in `argv`, by name
        folder      the run's folder
        outputs     the folders that the run writes to, by name

    Raises:
        JobError: the job asks for something that a Slurm cluster does not have; the hint names an alternative.
    """
    view = job if isinstance(job, TrainingJob) else job.as_training()
    problems = Problems(job_problems(view, settings))
    unfit = any(problem.code in ("CT030", "CT036", "CT018") for problem in problems)
    plan = None if unfit else problems.value(lambda: _plan(ClusterRun(view, settings, context)), None)
    problems.refuse(plan)
    assert plan is not None, "without a plan there are problems"
    return plan if isinstance(job, TrainingJob) else _as_processing(plan)


def _as_processing(plan: SlurmPlan) -> SlurmPlan:
    """Return the plan without the model and the checkpoint, which a processing job does not have."""
    outputs = {name: path for name, path in plan.request["outputs"].items() if name.startswith("outputs/")}
    summary = tuple(pair for pair in plan.summary if pair[0] not in ("distribution", "checkpoint"))
    return replace(plan, request=plan.request | {"outputs": outputs}, summary=summary)


def _plan(run: ClusterRun) -> SlurmPlan:
    job, context, folder = run.job, run.context, run.folder
    started = launch(run)
    options = _apply_overrides(sbatch_options(run), getattr(job, NAME + OVERRIDES, {}))
    request = {
        "argv": sbatch_argv(options, folder.script),
        "folder": folder.path,
        "options": options,
        "outputs": {_output_name(name): path for name, path in run.paths.items() if not name.startswith("inputs.")},
        "script": batch_script(run, started),
    }
    bundle = context.bundle
    first = started.started
    return SlurmPlan.of(
        Plan(
            target=NAME,
            run_name=context.run_name,
            job_name=job.name,
            request=request,
            uploads=(Upload("code", bundle.sha256, run.bundle, bundle.size, bundle.file_count),),
            processes=Processes(
                (*(Processes.of(first).groups if isinstance(first, tuple) else (first,)), *started.ranks)
            ),
            summary=tuple(_summary(run, started, options)),
            place=context.account.place,
        )
    )


def _apply_overrides(options: Options, overrides: Mapping[str, Any]) -> Options:
    """Return `options` with the job's `slurm_overrides` applied. A null removes an option.

    Raises:
        JobError: an override is not a text, a number or `true`, or changes an option by which cloudtrain finds the run.
    """
    problems = []
    for name, value in overrides.items():
        if is_fixed(name):
            message = f"cloudtrain sets `{name}` itself, so you cannot change it"
            problems.append(Problem((NAME + OVERRIDES, name), message, "remove it from the overrides", code="CT035"))
        elif not (value is None or isinstance(value, str | int | bool)):
            message = f"`{name}` must be a single value for the option `--{name}`"
            problems.append(
                Problem((NAME + OVERRIDES, name), message, "write a text, a number or `true`", code="CT035")
            )
    if problems:
        raise JobError(problems)
    words = {
        name: value if isinstance(value, bool) else str(value) for name, value in overrides.items() if value is not None
    }
    kept = {name: value for name, value in options.items() if name not in overrides}
    return dict(sorted((kept | words).items()))


def _output_name(reference: str) -> str:
    """Convert a reference to an output name: `outputs.scores` to `outputs/scores`, `outputs.model` to `model`."""
    return {"outputs.model": "model"}.get(reference, reference.replace(".", "/", 1))


def _summary(run: ClusterRun, started: Launch, options: Options) -> list[tuple[str, str]]:
    job, world = run.job, run.nodes * run.processes
    where = [str(options[name]) for name in ("partition", "constraint", "gres") if name in options]
    nodes = f"{run.nodes} node{'s' if run.nodes > 1 else ''}" + (f" ({', '.join(where)})" if where else "")
    pairs = [
        ("target", f"slurm ({run.account.host or 'this machine'})"),
        ("instances", nodes),
        ("processes", f"{world}" + (f" ({run.nodes} x {run.processes})" if run.nodes > 1 else "")),
        ("distribution", f"{job.distribution.type} through {started.title}"),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", run.paths["checkpoint"]),
        ("run folder", run.folder.path),
    ]
    if run.image is not None:
        pairs.insert(2, ("image", f"{run.image} ({run.settings.container})"))
    if job.spot:
        pairs.append(("spot", "starts again after it loses its nodes"))
    if job.max_runtime:
        pairs.append(("max runtime", format_duration(job.max_runtime)))
    return pairs
