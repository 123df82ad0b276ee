"""Optional dependencies: missing ones are named with the pip line, broken ones are passed on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.errors import MissingExtra
from cloudtrain.system.plugins import pip_line, require


def test_a_missing_extra_names_the_pip_line() -> None:
    """The hint can be pasted."""
    with pytest.raises(MissingExtra) as caught:
        require("no_such_sdk.client", extra="sagemaker")
    assert caught.value.hint == pip_line("sagemaker")


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'cloudtrain[torch]'"),
        ("no JSON", "pip install 'cloudtrain[torch]'"),
        ('{"url": "file:///gone", "dir_info": {}}', "pip install 'cloudtrain[torch]'"),
        ('{"url": "file:///gone.whl", "archive_info": {}}', "pip install 'cloudtrain[torch]'"),
        ('{"url": "file://HERE/a%20b", "dir_info": {}}', "pip install 'HERE/a b[torch]'"),
        (
            '{"url": "file://HERE/a%20b", "dir_info": {"editable": true}}',
            "pip install -e 'HERE/a b[torch]'",
        ),
        (
            '{"url": "https://example.com/c.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}}',
            "pip install 'cloudtrain[torch] @ git+https://example.com/c.git'",
        ),
    ],
)
def test_the_pip_line_works_where_cloudtrain_came_from(
    origin: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout is installed again from its folder, and a repository from its address."""
    (tmp_path / "a b").mkdir()
    here = SimpleNamespace(read_text=lambda name: origin and origin.replace("HERE", str(tmp_path)))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: here)
    assert pip_line("torch") == expected.replace("HERE", str(tmp_path))


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("boto3", "boto3", "sagemaker"),
        ("botocore.exceptions", "boto3", "sagemaker"),
        ("s3transfer.exceptions", "boto3", "sagemaker"),
        ("azure.core.rest", "azure-core", "azureml"),
        ("azure.storage.blob", "azure-storage-blob", "azureml"),
    ],
)
def test_the_package_is_named_as_pip_does(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its parts is looked for first."""
    for name in ("boto3", "botocore", "s3transfer", "azure"):
        for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra) as caught:
        require(module, extra=extra)
    assert (caught.value.message, caught.value.hint) == (
        f"`{package}` is not installed", pip_line(extra),
    )  # fmt: skip


WITHOUT_SDKS = """\
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("boto3", "botocore", "s3transfer", "azure"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from cloudtrain.cli import main
sys.exit(main())
"""
JOB = """\
name: job
entry_point: train.py
resources: {instance_type: {sagemaker: ml.g5.xlarge, azureml: Standard_NC24ads_A100_v4}}
environment: {framework: pytorch}
max_runtime: 1h
"""
SETTINGS = """\
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::123456789012:role/R"
bucket = "my-bucket"

[azureml]
subscription_id = "11111111-2222-3333-4444-555555555555"
resource_group = "g"
workspace = "ws"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("target", "package"), [("sagemaker", "boto3"), ("azureml", "azure-core")])
@pytest.mark.parametrize("command", ["submit", "check --online"])
def test_a_missing_sdk_is_no_finding(
    command: str, target: str, package: str, clean_environment: Path
) -> None:
    """What to install is all that is said: there is nothing to ignore."""
    (clean_environment / "cloudtrain.toml").write_text(SETTINGS)
    (clean_environment / "job.yaml").write_text(JOB)
    (clean_environment / "train.py").write_text("")
    words = [*command.split(), "job.yaml", "--target", target]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDKS, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr.split()
        == f"error: `{package}` is not installed [CT921] hint: {pip_line(target)}".split()
    )


def test_an_installed_one_is_returned() -> None:
    """The module itself."""
    assert require("json.decoder", extra="torch").__name__ == "json.decoder"


def test_a_broken_one_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import error inside the module is the module's own."""
    (tmp_path / "broken_sdk.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        require("broken_sdk", extra="sagemaker")
