"""The sender of notifications: a detached process of each state folder, while `[notify]` is set and
there is something to watch or to send.

It asks the targets for the states of unfinished runs, which puts what happened into the outbox, and
sends what is in the outbox to the channels. If it is killed, the next command starts it again. An
event that was sent and not recorded as sent is then sent once more, under the same id.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError, TargetUnreachable
from cloudtrain.lifecycle.detached.driven import GLANCE, Step, sender_folder, watch_interval
from cloudtrain.lifecycle.notifications.channels import Channel, check_channels, own_channels
from cloudtrain.lifecycle.notifications.messages import deliver
from cloudtrain.lifecycle.runs.costs import cost_of
from cloudtrain.lifecycle.runs.find import kind_of
from cloudtrain.lifecycle.runs.run import Run
from cloudtrain.lifecycle.runs.sweep import sweep_of
from cloudtrain.lifecycle.store.outbox import Event
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.lifecycle.store.store import SENT, UNFINISHED, RunRecord
from cloudtrain.plans.progress import Notice, RunStatus
from cloudtrain.system.plugins import part
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.contract import RunFolders
from cloudtrain.targets.registry import usable_target
from cloudtrain.targets.settings import Settings, read_environment

_TICK = 4.0
"""Seconds between two looks at the outbox, and at the runs on this machine."""

_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 900.0
"""Seconds until a delivery that failed is tried again. Each pause is twice the one before."""

_SLOWEST = 4.0
"""The longest pause between two questions to a target that does not answer, as a multiple of the
first."""

_MOST_REFUSALS = 10
"""Answers of a target without the state of a run, after which it is not asked again: the run is
gone, or the credentials of this process have expired."""

_GIVE_UP = 7 * 24 * 3600.0
"""Seconds after which an event that could not be sent is dropped."""

_LANES = 64
"""Most channels and targets that are busy at once."""


def main() -> None:
    """Send the notifications of one state folder, the first argument of the command line, until
    there is nothing to watch and to send."""
    here = read_environment()._replace(state_dir=Path(sys.argv[1]))
    try:
        serve(here)
    except CloudtrainError as error:
        sys.stderr.write(f"{error}\n")


def serve(here: Settings, moment: Step = lambda _: None) -> None:
    """Send notifications while there is something to watch or to send. Do nothing if another
    process does. `moment` is called at each step with its name.

    Raises:
        SettingsError: the settings have a mistake, or this process cannot read a secret of a
            channel. A command in another environment starts the next sender.
    """
    folder = sender_folder(here.state_dir)
    has_work = True
    while has_work:
        lock = ProcessLock.take(folder.lock, patience=GLANCE)
        if lock is None:
            return
        try:
            with ThreadPoolExecutor(_LANES) as pool:
                sender = _Sender(here, pool, moment)
                sender.serve(lock)
        finally:
            lock.release()
        if sender.unknown:
            return
        # a command that has submitted a run meanwhile saw the lock, and started no other sender
        with read_store(here.state_dir) as store:
            has_work = store.outbox.has_work


class _Sender:
    """Watches runs and sends events. Each channel and each target has a lane of its own: one thread
    at a time, so that none waits for another one that does not answer."""

    def __init__(self, here: Settings, pool: ThreadPoolExecutor, moment: Step) -> None:
        self._here = here
        self._moment = moment
        self._interval = watch_interval()
        self._tick = min(_TICK, self._interval)
        self._pool = pool
        self._lanes: dict[str, Future[None]] = {}
        self._due: dict[object, float] = {}
        """When each run is asked about again, and each delivery tried again."""
        self._failures = Counter[object]()
        self._sent: set[tuple[str, str]] = set()
        """What was sent, even if the store could not be written then."""
        self._told: set[tuple[str, Notice]] = set()
        """The notices that are in the outbox, with their runs."""
        self.unknown: set[str] = set()
        """The runs whose target refuses to tell their states. The next command starts a sender
        whose credentials may be newer."""
        self._over: set[str] = set()
        """The runs that were seen after their end."""

    def serve(self, lock: ProcessLock) -> None:
        """Work until there is nothing to do."""
        worked_at = time.monotonic()
        # the command that started this process is about to submit a run
        patience = 2 * self._interval
        while lock.is_in_place():
            channels = own_channels()
            if not channels:
                with open_store(self._here.state_dir) as store:
                    store.outbox.turn_off()
                return
            check_channels(channels, self._here.environ)
            if self._look(channels):
                worked_at = time.monotonic()
            elif time.monotonic() - worked_at > patience:
                return
            time.sleep(self._tick)

    def _look(self, channels: Sequence[Channel]) -> bool:
        """Start what is due. Return whether there is anything to watch or to send."""
        # before the outbox is read: a lane that ends meanwhile has recorded what it sent
        for lane, future in list(self._lanes.items()):
            if future.done():
                del self._lanes[lane]
                error = future.exception()
                if error is not None:
                    sys.stderr.write(f"{lane}: {type(error).__name__}: {error}\n")
        with read_store(self._here.state_dir) as store:
            events = store.outbox.pending()
            # and the runs that another command saw end, whose last notices are not read yet
            rows = store.newest(states=UNFINISHED)
            seen = self._over.union(row.name for row in rows)
            ended = {event.run for event in events} - seen
            rows += filter(None, map(store.get, ended))
        rows = [row for row in rows if row.name not in self.unknown]

        for channel in channels:
            self._start(f"to {channel.name}", self._deliver, channel, events)
        for event in events:
            wanted = {channel.name for channel in channels if channel.wants(event.kind)}
            is_too_old = time.time() - event.recorded > _GIVE_UP
            if wanted <= event.delivered or is_too_old:
                with open_store(self._here.state_dir) as store:
                    store.outbox.finish(event)
                self._moment("finished")

        limits = [item.table.over_cost for item in channels if item.table.over_cost is not None]
        lowest_limit = min(limits, default=inf)
        rows_of: dict[str, list[RunRecord]] = {}
        for row in rows:
            if row.stage in SENT:
                rows_of.setdefault(row.target, []).append(row)
        for target, sent in rows_of.items():
            self._start(f"of {target}", self._ask, sent, lowest_limit)
        return bool(events or rows)

    def _start(self, lane: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do some work in a lane, unless it is busy."""
        if lane not in self._lanes:
            self._lanes[lane] = self._pool.submit(work, *arguments)

    def _is_due(self, key: object) -> bool:
        return time.monotonic() >= self._due.get(key, 0.0)

    def _fail(self, key: object, first: float, longest: float) -> None:
        """Try something again after a pause, which doubles from `first` to `longest` seconds."""
        pause = first * 2.0 ** min(self._failures[key], 20)
        self._failures[key] += 1
        self._due[key] = time.monotonic() + min(pause, longest)

    def _deliver(self, channel: Channel, events: Sequence[Event]) -> None:
        """Send the events that are due to a channel."""
        for event in events:
            key = (event.id, channel.name)
            is_wanted = channel.wants(event.kind) and channel.name not in event.delivered
            if not is_wanted or not self._is_due(key):
                continue
            error = None
            if key not in self._sent:
                self._moment("sending")
                error = deliver(channel, event, self._here.environ)
                self._moment("sent")
            if error is None:
                self._sent.add(key)
            else:
                self._fail(key, min(_FIRST_PAUSE, self._interval), _LONGEST_PAUSE)
            with open_store(self._here.state_dir) as store:
                store.outbox.note(event, channel.name, error)
            self._moment("noted")

    def _ask(self, rows: Sequence[RunRecord], limit: float) -> None:
        """Ask a target for the states of its runs that are due, and record what is new. `limit` is
        the cost in US dollars above which a run is an event."""
        is_here = part(usable_target(rows[0].target), RunFolders) is not None
        pause = self._tick if is_here else self._interval
        for row in rows:
            if not self._is_due(row.name):
                continue
            run = kind_of(row)(row, self._here)
            try:
                status = run.status()
            except CloudtrainError as error:
                self._fail(row.name, pause, pause * _SLOWEST)
                is_refused = not isinstance(error, TargetUnreachable)
                if is_refused and self._failures[row.name] > _MOST_REFUSALS:
                    self.unknown.add(row.name)
                continue
            del self._failures[row.name]
            self._due[row.name] = time.monotonic() + pause
            self._moment("asked")

            if status.state.is_final or self._is_due(run.ref):
                status = run.glance()
                self._due[run.ref] = time.monotonic() + self._interval

            spent = 0.0 if limit == inf else self._spent(run, status)
            fresh = {(row.name, notice) for notice in status.notices} - self._told
            if fresh or spent > limit:
                with open_store(self._here.state_dir) as store:
                    store.outbox.add_notices(row.name, status.notices, store.now())
                    if spent > limit:
                        reason = f"it has cost ${spent:,.2f}, more than ${limit:,.2f}"
                        store.outbox.add(row.name, "over_cost", store.now(), None, reason)
                self._told |= fresh
            if status.state.is_final:
                self._over.add(row.name)

    def _spent(self, run: Run, status: RunStatus) -> float:
        """Return what a run has cost so far in US dollars, or 0 if that is unknown."""
        with read_store(self._here.state_dir) as store:
            money = store.money().get(run.name)
        cost = cost_of(run, status, money, None, time.time())
        if run.is_sweep and not cost.is_free:
            of_trials = sweep_of(run).cost(status)
            return 0.0 if of_trials is None else of_trials.spent
        return cost.billed or cost.estimated or 0.0
