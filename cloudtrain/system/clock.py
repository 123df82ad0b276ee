"""Time that survives a clock which is set: how long ago something was noted, whatever the wall clock did since."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """One moment: the wall clock's seconds since the epoch, which boot of which kernel it was, and seconds since that
    boot. `boot` is empty where the system does not name its boots."""

    wall: float
    boot: str = ""
    uptime: float = 0.0

    def elapsed_since(self, earlier: Moment) -> float:
        """Return the seconds since `earlier`: exactly within one boot, by the wall clock otherwise. At least 0."""
        return max(0.0, self.uptime - earlier.uptime if self._is_same_boot(earlier) else self.wall - earlier.wall)

    def least_elapsed_since(self, earlier: Moment) -> float:
        """Return seconds that have passed since `earlier` for certain: after a reboot, those since the reboot."""
        if earlier.boot and self.boot and not self._is_same_boot(earlier):
            return self.uptime
        return self.elapsed_since(earlier)

    def _is_same_boot(self, other: Moment) -> bool:
        return bool(self.boot) and self.boot == other.boot


def read_clock() -> Moment:
    """Return this moment."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
    return Moment(time.time(), boot_id(), uptime)


@cache
def boot_id() -> str:
    """Return what names this boot of this kernel, or "" where the system has no such name."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
