"""A world in memory for histories of submissions: services, run stores, machines with clocks, and processes that die.

The code under test is the real one: `submission.py`, `Store` on SQLite, and the names. What surrounds it is simulated:

* A process is a greenlet. Every call of a store or a service is a point at which another process may go on, or at which
  this one is killed. A killed process raises `Killed`; from then on all that it holds is inert, as after SIGKILL, so
  that no `except` and no `finally` of it has an effect.
* A service takes requests at once, late (its sender may be dead by then), or never. Its answers can be lost.
* A store can be lost, also while a command runs, and with the folders of its runs; it can be replaced by an old copy; a
  clock can be set; a machine can boot.
* A state folder can be copied, moved and removed while its runs go on; its local runs are real folders (`folders.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from greenlet import greenlet

from cloudtrain.errors import NameTaken, StoreError, TargetError, TargetUnreachable
from cloudtrain.lifecycle.store.records import salt_of_moved_store
from cloudtrain.lifecycle.store.schema import migrate
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.lifecycle.submission.once import (
    Recovered,
    Sending,
    Submitted,
    Watch,
    recover,
    report_accepted,
    send_once,
)
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.states import RunRef
from cloudtrain.system.processes import Moment
from cloudtrain.targets.common.compiling import run_name, submission_key
from tests.lifecycle.submission.folders import Folders

IN_FLIGHT = 60.0
ME = "me@here"

_TEMPLATE = sqlite3.connect(":memory:", isolation_level=None)
migrate(_TEMPLATE)


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Job:
    """What a service runs."""

    name: str
    plan: PlanKind
    intent: Intent
    at: float
    gone: float | None = None
    """When the last of its processes ended, after its folder was removed with its store. Then another run can have its
    name."""

    @property
    def is_removed(self) -> bool:
        return self.gone is not None

    def was_over(self, at: float) -> bool:
        """Whether nothing was left of it at that moment, neither its folder nor a process."""
        return self.gone is not None and self.gone <= at


@dataclass(frozen=True)
class PlanKind:
    """What a user asks for: a job of a name, with some content, on a target."""

    job_name: str
    content: str
    target: str

    def plan(self, name: str) -> Plan:
        return Plan(self.target, name, self.job_name, {"content": self.content}, place="there")

    @property
    def key(self) -> str:
        return _key_of(self)


_KEYS: dict[PlanKind, str] = {}


def _key_of(kind: PlanKind) -> str:
    if kind not in _KEYS:
        _KEYS[kind] = submission_key(kind.plan("job-00000000-0"))
    return _KEYS[kind]


@dataclass(eq=False)
class Intent:
    """One submit command of a user, and what became of it."""

    plan: PlanKind
    store: StoreFile
    process: Process
    began: float
    boots: int
    """How often the machine had booted when it began, and how often its clock had been set."""
    clock_sets: int
    told: list[tuple[str, bool]] = field(default_factory=list)
    """Names that the user read, each with whether the run was offered as one of an earlier command."""
    named: list[str] = field(default_factory=list)
    """Older runs that the user was told of beside the run of this command."""
    noted: bool = False
    """Whether the store knows that the user was told."""
    ended: str = "running"
    """`running`, `done`, `killed`, or the name of the error."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """Requests that left this machine: name, and `now`, `late`, `never`, `refused`, or `unsent` where its process died
    just before, which no store can tell from `never`."""
    outstanding: list[Intent] = field(default_factory=list)
    """Dead submits of the same job whose run the user was not told of, when this one began with nothing beside it."""


class StoreFile:
    """One database at one path. A copy is another one."""

    def __init__(
        self, world: World, path: str, salt: str, db: sqlite3.Connection | None = None
    ) -> None:
        self.world = world
        self.path = path
        self.salt = salt
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        (db or _TEMPLATE).backup(self.db)
        self.forgotten: list[tuple[str, float]] = []

    @property
    def is_current(self) -> bool:
        return self.world.stores.get(self.path) is self


class SimulatedStore(Store):
    """The real store of one process, on a database in memory, with the world's locks and the machine's clock."""

    def __init__(self, process: Process, file: StoreFile) -> None:
        super().__init__(file.db, Path("/nowhere"), file.salt, clock=process.world.clock)
        self._process = process
        self._file = file

    def lock(self, name: str) -> Any:
        holders = self._process.world.locks
        place = (self._file.path, id(self._file), name)
        if place in holders:
            return None
        holders[place] = self._process
        return Lock(self._process, place)

    def _check_still_there(self) -> None:
        if not self._file.is_current:
            raise StoreError("the store is another one now")

    def forget(self, name: str) -> None:
        super().forget(name)
        self._file.forgotten.append((name, self._process.world.time))


for _name in ("next_counter", "reserve", "advance", "forget", "get", "unfinished", "seconds_since"):

    def _stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: SimulatedStore, *args: Any, **kwargs: Any) -> Any:
            self._process.step()
            return real(self, *args, **kwargs)

        return step

    setattr(SimulatedStore, _name, _stepping(getattr(SimulatedStore, _name)))


class Lock:
    """What `ProcessLock` is: the kernel frees it when its process dies."""

    def __init__(self, process: Process, place: Any) -> None:
        self._process = process
        self._place = place

    def release(self, *, remove: bool = False) -> None:
        if self._process.is_alive:
            self._process.world.locks.pop(self._place, None)


class Service:
    """What runs jobs. `kind` says what it makes of a second job of one name:

    unique    refuses it (SageMaker)
    folder    refuses it as long as the folder or a process of the first one is there (a local run)
    upsert    takes it for the same job (Azure ML)
    multiple  runs both (Slurm)
    """

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.jobs: list[Job] = []
        self.is_reachable = True

    def named(self, name: str) -> list[Job]:
        return [job for job in self.jobs if job.name == name and not job.is_removed]

    def arrive(self, name: str, plan: PlanKind, intent: Intent) -> bool:
        """A request arrives. False: it is refused, because there is a job of that name."""
        if self.named(name) and self.kind != "multiple":
            return self.kind == "upsert"
        if any(
            job.name == name and job.is_removed and not job.was_over(self.world.time)
            for job in self.jobs
        ):
            return False
        self.jobs.append(Job(name, plan, intent, self.world.time))
        if self.kind == "folder":
            self.world.folders.start(intent.store.path, name)
        return True


class ServiceOfProcess:
    """What a process sees of a service: the promises of `cloudtrain.targets.contract.Service`."""

    def __init__(self, process: Process, name: str) -> None:
        self.name = name
        self.in_flight = IN_FLIGHT
        self._process = process
        self._service = process.world.services[name]
        self.names_are_unique = self._service.kind != "multiple"

    def upload(self, plan: Plan, bundle: Any, *, on_bytes: Any = None) -> bool:
        self._process.step()
        return True

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        process, world = self._process, self._process.world
        intent = process.intent
        assert intent is not None
        intent.left.append((plan.run_name, "unsent"))
        process.step()
        fate = world.random.choices(
            ("now", "late", "never", "refused"), (88, 4, 4, 4) if world.has_faults else (1, 0, 0, 0)
        )[0]
        if not self._service.is_reachable:
            fate = "never"
        intent.left[-1] = (plan.run_name, fate)
        if fate == "refused":
            raise TargetError("refused")
        taken = fate == "now" and not self._service.arrive(plan.run_name, intent.plan, intent)
        if fate == "late":
            delay = world.random.uniform(0, IN_FLIGHT * 0.98)
            world.later(delay, lambda: self._service.arrive(plan.run_name, intent.plan, intent))
        process.step()  # the answer is on its way
        if fate in ("late", "never"):
            if not self.has(plan.ref):
                raise TargetUnreachable("no answer")
            return plan.ref
        was_repeated = (
            world.has_faults and self._service.kind != "folder" and world.random.random() < 0.03
        )
        if was_repeated:  # the answer was lost, and the client library sends the request again
            taken = (
                not self._service.arrive(plan.run_name, intent.plan, intent)
                if self.names_are_unique
                else taken
            )
        if taken and not ((again or was_repeated) and self._service.named(plan.run_name)):
            # no run came of it, so there is none to tell of
            intent.left[-1] = (plan.run_name, "refused")
            raise NameTaken("there is one")
        process.step()
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        self._process.step()
        if not self._service.is_reachable:
            raise TargetUnreachable("no answer")
        return bool(self._service.named(ref.name))

    def withdraw(self, ref: RunRef) -> bool:
        return not self.has(ref)


class Process:
    """One command. It goes on when the world lets it, and may be killed at each of its steps."""

    def __init__(
        self, world: World, command: Callable[[Process], None], *, dies_at: int | None = None
    ) -> None:
        self.world = world
        self.intent: Intent | None = None
        self.is_alive = True
        self._steps = 0
        self._dies_at = dies_at
        self._command = command
        self._greenlet = greenlet(self._run)

    def step(self) -> None:
        """Let others go on, unless this process dies here."""
        if not self.is_alive:
            raise Killed
        self._steps += 1
        if self._steps == self._dies_at:
            self.kill()
            raise Killed
        if self.world.is_concurrent:
            self.world.switch()
            if not self.is_alive:
                raise Killed

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False
        if self.intent is not None and self.intent.ended == "running":
            self.intent.ended = "killed"
        self.world.locks = {
            place: holder for place, holder in self.world.locks.items() if holder is not self
        }

    def _run(self) -> None:
        try:
            self._command(self)
        except Killed:
            pass
        finally:
            self.is_alive = False

    @property
    def is_over(self) -> bool:
        return bool(self._greenlet.dead)

    def go_on(self) -> None:
        self._greenlet.switch()


class World:
    """Services, stores, clocks; and the histories that happen there."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.time = 1_700_000_000.0
        self.offset = 0.0
        """Of the wall clock."""
        self.booted = self.time - 1000.0
        self.boots = 0
        self.clock_sets = 0
        self.has_faults = True
        self.is_concurrent = False
        self.services = {
            kind: Service(self, kind) for kind in ("unique", "folder", "upsert", "multiple")
        }
        self.stores: dict[str, StoreFile] = {}
        self.folders = Folders(random)
        self.locks: dict[Any, Process] = {}
        self.intents: list[Intent] = []
        self.recovered: list[tuple[str, str, bool]] = []
        """What `recover` said: name, outcome, and whether that was true at that moment."""
        self._pending: list[tuple[float, Callable[[], object]]] = []
        self._running: list[Process] = []
        self._scheduler: greenlet | None = None

    # time

    def clock(self) -> Moment:
        """The clock of the machine."""
        return Moment(self.time + self.offset, f"boot-{self.boots}", self.time - self.booted)

    def pass_time(self, seconds: float) -> None:
        """Time passes, and what was on its way arrives."""
        end = self.time + seconds
        for at, deliver in sorted(
            (item for item in self._pending if item[0] <= end), key=lambda item: item[0]
        ):
            self.time = max(self.time, at)
            deliver()
        self._pending = [item for item in self._pending if item[0] > end]
        self.time = end

    def set_clock(self, seconds: float) -> None:
        """The wall clock is set forward, or back."""
        self.offset += seconds
        self.clock_sets += 1

    def later(self, delay: float, deliver: Callable[[], object]) -> None:
        """Something arrives after a delay."""
        self._pending.append((self.time + delay, deliver))

    def boot(self) -> None:
        """The machine starts again, in 20 seconds."""
        self.pass_time(20)
        self.boots += 1
        self.booted = self.time
        self.folders.boot()

    # stores

    def store(self, path: str) -> StoreFile:
        """The store at a path, made if need be. The salt of a new one depends on the path alone."""
        if path not in self.stores:
            self.stores[path] = StoreFile(self, path, f"salt of {path}")
        return self.stores[path]

    def lose(self, path: str, *, with_folders: bool = False) -> None:
        """The store is deleted, or cut to nothing. `with_folders`: so are the folders of the runs beside it."""
        self.stores.pop(path, None)
        for job in self.services["folder"].jobs if with_folders else ():
            if job.gone is None and job.intent.store.path == path:
                job.gone = self.time + self.random.choice((0.0, 2.0, 100.0))
        if with_folders:
            self.folders.remove(path)

    def removal(self, path: str) -> Process:
        """`rm -r` of the store and all that is beside it, at any moment of the commands that run with it."""

        def command(process: Process) -> None:
            for _ in range(self.random.randint(0, 25)):
                process.step()
            self.lose(path, with_folders=True)

        return Process(self, command)

    def copy(self, source: str, path: str) -> None:
        """The state folder is copied to another path."""
        file = self.store(source)
        salt = file.salt if path == source else salt_of_moved_store(file.salt, path)
        self.stores[path] = StoreFile(self, path, salt, file.db)
        self.folders.copy(source, path)

    def move(self, source: str, path: str) -> None:
        """The state folder gets another path. Its store has another salt there, as a copy has."""
        file = self.store(source)
        self.stores[path] = StoreFile(self, path, salt_of_moved_store(file.salt, path), file.db)
        del self.stores[source]
        self.folders.move(source, path)

    def while_running(self, act: Callable[[str, str], None], source: str, path: str) -> Process:
        """`copy` or `move`, at any moment of the commands that run with it."""

        def command(process: Process) -> None:
            for _ in range(self.random.randint(0, 25)):
                process.step()
            act(source, path)

        return Process(self, command)

    def restore(self, path: str, old: StoreFile) -> None:
        """An old copy takes the place of the store, under its salt."""
        self.stores[path] = StoreFile(self, path, old.salt, old.db)

    # commands

    def submit(self, plan: PlanKind, path: str, *, dies_at: int | None = None) -> Process:
        """`cloudtrain submit` of that plan; it runs when `run` lets it."""

        def command(process: Process) -> None:
            file = self.store(path)
            intent = Intent(plan, file, process, self.time, self.boots, self.clock_sets)
            intent.outstanding = [
                other
                for other in self.intents
                if other.plan == plan
                and other.store is file
                and not self.is_concurrent
                and self._is_untold(other)
            ]
            self.intents.append(intent)
            process.intent = intent
            store = SimulatedStore(process, file)

            def report(submitted: Submitted) -> None:
                process.step()
                intent.told.append((submitted.record.name, submitted.adopted))
                intent.named += [record.name for record in submitted.unreported]

            sending = Sending(
                service=ServiceOfProcess(process, plan.target),  # type: ignore[arg-type]
                key=plan.key,
                submitter=ME,
                code=None,  # type: ignore[arg-type]
                plan_of=lambda _, counter: plan.plan(
                    run_name(plan.job_name, plan.key, ME, store.salt, counter)
                ),
                watch=Watch(on_run=report),
            )
            try:
                send_once(store, sending, lambda name: ServiceOfProcess(process, name))  # type: ignore[arg-type,return-value]
            except (TargetError, StoreError) as error:
                intent.ended = type(error).__name__
            else:
                intent.ended, intent.noted = "done", True

        return Process(self, command, dies_at=dies_at)

    def recover(self, path: str, *, dies_at: int | None = None) -> Process:
        """`cloudtrain recover`."""

        def command(process: Process) -> None:
            if path not in self.stores:
                return
            store = SimulatedStore(process, self.stores[path])
            try:
                found = recover(store, lambda name: ServiceOfProcess(process, name))  # type: ignore[arg-type,return-value]
                for item in found:
                    self.recovered.append((item.name, item.outcome, self._is_true(item, path)))
                report_accepted(store, lambda records: self._tell_of(records, process))
            except StoreError:
                return

        return Process(self, command, dies_at=dies_at)

    def _tell_of(self, records: Any, process: Process) -> None:
        process.step()
        for record in records:
            for intent in self.intents:
                if any(name == record.name for name, _ in intent.left):
                    intent.told.append((record.name, True))

    def _is_untold(self, intent: Intent) -> bool:
        """Whether a dead submit may have made, or may still make, a run that nobody was told of."""
        told = {
            name
            for other in self.intents
            for name in (*other.named, *(name for name, _ in other.told))
        }
        return any(fate in ("now", "late") and name not in told for name, fate in intent.left)

    def _is_true(self, found: Recovered, path: str) -> bool:
        """Whether a run that was finished is there, and one that was forgotten is not: another store may have one of
        its name."""
        jobs = [job for service in self.services.values() for job in service.named(found.name)]
        if found.outcome == "finished":
            return bool(jobs)
        return found.outcome == "unknown" or not any(
            job.intent.store is self.stores.get(path) for job in jobs
        )

    def run(self, *processes: Process) -> None:
        """Let processes go on, in any order, until all are over."""
        self.is_concurrent = len(processes) > 1
        self._running, self._scheduler = list(processes), greenlet.getcurrent()
        while self._running:
            process = self.random.choice(self._running)
            process.go_on()
            if process.is_over:
                self._running.remove(process)
        self.is_concurrent = False

    def switch(self) -> None:
        """Back to the scheduler, from within a process."""
        assert self._scheduler is not None
        self._scheduler.switch()

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Everything answers, and nobody dies."""
        self.has_faults = False
        for service in self.services.values():
            service.is_reachable = True
        yield
        self.has_faults = True
