"""The processes of a job and what each finds in its environment.

Written down anew from Microsoft's pages on distributed training and the variables that public code reads; cloudtrain's
own launch code has no part in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.fakes.azureml.messages import Json
from tests.ports import free_ports


def environments(properties: Json) -> Iterator[tuple[int, dict[str, str]]]:
    """The instance and the variables of every process, in the order of their ranks."""
    distribution = properties.get("distribution") or {}
    kind, instances = distribution.get("distributionType"), instances_of(properties)
    each = (distribution.get("processCountPerInstance") or 1) if kind in ("PyTorch", "Mpi") else 1
    world = instances * each
    port, *ports = free_ports(1 + (world if kind == "TensorFlow" else 0))
    for rank in range(world):
        node, local = divmod(rank, each)
        env: dict[str, str] = {}
        if kind == "PyTorch":
            env = {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "RANK": str(rank),
                "LOCAL_RANK": str(local), "NODE_RANK": str(node),
            }  # fmt: skip
        elif kind == "Mpi":
            env = {
                "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
                "AZ_BATCHAI_MPI_MASTER_NODE": "127.0.0.1", "AZ_BATCH_MASTER_NODE": f"127.0.0.1:{port}",
            }  # fmt: skip
        elif kind == "TensorFlow":
            cluster = {"worker": [f"127.0.0.1:{number}" for number in ports]}
            task = {"type": "worker", "index": rank}
            env = {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            }
        yield node, {"AZUREML_NODE_COUNT": str(instances), "AZUREML_CR_NODE_RANK": str(node), **env}


def instances_of(properties: Json) -> int:
    return int((properties.get("resources") or {}).get("instanceCount") or 1)
