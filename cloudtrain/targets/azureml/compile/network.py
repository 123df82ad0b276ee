"""Environment variables that make the processes of several instances use the right network cards."""

from __future__ import annotations

from cloudtrain.catalogue.machines import MachineGroup
from cloudtrain.core.distribution import MPI, DeepSpeed
from cloudtrain.core.job import TrainingJob

INTERFACE = "eth0"
"""The Ethernet card of Azure's GPU machines, for the first contact; the data then goes over InfiniBand."""

INFINIBAND = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_SOCKET_IFNAME": INTERFACE,
    "UCX_NET_DEVICES": INTERFACE,
    "UCX_TLS": "tcp",
}
"""Variables for InfiniBand, whose cards NCCL finds by itself.

Relaxed ordering lets virtual machines use the cards' full rate. UCX, with which MPI starts up, stays on Ethernet
(Azure's azureml-examples, gpu_perf, and the pages of its ACPT images).
"""

_OF_MPI = ("UCX_NET_DEVICES", "UCX_TLS")
"""Variables left out for jobs of the type `mpi`.

The sources run NCCL's tests, in which MPI starts the ranks and NCCL carries the data. A job of the type `mpi` may carry
its data by MPI itself, and these variables would keep that data off InfiniBand.
"""

TOPOLOGY = "/opt/microsoft/ndv4-topo.xml"
"""Distances between cards and GPUs on the ND A100 v4 series: a file in Azure's ACPT images."""

_TOPOLOGY_FAMILIES = ("ND A100 v4", "NDm A100 v4")


def network_variables(job: TrainingJob, machines: MachineGroup, environment: str) -> dict[str, str]:
    """Return the network variables that the job's processes need; empty if none are needed. The job's own variables
    override them. `environment` is the id of the job's environment.
    """
    variables: dict[str, str] = {}
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "mpi":
        # deepspeed.comm reads it without a default under Azure ML's MPI, and fails with a KeyError.
        variables["NCCL_SOCKET_IFNAME"] = INTERFACE
    known = machines.known
    if machines.count == 1 or known is None or not known.gpus or known.interconnect != "rdma":
        return variables
    sends_by_mpi = isinstance(job.distribution, MPI)
    variables |= {name: value for name, value in INFINIBAND.items() if not (sends_by_mpi and name in _OF_MPI)}
    if known.family in _TOPOLOGY_FAMILIES and "/environments/acpt-" in environment:
        variables["NCCL_TOPO_FILE"] = TOPOLOGY
    return variables
