"""The parameter server: it owns the weights and the optimizer, hands out work, and decides which worker has to wait.

There is one `Server`, on rank 0. Workers call `exchange` over rpc; everything else happens in the server's process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.futures import Future


class Task(NamedTuple):
    """A worker's task: the number of a batch, and the weights at which to compute the gradient."""

    number: int
    version: int  # updates that these weights have seen
    weights: Tensor  # flat


class Result(NamedTuple):
    """A worker's result. The seconds are those of this task."""

    number: int
    version: int
    gradient: Tensor  # flat
    loss: float
    computing: float
    waiting: float


class Event(NamedTuple):
    """Work for the main thread of rank 0, so that workers need not wait for disks and evaluations."""

    kind: str  # report, evaluate or save
    updates: int
    seconds: float  # since the first task was handed out
    content: Any


class Seen(NamedTuple):
    """The record of one gradient, for the tables."""

    worker: int
    staleness: int
    computing: float
    waiting: float


class Server:
    """Applies each gradient as soon as it arrives. A gradient's staleness is the number of updates by other workers
    while it was computed.

    Args:
        weights: the initial weights as one flat tensor.
        workers: the number of workers; their ranks are 1 to `workers`.
        last_update: the number of updates after which training ends.
        learning_rate_at: returns the learning rate of an update.
        max_staleness: how many gradients a worker may be ahead of the slowest one; None for no limit.
        report_every, evaluate_every, save_every: updates between two events of each kind.
        momentum, weight_decay: settings of SGD.
    """

    def __init__(
        self,
        weights: Tensor,
        *,
        workers: int,
        last_update: int,
        learning_rate_at: Callable[[int], float],
        max_staleness: int | None,
        report_every: int,
        evaluate_every: int,
        save_every: int,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.weights = torch.nn.Parameter(weights)
        self.optimizer = torch.optim.SGD(
            [self.weights], lr=0.0, momentum=momentum, weight_decay=weight_decay
        )
        self.learning_rate_at = learning_rate_at
        self.workers, self.last_update, self.max_staleness = workers, last_update, max_staleness
        self.periods = {"report": report_every, "evaluate": evaluate_every, "save": save_every}

        self.updates = 0
        self.next_number = 0
        self.again: list[int] = []  # numbers that an earlier run had handed out and not got back
        self.under_way: set[int] = set()
        # gradients of each worker that has not left
        self.done = dict.fromkeys(range(1, workers + 1), 0)
        self.asking: dict[int, Future[Task | None]] = {}  # workers that wait for a task
        # nobody starts before all are there, or the first would do much of the work
        self.arrived: set[int] = set()
        self.stopping = False

        self.lock = threading.Lock()
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.started: float | None = None
        self.seen: list[Seen] = []
        self.reported = 0
        self.losses: list[float] = []

    def exchange(self, worker: int, result: Result | None, stop: bool) -> Future[Task | None]:
        """Take a gradient and promise a task, at once or when slower workers have caught up. None means: leave."""
        with self.lock:
            self.stopping |= stop
            self.arrived.add(worker)
            if result is not None:
                self._apply(worker, result)
            promise: Future[Task | None] = Future()
            self.asking[worker] = promise
            answers = list(self._answers())
        self._send(answers)
        return promise

    def stop(self) -> None:
        """Hand out no more tasks. Gradients under way are still accepted."""
        with self.lock:
            self.stopping = True
            answers = list(self._answers())
        self._send(answers)

    @property
    def here(self) -> list[int]:
        """Return the workers that have not ended."""
        with self.lock:
            return list(self.done)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs: everything that does not follow from the number of updates. The
        caller may keep it, because its contents are never changed.
        """
        return {
            "weights": self.weights.detach().clone(),
            "optimizer": _copied(self.optimizer.state_dict()),
            "updates": self.updates,
            "next_number": self.next_number,
            "again": sorted([*self.under_way, *self.again]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.data.copy_(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.next_number, self.again = (
            state["updates"],
            state["next_number"],
            list(state["again"]),
        )

    def _apply(self, worker: int, result: Result) -> None:
        staleness = self.updates - result.version
        self.seen.append(Seen(worker, staleness, result.computing, result.waiting))
        self.losses.append(result.loss)
        self.under_way.remove(result.number)
        self.done[worker] += 1
        self.optimizer.param_groups[0]["lr"] = self.learning_rate_at(self.updates)
        self.weights.grad = result.gradient
        self.optimizer.step()
        self.updates += 1
        for kind, every in self.periods.items():
            if self.updates % every == 0 or self.updates == self.last_update:
                self._tell(kind)

    def _tell(self, kind: str) -> None:
        content: Any
        if kind == "report":
            fresh, self.losses = self.losses, []
            staleness = [row.staleness for row in self.seen[-len(fresh) :]]
            content = {
                "loss": sum(fresh) / len(fresh),
                "staleness": sum(staleness) / len(staleness),
            }
        else:
            content = self.weights.detach().clone() if kind == "evaluate" else self.state_dict()
        assert self.started is not None
        self.events.put(Event(kind, self.updates, perf_counter() - self.started, content))

    def _answers(self) -> Iterator[tuple[Future[Task | None], Task | None]]:
        """Yield the promises that can be kept now. A leaving worker may be the one that others have waited for."""
        finished = self.stopping or self._all_is_given_out()
        if not finished and len(self.arrived) < self.workers:
            return
        self.started = self.started or perf_counter()
        for worker in list(self.asking):
            if finished:
                del self.done[worker]
                yield self.asking.pop(worker), None
            elif (
                self.max_staleness is None
                or self.done[worker] - min(self.done.values()) <= self.max_staleness
            ):
                yield self.asking.pop(worker), self._next_task()
                finished = self._all_is_given_out()

    def _all_is_given_out(self) -> bool:
        """Return whether all work is given out. A run that resumes with a shorter schedule may be past its end."""
        return self.updates + len(self.under_way) >= self.last_update

    def _next_task(self) -> Task:
        number = self.again.pop(0) if self.again else self.next_number
        self.next_number = max(self.next_number, number + 1)
        self.under_way.add(number)
        return Task(number, self.updates, self.weights.detach().clone())

    @staticmethod
    def _send(answers: list[tuple[Future[Task | None], Task | None]]) -> None:
        for promise, task in answers:
            promise.set_result(task)


serving: list[Server] = []  # the newest is the one that workers talk to


@rpc.functions.async_execution
def exchange(worker: int, result: Result | None, stop: bool) -> Future[Task | None]:
    """Call `Server.exchange` for a worker. The promise is kept later, and no thread of the server waits for that."""
    return serving[-1].exchange(worker, result, stop)


def largest_staleness(workers: int, max_staleness: int | None) -> int | None:
    """Return the largest staleness under a bound `s` on the lead. When a worker starts a gradient, it is at most `s`
    ahead of each other worker. While it computes, each of them can get `s` ahead of it and finish one more: 2s + 1
    updates each."""
    return None if max_staleness is None else (workers - 1) * (2 * max_staleness + 1)


def summary(server: Server) -> list[str]:
    """Summarise how stale the gradients were, and what each worker did, sent and waited."""
    stale = [row.staleness for row in server.seen]
    bound = largest_staleness(server.workers, server.max_staleness)
    lines = [
        f"staleness mean {sum(stale) / len(stale):.2f} max {max(stale)} bound {'none' if bound is None else bound}",
        "updates by others between a worker's pull and its push:",
        *histogram(Counter(stale)),
        "",
        " worker gradients staleness   idle MB sent",
    ]
    for worker in range(1, server.workers + 1):
        mine = [row for row in server.seen if row.worker == worker]
        waiting, computing = sum(row.waiting for row in mine), sum(row.computing for row in mine)
        staleness = sum(row.staleness for row in mine) / max(1, len(mine))
        idle, sent = (
            waiting / max(1e-9, waiting + computing),
            len(mine) * server.weights.nbytes / 1e6,
        )
        lines.append(f"{worker:>7} {len(mine):>9} {staleness:>9.2f} {idle:>6.1%} {sent:>7.1f}")
    return lines


def histogram(counts: Counter[int], width: int = 40) -> list[str]:
    """Return one line for each of 0, 1, 2-3, 4-7, 8-15, ..., with its share of all gradients."""
    bins: Counter[int] = Counter()
    for staleness, count in counts.items():
        bins[staleness.bit_length()] += count
    lines = []
    for power in range(max(bins, default=-1) + 1):
        low, high = (1 << power) >> 1, max((1 << power) - 1, 0)
        share = bins[power] / sum(bins.values())
        name = str(low) if low == high else f"{low}-{high}"
        lines.append(
            f"{name:>9} {bins[power]:>6} {share:>6.1%} {'#' * round(share * width)}".rstrip()
        )
    return lines


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
