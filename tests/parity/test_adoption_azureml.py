"""Scripts that use azure-ai-ml become jobs that send the very body of the script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.adoption.proof import write_adoption
from tests.parity.adoption import _AZUREML, AZUREML, FILES, adopted, files_adopted

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


SEVERAL = """
first = client.jobs.create_or_update(command(**common, display_name='first'), compute='other', tags={'a': 'b'})
client.jobs.stream(first.name)
while client.jobs.get(first.name).status not in ('Completed', 'Failed'):
    __import__('time').sleep(600)
print(first.studio_url, first.services['Studio'].endpoint)
client.jobs.download(name=first.name, output_name='default')
del common['experiment_name']
client.jobs.create_or_update(command(**common, inputs={'m': Input(path=first.outputs.model)}, display_name='second'))
client.jobs.create_or_update(command(**common))
"""


@pytest.mark.parametrize(("job", "lost"), [("first", 0), ("second", 1), ("training", 0)])
def test_a_script_goes_on_after_its_first_job(job: str, lost: int, tmp_path: Path) -> None:
    """With what a script does with a job that it has created, and the arguments of the creation itself. What the SDK
    makes up without a name and an experiment is not pinned."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\\n")
    (tmp_path / "job.py").write_text(_AZUREML + SEVERAL)
    found = ct.adopt(
        tmp_path / "job.py", execute=True, python=sys.executable, folder=tmp_path, job=job
    )
    assert len(found.differences) == lost
    assert found.job.source_dir == "src"
    settings = {
        name: found.settings.get(name) for name in ("compute", "experiment", "display_name")
    }
    if job == "first":
        assert settings == {"compute": "other", "experiment": "x", "display_name": "first"}
        assert found.job.tags == {"a": "b"}
    else:
        name = "second" if job == "second" else None
        assert settings == {"compute": "gpu", "experiment": None, "display_name": name}
