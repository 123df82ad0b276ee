"""The choice of one instance type for the `gpu` (`A100-40GB`), `gpus_per_instance` and `interconnect` of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any

from cloudtrain.catalogue.gpus import has_gpu, same_model, unknown_gpu
from cloudtrain.catalogue.instances import InstanceType, Interconnect, instance_types, instances_where
from cloudtrain.errors import JobError, Problem


def choose(
    target: str,
    *,
    gpu: str,
    gpus_per_instance: int | None = None,
    interconnect: Interconnect | None = None,
    types: Sequence[InstanceType] | None = None,
) -> InstanceType:
    """Return the instance type for a job. `types` replaces the target's table.

    A type fits if it has the GPU `gpu`, `gpus_per_instance` GPUs (None: any number), and with `interconnect="rdma"`
    also RDMA. With `interconnect="ethernet"`, all types fit, because every type has Ethernet.

    Of the types that fit, the best is chosen by these criteria, in this order: not retired, whole GPUs before slices of
    a GPU, fewer GPUs, lower price, less GPU memory, fewer vCPUs, less memory, lower price without the training service,
    newer generation, name. If one of the types (except retired ones) has no known price, the price comes only after
    the memory.

    Raises:
        JobError: no type has that GPU, that number of GPUs, or RDMA. The hint names the GPUs, numbers or types that
            are available.
    """
    candidates = instances_where(target, "gpu", lambda cell: same_model(gpu, cell)) if types is None else types
    same_gpu = [instance for instance in candidates if has_gpu(instance, gpu)]
    if not same_gpu:
        raise _no_such_gpu(target, gpu, instance_types(target) if types is None else types)
    same_count = [instance for instance in same_gpu if gpus_per_instance in (None, instance.gpus)]
    if not same_count:
        raise _wrong("gpus_per_instance", *_wrong_count(gpu, gpus_per_instance, same_gpu))
    fitting = [instance for instance in same_count if interconnect != "rdma" or instance.interconnect == "rdma"]
    if not fitting:
        raise _wrong("interconnect", *_without_rdma(gpu, gpus_per_instance, same_gpu))
    offered = [instance for instance in fitting if not instance.retired] or fitting
    priced = all(instance.price is not None for instance in offered)
    return min(fitting, key=lambda instance: _rank(instance, priced))


def _no_such_gpu(target: str, gpu: str, table: Sequence[InstanceType]) -> JobError:
    if table:
        return _wrong("gpu", *unknown_gpu(gpu, table))
    message = f"there is no table of instance types for `{target}`, so none can be chosen by its GPU"
    return _wrong("gpu", message, "name a type with `instance_type`")


def _rank(instance: InstanceType, priced: bool) -> tuple[Any, ...]:
    price = inf if instance.price is None else instance.price
    machine_price = inf if instance.machine_price is None else instance.machine_price
    return (
        bool(instance.retired), bool(instance.gpu_slice), instance.gpus, price if priced else 0.0,
        instance.gpu_memory_gib, instance.vcpus, instance.memory_gib,
        price, machine_price, -_generation(instance.family), instance.name,
    )  # fmt: skip


def _generation(family: str) -> int:
    """Return the generation in the name of a family: 5 for `p5en` and for `NCads H100 v5`."""
    found = re.search(r"v(\d+)$", family) or re.match(r"[a-zA-Z]+(\d+)", family)
    return int(found[1]) if found else 0


def _wrong_count(gpu: str, count: int | None, same_gpu: Sequence[InstanceType]) -> tuple[str, str]:
    message = f"no instance type has {count} x `{gpu}`"
    counts = sorted({instance.gpus for instance in same_gpu})
    smallest = [min((t for t in same_gpu if t.gpus == number), key=lambda t: _rank(t, False)) for number in counts]
    there_are = ", ".join(f"{instance.gpus} (`{instance.name}`)" for instance in smallest)
    return message, f"use {there_are}"


def _without_rdma(gpu: str, count: int | None, same_gpu: Sequence[InstanceType]) -> tuple[str, str]:
    what = f"`{gpu}`" if count is None else f"{count} x `{gpu}`"
    message = f"no instance type with {what} has RDMA"
    there_are = [instance for instance in same_gpu if instance.interconnect == "rdma"]
    if not there_are:
        return message, "remove `interconnect: rdma`; the instances then communicate over TCP, which is slower"
    there_are.sort(key=lambda instance: _rank(instance, False))
    return message, "these types have it: " + ", ".join(f"`{t.name}` ({t.hardware})" for t in there_are)


def _wrong(field: str, message: str, hint: str | None) -> JobError:
    return JobError([Problem(("resources", field), message, hint, code="CT033")])
