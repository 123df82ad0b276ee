"""Variables that keep the libraries of a local run's ranks from listening on the network."""

from __future__ import annotations

OPEN_MPI = {"OMPI_MCA_btl": "^tcp"}
"""For ranks of mpirun, which communicate through shared memory. With TCP they would listen on every interface, whatever
`btl_tcp_if_include` says (seen with Open MPI 4.1 and 5.0)."""


def loopback_variables(interface: str) -> dict[str, str]:
    """Return the variables that make gloo, NCCL and torch's RPC (TensorPipe) use the network interface `interface`."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface}
