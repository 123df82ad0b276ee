"""The stacks of ranks on a real cluster: each node asks its own."""

from __future__ import annotations

import pytest

from cloudtrain.errors import UsageError
from cloudtrain.runtime.hangs.verdict import judge
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

SCRIPT = """
import time
from cloudtrain import runtime
def load_next_batch():
    time.sleep(600)
def work():
    while True:
        sum(range(1000))
print("ready", runtime.run_dir().name, flush=True)
instance = runtime.detect_environment().node_rank
work() if instance == 0 else load_next_batch()
"""


def test_every_node_tells_where_its_ranks_are(site: Site) -> None:
    """One works, one stands still, and both live on afterwards; a run that is over has no stacks."""
    run = site.submit(SCRIPT, name="stacks", resources={"instance_count": 2})
    run.wait_for_line("ready")
    for instance in (0, 1):
        while not any("ready" in line.text for line in run.lines(instance=instance)):
            assert not run.status.state.is_final
    for _ in range(2):
        working, still = site.service.stacks(run.ref)
        assert (working.rank, still.rank) == (0, 1)
        assert working.own is not None
        assert working.own.function == "work"
        assert not working.is_still
        assert still.own is not None
        assert (still.own.function, still.own.line) == ("load_next_batch", 5)
        assert still.is_still
        assert judge([still]) is not None
    site.service.stop(run.ref)
    run.wait()
    with pytest.raises(UsageError) as caught:
        site.service.stacks(run.ref)
    assert caught.value.code == "CT967"
