"""Scripts that use azure-ai-ml become jobs that send the very body of the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.adoption.proof import write_adoption
from tests.parity.adoption import AZUREML, FILES, adopted, files_adopted

pytestmark = pytest.mark.parity("azureml")


@pytest.mark.parametrize("name", AZUREML)
def test_a_command_script_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, in the workspace of the script's client."""
    found = adopted("azureml", AZUREML[name], tmp_path)
    assert found.differences == ()
    assert found.job.source_dir == "src"
    assert found.settings["workspace"] == "workspace"
    assert "azureml_overrides" not in found.fields


def test_code_that_the_script_writes_is_unpacked_beside_the_job_file(tmp_path: Path) -> None:
    """Azure's notebooks write it with `%%writefile`; a folder of this machine stays what it is."""
    write = "import os\nos.makedirs('made')\nopen('made/train.py', 'w').write('print(2)')\n"
    found = adopted("azureml", write + "common['code'] = './made'\n" + AZUREML["plain"], tmp_path)
    assert (found.job.source_dir, found.equal) == ("code", True)
    write_adoption(found, tmp_path / "out")
    assert (tmp_path / "out" / "code" / "train.py").read_text() == "print(2)"


def test_the_name_of_an_environment_is_a_field(tmp_path: Path) -> None:
    """Name, version, description and tags stand in the job file."""
    environment = adopted("azureml", AZUREML["named"], tmp_path).fields["environment"]
    assert environment == {
        "image": {"azureml": "x:1"}, "asset_name": "mine", "asset_version": "3", "description": "For training",
        "tags": {"team": "a"},
    }  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_job_file_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, and the same job as that of the body that the SDK makes of the file."""
    ours, theirs = files_adopted(FILES[name], tmp_path)
    assert ours.differences == theirs.differences == ()
    without = {"name", "source_dir"}
    assert {key: value for key, value in ours.fields.items() if key not in without} == {
        key: value for key, value in theirs.fields.items() if key not in without
    }
    assert ours.settings.items() >= {("compute", "gpu"), ("experiment", "x")}
