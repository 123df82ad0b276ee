"""The words with which a target says that it has no capacity for a job, as a table per target.

Each target that can lack capacity has a part `capacity`, read from `capacity.toml` in its folder,
with the source of each text. A word that a table lacks is no lack of capacity: then the job has
another fault, which the next attempt would have too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cloudtrain.documents.document import load_table
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.system.plugins import ability


@ability("capacity")
class CapacityWords(NamedTuple):
    """What a target says about capacity.

    Attributes:
        texts: expressions, one of which the answer to a refused request, or the reason of a run
            that ended before it started, contains if there is no capacity.
        phases: the provider's last phases of a run that it ended for lack of capacity.
        waiting: the states of a run that waits for capacity.
        machines: the provider's phases in which a run of such a state has its machines.
        starts: the codes of findings that say when the job would start.
    """

    texts: tuple[re.Pattern[str], ...]
    phases: frozenset[str]
    waiting: frozenset[RunState]
    machines: frozenset[str]
    starts: frozenset[str] = frozenset()

    def tell_of_lack(self, text: str) -> bool:
        """Return whether an answer of the target says that it has no capacity."""
        return any(pattern.search(text) for pattern in self.texts)

    def ended_for_lack(self, status: RunStatus) -> bool:
        """Return whether a run ended because the target had no capacity, before it started."""
        if status.started is not None:
            return False
        has_phase = any(item.phase in self.phases for item in status.transitions)
        return has_phase or self.tell_of_lack(status.reason or "")

    def are_of_waiting(self, status: RunStatus) -> bool:
        """Return whether a run waits for capacity."""
        if status.started is not None or status.state not in self.waiting:
            return False
        return not any(item.phase in self.machines for item in status.transitions)


def read_words(module_file: str, name: str = "capacity.toml") -> CapacityWords:
    """Return the table in a file beside a module."""
    table = load_table(module_file, name)
    return CapacityWords(
        tuple(re.compile(row["text"]) for row in table["texts"]),
        frozenset(table["ended"]["phases"]),
        frozenset(map(RunState, table["waiting"]["states"])),
        frozenset(table["waiting"]["machines"]),
        frozenset(table.get("start", {}).get("codes", ())),
    )
