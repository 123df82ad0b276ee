"""The launch specification of a job emulated as on Azure ML: its processes, with this machine's paths and addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.emulate import ACCOUNT
from cloudtrain.targets.azureml.launch import processes, service_layout
from cloudtrain.targets.azureml.reading import Body
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.common.scaling import scaled_job
from cloudtrain.targets.local.compile import compile_local

BUNDLE = Bundle("c0ffee" * 8, 10, 1)
HERE = LocalAccount("/state", "/usr/bin/python3", Machine(4))
RUN = "/state/runs/job-1"
WORKSPACE = ACCOUNT.workspace_id
OWN = {
    "CLOUDTRAIN_RUN_DIR", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PATH", "PYTHONUNBUFFERED",
    "TP_SOCKET_IFNAME",
}  # fmt: skip
"""What an emulation adds to the service's own variables."""


def job_of(**fields: Any) -> ct.TrainingJob:
    """A PyTorch job on two instances with InfiniBand."""
    usual: dict[str, Any] = {
        "name": "job",
        "entry_point": "train.py",
        "distribution": ct.Torch(),
        "environment": {"framework": "pytorch", "version": "2.8"},
        "resources": {"instance_count": 2, "instance_type": {"azureml": "Standard_ND96asr_v4"}},
    }
    if "command" in fields:
        del usual["entry_point"]
    return ct.TrainingJob(**{**usual, **fields})


def plan_of(job: ct.TrainingJob, account: LocalAccount = HERE, **target: Any) -> Plan:
    """The plan of the emulation."""
    return compile_local(
        job, ct.Local(emulate="azureml", **target), CompileContext("job-1", BUNDLE, account)
    )


def azureml_request(
    job: ct.TrainingJob,
    target: ct.Local | None = None,
    account: LocalAccount = HERE,
    name: str = "job-1",
) -> dict[str, Any]:
    """What Azure ML would be sent for the job with the counts of this machine, nothing to install."""
    scaled, _ = scaled_job(job, target or ct.Local(emulate="azureml"), account)
    scaled = scaled.model_copy(
        update={"environment": job.environment.model_copy(update={"requirements": None})}
    )
    return compile_azureml(scaled, ct.AzureML(), CompileContext(name, BUNDLE, ACCOUNT)).request


def as_on_azure(process: dict[str, Any]) -> dict[str, Any]:
    """argv and variables of an emulated process with places, addresses and interface as the service has them."""
    env = {name: value for name, value in process["env"].items() if name not in OWN}
    text = json.dumps({"argv": process["argv"], "env": env})
    text = text.replace(
        f"{RUN}/instances/{process['instance']}/wd", "/mnt/azureml/cr/j/job-1/exe/wd"
    )
    text = text.replace(f"{RUN}/data", "/mnt/azureml/cr/j/job-1/cap/data-capability/wd").replace(
        '"lo"', '"eth0"'
    )
    numbers = re.compile(r"127\.0\.0\.1:\$\{\{ports\.instance_(\d+)_(\d+)\}\}")
    text = numbers.sub(lambda match: f"10.0.0.{4 + int(match[1])}:{match[2]}", text)
    text = re.sub(r"\$\{\{ports\.instance_\d+_(\d+)\}\}", r"\1", text)
    text = re.sub(r"127\.0\.0\.(\d+)", lambda match: f"10.0.0.{3 + int(match[1])}", text)
    found: dict[str, Any] = json.loads(text)
    return found


INPUTS = {"train": {"local": "/data/train"}, "table": {"local": "/data/t.csv", "type": "uri_file"}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "distribution": ct.Torch(processes_per_instance=2),
            "hyperparameters": {"data": "${{inputs.train}}"},
        },
        {"distribution": ct.MPI(processes_per_instance=2)},
        {"distribution": ct.DeepSpeed(launch="mpi")},
        {"distribution": ct.DeepSpeed(launch="launcher")},
        {"distribution": ct.TensorFlow()},
        {"distribution": ct.TensorFlow(strategy="parameter_server")},
        {"distribution": ct.NoDistribution()},
        {"command": "bash run.sh ${{inputs.train}} '${{outputs.model}}'"},
        {
            "environment": {
                "framework": "pytorch",
                "version": "2.8",
                "variables": {"A": "1", "NCCL_DEBUG": "INFO"},
            }
        },
    ],
    ids=lambda fields: str(next(iter(fields.values()), "")),
)
def test_the_launch_view_runs(fields: dict[str, Any]) -> None:
    """Every process has the view's argv and environment, but for what an emulation must change."""
    job = job_of(inputs=INPUTS, **fields)
    body = Body(azureml_request(job))
    gpus = HERE.machine.gpus
    expected = list(processes(body, service_layout(body, "job-1", WORKSPACE, gpus)))
    found = [as_on_azure(process) for process in plan_of(job).request["processes"]]
    for ours in found:
        if body.kind == "Mpi":
            assert ours["env"].pop("MASTER_PORT") == "6105"
        else:
            assert ours["env"].pop("NCCL_SOCKET_IFNAME") == "eth0"  # which stands for loopback here
    wanted = [{"argv": list(process.argv), "env": dict(process.env)} for process in expected]
    for theirs in wanted if body.kind != "Mpi" else ():
        theirs["env"].pop("NCCL_SOCKET_IFNAME", None)
    assert found == wanted


def test_each_instance_has_its_code_and_all_have_the_data() -> None:
    """The bundle is unpacked once for each instance; data is linked under the names that the service mounts it at."""
    plan = plan_of(job_of(inputs=INPUTS, outputs={"scores": {}, "model": {"local": "/kept/model"}}))
    request = plan.request
    assert request["code"]["directory"] == f"{RUN}/instances/0/wd"
    assert request["code"]["copies"] == [f"{RUN}/instances/1/wd"]
    assert [process["directory"] for process in request["processes"]] == [
        f"{RUN}/instances/{number}/wd" for number in (0, 0, 1, 1)
    ]
    assert {
        link["path"]: link["target"] for link in request["links"] if "/data/" in link["path"]
    } == {
        f"{RUN}/data/INPUT_train": "/data/train",
        f"{RUN}/data/INPUT_table/t.csv": "/data/t.csv",
        f"{RUN}/data/model": "/kept/model",
    }
    assert request["directories"] == ["/kept/model", f"{RUN}/data", f"{RUN}/data/scores"]
    assert request["places"] == {
        "model": [f"{RUN}/data/model"],
        "checkpoint": [
            f"{RUN}/instances/0/wd/outputs/checkpoint",
            f"{RUN}/instances/1/wd/outputs/checkpoint",
        ],
        "outputs": [f"{RUN}/instances/0/wd/outputs", f"{RUN}/instances/1/wd/outputs"],
        "outputs/scores": [f"{RUN}/data/scores"],
        "user_logs": [f"{RUN}/user_logs"],
    }


def test_a_command_without_outputs() -> None:
    """What a command writes to `outputs/` is kept by the service, and is where the runtime puts a model."""
    places = plan_of(
        job_of(command="python train.py", distribution=ct.NoDistribution()), instance_count=1
    ).request["places"]
    assert places["model"] == [f"{RUN}/instances/0/wd/outputs/model"]


def test_the_name_of_a_log() -> None:
    """One process writes `std_log.txt`; of ten and more, numbers have two digits."""

    def names(**target: int) -> list[str]:
        links = plan_of(job_of(), **target).request["links"]
        return [link["path"].rpartition("/")[2] for link in links if "user_logs" in link["path"]]

    assert names(instance_count=1, processes_per_instance=1) == ["std_log.txt"]
    assert names(instance_count=2, processes_per_instance=5)[7] == "std_log_process_7.txt"
    assert names(instance_count=2, processes_per_instance=6)[7] == "std_log_process_07.txt"


def test_the_interpreter_is_the_targets() -> None:
    """`python` of the command line is a program in front of the PATH that becomes the target's interpreter."""
    request = plan_of(job_of(), python="/opt/my env/bin/python3.12").request
    assert request["programs"] == [f"{RUN}/programs/python", f"{RUN}/programs/python3"]
    assert (
        request["files"][f"{RUN}/programs/python"]
        == "#!/bin/sh\nexec '/opt/my env/bin/python3.12' \"$@\"\n"
    )
    path = request["processes"][0]["env"]["PATH"]
    assert path == f"{RUN}/programs:/opt/my env/bin:" + "${{env.PATH}}"


def test_gpus_are_shared_out() -> None:
    """Each instance sees its part of this machine's GPUs, and is told how many."""
    request = plan_of(job_of(), HERE._replace(machine=Machine(8, ("0", "1", "2", "3")))).request
    seen = {
        (each["env"]["CUDA_VISIBLE_DEVICES"], each["env"]["AZ_BATCHAI_GPU_COUNT"])
        for each in request["processes"]
    }
    assert seen == {("0,1", "2"), ("2,3", "2")}
    assert request["world_size"] == 4


def test_parameter_servers_and_workers_are_counted_down() -> None:
    """A big job keeps its roles: no more of each than there are instances, and the workers' end ends the run."""
    job = job_of(
        distribution=ct.TensorFlow(strategy="parameter_server", parameter_servers=8, workers=16),
        resources={"instance_count": 24},
        environment={"framework": "tensorflow", "version": "2.16"},
    )
    request = plan_of(job, HERE._replace(machine=Machine(2))).request
    assert [(each["role"], each["rank"]) for each in request["processes"]] == [
        ("ps", 2),
        ("ps", 3),
        ("worker", 0),
        ("worker", 1),
    ]
    addresses = [
        address
        for members in json.loads(request["processes"][0]["env"]["TF_CONFIG"])["cluster"].values()
        for address in members
    ]
    assert sorted(addresses) == sorted(
        "127.0.0.1:${{ports." + name + "}}" for name in request["ports"]
    )
    assert request["finishes"] == ["worker"]


def test_the_plan_shows_one_block_of_ranks() -> None:
    """Four ranks on two instances are shown once, with what tells the reader something, and why it differs."""
    text = (
        plan_of(job_of(distribution=ct.MPI(processes_per_instance=2)))
        .to_text(width=120)
        .partition("Request")[0]
    )
    assert "ranks 0 to 3 on instances 0 to 1" in text
    assert "as Azure ML would run it" in text
    assert "the service itself (Mpi)" in text
    assert "OMPI_COMM_WORLD_SIZE=4" in text
    assert "AZUREML_ARM" not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"distribution": {"type": "smp", "version": 2}}, "SageMaker's own library"),
        ({"distribution": {"type": "horovod"}}, "Azure ML's own mpirun"),
        ({"inputs": {"train": {"local": "/data", "mode": "pipe"}}}, "is a pipe"),
        ({"inputs": {"train": {"azureml": "azureml:train:1"}}}, "no path on this machine"),
        (
            {"azureml_overrides": {"distribution": {"distributionType": "Ray"}}},
            "cannot emulate `Ray`",
        ),
        ({"environment": {}}, "in which environment"),
    ],
)
def test_what_cannot_be_emulated(fields: dict[str, Any], words: str) -> None:
    """What Azure ML would refuse, or this machine does not have, is said before anything starts."""
    with pytest.raises(ct.JobError, match=words):
        plan_of(job_of(**fields))


def test_several_instances_without_a_distribution() -> None:
    """What the service does is not documented, so one process runs and the plan says so."""
    plan = plan_of(job_of(distribution=ct.NoDistribution()))
    assert (plan.request["world_size"], plan.request["instances"]) == (1, 2)
    assert any("is not documented" in note for note in plan.notes)


def test_restarts_are_refused() -> None:
    """Azure ML starts no rank again, so an emulation cannot be asked to."""
    with pytest.raises(ct.JobError, match="Azure ML does not restart ranks"):
        ct.Local(emulate="azureml", max_restarts=1)


def test_the_plan_is_pure() -> None:
    """The same job gives the same bytes, and other counts another plan."""
    assert plan_of(job_of()).sha256 == plan_of(job_of()).sha256
    assert plan_of(job_of()).sha256 != plan_of(job_of(), instance_count=1).sha256


@pytest.mark.parametrize(("emulate", "expected"), [("azureml", "${{inputs.lr}}"), (None, "0.1")])
def test_plain_values_stay_inputs_as_they_do_there(
    emulate: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service puts them into the command, and into variables of its own; this machine alone has only the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / "state"))
    command = "python train.py --lr ${{inputs.lr}}"
    resources = {"instance_count": 1, "instance_type": {"azureml": "Standard_NC24ads_A100_v4"}}
    inputs = {"lr": {"value": 0.1}, "flag": {"value": True}}
    plan = ct.plan(
        job_of(command=command, inputs=inputs, resources=resources), ct.Local(emulate=emulate)
    )
    assert dict(plan.summary)["script"] == f"python train.py --lr {expected}"
    for process in plan.request["processes"]:
        found = {
            name: value
            for name, value in process["env"].items()
            if name.startswith("AZUREML_PARAMETER_")
        }
        assert found == (
            {"AZUREML_PARAMETER_lr": "0.1", "AZUREML_PARAMETER_flag": "True"} if emulate else {}
        )
        assert process["argv"][-1].endswith("--lr 0.1")
