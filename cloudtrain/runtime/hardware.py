"""Find this machine's usable CPUs, its GPUs, and those that CUDA_VISIBLE_DEVICES makes visible."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile

VISIBLE = "CUDA_VISIBLE_DEVICES"

_DEVICE = re.compile(r"nvidia(\d+)")
_END = ("", "-1", "NoDevFiles", "none", "void")


def cpu_count() -> int:
    """Return the number of logical CPUs that this process may use, also under taskset or in a
    container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_ids(
    environ: Mapping[str, str], *, devices: str | os.PathLike[str] = "/dev"
) -> tuple[str, ...]:
    """Return the ids of the visible GPUs: from CUDA_VISIBLE_DEVICES (indices, UUIDs or MIG names)
    if it is set, otherwise the numbers of the GPU device files in `devices`. Without such files,
    return no ids."""
    present = present_gpus(devices)
    if present and VISIBLE in environ:
        return visible_ids(environ[VISIBLE])
    return tuple(map(str, range(present)))


def chosen_gpus(gpus: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPU ids in the setting `gpus` that CUDA_VISIBLE_DEVICES makes visible; if this
    variable is not set, return all ids in the setting. The GPUs themselves may not exist."""
    visible = visible_ids(environ.get(VISIBLE, gpus))
    return tuple(gpu for gpu in visible_ids(gpus) if gpu in visible)


def visible_ids(text: str) -> tuple[str, ...]:
    """Parse a value of CUDA_VISIBLE_DEVICES. As in CUDA, an empty value means no GPUs, and the ids
    after `-1` are ignored."""
    ids = map(str.strip, text.split(","))
    return tuple(takewhile(lambda part: part not in _END, ids))


def present_gpus(devices: str | os.PathLike[str]) -> int:
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(devices)  # No pathlib here.
    return len(list(filter(_DEVICE.fullmatch, names)))
