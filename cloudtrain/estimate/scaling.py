"""How an estimate grows with a hyperparameter.

The largest batch that fits is found by a search, with a probed run for each value. A deep stack of
equal layers is extrapolated from runs with two and with four of them: each layer adds the same
bytes and the same operations, so that their difference says what any other number adds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import floor, isqrt
from typing import Literal, NamedTuple

from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.estimate.memory import Need

MOST_RUNS = 24
"""Values that are tried at most. A need that grows evenly takes four or five."""

_LARGEST = 2**20
"""Values above it are not tried. A script that needs no more for them does not use the value."""


End = Literal["limit", "level", "tries"]


class Suggestion(NamedTuple):
    """What a search found.

    Attributes:
        name: the hyperparameter.
        value: its largest value that fits; None if no value does.
        needs: the bytes of a rank for each value that was tried, at most; None where the script
            refused the value.
        end: the search ended because no value is left between the largest that fits and one that
            does not ("limit"), because larger values need no more ("level"), or after too many
            values ("tries").
    """

    name: str
    value: int | None
    needs: Mapping[int, float | None]
    end: End


def largest_that_fits(
    name: str, first: int, need_of: Callable[[int], Need | None], memory: float
) -> Suggestion:
    """Search for the largest value whose need is at most `memory` bytes.

    Args:
        first: the value that is tried first, at least 1.
        need_of: tries a value. None: the script refuses it.
    """
    needs: dict[int, float | None] = {}
    fitting = 0
    failing = max(_LARGEST, 2 * first) + 1
    unit = 1
    value = first
    end: End = "tries"
    while len(needs) < MOST_RUNS:
        need = need_of(value)
        needs[value] = None if need is None else need.most
        if need is not None and need.most <= memory:
            fitting = value
        elif need is None and value % first:
            # the script may want multiples of a number, as the first value is one
            while first % unit or value % unit == 0:
                unit += 1
        else:
            failing = value
        if _is_level(needs, fitting):
            end = "level"
            break
        if _last_below(failing, unit) <= fitting:
            end = "limit"
            break
        value = _next(needs, fitting, failing, unit, memory)
    return Suggestion(name, fitting or None, needs, end)


def _is_level(needs: Mapping[int, float | None], fitting: int) -> bool:
    """Return whether the largest value that fits needs no more than half of it."""
    lower = [need for value, need in needs.items() if need is not None and 2 * value <= fitting]
    return max(lower, default=-1.0) == needs.get(fitting, 0.0)


def _last_below(value: int, unit: int) -> int:
    """Return the largest multiple of `unit` below a value."""
    return (value - 1) // unit * unit


def _next(
    needs: Mapping[int, float | None], fitting: int, failing: int, unit: int, memory: float
) -> int:
    """Return the value to try next, a multiple of `unit` between one that fits and one that does
    not."""
    known = sorted((value, need) for value, need in needs.items() if need is not None)
    is_even = True
    guess = 2 * fitting or failing // 2
    if failing in needs:
        guess = isqrt(max(1, fitting) * failing)
        # every third time the range is halved, for needs that grow in another way
        is_even = needs[failing] is not None and len(needs) % 3 != 0
    if len(known) >= 2 and is_even:
        # each sample adds the same bytes, and the values next to the limit say how many
        (less, low), (more, high) = _around(known, fitting)
        growth = (high - low) / (more - less)
        if growth > 0:
            guess = floor(less + (memory - low) / growth)
    guess -= guess % unit
    lowest = fitting - fitting % unit + unit
    return max(lowest, min(guess, _last_below(failing, unit)))


def _around(
    known: list[tuple[int, float]], fitting: int
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return the two values between which, or nearest to which, the limit lies."""
    index = 0
    while index < len(known) - 2 and known[index + 1][0] <= fitting:
        index += 1
    return known[index], known[index + 1]


# Few layers in place of many.

FEWER = 2
MORE = 4
"""The numbers of layers that are run. The first of two and the last of them may take more than the
others; four have two between them."""


def stacked(fewer: JsonMapping, more: JsonMapping, layers: int) -> JsonObject:
    """Return what a rank would have written with so many layers.

    Args:
        fewer: what it wrote with two layers, as `probe/run.py` writes it.
        more: what it wrote with four.
    """
    further = (layers - MORE) / (MORE - FEWER)

    def at(low: float, high: float) -> float:
        return high + further * (high - low)

    # Few layers may have their peak elsewhere than many, so each place grows for itself.
    lows = _highest(fewer["peaks"])
    highest = -1
    result: JsonObject = {**more}
    for name, (place, peak, kinds) in _highest(more["peaks"]).items():
        _, low, low_kinds = lows.get(name, (place, peak, kinds))
        grown_peak = round(at(low, peak))
        if grown_peak > highest:
            highest = grown_peak
            grown = {kind: round(at(low_kinds[kind], kinds[kind])) for kind in kinds}
            result |= {"peak": highest, "kinds": grown, "place": place}

    for name in ("operations", "exchanges"):
        # An operation over all layers is another one in each run. The times of that with two layers
        # are below zero here, which makes its seconds grow with the layers like any other.
        times: dict[tuple[object, ...], tuple[float, float]] = {}
        for *item, count in fewer[name]:
            times[tuple(item)] = (count, 0)
        for *item, count in more[name]:
            few, _ = times.get(tuple(item), (0, 0))
            times[tuple(item)] = (few, count)
        result[name] = [[*item, at(few, many)] for item, (few, many) in times.items()]
    return result


Peak = tuple[str, int, JsonMapping]
"""A place of the script, the most bytes there, and their kinds."""


def _highest(peaks: Sequence[Peak]) -> dict[str, Peak]:
    """Return the highest peak of the places that differ in the number of the layer, by their name
    without it."""
    found: dict[str, Peak] = {}
    for place, peak, kinds in peaks:
        name = re.sub(r"\d+", "*", place)
        if name not in found or peak > found[name][1]:
            found[name] = (place, peak, kinds)
    return found
