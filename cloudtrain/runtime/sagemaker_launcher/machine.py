"""Detect a container's interpreter, CPUs, GPUs, Neuron cores and EFA. `cloudtrain plan` takes the
same data from the catalogue of instance types."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.hardware import cpu_count, gpu_ids

from . import TRN2_CORES

if TYPE_CHECKING:
    Variables = Mapping[str, str]
    Config = Mapping[str, Any]


@dataclass(frozen=True)
class HostMachine:
    """The properties of a host that determine which processes it starts, and how.

    `variables` is the container's environment: the variables of the image, of SageMaker and of the
    job.
    """

    python: str = "python3"
    shell: str = "bash"
    cpus: int = 1
    gpus: int = 0
    neurons: int = 0
    efa: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def this_machine(
    variables: Variables, instance_type: str, *, devices: Path = Path("/dev")
) -> HostMachine:
    """Return the `HostMachine` of this process's container. `devices` is the folder of the device
    files."""
    return HostMachine(
        python=sys.executable or "python3",
        shell="bash" if shutil.which("bash") else "/bin/sh",
        cpus=cpu_count(),
        gpus=len(gpu_ids(variables, devices=devices)),
        neurons=_neurons(instance_type, devices),
        efa=any(Path("/sys/class/infiniband").glob("*")),
        variables=dict(variables),
    )


def _neurons(instance_type: str, devices: Path) -> int:
    """Return the number of Neuron cores, which `neuron-ls` reports; 0 without a Neuron device."""
    if not any(devices.glob("neuron[0-9]*")):
        return 0
    if instance_type == "ml.trn2.48xlarge":
        return TRN2_CORES
    try:
        found = json.loads(subprocess.check_output(["neuron-ls", "-j"], timeout=60))
        return sum(int(device.get("nc_count", 0)) for device in found)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


# The files that SageMaker writes into every container.


def read_config(path: Path) -> Config:
    """Read a configuration file."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"`{path}` cannot be read: {error}",
            hint="run this launcher in a SageMaker container, which has the file",
        ) from None
    if not isinstance(config, dict):
        raise SetupError(f"`{path}` does not hold a JSON object")
    return config
