"""What this machine has, read without importing torch: CPUs that may be used, GPUs, and its name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.plans import Machine

_DEVICE = re.compile(r"nvidia(\d+)")


def this_machine(environ: Mapping[str, str], *, devices: Path = Path("/dev")) -> Machine:
    """CPUs that this process may run on, and the GPUs that CUDA_VISIBLE_DEVICES leaves of those that exist."""
    return Machine(cpu_count(), gpu_ids(environ, devices=devices))


def cpu_count() -> int:
    """Logical CPUs, those that taskset or a container took away left out."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_ids(environ: Mapping[str, str], *, devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The ids of CUDA_VISIBLE_DEVICES (indices, UUIDs or MIG names), or those of `/dev/nvidia*`.

    As in CUDA, an empty value hides all GPUs, and everything from the first `-1` on is hidden.
    """
    present = sorted(int(match[1]) for path in _listing(devices) if (match := _DEVICE.fullmatch(path)))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(map(str, range(len(present))))
    if not present:
        return ()
    ids = [part.strip() for part in visible.split(",")]
    end = next((index for index, part in enumerate(ids) if part in ("", "-1", "NoDevFiles", "none", "void")), len(ids))
    return tuple(ids[:end])


def host_name() -> str:
    """The machine's short name, as it stands in `local://HOST/RUN`."""
    name = os.uname().nodename.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", name) or "localhost"


def _listing(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
