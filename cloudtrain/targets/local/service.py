"""The service for runs on this machine. Each run is a folder and a detached supervisor."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import (
    CloudtrainError,
    NameTaken,
    RunNotFound,
    TargetError,
    TargetUnreachable,
    UsageError,
    counted,
)
from cloudtrain.plans.plan import Plan, Upload
from cloudtrain.plans.progress import ListedRun, LogLine, OnStatus, QueuedRun, RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.runtime.errors import SetupError
from cloudtrain.signals.log import JournalIndex, Log, LogBatch
from cloudtrain.signals.notices import read_notices
from cloudtrain.system.files import KEPT
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.system.private import make_private_folder, make_state_folder, write_once
from cloudtrain.system.processes import (
    Owner,
    ProcessLock,
    is_held,
    start_detached,
    tell,
)
from cloudtrain.targets.common import services
from cloudtrain.targets.common.archives import copy_places, put_archive, unpacked
from cloudtrain.targets.common.launch import host_name
from cloudtrain.targets.common.specification import LaunchSpecification, QueueNeed
from cloudtrain.targets.contract import BundleWriter, ByteProgress, Service
from cloudtrain.targets.local.folder import FINAL, QUEUED, RunFolder, command, run_folder
from cloudtrain.targets.local.inside import enter
from cloudtrain.targets.local.processes import RUN_DIR, is_folder_in_use
from cloudtrain.targets.local.queueing import Queue, QueueOrder, Waiting

if TYPE_CHECKING:
    from cloudtrain.runtime.hangs.verdict import Look
    from cloudtrain.targets.inside import ExecRequest, Session


class _OldJournal(Log[LogLine]):
    """The journal of a run that an earlier version started: a JSON object for each line. One that
    is still being written is read by the next call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> Iterator[LogLine]:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for record in file:
                if not record.endswith(b"\n"):
                    return
                self._offset += len(record)
                # others are marks, or were damaged by a power failure
                with suppress(ValueError, KeyError):
                    fields = json.loads(record)
                    yield LogLine(*[fields[name] for name in LogLine._fields])


# The files that a script wrote into its working folder, such as `out/last.pt`.
#
# The working folder is the code folder, so files newer than the unpacked code come from the script.
# This module compares the change time of each file, which programs cannot set, with the change time
# of the file `unpacked`, which was created after unpacking. Where an emulated host unpacks the code
# later, it compares the time of the last write, which is 1980 for every file of a bundle.

NAME = "work"
"""The name of these files for `cloudtrain download`."""

_NOT_RESULTS = frozenset(
    ("__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache")
)


def files_of(run_name: str, state_dir: Path) -> dict[str, Path]:
    """Return the `working_files` of a run. Raises `TargetError` if its folder is missing or
    damaged."""
    folder = RunFolder(str(run_folder(run_name, state_dir)))
    return working_files(_read_here(folder), Path(folder.unpacked))


def _finish(folder: RunFolder, *, may_kill: bool) -> None:
    """Write the final status of a run whose supervisor was killed. Raises OSError if the run's
    folder cannot be written."""
    # which is rare
    from cloudtrain.targets.local.verdict import finish

    finish(folder.path, may_kill=may_kill)


def _read_here(folder: RunFolder) -> LaunchSpecification:
    """Return the run's specification with the paths that its files have now: the folder may have
    been moved since, or be a copy. Raises `TargetError`."""
    spec = folder.read_launch()
    if spec.run_dir == folder.path:
        return spec
    content = json.dumps(spec.to_json(), ensure_ascii=False)
    planned = json.dumps(spec.run_dir, ensure_ascii=False)[1:-1]
    here = json.dumps(folder.path, ensure_ascii=False)[1:-1]
    # `runs/a-1` is not the beginning of `runs/a-12`
    moved = re.sub(rf"{re.escape(planned)}(?![\w-])", lambda _: here, content)
    return LaunchSpecification.from_json(json.loads(moved))


def working_files(spec: LaunchSpecification, marker: Path) -> dict[str, Path]:
    """Map the path of each new or changed file, relative to the working folder, to the file. If
    several emulated hosts have a file with the same path, the last host's file is used. Without the
    file `marker` the result is empty."""
    try:
        since = marker.stat().st_ctime_ns
    except FileNotFoundError:  # nothing was unpacked yet, or by an earlier version
        return {}
    code = spec.code
    folders: dict[str, str] = {}
    if code.directory is not None:
        folders[code.directory] = "st_ctime_ns"
    folders |= dict.fromkeys(code.copies or (), "st_ctime_ns")
    folders |= dict.fromkeys(code.unpacked or (), "st_mtime_ns")

    # what the run saves elsewhere is no working file
    places: set[str] = set()
    for paths in spec.downloads().values():
        places.update(map(str, paths))

    files: dict[str, Path] = {}
    for folder, clock in folders.items():
        files.update(_newer(folder, since, places, clock))
    return files


def _newer(root: str, since: int, places: Iterable[str], clock: str) -> Iterator[tuple[str, Path]]:
    """Yield path below `root` and file of all files whose time `clock` is later than `since`.
    Leaves out the folders in `places`, and links to folders, which can lead out of `root`."""
    for folder, folders, names in os.walk(root):
        kept = [name for name in folders if name not in _NOT_RESULTS]
        folders[:] = sorted(name for name in kept if f"{folder}/{name}" not in places)
        for name in sorted(names):
            file = Path(folder, name)
            try:
                changed = getattr(file.lstat(), clock)
                is_file = stat.S_ISREG(file.stat().st_mode)
            except OSError:  # removed meanwhile, or a link to nowhere
                continue
            if is_file and changed > since:
                yield file.relative_to(root).as_posix(), file


def standing(run_dir: str) -> dict[str, Any]:
    """Return the fields of a queued run's status that come from the queue. For a waiting run, they
    are its position and a reason that says what it waits for. For a run that holds GPUs or slots,
    or that was dropped, the only field is the state that its supervisor will record next. Return an
    empty dict if the run is not in the queue."""
    queue = Queue.of(run_dir)
    name = run_dir.rpartition("/")[2]
    order = queue.read()
    place = order.place_of(name)
    if place is not None:
        need = _need(order.waiting[place - 1])
        return {"queue_place": place, "reason": f"waits for {need}"}
    if order.held_by(name) is not None:
        return {"state": "preparing"}
    if name in order.dropped:
        return {"state": "stopping"}
    return {}


def _refuse(order: QueueOrder, run: str) -> None:
    """Raise the error about a run that does not wait."""
    hint = "`cloudtrain queue` lists the runs that wait"
    if order.held_by(run):
        hint = f"`cloudtrain stop {run}` ends it"
    raise UsageError(f"`{run}` is not waiting in the queue", hint=hint, code="CT940")


def _need(one: Waiting) -> str:
    return str(QueueNeed(one.count, one.gpus, one.slots))


_NOT_INHERITED = (
    "RANK LOCAL_RANK GROUP_RANK NODE_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE "
    "GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TF_CONFIG"
).split()
_NOT_INHERITED_PREFIXES = ("CLOUDTRAIN_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PRTE_")
"""Prefixes of variables that a submitter has if it is itself part of a run. They describe this
outer run's processes, so a new run does not inherit them."""


class LocalService(Service):
    """Keeps all data in files below `state_dir`."""

    in_flight: float = 0.0
    names_are_unique = True

    def __init__(self, state_dir: Path, *, environ: Mapping[str, str]) -> None:
        # absolute, because plans contain this path
        self._state_dir = Path(os.path.abspath(state_dir))
        self._environ = environ

    def upload(
        self,
        plan: Plan,
        bundle: BundleWriter,
        *,
        on_bytes: ByteProgress | None = None,  # noqa: ARG002
    ) -> bool:
        """Also builds the job's environment, if the job needs one. Raises `TargetError` for a run
        again whose state folder was moved or copied since: it would write into the old one."""
        planned = Path(plan.request["run_dir"]).parents[1]
        if os.path.realpath(planned) != os.path.realpath(self._state_dir):
            message = f"the plan was made for the state folder `{planned}`, not for this one"
            raise TargetError(
                message, hint=f"`--set name={plan.job_name}` makes a new plan", code="CT956"
            )
        archive = Path(plan.uploads[0].destination)
        with self._writing("the bundle"):
            make_state_folder(self._state_dir, ours=KEPT)
            is_new = put_archive(archive, bundle)
        if "environment" in plan.request:
            with self._writing("the environment"):
                self._build(LaunchSpecification.from_json(plan.request))
        return is_new

    def _build(self, spec: LaunchSpecification) -> None:
        """Build the job's environment, unless it exists. Raises `TargetError` or `OSError`."""
        from cloudtrain.code.unpack import unpack
        from cloudtrain.runtime.install import build

        code = spec.code
        environment = spec.environment
        assert environment is not None
        folder = Path(environment.folder)
        file = environment.requirements
        archive = Path(code.archive)

        def provide(place: Path) -> None:
            unpack(archive, place, code.sha256)

        try:
            build(folder, file, environment.python, self._environ, provide, tell)
        except SetupError as error:
            hint = f"{error.hint}; " if error.hint else ""
            hint += (
                f"the full output is in `{folder}.log`; `--no-build-environment` runs with "
                "the interpreter as it is"
            )
            raise TargetError(error.message, hint=hint, code="CT953") from None

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        """Return when a supervisor has taken over the run. With `again`, the specification may
        exist already."""
        folder = self._folder(plan.run_name)
        with self._writing("the run"):
            make_state_folder(self._state_dir, ours=KEPT)
            is_new = _write_launch(folder, plan.request_json.encode(), again=again)
            if is_new or not os.path.exists(folder.status):
                must_wait = plan.request.get("queue") or plan.request.get("after")
                how = [QUEUED] if must_wait else []
                environ = {RUN_DIR: folder.path}
                for name, value in self._environ.items():
                    is_of_a_run = name.startswith(_NOT_INHERITED_PREFIXES)
                    if name not in _NOT_INHERITED and not is_of_a_run:
                        environ[name] = value
                _start_supervisor(folder, environ, *how)
        return self._ref(plan.run_name)

    def has(self, ref: RunRef) -> bool:
        is_name = ref.name not in ("", ".", "..") and "/" not in ref.name
        return is_name and os.path.exists(self._folder(ref.name).status)

    def withdraw(self, ref: RunRef) -> bool:
        return withdraw(self._folder(ref.name))

    def status(self, ref: RunRef) -> RunStatus:
        """Return the status of the run. If its supervisor has died, finish the run first. Kills
        nothing."""
        folder = self._folder_of(ref)
        status = self._status(folder)
        return RunStatus(
            state=RunState(status["state"]),
            reason=status["reason"],
            started=status["started"],
            ended=status["ended"],
            details=tuple(status["details"]),
            failed_rank=status["failed_rank"],
            exit_code=status["exit_code"],
            restarts=status["restarts"],
            metrics=status["metrics"],
            queue_place=status.get("queue_place"),
            notices=tuple(read_notices(folder.metrics)),
        )

    def logs(
        self,
        ref: RunRef,
        *,
        follow: bool = False,
        rank: int | None = None,
        instance: int | None = None,
        on_status: OnStatus = None,
    ) -> Iterator[LogLine]:
        if self.journal_folder(ref) is not None:
            batches = services.log_batches(
                self, ref, follow=follow, rank=rank, instance=instance, on_status=on_status
            )
            return chain.from_iterable(map(LogBatch.lines, batches))

        old = _OldJournal(self._folder_of(ref).old_journal)
        lines = services.follow_log(
            old, lambda: self.status(ref), on_status, services.HERE, to_end=follow
        )
        return (
            line
            for line in lines
            if rank in (None, line.rank) and instance in (None, line.instance)
        )

    def journal_folder(self, ref: RunRef) -> str | None:
        folder = self._folder_of(ref)
        return None if os.path.exists(folder.old_journal) else folder.path

    def log_after(self, ref: RunRef, mark: Any) -> JournalIndex | None:
        folder = self.journal_folder(ref)
        return None if folder is None else JournalIndex(folder, first=mark or 0)

    def metrics_folder(self, ref: RunRef, cache: Path) -> Path | None:  # noqa: ARG002
        """Missing for a run that has reported nothing yet, or that an earlier version wrote."""
        return Path(self._folder_of(ref).metrics)

    def stop(self, ref: RunRef) -> None:
        """If the run's supervisor and guard were killed, kill its processes."""
        folder = self._folder_of(ref)
        status = self._status(folder)
        if status["state"] in FINAL:
            return
        owner = status["owner"]
        if Owner(*owner).is_alive if owner else is_held(Path(folder.lock)):
            with suppress(ProcessLookupError):  # it ended between the two lines
                os.kill(status["pid"], signal.SIGTERM)
            return

        with self._writing("the run"):
            _finish(folder, may_kill=True)
        if self._status(folder)["state"] not in FINAL:
            message = f"the supervisor of `{ref.name}` is not a process of this machine"
            hint = "run the command where you submitted the run, such as in the same container"
            raise TargetError(message, hint=hint, code="CT955")

    def stacks(self, ref: RunRef) -> list[Look]:
        # only this needs them
        from cloudtrain.targets.local.hangs import look_at

        folder = self._folder_of(ref)
        status = self._status(folder)
        looks = look_at(folder, status["pid"]) if status["state"] == "running" else []
        if not looks:
            raise services.no_stacks(ref)
        return looks

    def enter(self, ref: RunRef, asked: ExecRequest) -> Session:
        folder = self._folder_of(ref)
        return enter(folder.path, self._status(folder)["token"], self._environ, asked)

    def queue(self) -> list[QueuedRun]:
        queue = Queue(str(self._state_dir))
        try:
            order = queue.read()
        except OSError as error:
            raise TargetError(
                f"the queue cannot be read: {error}", hint=self._elsewhere()
            ) from error
        order.forget(queue.is_over)

        runs = []
        for held in order.held:
            has = counted(held.slots, "CPU slot")
            if held.gpus:
                noun = "GPUs" if len(held.gpus) > 1 else "GPU"
                has = f"{noun} {', '.join(held.gpus)}"
            ref = self._ref(held.run)
            runs.append(QueuedRun(ref, None, "", has, held.priority, held.since))
        for place, one in enumerate(order.waiting, 1):
            ref = self._ref(one.run)
            runs.append(QueuedRun(ref, place, _need(one), "", one.priority, one.since))
        return runs

    def move(self, ref: RunRef, *, before: RunRef | None = None, last: bool = False) -> None:
        self._folder_of(ref)
        other = None
        if before is not None:
            self._folder_of(before)
            other = before.name

        order = self._change_queue(lambda order: order.move(ref.name, other, last=last))
        if order is None:
            return
        # one of the two does not wait
        missing = ref.name
        if other is not None and order.place_of(ref.name) is not None:
            missing = other
        _refuse(order, missing)

    def drop(self, ref: RunRef) -> None:
        self._folder_of(ref)
        order = self._change_queue(lambda order: order.drop(ref.name))
        if order is not None:
            _refuse(order, ref.name)

    def _change_queue(self, how: Callable[[QueueOrder], bool]) -> QueueOrder | None:
        """Change the queue with `how`, and let runs start that can. Return None if `how` returned
        True; otherwise the order, in which it changed nothing."""
        is_changed = False

        def change(order: QueueOrder) -> None:
            nonlocal is_changed
            is_changed = how(order)

        with self._writing("the queue"):
            order = Queue(str(self._state_dir)).change(change)
        return None if is_changed else order

    def runs(self, place: str = "") -> Iterator[ListedRun]:  # noqa: ARG002 - required by Service
        runs = []
        try:
            entries = list(os.scandir(self._state_dir / "runs"))
        except FileNotFoundError:
            return
        for entry in entries:
            try:
                # text, because a `Path` for each of thousands of runs takes time
                start_time = os.stat(f"{entry.path}/launch.json").st_mtime_ns
            except OSError:
                continue
            runs.append((start_time, entry.name))
        for _, name in sorted(runs, reverse=True):
            with suppress(RunNotFound):  # removed meanwhile, or no supervisor has taken it over
                yield ListedRun(self._ref(name), self.status(self._ref(name)))

    def code(self, ref: RunRef, upload: Upload, scratch: Path) -> Iterator[Path]:
        with suppress(CloudtrainError):
            code = _read_here(self._folder_of(ref)).code
            for folder in (code.directory, *(code.copies or ())):
                if folder:
                    yield Path(folder)
        yield from unpacked(Path(upload.destination), upload.sha256, scratch)

    def download(self, ref: RunRef, path: str, destination: Path) -> list[Path]:
        folder = self._folder_of(ref)
        spec = _read_here(folder)
        work: dict[str, Path] = {}
        first = path.strip("/").partition("/")[0]
        if first in ("", NAME, "outputs"):
            work = working_files(spec, Path(folder.unpacked))
        places = spec.downloads()
        inside = {Path(folder.path)}
        for link in spec.links or ():
            # an emulated host has the job's own place below a link
            if any(Path(link.path) in folders for folders in places.values()):
                inside.add(Path(link.target))
        started = None
        with suppress(FileNotFoundError):  # nothing was unpacked yet, or by an earlier version
            started = Path(folder.unpacked).stat().st_ctime_ns
        return copy_places(
            places, path, destination, extras={NAME: work}, inside=inside, started=started
        )

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Raise `TargetError` if a file cannot be written."""
        try:
            yield
        except OSError as error:
            hint = f"make room, or {self._elsewhere()}"
            raise TargetError(f"{what} cannot be written: {error}", hint=hint) from error

    def _elsewhere(self) -> str:
        """Return the hint for a full or read-only disk."""
        return f"move the state folder: CLOUDTRAIN_STATE_DIR (now `{self._state_dir}`)"

    def _folder(self, run_name: str) -> RunFolder:
        return RunFolder(f"{self._state_dir}/runs/{run_name}")

    def _ref(self, run_name: str) -> RunRef:
        return RunRef(DEFAULT_TARGET, host_name(), run_name)

    def _folder_of(self, ref: RunRef) -> RunFolder:
        """Return the folder of an existing run. Raises `RunNotFound`."""
        if ref.place != host_name():
            message = f"the run `{ref.name}` belongs to the machine `{ref.place}`"
            raise RunNotFound(
                message, hint=f"log in to `{ref.place}` and run the command there", code="CT934"
            )
        if not self.has(ref):
            raise _no_run(ref.name)
        return self._folder(ref.name)

    def _status(self, folder: RunFolder) -> dict[str, Any]:
        """Return the run's status. If the state is not final and the run's lock is free, finish the
        run first, unless it still has processes."""
        status = _read(folder)
        if status["state"] in FINAL:
            return status
        if is_held(Path(folder.lock)):
            if status["state"] == "queued":
                status |= standing(folder.path)
            return status
        try:
            _finish(folder, may_kill=False)
        except OSError as error:
            reason = f"the supervisor was killed, and the run's folder cannot be written: {error}"
            return {**_read(folder), "state": "lost", "reason": reason}
        status = _read(folder)
        if status["state"] not in FINAL and not is_held(Path(folder.lock)):
            name = Path(folder.path).name
            ends = f"`cloudtrain stop {name}` ends them"
            status["reason"] = f"its supervisor was killed, its processes still run; {ends}"
        return status


def _read(folder: RunFolder) -> dict[str, Any]:
    """Return the status in the run's folder. Raises `RunNotFound` if the folder was removed."""
    status = folder.read_status()
    if status is None:
        raise _no_run(Path(folder.path).name)
    return status


def _no_run(name: str) -> RunNotFound:
    return RunNotFound(f"this machine has no run `{name}`", hint="`cloudtrain ps` lists the runs")


def _write_launch(folder: RunFolder, content: bytes, *, again: bool) -> bool:
    """Write `launch.json` in one atomic step. With `again`, return False if the file already has
    this content. If the folder of a run was removed, the name stays taken as long as a process of
    that run lives."""
    is_in_use = not os.path.lexists(folder.launch) and is_folder_in_use(folder.path)
    # another submitter of the run may have been faster
    is_in_use = is_in_use and not os.path.lexists(folder.launch)
    make_private_folder(folder.path)
    if not is_in_use:
        if write_once(folder.launch, content):
            return True
        if again and Path(folder.launch).read_bytes() == content:
            return False
    name = Path(folder.path).name
    raise NameTaken(f"a run `{name}` already exists", hint="give the job another name")


def _start_supervisor(folder: RunFolder, environ: Mapping[str, str], *how: str) -> None:
    """Start a supervisor with the further arguments `how`. Return when this supervisor, or another
    one for the same run, has taken over. If the run must wait, it has entered the queue by that
    time."""

    def argv(ready: int) -> list[str]:
        return command("supervisor", folder.path, str(ready), *how)

    if not start_detached(argv, folder.log, env=environ, cwd=folder.path):
        raise services.did_not_start("supervisor", folder.log)


# Withdraw a run whose submitter died before a supervisor took over, so that the run can never
# start.

_PATIENCE = 60.0
"""Seconds to wait until a supervisor that holds the lock has written the status file."""


def withdraw(folder: RunFolder) -> bool:
    """Remove the launch specification, which a supervisor needs to start. Return False if one has
    taken over already. One may be starting at the same time, so this holds the lock that it needs
    to read the specification."""
    if not Path(folder.path).is_dir():
        return True
    deadline = time.monotonic() + _PATIENCE
    while (lock := ProcessLock.take(Path(folder.lock))) is None:
        if Path(folder.status).exists():
            return False
        if time.monotonic() > deadline:
            message = f"the supervisor of `{Path(folder.path).name}` does not respond at its start"
            raise TargetUnreachable(message, hint=f"look at its process, and at `{folder.log}`")
        time.sleep(0.01)
    try:
        if Path(folder.status).exists():
            return False
        Path(folder.launch).unlink(missing_ok=True)
        return True
    finally:
        lock.release()
