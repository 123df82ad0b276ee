"""Scripts that use azure-ai-ml become jobs that send the very body of the script."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain as ct
from cloudtrain.adoption.proof import write_adoption
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.azureml.adopt.code_files import sent_files
from tests.code.credential_files import WORD, Maker
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


GOLDEN = Path(__file__).parents[1] / "golden" / "azureml"
RECORDED = sorted(GOLDEN.glob("*.job.yml"))


def by_table(folder: Path) -> set[str]:
    """The fields of `job.yml` that differ."""
    return {item.path for item in ct.adopt(folder / "job.yml", folder=folder).differences}


def body_by_sdk(data: Any, folder: Path) -> Any:
    """The body that azure-ai-ml makes of a job file. Nothing is sent, and no credentials are read."""
    from azure.ai.ml import load_job
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    text = io.StringIO(yaml.safe_dump(data))
    return to_rest_job_object(load_job(text, relative_origin=str(folder / "job.yml"))).as_dict()


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name)
def test_the_table_takes_a_recorded_file_as_the_sdk_does(file: Path, tmp_path: Path) -> None:
    """The SDK makes a body of each, and nothing differs."""
    (tmp_path / "src").mkdir()
    (tmp_path / "job.yml").write_bytes(file.read_bytes())
    assert body_by_sdk(yaml.safe_load(file.read_text()), tmp_path)
    assert by_table(tmp_path) == set()


REFUSED = {
    "limits: {timout: 60}": "limits.timout",
    "limits: {timeout: yes}": "limits.timeout",
    "limits:": "limits",
    "resources: {gpus: 2}": "resources.gpus",
    "resources: {docker_args: [a, 1]}": "resources.docker_args",
    "resources: {locations: eastus}": "resources.locations",
    "distribution: {type: deepspeed}": "distribution.type",
    "distribution: {process_count_per_instance: 2}": "distribution.type",
    "distribution: {type: mpi, worker_count: 2}": "distribution.worker_count",
    "services: {lab: {type: jupyter_lab, log_dir: x}}": "services.lab.log_dir",
    "services: {lab: {type: ssh, nodes: '2'}}": "services.lab.nodes",
    "identity: {type: managed, msi_resource_id: /x}": "identity.msi_resource_id",
    "queue_settings: {priority: 1}": "queue_settings.priority",
    "inputs: {a: {type: uri_folder, path: 'azureml:d:1', mode: rw_mount}}": "inputs.a.mode",
    "inputs: {a: {type: string, value: x}}": "inputs.a.type",
    "inputs: {a: {value: 1, optional: true}}": "inputs.a.optional",
    "inputs: {a: 2024-01-01}": "inputs.a",
    "inputs: {a-b: 1}": "inputs.a-b",
    "outputs: {a: {type: uri_file, mode: ro_mount}}": "outputs.a.mode",
    "outputs: {a: text}": "outputs.a",
    "tags: {a: 1}": "tags.a",
    "tags: {1: a}": "tags.1",
    "properties: {a: true}": "properties.a",
    "environment: {image: x:1, channels: [a]}": "environment.channels",
    "environment: {image: x:1, build: {path: src}}": "environment",
    "environment: {image: x:1, conda_file: file:c.yml}": "environment.conda_file",
    "environment: e:1": "environment",
    "code: nowhere": "code",
    "code: azureml:mine": "code",
    "type: Command": "type",
    "timeout: 3": "timeout",
}


@pytest.mark.parametrize("text", REFUSED)
def test_the_table_refuses_what_the_sdk_refuses(text: str, tmp_path: Path) -> None:
    """The SDK loads no job of the file, or makes no body of it, and the table names the field."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "Dockerfile").write_text("")
    (tmp_path / "c.yml").write_text("dependencies: [python]\n")
    key = text.partition(":")[0]
    lines = [line for line in JOB_FILE.splitlines() if line.partition(":")[0] != key]
    (tmp_path / "job.yml").write_text("\n".join([*lines, text]))
    assert REFUSED[text] in by_table(tmp_path)
    # dates and keys that are numbers become texts before the SDK sees them
    data = yaml.safe_load((tmp_path / "job.yml").read_text())
    # the SDK raises errors of all kinds for a file that it refuses
    with pytest.raises(Exception):  # noqa: B017
        body_by_sdk(data, tmp_path)


JOB_FILE = """\
command: python train.py
environment: azureml:e:1
code: src
"""

CHANGED = (
    "limits: {timeout: '60'}",
    "resources: {instance_count: 2.5}",
    "services: {lab: {type: JupyterLab}}",
    "services: {lab: {nodes: all}}",
)


@pytest.mark.parametrize("text", CHANGED)
def test_what_the_sdk_changes_is_a_difference(text: str, tmp_path: Path) -> None:
    """The SDK makes a body of the file, and the table says that the value is not that of the body."""
    (tmp_path / "src").mkdir()
    (tmp_path / "job.yml").write_text(JOB_FILE + text)
    assert body_by_sdk(yaml.safe_load(JOB_FILE + text), tmp_path)
    assert len(by_table(tmp_path)) == 1


def test_the_files_of_the_code_are_those_that_the_sdk_sends(tmp_path: Path) -> None:
    """Negations, anchors, folders, sets, files below ignored folders, links."""
    from azure.ai.ml._utils._asset_utils import get_ignore_file, get_upload_files_from_folder

    rules = "*.csv\n!keep.csv\nd/\n!d/keep.txt\n/top.py\nq/**/x\n  \n# a\n[ab].txt\n\\!z\ne*/\n?.md\nq/*.py\n"
    names = (
        "a.csv", "keep.csv", "d/a", "d/keep.txt", "d/keep.csv", "top.py", "q/top.py", "q/x", "q/r/x", "q/r/y",
        "a.txt", "c.txt", "s/b.txt", "!z", "easy/x.py", "s/easy", "1.md", "12.md", "q/a.py", "q/r/b.py",
        ".git/HEAD", ".env", "s/.amlignore", "d.py", "s/d/deep/x", "s/keep.csv/y",
    )  # fmt: skip
    source = tmp_path / "src"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    (source / "link.csv").symlink_to("keep.csv")
    (source / "linked").symlink_to("d")
    (tmp_path / "outside" / "d").mkdir(parents=True)
    (tmp_path / "outside" / "d" / "x.py").write_text("")
    (source / "far").symlink_to("../outside")
    for name in (".gitignore", ".amlignore"):
        (source / name).write_text(rules)
        original = Original("azureml", {}, "x", "x")
        uploads = get_upload_files_from_folder(source, ignore_file=get_ignore_file(source))
        assert sorted(sent_files(original, source)) == sorted(path for _, path in uploads)
        rules = "*\n!*.py\n!s/\n"


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


def test_the_secrets_and_the_conda_file_of_a_script(tmp_path: Path) -> None:
    """A variable that contains a secret is one, an input has a value to fill in, and the conda file is written
    beside the job file."""
    (tmp_path / "theirs" / "src").mkdir(parents=True)
    (tmp_path / "theirs" / "src" / "train.py").write_text("print(1)\n")
    word = Maker(6).of(WORD, 34)
    text = f"""
common["environment"] = Environment(image="x:1", conda_file={{"name": "x", "dependencies": ["python=3.11"]}})
variables = {{"CONN": "Server=a;Password={word};Uid=b"}}
inputs = {{"lr": 0.1, "key": "hf_{word}"}}
common["command"] += " ${{{{inputs.lr}}}} ${{{{inputs.key}}}}"
client.jobs.create_or_update(command(**common, inputs=inputs, environment_variables=variables))
"""
    script = tmp_path / "theirs" / "job.py"
    script.write_text(_AZUREML + "from azure.ai.ml.entities import Environment\n" + text)
    found = ct.adopt(script, execute=True, python=sys.executable, folder=tmp_path / "ours")
    assert word not in found.job_text
    assert len(found.differences) == 2
    assert list(found.job.environment.secrets) == ["CONN"]
    assert found.job.inputs["key"].value == "FILL-IN"
    assert found.job.environment.conda_file == "../../ours/conda.yml"
