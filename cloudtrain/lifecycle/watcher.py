"""The watcher of a waiting run: a detached process that checks other runs until they have
succeeded, and then sends the request. Of a list of alternatives, it sends one try after the other,
until one has capacity: the design stands in `lifecycle/capacity/service.py`.

The request is sent by `send_once`, through the watcher's own run store. If the watcher is killed
and started again, this store shows whether the target may already have the run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cloudtrain.errors import (
    CloudtrainError,
    RunNotFound,
    StoreError,
    TargetError,
    TargetUnreachable,
)
from cloudtrain.job.model import format_duration
from cloudtrain.lifecycle.capacity.service import (
    Attempt,
    archive_in,
    read_attempts,
    try_key,
    write_attempts,
)
from cloudtrain.lifecycle.detached.driven import (
    GLANCE,
    Archive,
    DrivenFolder,
    Step,
    detach,
    in_words,
    sleep_until_woken,
    wake_on_stop,
    watch_interval,
)
from cloudtrain.lifecycle.detached.waiting import ChainService, Order, Try
from cloudtrain.lifecycle.store.records import Outlay
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.store.store import SENT, RunRecord
from cloudtrain.lifecycle.submission.once import (
    Sending,
    ServiceOf,
    Watch,
    find_service,
    recover,
    send_once,
)
from cloudtrain.lifecycle.submission.submit import make_delayed, make_try
from cloudtrain.lifecycle.sweeps.service import trial_name
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.system.files import remove_folder
from cloudtrain.system.plugins import part
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.capacity import CapacityWords
from cloudtrain.targets.registry import service_of, target_of

_SLOWEST = 4.0
"""The longest pause between two checks, as a multiple of the first pause. Each pause is 1.5 times
the one before."""

_RUNS = (RunState.RUNNING, RunState.SUCCEEDED)

_ROUND = 10.0
"""The pause before a list begins again, as a multiple of the first pause between two checks."""


class WatchEnded(Exception):
    """Ends the run before it is sent. Its arguments are the state and the reason to record."""


def main() -> None:
    """Watch the run NAME until it is sent. The arguments of the command line are `STATE_DIR NAME
    DESCRIPTOR`: when the watch has begun, this process reports it on the file descriptor."""
    watch(*detach(ChainService.kind))


def watch(folder: DrivenFolder, ready: Callable[[], None], moment: Step = lambda _: None) -> None:
    """Wait for the runs that the run in `folder` waits for, then send its request. Do nothing if
    another process already watches it. `ready` is called when the watch has begun, and `moment` at
    each step with the name of the step."""
    lock = ProcessLock.take(folder.lock, patience=GLANCE)
    if lock is None or not folder.specification.exists():
        return
    kind = ListWatcher if Order.read(folder).tries else Watcher
    watcher = kind(folder, moment)
    try:
        watcher.write(RunState.QUEUED, watcher.order.reason)
        ready()
        watcher.watch()
    except WatchEnded as end:
        watcher.end(*end.args)
    except CloudtrainError as error:
        watcher.end(RunState.FAILED, in_words(error))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the folder of the waiting run cannot be used: {error}\n")
    finally:
        lock.release()


class Watcher:
    """Waits for the runs in one order, and then sends the order's request."""

    def __init__(self, folder: DrivenFolder, moment: Step) -> None:
        self.order: Order = Order.read(folder)
        self._folder = folder
        self._moment = moment
        self._state_dir = folder.path.parents[1]
        self._service = ChainService(os.environ, self._state_dir)
        self._target = service_of(self.order.plan.target, self._service)
        self._start_time = folder.read_status().get("started") or time.time()
        self._wake = wake_on_stop()
        self._pause = watch_interval()

    def watch(self) -> None:
        """Wait for the other runs, send the request, and record in the run store that the run was
        sent."""
        while not self._folder.sending.exists() and self._waits():
            self._sleep()
        self._moment("awaited")
        while not self._is_sent():
            self._sleep()
        self._moment("sent")
        self.write(RunState.PENDING, None, sent=True)
        self._moment("noted")
        if self._folder.stop.exists():
            self._target.stop(self.order.plan.ref)

        with open_store(self._state_dir) as store:
            store.mark_sent(self._folder.name)
        self._moment("handed over")
        remove_folder(self._folder.path)

    def write(self, state: RunState, reason: str | None, **more: bool) -> None:
        """Replace the run's status. If its folder was removed, exit, because nobody needs the run
        any more."""
        if not self._folder.specification.exists():
            sys.exit()
        self._folder.write_status(state, reason, start_time=self._start_time, **more)

    def end(self, state: RunState, reason: str) -> None:
        """Record how the run ended, in its folder and in the run store."""
        self.write(state, reason)
        with suppress(CloudtrainError), open_store(self._state_dir) as store:
            store.record(self._folder.name, RunStatus(state, reason, ended=time.time()))

    def _waits(self) -> bool:
        """Return whether any of the awaited runs is unfinished. An awaited run that itself waits
        counts as unfinished, even if its watcher has died."""
        self._end_if_stopped()
        for ref in self.order.after:
            try:
                state = self._service.status(ref).state
            except RunNotFound:
                state = RunState.LOST
            except TargetError as error:
                why = f"{self.order.reason}, whose status cannot be read: {error.message}"
                self.write(RunState.QUEUED, why)
                return True

            is_waiting = state is RunState.LOST and self._service.waiting(ref) is not None
            if is_waiting or not state.is_final:
                self.write(RunState.QUEUED, self.order.reason)
                return True
            if state is not RunState.SUCCEEDED:
                how = "failed" if state is RunState.FAILED else f"was {state}"
                why = f"the run `{ref.name}` {how}, so nothing was sent"
                raise WatchEnded(
                    RunState.FAILED, f"{why}; run it again, then submit this job again"
                )
        return False

    def _is_sent(self) -> bool:
        """Send the request if it was not sent before. Return False if the target could not be
        reached, so that the caller tries again."""
        order = self.order
        watch = Watch(on_run=lambda _: self._moment("accepted"))
        code = Archive(self._folder.archive, order.bundle)
        sending = make_delayed(order, self._target, code, watch=watch)
        try:
            self._send_once(
                self._folder.sending, sending, lambda name: service_of(name, self._service)
            )
        except (TargetUnreachable, StoreError) as error:
            self.write(RunState.QUEUED, f"waits until the run can be sent: {error.message}")
            return False
        return True

    def _send_once(self, home: Path, sending: Sending, find: ServiceOf) -> RunRecord:
        """Send a request through the run store in a folder, unless it was accepted before, and
        return its row. `find` returns the services of earlier submissions."""
        with open_store(home) as store:
            recover(store, find)
            rows = store.with_key(sending.key)
            if not rows:  # else the target may have the run already
                self._end_if_stopped()
            self._moment("recovered")
            if not rows or rows[0].stage not in SENT:
                send_once(store, sending, find)
                rows = store.with_key(sending.key)
        return rows[0]

    def _end_if_stopped(self) -> None:
        """Raise `WatchEnded` if `cloudtrain stop` was called."""
        if self._folder.stop.exists():
            raise WatchEnded(RunState.STOPPED, "stopped while it was waiting, so nothing runs")

    def _sleep(self) -> None:
        sleep_until_woken(self._wake, self._pause)
        self._pause = min(self._pause * 1.5, watch_interval() * _SLOWEST)


class ListWatcher(Watcher):
    """Sends the tries of one list, one after the other."""

    def __init__(self, folder: DrivenFolder, moment: Step) -> None:
        super().__init__(folder, moment)
        self._attempts = read_attempts(folder)

    def watch(self) -> None:
        """Wait for the runs that the list reads from, then try until one entry has capacity."""
        while self.order.after and not self._attempts and self._waits():
            self._sleep()
        self._moment("awaited")
        while not self._is_settled():
            pass
        self._moment("settled")
        self.write(RunState.PENDING, None, sent=True)
        self._moment("noted")
        if self._folder.stop.exists():
            ref = RunRef.parse(self._attempts[-1].ref)
            service_of(ref.target, self._service).stop(ref)

    def _is_settled(self) -> bool:
        """Do the next step, and return whether the newest try is the end of the list. If the run
        store cannot be used, wait until it can."""
        try:
            if not self._attempts or self._attempts[-1].over:
                self._begin()
                return False
            attempt = self._attempts[-1]
            if attempt.sent is None and not attempt.has_run:
                self._send(attempt)
                return False
            return attempt.has_run or self._has_run(attempt)
        except StoreError as error:
            self._wait(f"waits until the run store can be used: {error.message}")
            return False

    def _begin(self) -> None:
        """Begin the next try. Before the first one of a new round, pause."""
        self._end_if_stopped()
        count = len(self._attempts)
        tries = self.order.tries
        now = time.time()
        if count:
            last = self._attempts[-1]
            is_whole = count % len(tries) == 0
            if self._is_given_up() or (is_whole and self.order.give_up_after is None):
                reason = f"no capacity after {count} tries; the last, {last.what}: {last.over}"
                raise WatchEnded(RunState.FAILED, reason)
            resume = (last.ended or now) + _ROUND * watch_interval()
            if is_whole and now < resume:
                when = time.strftime("%H:%M", time.localtime(resume))
                self._wait(f"no try had capacity; begins again with {tries[0].what} at {when}")
                return
        item = tries[count % len(tries)]
        name = trial_name(self._folder.name, count + 1)
        ref = item.plan.ref._replace(name=name)
        self._attempts.append(Attempt(count + 1, item.what, str(ref), now))
        self._keep()
        self._pause = watch_interval()
        self._moment("began")

    def _send(self, attempt: Attempt) -> None:
        """Send a try, unless the target has it already. A target that refuses it for lack of
        capacity ends the try; one that does not answer blocks the list."""
        item = self._try_of(attempt)
        file = archive_in(self._folder, item.bundle, self.order.bundle)
        code = Archive(file, item.bundle)
        watch = Watch(on_run=lambda _: self._moment("accepted"))
        service = service_of(item.plan.target, self._service)
        sending = make_try(
            item,
            try_key(self._folder.name, attempt.number),
            lambda counter: trial_name(self._folder.name, attempt.number, counter),
            Outlay(*item.outlay, sweep=self._folder.name),
            self.order.submitter,
            service,
            code,
            watch=watch,
        )
        try:
            row = self._send_once(
                self._state_dir, sending, lambda name: find_service(name, self._service)
            )
        except (TargetUnreachable, StoreError) as error:
            self._wait(f"{self._course(attempt)}; waits until it can be sent: {error.message}")
        except CloudtrainError as error:
            self._refused(attempt, error)
        else:
            self._change(attempt, ref=str(row.ref), sent=time.time())
            self._moment("sent")

    def _refused(self, attempt: Attempt, error: CloudtrainError) -> None:
        """End a try whose request was refused. Raises WatchEnded if the reason is not capacity."""
        with open_store(self._state_dir) as store:
            rows = store.with_key(try_key(self._folder.name, attempt.number))
        words = _words_of(attempt)
        if rows:  # of an earlier request nothing is known
            self._wait(f"{self._course(attempt)}; it may have been sent: {error.message}")
        elif words is not None and words.tell_of_lack(error.message):
            self._finish(attempt, error.message)
        else:
            reason = in_words(error)
            self._change(attempt, leaving=reason, ended=time.time())
            raise WatchEnded(RunState.FAILED, f"try {attempt.number}, {attempt.what}: {reason}")

    def _has_run(self, attempt: Attempt) -> bool:
        """Return whether a try that was accepted is the end of the list."""
        ref = RunRef.parse(attempt.ref)
        service = service_of(ref.target, self._service)
        try:
            if self._folder.stop.exists():
                service.stop(ref)
                return self._settle(attempt)
            status = service.status(ref)
            if status.started is not None or status.state in _RUNS:
                return self._settle(attempt)
            if status.state.is_final:
                return self._has_ended(attempt, status)
            if not attempt.leaving:
                attempt = self._leave_if_due(attempt, status)
            if attempt.leaving:
                service.stop(ref)
                self._moment("stopped")
        except CloudtrainError as error:
            self._wait(f"{self._course(attempt)}; its status cannot be read: {error.message}")
        else:
            self._wait(self._course(attempt, status))
        return False

    def _has_ended(self, attempt: Attempt, status: RunStatus) -> bool:
        """Return whether a run that ended before it started is the end of the list."""
        was_left = bool(attempt.leaving) and status.state is RunState.STOPPED
        words = _words_of(attempt)
        if not was_left and (words is None or not words.ended_for_lack(status)):
            return self._settle(attempt)
        ref = RunRef.parse(attempt.ref)
        with open_store(self._state_dir) as store:
            store.record(ref.name, status)
            spent = Outlay(status.cost or 0.0, sweep=self._folder.name)
            store.spend(ref.name, ref.target, spent)
        self._moment("released")
        self._finish(attempt, attempt.leaving or status.reason or "no capacity")
        return False

    def _leave_if_due(self, attempt: Attempt, status: RunStatus) -> Attempt:
        """Return the try, which is left if it has waited for capacity as long as it may."""
        words = _words_of(attempt)
        if words is None or not words.are_of_waiting(status):
            return attempt
        wait = self._try_of(attempt).wait
        if wait is not None and time.time() >= (attempt.sent or 0.0) + wait:
            reason = f"no capacity within {format_duration(int(wait))}"
        elif self._is_given_up():
            reason = "no capacity before `give_up_after`"
        else:
            return attempt
        if status.reason:
            reason += f": {status.reason}"
        changed = self._change(attempt, leaving=reason)
        self._moment("leaving")
        return changed

    def _settle(self, attempt: Attempt) -> bool:
        """Record that a try is the end of the list."""
        self._change(attempt, has_run=True)
        return True

    def _finish(self, attempt: Attempt, reason: str) -> None:
        """Record that a try does not run and will not."""
        self._change(attempt, over=reason, ended=time.time())
        self._moment("over")

    def _is_given_up(self) -> bool:
        """Return whether the list has tried for as long as it may."""
        limit = self.order.give_up_after
        return limit is not None and time.time() >= self._attempts[0].began + limit

    def _course(self, attempt: Attempt, status: RunStatus | None = None) -> str:
        """Return what the list waits for, what comes next, and when."""
        tries = self.order.tries
        text = f"try {attempt.number} waits for capacity: {attempt.what}"
        if status is not None and status.reason:
            text += f" ({status.reason})"
        if attempt.leaving:
            text = f"try {attempt.number} is being stopped: {attempt.leaving}"

        wait = self._try_of(attempt).wait
        if wait is not None and attempt.sent is not None and not attempt.leaving:
            until = time.localtime(attempt.sent + wait)
            text += f"; until {time.strftime('%H:%M', until)}"
        is_last = attempt.number % len(tries) == 0
        if wait is None or (is_last and self.order.give_up_after is None):
            return text
        return f"{text}, then {tries[attempt.number % len(tries)].what}"

    def _try_of(self, attempt: Attempt) -> Try:
        return self.order.tries[(attempt.number - 1) % len(self.order.tries)]

    def _change(self, attempt: Attempt, **changes: object) -> Attempt:
        """Replace the newest try, on the disk too."""
        changed = replace(attempt, **changes)  # type: ignore[arg-type]  # of the right types
        self._attempts[-1] = changed
        self._keep()
        return changed

    def _keep(self) -> None:
        if self._folder.specification.exists():
            write_attempts(self._folder, self._attempts)

    def _wait(self, reason: str) -> None:
        self.write(RunState.QUEUED, reason)
        self._sleep()


def _words_of(attempt: Attempt) -> CapacityWords | None:
    """Return what tells a lack of capacity on the target of a try."""
    return part(target_of(RunRef.parse(attempt.ref).target), CapacityWords)
