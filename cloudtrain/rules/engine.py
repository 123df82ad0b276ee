"""Preflight rules, which find mistakes in a job before it costs money. Each rule is a function with
a code.

A target's rules are in the target's folder. They are imported with the first job for that target,
so a local dry run does not wait for the rules of a cloud.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from cloudtrain.code.tree import Tree
from cloudtrain.documents.document import load_toml
from cloudtrain.errors import (
    InPlace,
    NearName,
    TargetUnavailable,
    UsageError,
    did_you_mean,
    shortened,
)
from cloudtrain.errors import ValuePath as ValuePath
from cloudtrain.job.data import Checkpoint
from cloudtrain.job.distribution import (
    MPI,
    SMDDP,
    SMP,
    DeepSpeed,
    Distribution,
    Horovod,
    Launcher,
    NoDistribution,
    Ray,
    TensorFlow,
    Torch,
    launcher_of,
)
from cloudtrain.job.model import OVERRIDES, merged, overrides_of
from cloudtrain.job.syntax import ScriptSyntax, read_syntax, script_file
from cloudtrain.job.training import Resources, Spot, TrainingJob
from cloudtrain.machines.choose import MachineGroup, Machines
from cloudtrain.machines.overlay import type_named
from cloudtrain.machines.spending import Use
from cloudtrain.plans.plan import Finding, Level, Plan
from cloudtrain.rules.facts import DataPlace, declared_places
from cloudtrain.system.plugins import OWN_PACKAGE, PORTABLE, all_targets, package_of_target

if TYPE_CHECKING:
    from cloudtrain.job.processing import ProcessingJob


# Positions in the user's overrides that set the same value as a field of the job.

Keys = tuple[str, ...]
KeysOf = Callable[[ValuePath], list[Keys]]
"""Maps the rest of a path in the job to the positions in the overrides that write it."""


def is_written(overrides: object, *keys: str | int) -> bool:
    """Return whether the overrides set the value at nested `keys`. Null also sets it, by removing
    the job's value."""
    for key in keys:
        if not isinstance(overrides, Mapping) or key not in overrides:
            return False
        overrides = overrides[key]
    return True


def keys_at(*places: Keys) -> KeysOf:
    """Return a function that maps every path inside a field of the job to the positions `places` in
    the overrides."""
    return lambda _: list(places)


def keys_named(*keys: str) -> KeysOf:
    """Return a function that maps a path inside a field of the job to one position in the
    overrides: `keys`, then the first part of that path. `keys_named("Environment")` maps `("A",)`
    to `("Environment", "A")`."""
    return lambda rest: [(*keys, *map(str, rest[:1]))]


IMAGE: ValuePath = ("environment", "image")


class CheckedTarget(Protocol):
    """The attributes of a target that rules use."""

    name: ClassVar[str]
    title: ClassVar[str]
    prefix: ClassVar[str]
    facts: ClassVar[Any]
    """The `TargetFacts`, which stand above this module."""
    parts: ClassVar[Mapping[str, str]]


@dataclass(frozen=True, eq=False)
class Reading:
    """The finished request of one plan, with the user's overrides, in the words of the job.

    Each service has its own request format, so each target with overrides has its own subclass.
    This class reads everything from the job. Overrides can put anything into a request: values of a
    wrong type count as missing, because other rules report them. If the job cannot be compiled,
    there is no request, and the job's own values are returned.
    """

    distribution_key: ClassVar[str] = "distribution"
    """The key of the overrides that determines how the processes start."""
    has_image: ClassVar[bool] = True
    """Whether the run may work in a container's image, which has packages of its own."""
    paths: ClassVar[Mapping[ValuePath, KeysOf]] = {}
    """Maps the beginning of a path in the job to the positions in the overrides that write the same
    part of the request."""

    target: str
    job: TrainingJob
    """The job as the user wrote it; of a processing job, the part that it shares with a training
    job."""
    account: Any
    plan: Plan
    processing: ProcessingJob | None = None

    @property
    def service(self) -> str:
        """The name of the service whose overrides apply: the target itself, or for a local run the
        emulated service."""
        return self.target

    @property
    def request(self) -> Mapping[str, Any]:
        return self.plan.request

    @cached_property
    def overrides(self) -> Mapping[str, Any]:
        """The user's overrides of the request."""
        return overrides_of(self.job, self.service)

    def changes(self, *keys: str) -> bool:
        """Return whether the overrides set or remove the value at `keys` of the request."""
        return bool(self.request) and is_written(self.overrides, *keys)

    def override_of(self, *keys: str) -> ValuePath | None:
        """Return the path of the override that sets or removes the value at `keys`; None without
        such an override."""
        if not is_written(self.overrides, *keys):
            return None
        return (self.service + OVERRIDES, *keys)

    @cached_property
    def distribution(self) -> Distribution:
        return self.job.distribution

    @property
    def launcher(self) -> Launcher:
        """The launcher that the distribution needs."""
        return launcher_of(self.distribution)

    @cached_property
    def resources(self) -> Resources:
        return self.job.resources

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The script's hyperparameters, without those for launchers."""
        return self.job.hyperparameters

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that the job sets."""
        return self.job.environment.variables

    @property
    def max_runtime(self) -> int | None:
        """The time limit in seconds that the job sets; None without one."""
        return self.job.max_runtime

    @property
    def longest_run(self) -> int | None:
        """The maximum duration of a run in seconds, as limited by the job or service; None without
        a limit."""
        return self.max_runtime

    @property
    def spot(self) -> Spot | None:
        return self.job.spot

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.job.checkpoint

    @property
    def metrics(self) -> Mapping[str, str]:
        return self.job.metrics

    @cached_property
    def machines(self) -> Machines:
        """The machines in the request. Their hardware comes from the target's table of instance
        types, with the corrections in the account's `overlay`."""
        resources = self.resources
        name = ""
        if resources.instance_type is not None:
            name = resources.instance_type.of(self.target) or ""
        row = type_named(self.target, name, getattr(self.account, "overlay", None))
        path = ("resources", "instance_type")
        return Machines((MachineGroup(name, resources.instance_count, row, path=path),))

    @cached_property
    def uses(self) -> Sequence[Use]:
        """The machines that the request pays for, and how long and how often."""
        return [Use(self.machines, self.longest_run)]

    @property
    def framework(self) -> str | None:
        """The framework of the request's image; None if unknown."""
        return self.job.environment.framework

    def can_import(self, name: str, settings: Any) -> bool | None:
        """Return whether the run can import a module without installing it; None if that is not
        known."""
        return None

    @cached_property
    def images(self) -> Sequence[tuple[str, ValuePath]]:
        """Every image that the user names, with its path. Images from the catalogue are left
        out."""
        image = self.job.environment.image
        name = None if image is None else image.of(self.target)
        return [] if name is None else [(name, IMAGE)]

    @cached_property
    def places(self) -> Sequence[DataPlace]:
        """The locations that the job reads and writes, as addresses that can be compared."""
        return list(declared_places(self.job, self.target))

    def locate(self, path: ValuePath) -> ValuePath:
        """Return the path at which a value of the request is set: its path in the overrides if they
        set it, otherwise `path`, its path in the job."""
        for start, keys_of in self.paths.items():
            if path[: len(start)] != start:
                continue
            for keys in keys_of(path[len(start) :]):
                override = self.override_of(*keys)
                if override is not None:
                    return override
        return path


@dataclass(frozen=True, eq=False)
class Subject:
    """The object that rules check: the reading of a plan, the target with its settings, and the
    user's files."""

    reading: Reading
    target: CheckedTarget
    settings: Any
    """The settings of `target`."""
    tree: Tree
    times: int = 1
    """How often the job is started: the number of a sweep's trials."""
    is_asked: bool = False
    """Whether the target is asked about the plan as well, before anything is sent."""
    estimates: Path | None = None
    """The folder of the estimates of `cloudtrain fit`; None if this machine has none."""

    @property
    def job(self) -> TrainingJob:
        return self.reading.job

    @cached_property
    def script(self) -> str | None:
        """The path of the script in the source folder; None without a script, or if the folder
        lacks the module."""
        entry_point = self.job.entry_point
        if entry_point is None:
            return None
        python_path = self.job.environment.variables.get("PYTHONPATH", "")
        return script_file(entry_point, self.tree.by_path.__contains__, python_path)

    @cached_property
    def syntax(self) -> ScriptSyntax:
        """What the script shows by its syntax; nothing without a Python script."""
        script = self.script
        if script is None or not script.endswith(".py"):
            return ScriptSyntax()
        return read_syntax(script, self.tree.read_python)

    @property
    def account(self) -> Any:
        return self.reading.account

    @property
    def plan(self) -> Plan:
        return self.reading.plan

    @property
    def processing(self) -> ProcessingJob | None:
        """The original job if it is a processing job; `job` is the part that it shares with a
        training job."""
        return self.reading.processing


# The class of a rule, and the registry of all rules.


class Fault(NamedTuple):
    """One violation of a rule. `path` is the path of the value in the job. An `InPlace` hint also
    fits if the overrides set the value; any other is given with how to remove the override."""

    message: str
    hint: str | None = None
    path: ValuePath = ()
    details: tuple[str, ...] = ()


Check = Callable[[Subject], Iterable[Fault]]


def _check_elsewhere(_: Subject) -> Iterable[Fault]:
    """Stand for the check of a rule whose violations other code finds, such as `Service.check`."""
    return ()


class Nature(str, Enum):
    """What a rule reports. It says whether `--ignore` can help."""

    JUDGEMENT = "judgement"
    """Something that is probably wrong. The user may know better."""
    FACT = "fact"
    """Something without which the job cannot run is missing or not valid."""
    CAP = "cap"
    """The user's cap on spending. Whoever could ignore it would set the cap."""


class Rule(NamedTuple):
    """A registered check. The docstring of the check is the rule's documentation: the first line
    states the problem, and the rest explains why it matters and what to do. `cloudtrain explain`
    and the rules page show this text."""

    code: str
    level: Level
    check: Check
    text: str
    """The documentation, which is the docstring of the check if there is one."""
    nature: Nature = Nature.JUDGEMENT
    needs_request: bool = True
    """Whether a target's rule can only check a job that was compiled to a request."""

    @property
    def can_be_ignored(self) -> bool:
        """Whether `--ignore` accepts the rule."""
        return self.nature is Nature.JUDGEMENT

    @property
    def summary(self) -> str:
        """The first paragraph of the documentation, which states the problem, as one line."""
        return inspect.cleandoc(self.text).partition("\n\n")[0].replace("\n", " ")

    @property
    def explanation(self) -> str:
        """The rest of the documentation, which explains why the problem matters and what to do."""
        return inspect.cleandoc(self.text).partition("\n\n")[2].strip()

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield the rule's findings for a job."""
        for fault in self.check(subject):
            hint = fault.hint
            path = subject.reading.locate(fault.path)
            if path != fault.path and not isinstance(hint, InPlace):
                if hint is None or hint.startswith("remove "):
                    hint = removal(path)
                else:
                    hint = f"{removal(path)}, and {hint}"
            yield Finding(self.code, self.level, fault.message, hint, path, details=fault.details)


def removal(path: ValuePath) -> str:
    """Return the hint to remove a value from the overrides."""
    field = ".".join(map(str, path[1:]))
    return f"remove `{field}` from `{path[0]}`"


registered: dict[str, Rule] = {}


def can_be_ignored(code: str) -> bool:
    """Return whether `--ignore` accepts a code; codes that no rule has are left to others."""
    return code not in registered or registered[code].can_be_ignored


def rule(
    code: str, level: Level, nature: Nature = Nature.JUDGEMENT, *, needs_request: bool = True
) -> Callable[[Check], Check]:
    """Return a decorator that registers a check under its code."""

    def register(check: Check) -> Check:
        declare(code, level, check.__doc__ or "", nature, check, needs_request=needs_request)
        return check

    return register


def declare(
    code: str,
    level: Level,
    text: str,
    nature: Nature = Nature.JUDGEMENT,
    check: Check = _check_elsewhere,
    *,
    needs_request: bool = True,
) -> None:
    """Register a rule, of which `text` is the documentation. Without a check, other code finds its
    violations."""
    assert code not in registered, f"two rules are called {code}"
    registered[code] = Rule(code, level, check, text, nature, needs_request)


def declare_all(file: Path) -> None:
    """Register the rules of a TOML table, each with its level, its documentation and its nature, as
    `declare` does."""
    for code, row in load_toml(file.read_text("utf-8")).items():
        nature = Nature(row.get("nature", Nature.JUDGEMENT))
        declare(code, Level(row["level"]), row["text"], nature)


def finding_of(code: str, message: str, hint: str | None, path: ValuePath = ()) -> Finding:
    """Return a finding with the severity that is declared for its code."""
    return Finding(code, registered[code].level, message, hint, path)


_PORTABLE_MODULES = ("cloudtrain.rules.job", "cloudtrain.rules.scripts", "cloudtrain.rules.values")


def load_rules(target: CheckedTarget, *, online: bool = False) -> None:
    """Import the portable rules and the target's rules; with `online`, also those of its service.
    Importing a module registers its rules.

    Raises:
        TargetUnavailable: a module of another package cannot be imported, or its rules have wrong
            codes.
    """
    for module in _PORTABLE_MODULES:
        import_module(module)

    old_codes = set(registered)
    abilities = ["rules", "training_rules"]
    if online:
        abilities.append("online")

    try:
        for ability in abilities:
            for module in target.parts.get(ability, "").split():
                import_module(module)
        for code in registered.keys() - old_codes:
            if not code.startswith(target.prefix):
                raise ValueError(f"the code `{code}` does not begin with `{target.prefix}`")
    except Exception as error:
        package = package_of_target(target.name)
        if package == OWN_PACKAGE:
            raise

        # The rules that were registered before the error must not apply to other jobs.
        for code in registered.keys() - old_codes:
            del registered[code]
        reason = f"{type(error).__name__}: {error}"
        hint = f"upgrade its package `{package}`, or uninstall it: `pip uninstall {package}`"
        raise TargetUnavailable(
            f"the rules of the target `{target.name}` cannot be loaded: {reason}", hint=hint
        ) from error


def all_rules() -> list[Rule]:
    """Return all rules of all targets, sorted by code."""
    for target in all_targets():
        with suppress(TargetUnavailable):  # the rules of a broken package; its own jobs report them
            load_rules(target, online=True)
    return [registered[code] for code in sorted(registered)]


def rule_named(code: str) -> Rule:
    """Return the rule with the code `code`, in upper or lower case.

    Raises:
        UsageError: the code is unknown.
    """
    all_rules()
    name = code.upper()
    if name in registered:
        return registered[name]

    from cloudtrain.job.problems import error_codes

    if name in error_codes():
        hint = f"`cloudtrain explain {name}` explains how to correct it"
        raise UsageError(
            f"`{name}` is an error code, and errors cannot be ignored", hint=hint, code="CT930"
        )

    near = did_you_mean(name, registered) if len(code) > 3 else None
    hint = near if isinstance(near, NearName) else "`cloudtrain explain` lists all codes"
    raise UsageError(f"the rule `{shortened(code)}` does not exist", hint=hint, code="CT929")


def check_plan(
    subject: Subject, *, ignore: Sequence[str] = (), portable: bool = False
) -> tuple[Finding, ...]:
    """Return all findings for a plan, errors first. `ignore` are codes of rules to skip, in upper
    or lower case. `portable` applies only the rules that need no request of the target, for a job
    that could not be compiled to one.

    Raises:
        UsageError: `ignore` names a rule that does not exist, or one that is no judgement.
    """
    ignored = {rule_named(code) for code in ignore}
    for unwanted in ignored:
        if not unwanted.can_be_ignored:
            raise _not_ignorable(unwanted)

    target = subject.target
    load_rules(target)
    skipped = []
    if subject.processing is not None:
        skipped = target.parts.get("training_rules", "").split()

    findings: list[Finding] = []
    for code, known in sorted(registered.items()):
        is_of_target = code.startswith(target.prefix) and not (portable and known.needs_request)
        if not is_of_target and not code.startswith(PORTABLE):
            continue
        if known.check.__module__ not in skipped and known not in ignored:
            findings += known.findings(subject)

    order = list(Level)
    findings.sort(key=lambda finding: (order.index(finding.level), finding.code))
    return tuple(findings)


def _not_ignorable(rule: Rule) -> UsageError:
    """Return the error for `--ignore` with a rule that is no judgement."""
    message = f"`{rule.code}` cannot be ignored, because the job could not run nevertheless"
    hint = f"`cloudtrain explain {rule.code}` says what to do about it"
    if rule.nature is Nature.CAP:
        message = f"`{rule.code}` keeps your budget, so it cannot be ignored"
        hint = (
            "shorten `max_runtime`, use smaller instances, or raise the cap in your own "
            "`cloudtrain.toml`"
        )
    return UsageError(message, hint=hint, code="CT930")


# Functions that read values from a finished request. Overrides can put anything into a request, so
# values of a wrong type count as missing; other rules report them.


def value_at(value: object, *keys: str) -> Any:
    """Return the value at `keys` in nested mappings; None if a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping_at(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping at `keys`; an empty mapping if the value is missing."""
    item = value_at(value, *keys)
    return item if isinstance(item, Mapping) else {}


def text_at(value: object, *keys: str) -> str:
    """Return the text at `keys`; an empty text if the value is missing."""
    item = value_at(value, *keys)
    return item if isinstance(item, str) else ""


def rows_at(value: object, *keys: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list at `keys`; an empty list if the value is missing."""
    item = value_at(value, *keys)
    if not isinstance(item, list | tuple):
        return []
    return [row for row in item if isinstance(row, Mapping)]


def positive_count(value: object) -> int | None:
    """Return `value` if it is an integer of at least 1, otherwise None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if value > 0 else None


# Functions for the wording of messages.


def plural(number: int, one: str) -> str:
    """Return a number with its noun in the right form: `1 GPU`, `8 GPUs`, `2 processes`."""
    if number == 1:
        return f"1 {one}"
    ending = "es" if one.endswith("s") else "s"
    return f"{number:,} {one}{ending}"


# Helpers that apply overrides to parts of a job, shared by the readings of several targets.


def changed_variables(job: TrainingJob, overrides: object) -> dict[str, str]:
    """Return the job's environment variables with `overrides`, the overrides of the variables. A
    null in `overrides` removes a variable."""
    changes = overrides if isinstance(overrides, Mapping) else {}
    variables = {}
    for name, value in merged(job.environment.variables, changes).items():
        if value is not None:
            variables[name] = str(value)
    return variables


def checkpoint_at(target: str, place: object) -> Checkpoint | None:
    """Return a checkpoint whose location on `target` is `place`, a value from a request. None if
    `place` is not text."""
    if not isinstance(place, str):
        return None
    return Checkpoint.model_construct().model_copy(update={target: place})


# Helpers that read the distribution from a finished request, shared by the readings of all targets.


def tensorflow_with(serves: bool, servers: int | None, workers: int | None) -> TensorFlow:
    """Return a TensorFlow distribution with the given number of workers, and if `serves`, with the
    strategy `parameter_server` and the given number of servers. The numbers are not validated."""
    if serves:
        return TensorFlow.model_construct(
            strategy="parameter_server", parameter_servers=servers, workers=workers
        )
    return TensorFlow.model_construct(workers=workers)


_KIN: dict[str, tuple[type, ...]] = {
    "torch": (Torch, DeepSpeed),
    "mpi": (MPI, Horovod, DeepSpeed),
    "smddp": (SMDDP,),
    "smp": (SMP,),
    "tensorflow": (TensorFlow,),
    "none": (NoDistribution, Ray),
}
"""Maps a launcher's type to the distributions in a job that can lead to it."""


def as_written(
    source: Distribution, actual: Distribution, *, options: object = None
) -> Distribution:
    """Return the distribution that the finished request starts, close to the job's own wording.
    `actual` is the distribution read from the request, `source` the one in the job. If both start
    the same launcher, return `source` with the request's number of processes, otherwise `actual`.
    If `options` is given, it replaces the options for mpirun."""
    result = actual
    if isinstance(source, _KIN[actual.type]) and _starts_alike(source, actual):
        if isinstance(source, TensorFlow):
            has_no_count = isinstance(actual, TensorFlow) and actual.workers is None
            if has_no_count or source == actual:
                result = source
        else:
            result = source
            count = getattr(actual, "processes_per_instance", None)
            if count:
                result = source.model_copy(update={"processes_per_instance": count})

    field = "mpi_options" if isinstance(result, SMDDP | SMP) else "options"
    if isinstance(options, str) and field in type(result).model_fields:
        return result.model_copy(update={field: options})
    return result


def _starts_alike(source: Distribution, actual: Distribution) -> bool:
    """Return whether two distributions of one kind in `_KIN` also agree in the field that chooses
    the launcher or the strategy."""
    if isinstance(source, DeepSpeed):
        return (source.launch == "mpi") is isinstance(actual, MPI)
    if isinstance(source, SMDDP) and isinstance(actual, SMDDP):
        return source.launch == actual.launch
    if isinstance(source, TensorFlow) and isinstance(actual, TensorFlow):
        return source.strategy == actual.strategy
    return True


def count_in(value: object) -> int | None:
    """Return `value`, such as `4` or `"4"`, as a positive integer; None if it is anything else."""
    if isinstance(value, str) and value.isdecimal():
        return positive_count(int(value))
    return positive_count(value)
