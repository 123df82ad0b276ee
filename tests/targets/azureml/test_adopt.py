"""`cloudtrain adopt azureml://WORKSPACE/NAME`: a job of the workspace, with its code where it can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.documents.archives import files_of
from cloudtrain.targets.azureml.service.client import SUBMIT
from cloudtrain.targets.azureml.service.service import AzureMLService
from cloudtrain.targets.azureml.service.transfer import code_folder
from tests.adoption.test_requests import AZUREML
from tests.fakes.azureml import FakeAzure
from tests.targets.azureml.conftest import CODE, PLACE, SUBSCRIPTION, WORKSPACE, Source, code_plan

pytestmark = pytest.mark.lifecycle

SETTINGS = f'[azureml]\nsubscription_id = "{SUBSCRIPTION}"\nresource_group = "rg"\n'


def sent(fake: FakeAzure, service: AzureMLService, **changes: Any) -> dict[str, Any]:
    """A job that the SDK made, which has run; its body."""
    body = {**AZUREML["pytorch_2x8"]["properties"], "codeId": CODE, **changes}
    fake.computes.add("gpu-cluster", "Standard_ND96asr_v4")
    body["computeId"] = f"{WORKSPACE}/computes/gpu-cluster"
    content = json.dumps({"properties": body}).encode()
    service._at(PLACE).send("PUT", "jobs/lemon_plow", api_version=SUBMIT, content=content)
    fake.jobs["lemon_plow"].end("Completed")
    return body


@pytest.mark.parametrize("place", [PLACE, PLACE.replace(":", "/"), "ws"])
@pytest.mark.slow_after(1)
def test_a_job_of_the_workspace_is_adopted(
    place: str,
    fake: FakeAzure,
    service: AzureMLService,
    source: Callable[[dict[str, bytes]], Source],
    clean_environment: Path,
    tmp_path: Path,
) -> None:
    """Body and code, without what the service adds; the workspace by its whole place, or by the settings."""
    (clean_environment / "cloudtrain.toml").write_text(SETTINGS)
    tree = source({"train.py": b"print(1)\n", "lib/a b.py": b"x = 1\n"})
    service.upload(code_plan(tree), tree)
    body = sent(fake, service, properties={"mine": "1"})
    found = ct.adopt(f"azureml://{place}/lemon_plow", folder=tmp_path / "new")
    assert found.equal, [vars(item) for item in found.differences]
    assert (found.job.command, found.job.source_dir) == (body["command"], "code")
    assert found.settings["workspace"] == "ws"
    assert found.fields["azureml_overrides"]["properties"] == {"mine": "1"}
    assert found.code is not None
    files = dict(files_of(found.code))
    assert (files["train.py"], files["lib/a b.py"]) == (b"print(1)\n", b"x = 1\n")


def test_code_of_the_sdk() -> None:
    """It lies deeper in its container than cloudtrain's."""
    account = "https://a.blob.core.windows.net"
    assert code_folder(f"{account}/store/LocalUpload/abc/src") == (
        f"{account}/store",
        "LocalUpload/abc/src",
    )
    assert code_folder(f"{account}/ws-code-1/code/") == (f"{account}/ws-code-1", "code")


def test_code_that_is_a_single_file(
    fake: FakeAzure, service: AzureMLService, clean_environment: Path, tmp_path: Path
) -> None:
    """It lies in its container itself, as recorded in March 2026."""
    fake.assets.add(
        "codes", "single", "1", codeUri=f"{fake.blobs.url}/44444444-yly2w3gmtffaom8w7y66l7ka40/"
    )
    fake.blobs.put("44444444-yly2w3gmtffaom8w7y66l7ka40", "train.py", b"print(1)\n")
    sent(fake, service, codeId=f"{WORKSPACE}/codes/single/versions/1")
    found = ct.adopt(f"azureml://{PLACE}/lemon_plow", folder=tmp_path)
    assert found.equal
    assert found.code is not None
    assert dict(files_of(found.code))["train.py"] == b"print(1)\n"


def test_code_that_is_gone(fake: FakeAzure, service: AzureMLService, tmp_path: Path) -> None:
    """The job file says which it was."""
    fake.assets.add("codes", "gone", "1", codeUri=f"{fake.blobs.url}/nothing/code")
    sent(fake, service, codeId=f"{WORKSPACE}/codes/gone/versions/1")
    found = ct.adopt(f"azureml://{PLACE}/lemon_plow", folder=tmp_path)
    assert found.equal
    assert found.code is None
    assert f"{WORKSPACE}/codes/gone/versions/1" in found.job_text


def test_what_cannot_be_adopted(
    fake: FakeAzure, service: AzureMLService, clean_environment: Path
) -> None:
    """A job that is not there, a pipeline, and a workspace that nobody places."""
    pipeline = {"jobType": "Pipeline", "jobs": {"a": {"command": "ls"}, "b": {"command": "ls"}}}
    sent(fake, service, codeId=None)
    fake.jobs["lemon_plow"].request = {"properties": pipeline}
    wrong = {
        f"azureml://{PLACE}/nobody": "CT974",
        f"azureml://{PLACE}/lemon_plow": "CT981",
        "azureml://ws/lemon_plow": "CT933",
        "azureml:///lemon_plow": "CT933",
    }
    for reference, code in wrong.items():
        with pytest.raises(ct.CloudtrainError) as caught:
            ct.adopt(reference)
        assert (caught.value.code, bool(caught.value.hint)) == (code, True), reference
    assert len(fake.calls("PUT", "/jobs/")) == 1
