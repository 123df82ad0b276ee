"""Find this machine's usable CPUs, GPUs and name, without importing torch."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.core.plan import Machine
from cloudtrain.targets.common.gpus import gpu_ids


def this_machine(environ: Mapping[str, str], *, devices: Path = Path("/dev")) -> Machine:
    """Return the number of CPUs that this process may use, and the GPUs that CUDA_VISIBLE_DEVICES makes visible."""
    return Machine(cpu_count(), gpu_ids(environ, devices=devices))


def cpu_count() -> int:
    """Return the number of logical CPUs that this process may use, also under taskset or in a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_mpirun(python: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of mpirun; None if it is not installed.

    It is searched beside the interpreter `python`, where `pip` and `conda` install it, then on the PATH, then beside
    the interpreter that runs cloudtrain.
    """
    path = environ.get("PATH", os.defpath)
    for folders in (_folder_of(python, path), path, _folder_of(sys.executable, path)):
        found = shutil.which("mpirun", path=folders)
        if found is not None:
            return os.path.abspath(found)  # noqa: PTH100 - a link stays the name that it is called by
    return None


def _folder_of(program: str, path: str) -> str:
    found = shutil.which(program, path=path)
    return os.path.dirname(os.path.abspath(found)) if found else ""  # noqa: PTH100, PTH120 - as above


def host_name() -> str:
    """Return this machine's short name, the HOST in `local://HOST/RUN`."""
    name = os.uname().nodename.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", name) or "localhost"


def loopback_interface() -> str:
    """Return the name of the loopback network interface, such as `lo`."""
    return "lo0" if sys.platform == "darwin" else "lo"
