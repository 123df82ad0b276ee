"""Random histories of submissions against a model of what a user may be told.

    python -m tests.lifecycle.submission.histories --count 100000 --seed 1     prints how many agree; exits 1 on a difference

A history is a few commands of one user on one machine, in which processes die, answers are lost or late, stores are
lost, copied or moved at any moment, or old, clocks are set, and two commands run at once. After it everything is
settled, and these hold:

1. A run that the user was told of as new exists, is what that command asked for, and was told of as new only once. A
   run whose folder was removed with its store may be followed by another one of its name when all its processes ended.
2. A run that was offered as an earlier command's is a run of the same job from the same store.
3. Nothing is doubled: a submit starts no run while a dead submit of the same job, less than a day ago, left one that
   nobody was told of. Where the machine booted and its clock was set in between, nothing on it knows how long that is.
   The submit that starts another run all the same names each one that nobody was told of.
4. Nothing is lost: each run is in the store that submitted it, and each record of a store has its run.
5. `recover` tells the truth: what it finished is there, what it forgot is not, and never will be.
6. No command that reads ends a process. `stop` ends the run whose own folder it is given, wherever that was moved, and
   nothing in a copy of it, where the run is over.
"""

from __future__ import annotations

import argparse
import os
import sys
from multiprocessing import Pool
from random import Random
from typing import Any

from tests.lifecycle.submission.world import Intent, Job, PlanKind, StoreFile, World

_PATHS = ("here", "there")
_WAITS = (0.1, 1.0, 30.0, 61.0, 3600.0, 90_000.0)


class Difference(AssertionError):
    """What happened is not what the model allows."""


def history(seed: int) -> list[str]:
    """Run one history and return what happened, a line each.

    Raises:
        Difference: a user was told something untrue, or a run was lost or doubled.
    """
    random = Random(seed)
    world, told = World(random), list[str]()
    plans = [
        PlanKind(
            random.choice("ab"),
            random.choice("xy"),
            random.choice(("unique", "folder", "upsert", "multiple")),
        )
        for _ in range(random.choice((1, 1, 2)))
    ]
    old: list[tuple[str, StoreFile]] = []
    try:
        with world.folders.simulated():
            for _ in range(random.randint(2, 8)):
                told.append(_happen(world, random, plans, old))
                _look(world)
            _settle(world)
            _check(world)
    except Difference as error:
        raise Difference("\n".join([f"seed {seed}: {error}", *told, *_story(world)])) from None
    return told


def _happen(
    world: World, random: Random, plans: list[PlanKind], old: list[tuple[str, StoreFile]]
) -> str:
    """One event of the history."""
    event = random.choices(_EVENTS, _WEIGHTS)[0]
    path = random.choice(_PATHS) if random.random() < 0.25 else _PATHS[0]
    plan = random.choice(plans)
    if event == "submit":
        dies_at = random.randint(1, 28) if random.random() < 0.5 else None
        world.run(world.submit(plan, path, dies_at=dies_at))
        return f"submit {plan} in {path}, dies at {dies_at}"
    if event == "two submits":
        other, elsewhere = (
            random.choice(plans),
            random.choice(_PATHS) if random.random() < 0.3 else path,
        )
        deaths = [random.randint(1, 40) if random.random() < 0.3 else None for _ in range(2)]
        world.run(
            world.submit(plan, path, dies_at=deaths[0]),
            world.submit(other, elsewhere, dies_at=deaths[1]),
        )
        return f"two submits, {plan} in {path} and {other} in {elsewhere}, die at {deaths}"
    if event == "submit and remove":
        others = [world.submit(random.choice(plans), path)] if random.random() < 0.5 else []
        world.run(world.submit(plan, path), *others, world.removal(path))
        return f"submit {plan} in {path}, whose state folder is removed meanwhile, beside {len(others)} others"
    if event in ("submit and copy", "submit and move"):
        act = world.copy if event == "submit and copy" else world.move
        world.store(_PATHS[0])
        world.run(world.submit(plan, _PATHS[0]), world.while_running(act, *_PATHS))
        return f"submit {plan} in {_PATHS[0]}, whose state folder gets a copy or another path meanwhile"
    if event == "stop":
        wrong = world.folders.stop(random.choice(_PATHS))
        if wrong is not None:
            raise Difference(wrong)
    if event == "submit and recover":
        dies_at = random.randint(1, 30) if random.random() < 0.3 else None
        world.run(world.submit(plan, path, dies_at=dies_at), world.recover(path))
        return f"submit {plan} and recover in {path}, dies at {dies_at}"
    if event == "recover":
        world.run(
            world.recover(path, dies_at=random.randint(1, 12) if random.random() < 0.3 else None)
        )
    elif event == "wait":
        world.pass_time(random.choice(_WAITS))
    elif event == "set clock":
        world.set_clock(random.choice((-90_000.0, -3600.0, -61.0, 61.0, 3600.0, 90_000.0)))
    elif event == "boot":
        world.boot()
    elif event == "lose":
        world.lose(path, with_folders=random.random() < 0.5)
    elif event == "copy":
        world.copy(_PATHS[0], _PATHS[1])
    elif event == "move":
        world.move(_PATHS[0], _PATHS[1])
    elif event == "kill":
        world.folders.kill_supervisor(with_guard=random.random() < 0.5)
    elif event == "keep":
        old.append((path, StoreFile(world, path, world.store(path).salt, world.store(path).db)))
    elif event == "restore" and old:
        where, file = random.choice(old)
        world.restore(where, file)
    elif event == "reach":
        service = world.services[plan.target]
        service.is_reachable = not service.is_reachable
    return f"{event} {path}"


def _look(world: World) -> None:
    """Somebody asks for all runs of each state folder."""
    for path in _PATHS:
        wrong = world.folders.look(path)
        if wrong is not None:
            raise Difference(wrong)


_EVENTS = (
    "submit", "two submits", "submit and recover", "submit and remove", "recover", "wait", "set clock", "boot", "lose", "copy", "keep",
    "restore", "reach", "move", "kill", "stop", "submit and copy", "submit and move",
)  # fmt: skip
_WEIGHTS = (40, 12, 6, 6, 8, 12, 5, 2, 4, 5, 3, 3, 5, 4, 8, 6, 4, 4)


def _settle(world: World) -> None:
    """Everything that is on its way arrives, everything answers, and every store is looked at once more."""
    with world.without_faults():
        world.pass_time(3600)
        for path in list(world.stores):
            world.run(world.recover(path))


def _check(world: World) -> None:
    jobs = [job for service in world.services.values() for job in service.jobs]
    new: dict[tuple[str, str], Job] = {}
    for intent in world.intents:
        for name, was_offered in intent.told:
            named = [job for job in world.services[intent.plan.target].jobs if job.name == name]
            job = next((job for job in named if job.intent is intent), named[0] if named else None)
            if job is None:
                raise Difference(f"the user was told of `{name}`, which does not exist")
            if job.plan != intent.plan:
                raise Difference(
                    f"the user asked for {intent.plan}, and was told of `{name}`, which is {job.plan}"
                )
            if was_offered:
                if job.intent.store.path != intent.store.path:
                    raise Difference(
                        f"`{name}` was offered to another store than the one that submitted it"
                    )
                continue
            earlier = new.get((intent.plan.target, name))
            if earlier is not None and (earlier is job or not earlier.was_over(job.at)):
                raise Difference(f"two submits were told of `{name}` as new")
            new[intent.plan.target, name] = job
        for name in intent.named:
            if not any((job.name, job.plan) == (name, intent.plan) for job in jobs):
                raise Difference(
                    f"`{name}` was named beside a run of {intent.plan}, and is none of that job"
                )
        _check_not_doubled(intent, jobs, world.intents)
    for file in world.stores.values():
        _check_store(world, file, jobs)
    for name, outcome, is_true in world.recovered:
        if not is_true:
            raise Difference(f"`recover` said that `{name}` is {outcome}, and that was not so")


def _check_not_doubled(intent: Intent, jobs: list[Any], earlier: list[Intent]) -> None:
    own = [job for job in jobs if job.intent is intent]
    if len(own) > 1:
        raise Difference(f"one submit made {len(own)} runs")
    before = earlier[: earlier.index(intent)]
    was_sent_again = own and any(name == own[0].name for other in before for name, _ in other.left)
    for other in intent.outstanding:
        left = [job for job in jobs if job.intent is other]
        if not own or not left:
            continue
        if not was_sent_again and _is_of_the_last_day(other, intent):
            raise Difference(
                f"`{own[0].name}` was started, and nobody was told of `{left[0].name}` of a dead submit"
            )
        if intent.noted and left[0].at <= intent.began and left[0].name not in intent.named:
            raise Difference(
                f"`{own[0].name}` was started, and `{left[0].name}` of a dead submit was not named"
            )


def _is_of_the_last_day(other: Intent, intent: Intent) -> bool:
    """Whether the machine can know that `other` began less than a day before: by its uptime, or by a clock that nobody
    set."""
    can_know = other.boots == intent.boots or other.clock_sets == intent.clock_sets
    return can_know and intent.began - other.began < 24 * 3600


def _check_store(world: World, file: StoreFile, jobs: list[Any]) -> None:
    rows = file.db.execute("SELECT name, target, stage, job_name FROM runs").fetchall()
    known = {(target, name): stage for name, target, stage, _ in rows}
    for (target, name), stage in known.items():
        if stage != "reported":
            raise Difference(f"`{name}` is `{stage}` for ever in the store")
        if not any(job.name == name for job in world.services[target].jobs):
            raise Difference(f"the store has `{name}`, and `{target}` has not")
    for job in jobs:
        if (
            job.intent.store is file
            and not job.is_removed
            and (job.intent.plan.target, job.name) not in known
        ):
            raise Difference(f"`{job.name}` runs, and its store has lost it")


def _story(world: World) -> list[str]:
    lines = [
        f"  intent {number}: {intent.plan} in {intent.store.path}: left {intent.left}, told {intent.told}, {intent.ended}"
        for number, intent in enumerate(world.intents)
    ]
    for service in world.services.values():
        lines += [
            f"  job on {service.kind}: {job.name} of intent {world.intents.index(job.intent)}"
            for job in service.jobs
        ]
    for file in world.stores.values():
        lines += [
            f"  store {file.path}: {row}"
            for row in file.db.execute("SELECT name, stage, store FROM runs")
        ]
    return [*lines, *(f"  recover: {item}" for item in world.recovered)]


def _run(seeds: range) -> list[str]:
    differences = []
    for seed in seeds:
        try:
            history(seed)
        except Difference as error:
            differences.append(str(error))
    return differences


def main() -> int:
    """Run the histories of the command line and say how many differ from the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    ends = range(arguments.seed, arguments.seed + arguments.count)
    chunks = [ends[start : start + 1000] for start in range(0, len(ends), 1000)]
    with Pool(arguments.processes) as pool:
        differences = [text for found in pool.imap_unordered(_run, chunks) for text in found]
    for text in differences[:5]:
        print(text, end="\n\n")
    print(
        f"{arguments.count:,} histories from seed {arguments.seed}: {len(differences):,} differ from the model"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
