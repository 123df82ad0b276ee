"""What leaves: the very bytes of the plan, once per name; and the assets that a job needs, once per content."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
import cloudtrain as ct
from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.plans.plan import Upload
from cloudtrain.targets.azureml.service.service import AzureMLService
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.targets.azureml.conftest import (
    CONTENT,
    ENVIRONMENT,
    NAME,
    PLACE,
    REF,
    WORKSPACE,
    Source,
    code_plan,
    environment_plan,
    plan_of,
)  # fmt: skip

pytestmark = pytest.mark.lifecycle

MakeSource = Callable[[dict[str, bytes]], Source]
JOB = f"jobs/{NAME}$"


def test_the_bytes_sent(fake: FakeAzure, service: AzureMLService) -> None:
    """The body is the text that the plan's hash covers, and we say who we are."""
    plan = plan_of()
    assert service.submit(plan) == REF
    (received,) = fake.received("PUT")
    assert received.raw == plan.request_json.encode()
    assert received.body == plan.request
    assert received.query == {"api-version": "2025-01-01-preview"}
    assert received.headers["user-agent"].startswith(f"cloudtrain/{cloudtrain.__version__}")
    assert "x-azureml-token" not in received.headers


LABELS = {
    "environmentId": f"{WORKSPACE}/environments/mine/labels/latest",
    "inputs": {
        "train": {"jobInputType": "uri_folder", "uri": f"{WORKSPACE}/data/cifar/labels/latest"}
    },
}


def test_a_label_goes_out_as_the_version_that_it_means(
    fake: FakeAzure, service: AzureMLService
) -> None:
    """As the SDK's client sends it; nothing else of the plan is changed."""
    for number in ("1", "2"):
        fake.assets.add("environments", "mine", number, image=f"image:{number}")
        fake.assets.add("data", "cifar", number)
    plan = plan_of(**LABELS)
    service.submit(plan)
    (received,) = fake.received("PUT")
    sent = received.body["properties"]
    assert sent["environmentId"] == f"{WORKSPACE}/environments/mine/versions/2"
    assert sent["inputs"]["train"]["uri"] == f"{WORKSPACE}/data/cifar/versions/2"
    assert {**sent, **LABELS} == plan.request["properties"]


def test_the_version_that_was_said_is_sent(fake: FakeAzure, service: AzureMLService) -> None:
    """One that is registered between the check and the request is not taken."""
    fake.assets.add("environments", "mine", "1", image="image:1")
    plan = plan_of(environmentId=LABELS["environmentId"])
    found = service.check(ct.TrainingJob(name="digits", entry_point="train.py"), ct.AzureML(), plan)
    assert "`mine@latest` is the version `1` now" in {finding.message for finding in found}
    fake.assets.add("environments", "mine", "2", image="image:2")
    service.submit(plan)
    assert fake.received("PUT")[0].body["properties"]["environmentId"].endswith("/mine/versions/1")


def test_a_label_of_nothing_sends_nothing(fake: FakeAzure, service: AzureMLService) -> None:
    """The error names the asset."""
    with pytest.raises(TargetError, match="no `mine`"):
        service.submit(plan_of(environmentId=LABELS["environmentId"]))
    assert fake.received("PUT") == []


def test_a_submission_may_be_repeated(fake: FakeAzure, service: AzureMLService) -> None:
    """A job with our mark is there already; it is left as it is, whatever was changed in the studio meanwhile."""
    service.submit(plan_of())
    fake.jobs[NAME].run_tags["note"] = "good"
    assert service.submit(plan_of(), again=True) == REF
    assert len(fake.received("PUT")) == 1
    assert fake.jobs[NAME].tags == {"team": "vision", "note": "good"}


@pytest.mark.parametrize("mark", [{}, {"cloudtrain.run": "other-1"}])
@pytest.mark.parametrize("command", ["echo other", None])
def test_a_job_of_somebody_else(
    fake: FakeAzure, service: AzureMLService, mark: dict[str, str], command: str | None
) -> None:
    """A job of our name with another mark, or none, is refused by `submit` and `has`, and is not changed."""
    theirs = plan_of(properties=mark, **({"command": command} if command else {}))
    service._at(theirs.place).send("PUT", f"jobs/{NAME}", api_version="2025-01-01-preview",
                                            content=theirs.request_json.encode())  # fmt: skip
    for ask in (lambda: service.submit(plan_of(), again=True), lambda: service.has(REF)):
        with pytest.raises(TargetError, match="already has a different job"):
            ask()
    assert fake.jobs[NAME].request == theirs.request


def test_a_request_whose_mark_was_overridden(fake: FakeAzure, service: AzureMLService) -> None:
    """It is recognised by its content, and only with the request at hand."""
    plan = plan_of(properties={"mine": "1"})
    assert service.submit(plan) == service.submit(plan, again=True) == REF
    with pytest.raises(TargetError, match="already has a different job"):
        service.submit(plan_of(properties={"mine": "1"}, command="echo other"), again=True)
    with pytest.raises(TargetError, match="already has a different job"):
        service.has(REF)


def test_a_name_taken_between_two_requests(fake: FakeAzure, service: AzureMLService) -> None:
    """The service's refusal of another content under the same name is told as such."""
    others = {
        "properties": {**plan_of().request["properties"], "command": "echo", "properties": {}}
    }

    def take_it(request: Any) -> None:
        fake.clear_hooks()
        token = request.headers["authorization"]
        headers = {"Authorization": token}
        import requests

        url = f"{fake.url}{request.path}?api-version=2025-01-01-preview"
        requests.put(url, data=json.dumps(others), headers=headers, timeout=DEADLINE)

    fake.before("PUT", JOB, take_it)
    with pytest.raises(TargetError, match="already has a different job"):
        service.submit(plan_of())
    assert fake.jobs[NAME].properties["command"] == "echo"


def test_a_job_that_acts_for_its_user(fake: FakeAzure, service: AzureMLService) -> None:
    """It gets a token for the workspace's data in a header of its own, made out to the studio."""
    service.submit(plan_of(identity={"identityType": "UserIdentity"}))
    (received,) = fake.received("PUT")
    assert received.headers["x-azureml-token"] != received.headers["authorization"].removeprefix(
        "Bearer "
    )
    assert "https://ml.azure.com" in fake.identity.asked


@pytest.mark.parametrize(
    ("status", "code", "message", "match"),
    [
        (400, "UserError", "The requested quota is insufficient: 0 of 48 cores.", "quota does not allow"),
        (400, "UserError", "The compute gpu could not be found.", "no such compute"),
        (400, "UserError", "VM size Standard_Nope is not supported.", "no such instance type"),
        (400, "UserError", "The command must not be empty.", "refuses the request: The command must not be empty"),
        (403, "AuthorizationFailed", "The client does not have authorization to perform action "
         "'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope", "may not do .*/workspaces/jobs/write"),
    ],
)  # fmt: skip
def test_a_refusal(
    fake: FakeAzure, service: AzureMLService, status: int, code: str, message: str, match: str
) -> None:
    """It is passed on in our words after one try, and there is no job."""
    fake.faults.refuse("PUT", JOB, status, code, message)
    with pytest.raises(TargetError, match=match):
        service.submit(plan_of())
    assert len(fake.received("PUT")) == 1
    assert not service.has(REF)


@pytest.mark.parametrize("fault", ["close_before", "close_after"])
def test_a_lost_answer_is_asked_for_again(
    fake: FakeAzure, service: AzureMLService, fault: str
) -> None:
    """A second PUT of the same is the same job."""
    getattr(fake.faults, fault)("PUT", JOB)
    assert service.submit(plan_of()) == REF
    assert len(fake.received("PUT", JOB)) == 2
    assert list(fake.jobs.by_name) == [NAME]


def test_every_answer_lost(fake: FakeAzure, service: AzureMLService) -> None:
    """When Azure stays silent, the job is looked for by its name."""
    fake.faults.close_after("PUT", JOB, times=9)
    assert service.submit(plan_of()) == REF
    assert fake.calls()[-1] == f"GET {{WS}}/jobs/{NAME}"


@pytest.mark.slow
def test_busy_longer_than_patience_lasts(fake: FakeAzure, service: AzureMLService) -> None:
    """Then the error says that trying again may help, and there is no job."""
    fake.faults.unavailable("PUT", JOB, times=99)
    with pytest.raises(TargetUnreachable, match="temporarily unavailable"):
        service.submit(plan_of())
    assert fake.jobs.by_name == {}


@pytest.mark.slow
def test_throttling_is_waited_out_as_the_service_asks(
    fake: FakeAzure, service: AzureMLService
) -> None:
    """`Retry-After` is the pause."""
    fake.faults.throttle("PUT", JOB, retry_after=1)
    service.submit(plan_of())
    first, second = fake.received("PUT", JOB)
    assert 1 <= second.at - first.at < 5


def test_code_goes_up_once(fake: FakeAzure, service: AzureMLService, source: MakeSource) -> None:
    """Each file becomes a blob, in subfolders too, and the asset says where; the second time nothing is even written."""
    code = source(
        {
            "train.py": b"print(1)\n",
            "pkg/empty.txt": b"",
            "pkg/a b&c%#?.txt": b"x",
            "große.txt": b"y",
        }
    )
    assert [service.upload(code_plan(code), code) for _ in range(2)] == [True, False]
    assert code.written == 1
    made = fake.assets.get("codes", f"cloudtrain-{'ab' * 20}", "1")
    assert made["isAnonymous"] is True
    assert made["properties"] == {"cloudtrain.sha256": code.sha256}
    container, _, folder = made["codeUri"].removeprefix(f"{fake.blobs.url}/").partition("/")
    blobs = {
        name.removeprefix(f"{folder}/"): blob.data
        for name, blob in fake.blobs.containers[container].items()
    }
    ours = {name: data for name, data in blobs.items() if not name.startswith("cloudtrain/")}
    assert ours == {
        "train.py": b"print(1)\n",
        "pkg/empty.txt": b"",
        "pkg/a b&c%#?.txt": b"x",
        "große.txt": b"y",
    }
    assert "cloudtrain/runtime/__init__.py" in blobs


def test_storage_checks_every_request(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Each file, and each block of a large one, comes with the MD5 that storage compares it with."""
    code = source({"big.bin": bytes(9 << 20), "train.py": b"1"})
    service.upload(code_plan(code), code)
    sent = [
        call
        for call in fake.received("PUT", "/code/")
        if call.raw and call.query.get("comp") != "blocklist"
    ]
    assert len(sent) > 4
    for call in sent:
        assert (
            call.headers["content-md5"] == base64.b64encode(hashlib.md5(call.raw).digest()).decode()
        )


@pytest.mark.slow
def test_an_asset_of_other_content_is_not_taken_for_ours(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Somebody else's code under the name of ours would run; an asset cannot be changed, so that is an error."""
    code = source({"train.py": b"1"})
    service.upload(code_plan(code), code)
    fake.assets.get("codes", f"cloudtrain-{'ab' * 20}", "1")["properties"]["cloudtrain.sha256"] = (
        "cd" * 32
    )
    with pytest.raises(TargetError, match="does not match the hash in its name"):
        service.upload(code_plan(code), code)


def test_a_link_becomes_a_copy(
    fake: FakeAzure, service: AzureMLService, source: MakeSource, tmp_path: Path
) -> None:
    """Blobs have no links."""
    source({"real/train.py": b"1"})
    (tmp_path / "src/linked").symlink_to("real")
    (tmp_path / "src/train.py").symlink_to("real/train.py")
    code = source({})
    service.upload(code_plan(code), code)
    (container,) = [
        found
        for found in fake.blobs.containers.values()
        if any("train.py" in name for name in found)
    ]
    assert {name for name in container if "cloudtrain/" not in name} == {
        "code/real/train.py", "code/linked/train.py", "code/train.py",
    }  # fmt: skip


@pytest.mark.slow
def test_a_large_file_goes_up_in_blocks_and_tells_how_far_it_is(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Blocks that are lost are sent again; the last report is the whole."""
    content = bytes(range(256)) * (40 * 1024)
    fake.faults.close_before("PUT", "big.bin")
    code = source({"big.bin": content, "train.py": b"1"})
    reports: list[tuple[int, int]] = []
    service.upload(code_plan(code), code, on_bytes=lambda *report: reports.append(report))
    (container,) = [found for found in fake.blobs.containers.values() if "code/big.bin" in found]
    assert container["code/big.bin"].data == content
    assert (
        len([call for call in fake.received("PUT", "big.bin") if call.query.get("comp") == "block"])
        == 4
    )
    size = sum(entry.size for entry in code.tree.entries)
    assert reports[-1] == (size, size)
    assert [sent for sent, _ in reports] == sorted(sent for sent, _ in reports)


@pytest.mark.slow
def test_a_broken_upload_is_repeated_cleanly(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """What it has left is not referred to, and is in nobody's way."""
    code = source({"train.py": b"1"})
    fake.faults.refuse("PUT", "train.py", 403, "AuthorizationFailure", "not authorized", times=9)
    with pytest.raises(TargetError, match="storage account"):
        service.upload(code_plan(code), code)
    assert fake.assets.names("codes") == []
    fake.faults.clear()
    assert service.upload(code_plan(code), code)
    assert len(fake.assets.names("codes")) == 1


@pytest.mark.slow
def test_two_uploads_of_the_same_code_at_once(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Both end well (azure-sdk-for-python#30155 was "Blob already exists"), and there is one asset."""
    code = source({"train.py": b"1"})
    both = threading.Barrier(2, timeout=DEADLINE)
    fake.before("PUT", "/codes/", lambda _: both.wait())
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(AzureMLService(fake.environ, None).upload(code_plan(code), code)))
        for _ in range(2)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [True, True]
    assert len(fake.assets.names("codes")) == 1


def test_a_name_that_is_no_text(
    fake: FakeAzure, service: AzureMLService, source: MakeSource, tmp_path: Path
) -> None:
    """It cannot be a blob's, and is said to be the reason before anything is sent."""
    source({"train.py": b"1"})
    Path(str(tmp_path / "src") + "/\udcff.txt").write_bytes(b"1")
    code = source({})
    with pytest.raises(TargetError, match=r"\\xff\.txt`, because its name is not UTF-8"):
        service.upload(code_plan(code), code)
    assert fake.received("POST") == []


def test_an_environment_goes_up_once(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Its body is the plan's text, byte for byte."""
    code = source({})
    assert [service.upload(environment_plan(), code) for _ in range(2)] == [True, False]
    (received,) = fake.received("PUT", ENVIRONMENT)
    assert received.raw == CONTENT.encode()
    assert fake.assets.names("environments") == [("cloudtrain", "cd" * 16)]


def test_an_environment_with_a_name_goes_up_each_time(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """As azure-ai-ml sends it: its tags can change. Another definition under the same version is an error."""
    code, place = (
        source({}),
        ENVIRONMENT.replace("/cloudtrain/versions/" + "cd" * 16, "/mine/versions/3"),
    )

    def upload(image: str, tag: str) -> None:
        content = json.dumps(
            {"properties": {"image": image, "tags": {"a": tag}, "isAnonymous": False}}
        )
        item = Upload("environment", "cd" * 32, place, len(content), 1, content)
        service.upload(plan_of(uploads=(item,), environmentId=place), code)

    upload("x:1", "b")
    upload("x:1", "c")
    assert [put.body["properties"]["tags"] for put in fake.received("PUT", place)] == [
        {"a": "b"},
        {"a": "c"},
    ]
    with pytest.raises(
        TargetError, match=r"`mine:3` exists already, and Azure ML does not change it"
    ) as caught:
        upload("x:2", "b")
    assert "azureml:mine:3" in (caught.value.hint or "")


def test_a_build_folder_goes_up_with_its_environment(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """Its files alone, into the workspace's own storage; the definition says where they are, which nobody knew before."""
    content = '{"properties":{"build":{"contextUri":"${{folder}}","dockerfilePath":"Dockerfile"}}}'
    upload = Upload(
        "environment", "ef" * 32, ENVIRONMENT, len(content), 1, content, folder="docker"
    )
    plan = plan_of(uploads=(upload,), environmentId=ENVIRONMENT)
    code = source({"train.py": b"1", "docker/Dockerfile": b"FROM x", "docker/etc/a b.txt": b"2"})
    assert [service.upload(plan, code) for _ in range(2)] == [True, False]
    (received,) = fake.received("PUT", ENVIRONMENT)
    address = received.body["properties"]["build"]["contextUri"]
    assert address.startswith("https://")
    assert address.endswith(f"/cloudtrain/folders/{'ef' * 32}/")
    container, path = (
        address.partition("/cloudtrain/")[0].rpartition("/")[2],
        f"cloudtrain/folders/{'ef' * 32}",
    )
    assert fake.blobs.get(container, f"{path}/Dockerfile") == b"FROM x"
    assert fake.blobs.get(container, f"{path}/etc/a b.txt") == b"2"
    assert not [request for request in fake.received("PUT") if "train.py" in request.path]


def test_a_build_folder_that_is_the_whole_source(
    fake: FakeAzure, service: AzureMLService, source: MakeSource
) -> None:
    """All files go up, under the address that the definition says."""
    content = '{"properties":{"build":{"contextUri":"${{folder}}","dockerfilePath":"Dockerfile"}}}'
    upload = Upload("environment", "ef" * 32, ENVIRONMENT, len(content), 1, content, folder=".")
    assert service.upload(
        plan_of(uploads=(upload,), environmentId=ENVIRONMENT), source({"Dockerfile": b"FROM x"})
    )
    (received,) = fake.received("PUT", ENVIRONMENT)
    address = received.body["properties"]["build"]["contextUri"]
    container = address.partition("/cloudtrain/")[0].rpartition("/")[2]
    assert fake.blobs.get(container, f"cloudtrain/folders/{'ef' * 32}/Dockerfile") == b"FROM x"


def test_nothing_to_upload(fake: FakeAzure, service: AzureMLService, source: MakeSource) -> None:
    """A plan without uploads asks nobody."""
    assert not service.upload(plan_of(), source({}))
    assert fake.requests == []


@pytest.mark.parametrize(
    ("place", "match", "hint"),
    [
        (
            PLACE.replace(":ws", ":nope"),
            "no workspace `nope`",
            "az ml workspace list --resource-group rg",
        ),
        (PLACE.replace(":rg", ":nope"), "no resource group `nope`", "az group list"),
        (PLACE.replace("00000000-", "99999999-"), "no subscription `99999999-", "az account list"),
    ],
)
def test_a_workspace_that_does_not_exist(
    fake: FakeAzure, service: AzureMLService, place: str, match: str, hint: str
) -> None:
    """It is said what does not exist, and how to find what does."""
    with pytest.raises(TargetError, match=match) as caught:
        service.submit(plan_of(place=place))
    assert hint in (caught.value.hint or "")
