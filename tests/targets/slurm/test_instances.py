"""What the cluster's nodes are, as `sinfo` tells it."""

from __future__ import annotations

import pytest

from cloudtrain.targets.slurm.online import parse_nodes
from tests.targets.slurm.site import Site


def test_kinds_of_nodes() -> None:
    """Nodes that are alike are one kind; a node of two partitions counts once."""
    kinds = parse_nodes(
        [
            "g1|p5|idle|192|2000000|gpu:h100:8(S:0-1)|efa,p5.48xlarge",
            "g2|p5|allocated|192|2000000|gpu:h100:8(S:0-1)|efa,p5.48xlarge",
            "g1|spare|idle|192|2000000|gpu:h100:8(S:0-1)|efa,p5.48xlarge",
            "c1|cpu|down*|64|256000|(null)|(null)",
        ]
    )
    assert [
        (kind.nodes, kind.idle, kind.gpus, kind.gpu_type, kind.partitions) for kind in kinds
    ] == [
        (1, 0, 0, "", ["cpu"]),
        (2, 1, 8, "h100", ["p5", "spare"]),
    ]
    assert kinds[1].features == ("efa", "p5.48xlarge")
    assert kinds[1].memory == 2000000 * 2**20


@pytest.mark.slurm
@pytest.mark.lifecycle
def test_real_nodes(site: Site) -> None:
    """The test cluster has three nodes of one kind, in all of its partitions."""
    plan, _ = site.plan(name="nodes-1")
    (kind,) = site.service.instances(plan.place)
    assert (kind.nodes, kind.cpus, kind.memory, kind.gpus) == (3, 2, 4000 * 2**20, 0)
    assert kind.partitions == ["short", "train", "urgent"]
