"""The bandwidth script: nccl-tests' terms, NCCL's own words about the network, and a run on this machine."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cloudtrain.machines.table import instance_types
from tests.training_scripts.runs import check_out, forks, run

FOLDER = Path(__file__).parents[2] / "training_scripts" / "bandwidth"


@pytest.fixture(scope="module")
def network() -> Iterator[ModuleType]:
    """network.py, imported as the script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        patch.delitem(sys.modules, "network", raising=False)
        yield importlib.import_module("network")
        sys.modules.pop("network", None)


# Lines as NCCL writes them, shortened; what machines, processes and addresses are called is
# changed.
EFA = """\
node-1:31:40 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
node-1:31:40 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol.
node-1:31:40 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
node-1:31:40 [0] NCCL INFO NET/OFI NIC group 7 device #0 0000:a3:00.0
node-1:31:40 [0] NCCL INFO Using network Libfabric
"""
EFA_OLD = """\
node-1:31:40 [0] NCCL INFO NET/OFI Selected Provider is efa
node-1:31:40 [0] NCCL INFO Using network AWS Libfabric
"""
NO_PLUGIN = """\
node-1:31:40 [4] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory
node-1:31:40 [4] NCCL INFO NET/Plugin : No plugin found, using internal implementation
node-1:31:40 [4] NCCL INFO NET/IB : No device found.
node-1:31:40 [4] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
node-1:31:40 [4] NCCL INFO Using network Socket
"""
NO_DEVICE = """\
node-1:31:40 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available
node-1:31:40 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
node-1:31:40 [0] NCCL INFO Using network Socket
"""
TCP_PROVIDER = """\
node-1:31:40 [0] NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)
node-1:31:40 [0] NCCL INFO Using network Libfabric
"""
INFINIBAND = """\
node-1:31:40 [0] NCCL INFO NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_ib1:1/IB [2]mlx5_ib2:1/IB [RO]; OOB eth0:10.0.0.1<0>
node-1:31:40 [0] NCCL INFO Using network IB
"""
DISABLED = """\
node-1:31:40 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
node-1:31:40 [0] NCCL INFO Using network Socket
"""


@pytest.mark.parametrize(
    ("log", "expected", "words"),
    [
        (EFA, "EFA", "EFA is used (NCCL's network is Libfabric, 16 cards)."),
        (EFA_OLD, "EFA", "EFA is used (NCCL's network is AWS Libfabric)."),
        (NO_PLUGIN, "EFA", "EFA is NOT used, although this instance type has it: NCCL's network is Socket, because the "
         "plugin aws-ofi-nccl is not in the image; NCCL finds no InfiniBand device"),
        (NO_DEVICE, "EFA", "because libfabric finds no EFA device (in a container: is /dev/infiniband given to it?)."),
        (TCP_PROVIDER, "EFA", "because libfabric chose the provider tcp;ofi_rxm."),
        (INFINIBAND, "InfiniBand", "InfiniBand is used (NCCL's network is IB, 3 cards)."),
        (INFINIBAND.replace("network IB", "network IBext_v10"), "InfiniBand", "InfiniBand is used"),
        (DISABLED, "InfiniBand", "InfiniBand is NOT used, although this instance type has it: NCCL's network is Socket, "
         "because NCCL_IB_DISABLE=1 forbids it."),
        (NO_PLUGIN, "", "No RDMA is used (NCCL's network is Socket): "),
        ("nothing", "EFA", "NCCL's log names no network"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_carries_the_messages(
    network: Any, log: str, expected: str, words: str
) -> None:
    """Used, or not and why, from logs as users have posted them (NVIDIA/nccl 226, 941, 952, 1597; aws-ofi-nccl 1020)."""
    assert words in network.sentence(
        network.read_log(log.splitlines()), expected, "cpu:gloo,cuda:nccl", 2
    )


def test_without_nccl_or_a_second_instance_there_is_no_log_to_read(network: Any) -> None:
    """gloo is TCP; one instance needs no network."""
    assert network.sentence(network.Found(), "EFA", "gloo", 2).startswith(
        "EFA is not used, because gloo"
    )
    assert network.sentence(network.Found(), "", "nccl", 1).startswith("One instance")


def test_the_logs_of_several_processes_are_read(network: Any, tmp_path: Path) -> None:
    """The newest that names a network, and not one of an earlier run in the folder."""
    for minute, (name, log) in enumerate([("a_1", NO_PLUGIN), ("b_2", EFA), ("c_3", "nothing\n")]):
        (tmp_path / f"nccl_log_{name}").write_text(log)
        os.utime(tmp_path / f"nccl_log_{name}", (60 * minute, 60 * minute))
    assert network.read_logs(tmp_path).cards == 16
    assert network.read_logs(tmp_path / "none") == network.Found()


def test_the_instance_type_is_what_sagemaker_says(network: Any) -> None:
    """In a variable, or in the resource configuration."""
    assert (
        network.instance_type({"SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge"}) == "ml.p4d.24xlarge"
    )
    assert (
        network.instance_type({"SM_RESOURCE_CONFIG": '{"current_instance_type": "ml.p5.48xlarge"}'})
        == "ml.p5.48xlarge"
    )
    assert network.instance_type({"SM_RESOURCE_CONFIG": "torn"}) == network.instance_type({}) == ""


@pytest.mark.parametrize("target", ["sagemaker", "azureml"])
def test_the_rates_are_those_of_the_catalogue(network: Any, target: str) -> None:
    """A script's folder is complete, so it has a table of its own; it says what the catalogue says."""
    kinds = {"efa": "EFA", "infiniband": "InfiniBand"}
    known = {
        found.name: (kinds[found.fabric], found.network_gbps)
        for found in instance_types(target)
        if found.interconnect == "rdma" and found.fabric
    }
    mine = {
        name: rate
        for name, rate in network.RATES.items()
        if name.startswith("ml.") == (target == "sagemaker")
    }
    assert mine
    assert {name: known.get(name) for name in mine} == mine


@pytest.mark.torch
def test_two_processes_measure_each_other(tmp_path: Path) -> None:
    """Every operation and size has a row whose columns follow from each other; the model is timed on one and on two."""
    script = check_out("bandwidth", tmp_path / "checkout")
    small = "--smallest 1024 --largest 4096 --width 32 --layers 1 --rounds 2".split()
    found = run(tmp_path / "run", *forks(2), script, *small, PYTHONPATH=str(script.parents[2]))
    assert found.exit_code == 0, found.errors
    result = json.loads((tmp_path / "run" / "bandwidth" / "bandwidth.json").read_text())
    rows = {(row["operation"], row["bytes"]): row for row in result["rows"]}
    names = ("all_reduce", "all_gather", "reduce_scatter", "send")
    assert set(rows) == {(name, size) for name in names for size in (1024, 4096)}
    # 2 (n-1)/n and (n-1)/n for n = 2
    bus = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "send": 1.0}
    for (name, size), row in rows.items():
        assert row["algbw"] == pytest.approx(size / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * bus[name])
    assert "RDMA is not used, because gloo carries the messages over TCP." in found.lines
    assert found.reported["efficiency"][1] == 1
    assert found.reported["efficiency"][2] > 0
    assert found.reported["strong_efficiency"][1] == 1
    best = {line.split()[0]: line.split()[-2] for line in found.lines if line.endswith(" s")}
    assert best == {"1": "100", "2": "50"}
    assert [
        line.split()[0] for line in found.lines if re.match(r" +\d+ +[\d.]+% +[\d.]+% ", line)
    ] == [
        "2",
        "8",
        "32",
        "128",
    ]


@pytest.mark.torch
def test_one_process_is_refused(tmp_path: Path) -> None:
    """With the command that works."""
    found = run(tmp_path, sys.executable, check_out("bandwidth", tmp_path / "checkout"))
    assert found.exit_code == 1
    assert found.errors.startswith(
        "error: the bandwidth test needs at least two processes\n\nhint: torchrun"
    )
