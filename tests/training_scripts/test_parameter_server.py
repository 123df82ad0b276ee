"""The parameter server's rules in one process, under every order of events."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError
from tests.examples import examples

FOLDER = Path(__file__).parents[2] / "training_scripts" / "parameter_server"


@pytest.fixture(scope="module")
def server_module() -> Iterator[ModuleType]:
    """`server.py`, imported from its folder, and gone again afterwards."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("server")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("server", None)
        sys.modules.pop("worker", None)


class Play:
    """A server and its workers, of which a list of numbers says who moves next. Gradients are ones."""

    def __init__(
        self,
        module: ModuleType,
        workers: int,
        last: int,
        max_staleness: int | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        import torch

        self.module, self.one = module, torch.ones(3)
        self.server = module.Server(
            torch.zeros(3),
            workers=workers,
            last_update=last,
            learning_rate_at=lambda update: 1.0,
            max_staleness=max_staleness,
            report_every=4,
            evaluate_every=last,
            save_every=5,
            momentum=0.0,
            weight_decay=0.0,
        )
        if state is not None:
            self.server.load_state_dict(state)
        self.workers = list(range(1, workers + 1))
        self.promises: dict[int, Any] = {
            w: self.server.exchange(w, None, False) for w in self.workers
        }
        self.numbers: list[int] = []

    def ready(self) -> list[int]:
        """Workers that have a task. Those that were told to leave have left."""
        self.workers = [
            w
            for w in self.workers
            if not (self.promises[w].done() and self.promises[w].value() is None)
        ]
        return [worker for worker in self.workers if self.promises[worker].done()]

    def move(self, worker: int) -> None:
        """The worker hands in its gradient and asks again."""
        task = self.promises[worker].value()
        self.numbers.append(task.number)
        result = self.module.Result(task.number, task.version, self.one, 2.0, 1.0, 0.0)
        self.promises[worker] = self.server.exchange(worker, result, False)

    def to_the_end(self, order: Iterator[int]) -> None:
        """Until all have left; somebody can always move."""
        while ready := self.ready():
            self.move(ready[next(order) % len(ready)])
        assert self.workers == []


def cycle(picks: list[int]) -> Iterator[int]:
    while True:
        yield from picks


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 11), min_size=1, max_size=30))
@pytest.mark.slow
def test_staleness_stays_within_what_the_bound_promises(
    server_module: ModuleType, workers: int, lead: int, picks: list[int]
) -> None:
    """Whoever moves when: no gradient is staler, somebody can always move, all is done once."""
    play = Play(server_module, workers, last=40, max_staleness=lead)
    play.to_the_end(cycle(picks))
    assert sorted(play.numbers) == list(range(40))
    assert max(row.staleness for row in play.server.seen) <= server_module.largest_staleness(
        workers, lead
    )


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 11), min_size=1, max_size=30))
def test_without_a_bound_a_fast_worker_never_waits(
    server_module: ModuleType, workers: int, picks: list[int]
) -> None:
    """Every worker has a task at all times, each number is handed out once, and each gradient moves the weights."""
    play = Play(server_module, workers, last=30)
    order = cycle(picks)
    while play.server.next_number < 30:
        assert play.ready() == play.workers
        play.move(play.workers[next(order) % workers])
    play.to_the_end(order)
    assert sorted(play.numbers) == list(range(30))
    assert play.server.weights.tolist() == [-30.0] * 3


@pytest.mark.slow
def test_a_worker_that_is_ahead_waits_for_the_slowest(server_module: ModuleType) -> None:
    """With a lead of 1 it does two gradients, then waits until the other has done one."""
    play = Play(server_module, workers=2, last=10, max_staleness=1)
    play.move(1)
    play.move(1)
    assert play.ready() == [2]
    play.move(2)
    assert play.ready() == [1, 2]
    assert [row.staleness for row in play.server.seen] == [0, 0, 2]


@pytest.mark.slow
def test_nobody_starts_before_all_are_there(server_module: ModuleType) -> None:
    """Otherwise the worker that joins first would do much of the work, and the last would hand in a stale gradient."""
    play = Play(server_module, workers=0, last=10)
    play.server.workers, play.server.done = 2, {1: 0, 2: 0}
    first = play.server.exchange(1, None, False)
    assert not first.done()
    second = play.server.exchange(2, None, False)
    assert {first.value().number, second.value().number} == {0, 1}


@pytest.mark.slow
def test_the_bound_on_staleness_is_reached(server_module: ModuleType) -> None:
    """(n - 1)(2s + 1) is no generous estimate: with 2 workers and a lead of 1 there are 3 updates meanwhile."""
    play = Play(server_module, workers=2, last=20, max_staleness=1)
    play.move(2)  # now the other is ahead by 1, and worker 1 computes
    assert play.server.done == {1: 0, 2: 1}
    play.move(1)  # worker 1 starts again, level
    play.move(1)  # and leads by 1 when it starts its third
    for _ in range(3):
        play.move(2)
    play.move(1)
    assert (
        max(row.staleness for row in play.server.seen) == server_module.largest_staleness(2, 1) == 3
    )


@pytest.mark.slow
def test_a_schedule_that_has_become_shorter_is_over(server_module: ModuleType) -> None:
    """A run of 20 updates is stopped at 18 and resumed with one of 8: no batch is handed out, and all leave."""
    long = Play(server_module, workers=2, last=20)
    while long.server.updates < 18:
        long.move(1)
    state = long.server.state_dict()
    assert (state["next_number"], state["again"]) == (20, [1, 19])
    short = Play(server_module, workers=2, last=8, state=state)
    assert short.ready() == []
    assert (short.workers, short.server.here, short.server.updates) == ([], [], 18)


@pytest.mark.slow
def test_a_batch_larger_than_the_data_is_refused(server_module: ModuleType) -> None:
    """It would make an epoch without a batch, and a training of nothing that succeeds."""
    import torch

    worker: Any = importlib.import_module("worker")
    with pytest.raises(SetupError, match="`--batch 2000` of 1438 images"):
        worker.Digits(hidden=4, batch=2000, seed=1, device=torch.device("cpu"))


@pytest.mark.slow
def test_a_stop_takes_what_is_under_way_and_lets_all_leave(server_module: ModuleType) -> None:
    """A worker that waits leaves at once; the others hand in first, and the state has no gap."""
    play = Play(server_module, workers=2, last=20, max_staleness=0)
    play.move(1)
    assert play.ready() == [2]
    play.server.stop()
    assert play.server.here == [2]
    play.move(2)
    assert play.server.here == []
    state = play.server.state_dict()
    assert (state["updates"], state["next_number"], state["again"]) == (2, 2, [])


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_a_state_saved_at_any_moment_loses_and_repeats_no_batch(
    server_module: ModuleType, workers: int, later: int, picks: list[int]
) -> None:
    """What was under way when the state was saved is done again, by however many workers there are then."""
    first = Play(server_module, workers, last=30)
    for pick in picks:
        ready = first.ready()
        if not ready:
            break
        first.move(ready[pick % len(ready)])
    state = first.server.state_dict()
    fresh = Play(server_module, later, last=30, state=state)
    fresh.to_the_end(cycle(picks))
    assert sorted(first.numbers + fresh.numbers) == list(range(30))
    assert fresh.server.weights.tolist() == [-30.0] * 3


@pytest.mark.slow
def test_events_come_at_their_updates(server_module: ModuleType) -> None:
    """Reports every 4, states every 5, and all of them at the last update; a state is not changed by later updates."""
    play = Play(server_module, workers=1, last=11)
    play.to_the_end(cycle([0]))
    events = []
    while not play.server.events.empty():
        events.append(play.server.events.get())
    found = [(event.kind, event.updates) for event in events]
    assert found == [
        ("report", 4),
        ("save", 5),
        ("report", 8),
        ("save", 10),
        ("report", 11),
        ("evaluate", 11),
        ("save", 11),
    ]
    assert [event.content["weights"].tolist()[0] for event in events if event.kind == "save"] == [
        -5.0,
        -10.0,
        -11.0,
    ]
    assert events[0].content == {"loss": 2.0, "staleness": 0.0}


@pytest.mark.in_ci
def test_the_histogram_has_a_line_for_each_power_of_two(server_module: ModuleType) -> None:
    """0, 1, 2-3, 4-7: with counts, shares and bars."""
    lines = server_module.histogram(Counter({0: 5, 2: 1, 3: 1, 5: 3}), width=10)
    assert [line.split() for line in lines] == [
        ["0", "5", "50.0%", "#####"],
        ["1", "0", "0.0%"],
        ["2-3", "2", "20.0%", "##"],
        ["4-7", "3", "30.0%", "###"],
    ]
    assert server_module.histogram(Counter()) == []


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`costs.py`, which needs no torch."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("costs")
    sys.modules.pop("costs", None)


def test_what_exchanges_cost_by_arithmetic(costs: Any) -> None:
    """1 GB at 8 Gb/s takes a second: a ring of 4 sends 6 quarters, one server 3 in and 3 out, 4 servers a ring's bytes in
    two messages."""
    assert costs.exchange_seconds(1e9, 4, 8.0, 0.0) == pytest.approx((1.5, 6.0, 1.5))
    assert costs.exchange_seconds(0.0, 4, 8.0, 0.5) == pytest.approx((3.0, 1.0, 1.0))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(1, 5))
def test_servers_hold_everything_once(sizes: list[int], servers: int) -> None:
    """Whatever the way; cut tensors differ by a byte each at most, and the emptiest first is never worse than twice the
    best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        costs = importlib.import_module("costs")
    held = {way: costs.placed(sizes, servers, way) for way in costs.WAYS}
    assert all(sum(each) == sum(sizes) and len(each) == servers for each in held.values())
    assert max(held["cut"]) - min(held["cut"]) <= len(sizes)
    assert max(held["largest first"]) < 2 * max(max(sizes), -(-sum(sizes) // servers))
    assert costs.placed([5, 1, 5, 1], 2, "in turn") == [10, 2]
