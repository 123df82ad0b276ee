"""Images, instance types and request limits of SageMaker. `tools/gen_sagemaker_*.py` write the tables."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.catalogue.instances import InstanceTable, InstanceType

DATA = Path(__file__).with_name("data")


def _describe(instance: InstanceType) -> list[tuple[str, str]]:
    """Return labelled facts: the local disk, the toolkit's EFA variables, and which sources list the type for SMDDP."""
    variables = [
        name
        for name, is_set in (
            ("FI_PROVIDER=efa", instance.efa_in_toolkit),
            ("FI_EFA_USE_DEVICE_RDMA=1", instance.rdma_in_toolkit),
        )
        if is_set
    ]
    toolkit = "sets " + " and ".join(variables) if variables else "sets no EFA variable"
    named = [
        name
        for name, is_named in (("AWS's documentation", instance.smddp), ("SDK v2", instance.smddp_in_sdk))
        if is_named
    ]
    return [
        ("local disk", f"{instance.nvme_gb} GB NVMe" if instance.nvme_gb else "none"),
        ("toolkit 5.1.4", toolkit),
        ("SMDDP", "named by " + " and ".join(named) if named else "named neither by AWS's documentation nor by SDK v2"),
    ]


TABLE = InstanceTable(DATA / "instances.csv", prefix="ml.", fabric="efa", describe=_describe)
