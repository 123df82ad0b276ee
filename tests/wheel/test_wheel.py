"""The built wheel, in a clean environment with nothing but its dependencies, away from any checkout."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from cloudtrain.code.bundled import copy_script, script_names
from cloudtrain.code.tree import scan
from tests.wheel.conftest import ROOT, run

pytestmark = pytest.mark.wheel


@pytest.mark.in_ci
@pytest.mark.smoke
def test_the_wheel_holds_the_scripts_and_the_types(wheel: Path) -> None:
    """Training scripts, `py.typed` and the licence are in; tests and caches are not."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "cloudtrain/_training_scripts/digits_ddp/train.py" in names
    assert "cloudtrain/_training_scripts/digits_ddp/job.yaml" in names
    assert "cloudtrain/py.typed" in names
    page = ROOT / "cloudtrain" / "page" / "static"
    files = {str(file.relative_to(ROOT)) for file in page.rglob("*") if file.is_file()}
    assert {"LICENSE.htm", "LICENSE.preact", "LICENSE.uPlot"} <= {Path(file).name for file in files}
    assert files <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]


@pytest.mark.smoke
def test_the_description_has_no_link_into_the_checkout(wheel: Path) -> None:
    """A package index has no files beside the README: its words stay, without pictures and relative links."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert "## What runs where" in text
    assert "**Status: alpha.**" in text
    assert "* Hundreds of checks read a job" in text
    assert not re.findall(r"\]\((?!https://)", text)


def test_the_wheel_holds_each_script_whole(wheel: Path, tmp_path: Path) -> None:
    """File by file and byte by byte what `scripts copy` makes of the checkout."""
    expected = {}
    for script in script_names():
        copy = copy_script(script, tmp_path / script)
        for file in copy.rglob("*"):
            if file.is_file():
                expected[f"cloudtrain/_training_scripts/{script}/{file.relative_to(copy)}"] = (
                    file.read_bytes()
                )
    with zipfile.ZipFile(wheel) as archive:
        held = {
            name: archive.read(name) for name in archive.namelist() if "/_training_scripts/" in name
        }
    assert held == expected
    assert "cloudtrain/_training_scripts/gpt_fsdp/gpt.py" in held


def test_a_bundle_from_the_wheel_is_that_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    """The same hash for a script that shares files with another one."""
    (tmp_path / "cloudtrain.toml").write_text(
        "[sagemaker]\nregion = 'us-west-2'\nrole = 'arn:aws:iam::111122223333:role/R'\n"
    )
    plan = run(
        str(installed / "cloudtrain"),
        "plan",
        "bundled:gpt_fsdp",
        "--target",
        "sagemaker",
        "--json",
        cwd=tmp_path,
    )
    tree = scan(ROOT / "training_scripts" / "gpt_fsdp")
    (code,) = json.loads(plan.stdout)["uploads"]
    assert (code["sha256"], code["file_count"]) == (tree.sha256, tree.identity.file_count)


def test_a_core_installation_plans_without_torch_and_sdks(installed: Path, tmp_path: Path) -> None:
    """`scripts list` and a plan of a bundled script work with the core dependencies alone."""
    cloudtrain = str(installed / "cloudtrain")
    assert "digits_ddp" in run(cloudtrain, "scripts", "list", cwd=tmp_path).stdout
    plan = run(cloudtrain, "plan", "bundled:digits_ddp", "--json", cwd=tmp_path, check=False)
    assert json.loads(plan.stdout)["target"] == "local"
    missing = run(cloudtrain, "check", "bundled:digits_ddp", cwd=tmp_path, check=False)
    assert missing.returncode == 2
    assert "cloudtrain[torch]" in missing.stdout + missing.stderr


def test_the_target_of_a_package_that_is_not_installed(installed: Path, tmp_path: Path) -> None:
    """Its name is an error with a hint, as a target, in a job file and in `cloudtrain.toml`."""
    cloudtrain, job = str(installed / "cloudtrain"), tmp_path / "job.yaml"
    (tmp_path / "train.py").touch()
    job.write_text("name: a\nentry_point: train.py\ninputs: {train: {local: train.py}}\n")

    def fails(*argv: str) -> str:
        result = run(cloudtrain, "plan", "job.yaml", *argv, cwd=tmp_path, check=False)
        assert result.returncode == 2
        return result.stderr

    assert "`folder` is not a target" in (said := fails("--target", "folder"))
    assert "hint: use one of `azureml`, `local`, `sagemaker`" in said
    assert "`folder` is not a field of `inputs.train`" in fails("--set", "inputs.train.folder=data")
    (tmp_path / "cloudtrain.toml").write_text("[folder]\n")
    assert "unknown table `folder`" in fails()


@pytest.mark.torch
def test_a_bundled_script_trains_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The command line from the wheel runs the script with another interpreter, which has PyTorch.

    The script finds `cloudtrain.runtime` in its bundle.
    """
    cloudtrain = str(installed / "cloudtrain")
    argv = [
        "submit",
        "bundled:digits_ddp",
        "--processes-per-instance",
        "2",
        "--python",
        sys.executable,
    ]
    result = run(cloudtrain, *argv, cwd=tmp_path)
    assert "test_accuracy=" in result.stdout
    script = (
        "import cloudtrain as ct; print(ct.bundled_job('digits_ddp').name, ct.run('last').state)"
    )
    assert run(str(installed / "python"), "-c", script, cwd=tmp_path).stdout.split() == [
        "digits-ddp",
        "succeeded",
    ]
