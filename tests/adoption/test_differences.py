"""The files of an adopted job's code: those that the other tool sends, against those of the bundle."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.adoption.differences import code_differences
from cloudtrain.adoption.scripts import located
from cloudtrain.documents.archives import archive_of
from cloudtrain.targets.adoption import Original

JOB = "command: python train.py\nenvironment: azureml:e:1\ncompute: azureml:gpu\ncode: src\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files, and make the folders whose names end with a slash."""
    for name, text in {"train.py": "", **files}.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            place.mkdir()
        else:
            place.write_text(text)
    return folder


LEFT = "source_dir (left out)"
ADDED = "source_dir (added)"


@pytest.mark.parametrize(
    ("files", "left", "added"),
    [
        ({"a/b.py": "", ".gitignore": "", "a/.amlignore": "*"}, None, None),
        ({".amlignore": "*.csv\n!keep.csv\n", "a.csv": "", "d/keep.csv": ""}, None, ["a.csv"]),
        ({".amlignore": "\ufeff*.csv\r\n", "a.csv": ""}, None, ["a.csv"]),
        ({".cloudtrainignore": "d/", "d/e/a": ""}, ["d/"], None),
        # git does not look into an ignored folder, and azure-ai-ml does
        ({".amlignore": "d/\n!d/keep.csv\n", "d/a": "", "d/keep.csv": ""}, None, ["d/a"]),
        ({".amlignore": "", ".gitignore": "*.csv", "a.csv": ""}, None, None),
        ({".gitignore": "*.csv", "sub/.gitignore": "*.txt", "a.csv": "", "sub/b.txt": ""}, None, ["a.csv"]),
        ({".cloudtrainignore": "data/", "data/a": "", "data/b/c": ""}, ["data/"], None),
        ({".env": "A=1", ".git/HEAD": "", "__pycache__/a.pyc": ""}, [".env", ".git/"], None),
        ({"empty/": ""}, None, None),
    ],
)  # fmt: skip
def test_the_rules_of_azure_against_ours(
    files: Mapping[str, str], left: list[str] | None, added: list[str] | None, tmp_path: Path
) -> None:
    """`.amlignore`, or else `.gitignore`, of the code's own folder; secrets are never in a bundle."""
    write(tmp_path / "src", files)
    (tmp_path / "az.yml").write_text(JOB)
    found = {item.path: item for item in ct.adopt(tmp_path / "az.yml").differences}
    assert found.keys() == {name for name, paths in {LEFT: left, ADDED: added}.items() if paths}
    for name, paths in {LEFT: left, ADDED: added}.items():
        for path in paths or ():
            assert f"`{path}`" in found[name].reason


def test_many_files_are_counted(tmp_path: Path) -> None:
    """The first are named; the values are the numbers."""
    write(tmp_path / "src", {f"a{n}.csv": "" for n in range(8)} | {".amlignore": "*.csv"})
    (tmp_path / "az.yml").write_text(JOB)
    (item,) = ct.adopt(tmp_path / "az.yml").differences
    assert (item.path, item.original, item.adopted) == (ADDED, "(absent)", "files: 8")
    assert "`a5.csv` and 2 more" in item.reason
    assert "`/a0.csv`" in item.reason


def test_links(tmp_path: Path) -> None:
    """azure-ai-ml sends what a link leads to under the link's name, and matches a linked folder's files by
    their own place. A link that leads around ends."""
    source = write(tmp_path / "src", {".amlignore": "linked/\nreal/\n", "real/a": "", "real/b": ""})
    (source / "linked").symlink_to("real")
    (source / "one.py").symlink_to("train.py")
    (source / "around").symlink_to(".")
    (tmp_path / "az.yml").write_text(JOB)
    (item,) = ct.adopt(tmp_path / "az.yml").differences
    assert (item.path, item.adopted) == (ADDED, "files: 2")
    (source / "gone").symlink_to("nothing")
    assert "source_dir" in [item.path for item in ct.adopt(tmp_path / "az.yml").differences]


def test_a_single_file_travels_with_its_folder(tmp_path: Path) -> None:
    """The job's folder is that of the file, and the other files there are a difference."""
    write(tmp_path / "src", {"other.py": ""})
    (tmp_path / "az.yml").write_text(JOB.replace("code: src", "code: src/train.py"))
    found = ct.adopt(tmp_path / "az.yml", folder=tmp_path)
    assert found.job.source_dir == "src"
    (item,) = found.differences
    assert item.path == ADDED
    assert "`other.py`" in item.reason


def test_the_folder_of_a_dockerfile_is_compared(tmp_path: Path) -> None:
    """azure-ai-ml follows the ignore file in it, and cloudtrain its own."""
    write(tmp_path / "src", {})
    files = {"Dockerfile": "FROM x", ".amlignore": "*.txt", "a.txt": "", ".env": "", "b/c": ""}
    write(tmp_path / "env", files)
    (tmp_path / "az.yml").write_text(JOB.replace("azureml:e:1", "{build: {path: env}}"))
    found = ct.adopt(tmp_path / "az.yml", folder=tmp_path / "ours").differences
    assert [(item.path, item.original, item.adopted) for item in found] == [
        ("environment.build (left out)", "files: 1", "(absent)"),
        ("environment.build (added)", "(absent)", "files: 1"),
    ]


DRIVERS = {"InputDataConfig": [{"ChannelName": "sm_drivers"}]}
"""A request of version 3 of the SageMaker SDK."""


@pytest.mark.parametrize(
    ("request_", "left"),
    [({}, {".env", ".git/", "empty/", "x.pem"}), (DRIVERS, {"x.pem"})],
)
def test_the_files_of_sagemakers_sdks(
    request_: Mapping[str, object], left: set[str], tmp_path: Path
) -> None:
    """Version 2 packs everything, and version 3 leaves out a few names."""
    files = {".env": "", ".git/HEAD": "", "__pycache__/a.pyc": "", "empty/": "", "x.pem": ""}
    write(tmp_path / "src", files)
    original = Original("sagemaker", request_, "x", "x", folder=str(tmp_path), source="src")
    (found,) = code_differences(original)
    assert found.path == LEFT
    assert {
        name for name in (".env", ".git/", "empty/", "x.pem") if f"`{name}`" in found.reason
    } == left


def test_a_target_may_not_list_what_its_tools_send(tmp_path: Path) -> None:
    """Then they send every file."""
    write(tmp_path / "src", {".env": "A=1", "a/b.py": ""})
    original = Original("slurm", {}, "x", "x", folder=str(tmp_path), source="src")
    (found,) = code_differences(original)
    assert (found.path, found.original) == (LEFT, "files: 1")
    assert "`.env`" in found.reason


def test_an_archive_is_compared_too(tmp_path: Path) -> None:
    """Code that an existing job has, such as one of a workspace."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(write(tmp_path, {".env": "A=1"}), ".")
    original = Original("azureml", {}, "x", "x", code=archive.getvalue())
    (found,) = code_differences(original)
    assert (found.path, found.original) == (LEFT, "files: 1")
    assert "environment.secrets" in found.reason


@pytest.mark.parametrize("written", [{}, {"more.py": "1"}, {"train.py": "2"}])
def test_a_script_may_write_into_the_folder_of_its_code(
    written: Mapping[str, str], tmp_path: Path
) -> None:
    """It does so in a copy, so the archive of the copy is the code unless the folder has the same files."""
    source = write(tmp_path / "src", {".env": "A=1", "a/b.py": ""})
    (source / "link.py").symlink_to("train.py")
    files = {"train.py": b"", "a/b.py": b""}
    files |= {name: text.encode() for name, text in written.items()}
    archive = archive_of(files)
    original = Original("azureml", {}, "x", "x", source="./src")
    found = located(original, tmp_path, [tmp_path, source], archive)
    expected = (None, archive) if written else ("src", None)
    assert (found.source, found.code) == expected
