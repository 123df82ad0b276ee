"""The watcher of a list of alternatives: sends one try after the other, until one has capacity. The
design stands in `lifecycle/capacity/service.py`."""

from __future__ import annotations

import time
from dataclasses import replace

from cloudtrain.errors import (
    CloudtrainError,
    StoreError,
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
    Archive,
    DrivenFolder,
    Step,
    detach,
    watch_interval,
)
from cloudtrain.lifecycle.detached.waiting import ChainService, Try
from cloudtrain.lifecycle.store.records import Outlay
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.lifecycle.submission.once import Watch, find_service, recover, send_once
from cloudtrain.lifecycle.submission.submit import make_try
from cloudtrain.lifecycle.sweeps.service import trial_name
from cloudtrain.lifecycle.watcher import WatchEnded, Watcher, watch
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.system.plugins import part
from cloudtrain.targets.capacity import CapacityWords
from cloudtrain.targets.registry import service_of, target_of

_RUNS = (RunState.RUNNING, RunState.SUCCEEDED)

_ROUND = 10.0
"""The pause before the list begins again, as a multiple of the first pause between two checks."""


def main(arguments: list[str] | None = None) -> None:
    """Drive the list NAME until one of its tries runs. `arguments` are those of
    `lifecycle.watcher.main`."""
    state_dir, name, ready = detach(arguments)
    watch(DrivenFolder(state_dir, ChainService.kind, name), ready, kind=ListWatcher)


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

    def _end_if_stopped(self) -> None:
        if self._folder.stop.exists():
            raise WatchEnded(
                RunState.STOPPED, "stopped while it waited for capacity, so nothing runs"
            )

    def _is_settled(self) -> bool:
        """Do the next step, and return whether the newest try is the end of the list. If the run
        store cannot be used, wait until it can."""
        try:
            return self._next_step()
        except StoreError as error:
            self._wait(f"waits until the run store can be used: {error.message}")
            return False

    def _next_step(self) -> bool:
        if not self._attempts or self._attempts[-1].over:
            self._begin()
            return False
        attempt = self._attempts[-1]
        if attempt.has_run:
            return True
        if attempt.sent is None:
            self._send(attempt)
            return False
        return self._has_run(attempt)

    def _begin(self) -> None:
        """Begin the next try. Before the first one of a new round, pause."""
        self._end_if_stopped()
        count = len(self._attempts)
        tries = self.order.tries
        now = time.time()
        if count and self._is_given_up():
            raise self._exhausted()
        if count and count % len(tries) == 0:
            if self.order.give_up_after is None:
                raise self._exhausted()
            resume = (self._attempts[-1].ended or now) + _ROUND * watch_interval()
            if now < resume:
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
            with open_store(self._state_dir) as store:
                recover(store, lambda name: find_service(name, self._service))
                rows = store.with_key(sending.key)
                if not rows:  # else the target may have the run already
                    self._end_if_stopped()
                self._moment("recovered")
                if not rows or rows[0].stage not in ("accepted", "reported"):
                    send_once(store, sending, lambda name: find_service(name, self._service))
                    rows = store.with_key(sending.key)
        except (TargetUnreachable, StoreError) as error:
            self._wait(f"{self._course(attempt)}; waits until it can be sent: {error.message}")
        except CloudtrainError as error:
            self._refused(attempt, error)
        else:
            self._change(attempt, ref=str(rows[0].ref), sent=time.time())
            self._moment("sent")

    def _refused(self, attempt: Attempt, error: CloudtrainError) -> None:
        """End a try whose request was refused. Raises WatchEnded if the reason is not capacity."""
        with open_store(self._state_dir) as store:
            rows = store.with_key(try_key(self._folder.name, attempt.number))
        if rows:  # of an earlier request nothing is known
            self._wait(f"{self._course(attempt)}; it may have been sent: {error.message}")
        elif self._lacks(attempt, error.message):
            self._finish(attempt, error.message)
        else:
            hint = f"; {error.hint}" if error.hint else ""
            reason = f"{error.message}{hint}"
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
        words = part(target_of(RunRef.parse(attempt.ref).target), CapacityWords)
        if not was_left and (words is None or not words.ended_for_lack(status)):
            return self._settle(attempt)
        with open_store(self._state_dir) as store:
            name = RunRef.parse(attempt.ref).name
            store.record(name, status)
            spent = Outlay(status.cost or 0.0, sweep=self._folder.name)
            store.spend(name, RunRef.parse(attempt.ref).target, spent)
        self._moment("released")
        self._finish(attempt, attempt.leaving or status.reason or "no capacity")
        return False

    def _leave_if_due(self, attempt: Attempt, status: RunStatus) -> Attempt:
        """Return the try, which is left if it has waited for capacity as long as it may."""
        words = part(target_of(RunRef.parse(attempt.ref).target), CapacityWords)
        if words is None or not words.are_of_waiting(status):
            return attempt
        wait = self._try_of(attempt).wait
        reason = ""
        if wait is not None and time.time() >= (attempt.sent or 0.0) + wait:
            reason = f"no capacity within {format_duration(int(wait))}"
        elif self._is_given_up():
            reason = "no capacity before `give_up_after`"
        if reason and status.reason:
            reason += f": {status.reason}"
        if not reason:
            return attempt
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

    def _lacks(self, attempt: Attempt, text: str) -> bool:
        words = part(target_of(RunRef.parse(attempt.ref).target), CapacityWords)
        return words is not None and words.tell_of_lack(text)

    def _is_given_up(self) -> bool:
        """Return whether the list has tried for as long as it may."""
        limit = self.order.give_up_after
        return limit is not None and time.time() >= self._attempts[0].began + limit

    def _exhausted(self) -> WatchEnded:
        last = self._attempts[-1]
        count = len(self._attempts)
        reason = f"no capacity after {count} tries; the last, {last.what}: {last.over}"
        return WatchEnded(RunState.FAILED, reason)

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
