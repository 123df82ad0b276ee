from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from cloudtrain.cli import options
from cloudtrain.cli.app import refuse_flags
from cloudtrain.cli.options import argument, flag, measured, option, require_word
from cloudtrain.cli.terminal import print_json, say, show, show_table
from cloudtrain.errors import NearName, UsageError, counted, did_you_mean, join_names, quoted
from cloudtrain.job.model import parse_size
from cloudtrain.machines.choose import (
    INTERCONNECTS,
    ORDERS,
    Query,
    count_unpriced,
    select,
    without_each,
)
from cloudtrain.machines.overlay import Refreshed, apply_overlay, user_overlay
from cloudtrain.machines.table import (
    InstanceType,
    ListsNodes,
    NodeKind,
    gpu_names,
    has_gpu,
    instance_named,
    instance_types,
    name_keys,
    table_of,
    tables,
    unknown_gpu,
)
from cloudtrain.plans.document import Document, Heading, Pairs
from cloudtrain.system.plugins import target_names
from cloudtrain.targets.registry import all_targets, require_target, service_of
from cloudtrain.targets.settings import load_settings
from cloudtrain.targets.where import where

Types = Sequence[InstanceType]

Row = tuple[str, ...]
"""A row of a table."""


def _offer(words: Callable[[str], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion function that offers `words(target)` for the target that the command line
    names."""

    def completion(ctx: typer.Context, incomplete: str) -> list[str]:
        target = ctx.params.get("target") or _default_target()
        return [word for word in words(target) if word.startswith(incomplete)]

    return completion


def instances_command(
    name: Annotated[
        str | None,
        argument(
            "[NAME]",
            "A type to show in full.",
            autocompletion=_offer(
                lambda target: [instance.name for instance in instance_types(target)]
            ),
        ),
    ] = None,
    target: Annotated[
        str | None,
        option(
            "--target -t",
            "TARGET",
            (
                "The target. Default: `target` in cloudtrain.toml, else the first target that "
                "lists instance types."
            ),
            autocompletion=options.targets,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(
            "--gpu",
            "GPU",
            "Only types with this GPU: H100, A100-40GB, 'a100 40gb'.",
            autocompletion=_offer(lambda target: gpu_names(instance_types(target))),
        ),
    ] = None,
    gpus: Annotated[
        int | None, option("--gpus", "N", "Only types with N GPUs (0: no GPU).", min=0)
    ] = None,
    interconnect: Annotated[
        str | None,
        option(
            "--interconnect",
            "KIND",
            "Only types with this network: rdma (efa or infiniband), or ethernet (no RDMA).",
            autocompletion=_offer(lambda _: INTERCONNECTS),
        ),
    ] = None,
    min_gpu_memory: Annotated[
        str | None,
        option(
            "--min-gpu-memory",
            "SIZE",
            "Only types with at least this much memory per GPU, for example 40g.",
        ),
    ] = None,
    max_price: Annotated[
        float | None,
        option("--max-price", "USD", "Only types that cost at most this much per hour."),
    ] = None,
    sort: Annotated[
        str,
        option(
            "--sort",
            "KEY",
            "Sort by price (default; cheapest first), name, or gpus, gpu-memory, vcpus, memory, "
            "network (largest first).",
            autocompletion=_offer(lambda _: ORDERS),
        ),
    ] = "price",
    everything: Annotated[
        bool, flag("--all -a", "Show all matching types, not only the first.")
    ] = False,
    retired: Annotated[
        bool, flag("--retired", "Include types that are no longer offered.")
    ] = False,
    count: Annotated[int, option("-n --limit", "N", "Show the first N. Default: 20.", min=1)] = 20,
    refresh: Annotated[
        bool,
        flag(
            "--refresh",
            (
                "First ask your account for the prices in its region; on Azure ML also for types "
                "and quota."
            ),
        ),
    ] = False,
    profile: options.Profile = None,
    json: options.Json = False,
) -> None:
    """List instance types, or the nodes of a cluster.

    \b
    Examples:
      cloudtrain instances --gpu A100
      cloudtrain instances --min-gpu-memory 40g --interconnect rdma
      cloudtrain instances --gpus 1 --max-price 2 --sort gpu-memory
      cloudtrain instances ml.p5.48xlarge
      cloudtrain instances --target azureml --interconnect infiniband
      cloudtrain instances --target slurm
      cloudtrain instances --all --json | jq -r '.[].name'

    Prices are list prices. To set your own prices or add missing types, write them
    into `instances.toml`, beside cloudtrain.toml or in the project:

    \b
      [sagemaker."ml.p5.48xlarge"]
      price = 55.04
    """
    target = target or _default_target()
    if refresh:
        say(*_refresh_types(target, profile))
    if _show_nodes_of(target, name, profile, json=json):
        return

    every = _types(target)
    memory = None
    if min_gpu_memory is not None:
        memory = measured(parse_size, min_gpu_memory, "40g") / 2**30
    query = Query(gpu, gpus, interconnect, memory, max_price)
    _check(every, query, sort)
    if name is None:
        types = [instance for instance in every if retired or not instance.retired]
        _list_types(types, every, query, sort, None if everything else count, as_json=json)
        return
    refuse_flags(name, dict.fromkeys(map(_flag, query.fields()), True))
    instance = _type_named(name, every)
    if json:
        print_json(asdict(instance))
    else:
        show(_page_of(instance), sys.stdout)


def _list_types(
    types: Types,
    every: Types,
    query: Query,
    sort: str,
    count: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the first `count` of the `types` that match. `every` includes the types that are no
    longer offered."""
    matches = select(types, query, sort)
    first = matches[:count]
    if as_json:
        print_json(list(map(asdict, first)))
    elif first and _has_infiniband(first):
        # the names are long, so the units are left out
        headers = ("NAME", "GPUS", "GPU", "vCPU", "GiB", "IB", "USD/H")
        show_table(headers, map(_infiniband_row, first))
    elif first:
        headers = ("NAME", "GPUS", "GPU", "vCPU", "MEMORY", "NETWORK", "USD/H")
        show_table(headers, map(_row, first))

    # of `types` without the retired ones, this many match all the same
    retired_count = len(select(every, query)) - len(matches)
    if not matches:
        _say_nothing(types, query, retired_count)
        return

    lines = []
    if len(first) < len(matches):
        lines.append(f"the first {len(first)} of {len(matches)}; `--all` lists all")
    unknown = 0 if query.max_price is None else count_unpriced(types, query)
    if unknown:
        lines.append(
            f"{unknown} more would match, but have no known price; omit `--max-price` to see them"
        )
    if retired_count:
        lines.append(
            f"{retired_count} more would match, but are no longer offered; `--retired` lists them"
        )
    if not as_json:
        lines.append(_note(first))
    if lines:
        say(*lines)


def _show_nodes_of(target: str, name: str | None, profile: str | None, *, json: bool) -> bool:
    """If the target is a cluster that lists its nodes, print the current nodes and return True;
    else return False."""
    if target not in target_names() or table_of(target) is not None:
        return False
    service = service_of(target, load_settings())
    if not isinstance(service, ListsNodes):
        return False
    if name is not None:
        message = f"the nodes of `{target}` have no type names, so no name can be looked up"
        raise UsageError(message, hint=f"remove `{name}`", code="CT902")

    kinds = service.instances(where(target, profile=profile).account.place)
    if json:
        print_json(list(map(asdict, kinds)))
    else:
        headers = ("NODES", "IDLE", "GPUS", "GPU", "vCPU", "MEMORY", "PARTITIONS", "FEATURES")
        show_table(headers, map(_node_row, kinds))
    return True


def _types(target: str) -> Types:
    """Return a target's types, with the user's own prices and types. Raises UsageError if it has no
    table."""
    require_target(target)
    types = apply_overlay(instance_types(target), user_overlay(target=target), target)
    if not types:
        flags = " or ".join(f"`--target {name}`" for name in tables())
        message = f"there is no table of instance types for `{target}`"
        raise UsageError(message, hint=f"use {flags}", code="CT929")
    return types


def _check(types: Types, query: Query, sort: str) -> None:
    """Raise UsageError for a filter or an order that cannot be meant."""
    gpu = query.gpu
    if gpu is not None and not any(has_gpu(instance, gpu) for instance in types):
        message, hint = unknown_gpu(gpu, types)
        raise UsageError(message, hint=hint, code="CT929")
    if query.interconnect is not None:
        require_word("interconnect", query.interconnect, INTERCONNECTS)
    price = query.max_price
    if price is not None and not price > 0:  # which NaN is not, either
        raise UsageError(
            f"`--max-price {price:g}` is not a price", hint="write for example `2.50`", code="CT909"
        )
    require_word("sort key", sort, ORDERS)


def _type_named(name: str, types: Types) -> InstanceType:
    """Return the type called `name` in any of its spellings. Raises UsageError if there is none."""
    target = types[0].target
    key_of = name_keys(target)
    instances = {key_of(instance.name): instance for instance in types}
    instance = instances.get(key_of(name))
    if instance is not None:
        return instance
    hint = _nearest(name, target, [instance.name for instance in types])
    raise UsageError(f"there is no instance type `{name}` on {target}", hint=hint, code="CT929")


def _default_target() -> str:
    """Return the target in the settings if it has a table of types, else the first target with a
    table."""
    targets = list(tables())
    own = load_settings().default_target
    return own if own in targets else targets[0]


def _nearest(name: str, target: str, names: Sequence[str]) -> str:
    """Return a hint for an unknown type: another target with it, the most similar type, or how to
    list all types; and the target's explanation of the name if it has one."""
    for other in tables():
        if other != target and instance_named(other, name):
            return f"add `--target {other}`"
    table = tables()[target]
    key_of = name_keys(target)
    with_prefix = key_of(table.prefix + name)
    match = next((other for other in names if key_of(other) == with_prefix), None)
    near = NearName.of(match) if match else did_you_mean(name, names)

    explanation = table.explain_unknown(name)
    if not isinstance(near, NearName):
        flag = "" if target == _default_target() else f" --target {target}"
        hint = f"`cloudtrain instances{flag} --all` lists all types"
        return hint if explanation is None else f"{hint}; {explanation}"
    if explanation is None:
        return near
    return f"{near} {explanation[0].upper()}{explanation[1:]}"


def _note(types: Types) -> str:
    """Return the line below the table: the target, the unit of the network, the dates of the prices
    or where those without a date come from, and how to set your own prices."""
    unit = "network in Gbit/s"
    if _has_infiniband(types):
        unit = "IB is InfiniBand in Gbit/s"
        if any(instance.fabric and instance.interconnect == "ethernet" for instance in types):
            unit += ", (no) InfiniBand without SR-IOV, which NCCL cannot use"

    dates = []
    undated = []
    for instance in types:
        if instance.price is None or instance.retired:
            continue
        source = instance.price_source
        if instance.price_date:
            dates.append(instance.price_date)
        elif source.startswith("/"):
            undated.append(source)
        else:
            undated.append(source.partition(" ")[0].rstrip(","))

    words = []
    if dates:
        first_and_last = dict.fromkeys((min(dates), max(dates)))
        words.append("of " + " to ".join(first_and_last))
    if undated:
        some = "some " if dates else ""
        sources = " and ".join(dict.fromkeys(undated))
        words.append(f"{some}from {sources}, which gives no date")
    prices = f"list prices {', '.join(words)}" if words else "no price is known"
    own = "write your own into `instances.toml`, see `cloudtrain instances -h`"
    return f"types of {types[0].target}; {unit}; {prices}; {own}"


def _say_nothing(types: Types, query: Query, retired_count: int) -> None:
    """Print why no type matches: how many would match without each filter, or that the filters
    exclude each other."""
    lines = ["no instance type matches"]
    if retired_count:
        lines.append(
            f"{retired_count} would match, but are no longer offered; `--retired` lists them"
        )
    for field, number in without_each(types, query).items():
        if number:
            lines.append(f"without `{_flag(field)}` {number} would match")
    if len(lines) == 1:
        flags = quoted(map(_flag, query.fields()))
        lines[0] += f"; {flags} exclude each other"
    elif query.max_price is not None:
        unknown = count_unpriced(types, query)
        if unknown:
            lines.append(f"{unknown} would match, but have no known price")
    say(*lines)


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


# Instance types as documents: a table of types for 80 columns, and a page with all facts about one
# type.

_FABRIC = {"efa": "EFA", "infiniband": "InfiniBand", "": ""}

_SHORT_FABRIC = {"efa": "EFA", "infiniband": "IB", "": ""}


def _node_row(kind: NodeKind) -> Row:
    gib = kind.memory / 2**30
    memory = f"{gib:.0f} GiB"
    partitions = ", ".join(kind.partitions)
    features = ", ".join(kind.features) or "-"
    counts = map(str, (kind.nodes, kind.idle, kind.gpus or "-"))
    gpu = kind.gpu_type or "-"
    return (*counts, gpu, str(kind.cpus), memory, partitions, features)


def _has_infiniband(types: Types) -> bool:
    table = table_of(types[0].target)
    return table is not None and table.fabric == "infiniband"


def _page_of(instance: InstanceType) -> Document:
    """Return a page with all known facts about a type and their sources."""
    table = table_of(instance.target)
    rows = _machine_rows(instance)
    if table is not None:
        rows += table.describe(instance)
    rows += [*_price_rows(instance), ("source", instance.source)]
    return Document([Heading(instance.name), Pairs(rows)])


def _row(instance: InstanceType) -> Row:
    """Return the row of a type: its network in Gbit/s, with the kind of RDMA."""
    network = "-"
    if instance.network_gbps is not None:
        network = f"{instance.network_gbps:g}"
    if instance.interconnect == "rdma":
        network = f"{network} {_SHORT_FABRIC[instance.fabric]}".strip()
    memory = f"{instance.memory_gib:g} GiB"
    accelerator = instance.gpu or instance.neuron
    return (*_first_cells(instance, accelerator), memory, network, _price(instance))


def _infiniband_row(instance: InstanceType) -> Row:
    """Return the row of a type: its InfiniBand in Gbit/s; `(no)` marks one without SR-IOV, which
    NCCL cannot use."""
    infiniband = "-"
    if instance.interconnect == "rdma":
        infiniband = f"{instance.network_gbps:g}" if instance.network_gbps else "yes"
    elif instance.fabric:
        infiniband = "(no)"
    memory = f"{instance.memory_gib:g}"
    return (*_first_cells(instance, instance.gpu), memory, infiniband, _price(instance))


def _first_cells(instance: InstanceType, accelerator: str) -> Row:
    """Return the cells NAME, GPUS, GPU and vCPU."""
    gpus = str(instance.gpus or "-")
    return instance.name, gpus, accelerator or "-", str(instance.vcpus)


def _price(instance: InstanceType) -> str:
    if instance.retired:
        return "retired"
    if instance.price is None:
        return "-"
    return f"{instance.price:.2f}"


def _machine_rows(instance: InstanceType) -> list[tuple[str, str]]:
    rows = [("target", instance.target)]
    if instance.neuron:
        devices = _devices(instance.neuron_devices, instance.neuron, instance.neuron_memory_gib)
        rows.append(("Neuron", f"{devices}, {instance.neuron_cores} logical cores in all"))
    if instance.retired:
        rows.append(("retired", instance.retired))
    if instance.retires:
        rows.append(("retires", f"{instance.retires}, still offered until then"))

    gpus = _devices(instance.gpus, instance.gpu, instance.gpu_memory_gib)
    if instance.gpu_slice:
        gpus += f", {instance.gpu_slice} of an {instance.gpu_model}"
    rows += [
        ("GPUs", gpus),
        ("vCPUs", f"{instance.vcpus} ({instance.architecture})"),
        ("memory", f"{instance.memory_gib:g} GiB"),
        ("network", _network(instance)),
        ("interconnect", _interconnect(instance)),
    ]
    if instance.quota_vcpus is not None:
        at_once = instance.quota_vcpus // instance.vcpus if instance.vcpus else 0
        rows.append(("quota", f"{instance.quota_vcpus} vCPUs of its family: {at_once} at once"))
    return rows


def _network(instance: InstanceType) -> str:
    """Return the provider's words, and the speed unless they have it. The speed of InfiniBand is in
    the row `interconnect`."""
    words = instance.network
    speed = instance.network_gbps
    if not words:
        return "not known"
    if speed is None or instance.fabric == "infiniband" or f"{speed:g} Gigabit" in words:
        return words
    return f"{words}, {speed:g} Gbit/s in all"


def _devices(number: int, model: str, memory_gib: float) -> str:
    """Return the devices of an instance with their memory: `1 x A10G (24 GiB)`."""
    if not number:
        return "none"
    if not memory_gib:
        return f"{number} x {model} (memory not known)"
    if number == 1:
        return f"1 x {model} ({memory_gib:g} GiB)"
    total = number * memory_gib
    return f"{number} x {model} ({memory_gib:g} GiB each, {total:g} GiB in all)"


def _interconnect(instance: InstanceType) -> str:
    fabric = _FABRIC[instance.fabric]
    if instance.interconnect != "rdma":
        if not fabric:
            return "ethernet"
        return f"ethernet ({fabric} without SR-IOV, which NCCL cannot use)"

    is_infiniband = instance.fabric == "infiniband"
    words = fabric
    if instance.interfaces:
        noun = "port" if is_infiniband else "interface"
        words += f", {counted(instance.interfaces, noun)}"
    if is_infiniband and instance.network_gbps is not None:
        words += f", {instance.network_gbps:g} Gbit/s"
        if instance.interfaces > 1:
            words += " in all"
    return f"rdma ({words})"


def _price_rows(instance: InstanceType) -> list[tuple[str, str]]:
    rows = [("price", "not known")]
    if instance.price is not None:
        price = _dollars(instance.price, instance.price_date)
        rows = [("price", price), ("", instance.price_source)]
    if instance.machine_price is not None:
        text = _dollars(instance.machine_price, instance.machine_price_date)
        rows += [
            ("machine only", f"{text}; with the service it costs more"),
            ("", instance.machine_price_source),
        ]
    return rows


def _dollars(price: float, date: str) -> str:
    when = f" on {date}" if date else ", date not known"
    return f"{price:g} USD an hour{when}"


# `cloudtrain instances --refresh`: ask a target's service for its current instance types and
# prices.

_MOST_NAMED = 5
"""The most new types that a line names."""


@runtime_checkable
class CanRefresh(Protocol):
    """A service that can list its current instance types and prices."""

    def refresh_catalogue(self, settings: Any) -> Refreshed:
        """Ask the service for its types, and write them into the user's configuration folder.
        Raises `TargetError` if it does not answer or refuses, and `SettingsError` if required
        account settings are missing."""
        ...


def _refresh_types(target: str, profile: str | None) -> Iterator[str]:
    """Refresh the target's table of types, and yield lines that report the result."""
    settings = load_settings()
    service = service_of(target, settings)
    if not isinstance(service, CanRefresh):
        flags = []
        for other in all_targets():
            if isinstance(service_of(other.name, settings), CanRefresh):
                flags.append(f"`--target {other.name}`")
        message = (
            f"the types of `{target}` cannot be refreshed, because their table is part of "
            "cloudtrain"
        )
        hint = f"use {' or '.join(flags)}" if flags else "upgrade cloudtrain for a newer table"
        raise UsageError(message, hint=hint)

    result = service.refresh_catalogue(settings.target(target, profile=profile))
    yield f"{result.types} types of {result.location} written to {result.file}"
    if result.new_types:
        yield f"new in the catalogue: {join_names(result.new_types, _MOST_NAMED)}"
    yield from result.notes
