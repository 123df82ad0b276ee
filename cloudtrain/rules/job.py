"""The rules for every target, with codes that begin with `CT`."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import takewhile

from cloudtrain.errors import InPlace, ValuePath, did_you_mean, dotted, quoted, shortened
from cloudtrain.job.distribution import TensorFlow
from cloudtrain.job.model import OVERRIDES, exact_duration
from cloudtrain.job.options import Options, options_of_script
from cloudtrain.plans.plan import Finding, Level
from cloudtrain.plans.processes import Processes
from cloudtrain.rules.engine import (
    Fault,
    Reading,
    Subject,
    declare,
    finding_of,
    plural,
    removal,
    rule,
)
from cloudtrain.rules.facts import (
    NEWEST,
    SCHEDULES,
    Version,
    read_requirements,
    too_new,
    uses_pipelining,
)
from cloudtrain.rules.named import variables
from cloudtrain.runtime.torchrun_words import PLATFORM_ARGUMENTS
from cloudtrain.system.plugins import DEFAULT_TARGET, all_targets, find_target

# Portable rules about the job itself: the program, its parameters, the job's shape and its limits.

LAUNCHER_VARIABLES = frozenset(
    (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT "
        "TF_CONFIG"
    ).split()
)
"""Variables that tell a process its rank and how to find the others."""

_VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PARAMETER_NAME = r"[^\s=-][^\s=]*"


@rule("CT201", Level.ERROR)
def parameter_name(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter's name is not valid as a command-line option.

    Hyperparameters reach the script as `--name value`. A name that is empty, starts with a dash, or
    contains white space or `=` arrives as a different option. Write the name without dashes:
    `learning_rate`, not `--learning_rate`.
    """
    for name in subject.reading.parameters:
        if not re.fullmatch(_PARAMETER_NAME, name):
            better = re.sub(r"[\s=]+", "_", name.lstrip("-")) or "name"
            message = f"`{name}` cannot be the name of an option"
            yield Fault(message, InPlace(f"write `{better}`"), ("hyperparameters", name))


@rule("CT202", Level.WARNING)
def nested_parameter(subject: Subject) -> Iterator[Fault]:
    """A hyperparameter is nested too deeply for a command line.

    A mapping reaches the script as `--name a=1,b=2`, which supports only one level. A mapping
    inside a mapping or a list arrives as Python text, which few scripts can parse. Put nested
    configuration into a file in `source_dir` and pass its name.
    """
    for name, value in subject.reading.parameters.items():
        items: list[object] = []
        if isinstance(value, Mapping):
            items += value.values()
        elif isinstance(value, list):
            items += value
        if any(isinstance(item, Mapping | list) for item in items):
            hint = f"write it to a file in the source folder, and give `{name}` the file's name"
            yield Fault(
                f"`{name}` is nested and would reach the script as Python text",
                hint,
                ("hyperparameters", name),
            )


@rule("CT203", Level.ERROR)
def variable_name(subject: Subject) -> Iterator[Fault]:
    """An environment variable has a name that the targets refuse.

    A name consists of letters, digits and underscores, and does not start with a digit. This is
    SageMaker's pattern, and shells can export only such names.
    """
    for variable in variables(subject):
        name = variable.name
        if not re.fullmatch(_VARIABLE_NAME, name):
            better = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("0123456789") or "NAME"
            message = f"`{name}` is not a valid name for an environment variable"
            yield Fault(message, InPlace(f"write `{better}`"), variable.path)


@rule("CT204", Level.ERROR)
def launcher_variable(subject: Subject) -> Iterator[Fault]:
    """The job sets an environment variable that the launcher sets.

    RANK, WORLD_SIZE, MASTER_ADDR and similar variables tell each process its role. With a fixed
    value, all processes take the same role, and the job hangs or trains nonsense. Variables that
    start with CLOUDTRAIN_, SM_ or AZUREML_CR_ are reserved for cloudtrain and the services. The
    rule checks every place where a variable can be set: `environment.variables`, the overrides, and
    `-x NAME=VALUE` among the options of mpirun.
    """
    for variable in variables(subject):
        name = variable.name
        if name in LAUNCHER_VARIABLES or name.startswith(("CLOUDTRAIN_", "SM_", "AZUREML_CR_")):
            yield Fault(
                f"`{name}` is set by the launcher, for each process",
                variable.removed,
                variable.path,
            )


@rule("CT206", Level.WARNING)
def metric_pattern(subject: Subject) -> Iterator[Fault]:
    """A metric's regular expression may fail to record the metric.

    SageMaker accepts any pattern of at most 500 characters, and uses it to find the number in the
    output. All of AWS's examples have exactly one group, around the number: `loss=([0-9.]+)`. AWS
    does not document what a pattern with no group or several groups records. Hugging Face's
    published pattern has two groups, with the number in the first. `(?:...)` does not count as a
    group. The job trains in any case; only the metric may be missing.
    """
    for name, pattern in subject.reading.metrics.items():
        groups = _groups_of(pattern)
        if isinstance(groups, int) and groups != 1:
            yield _metric_fault(
                name, f"has {groups} groups; the service documents one, around the number"
            )


@rule("CT216", Level.ERROR)
def metric_is_no_pattern(subject: Subject) -> Iterator[Fault]:
    """A metric's pattern is not a regular expression.

    No line of the output can match it, so the metric would be missing after all the hours that you
    have paid for.
    """
    for name, pattern in subject.reading.metrics.items():
        groups = _groups_of(pattern)
        if isinstance(groups, Exception):
            yield _metric_fault(name, f"is not a regular expression: {groups}")


def _groups_of(pattern: str) -> int | Exception:
    """Return the number of groups of a regular expression, or why it is none."""
    try:
        with warnings.catch_warnings():
            # Python warns that `[[` may get another meaning.
            warnings.simplefilter("ignore")
            return re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        return error


def _metric_fault(name: str, fault: str) -> Fault:
    hint = InPlace(f"write for example `{re.escape(name)}=([0-9.eE+-]+)`")
    return Fault(f"the pattern of metric `{name}` {fault}", hint, ("metrics", name))


@rule("CT208", Level.ERROR)
def torch_too_old(subject: Subject) -> Iterator[Fault]:
    """The script imports a name that its version of PyTorch does not have.

    `environment.version` is the PyTorch version of the image. FSDP2 (`fully_shard`) was added in
    2.6, pipelining in 2.4, and its zero-bubble schedules in 2.5 and 2.6. With an older version, the
    script fails with an ImportError after the machines have started. Jobs for `smp`, version 1, are
    not checked: their images end at 2.0, so what a script has of these names is for its runs
    without `smp`.
    """
    version = _torch_of(subject)
    if version is None or version >= NEWEST or not subject.target.facts.is_paid:
        return
    needs: list[tuple[str, Version, ValuePath]] = []
    pipelined = False
    for entry in subject.tree.user_files:
        if not entry.path.endswith(".py"):
            continue
        source = subject.tree.read_text(entry.path) or ""
        pipelined = pipelined or uses_pipelining(source)
        for name, first in too_new(source, version):
            what = f"`{entry.path}` imports `{name}`, which"
            needs.append((what, first, ("environment", "version")))

    schedule = str(subject.job.hyperparameters.get("schedule", ""))
    since = SCHEDULES.get(schedule, (0, 0))
    if pipelined and since > version:
        needs.append((f"the schedule `{schedule}`", since, ("hyperparameters", "schedule")))

    for what, first, path in needs:
        least = _dotted(first)
        message = f"{what} needs PyTorch {least} or newer, not {_dotted(version)}"
        hint = f'set `environment.version` to "{least}" or newer'
        if path == ("hyperparameters", "schedule"):
            hint += ", or use the schedule `1f1b`"
        yield Fault(message, hint, path)


def _torch_of(subject: Subject) -> Version | None:
    """Return the version of PyTorch that the job asks for; None if there is none to check."""
    environment = subject.job.environment
    distribution = subject.job.distribution
    if environment.framework != "pytorch":
        return None
    if distribution.type == "smp" and distribution.version == 1:
        return None
    match = re.match(r"(\d+)\.(\d+)", environment.version or "")
    return (int(match[1]), int(match[2])) if match else None


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


@rule("CT209", Level.ERROR)
def unknown_hyperparameter(subject: Subject) -> Iterator[Fault]:
    """The script does not accept an option of the job, or requires an argument that the job does
    not have.

    Hyperparameters reach the script as `--name value`, and `arguments` as they are. The script
    reads them with `argparse.ArgumentParser` or `runtime.arguments`, which exit with an error at an
    unknown option, and without a required one. The rule checks only scripts that name all options
    in their own text and call `parse_args()`, or `runtime.arguments` with a dataclass of the same
    file.
    """
    job = subject.job
    script = subject.script
    options = _options_of(subject)
    if options is None:
        return

    # After `--`, words are no options; and `-1` is a number.
    words = [*takewhile("--".__ne__, job.arguments)]
    typed = [word.partition("=")[0] for word in words if re.match("-[^0-9.]", word)]
    names: dict[str, object] = {}
    for word in typed:
        if word.startswith("--"):
            names[word[2:]] = None
    names |= job.hyperparameters

    candidates = []
    for name in sorted(options.names - {"help"}):
        if not name.startswith("no-") and len(name) > 1:
            candidates.append(name)
    unknown = 0
    for name, value in names.items():
        is_left_out = job.bare_flags and value is False
        if is_left_out or not re.fullmatch(_PARAMETER_NAME, name) or options.accept(name):
            continue
        unknown += 1
        suggestion = None
        if unknown < _MOST_SUGGESTIONS:  # each takes long if there are thousands of options
            suggestion = did_you_mean(name, candidates)
        place = ("hyperparameters", name) if name in job.hyperparameters else ("arguments",)
        yield Fault(f"`{name}` is not an option of `{script}`", suggestion or "remove it", place)

    positional_count = len(job.arguments) - len(typed)
    missing = options.positional[max(0, positional_count) :]
    if missing:
        needed = quoted(missing)
        message = f"`{script}` requires {needed}, and the job's arguments end before"
        yield Fault(
            message,
            "write the arguments after the script, or into `arguments` of the job",
            ("arguments",),
        )

    given = [*names, *PLATFORM_ARGUMENTS]
    for word in typed:
        if not word.startswith("--"):
            given += (word[1:2], word[1:])
    for option in options.required_beside(given):
        message = f"`{script}` requires the option `--{option}`, and the job has no value for it"
        yield Fault(message, f"add it to the job: `--set hyperparameters.{option}=VALUE`")


_MOST_SUGGESTIONS = 20


def _options_of(subject: Subject) -> Options | None:
    """Return the options of the script; None if it has none or does not name all of them."""
    script = subject.script
    if script is None or not script.endswith(".py"):
        return None
    text = subject.tree.read_text(script) or ""
    if not re.search(r"argparse|runtime\.arguments", text):
        return None
    return options_of_script(text)


WANDB_KEY = "WANDB_API_KEY"


@rule("CT217", Level.WARNING)
def key_of_tracking_is_missing(subject: Subject) -> Iterator[Fault]:
    """`tracking.wandb` is `online`, and the machine of the job has no key for it.

    `wandb.init()` then asks for a key, and ends the script, because nobody answers. Keep the key as
    a secret of the target and name its place: `environment: {secrets: {WANDB_API_KEY:
    "secretsmanager:wandb"}}`. On this machine and on a cluster, `wandb login` has left a key in the
    home folder.
    """
    tracking = subject.job.tracking
    if tracking is None or tracking.wandb != "online":
        return
    if not find_target(subject.reading.service).facts.is_paid:
        return
    if WANDB_KEY in subject.job.environment.secrets or WANDB_KEY in subject.reading.variables:
        return
    yield Fault(
        "`tracking.wandb: online` needs an API key, which the machine of the job does not have",
        f"add `{WANDB_KEY}` to `environment.secrets`, or write `wandb: offline`",
        ("tracking", "wandb"),
    )


@rule("CT218", Level.WARNING)
def tracking_server_is_out_of_reach(subject: Subject) -> Iterator[Fault]:
    """MLflow cannot reach the tracking server of `tracking.mlflow` from the machine of the job.

    An address such as `http://localhost:5000` means the machine on which the script runs. A URI of
    a service, such as the ARN of a tracking server, works only with the plugin of that service,
    which the script does not import, so that nobody misses it before. The rule reads the job's
    requirements, and cannot look into an image.
    """
    tracking = subject.job.tracking
    if tracking is None or tracking.mlflow is None or subject.reading.service == DEFAULT_TARGET:
        return
    uri = tracking.mlflow.of(subject.reading.service)
    if uri is None:
        return

    place = ("tracking", "mlflow")
    if re.match(_LOOPBACK, uri):
        message = f"`{uri}` is the machine on which the script runs, not this one"
        yield Fault(message, "name a server that the machine of the job can reach", place)
    plugins = dict(filter(None, (target.facts.mlflow_plugin for target in all_targets())))
    plugin = plugins.get(uri.partition(":")[0])
    file = subject.job.environment.requirements
    if plugin is None or (file is not None and _names(subject, file, plugin)):
        return
    message = f"MLflow reads `{shortened(uri)}` only with `{plugin}`, which no requirement names"
    yield Fault(message, f"add `{plugin}` to the job's requirements, if the image lacks it", place)


def _names(subject: Subject, file: str, package: str) -> bool:
    packages = read_requirements(subject.tree, file).requirements.packages
    return any(item.name == package for item in packages)


_LOOPBACK = r"https?://(?:[^/@]*@)?(?:localhost|127\.[\d.]+|\[::1\]|0\.0\.0\.0)(?=[:/]|$)"


@rule("CT210", Level.ERROR)
def field_without_effect(subject: Subject) -> Iterator[Fault]:
    """The overrides contradict a field of the job.

    Overrides are merged last, so the request has their value, and the field has no effect. A job
    that `cloudtrain adopt` wrote may have overrides with values of the original: if you change such
    a value in a field, remove it from the overrides.
    """
    reading = subject.reading
    section = reading.service + OVERRIDES
    if not reading.overrides or not reading.request:
        return

    # `Reading` itself, unlike a target's own class, reads the values of the job.
    values = _values(reading)
    of_job = Reading(reading.target, subject.job, reading.account, subject.plan)
    for path, value in _values(of_job).items():
        if path == ("spot", "max_wait") and ("spot",) not in values:
            continue  # the fault of `spot` says it

        actual = values.get(path)
        place = reading.locate(path)

        # A target may make an address longer without any override, so only an override that
        # contains the actual address counts.
        if path[0] in ("inputs", "checkpoint"):
            key = _override_with(reading, actual)
            if key is None:
                place = path
            elif place == path:
                place = (section, key)

        is_same = actual == value
        if value in ("true", "false"):  # another tool may write a bool for it
            is_same = str(actual).lower() == value
        if place != path and not is_same:
            message = f"`{dotted(path)}` has no effect, because `{section}` sets another value"
            yield Fault(message, removal(place), place)


def _override_with(reading: Reading, value: object) -> str | None:
    """Return the key of the first override that contains a value; None if none does."""
    if value:
        text = json.dumps(value)
        for key, override in reading.overrides.items():
            if text in json.dumps(override):
                return key
    return None


def _values(reading: Reading) -> dict[ValuePath, object]:
    """Return the values of fields, by path, that overrides can contradict."""
    values: dict[ValuePath, object] = {}
    if reading.max_runtime is not None:
        values[("max_runtime",)] = reading.max_runtime
    if reading.spot is not None:
        values[("spot",)] = True
        if reading.spot.max_wait is not None:
            values["spot", "max_wait"] = reading.spot.max_wait
    place_of_checkpoint = reading.checkpoint and reading.checkpoint.of(reading.target)
    if place_of_checkpoint is not None:
        values["checkpoint", reading.target] = place_of_checkpoint
    count = reading.resources.instance_count
    if count is not None and "instance_count" in reading.resources.model_fields_set:
        values["resources", "instance_count"] = count
    for name, text in reading.variables.items():
        values["environment", "variables", name] = text
    for name, parameter in reading.parameters.items():
        values["hyperparameters", name] = parameter
    for name, pattern in reading.metrics.items():
        values["metrics", name] = pattern
    for place in reading.places:
        if place.path[:1] == ("inputs",):
            values[place.path] = place.address
    return values


@rule("CT403", Level.WARNING)
def toy_on_paid_machine(subject: Subject) -> Iterator[Fault]:
    """A demonstration job would run on paid machines.

    The job files of the bundled scripts have the tag `size: toy`. They train for seconds, on data
    that comes with Python packages, so you would pay for idle GPUs. Use `job_gpu.yaml` in the same
    folder, which is made for GPUs. Remove the tag once the job is your own.
    """
    if subject.target.facts.is_paid and subject.job.tags.get("size") == "toy":
        yield Fault(
            "this job is a demonstration of a few seconds, but the machine costs money",
            "use `job_gpu.yaml` in the same folder, or remove the tag `size: toy` to run this job",
            ("tags", "size"),
        )


@rule("CT401", Level.WARNING)
def spot_without_checkpoint(subject: Subject) -> Iterator[Fault]:
    """A spot job has no checkpoint.

    Spot instances can be reclaimed at any time. Without a checkpoint, an interrupted job starts
    again from the beginning, and you pay for the same hours twice.
    """
    if subject.reading.spot is not None and subject.reading.checkpoint is None:
        yield Fault(
            (
                "the job runs on spot capacity and has no checkpoint, so an interruption "
                "loses everything"
            ),
            InPlace("add `checkpoint: {sagemaker: s3://..., azureml: azureml://...}`"),
            ("spot",),
        )


@rule("CT402", Level.ERROR)
def wait_shorter_than_run(subject: Subject) -> Iterator[Fault]:
    """The wait for spot capacity is shorter than the run itself.

    `spot.max_wait` is the limit for waiting and running together, so it must be at least
    `max_runtime`. SageMaker refuses a job with a shorter wait.
    """
    spot = subject.reading.spot
    limit = subject.reading.max_runtime
    if spot is None or not spot.max_wait or not limit:
        return
    if spot.max_wait < limit:
        hint = f"set `spot.max_wait` to at least `{exact_duration(limit)}`"
        yield Fault(short_wait(spot.max_wait, limit), hint, ("spot", "max_wait"))


def short_wait(wait: int, run: int) -> str:
    """Return the message for a wait for spot capacity that is shorter than the run."""
    limit = exact_duration(run)
    return f"`spot.max_wait` ({exact_duration(wait)}) is shorter than `max_runtime` ({limit})"


def instance_count(subject: Subject) -> int:
    """Return the number of instances that the local target simulates, or else the number that the
    job requests; 1 for a job with instance groups, because each group has its own purpose."""
    simulated: int | None = getattr(subject.settings, "instance_count", None)
    if simulated:
        return simulated
    resources = subject.reading.resources
    return 1 if resources.instance_groups else resources.instance_count


@rule("CT501", Level.WARNING)
def instances_without_distribution(subject: Subject) -> Iterator[Fault]:
    """The job has several instances but no distribution.

    With `distribution: {type: none}` every instance runs the whole script independently: four
    instances cost four times as much and train the same model four times. This suits data
    preparation, for which you can use a processing job (`kind: processing`), but is a mistake for
    training. Jobs without a script are not checked, because the program of an image, such as a
    built-in algorithm, connects its instances itself.
    """
    job = subject.job
    reading = subject.reading
    count = instance_count(subject)
    # Without a script, the image's own program runs, such as a built-in algorithm.
    has_script = job.entry_point is not None or job.command is not None
    if subject.processing is not None or reading.distribution.type != "none":
        return
    if count < 2 or not has_script:
        return

    kind = "tensorflow" if job.environment.framework == "tensorflow" else "torch"
    place: ValuePath = ("distribution",)
    hint = (
        f"add `distribution: {{type: {kind}}}`, or ignore this for independent work with "
        "`--ignore CT501`"
    )
    if job.distribution.type != "none":
        place = (reading.service + OVERRIDES, reading.distribution_key)
        hint = removal(place)
    yield Fault(f"each of the {count} instances would run the whole script alone", hint, place)


@rule("CT502", Level.WARNING)
def idle_gpus(subject: Subject) -> Iterator[Fault]:
    """Most GPUs of an instance would be idle.

    One process uses one GPU, unless the script itself uses more, as with TensorFlow's
    MirroredStrategy. With `distribution: {type: none}`, or fewer processes than GPUs, you pay for
    idle GPUs.
    """
    distribution = subject.reading.distribution
    gpus = subject.reading.resources.gpus_per_instance or 0
    processes: int | None = getattr(distribution, "processes_per_instance", None)
    if distribution.type == "none":
        if subject.job.environment.framework == "tensorflow":
            return
        processes = 1
    if gpus < 2 or processes is None or processes >= gpus:
        return
    path: ValuePath = ("distribution",)
    if processes > 1:
        path = ("distribution", "processes_per_instance")
    message = f"{plural(processes, 'process')} on an instance with {gpus} GPUs"
    yield Fault(
        message,
        (
            f"use `distribution: {{type: torch, processes_per_instance: {gpus}}}`, or an "
            "instance with fewer GPUs"
        ),
        path,
    )


@rule("CT503", Level.ERROR)
def more_processes_than_gpus(subject: Subject) -> Iterator[Fault]:
    """An instance has more processes than GPUs.

    If two ranks share a GPU, NCCL fails at start ("Duplicate GPU detected"), when you already pay
    for the machines.
    """
    gpus = subject.reading.resources.gpus_per_instance
    processes = getattr(subject.reading.distribution, "processes_per_instance", None)
    if gpus and processes and processes > gpus:
        message = f"{processes} processes on an instance with {plural(gpus, 'GPU')}"
        yield Fault(
            message,
            f"set `distribution.processes_per_instance` to {gpus}, or leave it out",
            ("distribution", "processes_per_instance"),
        )


@rule("CT504", Level.ERROR)
def parameter_servers_need_workers(subject: Subject) -> Iterator[Fault]:
    """The job has parameter servers but not enough workers.

    With `strategy: parameter_server` the chief counts as a worker but only coordinates, so training
    needs at least one more worker.
    """
    distribution = subject.reading.distribution
    if not isinstance(distribution, TensorFlow) or distribution.strategy != "parameter_server":
        return
    if distribution.workers == 1:
        yield Fault(
            "the only worker is the chief, which does not train itself",
            "set `distribution.workers` to 2 or more",
            ("distribution", "workers"),
        )


# Rules about earlier runs whose output a job reads. Before a submit, cloudtrain asks the target for
# their states.

declare(
    "CT531",
    Level.ERROR,
    """An input comes from a run that has not succeeded.

    `run:NAME/output/OUTPUT` is the output of an earlier run. If that run failed, the output is
    missing or incomplete. A dry run uses the run's last known state; a submit asks the target. A
    job waits for an unfinished run, but a sweep and `rerun --set` do not.
    """,
)


def not_succeeded(path: ValuePath, name: str, state: str | None) -> Finding:
    """Return the finding for an input from the run `name`, which did not succeed. `state` is None
    if the run does not exist on the target."""
    message = f"the run `{name}` is {state or 'deleted'}, so its output is incomplete"
    hint = "run it again first"
    if state in ("pending", "queued", "preparing", "running"):
        hint = f"wait for it: `cloudtrain wait {name}`"
    return finding_of("CT531", message, hint, path)


declare(
    "CT541",
    Level.NOTICE,
    """The target was not asked about a part of the job.

    Only the target knows, for example, whether a role, a bucket or a data asset exists, and how
    many machines you may use. So a job without errors may still be wrong. The message names what
    was not asked, and why. `cloudtrain check` asks if this machine has the SDK and the credentials.
    `--online` insists, and ends with an error if the target cannot be asked. A submit always asks,
    except with `--offline`.
    """,
)


def not_asked(whom: str, about: str, why: str, hint: str | None) -> Finding:
    """Return the finding for a question that cloudtrain did not ask `whom`, the target."""
    message = f"cloudtrain did not ask {whom} about {about}, because {why}"
    return finding_of("CT541", message, hint)


declare(
    "CT532",
    Level.WARNING,
    """A sweep has fewer trials than it says.

    `parallel` is the number of trials that run at the same time, and no more can run than the sweep
    has. A grid has one trial for each combination of its values, whatever `trials` says.
    """,
)


# Portable rules about processing jobs: the instances should share the work.


@rule("CT521", Level.WARNING)
def instances_do_the_same(subject: Subject) -> Iterator[Fault]:
    """A processing job has several instances and no sharded input.

    Every instance runs the whole script. Unless an input has `shard: true`, all of them read the
    same data, do the same work, and write files of the same names to the same location, where only
    the last one remains. Ignore this rule if the script divides the work itself by
    `CLOUDTRAIN_INSTANCE`.
    """
    job = subject.processing
    count = instance_count(subject)
    if job is None or count == 1:
        return
    if any(item.shard for item in job.inputs.values()):
        return
    path: ValuePath = ("resources", "instance_count")
    hint = "use one instance, or shard an input"
    if job.inputs:
        path = ("inputs", next(iter(job.inputs)))
        hint = f"add `shard: true` under `{dotted(path)}`"
    hint += "; `--ignore CT521` if the script divides the work itself"
    yield Fault(f"all {count} instances would do the same work", hint, path)


@rule("CT522", Level.NOTICE)
def shard_of_one(subject: Subject) -> Iterator[Fault]:
    """An input is sharded, but the job has only one instance.

    With one instance, the shard contains all of the data, so `shard: true` has no effect.
    """
    job = subject.processing
    if job is None or instance_count(subject) > 1:
        return
    for name, item in job.inputs.items():
        if item.shard:
            yield Fault(
                f"input `{name}` is sharded over a single instance, which gets all of the data",
                "set `resources.instance_count` to 2 or more",
                ("inputs", name, "shard"),
            )


@rule("CT523", Level.ERROR)
def out_of_memory(subject: Subject) -> Iterator[Fault]:
    """The job needs more memory than its GPUs have.

    So the last `cloudtrain fit` of the same code with the same numbers found, on this machine. It
    counts the tensors of a rank at the peak of a step, and adds what a GPU needs at the very least
    besides. The hint names the cheapest instance type of the target that holds the job. Less memory
    is needed with a smaller batch on each rank, with recomputed activations, or if more ranks share
    the states of the model.
    """
    machines = subject.reading.machines
    if subject.estimates is None or not machines.groups:
        return
    row = machines.first.known
    ranks = Processes.of(subject.plan.processes).ranks
    if row is None or not ranks:
        return
    from cloudtrain.estimate.kept import shortage

    code = subject.tree.identity.sha256
    found = shortage(subject.estimates, subject.job, code, row, [*ranks.values()])
    if found is not None:
        yield Fault(*found, ("resources", "instance_type"))
