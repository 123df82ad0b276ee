"""Compile a job to the options of sbatch and the batch script. Pure: no network, no clock, no
environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import JobError, Problem, ValuePath
from cloudtrain.job.distribution import DeepSpeed, TensorFlow, no_ray
from cloudtrain.job.model import OVERRIDES
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan, Upload
from cloudtrain.targets.common.compiling import Problems, limit_rows, option_problems
from cloudtrain.targets.slurm.script import (
    NAME,
    BatchLaunch,
    ClusterRun,
    batch_script,
    image_of,
    install_script,
    is_mpi,
    is_plug_in,
    launch,
)
from cloudtrain.targets.slurm.settings import Slurm, is_option

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob


# The options of sbatch, by long name. An option without a value has the value True.

Options = dict[str, "str | bool"]

FIXED = frozenset(
    "array clusters comment error export export-file help job-name nodes open-mode output "
    "parsable test-only usage "
    "version wait wrap".split()
)
"""Options of sbatch that cloudtrain relies on, so that neither settings nor jobs may change them.
`--wait` would keep a submit waiting until the job has ended, and cloudtrain would not find the job
on another cluster (`--clusters`)."""


def is_fixed(name: str) -> bool:
    """Return whether an option is one of `FIXED`. sbatch also takes the beginning of a name:
    `--arr` is `--array`."""
    if len(name) < 2:
        return False
    return any(option.startswith(name) for option in FIXED)


def sbatch_options(run: ClusterRun) -> Options:
    """Return the options of sbatch for the job, by long name."""
    settings = run.settings
    job = run.job
    # for MPI and TensorFlow, a node has one task per rank
    has_task_per_rank = isinstance(job.distribution, TensorFlow) or is_mpi(job)
    tasks = run.processes if has_task_per_rank else 1
    options: Options = {
        "job-name": run.context.run_name,
        "comment": f"cloudtrain:{run.folder}",
        "nodes": str(run.nodes),
        "ntasks-per-node": str(tasks),
        "output": f"{run.folder}/slurm.out",
        "open-mode": "append",
        "chdir": run.account.shared_dir,
        "export": "NIL",  # the run does not depend on variables of the submitting shell
        "signal": f"B:TERM@{settings.grace_period}",
    }
    is_restarted = settings.requeue or job.spot is not None
    options["requeue" if is_restarted else "no-requeue"] = True

    partition = settings.partition
    if job.spot and settings.spot_partition:
        partition = settings.spot_partition
    selectors = {
        "partition": partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": _constraint(run),
        "reservation": settings.reservation,
    }
    for name, value in selectors.items():
        if value is not None:
            options[name] = value

    if job.max_runtime:
        options["time"] = time_limit(job.max_runtime)
    if job.spot and job.spot.max_wait:
        options["deadline"] = f"now+{job.spot.max_wait}"
    if run.gpus:
        kind = f":{settings.gpu_type}" if settings.gpu_type else ""
        options["gres"] = f"gpu{kind}:{run.gpus}"
    if settings.exclusive:
        options["exclusive"] = True
        options["mem"] = "0"
    elif settings.cpus_per_instance:
        options["cpus-per-task"] = str(max(1, settings.cpus_per_instance // tasks))
    for option in settings.extra_sbatch:
        name, equals, text = option.removeprefix("--").partition("=")
        options[name] = text if equals else True
    return dict(sorted(options.items()))


def time_limit(seconds: int) -> str:
    """Return a duration as Slurm writes it: `1-02:30:00`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def _constraint(run: ClusterRun) -> str | None:
    """Return the features that the settings and the job want together. One with alternatives, such
    as `a100|h100`, needs parentheses beside another."""
    words = [word for word in (run.settings.constraint, _feature(run.job)) if word]
    if len(words) < 2:
        return words[0] if words else None
    return "&".join(f"({word})" if "|" in word else word for word in words)


def _feature(job: TrainingJob) -> str | None:
    """Return the feature of nodes that the job names as its instance type."""
    instance_type = job.resources.instance_type
    return None if instance_type is None else instance_type.of(NAME)


# Find the fields of a job that a Slurm cluster does not support. Each problem's hint names an
# alternative.

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def _launch_problems(job: TrainingJob) -> Iterator[Problem]:
    """Yield the problems with which no batch script can be written."""
    yield from option_problems(job)
    if job.entry_point is None and job.command is None:
        yield Problem(
            ("entry_point",),
            "the job runs its image's own entry point, but a Slurm cluster needs a script "
            "or command",
            "add `entry_point: train.py`",
            code="CT036",
        )
    yield from no_ray(job.distribution, "on a Slurm cluster")
    kind = job.distribution.type
    if kind in ("smddp", "smp"):
        message = f"`{kind}` is SageMaker's own library and does not exist on a Slurm cluster"
        hint = "use `distribution: {type: torch}`, which runs everywhere"
        if kind == "smp":
            hint += (
                ": `cloudtrain scripts copy pipeline_gpt` is a pipeline, `gpt_fsdp` shards "
                "with FSDP2"
            )
        yield Problem(("distribution", "type"), message, hint, code="CT030")
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "launcher":
        yield Problem(
            ("distribution", "launch"),
            "the `deepspeed` command starts ranks through ssh, but a Slurm job must start "
            "them through `srun`",
            "use `launch: torch` or `launch: mpi`",
            code="CT030",
        )


def _other_problems(job: TrainingJob, settings: Slurm) -> Iterator[Problem]:
    """Yield the problems of a job whose batch script can be written nevertheless."""
    yield from _container_problems(job, settings)
    yield from _place_problems(job)
    for name in job.environment.variables:
        if not re.fullmatch(_VARIABLE, name):
            message = f"`{name}` cannot be the name of an environment variable in a batch script"
            yield Problem(
                ("environment", "variables", name),
                message,
                "use letters, digits and `_`, and do not begin with a digit",
                code="CT031",
            )

    if not (_feature(job) or "").isprintable():
        yield Problem(
            ("resources", "instance_type"),
            "`instance_type` holds a line break or another control character",
            "write it on one line",
            code="CT031",
        )

    if job.resources.instance_groups:
        yield Problem(
            ("resources", "instance_groups"),
            "`instance_groups` works only on SageMaker; all nodes of a Slurm job are of "
            "the same type",
            "use `instance_count`",
            code="CT031",
        )


def _container_problems(job: TrainingJob, settings: Slurm) -> Iterator[Problem]:
    name = image_of(job)
    if name is None:
        return
    if settings.container is None:
        message = f"the job names the image `{name}`, but `[slurm]` has no `container` to run it"
        hint = (
            'set `container` to `"pyxis"` or `"apptainer"` in `[slurm]` of '
            "`cloudtrain.toml`, or remove the image"
        )
        yield Problem(("environment", "image"), message, hint, code="CT034")
    elif is_mpi(job) and not is_plug_in(settings.mpi):
        message = f"`mpirun` would start the ranks outside the container `{name}`"
        hint = (
            'set `mpi = "pmix"` in `[slurm]`, so that `srun` starts them; `srun --mpi=list` '
            "shows the choices"
        )
        yield Problem(("environment", "image"), message, hint, code="CT031")


def _place_problems(job: TrainingJob) -> Iterator[Problem]:
    """Yield the problems with the paths of inputs, outputs and checkpoints on the cluster."""
    for name, item in job.inputs.items():
        place = item.of(NAME)
        if place is None:
            message = f"input `{name}` has no path on the cluster"
            hint = f"add `slurm: /PATH` under `inputs.{name}`"
            yield Problem(("inputs", name), message, hint, code="CT032")
        yield from _path_problems(("inputs", name, NAME), place)

    for name, output in job.outputs.items():
        yield from _path_problems(("outputs", name, NAME), output.of(NAME))
    if job.checkpoint is not None:
        yield from _path_problems(("checkpoint", NAME), job.checkpoint.of(NAME))

    for name, item in job.inputs.items():
        if item.shard:
            yield Problem(
                ("inputs", name, "shard"),
                "`shard` has no effect on a Slurm cluster: every node sees the whole input",
                "remove `shard`, and let the script choose its part by its rank",
                code="CT031",
            )


def _path_problems(path: ValuePath, place: str | None) -> Iterator[Problem]:
    if place is not None and not place.startswith("/"):
        yield Problem(
            path,
            f"`{place}` is not an absolute path of the cluster's file system",
            "write for example `/data/train`, a path that every node sees",
            code="CT031",
        )


# The plan of a job on a Slurm cluster. `--format sbatch` prints it as a file for sbatch.


def forms_of(plan: Plan) -> dict[str, Callable[[], str]]:
    """`sbatch`: a file for sbatch itself."""
    if "script" not in plan.request:
        return {}
    return {"sbatch": lambda: _batch_file(plan.request)}


def _batch_file(request: Mapping[str, Any]) -> str:
    """Return the batch script with its options as `#SBATCH` lines. The job needs the bundle on the
    cluster: `cloudtrain submit --upload-only` uploads it."""
    first, newline, rest = str(request["script"]).partition("\n")
    # without `sbatch --parsable`, and without the script, which this text replaces
    words = request["argv"][2:-1]
    lines = [f"#SBATCH {_quote(word)}" for word in words]
    return "\n".join([first, *lines]) + newline + rest


def _quote(word: str) -> str:
    """Quote an option for an `#SBATCH` line. sbatch splits the line as a shell does, and `#` begins
    a comment."""
    name, equals, value = word.partition("=")
    if not set(value) & set(" \"'\\#"):
        return word
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{text}"'


# Compile a job, settings and context to a plan.


def compile_slurm(job: AnyJob, settings: Slurm, context: CompileContext) -> Plan:
    """Return the plan of a job on a Slurm cluster. `context.account` must be a `SlurmAccount`. The
    plan's `request` has

    argv        the command line of sbatch
    script      the text of the batch script; the last word of `argv` is its path
    options     the options in `argv`, by name
    folder      the run's folder
    outputs     the folders that the run writes to, by name
    environment if cloudtrain installs the job's requirements: the folder of their environment,
                their file, and the script that builds it
    """
    view = job.view
    problems = Problems(_launch_problems(view))
    has_launch = not problems
    problems += _other_problems(view, settings)

    plan = None
    if has_launch:
        plan = problems.collect_from(lambda: _plan(ClusterRun(view, settings, context)), None)
    problems.raise_if_any(plan)
    assert plan is not None, "without a plan there are problems"
    if isinstance(job, TrainingJob):
        return plan

    # a processing job has no model, no checkpoint and no distribution
    outputs = {name: path for name, path in plan.outputs.items() if name.startswith("outputs/")}
    request = plan.request | {"outputs": outputs}
    summary = [pair for pair in plan.summary if pair[0] not in ("distribution", "checkpoint")]
    return replace(plan, request=request, summary=tuple(summary), outputs=outputs)


def _plan(run: ClusterRun) -> Plan:
    job = run.job
    context = run.context
    batch = launch(run)
    overrides = getattr(job, NAME + OVERRIDES, {})
    options = _apply_overrides(sbatch_options(run), overrides, job)

    outputs = run.outputs
    request = {
        "argv": ["sbatch", "--parsable", *_words(options), f"{run.folder}/job.sh"],
        "folder": run.folder,
        "options": options,
        "outputs": outputs,
        "script": batch_script(run, batch),
    }
    environment = run.environment
    if environment is not None:
        script = install_script(run, environment)
        request["environment"] = asdict(environment) | {"script": script}

    bundle = context.bundle
    upload = Upload("code", bundle.sha256, run.bundle, bundle.size, bundle.file_count)
    return Plan(
        target=NAME,
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=(upload,),
        processes=batch.processes,
        summary=tuple(_summary(run, batch, options)),
        place=context.account.place,
        outputs=outputs,
    )


def _words(options: Options) -> Iterator[str]:
    """Yield the options as words of a command line."""
    for name, value in options.items():
        if value is True:
            yield f"--{name}"
        elif value:
            yield f"--{name}={value}"


_OF_FIELDS = {"time": "max_runtime", "deadline": "spot", "requeue": "spot", "no-requeue": "spot"}
"""The options that fields of a job set, each with the field."""


def _apply_overrides(options: Options, overrides: Mapping[str, Any], job: TrainingJob) -> Options:
    """Return `options` with the job's `slurm_overrides` applied. A null removes an option."""
    problems = []
    result = dict(options)
    for name, value in overrides.items():
        fault = _override_fault(name, value, options, job)
        if fault is not None:
            message, hint = fault
            problems.append(Problem((NAME + OVERRIDES, name), message, hint, code="CT035"))
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = value if isinstance(value, bool) else str(value)
    if problems:
        raise JobError(problems)
    return dict(sorted(result.items()))


def _override_fault(
    name: str, value: object, options: Options, job: TrainingJob
) -> tuple[str, str] | None:
    """Return a message and a hint for an override that is not possible; None if it is."""
    if is_fixed(name):
        message = f"cloudtrain sets `{name}` itself, so you cannot change it"
        return message, "remove it from the overrides"
    # `requeue` and `no-requeue` exclude each other, so only one of them is in the options.
    if name in options or name == "no-requeue":
        field = _OF_FIELDS.get(name)
        is_set = field is not None and getattr(job, field) is not None
        # null and false both leave an option out
        if is_set and (value or None) != options.get(name):
            message = f"`{name}` contradicts `{field}` of the job"
            return message, f"remove one of `{name}` and `{field}`"

    if not isinstance(value, str | int | None):
        message = f"`{name}` must be a single value for the option `--{name}`"
        return message, "write a text, a number or `true`"
    if not is_option(f"--{name}={value or ''}"):
        message = f"`{name}` is not a long option of sbatch with a value on one line"
        return message, "write a name from `sbatch --help` and its value, such as `nice: 100`"
    return None


def _summary(run: ClusterRun, batch: BatchLaunch, options: Options) -> list[tuple[str, str]]:
    """Return the first lines of the plan, as pairs of label and text."""
    job = run.job
    nodes = f"{run.nodes} nodes" if run.nodes > 1 else "1 node"
    where = [str(options[name]) for name in ("partition", "constraint", "gres") if name in options]
    if where:
        nodes += f" ({', '.join(where)})"

    processes = str(run.nodes * run.processes)
    if run.nodes > 1:
        processes += f" ({run.nodes} x {run.processes})"

    pairs = [
        ("target", f"slurm ({run.account.host or 'this machine'})"),
        ("instances", nodes),
        ("processes", processes),
        ("distribution", f"{job.distribution.type} through {batch.title}"),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", run.paths["checkpoint"]),
        ("run folder", run.folder),
    ]
    if run.image is not None:
        pairs.insert(2, ("image", f"{run.image} ({run.settings.container})"))
    environment = run.environment
    if environment is not None:
        words = f"`{environment.requirements}` on top of what `{run.settings.python}` has"
        pairs.append(("environment", f"{environment.folder}\n{words}"))
    if job.spot:
        pairs.append(("spot", "starts again after it loses its nodes"))
    return pairs + limit_rows(job)
