"""The addresses of a job's instances and the paths of its data and code, on the service or in an emulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.places import service_paths

FIRST_ADDRESS = 4
"""The first address of a subnet that Azure assigns: 10.0.0.4. The real addresses are known when the job runs."""

JOBS = "/mnt/azureml/cr/j"
"""The service's folder of jobs. The service names each job's folder by a number; the run's name stands in for it."""

Listen = Callable[[int, int], tuple[str, str]]
"""Maps an instance and a port to the address and port where other processes reach it."""


@dataclass(frozen=True)
class JobLayout:
    """The addresses of one job's instances, and the paths of its data and code.

    Attributes:
        run_name: the job's name.
        workspace_id: the workspace's ARM id.
        hosts: the address of each instance, as it appears in lists of hosts.
        listen: maps an instance and a port to the address and port where other processes reach it.
        data: the folder that holds inputs and outputs.
        code: the working directory of each instance.
        paths: maps `inputs.NAME` and `outputs.NAME` to the text that the script gets.
        gpus: number of GPUs of each instance; None if unknown.
    """

    run_name: str
    workspace_id: str
    hosts: tuple[str, ...]
    listen: Listen
    data: str
    code: tuple[str, ...]
    paths: dict[str, str]
    gpus: int | None = None

    @property
    def is_multi(self) -> bool:
        """Return whether the job has more than one instance."""
        return len(self.hosts) > 1


def addresses(network: str, first: int, count: int) -> tuple[str, ...]:
    """Return consecutive addresses: `10.0.0.4`, `10.0.0.5`, ... for the network `10.0` and `first=4`."""
    return tuple(f"{network}.{number >> 8}.{number & 255}" for number in range(first, first + count))


def service_layout(body: Body, run_name: str, workspace_id: str, gpus: int | None) -> JobLayout:
    """Return the layout of a job on the service.

    The addresses and the job's folder are examples; Azure assigns the real ones when the job starts.
    """
    hosts = addresses("10.0", FIRST_ADDRESS, body.instances)
    folder = f"{JOBS}/{run_name}"
    data = f"{folder}/cap/data-capability/wd"
    return JobLayout(
        run_name=run_name,
        workspace_id=workspace_id,
        hosts=hosts,
        listen=lambda instance, port: (hosts[instance], str(port)),
        data=data,
        code=(f"{folder}/exe/wd",) * body.instances,
        paths=service_paths(body, data),
        gpus=gpus,
    )
