"""The supervisor: one detached process per run, which starts, watches and ends the run's processes.

    queued       only for runs that must wait: waits for other runs to succeed (`waiting.py`), then
                 for GPUs or CPU slots (`waiting.py`), or until it is asked to stop
    preparing    unpacks the code, makes folders, picks ports
    running      starts the processes, copies their output, and watches which process ends, and how
    stopping     after a stop request or `max_runtime`: sends SIGTERM, and SIGKILL after the grace
                 period
    final        kills remaining processes, reads the rest of the output, and writes the final
                 status

If the run's folder is removed, the supervisor kills the run's processes and writes nothing: nobody
could find or stop this run any more, and a folder at the same path belongs to another run.

The supervisor must start quickly, so it imports modules only when it needs them.
"""

# Paths are strings here, because this module must start and poll quickly.
from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module

from cloudtrain.system.private import UMASK
from cloudtrain.system.processes import HAS_PROC, Owner, ProcessLock, process_table
from cloudtrain.targets.local.folder import FORCED, QUEUED, RunFolder, new_status

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from cloudtrain.runtime.machine_watch import MachineWatch
    from cloudtrain.targets.common.specification import LaunchSpecification
    from cloudtrain.targets.local.hangs import RunWatch
    from cloudtrain.targets.local.output import RunOutput
    from cloudtrain.targets.local.processes import Exits, Launched, RankTable
    from cloudtrain.targets.local.verdict import Deaths
    from cloudtrain.targets.local.waiting import QueuePlace

_STOP_WHEN_STALLED = "CLOUDTRAIN_STOP_WHEN_STALLED"

_TICK = 0.05
"""Seconds between two reads of the output. The end of a process wakes the supervisor at once."""

_FAILURE_GRACE = 3.0
"""Seconds from SIGTERM to SIGKILL once the run has failed."""

_CULPRIT_GRACE = 3.0
"""Seconds that the other processes have to end with an error of their own, while all failures so
far are those of ranks that lost another rank. SIGTERM would end the rank that they lost before it
has named its error."""

_FINISHED_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL for processes that never exit, such as parameter servers, once
the others have succeeded."""

_READS = 10
"""Maximum number of reads of the output before it is asked why a process failed."""

_PUBLISH_EVERY = 0.5
"""Minimum number of seconds between two status updates that change only metrics."""

OWN = RunFolder(".")
"""The run's folder as the working folder of this process. If the folder is removed, a path may lead
to another run's folder, but the working folder does not."""

_SOON = ("hangs", "output", "processes", "verdict")
"""Modules that a run imports when it starts. A waiting run imports them while it waits."""


class NotStarted(Exception):
    """The run ends before its processes have started: in the state `failed`, or `stopped` if a run
    that it waited for did not succeed. The message becomes the reason in the run's status."""

    def __init__(self, reason: str, state: str = "failed") -> None:
        super().__init__(reason)
        self.state = state


class FolderGone(BaseException):
    """The run's folder was removed, or another folder took its place."""


_ENDED = {"failed": "failed", "stopped": "was stopped", "lost": "was lost", "gone": "is gone"}


class Ending:
    """How the run will end: its final state, the reason, and the time at which remaining processes
    are killed."""

    def __init__(self, state: str, reason: str | None, kill_at: float) -> None:
        self.state = state
        self.reason = reason
        self.kill_at = kill_at
        self.killed = 0
        """Number of processes that had to be killed."""


class Supervisor:
    def __init__(
        self,
        folder: RunFolder,
        lock: ProcessLock,
        owner: Owner,
        umask: int,
        *,
        is_queued: bool = False,
    ) -> None:
        """The working folder of this process must be the run's folder."""
        self.folder = folder
        self.lock = lock
        self.umask = umask
        """The submitter's umask, which the run's processes get."""
        self.is_queued = is_queued
        self.token = os.urandom(16).hex()
        self.status = new_status(owner, time.time(), token=self.token, is_queued=is_queued)
        self.spec: LaunchSpecification
        self.launched: list[Launched] = []
        self.ending: Ending | None = None
        self.output: RunOutput
        self.ranks: RankTable
        self.exits: Exits
        self.deaths: Deaths
        self.hangs: RunWatch
        self._machine: MachineWatch
        self._asked_to_stop = False
        self._fail_at: float | None = None
        self._stop_at: float | None = None
        self._published_at = 0.0
        self._guard: int | None = None
        self._place: QueuePlace | None = None
        self._not_queued: str | None = None
        self._gpus: tuple[str, ...] = ()

    def ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Record a request to stop. This is a signal handler; the watch loop acts on the
        request."""
        self._asked_to_stop = True
        if self._place is not None:
            self._place.ring()

    def enter_queue(self) -> None:
        """Enter the queue before the submitter learns that the run exists. If this fails, `run`
        reports the error. A run that waits for other runs enters the queue only after they have
        ended."""
        try:
            self.spec = self.folder.read_launch()
            if self.spec.after:
                self._publish(reason=f"waits for {', '.join(self.spec.after)}")
                return
            self._stand_in_queue()
        except Exception as error:  # noqa: BLE001 - of the disk, or of launch.json
            self._not_queued = f"could not enter the queue: {_words(error)}"

    def _stand_in_queue(self) -> None:
        """Enter the queue for the GPUs or CPU slots that the run needs."""
        assert self.spec.queue is not None, "the submitter has looked"
        self._place = self._new_place()
        self._place.enter(self.spec.queue)

    def _new_place(self) -> QueuePlace:
        from cloudtrain.targets.local.waiting import QueuePlace

        return QueuePlace(os.path.basename(self.folder.path))

    def run(self) -> None:
        """Run to the final status. If the folder is removed, kill the processes and write
        nothing."""
        try:
            self._run()
        except FolderGone:
            self._sweep()
            self._tell_guard("done")

    def _run(self) -> None:
        try:
            if self.is_queued and not self._wait():
                self._close(
                    "stopped", reason="stopped on request while it was queued; nothing had started"
                )
                return
            self._guard = _start_guard(self.folder.path, self.token)
            self._start()
            self._watch()
            self._conclude()
        except NotStarted as error:
            self._close(error.state, reason=str(error))
        # whatever it is, no process may be left and the run must end
        except Exception as error:  # noqa: BLE001
            import traceback

            _say(traceback.format_exc())
            reason = f"the supervisor failed: {_words(error)}"
            self._close("failed", reason=reason, details=traceback.format_exc().splitlines()[-5:])

    # queued

    def _wait(self) -> bool:
        """Return False if the run is asked to stop. The code is unpacked first, so that the bundle
        may be removed while the run waits, and the run starts at once."""
        if self._not_queued is not None:
            raise NotStarted(self._not_queued)
        self._prepare()

        if self.spec.after:
            if not self._wait_for_runs():
                return False
            if self.spec.queue is not None:
                self._stand_in_queue()
        for name in _SOON:
            import_module(f"{__package__}.{name}")

        if self._place is not None:
            gpus = self._place.wait(self._must_stop)
            if gpus is None:
                return False
            self._gpus = gpus
        self._publish(state="preparing", started=time.time(), reason=None)
        # a run that has got its GPUs or slots is not queued any more: `_start` sees the request
        return self._place is not None or not self._asked_to_stop

    def _must_stop(self) -> bool:
        """Return whether the run was asked to stop. Raises `FolderGone`."""
        self._check_folder()
        return self._asked_to_stop

    def _wait_for_runs(self) -> bool:
        """Return False if this run is asked to stop. Raises `NotStarted` if one of the runs did not
        succeed."""
        from cloudtrain.targets.local.waiting import wait_for_end

        for name in self.spec.after:
            state = wait_for_end(f"../{name}", self._must_stop)
            if state is None:
                return False
            if state != "succeeded":
                raise NotStarted(
                    f"cancelled: it waited for `{name}`, which {_ENDED.get(state, state)}",
                    "stopped",
                )
        return True

    # preparing

    def _prepare(self) -> None:
        """Make the folders and files, and unpack the code. Raises `NotStarted`."""
        from cloudtrain.targets.local import prepare

        try:
            self.spec = self.folder.read_launch()
            prepare.make_folders(self.spec, self.folder.logs, umask=self.umask)
            prepare.make_files(self.spec)
            prepare.unpack_code(self.spec, self.folder.unpacked)
        except Exception as error:
            raise NotStarted(f"could not prepare the run: {_words(error)}") from error

    def _start(self) -> None:
        """Start the processes. Raises `NotStarted`."""
        from cloudtrain.targets.local import prepare

        if not self.is_queued:
            self._prepare()
        try:
            # only now, when the runs that write the inputs have ended
            prepare.link_shares(self.spec)
        except Exception as error:
            raise NotStarted(f"could not prepare the run: {_words(error)}") from error

        from cloudtrain.targets.local.hangs import RunWatch
        from cloudtrain.targets.local.output import RunOutput
        from cloudtrain.targets.local.processes import TOKEN, Exits, RankTable
        from cloudtrain.targets.local.verdict import Deaths

        self.exits = Exits()
        self.ranks = RankTable(self.exits)
        self.deaths = Deaths(self.spec)
        self.output = RunOutput(self.folder, self.spec, self.ranks.rank_of)

        ports = prepare.Ports(self.spec.ports)
        shares = prepare.shares_of(self._gpus, self.spec.instances)
        environ = {**os.environ, TOKEN: self.token}
        commands = [
            prepare.command_of(process, ports.numbers, environ, shares)
            for process in self.spec.processes
        ]
        ports.release()

        environments = [environment for _, environment in commands]
        self._look_up_secrets(environments)
        gpus = prepare.taken_gpus(self.spec, environments)
        if self._place is None and gpus:
            # the run has not waited for them, and waiting runs shall leave them alone
            place = self._new_place()
            try:
                place.hold(gpus)
                self._place = place
            except OSError as error:
                _say(f"this run could not be recorded in the queue: {error}")

        if not self._asked_to_stop:
            for index, (argv, environment) in enumerate(commands):
                self._launch(index, argv, environment)
        self.hangs = RunWatch(OWN, self.ranks, self.launched)
        self._publish(state="running")
        if self.spec.max_runtime:
            self._stop_at = time.monotonic() + self.spec.max_runtime
        # only now, when the processes have started
        from cloudtrain.runtime.machine_watch import start_watch, written_folders

        # instances that this machine simulates are one machine
        self._machine = start_watch(
            self.folder.metrics,
            folders=[*written_folders(), *self.spec.directories],
            gpus=gpus or None,
            psutil=None if HAS_PROC else process_table(),
        )

    def _look_up_secrets(self, environments: list[dict[str, str]]) -> None:
        """Add the job's secrets to the environments, and hide their values in the output. Raises
        `NotStarted` if a secret cannot be read."""
        if not any("CLOUDTRAIN_SECRETS" in environment for environment in environments):
            return
        import site

        from cloudtrain.runtime.errors import SetupError
        from cloudtrain.runtime.secret_values import forms_of, resolved

        site.main()  # a secret may need an SDK, and this process started without installed packages
        secrets: dict[str, str] = {}
        try:
            for environment in environments:
                # all processes have the same secrets, so one that names them is enough
                secrets = secrets or resolved(environment)
        except SetupError as error:
            raise NotStarted(_words(error)) from None
        for environment in environments:
            environment.update(secrets)
        self.output.hidden = forms_of(secrets)

    def _launch(self, index: int, argv: list[str], environment: dict[str, str]) -> None:
        from cloudtrain.targets.local.processes import launch

        process = self.spec.processes[index]
        try:
            item = launch(
                process,
                index,
                logs=self.folder.logs,
                directory=process.directory or self.spec.code.directory,
                argv=argv,
                environment=environment,
                umask=self.umask,
            )
        except OSError as error:
            raise NotStarted(f"could not start `{argv[0]}`: {error.strerror}") from error
        self.launched.append(item)
        self.exits.add(item.pid)
        self._tell_guard(f"+{item.pid}")

    # running

    def _watch(self) -> None:
        """Follow the processes until all have ended."""
        while self._is_running():
            self._check_folder()
            has_more = self.output.pump()
            for pid in self.exits.wait(0 if has_more else _TICK):
                self._note_end(pid)
            self._note_launched()
            self._discover()
            self._end_or_kill(time.monotonic())
            self._publish_news()

    def _is_running(self) -> bool:
        """Return whether a process still runs. While the run ends, also wait for what the processes
        have started."""
        if any(item.exit_code is None for item in self.launched):
            return True
        return self.ending is not None and any(item.is_leaving() for item in self.launched)

    def _discover(self) -> None:
        """Find new ranks below the launchers, and tell the guard about them."""
        if self.spec.launcher == "fork":
            new = self.ranks.announced(self.folder.logs, self.spec.instances)
        else:
            alive = (item for item in self.launched if item.rank is None and item.exit_code is None)
            new = self.ranks.discover((item.pid, item.instance) for item in alive)
        for rank in new:
            self.deaths.started(rank.rank)
            self._tell_guard(f"+{rank.pid}")

    def _note_end(self, pid: int) -> None:
        """Record the end of a rank; ignore other processes. If the launcher will not restart it,
        the run fails after the time that the launcher has to notice."""
        end = self.ranks.ended(pid)
        if end is None:
            return
        rank, exit_code = end
        self._tell_guard(f"-{pid}")
        self.deaths.ended(rank, exit_code)
        if exit_code and rank.is_last and self._fail_at is None:
            self.hangs.end()
            self._fail_at = time.monotonic() + self.spec.patience

    def _note_launched(self) -> None:
        """Look which of the started processes have ended, and end the run if it cannot go on, or if
        it has done its work."""
        for item in self.launched:
            if not item.poll():
                continue
            if item.is_empty:
                self._tell_guard(f"-{item.pid}")
            if item.rank is not None:
                self.deaths.ended(item, item.exit_code)
            if self.ending is not None:
                continue
            if item.exit_code:
                self._note_failure(item)
                continue

            # other processes, such as parameter servers, never exit
            roles = self.spec.finishes
            finishing = [other for other in self.launched if other.role in roles]
            if roles and all(other.exit_code == 0 for other in finishing):
                self._end("succeeded", None, _FINISHED_GRACE)

    def _note_failure(self, process: Launched) -> None:
        """End the run, but not before the process that caused the failure has named its error."""
        assert process.exit_code is not None
        if process.exit_code < 0 and process.rank is None:
            self.deaths.launcher_was_killed(process)
        if not self._awaits_culprit(process):
            self._end("failed", None, _FAILURE_GRACE)
        elif self._fail_at is None:
            self._fail_at = time.monotonic() + _CULPRIT_GRACE

    def _awaits_culprit(self, process: Launched) -> bool:
        """Return whether the process failed because of another one, which has not ended yet."""
        if process.exit_code != 1 or all(item.exit_code is not None for item in self.launched):
            return False
        for _ in range(_READS):
            if not self.output.pump(at_once=True):
                break
        return self.deaths.are_consequences(self.output)

    def _end_or_kill(self, now: float) -> None:
        """End the run if it was asked to stop or its time is over. If it already ends and the grace
        period is over, kill what is left."""
        if self.ending is not None:
            if now >= self.ending.kill_at:
                self.ending.killed += self._sweep()
                # a process that is stuck in the kernel survives SIGKILL: try again later
                self.ending.kill_at = now + _FAILURE_GRACE
            return

        grace = self.spec.grace_period
        if self._asked_to_stop:
            self._end("stopped", "stopped on request", grace)
        elif self._stop_at is not None and now >= self._stop_at:
            reason = f"stopped after its max_runtime of {self.spec.max_runtime} s"
            self._end("stopped", reason, grace)
        elif self._has_idled():
            reason = f"stopped after its GPUs idled for {self.spec.stop_when_idle} s"
            self._end("stopped", f"{reason} (`stop_when_idle`)", grace)
        elif self._is_stalled_for_long():
            hang = self.hangs.hang
            reason = "stopped as `stop_when_stalled` asks"
            self._end("stopped", f"{reason}: {hang.text}" if hang else reason, grace)
        elif self._fail_at is not None and now >= self._fail_at:
            self._end("failed", None, _FAILURE_GRACE)

    def _has_idled(self) -> bool:
        """Return whether the GPUs were idle for as long as the job allows."""
        limit = self.spec.stop_when_idle
        return limit is not None and self._machine.alarms.idle_seconds >= limit

    def _is_stalled_for_long(self) -> bool:
        """Return whether the run has been stalled for as long as the job allows."""
        limit = self.spec.processes[0].env.get(_STOP_WHEN_STALLED)
        return limit is not None and self.hangs.stalled_for() >= float(limit)

    def _end(self, state: str, reason: str | None, grace: float) -> None:
        """Ask all processes to exit within `grace` seconds. `state` becomes the final state."""
        self.ending = Ending(state, reason, time.monotonic() + grace)
        if state == "stopped":
            self._publish(state="stopping", reason=reason)
        for item in self.launched:
            item.terminate(self.ranks.pids(item.instance))

    # the end

    def _conclude(self) -> None:
        """Derive the final state from how the processes ended, and write it."""
        if self.ending is None and self._asked_to_stop:
            self.ending = Ending("stopped", "stopped on request", 0)
        elif self.ending is None and any(item.exit_code for item in self.launched):
            self.ending = Ending("failed", None, 0)
        self._sweep()
        self.output.drain()

        marker = self.folder.read_preempted()
        note = None
        if marker is not None:
            step = marker.get("step")
            note = "; the script saved and left" + (f" at step {step}" if step is not None else "")

        if self.ending is not None and self.ending.state == "stopped":
            force = f"; {FORCED}" if self.ending.killed else ""
            self._close("stopped", reason=f"{self.ending.reason}{note or ''}{force}")
        # The launcher's exit code does not show whether a rank failed: it is nonzero even if
        # SIGTERM ended all ranks.
        elif note is not None and all(
            death.exit_code == -signal.SIGTERM
            for death in self.deaths.of_newest_attempt(self.output)
        ):
            self._close("stopped", reason=f"stopped by a signal from outside{note}")
        elif self.ending is not None and self.ending.state == "failed":
            verdict = self.deaths.verdict(self.output, self.launched, self.hangs.hang)
            self._close(
                "failed",
                reason=verdict.reason,
                details=verdict.details,
                failed_rank=verdict.rank,
                exit_code=verdict.exit_code,
            )
        else:
            self._close("succeeded", exit_code=0)

    def _close(self, state: str, **changes: Any) -> None:
        """Kill remaining processes, complete the journal, and write the final status."""
        self._sweep()
        try:
            if hasattr(self, "output"):
                self.output.drain()
                changes.update(metrics=self.output.metrics, restarts=self.output.restarts)
        except OSError as error:
            _say(f"the output is incomplete: {error}")
        self._publish(state=state, ended=time.time(), **changes)
        self._tell_guard("done")
        if self._place is not None:
            self._place.leave()

    def _sweep(self) -> int:
        """Kill the run's remaining processes. Return how many there were."""
        from cloudtrain.targets.local import processes as killing

        if not self.launched:
            return killing.kill_run(self.token)
        # ids of ranks that have ended may belong to other processes by now
        for pid in self.exits.wait(0):
            self._note_end(pid)
        pids = [item.pid for item in self.launched if not item.is_empty]
        return killing.kill_run(self.token, [*pids, *self.ranks.pids()])

    # status updates

    def _publish(self, **changes: Any) -> None:
        """Write the status with these changes. Raises `FolderGone`."""
        self.status.update(changes)
        self._published_at = time.monotonic()
        self._check_folder()
        OWN.write_status(self.status)

    def _check_folder(self) -> None:
        """Raises `FolderGone`."""
        if not self.lock.is_in_place():
            raise FolderGone

    def _publish_news(self) -> None:
        """Write new metrics and restarts, but not too often."""
        news = {"metrics": dict(self.output.metrics), "restarts": self.output.restarts}
        is_news = any(self.status[name] != value for name, value in news.items())
        if is_news and time.monotonic() - self._published_at >= _PUBLISH_EVERY:
            self._publish(**news)
            self.hangs.note_metrics()

    def _tell_guard(self, line: str) -> None:
        """Write a line to the guard, in the words of `guard.py`."""
        if self._guard is None:
            return
        try:
            os.write(self._guard, f"{line}\n".encode("ascii"))
        except OSError:  # the guard was killed
            os.close(self._guard)
            self._guard = None


def main(arguments: list[str]) -> None:
    """Supervise the run. The arguments are `RUN_DIR DESCRIPTOR [queued]`. The supervisor writes `1`
    to the descriptor when it has taken over the run, or `0` if another supervisor has taken it
    over."""
    if os.fork():
        os._exit(0)  # the submitter waits for this process; nobody needs to wait for the other
    from pathlib import Path

    os.chdir(arguments[0])
    ready = int(arguments[1])
    umask = os.umask(UMASK)
    lock = ProcessLock.take(Path(OWN.lock))
    if lock is None or os.path.exists(OWN.status):
        _answer(ready, b"0")
        return
    supervisor = Supervisor(
        RunFolder(arguments[0]), lock, Owner.of("."), umask, is_queued=arguments[2:] == [QUEUED]
    )
    signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
    for number in (signal.SIGINT, signal.SIGHUP):
        # not SIG_IGN, which the run's processes would inherit
        signal.signal(number, lambda *_: None)
    if not os.path.exists(OWN.launch):
        return  # the submitter died, and the submission was withdrawn (`service.py`)
    # from here on the run exists, even if the submitter has died
    OWN.write_status(supervisor.status)
    if supervisor.is_queued:
        supervisor.enter_queue()
    _answer(ready, b"1")
    os.close(ready)
    supervisor.run()
    lock.release()


def _answer(ready: int, word: bytes) -> None:
    """Write the answer to the submitter's pipe. Ignore a submitter that has ended."""
    try:
        os.write(ready, word)
    except BrokenPipeError:
        return


def _start_guard(run_dir: str, token: str) -> int:
    """Start the guard. Return the write end of its pipe, which must stay open."""
    import subprocess

    from cloudtrain.targets.local.folder import command

    reader, writer = os.pipe()
    subprocess.Popen(
        command("guard", run_dir, token, str(reader)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(reader,),
        start_new_session=True,
    )
    os.close(reader)
    return writer


def _say(text: str) -> None:
    """Write a line to supervisor.log. Ignore a full disk."""
    try:
        sys.stderr.write(f"{text}\n")
    except OSError:
        return


def _words(error: Exception) -> str:
    """Describe an error in one line: message and hint of cloudtrain's own errors, otherwise the
    error's text."""
    hint = getattr(error, "hint", None)
    message = str(getattr(error, "message", error)) or type(error).__name__
    return f"{message}; {hint}" if hint else message
