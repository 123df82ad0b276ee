"""The command that makes releases: what it writes, what it refuses, and what its check finds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE
from tests.wheel.conftest import ROOT

pytestmark = pytest.mark.wheel


def release(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the release command of a checkout."""
    command = [sys.executable, "tools/release.py", *words]
    return subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False, timeout=DEADLINE
    )


def git(checkout: Path, *words: str) -> None:
    """Run git in a checkout, as somebody without settings of their own."""
    names = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *names, *words], cwd=checkout, env=environment, check=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what a release is made of, as it stands here."""
    place = tmp_path_factory.mktemp("release") / "checkout"
    place.mkdir()
    for name in ("cloudtrain", "training_scripts", "examples", "docs", "tools"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        ".gitignore",
    ):
        shutil.copy(ROOT / name, place / name)
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Begin")
    return place


@pytest.fixture(scope="module")
def dist(checkout: Path) -> Path:
    """The files of a release of the version that the changelog names last."""
    built = release(checkout, "build")
    assert built.returncode == 0, built.stdout + built.stderr
    return checkout / "dist"


@pytest.mark.slow
def test_a_release_is_built_and_verified(checkout: Path, dist: Path) -> None:
    """Four files; the wheel plans for every target where nothing else is installed; built again, it is the same."""
    names = sorted(file.suffix or file.name for file in dist.iterdir())
    assert names == [".gz", ".json", ".whl", "SHA256SUMS"]
    verified = release(checkout, "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "plans for local, sagemaker, azureml, slurm" in verified.stdout
    first = (dist / "SHA256SUMS").read_text()
    again = release(checkout, "build", str(checkout.parent / "again"))
    assert again.returncode == 0, again.stderr
    assert (checkout.parent / "again" / "SHA256SUMS").read_text() == first


@pytest.mark.slow
def test_the_sbom_names_what_is_installed(dist: Path) -> None:
    """Every package with its version, the project with its own, and no path of the machine that built it."""
    (file,) = dist.glob("*.cdx.json")
    text = file.read_text()
    sbom = json.loads(text)
    versions = {item["name"]: item["version"] for item in sbom["components"]}
    assert {"pydantic", "typer", "boto3", "azure-identity", "optuna"} <= versions.keys()
    assert all(versions.values())
    assert sbom["metadata"]["component"]["name"] == "cloudtrain"
    assert sbom["metadata"]["component"]["version"] in file.name
    assert "file:" not in text
    assert str(dist.parent) not in text


def _write(folder: Path, name: str, content: bytes) -> None:
    """Change a file, and the checksums with it, as somebody would who wants to hide it."""
    (folder / name).write_bytes(content)
    sums = folder / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if not line.endswith(f"  {name}")]
    lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    sums.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["changed", "missing", "unnamed", "package", "version", "wheels"])
def test_verify_refuses_what_is_not_the_release(
    checkout: Path, dist: Path, tmp_path: Path, what: str
) -> None:
    """A changed, missing or added file, an SBOM that leaves out a package or is of another version, and two wheels."""
    folder = tmp_path / "dist"
    shutil.copytree(dist, folder)
    (archive,) = folder.glob("*.tar.gz")
    (sbom,) = folder.glob("*.cdx.json")
    content = json.loads(sbom.read_text())
    if what == "changed":
        archive.write_bytes(archive.read_bytes() + b"\0")
    elif what == "missing":
        archive.unlink()
    elif what == "unnamed":
        (folder / "more.txt").write_text("")
    elif what == "package":
        content["components"] = [
            item for item in content["components"] if item["name"] != "pydantic"
        ]
        _write(folder, sbom.name, json.dumps(content).encode())
    elif what == "version":
        content["metadata"]["component"]["version"] = "9.9"
        _write(folder, sbom.name, json.dumps(content).encode())
    else:
        with zipfile.ZipFile(folder / "other-1-py3-none-any.whl", "w"):
            pass
    refused = release(checkout, "verify", str(folder))
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.stderr


def test_prepare_names_the_section_and_sets_the_version(checkout: Path, tmp_path: Path) -> None:
    """The newest section gets version and date; an older version, none, and an empty section are refused."""
    copy = tmp_path / "checkout"
    git(checkout, "clone", "-q", str(checkout), str(copy))
    changelog = copy / "CHANGELOG.md"
    version = copy / "cloudtrain" / "version.py"
    text = changelog.read_text()
    before = text.partition("## Unreleased\n")[0]
    after = text[text.index("\n## 0.1.0 (") :]
    changelog.write_text(f"{before}## Unreleased\n\n### Added\n\n- A line.\n{after}")
    for wrong in ("0.0.9", "0.1.0", "next"):
        assert release(copy, "prepare", wrong).returncode == 1
    assert "0.1.0" in version.read_text()

    prepared = release(copy, "prepare", "0.2.0", "--date", "2027-01-02")
    assert prepared.returncode == 0, prepared.stderr
    assert '__version__ = "0.2.0"' in version.read_text()
    assert (
        "## Unreleased\n\n## 0.2.0 (2027-01-02)\n\n### Added\n\n- A line.\n"
        in changelog.read_text()
    )
    assert release(copy, "prepare", "0.3.0").returncode == 1
    assert release(copy, "build").returncode == 1


def test_build_refuses_changes_that_are_not_committed(checkout: Path, tmp_path: Path) -> None:
    """What is built is a commit."""
    copy = tmp_path / "checkout"
    git(checkout, "clone", "-q", str(checkout), str(copy))
    (copy / "cloudtrain" / "more.py").write_text("")
    refused = release(copy, "build")
    assert refused.returncode == 1
    assert "not committed" in refused.stderr
