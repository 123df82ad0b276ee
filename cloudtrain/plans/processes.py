"""The processes of a job in a plan. They are created on demand, because a large job has a million
processes.

Similar processes form an `Alike`, which creates its n-th process on request. So the cost of a plan
depends on the number of processes that you look at, and not on the number that the job starts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import eq
from os.path import commonprefix
from typing import overload


@dataclass(frozen=True)
class Process:
    """One process that the job will start: its instance, rank, arguments and environment.

    `rank` is None for launchers (torchrun, mpirun) and other processes without a rank. `env` holds
    the variables of this process in addition to the variables of its instance.
    """

    instance: int
    role: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    local_rank: int | None = None


@dataclass(frozen=True)
class Alike:
    """Processes of one role that differ only in their numbers and instances.

    Attributes:
        role: the role of the processes.
        spread: pairs of an instance and the number of this group's processes on it, in order.
        make: a function that returns the process with the given number, counted from 0 in this
            group.
        uniform: whether a value that the first, second and last process share is the same in all
            processes. If False, every process is examined to find the common values.
    """

    role: str
    spread: tuple[tuple[int, int], ...]
    make: Callable[[int], Process]
    uniform: bool = True

    @classmethod
    def listed(cls, processes: Sequence[Process]) -> Alike:
        """Return the group that consists of the given processes."""
        spread = []
        for instance, members in groupby(process.instance for process in processes):
            spread.append((instance, len(list(members))))
        return cls(processes[0].role, tuple(spread), processes.__getitem__, uniform=False)

    @cached_property
    def count(self) -> int:
        return sum(number for _, number in self.spread)

    def __iter__(self) -> Iterator[Process]:
        return map(self.make, range(self.count))

    @cached_property
    def first(self) -> Process:
        return self.make(0)

    @cached_property
    def last(self) -> Process:
        """The last process of the group, which has the highest numbers."""
        return self.make(self.count - 1)

    @cached_property
    def examples(self) -> tuple[Process, ...]:
        """Processes that together show every difference within the group: the first, second and
        last; or all processes if the group is not `uniform`."""
        if not self.uniform:
            return tuple(self)
        last = self.count - 1
        numbers = sorted({0, min(1, last), last})
        return tuple(map(self.make, numbers))

    @cached_property
    def env(self) -> dict[str, str]:
        """The variables that have the same value in all processes."""
        return common_variables(process.env for process in self.examples)


class Processes(Sequence[Process]):
    """All processes of a job, in the order of the plan."""

    def __init__(self, groups: Iterable[Alike] = ()) -> None:
        self.groups: tuple[Alike, ...] = tuple(group for group in groups if group.count)

    @classmethod
    def of(cls, processes: Iterable[Process]) -> Processes:
        """Group the given processes. Consecutive processes with the same role form one group. Ranks
        must also have the same `argv`."""
        if isinstance(processes, Processes):
            return processes

        def group_key(process: Process) -> tuple[object, ...]:
            argv = process.argv if process.role == "rank" else ()
            return process.role, process.rank is None, argv

        groups = []
        for _, group in groupby(processes, group_key):
            groups.append(Alike.listed(tuple(group)))
        return cls(groups)

    def mapped(self, change: Callable[[Process], Process]) -> Processes:
        """Return the processes, each as the result of `change`, which is called when a process is
        looked at."""

        def changed(group: Alike) -> Alike:
            return replace(group, make=lambda number: change(group.make(number)))

        return Processes(map(changed, self.groups))

    @property
    def ranks(self) -> Counter[int]:
        """The number of ranks on each instance."""
        ranks = [group for group in self.groups if group.first.rank is not None]
        return self._count(ranks)

    @property
    def started(self) -> Counter[int]:
        """The number of processes on each instance, including launchers and other processes without
        a rank."""
        return self._count(self.groups)

    @property
    def examples(self) -> Iterator[Process]:
        """Yield example processes such that every other process differs from an example only in its
        numbers."""
        for group in self.groups:
            yield from group.examples

    @staticmethod
    def _count(groups: Iterable[Alike]) -> Counter[int]:
        """Return the number of the groups' processes on each instance."""
        counts: Counter[int] = Counter()
        for group in groups:
            for instance, number in group.spread:
                counts[instance] += number
        return counts

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)

    @overload
    def __getitem__(self, index: int) -> Process: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Process, ...]: ...

    def __getitem__(self, index: int | slice) -> Process | tuple[Process, ...]:
        if isinstance(index, slice):
            numbers = range(*index.indices(len(self)))
            return tuple(self[number] for number in numbers)
        number = index + len(self) if index < 0 else index
        if number >= 0:
            for group in self.groups:
                if number < group.count:
                    return group.make(number)
                number -= group.count
        raise IndexError(index)

    def __iter__(self) -> Iterator[Process]:
        for group in self.groups:
            yield from group

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return False
        return len(self) == len(other) and all(map(eq, self, other))

    # Unhashable like a list, because `Alike.make` may hold anything.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} processes>"


def common_variables(envs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that have the same value in all of `envs`, of which there is at least
    one."""
    first, *others = envs
    common = {}
    for key, value in first.items():
        if all(env.get(key) == value for env in others):
            common[key] = value
    return common


LISTED = 64
"""Largest number of processes of one kind that each get a whole entry."""

TOLD_APART = 10_000
"""Largest number of processes of one kind whose differences are all listed. Of more, the first two
and the last are listed."""

_LONG = 200
"""Length in characters from which a common beginning of several texts is written only once."""


def processes_data(processes: Iterable[Process]) -> list[dict[str, object]]:
    """Return all processes as JSON data: one entry per process, or one entry per group with more
    than `LISTED` processes.

    The entry of a group has the `count` of processes, their common `role`, `argv` and `env`, and a
    list `each` of their differences. `env_begins` maps a variable to the long common beginning of
    its values. If `count` is at most `TOLD_APART`, `each` has one item per process. Otherwise it
    has only the items of the first two processes and the last one, from which a reader can derive
    the others.
    """
    entries: list[dict[str, object]] = []
    for group in Processes.of(processes).groups:
        entries += _entries(group)
    return entries


def _entries(group: Alike) -> Iterator[dict[str, object]]:
    """Yield the entries of a group, as `processes_data` describes them."""
    if group.count <= LISTED:
        for process in group:
            yield {**vars(process), "argv": list(process.argv)}
        return

    argv = group.first.argv
    begins = _beginnings(group)
    same_argv = all(process.argv == argv for process in group.examples)
    numbers: Iterable[int] = range(group.count)
    if group.count > TOLD_APART:
        numbers = (0, 1, group.count - 1)

    entry: dict[str, object] = {"role": group.role, "count": group.count}
    if same_argv:
        entry["argv"] = list(argv)
    entry["env"] = group.env
    if begins:
        entry["env_begins"] = begins
    entry["each"] = [
        _differences(group.make(number), group.env, begins, same_argv) for number in numbers
    ]
    yield entry


def _differences(
    process: Process, shared: Mapping[str, str], begins: Mapping[str, str], same_argv: bool
) -> dict[str, object]:
    """Return the values in which a process differs from its group: without the group's common
    variables `shared`, and without `begins`, the common beginnings of the other variables'
    values."""
    own: dict[str, object] = {"instance": process.instance}
    if not same_argv:
        own["argv"] = list(process.argv)
    env = {}
    for name, value in process.env.items():
        if name not in shared:
            env[name] = value.removeprefix(begins.get(name, ""))
    own["env"] = env
    own["rank"] = process.rank
    own["local_rank"] = process.local_rank
    return own


def _beginnings(group: Alike) -> dict[str, str]:
    """Map each variable whose values differ to the common beginning of its values, if that is long.
    An example is TF_CONFIG, which lists all hosts before the task."""
    begins = {}
    for name in sorted(group.first.env.keys() - group.env.keys()):
        # commonprefix compares letters and not the parts of paths, as it should here.
        texts = [process.env.get(name, "") for process in group.examples]
        begin = commonprefix(texts)  # noqa: RUF071
        if len(begin) > _LONG:
            # Do not split a number: the other texts may continue with another digit.
            begins[name] = re.sub(r"\w+$", "", begin)
    return begins
