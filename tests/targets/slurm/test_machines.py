"""The nodes of a real cluster are watched, one process on each, whatever the script is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.plans.states import RunState
from cloudtrain.signals.rows import machine_rows, read_files
from tests.runtime.nvml import fake_nvml
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm, pytest.mark.slow]

ENDLESS = "import time\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize(
    "distribution", [{"type": "none"}, {"type": "torch", "processes_per_instance": 1}]
)
def test_nodes_that_idle_are_stopped(
    site: Site, distribution: dict[str, object], tmp_path: Path
) -> None:
    """When the GPUs of all nodes have idled for as long as the job says. No watch is left."""
    library = fake_nvml()
    setup = (f"export LD_LIBRARY_PATH={library.parent} FAKE_NVML_UTILIZATION=0",)
    run = site.submit(
        ENDLESS,
        name="idles-1",
        resources={"instance_count": 2},
        distribution=distribution,
        stop_when_idle="9s",
        settings={"setup": setup, "grace_period": 2},
    )
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert "stop_when_idle" in (status.reason or "")
    assert site.service.metrics_folder(run.ref, tmp_path / "copies") is not None
    for instance in (0, 1):
        columns = machine_rows(read_files(str(tmp_path / "copies")), instance).columns()
        assert set(columns["gpu1.utilization"].value) == {0.0}
        assert columns["memory_limit"].value[0] > columns["memory"].value[0] > 0
