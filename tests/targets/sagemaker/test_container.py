"""What the training toolkit runs on a host: equal to the recorded runs, and to what its code says elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.launch.commands import ToolkitCommand, command
from cloudtrain.targets.sagemaker.launch.container import HostSetup, environment
from cloudtrain.targets.sagemaker.reading import Start
from cloudtrain.targets.sagemaker.request import files, hosts, input_data_config, resource_config
from tests.targets.sagemaker.container_requests import (
    GOLDEN,
    host_named,
    pytorch,
    recorded,
    request,
)

RECORDED = sorted((GOLDEN / "sagemaker_container").glob("*.json"))
MPI = {"sagemaker_mpi_enabled": True}
TORCH = {"sagemaker_torch_distributed_enabled": True}
SMDDP = {"sagemaker_distributed_dataparallel_enabled": True}


def without_cpus(variables: dict[str, str]) -> dict[str, str]:
    """Recorded variables without the recording machine's number of CPUs."""
    facts = json.loads(variables["SM_TRAINING_ENV"])
    del facts["num_cpus"]
    return variables | {"SM_TRAINING_ENV": json.dumps(facts, sort_keys=True, separators=(",", ":"))}


def run(
    body: dict[str, Any],
    container: ImageContents | None = None,
    host: str = "algo-1",
    gpus: int = 8,
) -> ToolkitCommand:
    """The command of one host."""
    return command(HostSetup(body, host_named(body, host), container or pytorch(), gpus=gpus))


def test_every_recorded_run_is_here() -> None:
    """Both toolkits, all three kinds of images and a second host are among the recordings."""
    parts = {part for path in RECORDED for part in path.name.split(".", 1)[1].split(".")}
    assert len(RECORDED) == 48
    assert {"pytorch", "tensorflow", "generic", "host1"} <= parts


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json"))
def test_equals_the_recorded_run(path: Path) -> None:
    """argv and environment in order are those that the real toolkit had for the same request."""
    golden = json.loads(path.read_text())
    body, (run,) = recorded(golden["case"]), golden["cmds"]
    host = host_named(body, golden["host"])
    container = ImageContents(
        golden["framework"], golden["toolkit"].partition("==")[2], smddprun=True, python="<python>"
    )
    made = command(HostSetup(body, host, container, gpus=golden["n_gpus"]))
    variables = {**environment(HostSetup(body, host, container, gpus=golden["n_gpus"])), **made.env}
    assert resource_config(body, host) == golden["resourceconfig"]
    assert list(made.argv) == run["argv"]
    assert list(variables.items()) == list(without_cpus(golden["env_delta"]).items())


def test_variable_hands_over_to_a_framework() -> None:
    """With SAGEMAKER_TRAINING_MODULE in its environment, a job makes a generic image start torchrun."""
    body = request(
        environment={"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"},
        **TORCH,
    )
    assert run(body, ImageContents("generic", "5.1.4")).role == "torchrun"


def test_hosts_in_the_order_of_the_service() -> None:
    """Hosts are sorted by name, and ranks follow that order: `algo-10` is the second of twelve."""
    body = request(count=12, **TORCH)
    names = [host.name for host in hosts(body)]
    assert names == sorted(names)
    assert names[:4] == ["algo-1", "algo-10", "algo-11", "algo-12"]
    argv = run(body, host="algo-10").argv
    assert argv[argv.index("--node_rank") + 1] == "1"
    argv = run(body, host="algo-2").argv
    assert argv[argv.index("--node_rank") + 1] == "4"


def test_first_preference_counts() -> None:
    """Of several preferred instance types the first one is looked at."""
    body = request()
    preferences = [
        {"InstanceType": f"ml.g{number}.xlarge", "InstanceCount": 2} for number in (6, 5)
    ]
    body["ResourceConfig"] = {"InstancePreferences": preferences}
    assert [(host.name, host.instance_type) for host in hosts(body)] == [
        ("algo-1", "ml.g6.xlarge"),
        ("algo-2", "ml.g6.xlarge"),
    ]


@pytest.mark.parametrize("launcher", [MPI, SMDDP])
def test_workers_of_mpirun_wait(launcher: dict[str, bool]) -> None:
    """mpirun starts on the first host; the others offer sshd, and start no rank of their own."""
    body = request("ml.p4d.24xlarge", 2, **launcher)
    assert [run(body, host=name).role for name in ("algo-1", "algo-2")] == ["mpirun", "sshd"]
    assert run(body, host="algo-2").argv == ("/usr/sbin/sshd", "-D")


HETERO = {"gpu": ("ml.p4d.24xlarge", 2), "cpu": ("ml.c5.18xlarge", 1)}


def test_listed_groups_only() -> None:
    """With `sagemaker_distribution_instance_groups` only those groups run torchrun; others run the script alone."""
    body = request(groups=HETERO, sagemaker_distribution_instance_groups=["gpu"], **TORCH)
    assert run(body, host="algo-2").argv[:5] == (
        "torchrun",
        "--nnodes",
        "2",
        "--nproc_per_node",
        "8",
    )
    assert run(body, host="algo-3", gpus=0).argv == ("python", "--", "train.py")


def test_every_group_alone() -> None:
    """Without that list, as the SDK leaves it out, each group is a job of its own."""
    body = request(groups=HETERO, **TORCH)
    assert run(body, host="algo-3", gpus=0).argv == (
        "torchrun",
        "--nnodes",
        "1",
        "--nproc_per_node",
        "1",
        "train.py",
    )


@pytest.mark.parametrize(
    ("instance_type", "toolkit", "efa", "rdma"),
    [
        ("ml.p5.48xlarge", "5.1.1", True, False),
        ("ml.p5.48xlarge", "5.1.2", True, True),
        ("ml.p5e.48xlarge", "5.1.1", False, False),
        ("ml.p5e.48xlarge", "5.1.4", True, True),
        ("ml.p5en.48xlarge", "5.1.4", False, False),
        ("ml.g5.48xlarge", "5.1.4", True, False),
        ("ml.p4d.24xlarge", "5.1.1", True, True),
    ],
)
def test_efa_by_version(instance_type: str, toolkit: str, efa: bool, rdma: bool) -> None:
    """Each toolkit sets EFA up on the types of its own list only, under torchrun as under mpirun."""
    variables = run(request(instance_type, 2, **TORCH), pytorch(toolkit)).env
    exports = run(request(instance_type, 2, **MPI), pytorch(toolkit)).exports
    for found in (variables, exports):
        assert ("FI_PROVIDER" in found, "FI_EFA_USE_DEVICE_RDMA" in found) == (efa, rdma)


def test_processes_per_host_is_for_torchrun_too() -> None:
    """The key that counts MPI's processes also counts torchrun's."""
    argv = run(request(sagemaker_mpi_num_of_processes_per_host=2, **TORCH)).argv
    assert argv[argv.index("--nproc_per_node") + 1] == "2"


def test_options_for_mpirun() -> None:
    """`--NCCL_DEBUG X` is taken out of the user's options; the rest goes to mpirun as it is."""
    body = request(sagemaker_mpi_custom_mpi_options="-verbose --NCCL_DEBUG WARN -x FOO=1", **MPI)
    made = run(body)
    assert "--NCCL_DEBUG" not in made.argv
    assert made.argv[made.argv.index("-verbose") :][:3] == ("-verbose", "-x", "FOO=1")
    assert (made.exports["NCCL_DEBUG"], made.exports["FOO"]) == ("WARN", "1")


@pytest.mark.parametrize("options", ["-hostfile f", "--NCCL_DEBUG", "-x A=1 --help"])
def test_options_that_end_the_toolkit(options: str) -> None:
    """Options that stop the toolkit's own parser leave nothing to run; with the toolkit the job counts as completed."""
    made = run(request(sagemaker_mpi_custom_mpi_options=options, **MPI))
    assert made.argv == ()
    assert made.error is not None
    assert options in made.error


def test_credentials_of_the_job_reach_the_ranks() -> None:
    """mpirun exports those of the job's variables by name, before the script's variables."""
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "b", "OTHER": "c"}
    body = request(environment=given, sagemaker_mpi_enabled=True)
    argv = command(HostSetup(body, host_named(body), pytorch(), gpus=4)).argv
    at = argv.index("AWS_ACCESS_KEY_ID")
    assert argv[at - 1 : at + 5] == (
        "-x",
        "AWS_ACCESS_KEY_ID",
        "-x",
        "AWS_SESSION_TOKEN",
        "-x",
        "SM_HOSTS",
    )
    assert "AWS_SECRET_ACCESS_KEY" not in argv
    assert "OTHER" not in argv


@pytest.mark.parametrize(
    ("count", "each", "hosts", "ranks"),
    [
        ("4", 2, "algo-1:4,algo-2:4", "44"),
        (4, 2, "algo-1:4,algo-2:4", "8"),
        ("1", 1, "algo-1:1", "1"),
    ],
)
def test_a_quoted_count_is_repeated(count: object, each: int, hosts: str, ranks: str) -> None:
    """The toolkit multiplies the count by the hosts, and a text times two is the text twice."""
    body = request(
        count=each, sagemaker_mpi_enabled=True, sagemaker_mpi_num_of_processes_per_host=count
    )
    argv = command(HostSetup(body, host_named(body), pytorch(), gpus=4)).argv
    assert argv[1:5] == ("--host", hosts, "-np", ranks)


def test_smddp_on_one_host() -> None:
    """On a single host the data-parallel library needs no server; without smddprun plain ranks start."""
    made = run(request("ml.p4d.24xlarge", **SMDDP), pytorch(smddprun=True))
    assert made.argv[1:5] == ("--host", "algo-1", "-np", "8")
    assert made.exports["SMDATAPARALLEL_USE_SINGLENODE"] == "1"
    assert "SMDATAPARALLEL_SERVER_ADDR" not in made.exports
    assert made.program == ("smddprun", "python", "-m", "mpi4py", "train.py")
    assert run(request("ml.p4d.24xlarge", **SMDDP)).program == (
        "python",
        "-m",
        "mpi4py",
        "train.py",
    )


@pytest.mark.parametrize(
    ("torch", "protocol", "algorithm"),
    [(None, None, None), ("1.13.1", "simple", None), ("2.0.0", "simple", "ring")],
)
def test_model_parallel_library(
    torch: str | None, protocol: str | None, algorithm: str | None
) -> None:
    """SMP v1 gets NCCL settings by version of PyTorch, and its own wrapper where that is installed."""
    body = request("ml.g5.12xlarge", 2, mp_parameters={"partitions": 2}, **MPI)
    made = run(body, pytorch(smddpmprun=True, torch=torch))
    assert (made.exports.get("NCCL_PROTO"), made.exports.get("NCCL_ALGO")) == (protocol, algorithm)
    assert made.program[:4] == ("smddpmprun", "-i", "ml.g5.12xlarge", "--allow-bypass")


def test_parameter_server_of_one_host() -> None:
    """One host has no parameter server: the script runs alone, and nothing else starts."""
    body, container = (
        request(sagemaker_parameter_server_enabled=True),
        ImageContents("tensorflow", "5.1.4"),
    )
    assert run(body, container).role == "process"
    assert Start(body, container).key is None


@pytest.mark.parametrize(
    ("toolkit", "script", "taken"),
    [
        ("5.1.1", "bad name.sh", True),
        ("5.1.2", "bad name.sh", False),
        ("5.1.3", "bad name.py", True),
        ("5.1.4", "bad name.py", False),
        ("5.1.4", "../train.py", False),
        ("5.1.4", "sub/train.py", True),
    ],
)
def test_names_of_scripts(toolkit: str, script: str, taken: bool) -> None:
    """5.1.2 began to refuse odd names of shell scripts, 5.1.4 of all scripts."""
    assert (run(request(sagemaker_program=script), pytorch(toolkit)).error is None) is taken


def test_package() -> None:
    """With a setup.py beside it the script is a module, which torchrun is not given."""
    body, host = request(), host_named(request())
    assert command(HostSetup(body, host, pytorch(), gpus=1, package=True)).argv == (
        "python",
        "-m",
        "train",
    )
    body = request(**TORCH)
    assert command(HostSetup(body, host, pytorch(), gpus=1, package=True)).error is not None


def test_overwritten_variables() -> None:
    """A user's NCCL_DEBUG is lost: to the PyTorch toolkit, and under MPI to the options of mpirun."""
    given = {"NCCL_DEBUG": "TRACE", "MINE": "1", "MASTER_PORT": "7777"}
    for launcher, real in ((TORCH, "WARN"), (MPI, "INFO")):
        assert changed(request(environment=given, **launcher), pytorch()) == {"NCCL_DEBUG": real}
    assert changed(request(environment=given), ImageContents("tensorflow", "5.1.4")) == {}


def changed(body: dict[str, Any], container: ImageContents) -> dict[str, str]:
    """The variables of the request that the script finds with another value."""
    host, made = host_named(body), run(body, container)
    real = {**environment(HostSetup(body, host, container, gpus=8)), **made.env, **made.exports}
    return {
        name: real[name]
        for name, value in body["Environment"].items()
        if real.get(name, value) != value
    }


def test_files_below_another_root() -> None:
    """The three configuration files, and every path in the variables, follow `root`."""
    body = recorded("pt_torchdist")
    host = host_named(body)
    assert sorted(files(body, host, "/r")) == [
        f"/r/input/config/{name}.json"
        for name in ("hyperparameters", "inputdataconfig", "resourceconfig")
    ]
    variables = environment(HostSetup(body, host, pytorch(), gpus=4, root="/r"))
    assert variables["SM_CHANNEL_TRAIN"] == "/r/input/data/train"
    assert not any("/opt/ml" in value for value in variables.values())


def test_channels() -> None:
    """A channel's own mode goes before the job's; content type and distribution are copied."""
    body = recorded("pt_inputs_rich")
    found = input_data_config(body)
    assert found.keys() == {channel["ChannelName"] for channel in body["InputDataConfig"]}
    for channel in body["InputDataConfig"]:
        one = found[channel["ChannelName"]]
        assert one["TrainingInputMode"] == channel.get("InputMode", "File")
        assert one["ContentType"] == channel.get("ContentType")


def test_cpus_where_they_are_known() -> None:
    """SM_NUM_CPUS is there once somebody counted."""
    body = request()
    variables = environment(HostSetup(body, host_named(body), pytorch(), gpus=1, cpus=48))
    assert variables["SM_NUM_CPUS"] == "48"
    assert json.loads(variables["SM_TRAINING_ENV"])["num_cpus"] == 48


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=8)


OWN = ("count", "groups", "environment")
"""Parameters of `request` itself."""


@settings(deadline=None)
@given(st.dictionaries(KEYS.filter(lambda key: key not in OWN), JSON, max_size=5))
def test_hyperparameters_round_trip(values: dict[str, Any]) -> None:
    """Whatever a job's hyperparameters hold, SM_HPS gives back, and argv is what SM_USER_ARGS says."""
    body = request(**values)
    host = host_named(body)
    variables = environment(HostSetup(body, host, pytorch(), gpus=0))
    assert json.loads(variables["SM_HPS"]) == values
    assert json.loads(variables["SM_TRAINING_ENV"])["hyperparameters"] == values
    argv = command(HostSetup(body, host, pytorch(), gpus=0)).argv
    assert list(argv[3:]) == json.loads(variables["SM_USER_ARGS"])
    for key, value in values.items():
        text = variables[f"SM_HP_{key.upper()}"]
        assert text == ("" if value is None else value if isinstance(value, str) else text)
        if not isinstance(value, str) and value is not None:
            assert json.loads(text) == value
