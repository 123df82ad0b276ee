"""The options of sbatch, by long name. An option without a value has the value True."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.core.distribution import TensorFlow
from cloudtrain.core.per_target import value_for
from cloudtrain.targets.slurm.compile.cluster_run import NAME, ClusterRun, is_mpi

Options = dict[str, "str | bool"]

COMMENT = "cloudtrain:"
"""The beginning of every job's `--comment`. The path of the run's folder follows."""


FIXED = frozenset(
    "array clusters comment error export export-file help job-name nodes open-mode output parsable test-only usage "
    "version wait wrap".split()
)
"""Options of sbatch that cloudtrain relies on, so that neither settings nor jobs may change them. `--wait` would keep a
submit waiting until the job has ended, and cloudtrain would not find the job on another cluster (`--clusters`)."""


def is_fixed(name: str) -> bool:
    """Return whether an option is one of `FIXED`. sbatch also takes the beginning of a name: `--arr` is `--array`."""
    return name in FIXED or (len(name) > 1 and any(option.startswith(name) for option in FIXED))


def sbatch_options(run: ClusterRun) -> Options:
    """Return the options of sbatch for the job, by long name."""
    settings, job = run.settings, run.job
    options: Options = {
        "job-name": run.context.run_name,
        "comment": f"{COMMENT}{run.folder.path}",
        "nodes": str(run.nodes),
        **_tasks(run),
        "output": run.folder.output,
        "open-mode": "append",
        "chdir": run.account.shared_dir,
        "export": "NIL",  # the run does not depend on variables of the submitting shell
        "signal": f"B:TERM@{settings.grace_period}",
        ("requeue" if settings.requeue or job.spot else "no-requeue"): True,
    }
    given = {
        "partition": settings.spot_partition if job.spot and settings.spot_partition else settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": _constraint(run),
        "reservation": settings.reservation,
        "time": time_limit(job.max_runtime) if job.max_runtime else None,
        "deadline": f"now+{job.spot.max_wait}" if job.spot and job.spot.max_wait else None,
        "gres": _gres(run),
    }
    options |= {name: value for name, value in given.items() if value is not None}
    options |= {"exclusive": True, "mem": "0"} if settings.exclusive else {}
    for option in settings.extra_sbatch:
        name, equals, value = option.removeprefix("--").partition("=")
        options[name] = value if equals else True
    return dict(sorted(options.items()))


def sbatch_argv(options: Mapping[str, object], script: str) -> list[str]:
    """Return the sbatch command line that submits the batch script at the path `script`."""
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value]
    return ["sbatch", "--parsable", *words, script]


def time_limit(seconds: int) -> str:
    """Format a duration as `DAYS-HOURS:MINUTES:SECONDS`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def _tasks(run: ClusterRun) -> Options:
    """Return the options for the tasks per node and the CPUs per task. For MPI and TensorFlow, a node has
    one task per rank; otherwise it has a single task."""
    alone = isinstance(run.job.distribution, TensorFlow) or is_mpi(run.job)
    tasks, cpus = run.processes if alone else 1, run.settings.cpus_per_instance
    share = {"cpus-per-task": str(max(1, cpus // tasks))} if cpus and not run.settings.exclusive else {}
    return {"ntasks-per-node": str(tasks), **share}


def _constraint(run: ClusterRun) -> str | None:
    """Return the features that nodes must have: `constraint` of the settings and the job's instance type. Return None
    if neither is set."""
    named = run.job.resources.instance_type
    words = [word for word in (run.settings.constraint, value_for(named, NAME) if named is not None else None) if word]
    return (
        "&".join(f"({word})" if "|" in word else word for word in words) if len(words) > 1 else "".join(words) or None
    )


def _gres(run: ClusterRun) -> str | None:
    kind = f":{run.settings.gpu_type}" if run.settings.gpu_type else ""
    return f"gpu{kind}:{run.gpus}" if run.gpus else None
