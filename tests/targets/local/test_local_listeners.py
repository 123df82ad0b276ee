"""What the processes of a local run listen on: loopback, and nothing that another machine could reach."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from tests.targets.places import Place, Run

pytestmark = pytest.mark.torch

MEETS = """\
import os, time, torch, torch.distributed as dist
{join}
ones = torch.ones(1)
dist.all_reduce(ones)
dist.all_reduce(ones, group=dist.new_group())
print("met", int(ones), "restarted", int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), flush=True)
time.sleep(300)
"""

BARE = MEETS.format(join='dist.init_process_group("gloo")')
RUNTIME = MEETS.format(join="from cloudtrain import runtime; runtime.init_process_group()")

TWO_BY_TWO: dict[str, Any] = {"instance_count": 2, "processes_per_instance": 2}


def listeners(run: Run) -> dict[str, int]:
    """The addresses on which the run's processes listen, and how many sockets are at each."""
    found: dict[str, int] = {}
    for process in run.processes():
        connections = getattr(process, "net_connections", None) or process.connections
        for connection in connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                found[connection.laddr.ip] = found.get(connection.laddr.ip, 0) + 1
    return found


RESOURCES = {"instance_count": 2, "instance_type": {"sagemaker": "ml.m5.xlarge"}}
IN_AN_IMAGE = {"framework": "pytorch", "version": "2.8"}
OWN_IMAGE = {"image": {"sagemaker": "own.example/train:1"}}


@pytest.mark.parametrize(
    ("script", "target", "environment"),
    [
        (BARE, ct.Local(**TWO_BY_TWO), {}),
        (BARE, ct.Local(instance_count=1, processes_per_instance=2), {}),
        (BARE, ct.Local(launcher="fork", **TWO_BY_TWO), {}),
        (BARE, ct.Local(emulate="sagemaker", **TWO_BY_TWO), IN_AN_IMAGE),
        (BARE, ct.Local(emulate="sagemaker", **TWO_BY_TWO), OWN_IMAGE),
        (RUNTIME, ct.Local(emulate="azureml", **TWO_BY_TWO), IN_AN_IMAGE),
    ],
    ids=[
        "two agents",
        "one agent",
        "forks",
        "SageMaker's toolkit",
        "our launcher",
        "Azure ML, with the runtime",
    ],
)
def test_ranks_meet_on_loopback(
    place: Place, script: str, target: ct.Local, environment: dict[str, Any]
) -> None:
    """The store through which ranks meet, and gloo's own sockets, are on loopback."""
    run = place.submit(
        script, distribution=ct.Torch(), target=target, environment=environment, resources=RESOURCES
    )  # fmt: skip
    world_size = run.plan.request["world_size"]
    run.wait_for_line(f"met {world_size**2} restarted 0", times=world_size)
    found = listeners(run)
    assert found, "the store listens somewhere"
    assert all(ip_address(address).is_loopback for address in found), found
    run.service.stop(run.ref)
    run.wait()


def test_ranks_that_start_again_meet_on_loopback(place: Place) -> None:
    """After a restart of all ranks of two instances, too; nothing of the first meeting is still listened to."""
    target = ct.Local(max_restarts=1, **TWO_BY_TWO)
    run = place.submit(BARE, distribution=ct.Torch(), target=target)
    run.wait_for_line("met 16 restarted 0", times=4)
    before = listeners(run)
    run.rank_process(3).kill()
    # the agent whose rank died counts it; the other may, or not
    run.wait_for_line("met 16 restarted 1", times=2)
    eventually_met = [text for text in run.texts() if text.startswith("met")]
    after = listeners(run)
    assert len(eventually_met) >= 6
    assert all(ip_address(address).is_loopback for address in (*before, *after)), (before, after)
    assert sum(after.values()) == sum(before.values())
    run.service.stop(run.ref)
    run.wait()
