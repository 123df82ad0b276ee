"""What runs on the instances of an Azure ML job: processes, variables and command lines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.plans.plan import Plan
from cloudtrain.plans.processes import Process, Processes
from cloudtrain.runtime.environment import detect_environment
from cloudtrain.targets.azureml.launch import fill_command, processes, service_layout
from cloudtrain.targets.azureml.reading import Body
from tests.examples import examples

GOLDEN = Path(__file__).parents[2] / "golden" / "azureml"
WORKSPACE = "/subscriptions/sub/resourceGroups/group/providers/Microsoft.MachineLearningServices/workspaces/space"
DATA = "/mnt/azureml/cr/j/run-1/cap/data-capability/wd"


def recorded(case: str, **changes: Any) -> dict[str, Any]:
    """The body that azure-ai-ml 1.35.2 makes of one of its jobs, some properties replaced."""
    body: dict[str, Any] = json.loads((GOLDEN / f"{case}.rest.json").read_text())
    body["properties"] |= changes
    return body


def job(
    kind: str = "", instances: int = 1, *, command: str = "python train.py", **distribution: Any
) -> dict[str, Any]:
    """A small body."""
    spread = {"distributionType": kind, **distribution} if kind else None
    return {
        "properties": {
            "command": command,
            "distribution": spread,
            "resources": {"instanceCount": instances},
        }
    }


def whole(body: dict[str, Any], gpus: int | None = 8) -> list[Process]:
    """Every process with its whole environment, on the service."""
    read = Body(body)
    return list(processes(read, service_layout(read, "run-1", WORKSPACE, gpus)))


def view(body: dict[str, Any]) -> Processes:
    """The processes in a plan."""
    read = Body(body)
    return processes(read, service_layout(read, "run-1", WORKSPACE, 8), with_long=False)


def only(env: dict[str, str], *prefixes: str) -> dict[str, str]:
    """The variables that start with one of the prefixes."""
    return {name: value for name, value in env.items() if name.startswith(prefixes)}


def test_pytorch_2x8() -> None:
    """Sixteen processes without a launcher, each with the six variables that the documentation names."""
    found = whole(recorded("pytorch_2x8"))
    assert [(each.instance, each.rank, each.local_rank) for each in found] == [
        (rank // 8, rank, rank % 8) for rank in range(16)
    ]
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "RANK", "LOCAL_RANK")
    assert {name: found[11].env[name] for name in names} == {
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "6105",
        "WORLD_SIZE": "16",
        "NODE_RANK": "1",
        "RANK": "11",
        "LOCAL_RANK": "3",
    }
    assert found[11].env["AZUREML_PROCESS_NAME"] == "rank_11"
    assert only(found[11].env, "OMPI_", "TF_", "GROUP_", "LOCAL_WORLD", "TORCHELASTIC") == {}
    assert {each.argv for each in found} == {("bash", "-c", "python train.py")}


def test_one_process_per_instance_where_the_count_is_open() -> None:
    """Seven of eight GPUs would have nothing to do: the view shows two processes on two instances."""
    found = view(recorded("pytorch_no_ppi"))
    assert [(each.instance, each.rank) for each in found] == [(0, 0), (1, 1)]


def test_mpi_4x4() -> None:
    """OMPI_* and the master's address from Batch, and none of torch's variables."""
    found = whole(recorded("mpi_4x4"))
    assert len(found) == 16
    assert only(found[6].env, "OMPI_", "AZ_BATCH_MASTER", "AZ_BATCHAI_MPI", "NCCL_") == {
        "AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.4",
        "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "6",
        "OMPI_COMM_WORLD_SIZE": "16",
        "OMPI_UNIVERSE_SIZE": "16",
    }
    assert (
        found[6]
        .env.keys()
        .isdisjoint({"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"})
    )


def test_mpi_on_one_instance() -> None:
    """The master is `localhost`, and Batch names none."""
    (first, _) = whole(job("Mpi", processCountPerInstance=2))
    assert first.env["AZ_BATCHAI_MPI_MASTER_NODE"] == "localhost"
    assert only(first.env, "AZ_BATCH_") == {}


def test_the_jobs_own_interface_stays() -> None:
    """What the service sets by default is the job's to replace; what tells ranks apart is not."""
    body = job("Mpi", 2, processCountPerInstance=1)
    body["properties"]["environmentVariables"] = {
        "NCCL_SOCKET_IFNAME": "ib0",
        "OMPI_COMM_WORLD_RANK": "7",
        "N": 1,
    }
    env = whole(body)[0].env
    assert (env["NCCL_SOCKET_IFNAME"], env["OMPI_COMM_WORLD_RANK"], env["N"]) == ("ib0", "0", "1")


@pytest.mark.parametrize(
    ("case", "workers"),
    [
        ("tensorflow_workers", ["10.0.0.4:2222", "10.0.0.5:2222"]),
        ("tensorflow_default", ["10.0.0.4:2222", "10.0.0.5:2222"]),
    ],
)
def test_tensorflow_workers(case: str, workers: list[str]) -> None:
    """One worker per instance at port 2222, as documented: no key for parameter servers where there are none."""
    found = whole(recorded(case, resources={"instanceCount": 2}))
    assert [json.loads(each.env["TF_CONFIG"]) for each in found] == [
        {
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": index},
            "environment": "cloud",
        }
        for index in range(2)
    ]
    assert [(each.role, each.rank, each.local_rank) for each in found] == [
        ("worker", 0, 0),
        ("worker", 1, 0),
    ]
    assert "RANK" not in found[0].env


def test_parameter_servers_on_instances_of_their_own() -> None:
    """Servers come first and workers behind them where there are instances enough, as documented."""
    found = whole(recorded("tensorflow_ps"))
    assert [(each.role, each.instance, each.rank) for each in found] == [
        ("ps", 0, 3),
        ("worker", 1, 0),
        ("worker", 2, 1),
        ("worker", 3, 2),
    ]
    assert json.loads(found[0].env["TF_CONFIG"]) == {
        "cluster": {
            "ps": ["10.0.0.4:2222"],
            "worker": ["10.0.0.5:2222", "10.0.0.6:2222", "10.0.0.7:2222"],
        },
        "task": {"type": "ps", "index": 0},
        "environment": "cloud",
    }


def test_parameter_servers_beside_workers() -> None:
    """With too few instances a server shares one with a worker, as Batch AI recorded it for three of them."""
    found = whole(job("TensorFlow", 3, parameterServerCount=1, workerCount=3))
    assert json.loads(found[1].env["TF_CONFIG"])["cluster"] == {
        "ps": ["10.0.0.4:2222"],
        "worker": ["10.0.0.4:2223", "10.0.0.5:2222", "10.0.0.6:2222"],
    }


def test_without_a_distribution() -> None:
    """One process that is told nothing of ranks. On several instances it is still the only one that is known."""
    for body in (recorded("single_node"), job(instances=2)):
        (process,) = whole(body)
        assert (process.role, process.instance, process.rank) == ("process", 0, 0)
        assert process.env["AZUREML_PROCESS_NAME"] == "main"
        assert process.env.keys().isdisjoint(
            {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "TF_CONFIG"}
        )


def test_ray_is_not_covered() -> None:
    """What Ray's head and workers start as is not known, so nothing is shown."""
    assert view(recorded("ray")) == ()


def test_what_every_process_has() -> None:
    """The run, the workspace, the hosts: the same names as in published environments."""
    env = whole(job("PyTorch", 2, processCountPerInstance=1), gpus=4)[1].env
    assert only(env, "AZ") == {
        "AZUREML_ARM_PROJECT_NAME": "Default",
        "AZUREML_ARM_RESOURCEGROUP": "group",
        "AZUREML_ARM_SUBSCRIPTION": "sub",
        "AZUREML_ARM_WORKSPACE_NAME": "space",
        "AZUREML_CR_DISTRIBUTED_CONFIG": '{"rank": 1, "host_list": ["10.0.0.4", "10.0.0.5"]}',
        "AZUREML_CR_EXECUTION_WORKING_DIR_PATH": "/mnt/azureml/cr/j/run-1/exe/wd",
        "AZUREML_CR_NODE_RANK": "1",
        "AZUREML_EXPERIMENT_ID": "00000000-0000-0000-0000-000000000000",
        "AZUREML_EXPERIMENT_SCOPE": f"{WORKSPACE}/experiments/Default",
        "AZUREML_NODE_COUNT": "2",
        "AZUREML_PROCESS_NAME": "rank_1",
        "AZUREML_ROOT_RUN_ID": "run-1",
        "AZUREML_RUN_ID": "run-1",
        "AZUREML_WORKSPACE_ID": "00000000-0000-0000-0000-000000000000",
        "AZUREML_WORKSPACE_SCOPE": WORKSPACE,
        "AZ_BATCHAI_GPU_COUNT": "4",
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": "10.0.0.4",
        "AZ_BATCHAI_TASK_INDEX": "1",
        "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
        "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    }


def test_data() -> None:
    """Inputs and outputs are named by variables and replaced in the command; literals and direct ones are values."""
    (process,) = whole(recorded("inputs_all"))
    assert process.argv[2] == f"python train.py --a {DATA}/INPUT_uri_folder_ro --lr 0.0001"
    assert process.env["AZURE_ML_INPUT_uri_file_https"] == f"{DATA}/INPUT_uri_file_https/iris.csv"
    assert process.env["AZURE_ML_INPUT_asset_v"] == f"{DATA}/INPUT_asset_v"
    assert process.env["AZURE_ML_INPUT_uri_folder_direct"] == "wasbs://c@a.blob.core.windows.net/x"
    assert process.env["AZUREML_PARAMETER_lit_bool"] == "True"
    (process,) = whole(recorded("outputs_all"))
    assert process.argv[2] == f"python train.py --o {DATA}/ckpt"
    assert (
        process.env["AZURE_ML_OUTPUT_direct"] == "azureml://datastores/workspaceblobstore/paths/d/"
    )


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("uri_file", "azureml:table:3"),
        ("uri_folder", "azureml://datastores/d/paths/x.csv"),
        ("uri_file", ""),
    ],
)
def test_files_without_a_name(kind: str, fields: str) -> None:
    """An asset does not tell what its file is called, and a folder is no file."""
    body = job()
    body["properties"]["inputs"] = {"t": {"jobInputType": kind, "uri": fields}}
    assert whole(body)[0].env["AZURE_ML_INPUT_t"] == f"{DATA}/INPUT_t"


def test_sixteen_instances_stay_readable() -> None:
    """128 ranks are one block of the plan, whose variables are the ones that matter."""
    body = job("PyTorch", 16, processCountPerInstance=8)
    body["properties"]["environmentVariables"] = {"NCCL_DEBUG": "INFO"}
    text = Plan("azureml", "run-1", "job", {}, (), view(body)).to_text(width=120)
    assert text.count("ranks 0 to 127 on instances 0 to 15") == 1
    assert "NCCL_DEBUG" in text
    assert "AZUREML_ARM" not in text
    assert len(text.splitlines()) < 25


@settings(deadline=None)
@given(
    kind=st.sampled_from(["PyTorch", "Mpi"]),
    instances=st.integers(1, 40),
    count=st.integers(1, 16),
    gpus=st.none(),
)
def test_ranks_are_dealt_out(kind: str, instances: int, count: int, gpus: None) -> None:
    """Ranks are 0 to N-1, each instance has its share, and the runtime in the job reads the same from the variables."""
    found = whole(job(kind, instances, processCountPerInstance=count), None)
    assert [each.rank for each in found] == list(range(instances * count))
    assert Counter(each.instance for each in found) == dict.fromkeys(range(instances), count)
    for each in found:
        seen = detect_environment(each.env)
        assert (seen.platform, seen.rank, seen.world_size) == (
            "azureml",
            each.rank,
            instances * count,
        )
        assert (seen.local_rank, seen.local_world_size) == (each.local_rank, count)
        assert (seen.node_rank, seen.node_count) == (each.instance, instances)
        assert (seen.master_addr, seen.master_port) == (
            "localhost" if kind == "Mpi" and instances == 1 else "10.0.0.4",
            6105,
        )


@settings(deadline=None)
@given(instances=st.integers(1, 8), servers=st.integers(0, 4), workers=st.integers(1, 8))
def test_tasks_are_dealt_out(instances: int, servers: int, workers: int) -> None:
    """Every task has an address of its own, and the runtime finds each task's rank and role."""
    found = whole(job("TensorFlow", instances, parameterServerCount=servers, workerCount=workers))
    assert sorted(each.rank or 0 for each in found) == list(range(servers + workers))
    cluster = json.loads(found[0].env["TF_CONFIG"])["cluster"]
    addresses = [address for members in cluster.values() for address in members]
    assert len(set(addresses)) == servers + workers
    for each in found:
        seen = detect_environment(each.env)
        assert (seen.role, seen.rank, seen.world_size) == (each.role, each.rank, workers)
        assert each.instance < instances


def test_a_hostile_argument_arrives(tmp_path: Path) -> None:
    """The view's argv, run by a real shell, gives the script the argument that was quoted for it."""
    hostile = "two words; $(touch gone) `id` \"quoted\" 'single' \\ $HOME\nnewline ünï \t*"
    script = tmp_path / "train.py"
    script.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    body = job(
        "PyTorch", command=f"python {script} --name {quote(hostile)} --data ${{{{inputs.train}}}}"
    )
    body["properties"]["inputs"] = {
        "train": {"jobInputType": "uri_folder", "uri": "azureml:train:1"}
    }
    (process,) = whole(body)
    argv = [
        process.argv[0],
        process.argv[1],
        process.argv[2].replace("python ", f"{quote(sys.executable)} ", 1),
    ]
    found = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(found.stdout) == ["--name", hostile, "--data", f"{DATA}/INPUT_train"]
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize("quotes", ["{}", "'{}'", '"{}"', "'a b'/{}", "x\\'{}", '"it\'s "{}'])
@settings(max_examples=examples(30), deadline=None)
@given(
    folder=st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12
    )
)
@pytest.mark.slow_after(3)
def test_any_path_arrives(quotes: str, folder: str) -> None:
    """A path of this machine, whatever characters it has, is quoted for the place where its reference stands."""
    command = "printf '%s\\0' " + quotes.format("${{inputs.train}}") + " end"
    filled = fill_command(Body(job(command=command)), {"inputs.train": f"/{folder}"})
    plain = fill_command(Body(job(command=command)), {"inputs.train": "/P"})
    outputs = [
        subprocess.run(["bash", "-c", text], capture_output=True, check=True).stdout.split(b"\0")
        for text in (filled, plain)
    ]
    assert outputs[0] == [part.replace(b"/P", f"/{folder}".encode()) for part in outputs[1]]


def test_more_instances_than_a_byte_counts() -> None:
    """Addresses go on behind 10.0.0.255, and the last of 300 instances is told all of them."""
    last = whole(job("PyTorch", 300, processCountPerInstance=1))[-1]
    assert last.env["AZ_BATCH_HOST_LIST"].endswith(
        "10.0.0.255,10.0.1.0," + ",".join(f"10.0.1.{n}" for n in range(1, 48))
    )
