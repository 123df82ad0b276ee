"""Checks of a plan that ask the cluster and change nothing. A failed query becomes a warning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.errors import TargetError, did_you_mean, join_names, shortened
from cloudtrain.job.model import format_duration, parse_time
from cloudtrain.job.training import TrainingJob
from cloudtrain.machines.table import NodeKind
from cloudtrain.plans.plan import Finding, Plan
from cloudtrain.rules.engine import declare_all, finding_of
from cloudtrain.rules.job import not_asked
from cloudtrain.targets.slurm.runner import Runner, find_errors, rows_of
from cloudtrain.targets.slurm.script import QUESTION, image_of, needed_modules
from cloudtrain.targets.slurm.settings import ASKED, Slurm

declare_all(Path(__file__).with_suffix(".toml"))

_STARTS = r"to start at (?P<time>\S+)"
_GRES = r"(?P<name>[^:]+)(?::(?P<kind>[^:]*[^:\d][^:]*|[^:]+(?=:)))?(?::(?P<count>\d+))?"
"""`gpu`, `gpu:4`, `gpu:a100`, `gpu:a100:4`; a type can be a number or begin with one:
`gpu:3090:4`."""


Row = tuple[str, str]


class Partition(NamedTuple):
    """One line of `sinfo`: a partition, and one type of its nodes."""

    name: str
    names: tuple[str, ...]
    """The name, and for the default an empty one."""
    state: str
    """`up`, `down`, `drain` or `inact`."""
    longest: int | None
    """The time limit of a job in seconds; None without a limit."""
    nodes: int
    gres: str
    idle: int


def check(runner: Runner, job: TrainingJob, settings: Slurm, plan: Plan) -> list[Finding]:
    """Ask the cluster whether it would accept the job, and when it could start, and the interpreter
    whether it has what the job's launcher needs."""
    shared_dir = str(plan.request["folder"]).rpartition("/runs/")[0]
    options = plan.request["argv"][2:-1]  # without `sbatch --parsable` and the script
    script = plan.request["script"].encode()
    try:
        answer = runner.run("look", shared_dir, "sbatch", *options, stdin=script)
    except TargetError as error:
        message = f"the cluster could not be asked about {ASKED}: {error.message}"
        return [finding_of("SL902", message, error.hint)]
    findings = list(_findings_in(rows_of(answer), plan.request["options"], shared_dir))
    return findings + _ask_interpreter(runner, job, settings, plan)


def _ask_interpreter(
    runner: Runner, job: TrainingJob, settings: Slurm, plan: Plan
) -> list[Finding]:
    """Return what the job's interpreter lacks, as the login node sees it. Neither a container is
    asked, nor an interpreter whose path is relative to the code."""
    python = settings.python
    modules = needed_modules(job)
    is_in_image = settings.container is not None and image_of(job) is not None
    is_relative = "/" in python and not python.startswith("/")
    if not modules:
        return []
    if is_in_image or is_relative:
        where = "in the image" if is_in_image else "in the code"
        why = f"`{python}` is {where}, which the login node does not have"
        return [not_asked("the cluster", join_names(modules), why, None)]

    environment = plan.request.get("environment")
    if environment is not None:
        if runner.run("used", environment["folder"]).strip():
            python = f"{environment['folder']}/bin/python"
        else:
            modules = []  # it is asked once it is built
    setup = "\n".join(settings.setup).encode()
    try:
        answer = runner.run("ask", python, "-c", QUESTION, *modules, stdin=setup)
    except TargetError as error:
        return [finding_of("SL902", error.message, error.hint)]
    return list(_interpreter_findings(rows_of(answer), python, job))


def _interpreter_findings(rows: Sequence[Row], python: str, job: TrainingJob) -> Iterator[Finding]:
    """Yield the findings in the output of the script `ask`."""
    values: dict[str, str] = {}
    missing: list[str] = []
    said = []
    for word, rest in rows:
        if word == "@python":  # what is before it was printed by the lines of `setup`
            values.clear()
            missing.clear()
        values[word] = rest
        if word == "@missing":
            missing.append(rest)
        elif not word.startswith("@"):
            said.append(f"{word} {rest}")

    version = values.get("@python")
    if version is None:
        code = values.get("@code")
        cause = find_errors("\n".join(said)) or "it said nothing"
        message = f"`{python}` cannot be asked what it has: {cause}"
        if code == "124":
            message = f"`{python}` did not answer within a minute"
        is_sure = code in ("126", "127")  # bash found no such program, or cannot run it
        yield finding_of("SL908" if is_sure else "SL902", message, _ANOTHER_PYTHON)
        return

    for text in missing:
        module, _, error = text.partition(" ")
        message = f"`{python}` cannot import `{module}`, which the job needs: {error}"
        yield finding_of("SL908", shortened(message, 300), _ANOTHER_PYTHON)
    if "@cpu" in values and job.resources.gpus_per_instance:
        message = f"the torch of `{python}` is built for CPUs, and the job asks for GPUs"
        yield finding_of("SL908", message, "install a torch that is built for CUDA or ROCm")

    numbers = tuple(map(int, version.split(".")[:2]))
    wanted = job.environment.python
    if numbers < (3, 9):
        message = f"`{python}` is Python {version}, and `cloudtrain.runtime` needs 3.9 or newer"
        yield finding_of("SL908", message, _ANOTHER_PYTHON)
    elif wanted is not None and not f"{version}.".startswith(f"{wanted}."):
        message = f"`{python}` is Python {version}, and the job is made for {wanted}"
        yield finding_of("SL909", message, _ANOTHER_PYTHON, ("environment", "python"))


_ANOTHER_PYTHON = "set `python` or `setup` in `[slurm]` to an environment that has it"


def _findings_in(
    rows: Sequence[Row], options: Mapping[str, Any], shared_dir: str
) -> Iterator[Finding]:
    """Yield the findings in the output of the script `look`. `options` are the job's options of
    sbatch."""
    values = dict(rows)
    partitions = []
    messages = []
    for word, rest in rows:
        if word == "@partition":
            partitions.append(parse_partition(rest))
        elif word == "@test":
            messages.append(rest)

    if values.get("@folder") != "yes":
        message = f"`{shared_dir}` does not exist, or you may not write to it"
        hint = "create the folder, or set another `shared_dir` in `[slurm]`"
        yield finding_of("SL906", message, hint)

    findings = list(_partition_findings(partitions, options))
    yield from findings

    answer = "\n".join(messages)
    start = re.search(_STARTS, answer)
    if start is not None:
        message = "the job would start at once"
        if start["time"] > values.get("@now", ""):
            message = _describe_start(start["time"], partitions, options)
        yield finding_of("SL904", message, None)
    elif not findings and values.get("@code") != "0":
        message = find_errors(answer).replace("allocation failure: ", "")
        hint = (
            "look at `[slurm]` in `cloudtrain.toml`; `sinfo` and `sacctmgr show assoc "
            "user=$USER` show what exists"
        )
        if "node configuration" in message:
            hint = "ask for less, or wait for nodes that are down: `sinfo -R` says why they are"
        yield finding_of("SL901", f"Slurm would refuse the job: {message}", hint)


def _describe_start(time: str, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
    """Say when the job would start, if not now. `sbatch --test-only` leaves out the backfill: it
    lets each running job use its whole limit, and each waiting job go first (seen on Slurm 22.05.8:
    two hours for a job that started within five seconds)."""
    names = _partition_names(options)
    idle = 0
    for one in partitions:
        if not names.isdisjoint(one.names) and _has_resources(one, options):
            idle += one.idle

    shown_time = time.replace("T", " ")
    if idle < int(options["nodes"]):
        return (
            f"the job would start at {shown_time}, or earlier if running jobs end before their "
            "limits"
        )
    number = "1 node is" if idle == 1 else f"{idle} nodes are"
    return (
        f"{number} idle, so the job may start at once; without backfill, it would at {shown_time}"
    )


def _partition_names(options: Mapping[str, Any]) -> KeysView[str]:
    """Return the partitions that the job names, in order. Without one, the cluster's default
    applies, which has an empty name."""
    names = str(options.get("partition", "")).split(",")
    return dict.fromkeys([name for name in names if name] or [""]).keys()


def _partition_findings(
    partitions: Sequence[Partition], options: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong with the job's partitions. A job can name several: it starts in the first
    that has room, and a limit counts only if none of them allows the job."""
    groups = []
    for name in _partition_names(options):
        group = [one for one in partitions if name in one.names]
        if group:
            groups.append(group)
        elif name:
            hint = did_you_mean(name, [one.name for one in partitions]) or "see `sinfo --all`"
            yield finding_of("SL903", f"the cluster has no partition `{name}`", hint)
        else:
            hint = "set `partition` in `[slurm]`: see `sinfo`"
            yield finding_of("SL903", "the cluster has no default partition", hint)
    if not groups:
        return

    down = []
    for group in groups:
        first = group[0]  # all lines of a partition have the same state
        if first.state != "up":
            down.append(f"`{first.name}` is not up: its state is `{first.state}`")
    if len(down) == len(groups):
        message = f"the partition {' and '.join(down)}"
        yield finding_of("SL903", message, "choose another one: `sinfo` lists them")

    limits = [list(_limit_findings(group, options)) for group in groups]
    if all(limits):
        yield from limits[0]


def _limit_findings(group: Sequence[Partition], options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what a partition cannot give to the job. `group` are the partition's lines."""
    name = group[0].name
    nodes = sum(one.nodes for one in group)
    if int(options["nodes"]) > nodes:
        message = (
            f"the job asks for {options['nodes']} nodes, but the partition `{name}` has {nodes}"
        )
        hint = f"write `instance_count: {nodes}` or less"
        yield finding_of("SL905", message, hint, ("resources", "instance_count"))

    longest = group[0].longest
    limit = parse_time(str(options.get("time", "")))
    if limit is not None and longest is not None and limit > longest:
        allowed = format_duration(longest)
        message = f"the job may run {format_duration(limit)}, but `{name}` allows {allowed}"
        hint = f"write `max_runtime: {longest // 60}m` or less"
        yield finding_of("SL905", message, hint, ("max_runtime",))

    if not any(_has_resources(one, options) for one in group):
        offers = sorted({f"`{one.gres}`" for one in group if parse_gres(one.gres)})
        has = ", ".join(offers) or "none"
        message = f"no node of `{name}` has `{options['gres']}`: its nodes have {has}"
        hint = "choose another `partition`, `gpu_type` or `gpus_per_instance`"
        yield finding_of("SL907", message, hint)


def _has_resources(one: Partition, options: Mapping[str, Any]) -> bool:
    """Return whether a node has the generic resources that the job asks for, if any."""
    wanted = parse_gres(str(options.get("gres", "")))
    if not wanted:
        return True
    name, kind, count = wanted[0]
    for offered_name, offered_kind, offered_count in parse_gres(one.gres):
        is_right_kind = kind in ("", offered_kind)
        if offered_name == name and is_right_kind and offered_count >= count:
            return True
    return False


def parse_partition(line: str) -> Partition:
    """Parse a line such as `gpu*|up|2-00:00:00|3/1/0/4|gpu:a100:8`."""
    name, state, time_limit, nodes, gres = line.split("|", 4)
    _, idle, _, total = nodes.split("/")  # allocated, idle, other, total
    is_default = name.endswith("*")
    name = name.rstrip("*")
    names = (name, "") if is_default else (name,)
    longest = parse_time(time_limit)
    return Partition(name, names, state, longest, int(total), gres, int(idle))


def parse_gres(text: str) -> list[tuple[str, str, int]]:
    """Parse generic resources, such as `gpu:a100:8(S:0-1),shard:4`. Return name, type and number of
    each."""
    resources = []
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        match = re.fullmatch(_GRES, part.strip())
        if match is not None and match["name"] not in ("null", "N/A"):
            count = int(match["count"] or 1)
            resources.append((match["name"], match["kind"] or "", count))
    return resources


# The nodes of a cluster, as `sinfo` reports them now.

_IDLE = ("idle", "idle~", "idle#")
"""States of idle nodes. `~` and `#` mark nodes of a cloud that are off or starting."""


def list_nodes(runner: Runner) -> list[NodeKind]:
    """Return the kinds of nodes, the largest first."""
    kinds = parse_nodes(runner.run("nodes").decode("utf-8", "replace").splitlines())
    return sorted(kinds, key=lambda kind: (-kind.gpus, -kind.cpus, -kind.memory))


def parse_nodes(lines: Iterable[str]) -> list[NodeKind]:
    """Parse the lines of `sinfo -N -o '%N|%R|%T|%c|%m|%G|%f'`: one for each node and partition."""
    kinds: dict[tuple[str, ...], NodeKind] = {}
    nodes: set[str] = set()
    # sinfo asks for all partitions at the same time, so its lines have no order
    for line in sorted(lines):
        name, partition, state, cpus, memory, gres, features = line.split("|", 6)
        key = (cpus, memory, gres, features)
        if key not in kinds:
            gpus = [(kind, count) for what, kind, count in parse_gres(gres) if what == "gpu"]
            # a `+` after a number means that some nodes have more
            kinds[key] = NodeKind(
                cpus=int(cpus.rstrip("+")),
                memory=int(memory.rstrip("+")) * 2**20,
                gpus=sum(count for _, count in gpus),
                gpu_type=",".join(kind for kind, _ in gpus if kind),
                features=() if features == "(null)" else tuple(features.split(",")),
            )
        kind = kinds[key]
        if partition not in kind.partitions:
            kind.partitions.append(partition)
        if name not in nodes:
            nodes.add(name)
            kind.nodes += 1
            # `*`: the node does not respond just now. sinfo's own counts call it idle too.
            if state.rstrip("*") in _IDLE:
                kind.idle += 1
    return list(kinds.values())
