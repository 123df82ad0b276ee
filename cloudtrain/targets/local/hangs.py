"""Watch the ranks of a run on this machine, beside the loop that follows their output."""

from __future__ import annotations

import threading
import time
from functools import partial

from cloudtrain.runtime.hangs.watch import EVERY, Hang, HangWatch
from cloudtrain.runtime.notices import write_notice
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.processes import Exits, Launched, RankTable

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudtrain.runtime.hangs.verdict import Look


class RunWatch:
    """A thread that watches the ranks of a run."""

    def __init__(self, folder: RunFolder, ranks: RankTable, launched: Sequence[Launched]) -> None:
        self._ranks = ranks
        self._launched = launched
        self._end = threading.Event()
        tell = partial(write_notice, folder=folder.metrics)
        self._watch = HangWatch(folder.path, tell, pids=self._pids)
        threading.Thread(target=self._work, name="hangs", daemon=True).start()

    def end(self) -> None:
        """Watch no more, as a rank has failed and the others end for it."""
        self._end.set()
        self._watch.is_over = True

    def note_metrics(self) -> None:
        """Record that the script has printed new metrics. A script that calls `report` records it
        itself."""
        self._watch.pace.note(time.time())

    @property
    def hang(self) -> Hang | None:
        """What holds the run up, or held it up when its ranks ended; None if the last thing that
        was seen is a step."""
        return self._watch.last

    def stalled_for(self) -> float:
        """Return for how many seconds the run has been stalled; 0 if it is not."""
        hang = self._watch.hang
        if hang is None or hang.stalled is None:
            return 0.0
        return time.time() - hang.stalled

    def _pids(self) -> dict[int, int]:
        pids = self._ranks.pid_of_rank()
        for item in self._launched:
            if item.rank is not None and item.exit_code is None:
                pids[item.rank] = item.pid
        return pids

    def _work(self) -> None:
        while not self._end.wait(EVERY):
            self._watch.tick()


_BETWEEN = 1.0
"""Seconds between two looks for somebody who waits for them."""


def look_at(folder: RunFolder, supervisor: int) -> list[Look]:
    """Look at the ranks of a run from outside. `supervisor` is the id of its supervisor's process,
    below which ranks are that have not registered."""
    ranks = RankTable(Exits())
    ranks.discover([(supervisor, 0)])
    return HangWatch(folder.path, write_notice, pids=ranks.pid_of_rank).look(_BETWEEN)
