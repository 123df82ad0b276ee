"""The sweep: many runs of one training job, which differ in some hyperparameters. Portable, immutable, no I/O.

Ranges are given as the values that the script gets. Each target translates them into its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from cloudtrain.core.job import TrainingJob, unsendable
from cloudtrain.core.model import Model, all_at_once
from cloudtrain.core.origin import FromFile
from cloudtrain.core.search import Range, Space
from cloudtrain.core.units import Duration
from cloudtrain.errors import Problem
from cloudtrain.problems.names import JOB_NAME, MAX_JOB_NAME

if TYPE_CHECKING:
    from cloudtrain.core.arguments import DurationInput, Fields, Json

MAX_TRIALS = 10_000
"""More is a slip of the keyboard."""

Strategy = Literal["grid", "random", "bayesian", "hyperband"]
Whole = Annotated[int, Field(strict=True)]


def _choice_or_range(value: Any) -> Any:
    """`[32, 64]` is short for `{choice: [32, 64]}`."""
    return {"choice": value} if isinstance(value, list | tuple) else value


SearchRange = Annotated[Range, BeforeValidator(_choice_or_range)]


def _objective_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if any(name not in ("maximize", "minimize") for name in data):
        return  # a misspelt name, which is said already
    if (data.get("maximize") is None) == (data.get("minimize") is None):
        message = "an objective either maximizes or minimizes one metric"
        yield Problem((), message, "write `objective: {maximize: accuracy}`", code="CT060")


class Objective(Model):
    """The metric that decides which trial is best: the last value that the script reports under this name."""

    maximize: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$", max_length=255)
    """The larger, the better."""
    minimize: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$", max_length=255)
    """The smaller, the better."""

    _rules = all_at_once(_objective_rules)

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.maximize or self.minimize or ""

    @property
    def goal(self) -> Literal["maximize", "minimize"]:
        """Which way is better."""
        return "maximize" if self.maximize else "minimize"

    def better(self, one: float, other: float) -> bool:
        """Whether the first value is better than the second."""
        return one > other if self.maximize else one < other

    if TYPE_CHECKING:

        def __init__(self, *, maximize: str | None = None, minimize: str | None = None) -> None: ...


class Median(Model):
    """Stop a trial whose best value is worse than the median of the other trials' averages up to the same report."""

    after: Whole = Field(default=0, ge=0)
    """How many reports of the metric every trial may make first."""

    if TYPE_CHECKING:

        def __init__(self, *, after: int = 0) -> None: ...


class Bandit(Model):
    """Stop a trial that is further from the best one than the slack allows, at the same report."""

    slack: float = Field(gt=0)
    """Part of the best value: 0.1 lets a trial be a tenth worse."""
    after: Whole = Field(default=0, ge=0)
    """How many reports of the metric every trial may make first."""

    if TYPE_CHECKING:

        def __init__(self, *, slack: float, after: int = 0) -> None: ...


def _stop_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if len([name for name in ("median", "bandit") if data.get(name) is not None]) != 1:
        yield Problem((), "`stop_early` needs one rule", "write `stop_early: {median: {after: 5}}`", code="CT060")


class StopEarly(Model):
    """Which trials are stopped before they end, because others are clearly better."""

    median: Median | None = None
    bandit: Bandit | None = None

    _rules = all_at_once(_stop_rules)

    @property
    def after(self) -> int:
        """How many reports of the metric every trial may make first."""
        return self.median.after if self.median is not None else self.bandit.after if self.bandit is not None else 0

    if TYPE_CHECKING:

        def __init__(self, *, median: Median | Fields | None = None, bandit: Bandit | Fields | None = None) -> None: ...


def _hyperband_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    least, most = data.get("min", 1), data.get("max")
    if isinstance(least, int) and isinstance(most, int) and least >= most:
        yield Problem(("max",), f"`max` must be more than `min`, which is {least}", "raise it", code="CT060")


class Hyperband(Model):
    """How many reports of the metric hyperband gives a trial: the weakest at least, the best at most."""

    min: Whole = Field(default=1, ge=1)
    max: Whole = Field(ge=2, le=20_000)

    _rules = all_at_once(_hyperband_rules)

    if TYPE_CHECKING:

        def __init__(self, *, max: int, min: int = 1) -> None: ...


def _sweep_rules(sweep: Mapping[str, Any]) -> Iterator[Problem]:
    yield from unsendable(sweep.get("search"), ("search",))
    strategy, search = sweep.get("strategy", "random"), sweep.get("search")
    if isinstance(search, Mapping) and not search:
        yield Problem(("search",), "`search` has no ranges", "add for example `lr: {log: [1e-4, 1e-1]}`", code="CT060")
    if strategy == "grid" and isinstance(search, Mapping):
        yield from _not_in_a_grid(search)
    if strategy not in get_args(Strategy):
        return
    if strategy != "grid" and sweep.get("trials") is None:
        yield Problem(("trials",), f"`{strategy}` never ends by itself", "add for example `trials: 20`", code="CT011")
    if strategy != "grid" and sweep.get("objective") is None:
        hint = "add `objective: {maximize: accuracy}`, or use `strategy: grid`, which runs every combination"
        yield Problem(("objective",), f"`{strategy}` needs an objective", hint, code="CT011")
    if sweep.get("stop_early") is not None and sweep.get("objective") is None:
        hint = "add `objective: {maximize: accuracy}`"
        yield Problem(("stop_early",), "`stop_early` compares an objective, and the sweep has none", hint, code="CT018")
    if sweep.get("stop_early") is not None and strategy == "hyperband":
        message = "hyperband stops trials itself, so `stop_early` contradicts it"
        yield Problem(("stop_early",), message, "remove one of them", code="CT018")
    if strategy == "hyperband" and sweep.get("hyperband") is None:
        message = "hyperband needs to know how many reports a trial makes at most"
        yield Problem(("hyperband",), message, "add for example `hyperband: {min: 1, max: 27}`", code="CT011")
    if strategy != "hyperband" and sweep.get("hyperband") is not None:
        hint = "write `strategy: hyperband`, or remove it"
        yield Problem(
            ("hyperband",), f"`hyperband` applies to that strategy, and this is `{strategy}`", hint, code="CT018"
        )
    job = sweep.get("job")
    command = job.get("command") if isinstance(job, Mapping) else getattr(job, "command", None)
    if command is not None:
        hint = "write an `entry_point`, which gets each value as `--name value`"
        yield Problem(
            ("job", "command"), "a sweep sets hyperparameters, which a `command` does not get", hint, code="CT018"
        )


def _not_in_a_grid(search: Mapping[str, Any]) -> Iterator[Problem]:
    for name, item in search.items():
        for kind in ("log", "uniform"):
            written = item.get(kind) if isinstance(item, Mapping) else getattr(item, kind, None)
            if written is not None:
                message = f"a grid cannot try every value of `{name}`, which has a continuous range"
                hint = f"list values, `{name}: [0.001, 0.01, 0.1]`, or use `strategy: random`"
                yield Problem(("search", name), message, hint, code="CT060")


class Sweep(FromFile):
    """Many runs of one training job, as one thing: planned, priced, started, watched, stopped and continued.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    kind: Literal["sweep"] = "sweep"
    """Tells a file with a sweep from one with a job."""
    name: str = Field(pattern=JOB_NAME, max_length=MAX_JOB_NAME)
    """Letters, digits and hyphens; at most 40, so that a run name with hash and counter fits every target."""
    job: TrainingJob
    """The training job, or the path of its file. Values of the search replace its hyperparameters."""
    search: dict[str, SearchRange]
    """Hyperparameter to its values: a list, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}`, `{int: [1, 8], step: 1}`."""
    objective: Objective | None = None
    strategy: Strategy = "random"
    """grid tries every combination; random draws; bayesian learns from the trials that have ended; hyperband stops
    the weak ones early and more often."""
    trials: Whole | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """How many runs; a grid has all its combinations unless given."""
    parallel: Whole = Field(default=1, ge=1, le=1000)
    """How many of them at once."""
    stop_early: StopEarly | None = None
    hyperband: Hyperband | None = None
    seed: Whole | None = Field(default=None, ge=0, le=2**31 - 1)
    """Of what is drawn; the same seed gives the same values."""
    driver: Literal["auto", "service", "cloudtrain"] = "auto"
    """Who chooses the values and starts the trials: the target's own tuner, or a process of cloudtrain on this
    machine. auto: the tuner where the target has one that can do it."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars that all trials together may cost at most, at list prices."""
    max_runtime: Duration | None = None
    """After which no further trial is started; a service's tuner stops those that run, too."""

    _rules = all_at_once(_sweep_rules)

    @model_validator(mode="before")
    @classmethod
    def _name_the_job(cls, data: Any) -> Any:
        """An inline job without a name has the sweep's."""
        job = data.get("job") if isinstance(data, Mapping) else None
        if isinstance(job, Mapping) and "name" not in job and "name" in data:
            return {**data, "job": {"name": data["name"], **job}}
        return data

    @property
    def space(self) -> Space:
        """The ranges, in the order of their names."""
        return Space(self.search)

    @property
    def trial_count(self) -> int:
        """How many trials there are at most."""
        if self.strategy != "grid":
            assert self.trials is not None, "the rules have asked for it"
            return self.trials
        return min(self.trials or self.space.grid_size, self.space.grid_size)

    def trial_job(self, values: Mapping[str, JsonValue]) -> TrainingJob:
        """The job of one trial."""
        return self.job.model_copy(update={"hyperparameters": {**self.job.hyperparameters, **values}})

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            job: TrainingJob | Fields,
            search: Mapping[str, Range | Fields | Sequence[Json]],
            kind: Literal["sweep"] = "sweep",
            objective: Objective | Fields | None = None,
            strategy: Strategy = "random",
            trials: int | None = None,
            parallel: int = 1,
            stop_early: StopEarly | Fields | None = None,
            hyperband: Hyperband | Fields | None = None,
            seed: int | None = None,
            driver: Literal["auto", "service", "cloudtrain"] = "auto",
            max_cost: float | None = None,
            max_runtime: DurationInput | None = None,
        ) -> None: ...
