"""The launch specification of an emulated job: what SageMaker would start, with this machine's paths and addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.system.plugins import pip_line
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.common.scaling import scaled_job
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.emulate import ACCOUNT, relocate_request, relocate_text
from cloudtrain.targets.sagemaker.launch.commands import command
from cloudtrain.targets.sagemaker.launch.container import HostSetup, environment
from cloudtrain.targets.sagemaker.request import files as container_files
from cloudtrain.targets.sagemaker.request import hosts

BUNDLE = Bundle("c0ffee" * 8, 10, 1)
HERE = LocalAccount("/state", "/usr/bin/python3", Machine(4), mpirun="/usr/bin/mpirun")
RUN = "/state/runs/job-1"
OWN = {
    "AWS_REGION", "CLOUDTRAIN_RUN_DIR", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PET_LOG_DIR", "PET_REDIRECTS",
    "PET_MASTER_PORT", "PYTHONPATH", "PYTHONUNBUFFERED", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TP_SOCKET_IFNAME",
    "TRAINING_JOB_NAME",
}  # fmt: skip
"""What an emulation adds to a container's own variables."""


def job_of(**fields: Any) -> ct.TrainingJob:
    """A PyTorch job on two GPU instances."""
    usual: dict[str, Any] = {
        "name": "job",
        "entry_point": "train.py",
        "distribution": ct.Torch(),
        "environment": {"framework": "pytorch", "version": "2.8"},
        "resources": {"instance_count": 2, "instance_type": {"sagemaker": "ml.g5.12xlarge"}},
    }
    if "command" in fields:
        del usual["entry_point"]
    return ct.TrainingJob(**{**usual, **fields})


def plan_of(job: ct.TrainingJob, account: LocalAccount = HERE, **target: Any) -> Plan:
    """The plan of the emulation."""
    return compile_local(
        job, ct.Local(emulate="sagemaker", **target), CompileContext("job-1", BUNDLE, account)
    )


def sagemaker_request(job: ct.TrainingJob, account: LocalAccount = HERE) -> dict[str, Any]:
    """What SageMaker would be sent for the job with the counts of this machine."""
    scaled, _ = scaled_job(job, ct.Local(emulate="sagemaker"), account)
    return compile_sagemaker(
        scaled, ct.SageMaker(), CompileContext("job-1", BUNDLE, ACCOUNT)
    ).request


def as_in_the_container(value: Any, host: str) -> Any:
    """Texts of one emulated host with roots, addresses, interface and interpreter as the container has them."""
    text = json.dumps(value)
    text = text.replace(f"{RUN}/hosts/{host}/opt/ml", "/opt/ml")
    text = re.sub(r"127\.0\.0\.1:\$\{\{ports\.(algo-\d+)_(\d+)\}\}", r"\1:\2", text)
    text = re.sub(r'"127\.0\.0\.1", "--master_port", "\$\{\{ports\.(algo-\d+)_(\d+)\}\}"',
                  r'"\1", "--master_port", "\2"', text)  # fmt: skip
    text = re.sub(r"\$\{\{ports\.algo-\d+_(\d+)\}\}", r"\1", text)
    text = text.replace('"MASTER_ADDR": "127.0.0.1"', '"MASTER_ADDR": "algo-1"')
    for quote in ('"', '\\"'):
        text = text.replace(f"{quote}lo{quote}", f"{quote}eth0{quote}")
    text = text.replace('"/usr/bin/python3", "-m", "cloudtrain.runtime.torchrun"', '"torchrun"')
    return json.loads(text)


def test_the_settings_of_the_emulated_target_count() -> None:
    """Region, launcher and input mode reach the container; nothing else of the settings does."""
    given = ct.SageMaker(
        region="eu-west-1", launch="entrypoint", role="arn:aws:iam::1:role/mine", bucket="mine"
    )
    plan = plan_of(job_of(), HERE._replace(emulated=given))
    text = json.dumps(plan.request)
    assert "eu-west-1" in text
    assert "us-east-1" not in text
    assert "cloudtrain.runtime.sagemaker_launcher" in text
    assert "mine" not in text


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME"])
def test_the_interface_that_a_job_names_is_this_machines(name: str) -> None:
    """Also where cloudtrain's launcher starts the processes."""
    job = job_of(
        environment={"framework": "pytorch", "version": "2.8", "variables": {name: "eth0"}}
    )
    account = HERE._replace(emulated=ct.SageMaker(launch="entrypoint"))
    for process in plan_of(job, account).request["processes"]:
        assert process["env"][name] == "lo"


def test_the_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From cloudtrain.toml, as a plan for the target itself would."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "cloudtrain.toml").write_text('[sagemaker]\nregion = "eu-central-1"\n')
    monkeypatch.chdir(tmp_path)
    assert "eu-central-1" in json.dumps(ct.plan(job_of(), ct.Local(emulate="sagemaker")).request)


@pytest.mark.parametrize(
    "resources", [{"InstanceCount": 60}, {"InstanceType": None}, {"InstanceGroups": "x"}, None]
)
def test_overrides_of_the_machines_do_not_count(resources: Any) -> None:
    """The machines are this one's: what runs here is what would run without them, and the plan says so."""
    plan = plan_of(job_of(sagemaker_overrides={"ResourceConfig": resources}))
    assert plan.request["processes"] == plan_of(job_of()).request["processes"]
    assert any("`sagemaker_overrides.ResourceConfig`" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"HyperParameters": {"a": 5}}, "sagemaker_overrides.HyperParameters.a"),
        ({"AlgorithmSpecification": None}, "sagemaker_overrides.AlgorithmSpecification"),
        (
            {"AlgorithmSpecification": {"ContainerEntrypoint": 3}},
            "sagemaker_overrides.AlgorithmSpecification",
        ),
        ({"Environment": {"A": 1}}, "sagemaker_overrides.Environment.A"),
        ({"TrainingJobName": None}, "sagemaker_overrides.TrainingJobName"),
        (
            {"HyperParameters": {"sagemaker_distribution_instance_groups": "3"}},
            "sagemaker_overrides.HyperParameters.sagemaker_distribution_instance_groups",
        ),
    ],
)
@pytest.mark.parametrize("launch", ["toolkit", "entrypoint"])
def test_overrides_that_leave_no_request(
    overrides: dict[str, Any], place: str, launch: str
) -> None:
    """They are refused here as they are for SageMaker, each at its place."""
    image = (
        {}
        if launch == "toolkit"
        else {"environment": {"image": {"sagemaker": "own.example/train:1"}}}
    )
    with pytest.raises(ct.JobError) as caught:
        plan_of(job_of(sagemaker_overrides=overrides, **image))
    assert any(problem.dotted.startswith(place) for problem in caught.value.problems)


def test_an_override_without_an_image() -> None:
    """Nothing of the image is used here."""
    overrides = {"AlgorithmSpecification": {"TrainingImage": None, "AlgorithmName": "mine"}}
    assert dict(plan_of(job_of(sagemaker_overrides=overrides)).summary)["processes"] == "4"


def test_plain_scripts_are_numbered_by_the_names_of_their_hosts() -> None:
    """As in SM_HOSTS, where `algo-10` is the second of twelve."""
    plan = plan_of(job_of(distribution=ct.NoDistribution()), instance_count=12)
    assert {item["rank"]: item["instance"] for item in plan.request["processes"]}[1] == 9
    assert [item["instance"] for item in plan.request["processes"]] == list(range(12))


def test_modules_are_looked_for_in_the_code_first() -> None:
    """The toolkit's own path has the code in front of what the job's PYTHONPATH says."""
    environment = {
        "framework": "pytorch",
        "version": "2.8",
        "variables": {"PYTHONPATH": "/opt/ml/input/data/lib"},
    }
    env = plan_of(job_of(environment=environment)).request["processes"][0]["env"]
    root = f"{RUN}/hosts/algo-1/opt/ml"
    assert env["PYTHONPATH"] == f"{root}/code:{root}/input/data/lib"


@pytest.mark.parametrize("host", [0, 1])
def test_digits_ddp_equals_the_launch_view(host: int) -> None:
    """argv and environment of the bundled job on two hosts are the toolkit's, but for what an emulation must change."""
    job = ct.bundled_job("digits_ddp", ["resources.instance_count=2"])
    process = plan_of(job).request["processes"][host]
    request = sagemaker_request(job)
    where = next(each for each in hosts(request) if each.index == host)
    image = ImageContents("pytorch", "5.1.1", python="/usr/bin/python3")
    expected = command(HostSetup(request, where, image, gpus=0))
    env = environment(HostSetup(request, where, image, gpus=0, cpus=4))
    assert as_in_the_container(process["argv"], where.name) == list(expected.argv)
    ours = as_in_the_container(process["env"], where.name)
    assert {name: value for name, value in ours.items() if name not in OWN} == {
        **env,
        **expected.env,
    }
    assert process["directory"] == f"{RUN}/hosts/{where.name}/opt/ml/code"


def test_configuration_files() -> None:
    """Each host finds SageMaker's three files, as its container would."""
    job = job_of(hyperparameters={"data": "${{inputs.train}}", "model": "/opt/ml/model", "n": 3},
                 inputs={"train": {"local": "/data"}})  # fmt: skip
    request, files = sagemaker_request(job), plan_of(job).request["files"]
    for host in hosts(request):
        folder = f"{RUN}/hosts/{host.name}/opt/ml/input/config"
        found = {name: json.loads(files[f"{folder}/{name}.json"]) for name in
                 ("hyperparameters", "inputdataconfig", "resourceconfig")}  # fmt: skip
        expected = container_files(request, host)
        shown = as_in_the_container(found, host.name)
        assert {
            f"/opt/ml/input/config/{name}.json": content for name, content in shown.items()
        } == expected
        assert (
            json.loads(found["hyperparameters"]["data"])
            == f"{RUN}/hosts/{host.name}/opt/ml/input/data/train"
        )


def test_toolkit_shell_script() -> None:
    """A shell script is started through a shell, whose whole group gets signals."""
    process = plan_of(job_of(entry_point="run.sh", distribution=ct.NoDistribution())).request[
        "processes"
    ][0]
    assert process["argv"] == ["/bin/sh", "-c", "./run.sh "]
    assert (process["signal"], process["rank"]) == ("group", 0)


def test_one_host_gets_a_port_of_its_own() -> None:
    """torchrun on one host is given no port, so its setting comes as a variable, and two runs do not collide."""
    job = job_of(resources={"instance_type": {"sagemaker": "ml.g5.12xlarge"}})
    process = plan_of(job, processes_per_instance=2).request["processes"][0]
    assert "--master_port" not in process["argv"]
    assert process["env"]["PET_MASTER_PORT"] == "${{ports.algo-1_7777}}"


def test_mpirun_reaches_only_this_machine() -> None:
    """Hosts become loopback with all their slots, eth0 the loopback interface, and no library is preloaded."""
    plan = plan_of(
        job_of(distribution=ct.MPI(options="-x A=eth0 -verbose")),
        instance_count=2,
        processes_per_instance=2,
    )
    (process,) = plan.request["processes"]
    argv = process["argv"]
    assert argv[:5] == ["/usr/bin/mpirun", "--host", "127.0.0.1:4", "-np", "4"]
    assert not [option for option in argv if "LD_PRELOAD" in option or option == "eth0"]
    assert argv[-5:] == [f"{RUN}/logs/instance_0", "/usr/bin/python3", "-m", "mpi4py", "train.py"]
    assert (plan.request["launcher"], plan.request["world_size"], plan.request["instances"]) == (
        "mpirun",
        4,
        2,
    )


def test_parameter_servers() -> None:
    """Every host has its task and a server, which is the toolkit's own; the end of the master ends the run."""
    job = job_of(
        distribution=ct.TensorFlow(strategy="parameter_server"),
        environment={"framework": "tensorflow", "version": "2.19"},
    )
    request = plan_of(job).request
    tasks = [(each["role"], each["instance"], each["rank"]) for each in request["processes"]]
    assert tasks == [("master", 0, 0), ("ps", 0, 2), ("worker", 1, 1), ("ps", 1, 3)]
    configs = [json.loads(each["env"]["TF_CONFIG"]) for each in request["processes"]]
    assert [config["task"] for config in configs] == [
        {"index": 0, "type": "master"}, {"index": 0, "type": "ps"},
        {"index": 0, "type": "worker"}, {"index": 1, "type": "ps"},
    ]  # fmt: skip
    addresses = [address for members in configs[0]["cluster"].values() for address in members]
    assert sorted(addresses) == sorted(
        "127.0.0.1:${{ports." + name + "}}" for name in request["ports"]
    )
    assert request["finishes"] == ["master"]


def test_heterogeneous_cluster() -> None:
    """Groups keep one instance at least; the distribution spans its own, and the others run the script alone."""
    groups = [
        {"name": "gpu", "instance_type": "ml.p4d.24xlarge", "instance_count": 3},
        {"name": "cpu", "instance_type": "ml.c5.18xlarge", "instance_count": 2},
    ]
    job = job_of(resources={"instance_groups": groups, "distribution_groups": ["gpu"]})
    request = plan_of(job, HERE._replace(machine=Machine(3))).request
    assert [(each["role"], each["rank"]) for each in request["processes"]] == [
        ("torchrun", None), ("torchrun", None), ("process", 2),
    ]  # fmt: skip
    assert request["processes"][2]["env"]["SM_CURRENT_INSTANCE_GROUP"] == "cpu"
    assert request["world_size"] == 3


def test_entrypoint_runs_our_launcher() -> None:
    """An image of one's own starts through the container's own line, moved to the host's root."""
    job = job_of(environment={"image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"})
    request = plan_of(job).request
    for process, host in zip(request["processes"], ("algo-1", "algo-2"), strict=True):
        root = f"{RUN}/hosts/{host}/opt/ml"
        line = process["argv"][2].replace(root, "/opt/ml")
        assert (
            line.replace("P=/usr/bin/python3|", "P=$(command -v python3||command -v python)|")
            == CONTAINER_ENTRYPOINT[2]
        )
        assert json.loads(process["env"]["CLOUDTRAIN_EMULATED_ENDPOINTS"]) == {
            "algo-1:7777": "127.0.0.1:${{ports.algo-1_7777}}"
        }
        link = {"path": f"{root}/input/data/code/sourcedir.tar.gz", "shard": None}
        assert (
            link | {"target": f"/state/bundles/{BUNDLE.sha256}/sourcedir.tar.gz"}
            in request["links"]
        )
    assert request["code"]["directory"] is None
    roles = [process.role for process in plan_of(job).processes]
    assert roles == ["launcher", "launcher", "torchrun", "rank", "rank", "torchrun", "rank", "rank"]


def test_channels_are_links_to_local_data() -> None:
    """A folder is linked, a file lies in its channel, a shard is every n-th file of each host that gets it."""
    inputs = {
        "whole": {"local": "/data/all"},
        "one": {"local": "/data/a.csv", "type": "uri_file", "sagemaker": "s3://bucket/b.csv"},
        "part": {"local": "/data/parts", "shard": True},
    }
    links = plan_of(job_of(inputs=inputs)).request["links"]
    found = [link for link in links if "algo-2" in link["path"]]
    data = f"{RUN}/hosts/algo-2/opt/ml/input/data"
    assert found == [
        {"path": f"{data}/whole", "target": "/data/all", "shard": None},
        {"path": f"{data}/one/b.csv", "target": "/data/a.csv", "shard": None},
        {"path": f"{data}/part", "target": "/data/parts", "shard": [1, 2]},
    ]


def test_checkpoints_are_shared_by_the_hosts() -> None:
    """All hosts' `/opt/ml/checkpoints` are the job's one place, as all of them are synced with one S3 prefix."""
    links = plan_of(job_of(checkpoint={"local": "/kept"})).request["links"]
    assert [(link["path"], link["target"]) for link in links] == [
        (f"{RUN}/hosts/{host}/opt/ml/checkpoints", "/kept") for host in ("algo-1", "algo-2")
    ]


def test_gpus_are_shared_out() -> None:
    """Each host sees its part of this machine's GPUs, and is told so."""
    request = plan_of(job_of(), HERE._replace(machine=Machine(8, ("0", "1", "2", "3")))).request
    seen = [
        (each["env"]["CUDA_VISIBLE_DEVICES"], each["env"]["SM_NUM_GPUS"])
        for each in request["processes"]
    ]
    assert seen == [("0,1", "2"), ("2,3", "2")]
    assert request["processes"][0]["argv"][6] == "2"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": {"train": {"local": "/data", "mode": "pipe"}}}, "is a pipe"),
        ({"inputs": {"train": {"sagemaker": "s3://bucket/x"}}}, "no path on this machine"),
        ({"resources": {}}, "on which instance type"),
    ],
)
def test_what_cannot_be_emulated(fields: dict[str, Any], words: str) -> None:
    """What SageMaker would refuse, or this machine does not have, is said before anything starts."""
    with pytest.raises(ct.JobError, match=words):
        plan_of(job_of(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "environment": {"image": "me/mine:1"},
            "resources": {"instance_type": {"sagemaker": "ml.g5.12xlarge"}},
        },
    ],
    ids=["toolkit", "our launcher"],
)
def test_mpirun_is_missing(fields: dict[str, Any]) -> None:
    """A job that mpirun starts needs it here too, whoever starts mpirun."""
    with pytest.raises(
        ct.JobError, match="neither beside `/usr/bin/python3` nor on the PATH"
    ) as missing:
        plan_of(job_of(distribution=ct.MPI(), **fields), HERE._replace(mpirun=None))
    assert f"`{pip_line('mpi')}`" in str(missing.value)


def test_restarts_are_refused() -> None:
    """SageMaker starts no rank again, so an emulation cannot be asked to."""
    with pytest.raises(ct.JobError, match="does not restart ranks"):
        ct.Local(emulate="sagemaker", max_restarts=1)


def test_the_plan_is_pure() -> None:
    """The same job gives the same bytes, and other counts another plan."""
    assert plan_of(job_of()).sha256 == plan_of(job_of()).sha256
    assert plan_of(job_of()).sha256 != plan_of(job_of(), instance_count=1).sha256


@given(st.text(), st.text())
def test_only_the_root_itself_is_moved(before: str, after: str) -> None:
    """Text without `/opt/ml` as a path is left alone; the root is not found inside another path or name."""
    assert relocate_text(before.replace("/opt/ml", ""), "/x") == before.replace("/opt/ml", "")
    assert relocate_text(f"x/opt/ml{after}".replace("=/opt", ""), "/y").startswith("x/opt/ml")
    assert relocate_text("/opt/mlflow", "/x") == "/opt/mlflow"
    assert relocate_text("a=/opt/ml/model:/opt/ml", "/x y") == "a=/x y/model:/x y"


@given(st.text(alphabet=st.characters(exclude_characters="\0\n"), min_size=1, max_size=20))
def test_rerooted_hyperparameters_stay_json(folder: str) -> None:
    """Whatever characters the state folder has, values keep their type and name the moved folder."""
    request = {
        "HyperParameters": {"a": json.dumps({"dir": "/opt/ml/model"}), "b": "/opt/ml/raw", "c": "3"}
    }
    found = relocate_request(request, f"/{folder}")["HyperParameters"]
    assert json.loads(found["a"]) == {"dir": f"/{folder}/model"}
    assert (found["b"], found["c"]) == (f"/{folder}/raw", "3")
