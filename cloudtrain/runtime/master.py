"""Find the address of rank 0. Only torchrun and Azure ML's PyTorch distribution provide it; under other launchers it is
derived.

Azure ML under MPI sets neither `MASTER_ADDR` nor `RANK`; it names the master in `AZ_BATCH_MASTER_NODE` (several nodes;
for example `10.0.0.4:6000`, where the port is Azure Batch's) or in `AZ_BATCHAI_MPI_MASTER_NODE` (one node;
`localhost`). Azure ML's documentation uses the port 6105. SageMaker lists its hosts; its toolkit's port is 7777.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from . import sagemaker_hosts, slurm

Variables = Mapping[str, str]


def _host_part(name: str) -> Callable[[Variables], str | None]:
    return lambda variables: variables.get(name, "").partition(":")[0] or None


MASTERS: tuple[tuple[Callable[[Variables], str | None], Callable[[Variables], int]], ...] = (
    (lambda variables: variables.get("MASTER_ADDR") or None, lambda _: 29500),
    (_host_part("AZ_BATCH_MASTER_NODE"), lambda _: 6105),
    (_host_part("AZ_BATCHAI_MPI_MASTER_NODE"), lambda _: 6105),
    (sagemaker_hosts.first_host, sagemaker_hosts.port),
    (slurm.first_node, slurm.port),
)
"""The launchers that know the address, and the port to use where `MASTER_PORT` is not set. The first one that knows
wins."""


def find_master(variables: Variables, *, one_node: bool) -> tuple[str | None, int]:
    """Return address and port of rank 0. If no launcher's variable has the address, it is `127.0.0.1` on one node, and
    None on several.
    """
    for address_of, port_of in MASTERS:
        address = address_of(variables)
        if address is not None:
            return address, _port(variables, port_of(variables))
    return ("127.0.0.1" if one_node else None), _port(variables, _port_of_mpirun(variables))


def _port(variables: Variables, default: int) -> int:
    text = variables.get("MASTER_PORT", "")
    return int(text) if text.isdecimal() else default


def _port_of_mpirun(variables: Variables) -> int:
    """Return the default port of rank 0. It is the same for all processes of one `mpirun`, and most likely another one
    for another `mpirun`, so that two jobs can share a machine. Without mpirun, it is 29500.
    """
    name = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid")
    return 20000 + zlib.crc32(name.encode()) % 10000 if name else 29500
