"""How long ago something was, whatever happened to the clock."""

from __future__ import annotations

import pytest

from cloudtrain.system.processes import Moment, read_clock

NOW = Moment(1000.0, "this", 500.0)


@pytest.mark.parametrize(
    ("earlier", "elapsed", "at_least"),
    [
        (Moment(990.0, "this", 490.0), 10, 10),
        (Moment(5000.0, "this", 490.0), 10, 10),  # the clock was set back
        (Moment(1.0, "this", 490.0), 10, 10),  # the clock was set forward
        (Moment(100.0, "before", 80_000.0), 900, 500),  # the machine was started again
        (Moment(5000.0, "before", 80_000.0), 0, 500),
        (Moment(100.0), 900, 900),  # written by an earlier version
    ],
)
def test_elapsed(earlier: Moment, elapsed: float, at_least: float) -> None:
    """Within one boot the uptime counts, whatever the wall clock says."""
    assert (NOW.elapsed_since(earlier), NOW.least_elapsed_since(earlier)) == (elapsed, at_least)


def test_the_clock_goes_on() -> None:
    """Two moments of this machine are in order."""
    one = read_clock()
    assert read_clock().elapsed_since(one) >= 0
