"""Pure functions that compute the arguments and environment of each process of a run from a
request."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan, Upload
from cloudtrain.plans.processes import Process
from cloudtrain.runtime.hardware import cpu_count, gpu_ids
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.common.specification import LaunchSpecification

# Accounts and plans for jobs that run on this machine, with or without emulation of another target.


class LocalAccount(NamedTuple):
    """The folder of the runs, this machine's CPUs and GPUs, and its programs. All paths are
    absolute."""

    state_dir: str
    python: str
    machine: Machine
    host: str = "localhost"
    mpirun: str | None = None
    loopback: str = "lo"
    """The name of the loopback network interface."""
    fork_variables: Mapping[str, str] = {}
    """The variables that a process needs which forks after it has imported torch."""
    interpreter: tuple[str, str] = ("", "")
    """The interpreter of the settings, and the real file behind its links; empty if no environment
    is built on it."""
    emulated: Any = None
    """The settings of the emulated target; None without emulation."""

    @property
    def place(self) -> str:
        return self.host

    def run_dir(self, run_name: str) -> str:
        return f"{self.state_dir}/runs/{run_name}"

    def archive(self, bundle: Bundle) -> str:
        return f"{self.state_dir}/bundles/{bundle.sha256}/sourcedir.tar.gz"


class LocalSettings(Protocol):
    """The settings that an emulation needs; their model, which no other target may import,
    describes them."""

    @property
    def python(self) -> str | None: ...
    @property
    def instance_count(self) -> int | None: ...
    @property
    def processes_per_instance(self) -> int | None: ...
    @property
    def grace_period(self) -> int: ...
    @property
    def emulate(self) -> str | None: ...


def local_plan(
    specification: LaunchSpecification,
    job_name: str,
    context: CompileContext,
    *,
    processes: Sequence[Process],
    summary: Iterable[tuple[str, str]],
    notes: Iterable[str] = (),
) -> Plan:
    """Return the plan whose request is this launch specification. `context.account` must be a
    `LocalAccount`."""
    bundle = context.bundle
    code = Upload("code", bundle.sha256, specification.code.archive, bundle.size, bundle.file_count)
    return Plan(
        target=DEFAULT_TARGET,
        run_name=specification.name,
        job_name=job_name,
        request=specification.to_json(),
        uploads=(code,),
        processes=processes,
        summary=tuple(summary),
        notes=tuple(notes),
        place=context.account.place,
        outputs=local_outputs(specification),
    )


def local_outputs(specification: LaunchSpecification) -> dict[str, str]:
    """Map each output to its folder, except the logs. If several instances have a folder for the
    output, it is the first instance's."""
    outputs: dict[str, str] = {}
    for name, folders in specification.downloads().items():
        if name != "logs":
            outputs[name] = str(folders[0])
    return outputs


# Find this machine's usable CPUs, GPUs and name, without importing torch.


def this_machine(environ: Mapping[str, str], *, devices: Path = Path("/dev")) -> Machine:
    """Return the hardware that processes with the variables `environ` may use."""
    return Machine(cpu_count(), gpu_ids(environ, devices=devices), _memory())


def _memory() -> int:
    """Return the machine's memory in bytes, or the container's limit if it is lower; 0 if
    unknown."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return memory


def find_mpirun(python: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of mpirun: beside the interpreter `python`, where `pip` and `conda` install
    it, then on the PATH, then beside the interpreter that runs cloudtrain."""
    path = environ.get("PATH", os.defpath)
    for folders in (_folder_of(python, path), path, _folder_of(sys.executable, path)):
        program = shutil.which("mpirun", path=folders)
        if program is not None:
            # links are not followed: a program may act according to its name
            return os.path.abspath(program)
    return None


def _folder_of(program: str, path: str) -> str:
    """Return the folder of a program on the path; empty if there is none. A link is not followed:
    in a virtual environment, the interpreter is a link out of it."""
    file = shutil.which(program, path=path)
    return os.path.dirname(os.path.abspath(file)) if file else ""


def host_name() -> str:
    """Return this machine's short name, the HOST in `local://HOST/RUN`."""
    name = os.uname().nodename.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", name) or "localhost"


def loopback_interface() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def fork_variables() -> dict[str, str]:
    """Return the variables for a process that forks. On macOS, Objective-C ends a fork of a process
    in which another thread has begun to set up a class, as libraries that torch loads may do."""
    return {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"} if sys.platform == "darwin" else {}
