"""Every launcher's variables give the same answers: one recorded case per platform, and all shapes by property."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime import Environment, SetupError, detect_environment
from cloudtrain.runtime.environment import first_host, tasks_on_this_node

SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-1",
    "SM_MODEL_DIR": "/opt/ml/model",
    "MASTER_ADDR": "algo-1",
    "MASTER_PORT": "7777",
}
AZURE = {"AZUREML_RUN_ID": "run", "AZUREML_EXPERIMENT_ID": "experiment", "AZUREML_NODE_COUNT": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
SIXTH_OF_TWO_BY_FOUR = {
    "rank": 5, "world_size": 8, "local_rank": 1, "local_world_size": 4, "node_rank": 1, "node_count": 2,
}  # fmt: skip
TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "host-0", "MASTER_PORT": "29400",
}  # fmt: skip


def of_tensorflow(cluster: dict[str, list[str]], role: str, index: int) -> dict[str, str]:
    """`TF_CONFIG` as both clouds write it."""
    config = {"cluster": cluster, "environment": "cloud", "task": {"type": role, "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


CASES = {
    "nothing set": ({}, Environment()),
    "torchrun": (
        TORCHRUN,
        Environment(
            "torchrun", "local", **SIXTH_OF_TWO_BY_FOUR, master_addr="host-0", master_port=29400
        ),
    ),
    "torchrun on SageMaker": (
        TORCHRUN | SAGEMAKER,
        Environment(
            "torchrun", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr="algo-1", master_port=7777
        ),
    ),
    "torchrun started by mpirun": (
        OPENMPI | TORCHRUN,
        Environment(
            "torchrun", "local", **SIXTH_OF_TWO_BY_FOUR, master_addr="host-0", master_port=29400
        ),
    ),
    "one process on SageMaker, whose toolkit sets the master all the same": (
        SAGEMAKER | {"SM_HOSTS": '["algo-1"]'},
        Environment(platform="sagemaker"),
    ),
    "one process on each of several SageMaker instances, which are not joined": (
        SAGEMAKER | {"SM_HOSTS": '["algo-1","algo-10","algo-2"]', "SM_CURRENT_HOST": "algo-2"},
        Environment(platform="sagemaker", node_rank=2, node_count=3),
    ),
    "SageMaker MPI on one group of several, whose first host is not the first of all": (
        {"SM_HOSTS": '["algo-1","algo-2","algo-3"]', "SM_DISTRIBUTION_INSTANCE_GROUPS": '["gpu"]'}
        | {
            "SM_INSTANCE_GROUPS_DICT": '{"cpu":{"hosts":["algo-1"]},"gpu":{"hosts":["algo-2","algo-3"]}}'
        }
        | OPENMPI,
        Environment(
            "openmpi", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr="algo-2", master_port=7777
        ),
    ),
    "SageMaker MPI in a container of SDK v3": (
        {"SM_HOSTS": '["algo-1","algo-2"]', "SM_MASTER_ADDR": "algo-2", "SM_MASTER_PORT": "7000"}
        | OPENMPI,
        Environment(
            "openmpi", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr="algo-2", master_port=7000
        ),
    ),
    "SM_ variables that are no JSON": (
        {"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"} | OPENMPI,
        Environment(
            "openmpi", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr=None, master_port=29500
        ),
    ),
    "SageMaker MPI, where every rank sees the first host's SM_CURRENT_HOST": (
        SAGEMAKER | OPENMPI,
        Environment(
            "openmpi", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr="algo-1", master_port=7777
        ),
    ),
    "SageMaker MPI without the toolkit's master": (
        {"SM_HOSTS": '["algo-1","algo-2"]'} | OPENMPI,
        Environment(
            "openmpi", "sagemaker", **SIXTH_OF_TWO_BY_FOUR, master_addr="algo-1", master_port=7777
        ),
    ),
    "torchrun on Azure ML": (
        AZURE | TORCHRUN,
        Environment(
            "torchrun", "azureml", **SIXTH_OF_TWO_BY_FOUR, master_addr="host-0", master_port=29400
        ),
    ),
    "Azure ML PyTorch": (
        AZURE
        | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1"}
        | {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105"},
        Environment(
            "pytorch", "azureml", **SIXTH_OF_TWO_BY_FOUR, master_addr="10.0.0.4", master_port=6105
        ),
    ),
    "Azure ML PyTorch, after accelerate has set its variables for CPUs": (
        AZURE
        | {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "NODE_RANK": "1",
            "LOCAL_WORLD_SIZE": "1",
        }
        | {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105"},
        Environment(
            "pytorch", "azureml", **SIXTH_OF_TWO_BY_FOUR, master_addr="10.0.0.4", master_port=6105
        ),
    ),
    "Azure ML MPI on two nodes": (
        AZURE
        | OPENMPI
        | {"AZ_BATCH_MASTER_NODE": "10.0.0.4:6000", "AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.4"},
        Environment(
            "openmpi", "azureml", **SIXTH_OF_TWO_BY_FOUR, master_addr="10.0.0.4", master_port=6105
        ),
    ),
    "Azure ML MPI on one node": (
        AZURE
        | {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        }
        | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "AZ_BATCHAI_MPI_MASTER_NODE": "localhost"},
        Environment("openmpi", "azureml", 1, 2, 1, 2, 0, 1, "localhost", 6105),
    ),
    "Azure ML TensorFlow, with its empty ps list": (
        AZURE | of_tensorflow({"worker": ["host0:2222", "host1:2222"], "ps": []}, "worker", 1),
        Environment("tensorflow", "azureml", 1, 2, 0, 1, 1, 2, "host0"),
    ),
    "SageMaker parameter server, whose chief is called master": (
        of_tensorflow(
            {
                "master": ["algo-1:2222"],
                "ps": ["algo-1:2223", "algo-2:2223"],
                "worker": ["algo-2:2222"],
            },
            "master",
            0,
        ),
        Environment("tensorflow", "local", 0, 2, 0, 1, 0, 2, "algo-1", role="chief"),
    ),
    "a parameter server ranks behind the workers": (
        of_tensorflow({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "ps", 0),
        Environment("tensorflow", "local", 2, 2, 0, 1, 2, 3, "a", role="ps"),
    ),
    "TF_CONFIG without a cluster": ({"TF_CONFIG": '{"cluster": {}}'}, Environment()),
    "mpirun on this machine": (
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        }
        | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        Environment("openmpi", "local", 1, 2, 1, 2, 0, 1, "127.0.0.1", 29500),
    ),
    "SLURM": (
        {
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "8",
        }
        | {"SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_NTASKS": "8"}
        | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04],login"},
        Environment(
            "slurm", "local", **SIXTH_OF_TWO_BY_FOUR, master_addr="gpu03", master_port=20539
        ),
    ),
    "a SLURM batch script without srun is one process": (
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
        Environment(),
    ),
    "a launcher that sets no more than RANK and WORLD_SIZE": (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        Environment("pytorch", "local", 1, 2, 0, 1, 1, 2, "a", 1),
    ),
    "WORLD_SIZE alone starts nothing": ({"WORLD_SIZE": "4"}, Environment()),
}


@pytest.mark.parametrize("case", CASES)
def test_each_platform_gives_the_same_answers(case: str) -> None:
    """The variables that a platform sets give rank, world and master."""
    variables, expected = CASES[case]
    assert detect_environment(variables) == expected


def test_what_cannot_be_read_is_left_out() -> None:
    """A node without a readable number has no number of tasks, and a group without hosts no first one."""
    tasks = {"SLURM_STEP_TASKS_PER_NODE": "3,1"}
    assert tasks_on_this_node(tasks) == 3
    assert tasks_on_this_node(tasks | {"SLURM_NODEID": "one"}) is None
    groups = {
        "SM_DISTRIBUTION_INSTANCE_GROUPS": '["cpu", "gpu"]',
        "SM_INSTANCE_GROUPS_DICT": '{"cpu": {"hosts": null}, "gpu": {"hosts": ["algo-2"]}}',
    }
    assert first_host(groups) == "algo-2"


def test_without_arguments_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`detect_environment()` looks at `os.environ` now, not at import."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect_environment().rank == 5
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert detect_environment().rank == 6


@given(nodes=st.integers(1, 5), each=st.integers(1, 8), data=st.data())
@pytest.mark.parametrize("launcher", ["torchrun", "azureml", "openmpi", "slurm"])
def test_ranks_of_any_shape_are_derived_alike(
    launcher: str, nodes: int, each: int, data: st.DataObject
) -> None:
    """Whatever a launcher leaves out is worked out: all launchers agree on all six numbers."""
    world = nodes * each
    rank = data.draw(st.integers(0, world - 1))
    node, local = divmod(rank, each)
    r, w, lr, n = str(rank), str(world), str(local), str(node)
    variables = {
        "torchrun": {"RANK": r, "WORLD_SIZE": w, "LOCAL_RANK": lr, "LOCAL_WORLD_SIZE": str(each)},
        "azureml": {
            "RANK": r, "WORLD_SIZE": w, "LOCAL_RANK": lr, "NODE_RANK": n, "AZUREML_NODE_COUNT": str(nodes),
        },
        "openmpi": {
            "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": w, "OMPI_COMM_WORLD_LOCAL_RANK": lr,
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
        },
        "slurm": {
            "SLURM_PROCID": r, "SLURM_NTASKS": w, "SLURM_LOCALID": lr, "SLURM_NODEID": n,
            "SLURM_TASKS_PER_NODE": f"{each}(x{nodes})" if nodes > 1 else str(each),
        },
    }[launcher]  # fmt: skip
    found = detect_environment(variables)
    numbers = (
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_world_size,
        found.node_rank,
        found.node_count,
    )
    assert numbers == (rank, world, local, each, node, nodes)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "`RANK` is `one`, which is not a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"},
            "local rank 3 of 2",
        ),
        ({"TF_CONFIG": "{"}, "`TF_CONFIG` is not JSON"),
        (of_tensorflow({"worker": ["a:1"]}, "worker", 1), "`TF_CONFIG` has no `worker` 1"),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"index": "x"}}'},
            "has the index `x`, which is not a number",
        ),
    ],
)
def test_contradictions_are_named(variables: dict[str, str], message: str) -> None:
    """A broken environment is an error that names the variable, not a wrong rank."""
    with pytest.raises(SetupError, match=message):
        detect_environment(variables)


def test_two_mpiruns_on_one_machine_meet_at_different_ports() -> None:
    """The port comes from the name of the mpirun, so two of them do not join each other."""
    base = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }
    ports = {
        detect_environment(base | {"PMIX_NAMESPACE": name}).master_port
        for name in ("prterun-1@1", "prterun-2@1")
    }
    assert len(ports) == 2
