"""What a plan shows of a job on SageMaker: launchers and ranks, host by host."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import pytest

from cloudtrain.errors import JobError
from cloudtrain.machines.overlay import read_overlay, type_named
from cloudtrain.machines.table import instance_named
from cloudtrain.plans.plan import Plan
from cloudtrain.plans.processes import Process
from cloudtrain.runtime.environment import detect_environment, sagemaker_place
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.launch import processes
from cloudtrain.targets.sagemaker.launch.commands import command
from cloudtrain.targets.sagemaker.launch.container import HostSetup
from cloudtrain.targets.sagemaker.request import is_entrypoint
from tests.targets.sagemaker.container_requests import host_named, pytorch, recorded, request

view = partial(processes.view, entry_of=partial(instance_named, "sagemaker"))

TORCH = {"sagemaker_torch_distributed_enabled": True}
MPI = {"sagemaker_mpi_enabled": True}


def eight(instance_type: str) -> int:
    """Eight accelerators, none on CPU types."""
    return 0 if instance_type.startswith(("ml.c", "ml.m")) else 8


def counted(processes: tuple[Process, ...]) -> Counter[str]:
    """How many processes there are of each role."""
    return Counter(process.role for process in processes)


@pytest.mark.parametrize(
    ("case", "framework", "roles"),
    [
        ("pt_torchdist", "pytorch", {"torchrun": 2, "rank": 16}),
        ("pt_torchdist", "generic", {"process": 2}),
        ("pt_unknown_key", "pytorch", {"process": 2}),
        ("pt_hetero_td", "pytorch", {"torchrun": 3, "rank": 17}),
        ("pt_hetero_mpi", "pytorch", {"mpirun": 1, "sshd": 1, "process": 1, "rank": 16}),
        ("pt_smddp", "pytorch", {"mpirun": 1, "sshd": 1, "rank": 16}),
        ("pt_smp1_mpi", "pytorch", {"mpirun": 1, "sshd": 1, "rank": 16}),
        ("pt_smp2_torchdist", "pytorch", {"torchrun": 2, "rank": 16}),
        ("tf_ps", "tensorflow", {"master": 1, "worker": 1, "ps": 2}),
        ("tf_mwms", "tensorflow", {"worker": 2}),
        ("tf_torchdist", "tensorflow", {"process": 2}),
        ("pt_torchdist_trn1_111", "pytorch", {"torchrun": 2, "rank": 16}),
    ],
)
def test_what_runs(case: str, framework: Any, roles: dict[str, int]) -> None:
    """Launchers, waiting hosts, servers and ranks are counted as the toolkit starts them."""
    assert counted(view(recorded(case), ImageContents(framework, "5.1.4"), eight)) == roles


def test_torchrun_ranks() -> None:
    """Ranks follow SageMaker's order of hosts, so the second eight of twelve hosts' ranks are on `algo-10`."""
    ranks = [
        process
        for process in view(request(count=12, **TORCH), pytorch(), eight)
        if process.role == "rank"
    ]
    assert [rank.rank for rank in ranks] == list(range(96))
    assert {rank.instance for rank in ranks[8:16]} == {9}
    assert ranks[8].env == {
        "GROUP_RANK": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
        "RANK": "8",
        "WORLD_SIZE": "96",
    }


def test_mpi_ranks() -> None:
    """mpirun fills one host after the other, and gives each rank its own variables and its exports."""
    body = request(count=2, sagemaker_mpi_num_of_processes_per_host=2, **MPI)
    ranks = [process for process in view(body, pytorch(), eight) if process.role == "rank"]
    assert [(rank.rank, rank.instance, rank.local_rank) for rank in ranks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    assert ranks[3].argv == ("python", "-m", "mpi4py", "train.py")
    assert ranks[3].env["OMPI_COMM_WORLD_RANK"] == "3"
    assert ranks[3].env["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert ranks[3].env["NCCL_DEBUG"] == "INFO"


def test_one_rank_per_accelerator_is_seen_before_it_is_paid_for() -> None:
    """Two 8-GPU machines without a launcher show two processes, ranks 0 of their own."""
    found = view(request("ml.p4d.24xlarge", 2), pytorch(), eight)
    assert [(process.role, process.rank, process.instance) for process in found] == [
        ("process", 0, 0),
        ("process", 1, 1),
    ]


OTHER_PROGRAM = {
    "AlgorithmSpecification": {"TrainingImage": "image", "ContainerEntrypoint": ["run"]}
}


@pytest.mark.parametrize("how", ["toolkit", "own launcher", "other program"])
def test_plain_scripts_are_numbered_as_their_hosts(how: str) -> None:
    """Without a launcher a script's number is its host's place in SM_HOSTS, where `algo-10` is the second of twelve."""
    single = {"launcher": "single", "entry_point": "train.py"}
    body = ours(single, count=12) if how == "own launcher" else request(count=12)
    found = view({**body, **(OTHER_PROGRAM if how == "other program" else {})}, pytorch(), eight)
    ranks = {process.instance: process.rank for process in found}
    assert [ranks[instance] for instance in (0, 1, 8, 9, 11)] == [0, 4, 11, 1, 3]
    if how != "other program":
        assert all(sagemaker_place(process.env) == (process.rank, 12) for process in found)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
@pytest.mark.parametrize("workers", [None, 14])
def test_tensorflow_tasks_are_numbered_as_they_count_themselves(
    strategy: str, workers: int | None
) -> None:
    """The ranks of our launcher's tasks are those that the script's own runtime finds in TF_CONFIG."""
    launch = {
        "launcher": "tensorflow",
        "entry_point": "train.py",
        "strategy": strategy,
        "workers": workers,
    }
    found = [
        process
        for process in view(ours(launch, count=12), pytorch(), eight)
        if process.role != "ps"
    ]
    assert sorted(process.rank or 0 for process in found) == list(range(workers or 12))
    assert all(detect_environment(process.env).rank == process.rank for process in found)


def test_trn2_has_sixty_four() -> None:
    """On ml.trn2.48xlarge the toolkit counts 64 cores, whatever the catalogue says."""
    found = view(request("ml.trn2.48xlarge", **TORCH), pytorch(), lambda _: 128)
    assert counted(found) == {"torchrun": 1, "rank": 64}
    assert found[0].env["SM_NUM_NEURONS"] == "64"
    assert found[0].env["SM_NUM_GPUS"] == "0"


def test_a_job_that_stops_shows_nothing() -> None:
    """Where the toolkit stops first there are no processes, and the command says why."""
    body = request(sagemaker_mpi_custom_mpi_options="--help", **MPI)
    assert view(body, pytorch(), eight) == ()
    assert command(HostSetup(body, host_named(body), pytorch(), gpus=8)).error is not None


def test_sixteen_machines_stay_readable() -> None:
    """128 ranks on 16 machines take few lines: one block of ranks, and what the hosts share once."""
    processes = view(request("ml.p4d.24xlarge", 16, lr=0.1, **TORCH), pytorch(), eight)
    text = Plan("sagemaker", "run", "job", {}, (), processes).to_text(width=120)
    lines = text.splitlines()
    assert len(lines) < 160
    assert sum(line.startswith("ranks 0 to 127") for line in lines) == 1
    assert sum("SM_HPS" in line for line in lines) == 1


def test_the_users_variables_are_shown() -> None:
    """A launcher's variables are those that it really has: the user's, then the toolkit's over them."""
    found = view(request(environment={"MINE": "1", "NCCL_DEBUG": "TRACE"}), pytorch(), eight)
    assert (found[0].env["MINE"], found[0].env["NCCL_DEBUG"]) == ("1", "WARN")


def ours(
    launch: dict[str, Any], instance_type: str = "ml.p4d.24xlarge", count: int = 2, **more: Any
) -> dict[str, Any]:
    """A job in entrypoint mode."""
    body = request(instance_type, count, cloudtrain_launch=launch, **more)
    body["AlgorithmSpecification"]["ContainerEntrypoint"] = list(CONTAINER_ENTRYPOINT)
    return body


@pytest.mark.parametrize(
    ("launch", "count", "roles"),
    [
        ({"launcher": "torchrun", "entry_point": "train.py"}, 2, {"torchrun": 2, "rank": 16}),
        ({"launcher": "torchrun", "command": "nvidia-smi"}, 1, {"torchrun": 1, "rank": 8}),
        ({"launcher": "single", "entry_point": "train.py"}, 2, {"process": 2}),
        (
            {"launcher": "mpirun", "entry_point": "train.py", "mpi_options": "-x 'A=b c'"},
            1,
            {"mpirun": 1, "rank": 8},
        ),
        ({"launcher": "tensorflow", "entry_point": "train.py"}, 2, {"worker": 2}),
        (
            {"launcher": "tensorflow", "entry_point": "train.py", "strategy": "parameter_server"},
            2,
            {"chief": 1, "worker": 1, "ps": 1},
        ),
        ({"launcher": "tensorflow", "entry_point": "train.py", "workers": 2}, 3, {"worker": 2}),
    ],
)
def test_our_own_launcher(launch: dict[str, Any], count: int, roles: dict[str, int]) -> None:
    """In entrypoint mode the view is the launcher's own plan, with the ranks that it leads to."""
    body = ours(launch, count=count, lr=0.1)
    assert is_entrypoint(body)
    found = view(body, ImageContents("generic", "5.1.4"), eight)
    assert counted(found) == roles
    script = [
        process.argv for process in found if process.role in ("rank", "process", "worker", "chief")
    ]
    assert script
    expected = "nvidia-smi" if "command" in launch else "train.py"
    assert all(expected in argv for argv in script)


def test_our_own_launcher_by_host() -> None:
    """Each host finds its own name and EFA, and ranks meet at the first host."""
    found = view(
        ours({"launcher": "torchrun", "entry_point": "train.py"}, count=11), pytorch(), eight
    )
    assert found[10].env["SM_CURRENT_HOST"] == "algo-11"
    assert found[10].env["FI_PROVIDER"] == "efa"
    ranks = [process for process in found if process.role == "rank"]
    assert [rank.rank for rank in ranks] == list(range(88))
    assert ranks[8].instance == 9
    assert ranks[8].env["MASTER_ADDR"] == "algo-1"


def test_our_own_launcher_refuses() -> None:
    """A launch that our launcher would refuse in the container is refused here, in the same words."""
    body = ours({"launcher": "mpirun", "entry_point": "train.py"})
    with pytest.raises(JobError, match="can start mpirun on one instance only"):
        view(body, pytorch(), eight)
    body["HyperParameters"]["cloudtrain_launch"] = json.dumps({"launcher": "x"})
    with pytest.raises(JobError, match="names the launcher `x`"):
        view(body, pytorch(), eight)


def test_any_other_entry_point() -> None:
    """Some other ContainerEntrypoint runs on every host, with its arguments, and the toolkit does not."""
    body = recorded("est_container_entry")
    assert not is_entrypoint(body)
    algorithm = body["AlgorithmSpecification"]
    (process,) = view(body, pytorch(), eight)
    assert list(process.argv) == algorithm["ContainerEntrypoint"] + algorithm.get(
        "ContainerArguments", []
    )


def test_a_type_of_the_users_own_has_what_they_say() -> None:
    """`instances.toml` may add a type; our launcher is shown with its network and its CPUs."""
    own = read_overlay(
        {"sagemaker": {"ml.new1.xlarge": {"vcpus": 96, "memory_gib": 16, "interfaces": 4}}},
        "instances.toml",
    )
    body = ours({"launcher": "single", "entry_point": "train.py"}, "ml.new1.xlarge")
    known = {"ml.new1.xlarge": type_named("sagemaker", "ml.new1.xlarge", own)}
    found = view(body, pytorch(), lambda _: 0, entry_of=known.get)
    assert [process.env["FI_PROVIDER"] for process in found] == ["efa", "efa"]
    assert "FI_PROVIDER" not in view(body, pytorch(), lambda _: 0)[0].env
