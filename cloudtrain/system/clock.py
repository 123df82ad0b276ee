"""Elapsed time that is independent of changes to the wall clock."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """A point in time: the wall clock in seconds since the epoch, the id of the current boot, and the seconds since
    that boot. `boot` is empty if the system has no boot ids."""

    wall: float
    boot: str = ""
    uptime: float = 0.0

    def elapsed_since(self, earlier: Moment) -> float:
        """Return the seconds since `earlier`, at least 0. They are exact within one boot; otherwise they come from the
        wall clock."""
        return max(0.0, self.uptime - earlier.uptime if self._is_same_boot(earlier) else self.wall - earlier.wall)

    def least_elapsed_since(self, earlier: Moment) -> float:
        """Return a lower bound of the seconds since `earlier`. After a reboot, this is the time since the reboot."""
        if earlier.boot and self.boot and not self._is_same_boot(earlier):
            return self.uptime
        return self.elapsed_since(earlier)

    def _is_same_boot(self, other: Moment) -> bool:
        return bool(self.boot) and self.boot == other.boot


def read_clock() -> Moment:
    """Return the current moment."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
    return Moment(time.time(), boot_id(), uptime)


@cache
def boot_id() -> str:
    """Return the id of this boot, or "" if the system has none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
