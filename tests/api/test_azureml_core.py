"""Azure ML without Azure: every example is planned and written down for az with no credentials, network or SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.api.test_examples import FILES, ROOT
from tests.deadlines import DEADLINE

REFUSED = {
    "smddp_mnist.yaml": "use `distribution: {type: torch}`: the same script with NCCL",
    "smp_gpt2.yaml": "use `distribution: {type: torch}` as in `cloudtrain scripts copy pipeline_gpt`",
}
"""Examples of what only SageMaker has, with the alternative that the error names."""

EXAMPLES = [path for path in FILES if path.parent.name == "examples"]
PLANNED = [path for path in EXAMPLES if path.name not in REFUSED]

ALONE = """
import contextlib, io, json, socket, sys

class NoAzure:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("azure", "msal", "boto3", "torch"):
            raise AssertionError(f"{name} was imported")

def no_network(*arguments, **named):
    raise AssertionError("a socket was opened")

sys.meta_path.insert(0, NoAzure())
socket.socket.connect = socket.getaddrinfo = no_network
from cloudtrain.cli.app import run_command

ended = {}
for path, form in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(["plan", path, "--target", "azureml", "--format", form])
    ended[f"{path} {form}"] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(ended))
"""
"""Plans files as the command line does, in a process that cannot import Azure's packages or reach anything."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """`FILE FORM` to exit code, stdout and stderr."""
    home = tmp_path_factory.mktemp("alone")
    wanted = [(str(path), form) for path in EXAMPLES for form in ("json", "az-cli")]
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "CLOUDTRAIN_STATE_DIR": str(home / "state"),
        "TERM": "dumb",
    }
    argv = [sys.executable, "-c", ALONE, json.dumps(wanted)]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.name)
@pytest.mark.slow_after(1)
def test_every_example_is_planned_without_azure(
    path: Path, alone: dict[str, tuple[int, str, str]]
) -> None:
    """No package of Azure's, no connection, no credentials; the body is whole, with the code's id in it."""
    code, out, err = alone[f"{path} json"]
    assert code == 0, err or out
    plan = json.loads(out)
    body = plan["request"]["properties"]
    assert body["properties"] == {"cloudtrain.run": plan["run_name"]}
    assert body["codeId"] == plan["uploads"][0]["destination"]
    assert body["resources"]["instanceType"].startswith("Standard_")


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.name)
def test_every_example_has_a_yaml_for_az(
    path: Path, alone: dict[str, tuple[int, str, str]]
) -> None:
    """A file of `az ml job create`, from the same offline process: the same name, command and machines as the body."""
    import yaml

    code, out, err = alone[f"{path} az-cli"]
    assert code == 0, err or out
    job: dict[str, Any] = yaml.safe_load(out)
    plan = json.loads(alone[f"{path} json"][1])
    body = plan["request"]["properties"]
    assert (job["type"], job["name"], job["command"]) == (
        "command",
        plan["run_name"],
        body["command"],
    )
    assert job["resources"]["instance_type"] == body["resources"]["instanceType"]
    assert (
        job.get("distribution", {}).get("type", "")
        == body.get("distribution", {}).get("distributionType", "").lower()
    )


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.name)
def test_no_rule_finds_an_error_in_an_example(path: Path) -> None:
    """With the examples' own account settings; and the same plan twice."""
    target = ct.AzureML(
        subscription_id="11112222-3333-4444-5555-666677778888", resource_group="rg", workspace="ws"
    )
    plan = ct.plan(ct.load_job(path), target)
    assert plan.errors == ()
    assert plan.to_json() == ct.plan(ct.load_job(path), target).to_json()


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_sagemaker_has_names_the_alternative(
    name: str, alone: dict[str, tuple[int, str, str]]
) -> None:
    """Its two libraries; exit code 2, and what to write instead."""
    code, out, err = alone[f"{ROOT / 'examples' / name} json"]
    assert (code, out) == (2, "")
    assert "is SageMaker's own library and does not exist on Azure ML" in err
    assert f"hint: {REFUSED[name]}" in " ".join(err.split())


@pytest.mark.parametrize(
    "name", ["deepspeed_gpt.yaml", "torch_cifar10.yaml", "rehearse_cluster.toml"]
)
def test_examples_over_several_gpu_machines_have_infiniband(name: str) -> None:
    """The types that they name, or that the catalogue chooses, are those with RDMA, and NCCL is told how to start."""
    body = ct.plan(ct.load_job(ROOT / "examples" / name), "azureml").request["properties"]
    assert body["resources"]["instanceType"] in ("Standard_ND96isr_H100_v5", "Standard_ND96asr_v4")
    assert body["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 8}
    assert body["environmentVariables"]["NCCL_SOCKET_IFNAME"] == "eth0"


def planned(source: Path, **environment: str) -> ct.Plan:
    """The plan of a small job with files of its own environment."""
    job = ct.TrainingJob(
        name="digits",
        source_dir=str(source),
        entry_point="train.py",
        environment=ct.Environment(**environment),
    )
    return ct.plan(job, ct.AzureML())


def test_a_conda_file_that_is_not_utf_8(make_source: Callable[..., Path]) -> None:
    """A problem of the job, with its place and what to do: PowerShell's `>` writes UTF-16."""
    source = make_source({"train.py": ""})
    (source / "conda.yml").write_bytes("dependencies: [python=3.11]\n".encode("utf-16"))
    with pytest.raises(ct.JobError, match=r"`conda\.yml`: the file is not UTF-8") as caught:
        planned(source, image="example.azurecr.io/base:1", conda_file="conda.yml")
    problem = caught.value.problems[0]
    assert problem.path == ("environment", "conda_file")
    assert problem.hint == "save it as UTF-8"


@pytest.mark.parametrize("build", [".", "./", "docker/.."])
def test_a_dockerfile_beside_the_script(make_source: Callable[..., Path], build: str) -> None:
    """The folder to build in is then the source folder itself, and another file in it makes another environment."""
    source = make_source({"train.py": "", "Dockerfile": "FROM x"})
    (before,) = (
        upload for upload in planned(source, build=build).uploads if upload.kind == "environment"
    )
    assert before.folder == "."
    (source / "apt.txt").write_text("git")
    (after,) = (
        upload for upload in planned(source, build=build).uploads if upload.kind == "environment"
    )
    assert after.destination != before.destination


def test_no_dockerfile_beside_the_script(make_source: Callable[..., Path]) -> None:
    """One in a folder below is another."""
    with pytest.raises(ct.JobError, match="the bundle has no file `Dockerfile`"):
        planned(make_source({"train.py": "", "docker/Dockerfile": "FROM x"}), build=".")


def test_tensorflow_with_and_without_parameter_servers() -> None:
    """One example of each: counted workers beside a server, and one worker for each instance."""
    bodies = {
        name: ct.plan(ct.load_job(ROOT / "examples" / f"{name}.yaml"), "azureml").request[
            "properties"
        ]
        for name in ("tensorflow_mnist", "parameter_server")
    }
    plain = {"distributionType": "TensorFlow", "parameterServerCount": 0}
    assert bodies["tensorflow_mnist"]["distribution"] == plain
    assert bodies["parameter_server"]["distribution"] == {
        **plain,
        "parameterServerCount": 1,
        "workerCount": 3,
    }
    assert bodies["parameter_server"]["resources"]["instanceCount"] == 4


def test_the_examples_name_a_place_on_every_target() -> None:
    """An example that Azure ML can run says where its data is there, as it does for SageMaker."""
    for path in EXAMPLES:
        job = ct.load_job(path)
        for name, item in job.inputs.items():
            assert item.azureml or path.name in REFUSED, f"{path.name}: {name}"
