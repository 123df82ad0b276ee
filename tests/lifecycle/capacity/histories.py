"""Random histories of lists of alternatives against a model of what may run.

    python -m tests.lifecycle.capacity.histories --count 10000 --seed 1     prints how many agree; exits 1 on a difference

The watcher, `send_once`, the run store on SQLite and the list's folder are the real ones. The targets, the clock and the
death of processes are simulated. A request is taken, late, lost, doubled or refused; an answer is lost; capacity never
comes, comes late, or comes while a stop is under way; the user stops the list at any moment; the watcher is killed at any
step and started again, and another command settles what it left. At the end:

1. At most one job of the list has started, and nothing was sent after it.
2. A job arrives only if every job of an earlier try has ended, without having started.
3. A fault that is no lack of capacity is the end: nothing is sent after it. Only the same try is sent once more, if the
   watcher died before it noted the refusal, or could not ask whether there is a job all the same.
4. A job that started is the run of the list.
5. Nothing is left that waits or may arrive, unless it is the run of the list.
6. A try of which the list says that it is over has not started.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import sys
import tempfile
import time as real_time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cloudtrain.errors import NameTaken, TargetError, TargetUnreachable
from cloudtrain.lifecycle import watcher
from cloudtrain.lifecycle.capacity.service import read_attempts
from cloudtrain.lifecycle.detached.driven import DrivenFolder
from cloudtrain.lifecycle.detached.waiting import Order, Try
from cloudtrain.lifecycle.store.records import JobRecord
from cloudtrain.lifecycle.store.schema import migrate
from cloudtrain.lifecycle.store.store import Store
from cloudtrain.lifecycle.submission.once import recover
from cloudtrain.lifecycle.watcher import ListWatcher
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunRef, RunState
from cloudtrain.system.processes import Moment, Owner
from cloudtrain.targets.capacity import CapacityWords

IN_FLIGHT = 60.0
NAME = "train-00000000-1"
LACK = "no capacity here"
NEVER = float("inf")

_TEMPLATE = sqlite3.connect(":memory:", isolation_level=None)
migrate(_TEMPLATE)

WORDS = CapacityWords(
    (re.compile(LACK),),
    frozenset(),
    frozenset({RunState.PENDING}),
    frozenset(),
)


class Killed(BaseException):
    """The watcher is dead."""


class Difference(AssertionError):
    """What happened is not what the model allows."""


@dataclass
class Job:
    """A job that a target has: when it starts, when it ends before that, and how."""

    name: str
    number: int
    arrived: float
    starts: float
    ends: float
    how: str

    def status(self, now: float) -> RunStatus:
        started = self.starts if self.starts <= min(now, self.ends) else None
        if now < self.ends:
            return RunStatus(RunState.RUNNING if started else RunState.PENDING, started=started)
        if self.how == "stopped":
            return RunStatus(RunState.STOPPED, started=started)
        reason = LACK if self.how == "lack" else "wrong image"
        return RunStatus(RunState.FAILED, reason, started=started)

    def has_started(self, now: float) -> bool:
        return self.status(now).started is not None

    def stop(self, now: float, delay: float) -> None:
        if self.ends > now + delay:
            self.ends = now + delay
            self.how = "stopped"


@dataclass
class World:
    """Everything around the watcher."""

    random: Random
    folder: DrivenFolder
    time: float = 1_000_000.0
    steps: int = 0
    dies_at: int | None = None
    is_dead: bool = False
    has_faults: bool = True
    jobs: list[Job] = field(default_factory=list)
    late: list[tuple[float, str, int]] = field(default_factory=list)
    stop_at: float = NEVER
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        db = sqlite3.connect(":memory:", isolation_level=None)
        _TEMPLATE.backup(db)
        self.store = SimulatedStore(self, db)
        self.services = {kind: Service(self, kind) for kind in ("unique", "upsert", "multiple")}

    def clock(self) -> Moment:
        return Moment(self.time, "boot", self.time)

    def step(self, _: str = "") -> None:
        """One more moment at which the watcher may die."""
        if self.is_dead:
            raise Killed
        self.steps += 1
        if self.steps == self.dies_at:
            self.is_dead = True
            raise Killed

    def wait(self, seconds: float) -> None:
        """Time passes, and requests arrive."""
        self.time += seconds
        for item in sorted(self.late):
            if item[0] <= self.time:
                self.late.remove(item)
                self.arrive(item[1], item[2], item[0])
        if self.time >= self.stop_at:
            self.folder.stop.touch()

    def arrive(self, name: str, number: int, at: float) -> bool:
        """A request arrives. False if there is a job of that name."""
        if any(job.name == name for job in self.jobs):
            return False
        for job in self.jobs:
            if at < job.ends or job.has_started(at) or job.how == "fault":
                raise Difference(f"{name} arrives at {at:.0f} beside {job}")
        how = self.random.choices(("run", "lack", "fault", "wait"), (3, 4, 1, 3))[0]
        delay = self.random.choice((0.0, 5.0, 290.0, 310.0, 900.0))
        starts = at + delay if how == "run" else NEVER
        ends = at + delay if how in ("lack", "fault") else NEVER
        self.jobs.append(Job(name, number, at, starts, ends, how))
        self.told.append(f"{at:.0f} {name} arrives: {how} after {delay:.0f}")
        return True


class SimulatedStore(Store):
    """The real store, in memory."""

    def __init__(self, world: World, db: sqlite3.Connection) -> None:
        super().__init__(db, Path("/nowhere"), "salt", clock=world.clock)
        self._world = world

    def lock(self, name: str) -> Any:
        return SimpleNamespace(release=lambda *, remove=False: remove)

    def _check_still_there(self) -> None:
        pass


for _name in ("reserve", "advance", "forget", "spend", "record", "with_key", "unfinished"):

    def _stepping(real: Any) -> Any:
        def step(self: SimulatedStore, *args: Any, **kwargs: Any) -> Any:
            self._world.step()
            result = real(self, *args, **kwargs)
            self._world.step()
            return result

        return step

    setattr(SimulatedStore, _name, _stepping(getattr(SimulatedStore, _name)))


class Service:
    """A target. `unique` refuses a second job of a name, `upsert` takes it for the first, and `multiple` cannot be asked
    twice."""

    in_flight = IN_FLIGHT

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.names_are_unique = kind != "multiple"

    def upload(self, *_: Any, **__: Any) -> bool:
        self.world.step()
        return True

    def submit(self, plan: Plan, *, again: bool = False) -> RunRef:
        world = self.world
        world.step()
        number = int(plan.run_name.rpartition("-t")[2][:3])
        fates = ("now", "lack", "fault", "late", "never", "lost", "doubled")
        weights = (10, 3, 1, 2, 2, 2, 2) if world.has_faults else (10, 3, 0, 0, 0, 0, 0)
        fate = world.random.choices(fates, weights)[0]
        world.told.append(f"{world.time:.0f} {plan.run_name} is sent: {fate}")
        is_there = any(job.name == plan.run_name for job in world.jobs)
        if fate in ("lack", "fault") and not is_there:
            raise TargetError(LACK if fate == "lack" else "no such role")
        if fate == "late":
            at = world.time + world.random.uniform(0, IN_FLIGHT * 0.98)
            world.late.append((at, plan.run_name, number))
        if fate in ("late", "never"):
            world.wait(world.random.choice((0.0, 30.0)))
            world.step()
            raise TargetUnreachable("no answer")
        taken = not world.arrive(plan.run_name, number, world.time)
        if fate == "doubled":
            world.arrive(plan.run_name, number, world.time)
        world.step()
        if fate == "lost":
            raise TargetUnreachable("no answer")
        if taken and self.kind == "unique" and not again:
            raise NameTaken("there is one")
        return plan.ref

    def has(self, ref: RunRef) -> bool:
        self._ask()
        return any(job.name == ref.name for job in self.world.jobs)

    def withdraw(self, ref: RunRef) -> bool:
        return not self.has(ref)

    def status(self, ref: RunRef) -> RunStatus:
        self._ask()
        return self._job(ref).status(self.world.time)

    def stop(self, ref: RunRef) -> None:
        self._ask()
        self._job(ref).stop(self.world.time, self.world.random.choice((0.0, 20.0, 400.0)))
        self._ask()

    def _job(self, ref: RunRef) -> Job:
        return next(job for job in self.world.jobs if job.name == ref.name)

    def _ask(self) -> None:
        self.world.step()
        if self.world.has_faults and self.world.random.random() < 0.1:
            raise TargetUnreachable("no answer")


class SimulatedWatcher(ListWatcher):
    """The real watcher, which sleeps in the world's time."""

    world: World

    def _sleep(self) -> None:
        self.world.step()
        self.world.wait(self.world.random.uniform(1.0, 120.0))


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Lead the watcher to the world."""

    @contextmanager
    def open_store(_: Path) -> Iterator[Store]:
        yield world.store

    def service_of(name: str, _: object) -> Any:
        return world.services.get(name)

    clock = SimpleNamespace(
        time=lambda: world.time, strftime=real_time.strftime, localtime=real_time.localtime
    )
    changes = {
        "open_store": open_store,
        "service_of": service_of,
        "find_service": service_of,
        "target_of": lambda name: name,
        "part": lambda _target, _kind: WORDS,
        "time": clock,
        "ListWatcher": SimulatedWatcher,
    }
    owner = Owner.of(world.folder.path)  # the same in each life, and slow to ask for
    with (
        patch.multiple(watcher, **changes),
        patch.object(Owner, "of", lambda _: owner),
        patch.multiple(SimulatedWatcher, world=world, create=True),
        patch("os.fsync", lambda _: None),
    ):
        yield


def order_of(random: Random) -> Order:
    """A list of two to four alternatives."""
    tries = []
    for number in range(1, random.randint(2, 4) + 1):
        kind = random.choice(("unique", "upsert", "multiple"))
        name = f"{NAME}-t{number:03d}"
        plan = Plan(kind, name, "train", {"name": name}, place="there")
        record = JobRecord("0", {}, {"request": {}}, "bundle")
        wait = random.choice((None, 300.0, 300.0))
        tries.append(
            Try(f"machine {number}", wait, plan, "bundle", (1.0, 0.0, 1.0), record._asdict())
        )
    plan = Plan("unique", NAME, "train", {}, place="there")
    give_up_after = random.choice((None, 3000.0))
    if give_up_after is None:
        tries[-1] = tries[-1]._replace(wait=None)
    return Order(plan, "bundle", "key", "me@here", (), tuple(tries), give_up_after)


def history(seed: int, state_dir: Path) -> list[str]:
    """Run one history, and return what happened.

    Raises:
        Difference: two runs, or another thing that the model forbids.
    """
    random = Random(seed)
    folder = DrivenFolder(state_dir, "chain", NAME)
    folder.path.mkdir(parents=True, exist_ok=True)
    for file in folder.path.iterdir():
        file.unlink()
    folder.specification.write_text(order_of(random).to_json())
    world = World(random, folder)
    if random.random() < 0.3:
        world.stop_at = world.time + random.uniform(0, 1500)
    try:
        with simulated(world):
            for _ in range(random.randint(0, 4)):
                _live(world, dies_at=random.randint(1, 60))
                if random.random() < 0.3:
                    world.wait(random.choice((1.0, 100.0)))
                    recover(world.store, lambda name: world.services[name])  # type: ignore[arg-type]
            # a list whose last entry waits without a limit is stopped in the end
            world.stop_at = min(world.stop_at, world.time + 20_000)
            _live(world)
        _check(world)
    except Difference as error:
        raise Difference("\n".join([f"seed {seed}: {error}", *world.told])) from None
    return world.told


def _live(world: World, dies_at: int | None = None) -> None:
    """Run the watcher until it is done or dies."""
    world.steps, world.dies_at, world.is_dead = 0, dies_at, False
    world.told.append(f"{world.time:.0f} the watcher starts, dies at {dies_at}")
    with suppress(Killed):
        status = world.folder.read_status()
        if not status or not (status.get("sent") or RunState(status["state"]).is_final):
            watcher.watch(world.folder, lambda: None, world.step)
    world.is_dead = False
    world.dies_at = None


def _check(world: World) -> None:
    """Raise Difference unless all that is above holds."""
    world.wait(IN_FLIGHT * 2)  # whatever may arrive does
    world.wait(100_000)
    attempts = read_attempts(world.folder)
    status = world.folder.read_status()
    started = [job for job in world.jobs if job.has_started(world.time)]
    if len(started) > 1:
        raise Difference(f"{len(started)} jobs ran")
    settled = [RunRef.parse(item.ref).name for item in attempts if item.has_run]
    for job in started:
        if settled != [job.name]:
            raise Difference(f"{job.name} ran, and the list says {settled}")
    for job in world.jobs:
        if world.time < job.ends and [job.name] != settled:
            raise Difference(f"{job} is left, and the list is {status}")
    for item in attempts:
        name = RunRef.parse(item.ref).name
        if item.over and any(job.name == name for job in started):
            raise Difference(f"{item} ran")
    arrived = {job.name for job in world.jobs}
    sent = [line.split() for line in world.told if "is sent" in line]
    for before, after in pairwise(sent):
        is_refused = before[-1] == "fault" and before[1] not in arrived
        if is_refused and before[1] != after[1]:
            raise Difference(f"{after[1]} was sent after the fault of {before[1]}")
    if not status.get("sent") and not RunState(status["state"]).is_final:
        raise Difference(f"the list did not end: {status}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("CLOUDTRAIN_TEST_SEED", "1"))
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.count):
            try:
                history(seed, Path(folder))
            except Difference as error:
                print(error)
                return 1
    print(f"{options.count} histories of lists agree with the model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
