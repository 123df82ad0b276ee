"""Where code and environment files may lie: Microsoft's own layout of a job, one file of code, and no code at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.plans.plan import Plan

WHERE = {
    "subscription_id": "11111111-2222-3333-4444-555555555555",
    "resource_group": "rg",
    "workspace": "team",
}
IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
CURATED = {"framework": "pytorch", "version": "2.8"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """`job.yaml` beside `src` and `environment`, as Microsoft's examples have it."""
    files = {
        "src/train.py": "print(1)\n", "src/helper.py": "", "environment/conda.yml": "dependencies: [python=3.11]\n",
        "environment/Dockerfile": "FROM a:1\n", "environment/gpu.Dockerfile": "FROM a:2\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def planned(project: Path, target: Any = None, **fields: Any) -> Plan:
    """The plan of a job file of the project."""
    job = {"name": "digits", "source_dir": "src", "environment": CURATED, **fields}
    (project / "job.json").write_text(json.dumps(job))
    return ct.plan(ct.load_job(project / "job.json"), target or ct.AzureML(compute="gpu", **WHERE))


def environment_of(plan: Plan) -> Any:
    """The definition of the environment that the plan makes, and the upload."""
    (upload,) = [upload for upload in plan.uploads if upload.kind == "environment"]
    assert upload.content is not None
    return json.loads(upload.content)["properties"], upload


def test_a_conda_file_beside_the_code(project: Path) -> None:
    """Its path leads out of the source folder; the environment has its text, and the plan says where it is."""
    environment = {"image": IMAGE, "conda_file": "../environment/conda.yml"}
    plan = planned(project, entry_point="train.py", environment=environment)
    assert environment_of(plan)[0]["condaFile"] == "dependencies: [python=3.11]\n"
    assert (
        "`../environment/conda.yml` is outside of the code; its name in the bundle is `conda.yml`"
        in plan.notes
    )
    assert plan.errors == ()


@pytest.mark.parametrize("dockerfile", [None, "gpu.Dockerfile"])
def test_a_dockerfile_beside_the_code(project: Path, dockerfile: str | None) -> None:
    """Whatever its name is; its folder is what is uploaded."""
    environment = {"build": "../environment", **({"dockerfile": dockerfile} if dockerfile else {})}
    plan = planned(project, entry_point="train.py", environment=environment)
    found, upload = environment_of(plan)
    assert (found["build"]["dockerfilePath"], upload.folder) == (
        dockerfile or "Dockerfile",
        "environment",
    )
    assert (
        dict(plan.summary)["environment"] == f"built from environment/{dockerfile or 'Dockerfile'}"
    )
    assert plan.errors == ()
    (project / "environment" / "gpu.Dockerfile").write_text("FROM a:3\n")
    other = planned(project, entry_point="train.py", environment=environment)
    assert environment_of(other)[1].destination != upload.destination


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"image": IMAGE, "conda_file": "../environment/c.yml"},
        "environment.conda_file",
        "`../environment/c.yml`",
    ),
    (
        {"image": IMAGE, "conda_file": "../environment"},
        "environment.conda_file",
        "no file `../environment`",
    ),
    (
        {"build": "../environment/Dockerfile"},
        "environment.build",
        "no file `../environment/Dockerfile/Dockerfile`",
    ),
    (
        {"build": "../environment", "dockerfile": "D"},
        "environment.build",
        "no file `environment/D`",
    ),
    ({"image": IMAGE, "dockerfile": "D"}, "environment.dockerfile", "`dockerfile` needs `build`"),
]


@pytest.mark.parametrize(("environment", "place", "message"), WRONG)
def test_what_is_not_there_is_named(
    project: Path, environment: dict[str, Any], place: str, message: str
) -> None:
    """At the field that names it."""
    with pytest.raises(JobError) as caught:
        planned(project, entry_point="train.py", environment=environment)
    assert (caught.value.problems[0].dotted, message in caught.value.problems[0].message) == (
        place,
        True,
    )


def test_everything_that_is_wrong_comes_at_once(project: Path) -> None:
    """What the compiler refuses of every part, overrides that break the body, and what the rules find beside it."""
    with pytest.raises(JobError) as caught:
        planned(
            project,
            ct.AzureML(compute="Standard_NC6", job_tier="basic", **WHERE),
            entry_point="nope.py",
            environment={
                "image": IMAGE,
                "conda_file": "../nope.yml",
                "variables": {"X": "${{inputs.a}}"},
            },
            inputs={
                "a": {"azureml": "azureml:azureml:mydata", "mode": "pipe"},
                "b": {"sagemaker": "s3://b/c"},
            },
            outputs={"o": {"azureml": "s3://x/y"}},
            spot={},
            azureml_overrides={"command": None},
        )
    found = [problem.dotted for problem in caught.value.problems]
    assert set(found) == {
        "environment.conda_file", "environment.variables.X", "inputs.a.azureml", "inputs.a.mode", "inputs.b", "spot",
        "azureml_overrides.command", "entry_point", "outputs.o.azureml", "",
    }  # fmt: skip
    assert (
        "`Standard_NC6` cannot be the name of a compute cluster"
        in caught.value.problems[found.index("")].message
    )


def test_two_of_one_name(project: Path) -> None:
    """A file from elsewhere does not hide one of the code."""
    (project / "src" / "conda.yml").write_text("dependencies: []\n")
    with pytest.raises(JobError, match="already has an item of that name"):
        planned(
            project,
            entry_point="train.py",
            environment={"image": IMAGE, "conda_file": "../environment/conda.yml"},
        )


def test_a_job_without_code(project: Path) -> None:
    """It has no `codeId`, as the SDK sends it, and nothing is uploaded."""
    plan = planned(project, source_dir=None, command="echo hello")
    assert "codeId" not in plan.request["properties"]
    assert (plan.uploads, plan.errors) == ((), ())
    assert plan.request["properties"]["command"] == "echo hello"


def test_a_job_without_code_in_an_environment_of_its_own(project: Path) -> None:
    """Paths then start at the job's file."""
    environment = {"image": IMAGE, "conda_file": "environment/conda.yml"}
    plan = planned(project, source_dir=None, command="echo hello", environment=environment)
    assert environment_of(plan)[0]["condaFile"] == "dependencies: [python=3.11]\n"
    assert "codeId" not in plan.request["properties"]


def test_a_script_needs_code(project: Path) -> None:
    """There is none to run otherwise."""
    with pytest.raises(JobError, match="without code has no script"):
        planned(project, source_dir=None, entry_point="train.py")


def test_code_that_is_one_file(project: Path) -> None:
    """Nothing beside it is sent."""
    (project / "src" / "large.bin").write_bytes(b"x" * 100_000)
    plan = planned(project, source_dir="src/train.py", entry_point="train.py")
    (upload,) = plan.uploads
    assert (upload.kind, upload.size < 1_000_000, plan.errors) == ("code", True, ())
    (project / "src" / "helper.py").write_text("changed = 1\n")
    assert (
        planned(project, source_dir="src/train.py", entry_point="train.py").uploads == plan.uploads
    )
    (project / "src" / "train.py").write_text("print(2)\n")
    assert (
        planned(project, source_dir="src/train.py", entry_point="train.py").uploads != plan.uploads
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"source_dir": None, "command": "true"},
        {"source_dir": "src/train.py", "entry_point": "train.py"},
    ],
)
def test_other_targets_take_them_too(project: Path, fields: dict[str, Any]) -> None:
    """The plan for this machine has no errors."""
    assert planned(project, "local", **fields).errors == ()
