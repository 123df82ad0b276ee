"""The real `MLClient` talks to the fake Azure ML, with environment variables alone: nothing of it is patched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure

pytestmark = [pytest.mark.parity("azureml"), pytest.mark.lifecycle]

REPOSITORY = Path(__file__).parent.parent.parent
IMAGE = "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest"
LOG = "user_logs/std_log_process_0.txt"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    """A workspace to which all Azure packages in this process talk."""
    with FakeAzure() as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


@pytest.fixture
def client(fake: FakeAzure) -> Iterator[Any]:
    """The SDK's client, with the credentials that azure-identity finds by itself."""
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    with DefaultAzureCredential() as credential:
        yield MLClient(
            credential, fake.subscription_id, fake.resource_group, fake.workspace_name,
            enable_telemetry=False, show_progress=False, polling_interval=0.05,
        )  # fmt: skip


@pytest.fixture
def source(make_source: Callable[..., Path]) -> Path:
    """A folder of code."""
    return make_source({"train.py": "print(1)\n", "pkg/part.py": "x = 1\n"})


@pytest.fixture
def submit(client: Any, source: Path) -> Callable[..., Any]:
    """Submits a job of two instances with local code; keyword arguments go to `command`."""
    from azure.ai.ml import Output, PyTorchDistribution, command

    def send(name: str, **changes: Any) -> Any:
        arguments: dict[str, Any] = {
            "command": "python train.py", "code": str(source), "environment": IMAGE, "compute": "gpu-cluster",
            "instance_count": 2, "distribution": PyTorchDistribution(process_count_per_instance=8),
            "experiment_name": "exp", "outputs": {"model": Output(type="uri_folder")}, **changes,
        }  # fmt: skip
        return client.jobs.create_or_update(command(name=name, **arguments))

    return send


def ended(fake: FakeAzure, name: str, status: str = "Completed") -> None:
    """The job ran, said something, wrote a model, and ended."""
    job = fake.jobs[name]
    job.enter("Running")
    fake.logs.write(name, LOG, "epoch 1", "epoch 2")
    fake.outputs.write(name, "model", "weights.bin", b"w" * 1000)
    job.end(status)


def test_a_job_with_local_code_is_uploaded_and_made(
    fake: FakeAzure, submit: Callable[..., Any], source: Path
) -> None:
    """Every file is a blob, the code is a version of an asset, and the job refers to it by its ARM id."""
    job = submit("j1")
    assert (job.status, job.distribution.process_count_per_instance) == ("Starting", 8)
    ((name, version),) = fake.assets.names("codes")
    properties = fake.jobs["j1"].properties
    assert properties["codeId"] == f"{fake.workspace_id}/codes/{name}/versions/{version}"
    assert properties["computeId"] == f"{fake.workspace_id}/computes/gpu-cluster"
    container, _, folder = (
        fake.assets.get("codes", name, version)["codeUri"]
        .removeprefix(f"{fake.blobs.url}/")
        .partition("/")
    )
    assert fake.blobs.get(container, f"{folder}/train.py") == (source / "train.py").read_bytes()
    assert (
        fake.blobs.get(container, f"{folder}/pkg/part.py")
        == (source / "pkg" / "part.py").read_bytes()
    )


def test_unchanged_code_is_uploaded_once(fake: FakeAzure, submit: Callable[..., Any]) -> None:
    """The client asks for the hash, and uploads nothing the second time."""
    submit("j1")
    before = len(fake.requests)
    submit("j2")
    methods = [
        request.method for request in fake.requests[before:] if "metadata" not in request.path
    ]
    assert methods == ["GET", "GET", "PUT"]
    assert fake.jobs["j1"].properties["codeId"] == fake.jobs["j2"].properties["codeId"]


def test_large_files_go_up_in_blocks(
    fake: FakeAzure, submit: Callable[..., Any], source: Path
) -> None:
    """Files over 64 MiB are put in blocks, and come out whole."""
    data = bytes(range(256)) * (65 * 4096)
    (source / "big.bin").write_bytes(data)
    submit("j1")
    parts = [request.query.get("comp") for request in fake.received("PUT", r"big\.bin$")]
    assert parts.count("block") == 17
    assert parts.count("blocklist") == 1
    ((name, version),) = fake.assets.names("codes")
    container = fake.assets.get("codes", name, version)["codeUri"].split("/")[-2]
    assert fake.blobs.get(container, "src/big.bin") == data


def test_the_same_job_again_is_the_same_job(fake: FakeAzure, submit: Callable[..., Any]) -> None:
    """A second PUT with the same name and content answers 200, and there is one job."""
    first, second = submit("j1"), submit("j1")
    assert first.creation_context.created_at == second.creation_context.created_at
    assert [request.query["api-version"] for request in fake.received("PUT", r"/jobs/j1$")] == [
        "2025-01-01-preview"
    ] * 2
    assert list(fake.jobs.by_name) == ["j1"]


def test_another_job_of_the_same_name_is_refused(submit: Callable[..., Any]) -> None:
    """The client shows the service's words."""
    from azure.core.exceptions import HttpResponseError

    submit("j1")
    with pytest.raises(
        HttpResponseError, match=r"A job with this name already exists.*command cannot be changed"
    ):
        submit("j1", command="python other.py")


def test_get_and_list(fake: FakeAzure, client: Any, submit: Callable[..., Any]) -> None:
    """Jobs come newest first, through as many pages as there are; one that does not exist is an error."""
    from azure.core.exceptions import ResourceNotFoundError

    for number in range(5):
        submit(f"j{number}", code=None)
    fake.jobs.page_size = 2
    assert [job.name for job in client.jobs.list()] == ["j4", "j3", "j2", "j1", "j0"]
    assert len(fake.received("GET", r"/jobs$")) == 3
    assert client.jobs.get("j3").compute == "gpu-cluster"
    with pytest.raises(ResourceNotFoundError, match="Run nope was not found"):
        client.jobs.get("nope")


STREAM = """
import sys
from azure.ai.ml import MLClient
from azure.identity import DefaultAzureCredential

client = MLClient(DefaultAzureCredential(), *sys.argv[1:4], enable_telemetry=False)
client.jobs.stream(sys.argv[4])
"""


def test_the_log_of_a_running_job_is_streamed(fake: FakeAzure, submit: Callable[..., Any]) -> None:
    """By a process of its own, which knows of the fake by its environment; lines that are written late come too."""
    submit("j1", code=None)
    job = fake.jobs["j1"]
    job.script(
        "Preparing", "Running", lambda: fake.logs.write("j1", LOG, "epoch 1"), lambda: fake.logs.write("j1", LOG, "epoch 2"),
        "Finalizing", "Completed",
    )  # fmt: skip
    where = [fake.subscription_id, fake.resource_group, fake.workspace_name, "j1"]
    intervals = {"AZUREML_RUN_POLLING_INTERVAL_MIN": "0", "AZUREML_RUN_POLLING_INTERVAL_MAX": "0"}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        **fake.environ,
        **intervals,
    }
    result = subprocess.run(
        [sys.executable, "-c", STREAM, *where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("epoch 1\nepoch 2\n") == 1
    assert job.status == "Completed"


@pytest.mark.parametrize("polls", [0, 2])
def test_a_job_is_canceled(
    fake: FakeAzure, client: Any, submit: Callable[..., Any], polls: int
) -> None:
    """The place that the answer names is asked for the result again and again."""
    submit("j1", code=None)
    fake.jobs.cancel_polls = polls
    client.jobs.begin_cancel("j1").result()
    assert client.jobs.get("j1").status == "Canceled"
    assert len(fake.received("GET", "/mfeOperationResults/")) == polls + 1


@pytest.mark.parametrize("types", ["the service's", "the client's"])
def test_an_output_is_downloaded(
    fake: FakeAzure, client: Any, submit: Callable[..., Any], tmp_path: Path, types: str
) -> None:
    """The client guesses where it is, or asks, depending on how the run names its type."""
    if types == "the client's":
        fake.history.output_types = {}
    submit("j1", code=None)
    ended(fake, "j1")
    client.jobs.download("j1", download_path=tmp_path, output_name="model")
    assert (tmp_path / "named-outputs" / "model" / "weights.bin").read_bytes() == b"w" * 1000
    assert len(fake.received("POST", "batchGetResolvedUris")) == (types == "the client's")


def test_everything_is_downloaded(
    fake: FakeAzure, client: Any, submit: Callable[..., Any], tmp_path: Path
) -> None:
    """The logs too, from the artifact store."""
    submit("j1", code=None)
    ended(fake, "j1")
    fake.datastores["workspaceblobstore"].secrets = "none"
    client.jobs.download("j1", download_path=tmp_path, all=True)
    assert (tmp_path / "artifacts" / LOG).read_text() == "epoch 1\nepoch 2\n"


def test_files_are_downloaded_with_the_identity_alone(
    fake: FakeAzure, client: Any, submit: Callable[..., Any], tmp_path: Path
) -> None:
    """Where a datastore has no secrets, a token for the storage audience opens it."""
    fake.datastores["workspaceblobstore"].secrets = "none"
    submit("j1", code=None)
    ended(fake, "j1")
    client.jobs.download("j1", download_path=tmp_path, output_name="model")
    assert (tmp_path / "named-outputs" / "model" / "weights.bin").exists()
    assert "https://storage.azure.com" in fake.identity.asked
    assert not fake.received("POST", "listSecrets")


def test_tags_of_a_job_are_changed(
    fake: FakeAzure, client: Any, submit: Callable[..., Any]
) -> None:
    """The client patches the run."""
    submit("j1", code=None, tags={"team": "vision"})
    job = client.jobs.get("j1")
    job.tags["mood"] = "good"
    client.jobs.create_or_update(job)
    assert client.jobs.get("j1").tags == {"team": "vision", "mood": "good"}
    assert fake.received("PATCH", "/experiments/exp/runs/j1")


def test_clusters_sizes_and_usages(fake: FakeAzure, client: Any) -> None:
    """They are read as those of the real service are, whose sizes are in upper case."""
    from azure.core.exceptions import ResourceNotFoundError

    assert client.compute.get("gpu-cluster").size == "STANDARD_ND96ISR_H100_V5"
    assert client.compute.get("gpu-cluster").max_instances == 4
    assert {cluster.name for cluster in client.compute.list()} == {"gpu-cluster", "cpu-cluster"}
    assert [size.gpus for size in client.compute.list_sizes()] == [8, 1, 0]
    limits = {usage.name["value"]: usage.limit for usage in client.compute.list_usage()}
    assert limits["standardNDISRH100V5Family"] == 192
    with pytest.raises(ResourceNotFoundError):
        client.compute.get("nope")


def test_environments(fake: FakeAzure, client: Any, submit: Callable[..., Any]) -> None:
    """An environment in a job becomes an asset, and the latest version of one is found."""
    from azure.ai.ml.entities import Environment

    submit(
        "j1",
        code=None,
        environment=Environment(image="ubuntu:24.04", conda_file={"dependencies": ["python=3.11"]}),
    )
    ((name, version),) = fake.assets.names("environments")
    assert (
        fake.jobs["j1"]
        .properties["environmentId"]
        .endswith(f"/environments/{name}/versions/{version}")
    )
    for number in ("1", "2"):
        client.environments.create_or_update(
            Environment(name="mine", version=number, image=f"ubuntu:{number}")
        )
    assert client.environments.get("mine", label="latest").image == "ubuntu:2"
    submit("j2", code=None, environment="mine@latest")
    assert fake.jobs["j2"].properties["environmentId"].endswith("/environments/mine/versions/2")


def test_data_assets(fake: FakeAzure, client: Any) -> None:
    """Those that there are can be read, by version and by label."""
    fake.assets.add(
        "data",
        "digits",
        "3",
        dataType="uri_folder",
        dataUri="azureml://datastores/workspaceblobstore/paths/d/",
    )
    assert client.data.get("digits", version="3").path.endswith("/paths/d/")
    assert client.data.get("digits", label="latest").version == "3"


def test_a_job_that_acts_for_its_user_brings_a_token(
    fake: FakeAzure, submit: Callable[..., Any]
) -> None:
    """The client asks for one with the audience of Azure ML."""
    from azure.ai.ml import UserIdentityConfiguration

    submit("j1", code=None, identity=UserIdentityConfiguration())
    assert fake.jobs["j1"].properties["identity"] == {"identityType": "UserIdentity"}
    assert "https://ml.azure.com" in fake.identity.asked


def test_throttling_and_outages_are_retried(fake: FakeAzure, submit: Callable[..., Any]) -> None:
    """After 429 as long as it says, after 503 after a while; the job is made once."""
    fake.faults.throttle("PUT", r"/jobs/j1$", retry_after=1)
    fake.faults.unavailable("PUT", r"/jobs/j1$")
    submit("j1", code=None)
    first, second, third = fake.received("PUT", r"/jobs/j1$")
    assert second.at - first.at >= 1
    assert first.raw == second.raw == third.raw


def test_a_lost_answer_leaves_one_job(fake: FakeAzure, submit: Callable[..., Any]) -> None:
    """The client sends the same again, and gets the job that the first request made."""
    seen: list[int] = []
    fake.after("PUT", r"/jobs/j1$", lambda request: seen.append(len(fake.jobs.by_name)))
    fake.faults.close_after("PUT", r"/jobs/j1$")
    assert submit("j1", code=None).status == "Starting"
    assert seen == [1, 1]


def test_a_download_goes_on_where_it_was_cut(
    fake: FakeAzure, client: Any, submit: Callable[..., Any], tmp_path: Path
) -> None:
    """The blob client asks again when the body of an answer ends too early."""
    submit("j1", code=None)
    ended(fake, "j1")
    fake.faults.cut("GET", r"weights\.bin$", after=300)
    client.jobs.download("j1", download_path=tmp_path, output_name="model")
    assert (tmp_path / "named-outputs" / "model" / "weights.bin").read_bytes() == b"w" * 1000
    assert len(fake.received("GET", r"weights\.bin$")) == 2


def test_refusals_are_the_clients_errors(
    fake: FakeAzure, client: Any, submit: Callable[..., Any]
) -> None:
    """403 and 401 are not tried again."""
    from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

    fake.faults.forbid("PUT", r"/jobs/")
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        submit("j1", code=None)
    fake.faults.expire_token("GET", r"/jobs/j1$")
    with pytest.raises(ClientAuthenticationError, match="expiry UTC time"):
        client.jobs.get("j1")


def test_a_workspace_that_does_not_exist(fake: FakeAzure) -> None:
    """The client hears it in ARM's words."""
    from azure.ai.ml import MLClient
    from azure.core.exceptions import ResourceNotFoundError
    from azure.identity import ManagedIdentityCredential

    with ManagedIdentityCredential() as credential:
        client = MLClient(credential, fake.subscription_id, "rg", "other", enable_telemetry=False)
        with pytest.raises(ResourceNotFoundError, match="workspaces/other"):
            client.workspaces.get("other")
