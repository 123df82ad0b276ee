"""What a scan finds, what it leaves out, and what it refuses."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cloudtrain.code.tree import Tree, runtime_files, scan
from cloudtrain.errors import CloudtrainError, JobError

ODD_NAMES = [
    "a b.py",
    "-rf",
    'it\'s "quoted".py',
    "two\nlines.py",
    "ünï.py",
    "$(id);`id`.py",
    os.fsdecode(b"\xff\xfe.bin"),
]


def fill(root: Path, files: dict[str, str]) -> Path:
    """Make the folder with these files in it."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def own(tree: Tree) -> list[str]:
    """The paths that come from the user's folder."""
    return [entry.path for entry in tree.entries if entry.path not in tree.own_files]


def problems(folder: Path) -> list[str]:
    """The messages of the error that a scan raises."""
    with pytest.raises(JobError) as caught:
        scan(folder)
    assert all(
        problem.hint and problem.path == ("source_dir",) for problem in caught.value.problems
    )
    assert caught.value.exit_code == 2
    return [problem.message for problem in caught.value.problems]


def test_entries_are_sorted_and_say_what_each_file_is(tmp_path: Path) -> None:
    """Every file is an entry with its size and its executable bit, in the order of its path's bytes."""
    fill(tmp_path, {"b/two.py": "22", "a.py": "1", "b.py": "", "run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o700)
    entries = [
        entry for entry in scan(tmp_path).entries if not entry.path.startswith("cloudtrain/")
    ]
    assert [(entry.path, entry.size, entry.executable, entry.kind) for entry in entries] == [
        ("a.py", 1, False, "file"),
        ("b.py", 0, False, "file"),
        ("b/two.py", 2, False, "file"),
        ("run.sh", 10, True, "file"),
    ]


def test_identity_counts_all_files_and_bytes(tmp_path: Path) -> None:
    """Size and file count cover the user's files and the runtime, before compression."""
    fill(tmp_path, {"train.py": "12345"})
    added = runtime_files()
    identity = scan(tmp_path).identity
    assert identity.file_count == 1 + len(added)
    assert identity.size == 5 + sum(path.stat().st_size for path in added.values())


def test_the_runtime_is_in_every_bundle(tmp_path: Path) -> None:
    """`import cloudtrain.runtime` works next to the script, with nothing installed."""
    paths = [entry.path for entry in scan(tmp_path).entries]
    assert "cloudtrain/__init__.py" in paths
    assert all(path.startswith("cloudtrain/") and path.endswith(".py") for path in paths)
    assert set(paths) == set(runtime_files())


@pytest.mark.parametrize("path", ["train.py", "deep/er/train.py"])
@pytest.mark.parametrize("change", ["content", "executable", "name", "more"])
def test_every_change_of_content_changes_the_hash(tmp_path: Path, path: str, change: str) -> None:
    """A byte, a bit, a name, a file more: each gives another bundle."""
    fill(tmp_path, {path: "1"})
    before = scan(tmp_path).sha256
    file = tmp_path / path
    match change:
        case "content":
            file.write_text("2")
        case "executable":
            file.chmod(0o755)
        case "name":
            file.rename(file.with_name("other.py"))
        case _:
            fill(tmp_path, {"more.py": ""})
    assert scan(tmp_path).sha256 != before


def test_mtime_and_other_permissions_do_not_change_the_hash(tmp_path: Path) -> None:
    """What a checkout changes by chance is no part of the content."""
    fill(tmp_path, {"train.py": "1"})
    before = scan(tmp_path).sha256
    os.utime(tmp_path / "train.py", (1, 1))
    (tmp_path / "train.py").chmod(0o600)
    assert scan(tmp_path).sha256 == before


def test_a_scan_writes_nothing(tmp_path: Path) -> None:
    """A dry run leaves the folder, and the folder beside it, as they were."""
    fill(tmp_path, {"src/train.py": "1", "src/.cloudtrainignore": "*.bin\n"})
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    scan(tmp_path / "src")
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_many_and_large_files_hash_the_same_in_threads(tmp_path: Path) -> None:
    """Beyond a few megabytes files are hashed in threads, larger ones in pieces; the hash is SHA-256 of the bytes."""
    from hashlib import sha256

    contents = {f"f{number}.bin": os.urandom(number * 40_000) for number in range(20)}
    contents["large.bin"] = os.urandom((1 << 20) + 17)
    contents["exact.bin"] = os.urandom(1 << 20)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    hashes = {entry.path: (entry.size, entry.sha256) for entry in scan(tmp_path).entries}
    for name, content in contents.items():
        assert hashes[name] == (len(content), sha256(content).hexdigest())


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_kept(tmp_path: Path, name: str) -> None:
    """Spaces, quotes, dashes, line breaks and bytes that are not UTF-8 are names like others."""
    (tmp_path / name).write_text("x")
    assert own(scan(tmp_path)) == [name]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The error says which folder does not exist."""
    assert problems(tmp_path / "nowhere") == [f"the folder `{tmp_path}/nowhere` does not exist"]


def test_a_file_as_source_dir_is_an_error(tmp_path: Path) -> None:
    """A script given as the folder is answered with the folder that holds it."""
    fill(tmp_path, {"train.py": ""})
    with pytest.raises(JobError, match="is a file, not a folder") as caught:
        scan(tmp_path / "train.py")
    assert caught.value.hint is not None
    assert f"source_dir: {tmp_path}" in caught.value.hint


@pytest.mark.parametrize("name", ["cloudtrain/own.py", "cloudtrain.py"])
def test_the_name_of_our_package_is_taken(tmp_path: Path, name: str) -> None:
    """A module of the user called cloudtrain would hide the runtime, or be hidden by it."""
    fill(tmp_path, {name: ""})
    (message,) = problems(tmp_path)
    assert message.startswith(
        f"`{name.split('/')[0]}` in `source_dir` has the name of cloudtrain's own package"
    )


def test_an_ignored_folder_may_have_the_name_of_our_package(tmp_path: Path) -> None:
    """What is not in the bundle is in nobody's way."""
    fill(tmp_path, {"cloudtrain/own.py": "", ".cloudtrainignore": "/cloudtrain/\n", "train.py": ""})
    assert own(scan(tmp_path)) == ["train.py"]


def test_special_files_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe and a socket cannot be in an archive; both are named at once, without being opened."""
    monkeypatch.chdir(tmp_path)  # the name of a socket may have 107 bytes
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        assert problems(tmp_path) == [
            "`pipe` is a named pipe, which cannot be in a bundle",
            "`sock` is a socket, which cannot be in a bundle",
        ]


def test_what_cannot_be_read_is_named(unprivileged: Path) -> None:
    """A folder and a file without permission are both reported, each with the way out."""
    fill(unprivileged, {"shut/train.py": "", "secret.py": "", "train.py": ""})
    (unprivileged / "shut").chmod(0)
    (unprivileged / "secret.py").chmod(0)
    try:
        assert problems(unprivileged) == [
            "`shut` cannot be read: Permission denied",
            "`secret.py` cannot be read: Permission denied",
        ]
    finally:
        (unprivileged / "shut").chmod(0o700)


def test_a_folder_of_data_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Terabytes next to the script are not hashed first: the error comes at once and names the largest file."""
    fill(tmp_path, {"train.py": "", "data/small.bin": "1"})
    with (tmp_path / "data/huge.bin").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(
        JobError, match=r"data/huge.bin \(4 TiB\)|data/huge.bin \(4.0 TiB\)"
    ) as caught:
        scan(tmp_path)
    assert caught.value.hint is not None
    assert "`/data/huge.bin`" in caught.value.hint


def test_the_root_of_the_file_system_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it is called."""
    monkeypatch.setattr(os, "scandir", None)
    for name in ("/", "//", "/.."):
        (message,) = problems(Path(name))
        assert message.endswith(
            "` is the root of this machine's file system, too much for a bundle of code"
        )


def test_errors_can_be_printed_whatever_the_name(tmp_path: Path) -> None:
    """A name that is not UTF-8 does not break the message about it."""
    os.mkfifo(tmp_path / os.fsdecode(b"\xffpipe\n"))
    with pytest.raises(CloudtrainError) as caught:
        scan(tmp_path)
    assert "pipe" in str(caught.value).encode("utf-8").decode()
