"""Checks of a plan that ask the cluster and change nothing. A failed query becomes a warning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import TargetError, did_you_mean
from cloudtrain.job.model import format_duration, parse_time
from cloudtrain.machines.table import NodeKind
from cloudtrain.plans.plan import Finding, Plan
from cloudtrain.rules.engine import declare_all, level_of
from cloudtrain.targets.slurm.runner import Runner, find_errors

declare_all(Path(__file__).with_suffix(".toml"))

_STARTS = re.compile(r"to start at (?P<time>\S+)")
_GRES = re.compile(
    r"(?P<name>[^:]+)(?::(?P<kind>[^:]*[^:\d][^:]*|[^:]+(?=:)))?(?::(?P<count>\d+))?"
)
"""`gpu`, `gpu:4`, `gpu:a100`, `gpu:a100:4`; a type can be a number or begin with one:
`gpu:3090:4`."""


@dataclass(frozen=True)
class Partition:
    """One line of `sinfo`: a partition, and one type of its nodes."""

    name: str
    is_default: bool
    state: str
    """`up`, `down`, `drain` or `inact`."""
    longest: int | None
    """The time limit of a job in seconds; None without a limit."""
    nodes: int
    gres: str
    idle: int = 0


def check(runner: Runner, plan: Plan) -> list[Finding]:
    shared_dir = str(plan.request["folder"]).rpartition("/runs/")[0]
    argv = [word for word in plan.request["argv"][:-1] if word != "--parsable"]
    script = str(plan.request["script"]).encode()
    try:
        answer = runner.run("look", shared_dir, *argv, stdin=script).decode("utf-8", "replace")
    except TargetError as error:
        return [_finding("SL902", error.message, error.hint)]
    return list(_judge(answer.splitlines(), plan.request["options"], shared_dir))


def _judge(lines: Sequence[str], options: Mapping[str, Any], shared_dir: str) -> Iterator[Finding]:
    values = {word: rest for word, _, rest in (line.partition(" ") for line in lines)}
    partitions = [
        parse_partition(line.removeprefix("@partition "))
        for line in lines
        if line.startswith("@partition ")
    ]
    if values.get("@folder") != "yes":
        message = f"`{shared_dir}` does not exist, or you may not write to it"
        yield _finding(
            "SL906", message, "create the folder, or set another `shared_dir` in `[slurm]`"
        )
    findings = list(_partition_findings(partitions, options))
    yield from findings
    answer = "\n".join(line.removeprefix("@test ") for line in lines if line.startswith("@test "))
    start = _STARTS.search(answer)
    if start is not None:
        yield _finding(
            "SL904",
            _words_of_start(start["time"], values.get("@now", ""), partitions, options),
            None,
        )
    elif not findings and values.get("@code") != "0":
        message = find_errors(answer).replace("allocation failure: ", "")
        hint = (
            "look at `[slurm]` in `cloudtrain.toml`; `sinfo` and `sacctmgr show assoc "
            "user=$USER` show what exists"
        )
        if "node configuration" in message:
            hint = "ask for less, or wait for nodes that are down: `sinfo -R` says why they are"
        yield _finding("SL901", f"Slurm would refuse the job: {message}", hint)


def _words_of_start(
    time: str, now: str, partitions: Sequence[Partition], options: Mapping[str, Any]
) -> str:
    """`sbatch --test-only` leaves out the backfill: it lets each running job use its whole limit,
    and each waiting job go first (seen on Slurm 22.05.8: two hours for a job that started within
    five seconds)."""
    names = [name for name in str(options.get("partition", "")).split(",") if name]
    mine = [one for one in partitions if (one.name in names if names else one.is_default)]
    idle = sum(one.idle for one in mine if _has_resources(one, options))
    if time <= now:
        return "the job would start at once"
    if idle >= int(options.get("nodes", 1)):
        number = "1 node is" if idle == 1 else f"{idle} nodes are"
        return (
            f"{number} idle, so the job may start at once; without backfill, it would at "
            f"{time.replace('T', ' ')}"
        )
    return (
        f"the job would start at {time.replace('T', ' ')}, or earlier if running jobs end "
        "before their limits"
    )


def _partition_findings(
    partitions: Sequence[Partition], options: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong with the job's partitions. A job can name several: it starts in the first
    that has room, and a limit counts only if none of them allows the job."""
    names = [name for name in str(options.get("partition", "")).split(",") if name]
    for name in names:
        if name not in {one.name for one in partitions}:
            hint = did_you_mean(name, [one.name for one in partitions]) or "see `sinfo --all`"
            yield _finding("SL903", f"the cluster has no partition `{name}`", hint)
    groups = [[one for one in partitions if one.name == name] for name in names]
    groups = (
        [group for group in groups if group]
        if names
        else [[one for one in partitions if one.is_default]]
    )
    if not names and not groups[0]:
        yield _finding(
            "SL903",
            "the cluster has no default partition",
            "set `partition` in `[slurm]`: see `sinfo`",
        )
    if not groups or not groups[0]:
        return
    states = {group[0].name: group[0].state for group in groups if group[0].state != "up"}
    if len(states) == len(groups):
        what = " and ".join(
            f"`{name}` is {_STATES.get(state, state)}" for name, state in states.items()
        )
        yield _finding("SL903", f"the partition {what}", "choose another one: `sinfo` lists them")
    limits = [list(_limit_findings(group, options)) for group in groups]
    if all(limits):
        yield from limits[0]


_STATES = {"drain": "drained and takes no new jobs", "inact": "inactive: it takes no jobs"}


def _limit_findings(mine: Sequence[Partition], options: Mapping[str, Any]) -> Iterator[Finding]:
    nodes, longest = sum(one.nodes for one in mine), mine[0].longest
    if int(options.get("nodes", 1)) > nodes:
        message = (
            f"the job asks for {options['nodes']} nodes, but the partition "
            f"`{mine[0].name}` has {nodes}"
        )
        yield _finding(
            "SL905",
            message,
            f"write `instance_count: {nodes}` or less",
            ("resources", "instance_count"),
        )
    limit = parse_time(str(options["time"])) if "time" in options else None
    if limit is not None and longest is not None and limit > longest:
        message = (
            f"the job may run {format_duration(limit)}, but `{mine[0].name}` allows "
            f"{format_duration(longest)}"
        )
        yield _finding(
            "SL905", message, f"write `max_runtime: {longest // 60}m` or less", ("max_runtime",)
        )
    if not any(_has_resources(one, options) for one in mine):
        resources = sorted({one.gres for one in mine if parse_gres(one.gres)})
        has = f"its nodes have {', '.join(f'`{gres}`' for gres in resources) or 'none'}"
        message = f"no node of `{mine[0].name}` has `{options['gres']}`: {has}"
        yield _finding(
            "SL907", message, "choose another `partition`, `gpu_type` or `gpus_per_instance`"
        )


def _has_resources(one: Partition, options: Mapping[str, Any]) -> bool:
    """Return whether a node has the generic resources that the job asks for, if any."""
    for name, kind, count in parse_gres(str(options.get("gres", "")))[:1]:
        offers = parse_gres(one.gres)
        return any(
            offer[0] == name and (not kind or offer[1] == kind) and offer[2] >= count
            for offer in offers
        )
    return True


def parse_partition(line: str) -> Partition:
    name, state, longest, nodes, gres = line.split("|", 4)
    _, idle, _, total = (int(count) for count in nodes.split("/"))  # allocated, idle, other, total
    return Partition(
        name.rstrip("*"), name.endswith("*"), state, parse_time(longest), total, gres, idle
    )


def parse_gres(text: str) -> list[tuple[str, str, int]]:
    """Parse generic resources, such as `gpu:a100:8(S:0-1),shard:4`. Return name, type and number of
    each."""
    matches = [_GRES.fullmatch(part.strip()) for part in re.sub(r"\([^)]*\)", "", text).split(",")]
    return [
        (match["name"], match["kind"] or "", int(match["count"] or 1))
        for match in matches
        if match is not None and match["name"] not in ("null", "N/A")
    ]


def _finding(code: str, message: str, hint: str | None, path: tuple[str, ...] = ()) -> Finding:
    return Finding(code, level_of(code), message, hint, path)


# The nodes of a cluster, as `sinfo` reports them now.

_IDLE = ("idle", "idle~", "idle#")
"""States of idle nodes. `~` and `#` mark nodes of a cloud that are off or starting."""


def list_nodes(runner: Runner) -> list[NodeKind]:
    kinds = parse_nodes(runner.run("nodes").decode("utf-8", "replace").splitlines())
    return sorted(kinds, key=lambda kind: (-kind.gpus, -kind.cpus, -kind.memory))


def parse_nodes(lines: Iterable[str]) -> list[NodeKind]:
    """Parse the lines of `sinfo -N -o '%N|%R|%T|%c|%m|%G|%f'`: one for each node and partition."""
    kinds: dict[tuple[object, ...], NodeKind] = {}
    nodes: set[str] = set()
    # sinfo asks for all partitions at the same time, so its lines have no order
    for line in sorted(lines):
        name, partition, state, cpus, memory, gres, features = line.split("|", 6)
        gpus = [(kind, count) for what, kind, count in parse_gres(gres) if what == "gpu"]
        names = () if features == "(null)" else tuple(features.split(","))
        model = ",".join(kind for kind, _ in gpus if kind)
        size = (
            int(cpus.rstrip("+")),
            int(memory.rstrip("+")) * 2**20,
            sum(count for _, count in gpus),
        )
        kind = kinds.setdefault((cpus, memory, gres, names), NodeKind(*size, model, names))
        if partition not in kind.partitions:
            kind.partitions.append(partition)
        if name not in nodes:
            nodes.add(name)
            kind.nodes += 1
            kind.idle += state.rstrip("*") in _IDLE
    return list(kinds.values())
