"""What a job requires is installed in every place and from every form: a real package from the package registry, and a
script that imports it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.locks import PROJECT, lock, write
from tests.targets.slurm.site import environ_of, find_cluster

pytestmark = [pytest.mark.lifecycle, pytest.mark.wheel]

WHEEL = "peppercorn-0.6-py3-none-any.whl"
SHA256 = "46125cad688a9cf3b08e463bcb797891ee73ece93602a8ea6f14e40d1042d454"
"""A package of one small wheel without dependencies, which nothing else here needs, and its hash on PyPI."""

LOCKED = f"""\
[[package]]
name = "peppercorn"
version = "0.6"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [
    {{ url = "https://files.pythonhosted.org/packages/{WHEEL}", hash = "sha256:{SHA256}", size = 4810 }},
]
"""
PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.10"

[[packages]]
name = "peppercorn"
version = "0.6"
wheels = [
    {{ name = "{WHEEL}", url = "https://files.pythonhosted.org/packages/{WHEEL}", hashes = {{ sha256 = "{SHA256}" }} }},
]
"""
BLOCK = '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["peppercorn==0.6"]\n# ///\n'
SCRIPT_LOCK = 'version = 1\nrevision = 5\nrequires-python = ">=3.10"\n\n[manifest]\nrequirements = [{ name = "peppercorn", specifier = "==0.6" }]\n\n'
TRAIN = 'import os, peppercorn\nprint("imported", peppercorn.__name__, "in", os.environ.get("RANK", "0"), flush=True)\n'
UV = lock(['name = "peppercorn", specifier = "==0.6"'], [LOCKED])
OWN = PROJECT.format(dependencies='"peppercorn==0.6"')

FORMS: dict[str, tuple[str | None, dict[str, str]]] = {
    "pip": ("requirements.txt", {"requirements.txt": "peppercorn==0.6\n"}),
    "uv.lock": ("uv.lock", {"uv.lock": UV, "pyproject.toml": OWN}),
    "pyproject": ("pyproject.toml", {"uv.lock": UV, "pyproject.toml": OWN}),
    "pylock": ("pylock.toml", {"pylock.toml": PYLOCK}),
    "script": ("train.py", {"train.py": BLOCK + TRAIN}),
    "script with a lock": (
        "train.py",
        {"train.py": BLOCK + TRAIN, "train.py.lock": SCRIPT_LOCK + LOCKED},
    ),
    "found": (None, {"uv.lock": UV, "pyproject.toml": OWN}),
}
"""What a job names, and the files of its folder."""

LOCKS = {"uv.lock", "pyproject", "pylock", "script with a lock", "found"}
"""The forms that decide the same versions with the same hashes."""

SETTINGS = """\
[local]
build_environment = true
[sagemaker]
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"
region = "eu-west-1"
[profiles.own.sagemaker]
launch = "entrypoint"
[azureml]
subscription_id = "99999999-2222-3333-4444-555555555555"
resource_group = "group"
workspace = "ws"
compute = "cluster"
"""

SLURM = """\
[slurm]
shared_dir = "{shared}"
python = "{python}"
build_environment = true
rendezvous_host = "127.0.0.1"
"""


@pytest.fixture
def folder(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the package's wheel from the registry as the only place that installers ask."""
    wheels = clean_environment / "wheels"
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "peppercorn==0.6",
        "-d",
    ]
    answer = subprocess.run([*download, str(wheels)], capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"no package registry here: {answer.stderr.strip().splitlines()[-1:]}")
    assert hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest() == SHA256
    for name, value in {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(wheels))
    (clean_environment / "cloudtrain.toml").write_text(SETTINGS)
    return clean_environment


def job(folder: Path, form: str, *, version: str = "2.13", python: str | None = None) -> str:
    """The path of a job that names the form's file, for an image with this PyTorch and Python."""
    named, files = FORMS[form]
    place = folder / form.replace(" ", "-")
    requires = (f", requirements: {named}" if named else "") + (
        f', python: "{python}"' if python else ""
    )
    text = f'name: needs\nentry_point: train.py\nenvironment: {{framework: pytorch, version: "{version}"{requires}}}\n'
    write(
        place,
        {
            "train.py": TRAIN,
            **files,
            "job.yaml": text
            + "resources: {instance_type: {sagemaker: ml.g5.2xlarge, azureml: Standard_NC4as_T4_v3}}\n",
        },
    )
    return str(place / "job.yaml")


def submit_all(
    cli: Cli, folder: Path, *place: str, version: str = "2.13", python: str | None = None
) -> None:
    """Submit a job of each form. Its script imports the package, and forms with the same content share an environment."""
    folders = {}
    for form in FORMS:
        file = job(folder, form, version=version, python=python)
        plan = json.loads(cli("plan", file, *place, "--json").out)
        folders[form] = plan["request"]["environment"]["folder"]
        result = cli("submit", file, *place)
        assert result.code == 0, (form, result.out, result.err)
        assert "imported peppercorn" in result.out, (form, result.out)
    assert len({folders[form] for form in LOCKS}) == 1, folders


def test_on_this_machine(cli: Cli, folder: Path) -> None:
    submit_all(cli, folder)


def test_in_the_emulated_toolkit(cli: Cli, folder: Path) -> None:
    submit_all(cli, folder, "--emulate", "sagemaker")


def test_under_the_launcher(cli: Cli, folder: Path) -> None:
    submit_all(cli, folder, "--emulate", "sagemaker", "--profile", "own")


def test_in_the_emulated_command(cli: Cli, folder: Path) -> None:
    submit_all(cli, folder, "--emulate", "azureml", version="2.8")


@pytest.mark.slurm
def test_on_a_cluster(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows the Python of a cluster, so the job says it."""
    for name, value in environ_of(find_cluster(), folder).items():
        monkeypatch.setenv(name, value)
    settings = SLURM.format(shared=folder / "shared", python=sys.executable)
    (folder / "cloudtrain.toml").write_text(settings)
    submit_all(cli, folder, "--target", "slurm", python=".".join(map(str, sys.version_info[:2])))
