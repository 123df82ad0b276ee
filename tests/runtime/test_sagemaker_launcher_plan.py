"""What a host will start, from SageMaker's configuration files: pure."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError
from cloudtrain.runtime.sagemaker_launcher import CONTAINER_ENTRYPOINT
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, decode_hyperparameters, split
from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine, this_machine
from cloudtrain.runtime.sagemaker_launcher.network import Network
from cloudtrain.runtime.sagemaker_launcher.plan import LaunchPlan, launch_plan
from cloudtrain.runtime.tf_config import read_tf_config
from cloudtrain.targets.common.compiling import hyperparameter_argv
from tests.runtime.sagemaker_host import resource_config

GOLDEN = Path(__file__).parent.parent / "golden" / "sagemaker_container"
TWO = ("algo-1", "algo-2")
HETERO = {"gpu": ["algo-1", "algo-2"], "cpu": ["algo-3"]}


def plan_of(
    host: str = "algo-1",
    *,
    machine: HostMachine | None = None,
    hosts: tuple[str, ...] = ("algo-1",),
    groups: dict[str, list[str]] | None = None,
    user: dict[str, Any] | None = None,
    network: Network | None = None,
    **launch: Any,
) -> LaunchPlan:
    """The plan of `train.py` on one host."""
    if "command" not in launch:
        launch.setdefault("entry_point", "train.py")
    request = {key: json.dumps(value) for key, value in (user or {}).items()}
    request["cloudtrain_launch"] = json.dumps(launch)
    resource = resource_config(host, groups, hosts=hosts)
    return launch_plan(request, resource, {}, machine or HostMachine(), network=network)


def test_start_line_fits_the_service() -> None:
    """The items of ContainerEntrypoint are within SageMaker's 256 characters, and have no line break."""
    assert all(0 < len(item) <= 256 and "\n" not in item for item in CONTAINER_ENTRYPOINT)


@pytest.mark.parametrize(
    "path", sorted((GOLDEN.parent.parent.parent / "cloudtrain/runtime").rglob("*launcher/*.py"))
)
def test_launcher_is_old_python(path: Path) -> None:
    """The launcher's files parse as Python 3.7, which images with old frameworks have."""
    ast.parse(path.read_text(), feature_version=(3, 7))


OWN_VALUES = {
    # tuning for old versions of NCCL's EFA plugin; left to the user
    "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_PROTO",
    # the launcher's own parameters, and where its bundle lies
    "SM_FRAMEWORK_PARAMS", "SM_MODULE_DIR",
    "SM_TRAINING_ENV",  # compared below
    "SM_NUM_CPUS", "PYTHONPATH",  # of the machine that recorded them
}  # fmt: skip
OWN_FIELDS = {"additional_framework_parameters", "module_dir", "is_smddprun_installed", "num_cpus"}


@pytest.mark.parametrize(
    ("case", "launch"),
    [
        ("pt_torchdist.pytorch.host0", {"launcher": "torchrun"}),
        ("pt_torchdist.pytorch.host1", {"launcher": "torchrun"}),
        ("pt_hetero_td.pytorch.host0", {"launcher": "torchrun", "instance_groups": ["gpu"]}),
        ("tf_mwms.tensorflow.host0", {"launcher": "tensorflow"}),
        ("pt_none.pytorch.host0", {"launcher": "single"}),
        ("pt_sh_plain.pytorch.host0", {"launcher": "single", "entry_point": "train.sh"}),
        ("est_byoc_script.generic.host0", {"launcher": "single"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_environment_is_the_toolkits(case: str, launch: dict[str, Any]) -> None:
    """Names and values of the environment are those that the real toolkit 5.1.4 sets for the same job and host."""
    golden = json.loads((GOLDEN / f"{case}.tk5.1.4.json").read_text())
    theirs = golden["env_delta"]
    request = {key: json.dumps(value) for key, value in json.loads(theirs["SM_HPS"]).items()}
    request["cloudtrain_launch"] = json.dumps({"entry_point": "train.py", **launch})
    container = {
        "TRAINING_JOB_NAME": theirs["SAGEMAKER_JOB_NAME"],
        "AWS_REGION": theirs["SAGEMAKER_REGION"],
    }
    machine = HostMachine(gpus=golden["n_gpus"], efa="FI_PROVIDER" in theirs, variables=container)
    channels = json.loads(theirs["SM_INPUT_DATA_CONFIG"])
    plan = launch_plan(request, golden["resourceconfig"], channels | {"code": {}}, machine)
    ours = {**plan.environment, **plan.programs[0].env}
    expected = {name: value for name, value in theirs.items() if name not in OWN_VALUES}
    if "TF_CONFIG" in expected:
        assert json.loads(ours.pop("TF_CONFIG")) == json.loads(expected.pop("TF_CONFIG"))
    assert {name: ours.get(name) for name in expected} == expected
    ours_whole, theirs_whole = (json.loads(env["SM_TRAINING_ENV"]) for env in (ours, theirs))
    assert ours_whole.keys() == theirs_whole.keys()
    assert {key for key in theirs_whole if ours_whole[key] != theirs_whole[key]} <= OWN_FIELDS
    extra = {name for name in ours if name.startswith("SM_")} - theirs.keys() - {"SM_NUM_CPUS"}
    assert extra == set()


def test_argv_as_the_toolkit_writes_it() -> None:
    """Keys sorted, one dash for one letter, None as nothing, a mapping as sorted `a=1,b=2`, a list as Python."""
    user = {
        "l": [1],
        "cfg": {"b": {"x": 1}, "a": True},
        "none": None,
        "flag": True,
        "lr": 1e-05,
        "name": "two words",
    }
    assert plan_of(user=user).programs[0].argv == (
        "python3", "train.py", "--cfg", "a=True,b={'x': 1}", "--flag", "True", "-l", "[1]", "--lr", "1e-05",
        "--name", "two words", "--none", "",
    )  # fmt: skip


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=10).filter(lambda key: not key.startswith("cloudtrain_")),
        VALUES,
    )
)
def test_request_round_trip(user: dict[str, Any]) -> None:
    """JSON in the request and back: the values are the same, and nothing of the launcher's is among them."""
    request = {key: json.dumps(value) for key, value in user.items()} | {"cloudtrain_launch": "{}"}
    own, reserved = split(decode_hyperparameters(request))
    ours = {key: value for key, value in user.items() if not key.startswith("sagemaker_")}
    assert own == ours
    assert "cloudtrain_launch" in reserved
    assert len(argv_of(own)) == 2 * len(own)


@given(st.dictionaries(st.text(min_size=1, max_size=10), VALUES, max_size=5))
def test_argv_is_that_of_every_other_target(user: dict[str, Any]) -> None:
    """The launcher, which stands alone in the bundle, writes the same argv as the compilers."""
    assert argv_of(user) == hyperparameter_argv(user)


def test_plain_text_stays_text() -> None:
    """A value that is not JSON, as tools other than cloudtrain write it, is a text."""
    assert decode_hyperparameters({"name": "resnet50", "n": "3", "q": '"3"'}) == {
        "name": "resnet50",
        "n": 3,
        "q": "3",
    }


def test_torchrun_on_two_hosts() -> None:
    """One agent per host, which meet at the first; as many ranks as GPUs."""
    plan = plan_of("algo-2", hosts=TWO, machine=HostMachine(gpus=4), launcher="torchrun")
    assert plan.programs[0].argv == (
        "python3", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "4", "--node_rank", "1",
        "--master_addr", "algo-1", "--master_port", "7777", "train.py",
    )  # fmt: skip
    assert (plan.wait_for, plan.hosts, plan.processes_per_instance) == ("algo-1", TWO, 4)
    assert plan.endpoints == ("algo-1:7777",)


def test_torchrun_alone_needs_no_name() -> None:
    """On one host the agent meets itself on loopback, and waits for nobody."""
    plan = plan_of(launcher="torchrun", processes_per_instance=2)
    assert "127.0.0.1" in plan.programs[0].argv
    assert plan.wait_for is None


def test_torchrun_of_a_command() -> None:
    """A shell command runs once per rank."""
    plan = plan_of(launcher="torchrun", command="bash run.sh $RANK")
    assert plan.programs[0].argv[-4:] == ("--no_python", "bash", "-c", "bash run.sh $RANK")


@pytest.mark.parametrize(
    ("machine", "processes"),
    [(HostMachine(), 1), (HostMachine(gpus=8), 8), (HostMachine(neurons=32), 32)],
    ids=["cpu", "gpus", "neuron cores"],
)
def test_processes_per_instance(machine: HostMachine, processes: int) -> None:
    """One process per GPU or Neuron core, one on a host without either."""
    assert plan_of(machine=machine, launcher="torchrun").processes_per_instance == processes
    assert (
        plan_of(
            machine=machine, launcher="torchrun", processes_per_instance=3
        ).processes_per_instance
        == 3
    )


def test_interpreter_of_the_job() -> None:
    """The script can have another Python than the launcher."""
    plan = plan_of(launcher="torchrun", interpreter="/opt/conda/bin/python")
    assert (plan.programs[0].argv[0], plan.python) == (
        "/opt/conda/bin/python",
        "/opt/conda/bin/python",
    )


def test_mpirun_on_one_host() -> None:
    """Custom options stand before the script, split as a shell would."""
    plan = plan_of(
        machine=HostMachine(gpus=2), launcher="mpirun", mpi_options="-x 'A=1 2' --tag-output"
    )
    assert plan.programs[0].argv == (
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", "-x", "A=1 2",
        "--tag-output", "python3", "train.py",
    )  # fmt: skip


def test_mpirun_on_two_hosts_is_refused() -> None:
    """mpirun would need ssh between hosts, which only the toolkit sets up."""
    with pytest.raises(SetupError, match="on one instance only, but the job has 2"):
        plan_of(hosts=TWO, launcher="mpirun")


def test_hosts_outside_the_groups_run_alone() -> None:
    """A heterogeneous cluster: the distribution spans its groups, and other hosts run the script once."""
    inside = plan_of("algo-2", groups=HETERO, launcher="torchrun", instance_groups=["gpu"])
    outside = plan_of("algo-3", groups=HETERO, launcher="torchrun", instance_groups=["gpu"])
    assert (inside.programs[0].role, inside.hosts) == ("torchrun", ("algo-1", "algo-2"))
    assert (outside.programs[0].argv, outside.hosts) == (("python3", "train.py"), ("algo-3",))
    assert outside.wait_for is None
    assert outside.environment["SM_CURRENT_INSTANCE_GROUP"] == "cpu"
    assert outside.environment["MASTER_ADDR"] == "algo-1"


def test_tensorflow_with_parameter_servers() -> None:
    """Chief and workers go round the hosts, servers too; servers get no GPU; the chief's end is the job's."""
    plans = {
        host: plan_of(host, hosts=TWO, launcher="tensorflow", strategy="parameter_server")
        for host in TWO
    }
    roles = {host: [program.role for program in plan.programs] for host, plan in plans.items()}
    assert roles == {"algo-1": ["chief", "ps"], "algo-2": ["worker"]}
    config = read_tf_config(plans["algo-2"].programs[0].env)
    assert config == {
        "cluster": {"chief": ["algo-1:2222"], "ps": ["algo-1:2223"], "worker": ["algo-2:2222"]},
        "environment": "cloud",
        "task": {"index": 0, "type": "worker"},
    }
    assert plans["algo-1"].programs[1].env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert {plan.finishes for plan in plans.values()} == {("chief",)}
    assert {plan.watch for plan in plans.values()} == {"algo-1"}


@given(
    st.integers(1, 4),
    st.integers(1, 9) | st.none(),
    st.integers(1, 5) | st.none(),
    st.sampled_from(["multi_worker_mirrored", "parameter_server"]),
)
def test_every_task_starts_once(
    hosts: int, workers: int | None, servers: int | None, strategy: str
) -> None:
    """However many tasks and hosts: each task runs on exactly one host, at an address of its own."""
    names = tuple(f"algo-{number}" for number in range(1, hosts + 1))
    launch = {
        "workers": workers,
        "parameter_servers": servers if strategy == "parameter_server" else None,
    }
    plans = [
        plan_of(name, hosts=names, launcher="tensorflow", strategy=strategy, **launch)
        for name in names
    ]
    configs = [json.loads(program.env["TF_CONFIG"]) for plan in plans for program in plan.programs]
    cluster = configs[0]["cluster"]
    addresses = [address for members in cluster.values() for address in members]
    tasks = sorted((config["task"]["type"], config["task"]["index"]) for config in configs)
    assert tasks == sorted(
        (role, index) for role, members in cluster.items() for index in range(len(members))
    )
    assert len(set(addresses)) == len(addresses)
    assert set(addresses) <= set(plans[0].endpoints)


def test_network_of_an_emulation() -> None:
    """Where several hosts share a machine, every address that is listened on is another one."""
    network = Network({"algo-1:7777": "127.0.0.1:20001"})
    plan = plan_of("algo-2", hosts=TWO, launcher="torchrun", network=network)
    assert plan.programs[0].argv[-5:] == (
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        "20001",
        "train.py",
    )
    assert plan.wait_for == "127.0.0.1"
    assert (plan.environment["MASTER_ADDR"], plan.environment["MASTER_PORT"]) == (
        "127.0.0.1",
        "20001",
    )
    assert plan.environment["SM_HOSTS"] == '["algo-1","algo-2"]'


def test_users_environment_wins() -> None:
    """What the job sets itself is not overwritten."""
    machine = HostMachine(
        efa=True,
        variables={"NCCL_SOCKET_IFNAME": "eth1", "FI_PROVIDER": "tcp", "PYTHONPATH": "/mine"},
    )
    environment = plan_of(machine=machine, launcher="torchrun").environment
    assert not {"NCCL_SOCKET_IFNAME", "FI_PROVIDER"} & environment.keys()
    assert environment["PYTHONPATH"] == "/opt/ml/code:/mine"


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (None, "is missing or not a JSON object"),
        ("torchrun", "is missing or not a JSON object"),
        ({"entry_point": "a.py", "lancher": "torchrun"}, "unknown key `lancher`"),
        ({"entry_point": "a.py", "launcher": "slurm"}, "launcher `slurm`"),
        ({"launcher": "single"}, "either an `entry_point` or a `command`"),
    ],
)
def test_what_is_wrong_with_the_launch(launch: Any, words: str) -> None:
    """A request that this launcher does not understand is refused in words, before anything starts."""
    request = {} if launch is None else {"cloudtrain_launch": json.dumps(launch)}
    with pytest.raises(SetupError, match=words):
        launch_plan(request, resource_config("algo-1"), {}, HostMachine())


def test_gpus_of_this_machine(tmp_path: Path) -> None:
    """GPUs are those in /dev, as far as CUDA_VISIBLE_DEVICES shows them."""
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    seen = {
        visible: this_machine(
            {"CUDA_VISIBLE_DEVICES": visible}, "ml.g5.12xlarge", devices=tmp_path
        ).gpus
        for visible in ("1", "0,1", "", "-1")
    }
    assert seen == {"1": 1, "0,1": 2, "": 0, "-1": 0}
    assert this_machine({}, "ml.g5.12xlarge", devices=tmp_path).gpus == 2
