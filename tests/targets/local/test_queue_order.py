"""The order of the queue, in files, against a simple model: runs come, end, are killed, moved and dropped at random.

No process waits here. What a supervisor does when it is woken, or sees a death, is done by the test itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from cloudtrain.targets.local.queueing import Held, Queue, QueueOrder, Waiting
from tests.examples import examples

GPUS = ("0", "1", "GPU-4f2a", "MIG-11c7")
SLOTS = 3


def waiting(
    run: str, count: int = 1, gpus: tuple[str, ...] = (), slots: int = SLOTS, priority: int = 0
) -> Waiting:
    """A run that has just come."""
    return Waiting(run, count, gpus, slots, priority, 0.0)


class FakeQueue(Queue):
    """The files of a queue, without supervisors."""

    def __init__(self, state_dir: str) -> None:
        super().__init__(state_dir)
        self.living = set[str]()
        self.woken = set[str]()

    def is_alive(self, run: str) -> bool:
        return run in self.living

    def _wake(self, run: str) -> None:
        self.woken.add(run)


class QueueMachine(RuleBasedStateMachine):
    """What must hold whatever happens: see the invariants."""

    runs = Bundle("runs")

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.queue = FakeQueue(self.folder.name)
        self.need = dict[str, Waiting]()
        self.line = list[str]()
        """The model: the runs that wait, in the order that users have asked for."""
        self.seen = dict[str, frozenset[str]]()
        """What each supervisor that waits is watching."""

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def change(self, how: Any = lambda order: None, by: str = "") -> Any:
        """Somebody changes the queue; those who are woken look at it, as `Place.wait` does."""
        line, result = list(self.line), []
        order = self.queue.change(lambda order: result.append(how(order)))
        looking = {by, *self.queue.woken}
        self.queue.woken.clear()
        started = [run for run in line if order.place_of(run) is None and order.held_by(run)]
        for run in started:
            self.may_start(run, line[: line.index(run)])
        self.line = [run for run in line if run not in started]
        watched = order.watched()
        self.seen = {run: watched[run] if run in looking else self.seen.get(run) for run in watched}
        assert {run: whom for run, whom in self.seen.items() if whom != watched[run]} == {}, (
            "somebody was not woken"
        )
        return result[0]

    def may_start(self, run: str, in_front: list[str]) -> None:
        """It got nothing that one in front of it could have used."""
        order = self.queue.read()
        held = order.held_by(run)
        for other in (one for one in order.waiting if one.run in in_front):
            assert not {*held.gpus} & {*other.gpus}
            assert held.gpus or other.gpus

    @rule(
        target=runs,
        count=st.integers(1, 3),
        gpus=st.one_of(st.just(()), st.sampled_from([GPUS, GPUS[:3], GPUS[2:] + GPUS[:1]])),
        priority=st.sampled_from([0, 0, 0, 5, -5]),
    )
    def submit(self, count: int, gpus: tuple[str, ...], priority: int) -> str:
        run = f"run-{len(self.need)}"
        one = self.need[run] = waiting(run, count, gpus, priority=priority)
        self.queue.living.add(run)
        behind = [name for name in self.line if self.priority_of(name) >= priority]
        self.line.insert(len(behind), run)
        self.change(lambda order: order.enter(one), by=run)
        return run

    @rule(target=runs, gpus=st.sampled_from([GPUS[:1], GPUS[1:3]]))
    def submit_without_queue(self, gpus: tuple[str, ...]) -> str:
        run = f"run-{len(self.need)}"
        self.need[run] = waiting(run, len(gpus), gpus)
        self.queue.living.add(run)
        self.change(lambda order: order.held.append(Held(run, gpus, 0, 0.0)), by=run)
        return run

    @rule(run=consumes(runs))
    def finish(self, run: str) -> None:
        """A run ends, or is stopped, and leaves the queue itself."""
        if run in self.line:
            self.line.remove(run)
        self.change(lambda order: order.leave(run))
        self.queue.living.discard(run)

    @rule(run=consumes(runs))
    def kill(self, run: str) -> None:
        """Its supervisor is killed with -9: one process notices, and that is enough."""
        order = self.queue.read()
        matters = run in {*self.line, *(held.run for held in order.held)}
        self.queue.living.discard(run)
        noticed = [
            name for name, whom in self.seen.items() if run in whom and name in self.queue.living
        ]
        assert len(noticed) <= 1
        others = [name for name in self.line if name != run]
        if matters and (order.held_by(run) or run in self.line[:-1]) and others:
            assert noticed, "nobody sees that it is dead"
        if run in self.line:
            self.line.remove(run)
        self.seen.pop(run, None)
        self.change(by=noticed[0] if noticed else "")

    @rule(run=runs, other=runs, how=st.sampled_from(["first", "last", "before"]))
    def move(self, run: str, other: str, how: str) -> None:
        possible = run in self.line and (how != "before" or other in self.line)
        if possible and not (how == "before" and other == run):
            self.line.remove(run)
            place = {
                "first": 0,
                "last": len(self.line),
                "before": self.line.index(other) if how == "before" else 0,
            }
            self.line.insert(place[how], run)
        before = other if how == "before" else None
        assert self.change(lambda order: order.move(run, before, last=how == "last")) is possible

    @rule(run=runs)
    def drop(self, run: str) -> None:
        possible = run in self.line
        if possible:
            self.line.remove(run)
        assert self.change(lambda order: order.drop(run)) is possible

    def priority_of(self, run: str) -> int:
        return next(one.priority for one in self.queue.read().waiting if one.run == run)

    @invariant()
    def the_line_is_the_model(self) -> None:
        """Nobody is lost, and nobody stands elsewhere than a user would expect."""
        order = self.order()
        assert [one.run for one in order.waiting] == self.line
        priorities = [one.priority for one in order.waiting]
        assert priorities == sorted(priorities, reverse=True)
        assert order.runs() <= self.queue.living

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        asked = [
            held
            for held in self.order().held
            if self.need[held.run].count == len(held.gpus) or held.slots
        ]
        given = [gpu for held in asked for gpu in held.gpus if held.since]
        assert len(given) == len(set(given))
        assert sum(held.slots for held in asked) <= SLOTS
        for held in asked:
            assert {*held.gpus} <= {*self.need[held.run].gpus}
            assert held.slots in (0, self.need[held.run].count)

    @invariant()
    def the_head_cannot_start(self) -> None:
        order = self.order()
        if order.waiting:
            head, taken = order.waiting[0], {gpu for held in order.held for gpu in held.gpus}
            if head.gpus:
                assert len({*head.gpus} - taken) < head.count
            else:
                assert sum(held.slots for held in order.held) + head.count > SLOTS

    def order(self) -> QueueOrder:
        return self.queue.read() if hasattr(self, "queue") else QueueOrder()


QueueMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
test_queue_machine = QueueMachine.TestCase


def test_a_large_run_is_not_starved() -> None:
    """Small ones behind it wait, although they would fit; one that needs other things does not."""
    order = QueueOrder(held=[Held("now", ("0",), 0, 1.0)])
    order.enter(waiting("large", 2, ("0", "1")))
    order.enter(waiting("small", 1, ("0", "1")))
    order.enter(waiting("elsewhere", 1, ("2", "3")))
    order.enter(waiting("cpu"))
    order.grant(2.0)
    assert [one.run for one in order.waiting] == ["large", "small"]
    order.leave("now")
    order.grant(3.0)
    assert order.held_by("large") == Held("large", ("0", "1"), 0, 3.0)
    assert [one.run for one in order.waiting] == ["small"]


def test_priority_then_order_of_arrival() -> None:
    """Higher numbers first, and within one number who came first."""
    order = QueueOrder()
    for run, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        order.enter(waiting(run, priority=priority))
    assert [one.run for one in order.waiting] == ["b", "d", "a", "c", "e"]


@pytest.mark.parametrize(
    ("own", "before", "last", "place", "priority"),
    [
        (-7, None, False, 1, 5),
        (9, None, True, 4, -1),
        (9, "b", False, 3, 0),
        (-7, "b", False, 3, -1),
    ],
)
def test_a_moved_run_stays_where_it_was_put(
    own: int, before: str | None, last: bool, place: int, priority: int
) -> None:
    """It takes the priority that its new neighbours leave it."""
    order = QueueOrder()
    for run, number in (("a1", 5), ("a2", 0), ("b", -1)):
        order.enter(waiting(run, priority=number))
    order.enter(waiting("c", priority=own))
    assert order.move("c", before, last=last)
    assert (order.place_of("c"), order.waiting[place - 1].priority) == (place, priority)


def test_a_torn_table_is_empty(tmp_path: Path) -> None:
    """After a power cut no supervisor is left that could be in it."""
    queue = FakeQueue(str(tmp_path))
    queue.living.add("run")
    queue.change(lambda order: order.enter(waiting("run")))
    assert queue.read().held_by("run")
    (tmp_path / "queue/table.json").write_text('{"waiting": [')
    assert queue.read() == QueueOrder()
