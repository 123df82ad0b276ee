"""The sweep: many runs of one training job with different hyperparameters. A sweep is portable and immutable. This
module does no I/O.

Ranges are written as the values that the script receives. Each target translates them into its service's terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from cloudtrain.core.job import TrainingJob, unsendable
from cloudtrain.core.model import Model, all_at_once
from cloudtrain.core.origin import FromFile
from cloudtrain.core.search import Range, Space
from cloudtrain.core.units import Duration
from cloudtrain.errors import Problem
from cloudtrain.problems.collect import describe_value, wrong
from cloudtrain.problems.names import JOB_NAME, MAX_JOB_NAME

if TYPE_CHECKING:
    from cloudtrain.core.arguments import DurationInput, Fields, Json

MAX_TRIALS = 10_000
"""Upper bound on `trials`. A larger number is probably a typing mistake."""

Strategy = Literal["grid", "random", "bayesian", "hyperband"]
Whole = Annotated[int, Field(strict=True)]


def _choice_or_range(value: Any) -> Any:
    """Convert a list such as `[32, 64]` to `{choice: [32, 64]}`. Return a mapping unchanged, and refuse a single
    value."""
    if isinstance(value, str | int | float):
        message = f"a range is a list or a mapping, not {describe_value(value)}"
        raise wrong(message, "list the values, `[1, 2]`, or write the one value into the job", code="CT060")
    return {"choice": value} if isinstance(value, list | tuple) else value


SearchRange = Annotated[Range, BeforeValidator(_choice_or_range)]


def _objective_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if any(name not in ("maximize", "minimize") for name in data):
        return  # an unknown field, which is reported already
    if (data.get("maximize") is None) == (data.get("minimize") is None):
        message = "an objective either maximizes or minimizes one metric"
        yield Problem((), message, "write `objective: {maximize: accuracy}`", code="CT060")


class Objective(Model):
    """The metric that decides which trial is best. The last value that the script reports for the metric counts."""

    maximize: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$", max_length=255)
    """The metric to maximize."""
    minimize: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$", max_length=255)
    """The metric to minimize."""

    _rules = all_at_once(_objective_rules)

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.maximize or self.minimize or ""

    @property
    def goal(self) -> Literal["maximize", "minimize"]:
        """Whether to maximize or to minimize the metric."""
        return "maximize" if self.maximize else "minimize"

    def better(self, one: float, other: float) -> bool:
        """Return whether `one` is better than `other`."""
        return one > other if self.maximize else one < other

    if TYPE_CHECKING:

        def __init__(self, *, maximize: str | None = None, minimize: str | None = None) -> None: ...


class Median(Model):
    """Stop a trial whose best value so far is worse than the median of the other trials' averages over the same number
    of reports.
    """

    after: Whole = Field(default=0, ge=0)
    """The number of reports of the metric that every trial makes before it can be stopped."""

    if TYPE_CHECKING:

        def __init__(self, *, after: int = 0) -> None: ...


class Bandit(Model):
    """Stop a trial whose best value so far is worse than the best value of the other trials over the same number of
    reports, by more than `slack`.
    """

    slack: FiniteFloat = Field(gt=0)
    """The allowed fraction of the best value: with 0.1, a trial may be a tenth worse."""
    after: Whole = Field(default=0, ge=0)
    """The number of reports of the metric that every trial makes before it can be stopped."""

    if TYPE_CHECKING:

        def __init__(self, *, slack: float, after: int = 0) -> None: ...


def _stop_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    if len([name for name in ("median", "bandit") if data.get(name) is not None]) != 1:
        yield Problem((), "`stop_early` needs one rule", "write `stop_early: {median: {after: 5}}`", code="CT060")


class StopEarly(Model):
    """The rule for stopping a trial early when other trials are clearly better."""

    median: Median | None = None
    bandit: Bandit | None = None

    _rules = all_at_once(_stop_rules)

    @property
    def after(self) -> int:
        """The number of reports of the metric that every trial makes before it can be stopped."""
        return self.median.after if self.median is not None else self.bandit.after if self.bandit is not None else 0

    if TYPE_CHECKING:

        def __init__(self, *, median: Median | Fields | None = None, bandit: Bandit | Fields | None = None) -> None: ...


def _hyperband_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    least, most = data.get("min", 1), data.get("max")
    if isinstance(least, int) and isinstance(most, int) and least >= most:
        yield Problem(("max",), f"`max` must be more than `min`, which is {least}", "raise it", code="CT060")


class Hyperband(Model):
    """Hyperband allows the worst trials only `min` reports of the metric, and the best trials up to `max`."""

    min: Whole = Field(default=1, ge=1)
    max: Whole = Field(ge=2, le=20_000)

    _rules = all_at_once(_hyperband_rules)

    if TYPE_CHECKING:

        def __init__(self, *, max: int, min: int = 1) -> None: ...


def _sweep_rules(sweep: Mapping[str, Any]) -> Iterator[Problem]:
    for problem in unsendable(sweep.get("search"), ("search",)):
        if problem.path[2:3] not in (("log",), ("uniform",)):  # about bounds, the range says more
            yield problem
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
        yield Problem(
            ("stop_early",), "`stop_early` compares objectives, but the sweep has no objective", hint, code="CT018"
        )
    if sweep.get("stop_early") is not None and strategy == "hyperband":
        message = "hyperband stops trials itself, so `stop_early` contradicts it"
        yield Problem(("stop_early",), message, "remove one of them", code="CT018")
    if strategy == "hyperband" and sweep.get("hyperband") is None:
        message = "hyperband needs the maximum number of reports of a trial"
        yield Problem(("hyperband",), message, "add for example `hyperband: {min: 1, max: 27}`", code="CT011")
    if strategy != "hyperband" and sweep.get("hyperband") is not None:
        hint = "write `strategy: hyperband`, or remove it"
        yield Problem(
            ("hyperband",),
            f"`hyperband` applies only to `strategy: hyperband`, and this is `{strategy}`",
            hint,
            code="CT018",
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
    """Many runs of one training job that are planned, priced, started, watched, stopped and continued together.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    kind: Literal["sweep"] = "sweep"
    """Distinguishes the file of a sweep from that of a job."""
    name: str = Field(pattern=JOB_NAME, max_length=MAX_JOB_NAME)
    """Letters, digits and hyphens. At most 40 characters, so that a run name with hash and counter fits every
    target."""
    job: TrainingJob
    """The training job, or the path of its file. The values of the search replace its hyperparameters."""
    search: dict[str, SearchRange]
    """Maps a hyperparameter to its values: a list, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}`,
    `{int: [1, 8], step: 1}`."""
    objective: Objective | None = None
    strategy: Strategy = "random"
    """grid tries every combination. random draws values. bayesian learns from the trials that have ended. hyperband
    stops weak trials earlier and more often."""
    trials: Whole | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """The number of runs. Default for a grid: all combinations."""
    parallel: Whole = Field(default=1, ge=1, le=1000)
    """The number of runs at the same time."""
    stop_early: StopEarly | None = None
    hyperband: Hyperband | None = None
    seed: Whole | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of the random draws. The same seed gives the same values."""
    driver: Literal["auto", "service", "cloudtrain"] = "auto"
    """What chooses the values and starts the trials: the target's tuner (`service`), or a cloudtrain process on this
    machine (`cloudtrain`). auto: the tuner, if the target has one that supports the sweep."""
    max_cost: FiniteFloat | None = Field(default=None, gt=0)
    """Maximum cost of all trials together, in US dollars at list prices."""
    max_runtime: Duration | None = None
    """The time after which no further trial is started. A service's tuner also stops running trials."""

    _rules = all_at_once(_sweep_rules)

    @model_validator(mode="before")
    @classmethod
    def _name_the_job(cls, data: Any) -> Any:
        """Give an inline job without a name the name of the sweep."""
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
        """The maximum number of trials."""
        if self.strategy != "grid":
            assert self.trials is not None, "the rules have asked for it"
            return self.trials
        return min(self.trials or self.space.grid_size, self.space.grid_size)

    def trial_job(self, values: Mapping[str, JsonValue]) -> TrainingJob:
        """Return the training job of the trial with the given hyperparameter values."""
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
