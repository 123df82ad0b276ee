"""The search space of a sweep: the possible values of each hyperparameter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import exp, floor, isfinite, log, prod
from sys import float_info
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field, FiniteFloat, JsonValue

from cloudtrain.core.model import Model, all_at_once
from cloudtrain.errors import Problem

Kind = Literal["log", "uniform", "int", "choice"]
KINDS: tuple[Kind, ...] = ("log", "uniform", "int", "choice")

_LARGEST = 2**53
"""The largest whole number up to which every number is exact, in JSON and for every service."""

_Whole = Annotated[int, Field(strict=True, ge=-_LARGEST, le=_LARGEST)]
_Bounds = tuple[FiniteFloat, FiniteFloat]
_WholeBounds = tuple[_Whole, _Whole]  # the field `int` below shadows the type
_HINT = "write a list of values, `{log: [1e-4, 1e-1]}`, `{uniform: [0, 1]}` or `{int: [1, 8]}`"


def _range_rules(data: Mapping[str, Any]) -> Iterator[Problem]:
    given = [kind for kind in KINDS if data.get(kind) is not None]
    if not given and any(name not in (*KINDS, "step") for name in data):
        return  # an unknown field, which is reported already
    if len(given) != 1:
        message = "a range has only one of `log`, `uniform`, `int` and `choice`" if given else "the range has no values"
        yield Problem((), message, _HINT, code="CT060")
        return
    kind, value = given[0], data[given[0]]
    step = data.get("step")
    if step is not None and kind != "int":
        yield Problem(("step",), f"`step` applies to `int`, and this is `{kind}`", "remove it", code="CT018")
    if kind == "choice":
        yield from _choice_rules(value)
    else:
        yield from _bound_rules(kind, value, step)


def _choice_rules(values: Any) -> Iterator[Problem]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        return
    if not values:
        yield Problem(("choice",), "the list has no values", "add at least one, or remove it", code="CT060")
    seen = set[str]()
    for index, value in enumerate(values):
        text = json.dumps(value, sort_keys=True, default=str)
        if text in seen:
            yield Problem(("choice", index), f"`{value}` is listed twice", "remove one of the two", code="CT060")
        seen.add(text)


def _bound_rules(kind: str, value: Any, step: Any) -> Iterator[Problem]:
    if not isinstance(value, list | tuple):
        return
    if len(value) != 2:
        hint = f"write `{{{kind}: [1, 8]}}`, or list the values themselves"
        yield Problem((kind,), f"a range has two bounds, and this has {len(value)}", hint, code="CT060")
        return
    low, high = value
    if not all(_is_number(item) for item in value):
        return
    if low >= high:
        hint = f"write `[{high}, {low}]`" if low > high else f"write the value into the job: `{low}`"
        yield Problem((kind,), f"the range from {low} to {high} is empty", hint, code="CT060")
    elif isinstance(step, int) and step > high - low:
        message, hint = f"a step of {step} leads beyond the range from {low} to {high}", "write a smaller step"
        yield Problem(("step",), message, hint, code="CT060")
    elif kind == "log" and low <= 0:
        message = f"a logarithmic range needs positive bounds, not {low}"
        yield Problem((kind,), message, "raise the lower bound, or use `uniform`", code="CT060")
    elif not isfinite(float(high) - float(low)):
        message = f"the range from {low} to {high} is too wide for a number"
        yield Problem((kind,), message, "bring the bounds closer together", code="CT060")


def _is_number(item: Any) -> bool:
    """Return whether a bound is a number that a float can hold. Some integers are too large."""
    return isinstance(item, float | int) and not isinstance(item, bool) and abs(item) <= float_info.max


class Drawing(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...


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
        found: _Bounds = getattr(self, self.kind)
        assert self.kind != "choice", "values of a choice have no order"
        return found

    @property
    def values(self) -> Sequence[JsonValue] | None:
        """All possible values of a discrete range; None for a continuous range."""
        if self.int is not None:
            return range(self.int[0], self.int[1] + 1, self.step or 1)
        return self.choice

    def draw(self, source: Drawing) -> JsonValue:
        """Return a random value from the range."""
        share = source.random()
        if self.uniform is not None:
            return self.uniform[0] + share * (self.uniform[1] - self.uniform[0])
        if self.log is not None:
            low, high = log(self.log[0]), log(self.log[1])
            return min(max(exp(low + share * (high - low)), self.log[0]), self.log[1])
        values = self.values
        assert values is not None, "what is not continuous has values"
        return values[floor(share * len(values))]

    def __str__(self) -> str:
        if self.choice is not None:
            from cloudtrain.core.value_text import value_text

            return ", ".join(map(value_text, self.choice))
        low, high = self.bounds
        words = {"log": "logarithmic", "uniform": "uniform", "int": "whole numbers"}[self.kind]
        step = f" in steps of {self.step}" if self.step not in (None, 1) else ""
        return f"{low:g} to {high:g}, {words}{step}"

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            log: Sequence[float] | None = None,
            uniform: Sequence[float] | None = None,
            int: Sequence[_Whole] | None = None,
            step: _Whole | None = None,
            choice: Sequence[JsonValue] | None = None,
        ) -> None: ...


class Space:
    """The ranges of all hyperparameters, sorted by name."""

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        self.ranges = dict(sorted(ranges.items()))

    @property
    def grid_size(self) -> int:
        """The number of combinations in the grid. All ranges must be discrete."""
        return prod(len(item.values or ()) for item in self.ranges.values())

    @property
    def grid_words(self) -> str:
        """`grid_size` as text for a message. Very large numbers are abbreviated, because Python refuses to print more
        than 4300 digits.
        """
        return f"{self.grid_size:,}" if self.grid_size < 10**12 else "more than a trillion"

    def grid_point(self, index: int) -> dict[str, JsonValue]:
        """Return the combination at `index` in the grid, counted from 0. The last hyperparameter changes fastest."""
        point: dict[str, JsonValue] = {}
        for name, item in reversed(self.ranges.items()):
            values = item.values
            assert values is not None, "a grid has no continuous range"
            index, place = divmod(index, len(values))
            point[name] = values[place]
        return dict(sorted(point.items()))

    def draw(self, source: Drawing) -> dict[str, JsonValue]:
        """Return one random value for each hyperparameter."""
        return {name: item.draw(source) for name, item in self.ranges.items()}
