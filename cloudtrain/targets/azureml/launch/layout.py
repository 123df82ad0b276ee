"""Where the instances of a job are, and where its data and code lie on them: on the service, or in an emulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.places import service_paths

FIRST_ADDRESS = 4
"""Of a subnet, the first that Azure gives out: 10.0.0.4. What a job really gets is known when it runs."""

JOBS = "/mnt/azureml/cr/j"
"""Where the service keeps each job, in a folder named by a number of its own; the run's name stands for that."""

Listen = Callable[[int, int], tuple[str, str]]
"""Instance and port to the address and port where others find what listens there."""


@dataclass(frozen=True)
class JobLayout:
    """Where one job's instances, data and code are.

    Attributes:
        run_name: the job's name.
        workspace_id: the workspace's ARM id.
        hosts: the address of each instance, as lists of hosts name them.
        listen: where a port of an instance is reached.
        data: the folder that holds inputs and outputs.
        code: the working directory of each instance.
        paths: `inputs.NAME` and `outputs.NAME` to what the script gets.
        gpus: of each instance; None where nobody knows.
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
        """More than one instance."""
        return len(self.hosts) > 1


def addresses(network: str, first: int, count: int) -> tuple[str, ...]:
    """So many addresses in a row: of `10.0` from the fourth on, `10.0.0.4`, `10.0.0.5`, ..."""
    return tuple(f"{network}.{number >> 8}.{number & 255}" for number in range(first, first + count))


def service_layout(body: Body, run_name: str, workspace_id: str, gpus: int | None) -> JobLayout:
    """The job on the service. Addresses and the job's folder are examples: they are given out when it starts."""
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
