"""The network between instances: the one that the instance type offers, and the one that NCCL reports to use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

RATES: dict[str, tuple[str, float]] = {
    "ml.p3dn.24xlarge": ("EFA", 100), "ml.p4d.24xlarge": ("EFA", 400), "ml.p4de.24xlarge": ("EFA", 400),
    "ml.p5.4xlarge": ("EFA", 100), "ml.p5.48xlarge": ("EFA", 3200), "ml.p5e.48xlarge": ("EFA", 3200),
    "ml.p5en.48xlarge": ("EFA", 3200), "ml.p6-b200.48xlarge": ("EFA", 3200), "ml.p6-b300.48xlarge": ("EFA", 6400),
    "ml.p6e-gb200.36xlarge": ("EFA", 1600),
    "ml.g4dn.12xlarge": ("EFA", 50), "ml.g5.12xlarge": ("EFA", 40), "ml.g5.24xlarge": ("EFA", 50),
    "ml.g5.48xlarge": ("EFA", 100), "ml.g6.12xlarge": ("EFA", 40), "ml.g6.24xlarge": ("EFA", 50),
    "ml.g6.48xlarge": ("EFA", 100), "ml.g6e.12xlarge": ("EFA", 100), "ml.g6e.24xlarge": ("EFA", 200),
    "ml.g6e.48xlarge": ("EFA", 400),
    "Standard_NC24rs_v3": ("InfiniBand", 56), "Standard_ND40rs_v2": ("InfiniBand", 100),
    "Standard_ND96asr_v4": ("InfiniBand", 1600), "Standard_ND96amsr_A100_v4": ("InfiniBand", 1600),
    "Standard_ND96isr_H100_v5": ("InfiniBand", 3200), "Standard_ND96isr_H200_v5": ("InfiniBand", 3200),
    "Standard_ND96isr_MI300X_v5": ("InfiniBand", 3200), "Standard_ND128isr_NDR_GB200_v6": ("InfiniBand", 1600),
    "Standard_ND128isr_GB300_v6": ("InfiniBand", 3200), "Standard_ND128isrG5_GB300_v6": ("InfiniBand", 3200),
}  # fmt: skip
"""GPU instance types with RDMA: the kind of network, and Gb/s of an instance, all cards together (cloudtrain's
catalogue)."""


def instance_type(variables: Mapping[str, str] = os.environ) -> str:
    """Return the type of this instance if the service provides it, else an empty string."""
    named = variables.get("SM_CURRENT_INSTANCE_TYPE", "")
    if named:
        return named
    try:
        return str(
            json.loads(variables.get("SM_RESOURCE_CONFIG", "{}")).get("current_instance_type", "")
        )
    except ValueError:
        return ""


@dataclass(frozen=True)
class Found:
    """The network in NCCL's log. `name` is NCCL's name of the network in use; `why` is the reason NCCL gives for not
    using RDMA.
    """

    name: str = ""
    provider: str = ""
    cards: int = 0
    why: str = ""

    @property
    def is_rdma(self) -> bool:
        """Return whether messages bypass the kernel."""
        if self.name in ("AWS Libfabric", "Libfabric"):
            return self.provider.startswith("efa")
        # of the plugin, with its version, as IBext_v10
        return self.name == "IB" or self.name.startswith("IBext")


_USES = re.compile(r"Using network ([\w ]+?)\s*$")
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (\S+?)(?:,| |$)(?:.*?(?:found|fabric is) \(?(\d+) nics)?"
)
_IB_CARDS = re.compile(r"NET/IB : Using (.*)")
_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NET/IB : No device found"),
     "NCCL finds no InfiniBand device (in a container: is /dev/infiniband given to it?)"),
    (re.compile(r"fi_getinfo(?:\(\))? (?:call )?failed|provider efa output empty"),
     "libfabric finds no EFA device (in a container: is /dev/infiniband given to it?)"),
    (re.compile(r"libnccl-net(?:-ofi)?\.so: cannot open shared object|No plugin found \(libnccl-net"),
     "the plugin aws-ofi-nccl is not in the image"),
    (re.compile(r"NCCL_IB_DISABLE set by environment to 1"), "NCCL_IB_DISABLE=1 forbids it"),
    (re.compile(r"NCCL_NET set by environment to Socket"), "NCCL_NET=Socket forbids it"),
    (re.compile(r"Failed to open libibverbs"), "libibverbs is not in the image"),
)  # fmt: skip


def read_log(lines: Iterable[str]) -> Found:
    """Find the network in a log of NCCL with `NCCL_DEBUG=INFO`. The last line about it counts."""
    name, provider, cards, reasons = "", "", 0, {}
    for line in lines:
        if match := _USES.search(line):
            name = match[1]
        elif match := _PROVIDER.search(line):
            provider, cards = match[1], int(match[2] or 0)
        elif match := _IB_CARDS.search(line):
            cards = len(re.findall(r"\[\d+\]", match[1]))
        for pattern, words in _REASONS:
            if pattern.search(line):
                reasons[words] = None
    return Found(name, provider, cards, "; ".join(reasons))


def read_logs(folder: Path) -> Found:
    """Return the result of the newest log that names a network. Earlier runs in the same folder have left theirs."""
    paths = sorted(folder.glob("nccl_log_*"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = [read_log(path.read_text(errors="replace").splitlines()) for path in paths]
    return next((one for one in found if one.name), found[0] if found else Found())


def sentence(found: Found, expected: str, backend: str, nodes: int) -> str:
    """Say whether EFA or InfiniBand is used, and if not, why."""
    if "nccl" not in backend:
        return f"{expected or 'RDMA'} is not used, because {backend} carries the messages over TCP."
    if nodes == 1:
        return "One instance: messages stay inside of it, and no network is used."
    if not found.name:
        return (
            "NCCL's log names no network: run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET."
        )
    cards = f", {found.cards} cards" if found.cards else ""
    if found.is_rdma:
        kind = "EFA" if found.provider.startswith("efa") else "InfiniBand"
        return f"{kind} is used (NCCL's network is {found.name}{cards})."
    because = found.why or (
        f"libfabric chose the provider {found.provider}"
        if found.provider
        else "NCCL's log does not say why"
    )
    if not expected:
        return f"No RDMA is used (NCCL's network is {found.name}): {because}."
    unused = f"{expected} is NOT used, although this instance type has it"
    return f"{unused}: NCCL's network is {found.name}, because {because}."
