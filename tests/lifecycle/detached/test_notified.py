"""The end of a run on a cloud, which nobody follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.targets.settings import own_file
from tests.lifecycle.detached.conftest import Cloud
from tests.lifecycle.notifications.sinks import web_server
from tests.targets.places import eventually

pytestmark = [pytest.mark.slow, pytest.mark.lifecycle]


def test_the_cloud_is_asked(cloud: Cloud, source: Path, state_dir: Path) -> None:
    """The end is in the store, and is told."""
    own_file().parent.mkdir(parents=True, exist_ok=True)
    with web_server() as web:
        own_file().write_text(f'[notify]\nwebhook = "{web.address}"\nover_cost = 1e-9\n')
        run = cloud.submit(cloud.job("prepare", source))
        if cloud.target.type == "sagemaker":
            cloud.fake.jobs[run.name].end("Failed", BillableTimeInSeconds=3600)
        else:
            cloud.end(run, "Failed")
        expected = {f"{run.name}/failed/1"}
        if cloud.target.type == "sagemaker":  # the other one bills no seconds
            expected.add(f"{run.name}/over_cost/1")
        eventually(lambda: set(web.ids) == expected)
        assert web.got[0].data["target"] == cloud.target.type
    with read_store(state_dir) as store:
        record = store.get(run.name)
        assert record is not None
        assert record.state == "failed"
