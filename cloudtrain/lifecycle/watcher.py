"""The watcher of a waiting run: a detached process that checks other runs until they have
succeeded, and then sends the request.

The request is sent by `send_once`, through the watcher's own run store. If the watcher is killed
and started again, this store shows whether the target may already have the run.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from cloudtrain.errors import (
    CloudtrainError,
    RunNotFound,
    StoreError,
    TargetError,
    TargetUnreachable,
)
from cloudtrain.lifecycle.detached.driven import (
    GLANCE,
    Archive,
    DrivenFolder,
    Step,
    detach,
    sleep_until_woken,
    watch_interval,
    woken_by,
)
from cloudtrain.lifecycle.detached.waiting import ChainService, Order
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.submission.once import Watch, recover, send_once
from cloudtrain.lifecycle.submission.submit import make_delayed
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from cloudtrain.system.files import remove_folder
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.registry import service_of

_SLOWEST = 4.0
"""The longest pause between two checks, as a multiple of the first pause. Each pause is 1.5 times
the one before."""


class WatchEnded(Exception):
    """Ends the run before it is sent. Its arguments are the state and the reason to record."""


def main(arguments: list[str] | None = None) -> None:
    """Watch the run NAME until it is sent. `arguments` are `STATE_DIR NAME DESCRIPTOR`: when the
    watch has begun, this process reports it on the file descriptor DESCRIPTOR."""
    state_dir, name, ready = detach(arguments)
    watch(DrivenFolder(state_dir, ChainService.kind, name), ready)


def watch(
    folder: DrivenFolder,
    ready: Callable[[], None],
    moment: Step = lambda _: None,
    kind: type[Watcher] | None = None,
) -> None:
    """Wait for the runs that the run in `folder` waits for, then send its request. Do nothing if
    another process already watches it. `ready` is called when the watch has begun, and `moment` at
    each step with the name of the step. `kind` is the class of the watcher."""
    lock = ProcessLock.take(folder.lock, patience=GLANCE)
    if lock is None or not folder.specification.exists():
        return
    watcher = (kind or Watcher)(folder, moment)
    try:
        watcher.write(RunState.QUEUED, watcher.order.reason)
        ready()
        watcher.watch()
    except WatchEnded as end:
        watcher.end(*end.args)
    except CloudtrainError as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
        watcher.end(RunState.FAILED, reason)
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
        before = folder.read_status() or {}
        self._start_time = before.get("started") or time.time()
        self._wake = woken_by(signal.SIGTERM)
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
                raise self._failed(ref.name, "is gone") from None
            except TargetError as error:
                why = f"{self.order.reason}, whose status cannot be read: {error.message}"
                self.write(RunState.QUEUED, why)
                return True

            is_waiting = state is RunState.LOST and self._service.waiting(ref) is not None
            if is_waiting or not state.is_final:
                self.write(RunState.QUEUED, self.order.reason)
                return True
            if state is RunState.FAILED:
                raise self._failed(ref.name, "failed")
            if state is not RunState.SUCCEEDED:
                raise self._failed(ref.name, f"was {state}")
        return False

    def _is_sent(self) -> bool:
        """Send the request if it was not sent before. Return False if the target could not be
        reached, so that the caller tries again."""
        order = self.order
        watch = Watch(on_run=lambda _: self._moment("accepted"))
        code = Archive(self._folder.archive, order.bundle)
        sending = make_delayed(order, self._target, code, watch=watch)
        try:
            with open_store(self._folder.sending) as store:
                recover(store, lambda name: service_of(name, self._service))
                stages = {row.stage for row in store.with_key(order.key)}
                if not stages:  # else the target may have the run already
                    self._end_if_stopped()
                self._moment("recovered")
                if not stages & {"accepted", "reported"}:
                    send_once(store, sending, lambda name: service_of(name, self._service))
        except (TargetUnreachable, StoreError) as error:
            self.write(RunState.QUEUED, f"waits until the run can be sent: {error.message}")
            return False
        return True

    def _end_if_stopped(self) -> None:
        """Raise `WatchEnded` if `cloudtrain stop` was called."""
        if self._folder.stop.exists():
            raise WatchEnded(RunState.STOPPED, "stopped while it was waiting, so nothing was sent")

    def _failed(self, name: str, why: str) -> WatchEnded:
        """Return the end of this run because of an awaited run."""
        reason = (
            f"the run `{name}` {why}, so nothing was sent; run it again, then submit this job again"
        )
        return WatchEnded(RunState.FAILED, reason)

    def _sleep(self) -> None:
        """Sleep until the next check is due, or until SIGTERM."""
        sleep_until_woken(self._wake, self._pause)
        self._pause = min(self._pause * 1.5, watch_interval() * _SLOWEST)
