"""Functions that all compilers share: hyperparameters as arguments, references, and the run
name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from shlex import split
from typing import TYPE_CHECKING, Any, TypeVar

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.data import replace_references
from cloudtrain.job.model import format_duration
from cloudtrain.job.training import Resources, TrainingJob
from cloudtrain.machines.choose import choose
from cloudtrain.machines.table import instance_types
from cloudtrain.plans.plan import Plan
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, text_of
from cloudtrain.runtime.torchrun_words import words_of_script

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.job.sweep import Sweep


HASH_LENGTH = 8
"""Number of hex digits of the plan's hash in a run name. A collision becomes likely only with 2**16
different plans of one job."""


hyperparameter_argv = argv_of
"""Return `--key value` for each hyperparameter, sorted by key, as the SageMaker containers do. All
targets follow this convention. The function is in the runtime, because the launcher in the
containers needs it too."""

hyperparameter_text = text_of
"""Return the text of one hyperparameter value as the script receives it."""


def without_literals(job: AnyJob) -> AnyJob:
    """Return the job without its inputs that have a plain `value`. References to such an input are
    replaced by its value. Of all targets, only Azure ML accepts such inputs unchanged."""
    inputs: dict[str, object] = {}
    literals: dict[str, str] = {}
    for name, item in job.inputs.items():
        if item.value is None:
            inputs[name] = item
        else:
            literals[f"inputs.{name}"] = text_of(item.value)
    if not literals:
        return job

    def fill(text: str) -> str:
        return resolve_text(text, literals)

    variables = _fill_texts(job.environment.variables, fill)
    update: JsonObject = {
        "inputs": inputs,
        "hyperparameters": _fill_texts(job.hyperparameters, fill),
        "environment": job.environment.model_copy(update={"variables": variables}),
    }
    for name in ("arguments", "command", "entry_point"):
        value = getattr(job, name, None)
        if value:
            update[name] = _fill_texts(value, fill)
    return job.model_copy(update=update)


def resolve_hyperparameters(hyperparameters: JsonMapping, paths: Mapping[str, str]) -> JsonObject:
    return dict(_fill_texts(hyperparameters, lambda text: resolve_text(text, paths)))


def has_bare_flags(job: TrainingJob) -> bool:
    """Return whether a hyperparameter is written as a flag without a value."""
    has_flags = any(isinstance(value, bool) for value in job.hyperparameters.values())
    return job.bare_flags and has_flags


def arguments_of(job: TrainingJob, paths: Mapping[str, str]) -> list[str]:
    """Return the job's `arguments`, followed by its hyperparameters as options."""
    own = [resolve_text(word, paths) for word in job.arguments]
    return own + argv_of(
        resolve_hyperparameters(job.hyperparameters, paths), bare_flags=job.bare_flags
    )


def paths_in(run_dir: str, job: TrainingJob, target: str) -> dict[str, str]:
    """Map references such as `inputs.train`, `outputs.model` and `checkpoint` to paths: those that
    the job sets for the target, and folders of the run's own folder for the others."""
    paths: dict[str, str] = {}
    for name, item in job.inputs.items():
        own = f"{run_dir}/inputs/{name}"
        paths[f"inputs.{name}"] = item.of(target) or own

    model = f"{run_dir}/model"
    paths["outputs.model"] = model
    for name, output in job.outputs.items():
        own = model if name == "model" else f"{run_dir}/outputs/{name}"
        paths[f"outputs.{name}"] = output.of(target) or own

    kept = job.checkpoint.of(target) if job.checkpoint else None
    paths["checkpoint"] = kept or f"{run_dir}/checkpoint"
    return paths


def program_of(job: TrainingJob, paths: Mapping[str, str]) -> list[str]:
    """Return the command in a shell, or the script with its arguments: without Python, but a shell
    script with bash."""
    if job.command is not None:
        return ["bash", "-c", resolve_text(job.command, paths)]
    script = job.entry_point or ""
    shell = ["bash"] if script.endswith(".sh") else []
    return [*shell, *words_of_script(script), *arguments_of(job, paths)]


def limit_rows(job: TrainingJob) -> list[tuple[str, str]]:
    """Return the rows of a plan's summary for the job's own limits of time."""
    limits = {"max runtime": job.max_runtime, "stop when idle": job.stop_when_idle}
    return [(name, format_duration(limit)) for name, limit in limits.items() if limit]


OF_ONE_RUN = ("MLFLOW_RUN_CONTEXT", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME")
"""Variables of tracking that the trials of a service's tuner cannot share."""


def tracking_variables(
    job: TrainingJob, target: str, folder: str, run_name: str | None
) -> dict[str, str]:
    """Return the variables in which tracking libraries look for their settings.

    MLflow reads its own in mlflow/environment_variables.py (3.17), W&B in its environment reference
    (0.31), and the Trainer of Hugging Face `TENSORBOARD_LOGGING_DIR`.

    Args:
        job: the job. Without `tracking` there are no variables.
        target: whose MLflow is meant, where the job names one for each target.
        folder: a folder that exists when the script starts and outlives the run.
        run_name: the name of the run, as text or as a reference; None if the service names runs
            itself, and sets the variables of MLflow.
    """
    tracking = job.tracking
    if tracking is None:
        return {}

    variables: dict[str, str] = {}
    if tracking.tensorboard:
        variables["TENSORBOARD_LOGGING_DIR"] = f"{folder}/tensorboard"
    if tracking.wandb is not None:
        variables["WANDB_MODE"] = tracking.wandb
        variables["WANDB_PROJECT"] = job.name
        variables["WANDB_DIR"] = folder
    if run_name is None:
        return variables

    if tracking.wandb is not None:
        variables["WANDB_NAME"] = run_name
        # a run that a service starts again continues its own curves
        variables["WANDB_RUN_ID"] = run_name
        variables["WANDB_RESUME"] = "allow"
    uri = tracking.mlflow.of(target) if tracking.mlflow else None
    if uri is not None:
        variables["MLFLOW_TRACKING_URI"] = uri
        variables["MLFLOW_EXPERIMENT_NAME"] = job.name
        # tags of its runs, of which this one is the name
        variables["MLFLOW_RUN_CONTEXT"] = json.dumps({"mlflow.runName": run_name})
    return variables


def stall_variables(job: TrainingJob) -> dict[str, str]:
    """Return the variable that says when a stalled run is stopped."""
    seconds = job.stop_when_stalled
    return {} if seconds is None else {"CLOUDTRAIN_STOP_WHEN_STALLED": str(seconds)}


def variables_of(
    job: TrainingJob, target: str, paths: Mapping[str, str], run_dir: str, run_name: str
) -> dict[str, str]:
    """Return the variables in which the script's runtime finds the run's name and folders, and
    those of the job."""
    variables = {
        "CLOUDTRAIN_CHECKPOINT_DIR": paths["checkpoint"],
        "CLOUDTRAIN_MODEL_DIR": paths["outputs.model"],
        "CLOUDTRAIN_RUN_DIR": run_dir,
        "CLOUDTRAIN_RUN_NAME": run_name,
        "PYTHONUNBUFFERED": "1",
    }
    variables |= stall_variables(job)
    if job.checkpoint:
        variables["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(job.checkpoint.keep)
    for reference, path in paths.items():
        kind, _, name = reference.partition("s.")  # `inputs.train`, `outputs.model`
        if name:
            variables[f"CLOUDTRAIN_{kind}_{name}".upper()] = path
    variables |= tracking_variables(job, target, run_dir, run_name)
    for name, text in job.environment.variables.items():
        variables[name] = resolve_text(text, paths)
    return dict(sorted(variables.items()))


def resolve_text(text: str, paths: Mapping[str, str]) -> str:
    """Replace references such as `${{inputs.train}}` by their paths. References without a path
    stay, because overrides may hold any text."""

    def path_of(reference: str) -> str:
        return paths.get(reference, f"${{{{{reference}}}}}")

    return replace_references(text, path_of)


def _fill_texts(value: Any, fill: Callable[[str], str]) -> Any:
    """Return a copy of JSON data with `fill` applied to every text except keys."""
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, Mapping):
        return {key: _fill_texts(inner, fill) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_fill_texts(inner, fill) for inner in value]
    return value


def option_problems(job: TrainingJob) -> list[Problem]:
    """Return a problem if the job's mpirun options cannot be parsed, because of an unclosed
    quote."""
    for field in ("options", "mpi_options"):
        try:
            split(getattr(job.distribution, field, ""))
        except ValueError as error:
            message = f"`{field}` is not valid shell syntax: {str(error).lower()}"
            return [Problem(("distribution", field), message, "close the quotes", code="CT018")]
    return []


def tuner_plan(sweep: Sweep, trial: Plan, request: JsonObject, notes: Iterable[str]) -> Plan:
    """Return the plan of a sweep that the target's own tuner runs with `request`, from the plan of
    the sweep's job."""
    return replace(
        trial,
        job_name=sweep.name,
        request=request,
        summary=tuple(row for row in trial.summary if row[0] not in _OF_A_TRIAL),
        notes=(*trial.notes, *notes),
        outputs={},
    )


_OF_A_TRIAL = ("target", "run", "cost")
"""Rows of the summary that belong to one trial."""


def submission_key(plan: Plan) -> str:
    """Return a hash of target, place, job name and plan. Submissions with the same hash count as
    the same submission.

    `plan` must be compiled with a placeholder for the run name, so that the number of the run does
    not change the hash.
    """
    content = "\n".join((plan.target, plan.place, plan.job_name, plan.sha256))
    return hashlib.sha256(content.encode()).hexdigest()


_LAYOUT = 1
"""Version of the layout of environments. A new version gets new folders, so that every environment
is built again."""


def environment_key(*content: object) -> str:
    """Return the name of the folder of an environment that cloudtrain builds: a hash of the
    interpreter below it and of the packages in it, as JSON data."""
    text = json.dumps([_LAYOUT, *content])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_name(job_name: str, key: str, submitter: str, salt: str, counter: int) -> str:
    """Return the run's name, such as `job-1f3a9c2b-1`: job name, hash of plan and submitter, and
    number of the run.

    The name is deterministic, so that a dry run prints the same name that a submit would use, and a
    submit after a crash finds its own run.

    Args:
        key: the plan's `submission_key`.
        submitter: `user@host`.
        salt: a text that differs between run stores, so that two stores of the same user give
            different names.
        counter: the number of earlier runs with the same key, plus one.
    """
    content = f"{key}\n{submitter}\n{salt}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f"{job_name}-{digest[:HASH_LENGTH]}-{counter}"


# Collect the problems of a job while it is compiled, to report all of them together.

Value = TypeVar("Value")
Instead = TypeVar("Instead")


class CompileError(JobError):
    """The target cannot run the job. `plan` is the plan without the faulty parts, or None if no
    usable plan is left. The rules check this plan, so that their findings are reported together
    with the problems."""

    def __init__(self, problems: Sequence[Problem], plan: Plan | None = None) -> None:
        super().__init__(problems)
        self.plan = plan


class Problems(list[Problem]):
    """The problems of one job, in the order in which they were found."""

    def collect_from(self, make: Callable[[], Value], instead: Instead) -> Value | Instead:
        """Return the result of `make`. If `make` raises a `JobError`, collect its problems and
        return `instead`."""
        try:
            return make()
        except JobError as error:
            # two steps that read the same field report the same problem
            self += [problem for problem in error.problems if problem not in self]
            return instead

    def raise_if_any(self, plan: Plan | None = None) -> None:
        """Raise a `CompileError` with the problems and `plan`. Do nothing without problems."""
        if self:
            raise CompileError(self, plan)

    # Targets of other packages call the two by these names.
    value = collect_from
    refuse = raise_if_any


# Choose the instance type of a job that names only a GPU, from the catalogue with the user's own
# corrections.


def type_by_gpu(target: str, resources: Resources, overlay: Any) -> str:
    """Return the name of the instance type for `resources.gpu`. `overlay`: the user's corrections
    of the catalogue."""
    from cloudtrain.machines.overlay import apply_overlay

    assert resources.gpu is not None
    types = None
    if overlay:
        types = apply_overlay(instance_types(target), overlay)
    chosen = choose(
        target,
        gpu=resources.gpu,
        gpus_per_instance=resources.gpus_per_instance,
        interconnect=resources.interconnect,
        types=types,
    )
    return chosen.name
