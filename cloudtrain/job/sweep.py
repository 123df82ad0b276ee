"""The sweep: many runs of one training job with different hyperparameters. A sweep is portable and
immutable. This module does no I/O.

Ranges are written as the values that the script receives. Each target translates them into its
service's terms.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from math import exp, floor, isfinite, log, prod
from sys import float_info
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from cloudtrain.errors import Problem, quoted
from cloudtrain.job.model import Duration, FromFile, Model, all_at_once, value_text
from cloudtrain.job.nodes import describe_value
from cloudtrain.job.problems import RawFields, Rules, raw_value, wrong
from cloudtrain.job.training import JobName, TrainingJob, unsendable

if TYPE_CHECKING:
    from random import Random

    from cloudtrain.job.model import DurationInput, Fields, Json


# The search space of a sweep: the possible values of each hyperparameter.

Kind = Literal["log", "uniform", "int", "choice"]
KINDS: tuple[Kind, ...] = ("log", "uniform", "int", "choice")

_LARGEST = 2**53
"""The largest whole number up to which every number is exact, in JSON and for every service."""

_Whole = Annotated[int, Field(strict=True, ge=-_LARGEST, le=_LARGEST)]
_Bounds = tuple[FiniteFloat, FiniteFloat]
_WholeBounds = tuple[_Whole, _Whole]  # the field `int` below shadows the type
_HINT = "write a list of values, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}` or `{int: [1, 8]}`"


def _range_rules(data: RawFields) -> Iterator[Problem]:
    """Yield the problems of a range: its kind, then its other fields, then its values."""
    kinds = [kind for kind in KINDS if data.get(kind) is not None]
    if not kinds and not data.keys() <= {*KINDS, "step", "scale"}:
        return  # an unknown field, which is reported already
    if len(kinds) != 1:
        message = "a range has exactly one of `log`, `uniform`, `int` and `choice`"
        yield Problem((), message, _HINT, code="CT060")
        return

    kind = kinds[0]
    value = data[kind]
    for field, allowed in _BESIDE.items():
        if data.get(field) is not None and kind not in allowed:
            message = f"`{field}` applies to {quoted(allowed, ' and ')}, and this is `{kind}`"
            yield Problem((field,), message, "remove it", code="CT018")

    if kind == "choice":
        yield from _choice_rules(value)
    else:
        yield from _bound_rules(kind, value, data.get("step"))


_BESIDE = {"step": ("int",), "scale": ("uniform", "int")}
"""The kinds of ranges that have these fields."""


def _choice_rules(values: object) -> Iterator[Problem]:
    """Yield a problem for a list without values, and for each value that is listed before."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return
    if not values:
        hint = "add at least one, or remove it"
        yield Problem(("choice",), "the list has no values", hint, code="CT060")
    texts = set[str]()
    for index, value in enumerate(values):
        text = json.dumps(value, sort_keys=True, default=str)
        if text in texts:
            message = f"`{value}` is listed twice"
            yield Problem(("choice", index), message, "remove one of the two", code="CT060")
        texts.add(text)


def _bound_rules(kind: str, value: object, step: object) -> Iterator[Problem]:
    """Yield at most one problem with the two bounds of a range."""
    if not isinstance(value, list | tuple):
        return
    if len(value) != 2:
        message = f"a range has two bounds, and this has {len(value)}"
        hint = f"write `{{{kind}: [1, 8]}}`, or list the values themselves"
        yield Problem((kind,), message, hint, code="CT060")
        return
    low, high = map(_number, value)
    if low is None or high is None:
        return  # validation reports it

    path = (kind,)
    message = ""
    hint = ""
    if low >= high:
        message = f"the range from {low} to {high} is empty"
        hint = f"write `[{high}, {low}]`"
        if low == high:
            hint = f"write the value into the job: `{low}`"
    elif isinstance(step, int) and step > high - low:
        path = ("step",)
        message = f"a step of {step} leads beyond the range from {low} to {high}"
        hint = "write a smaller step"
    elif kind == "log" and low <= 0:
        message = f"a logarithmic range needs positive bounds, not {low}"
        hint = "raise the lower bound, or use `uniform`"
    elif not isfinite(float(high) - float(low)):
        message = f"the range from {low} to {high} is too wide for a number"
        hint = "bring the bounds closer together"
    if message:
        yield Problem(path, message, hint, code="CT060")


def _number(item: object) -> float | int | None:
    """Return a bound, also one that is written as a text; None if it is no number that a float can
    hold. Some integers are too large."""
    if isinstance(item, str):  # pydantic converts it
        with suppress(ValueError):
            item = float(item)
    if isinstance(item, bool) or not isinstance(item, float | int):
        return None
    return item if abs(item) <= float_info.max else None


class Range(Model):
    """The possible values of one hyperparameter. Both bounds are included."""

    log: _Bounds | None = None
    """A number drawn log-uniformly: each order of magnitude is equally likely."""
    uniform: _Bounds | None = None
    """A number drawn uniformly."""
    int: _WholeBounds | None = None
    """An integer drawn uniformly."""
    step: _Whole | None = Field(default=None, ge=1)
    """With `int`: the distance between values. Default: 1."""
    scale: Literal["auto"] | None = None
    """With `uniform` and `int`: SageMaker's tuner chooses the scale itself. Elsewhere the scale
    stays linear."""
    choice: tuple[JsonValue, ...] | None = None
    """One of these values. You can write the list alone instead."""

    _rules = all_at_once(_range_rules)

    @property
    def kind(self) -> Kind:
        """The field that is set: `log`, `uniform`, `int` or `choice`."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def bounds(self) -> _Bounds:
        """The smallest and the largest value."""
        bounds: _Bounds = getattr(self, self.kind)
        assert self.kind != "choice", "values of a choice have no order"
        return bounds

    @property
    def values(self) -> Sequence[JsonValue] | None:
        """All possible values of a discrete range; None for a continuous range."""
        if self.int is not None:
            return range(self.int[0], self.int[1] + 1, self.step or 1)
        return self.choice

    def draw(self, source: Random) -> JsonValue:
        """Return a random value from the range."""
        share = source.random()
        if self.uniform is not None:
            low, high = self.uniform
            return low + share * (high - low)
        if self.log is not None:
            low, high = map(log, self.log)
            value = exp(low + share * (high - low))
            # Rounding can lead beyond a bound.
            return min(max(value, self.log[0]), self.log[1])
        values = self.values
        assert values is not None, "what is not continuous has values"
        return values[floor(share * len(values))]

    def __str__(self) -> str:
        if self.choice is not None:
            return ", ".join(map(value_text, self.choice))
        low, high = self.bounds
        words = {"log": "logarithmic", "uniform": "uniform", "int": "whole numbers"}[self.kind]
        text = f"{low:g} to {high:g}, {words}"
        if self.step not in (None, 1):
            text += f" in steps of {self.step}"
        return text

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            log: Sequence[float] | None = None,
            uniform: Sequence[float] | None = None,
            int: Sequence[_Whole] | None = None,
            step: _Whole | None = None,
            scale: Literal["auto"] | None = None,
            choice: Sequence[JsonValue] | None = None,
        ) -> None: ...


class Space(NamedTuple):
    """The ranges of all hyperparameters, sorted by name."""

    ranges: Mapping[str, Range]

    @property
    def grid_size(self) -> int:
        """The number of combinations in the grid. All ranges must be discrete."""
        return prod(len(item.values or ()) for item in self.ranges.values())

    @property
    def grid_words(self) -> str:
        """`grid_size` as text for a message. Very large numbers are abbreviated, because Python
        refuses to print more than 4300 digits."""
        size = self.grid_size
        return f"{size:,}" if size < 10**12 else "more than a trillion"

    def grid_point(self, index: int) -> dict[str, JsonValue]:
        """Return the combination at `index` in the grid, counted from 0. The last hyperparameter
        changes fastest."""
        point: dict[str, JsonValue] = {}
        for name, item in reversed([*self.ranges.items()]):
            values = item.values
            assert values is not None, "a grid has no continuous range"
            index, place = divmod(index, len(values))
            point[name] = values[place]
        return dict(sorted(point.items()))

    def draw(self, source: Random) -> dict[str, JsonValue]:
        """Return one random value for each hyperparameter."""
        return {name: item.draw(source) for name, item in self.ranges.items()}


MAX_TRIALS = 10_000
"""Upper bound on `trials`. A larger number is probably a typing mistake."""

Strategy = Literal["grid", "random", "bayesian", "hyperband"]
Whole = Annotated[int, Field(strict=True)]


def _choice_or_range(value: object) -> object:
    """Convert a list such as `[32, 64]` to `{choice: [32, 64]}`. Return a mapping unchanged, and
    refuse a single value."""
    if isinstance(value, str | int | float):
        raise wrong(
            f"a range is a list or a mapping, not {describe_value(value)}",
            "list the values, `[1, 2]`, or write the one value into the job",
            code="CT060",
        )
    return {"choice": value} if isinstance(value, list | tuple) else value


SearchRange = Annotated[Range, BeforeValidator(_choice_or_range)]


def _exactly_one(names: Collection[str], message: str, hint: str) -> Rules:
    """Return rules that yield a problem unless exactly one of the fields is set."""

    def rules(data: RawFields) -> Iterator[Problem]:
        given = [name for name in names if data.get(name) is not None]
        # an unknown field is reported already
        if len(given) != 1 and data.keys() <= {*names}:
            yield Problem((), message, hint, code="CT060")

    return rules


_Metric = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_./:-]*$", max_length=255)]


class Objective(Model):
    """The metric that decides which trial is best. The last value that the script reports for the
    metric counts."""

    maximize: _Metric | None = None
    """The metric to maximize."""
    minimize: _Metric | None = None
    """The metric to minimize."""

    _rules = all_at_once(
        _exactly_one(
            ("maximize", "minimize"),
            "an objective either maximizes or minimizes one metric",
            "write `objective: {maximize: accuracy}`",
        )
    )

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


class Median(Model):
    """Stop a trial whose best value so far is worse than the median of the other trials' averages
    over the same number of reports."""

    after: Whole = Field(default=0, ge=0)
    """The number of reports of the metric that every trial makes before it can be stopped."""


class Bandit(Model):
    """Stop a trial whose best value so far is worse than the best value of the other trials over
    the same number of reports, by more than `slack`."""

    slack: FiniteFloat = Field(gt=0)
    """The allowed fraction of the best value: with 0.1, a trial may be a tenth worse."""
    after: Whole = Field(default=0, ge=0)
    """The number of reports of the metric that every trial makes before it can be stopped."""


class StopEarly(Model):
    """The rule for stopping a trial early when other trials are clearly better."""

    median: Median | None = None
    bandit: Bandit | None = None

    _rules = all_at_once(
        _exactly_one(
            ("median", "bandit"),
            "`stop_early` needs one rule",
            "write `stop_early: {median: {after: 5}}`",
        )
    )

    @property
    def after(self) -> int:
        """The number of reports of the metric that every trial makes before it can be stopped."""
        rule = self.median or self.bandit
        return rule.after if rule is not None else 0

    if TYPE_CHECKING:

        def __init__(
            self, *, median: Median | Fields | None = None, bandit: Bandit | Fields | None = None
        ) -> None: ...


def _hyperband_rules(data: RawFields) -> Iterator[Problem]:
    least = data.get("min", 1)
    most = data.get("max")
    if isinstance(least, int) and isinstance(most, int) and least >= most:
        message = f"`max` must be more than `min`, which is {least}"
        yield Problem(("max",), message, "raise it", code="CT060")


class Hyperband(Model):
    """Hyperband allows the worst trials only `min` reports of the metric, and the best trials up to
    `max`."""

    min: Whole = Field(default=1, ge=1)
    max: Whole = Field(ge=2, le=20_000)

    _rules = all_at_once(_hyperband_rules)


def _sweep_rules(sweep: RawFields) -> Iterator[Problem]:
    """Yield the problems between the fields of a sweep."""
    search = sweep.get("search")
    strategy = sweep.get("strategy", "random")
    for problem in unsendable(search, ("search",)):
        is_bound = problem.path[2:3] in (("log",), ("uniform",))
        if not is_bound:  # about bounds, the range says more
            yield problem

    if isinstance(search, Mapping) and not search:
        hint = "add for example `lr: {log: [1e-4, 1e-1]}`"
        yield Problem(("search",), "`search` has no ranges", hint, code="CT060")
    if strategy == "grid" and isinstance(search, Mapping):
        yield from _not_in_a_grid(search)

    if strategy in get_args(Strategy):  # validation reports others
        yield from _strategy_rules(sweep, strategy)
        if raw_value(sweep.get("job"), "command") is not None:
            message = "a sweep sets hyperparameters, which a `command` does not get"
            hint = "write an `entry_point`, which gets each value as `--name value`"
            yield Problem(("job", "command"), message, hint, code="CT018")


def _strategy_rules(sweep: RawFields, strategy: object) -> Iterator[Problem]:
    """Yield a problem for each field that the strategy needs and lacks, or that contradicts it."""
    objective = sweep.get("objective")
    stop_early = sweep.get("stop_early")
    hyperband = sweep.get("hyperband")

    if strategy != "grid" and sweep.get("trials") is None:
        hint = "add for example `trials: 20`"
        yield Problem(("trials",), f"`{strategy}` never ends by itself", hint, code="CT011")
    if strategy != "grid" and objective is None:
        hint = (
            "add `objective: {maximize: accuracy}`, or use `strategy: grid`, which runs "
            "every combination"
        )
        yield Problem(("objective",), f"`{strategy}` needs an objective", hint, code="CT011")

    if stop_early is not None and objective is None:
        message = "`stop_early` compares objectives, but the sweep has no objective"
        hint = "add `objective: {maximize: accuracy}`"
        yield Problem(("stop_early",), message, hint, code="CT018")
    if stop_early is not None and strategy == "hyperband":
        message = "hyperband stops trials itself, so `stop_early` contradicts it"
        yield Problem(("stop_early",), message, "remove one of them", code="CT018")

    if strategy == "hyperband" and hyperband is None:
        message = "hyperband needs the maximum number of reports of a trial"
        hint = "add for example `hyperband: {min: 1, max: 27}`"
        yield Problem(("hyperband",), message, hint, code="CT011")
    if strategy != "hyperband" and hyperband is not None:
        message = f"`hyperband` applies only to `strategy: hyperband`, and this is `{strategy}`"
        hint = "write `strategy: hyperband`, or remove it"
        yield Problem(("hyperband",), message, hint, code="CT018")


def _not_in_a_grid(search: RawFields) -> Iterator[Problem]:
    """Yield a problem for each continuous range."""
    for name, item in search.items():
        for kind in ("log", "uniform"):
            if raw_value(item, kind) is not None:
                message = f"a grid cannot try every value of `{name}`, which has a continuous range"
                hint = f"list values, `{name}: [0.001, 0.01, 0.1]`, or use `strategy: random`"
                yield Problem(("search", name), message, hint, code="CT060")


class Sweep(FromFile):
    """Many runs of one training job that are planned, priced, started, watched, stopped and
    continued together.

    Raises:
        JobError: listing every problem at once, each with a hint.
    """

    kind: Literal["sweep"] = "sweep"
    """Distinguishes the file of a sweep from that of a job."""
    name: JobName
    """Letters, digits and hyphens. At most 40 characters, so that a run name with hash and counter
    fits every target."""
    job: TrainingJob
    """The training job, or the path of its file. The values of the search replace its
    hyperparameters."""
    search: dict[str, SearchRange]
    """Maps a hyperparameter to its values: a list, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}`,
    `{int: [1, 8], step: 1}`."""
    objective: Objective | None = None
    strategy: Strategy = "random"
    """grid tries every combination. random draws values. bayesian learns from the trials that have
    ended. hyperband stops weak trials earlier and more often."""
    trials: Whole | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """The number of runs. Default for a grid: all combinations."""
    parallel: Whole = Field(default=1, ge=1, le=1000)
    """The number of runs at the same time."""
    stop_early: StopEarly | None = None
    hyperband: Hyperband | None = None
    seed: Whole | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of the random draws. The same seed gives the same values."""
    driver: Literal["auto", "service", "cloudtrain"] = "auto"
    """What chooses the values and starts the trials: the target's tuner (`service`), or a
    cloudtrain process on this machine (`cloudtrain`). auto: the tuner, if the target has one that
    supports the sweep."""
    max_cost: FiniteFloat | None = Field(default=None, gt=0)
    """Maximum cost of all trials together, in US dollars at list prices."""
    max_runtime: Duration | None = None
    """The time after which no further trial is started. A service's tuner also stops running
    trials."""

    _rules = all_at_once(_sweep_rules)

    @model_validator(mode="before")
    @classmethod
    def _name_the_job(cls, data: Any) -> object:
        """Give the sweep's name to a job without a name."""
        job = data.get("job") if isinstance(data, Mapping) else None
        if isinstance(job, Mapping) and "name" not in job and "name" in data:
            return {**data, "job": {"name": data["name"], **job}}
        return data

    @property
    def space(self) -> Space:
        """The ranges, in the order of their names."""
        return Space(dict(sorted(self.search.items())))

    @property
    def trial_count(self) -> int:
        """The maximum number of trials."""
        if self.strategy != "grid":
            assert self.trials is not None, "the rules have asked for it"
            return self.trials
        grid_size = self.space.grid_size
        return min(self.trials or grid_size, grid_size)

    def trial_job(self, values: Mapping[str, JsonValue]) -> TrainingJob:
        """Return the training job of the trial with the given hyperparameter values."""
        hyperparameters = {**self.job.hyperparameters, **values}
        return self.job.model_copy(update={"hyperparameters": hyperparameters})

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
