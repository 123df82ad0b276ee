"""A deep stack of equal layers, from runs with two and with four of them.

Each layer adds the same bytes and the same operations, so that the difference of two runs says what
any other number of layers adds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloudtrain.documents import JsonMapping, JsonObject

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
