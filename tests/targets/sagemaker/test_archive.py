"""Archives from a bucket are not trusted: nothing leaves the folder, and of a bad one nothing appears."""

from __future__ import annotations

import io
import os
import resource
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudtrain.errors import TargetError
from cloudtrain.system.processes import listening
from cloudtrain.targets.common.archives import landing
from cloudtrain.targets.sagemaker.service.transfer import stage
from tests.examples import examples


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"x", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def extended(kind: bytes = tarfile.REGTYPE, **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    """A member whose name or target stands in a header of POSIX.1-2001, which replaces the harmless one."""
    info, data = member("harmless", kind, "good")
    info.pax_headers = headers
    return info, data


def packed(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


def extract(archive: Path, destination: Path) -> list[Path]:
    """Unpack everything, and return the written files in the archive's order."""
    with landing(destination) as staging:
        stage(archive, staging, lambda name: name)
        return staging.move()


def unpack(archive: Path, destination: Path) -> dict[str, bytes]:
    files = extract(archive, destination)
    return {path.relative_to(destination).as_posix(): path.read_bytes() for path in files}


def test_what_the_service_packs(tmp_path: Path) -> None:
    """Folders, files with `./` in front, links inside, hard links, and the bit that makes a file a program."""
    archive = packed(
        tmp_path / "model.tar.gz",
        member("./", tarfile.DIRTYPE), member("./parts", tarfile.DIRTYPE), member("./parts/1", data=b"one"),
        member("./run.sh", data=b"#!", mode=0o755), member("latest", tarfile.SYMTYPE, "parts/1"),
        member("parts/up", tarfile.SYMTYPE, "../run.sh"), member("same", tarfile.LNKTYPE, "./parts/1"),
    )  # fmt: skip
    got = tmp_path / "got"
    assert unpack(archive, got) == {
        "parts/1": b"one", "run.sh": b"#!", "same": b"one", "latest": b"one", "parts/up": b"#!",
    }  # fmt: skip
    assert (got / "run.sh").stat().st_mode & 0o111
    assert sorted(path.name for path in got.iterdir()) == ["latest", "parts", "run.sh", "same"]


BAD = {
    "up": [member("../evil")],
    "up inside": [member("a/../../evil")],
    "absolute": [member("/tmp/evil")],
    "below a link": [member("a", tarfile.SYMTYPE, "d"), member("d/f"), member("a/evil", tarfile.SYMTYPE, "x")],
    "file below a link": [member("a", tarfile.SYMTYPE, "d"), member("a/evil")],
    "hard link out": [member("link", tarfile.LNKTYPE, "../../etc/passwd")],
    "hard link to nothing": [member("link", tarfile.LNKTYPE, "nothing")],
    "twice": [member("a"), member("a", tarfile.SYMTYPE, "good")],
    "file below a file": [member("a"), member("a/b")],
    "file in the place of a folder": [member("a/b"), member("a")],
    "link below a file": [member("a"), member("a/b", tarfile.SYMTYPE, "good")],
    "device": [member("dev", tarfile.CHRTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
    "block device": [member("disk", tarfile.BLKTYPE)],
    "no known kind": [member("u", b"Z")],
    "up in a long name": [extended(path="../evil")],
    "absolute in a long name": [extended(path="/tmp/evil")],
    "up on Windows": [member("..\\evil")],
    "escape in a name": [member("a\x1b[31m")],
    "line break in a name": [member("a\nb")],
    "too long a name": [member("a" * 300)],
    "the folder itself": [member(".")],
    "no name": [member("")],
    "hard link to a link out": [member("a", tarfile.SYMTYPE, "../x"), member("b", tarfile.LNKTYPE, "a")],
    "absolute hard link": [member("b", tarfile.LNKTYPE, "/etc/passwd")],
    "folder that becomes a link": [
        member("d", tarfile.DIRTYPE), member("d", tarfile.SYMTYPE, "."), member("d/x"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refused_whole(case: str, tmp_path: Path) -> None:
    """The good file before the bad one does not appear either, and nothing is left behind."""
    archive = packed(tmp_path / "model.tar.gz", member("good"), *BAD[case])
    got = tmp_path / "deep/got"
    with pytest.raises(TargetError, match=r"`model\.tar\.gz`"):
        unpack(archive, got)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.tar.gz"]


OUT = {
    "link out": [member("link", tarfile.SYMTYPE, "../outside")],
    "absolute link": [member("link", tarfile.SYMTYPE, "/etc")],
    "through a link": [member("here", tarfile.SYMTYPE, "."), member("link", tarfile.SYMTYPE, "here/../../outside")],
    "in a long name": [extended(tarfile.SYMTYPE, linkpath="/etc/passwd")],
    "up behind a folder": [member("d/x"), member("link", tarfile.SYMTYPE, "d/../../x")],
    "below a link": [member("link", tarfile.SYMTYPE, "/etc"), member("link/passwd")],
}  # fmt: skip


@pytest.mark.parametrize("case", OUT)
def test_a_link_out_is_left(case: str, tmp_path: Path) -> None:
    """It is named, and the model arrives; no file is written through it."""
    archive = packed(tmp_path / "model.tar.gz", member("good"), *OUT[case])
    got = tmp_path / "deep/got"
    told: list[str] = []
    with listening(told.append):
        files = extract(archive, got)
    assert got / "good" in files
    assert not [path for path in (got / "link", got / "passwd") if path.is_symlink()]
    assert len(told) == 1
    assert told[0].endswith("which leads outside, so it is not copied")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "model.tar.gz"]


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x1f\x8b\x08broken"])
def test_damaged(data: bytes, tmp_path: Path) -> None:
    """A clear error."""
    (tmp_path / "model.tar.gz").write_bytes(data)
    with pytest.raises(TargetError, match="damaged"):
        unpack(tmp_path / "model.tar.gz", tmp_path / "got")


def test_cut_off(tmp_path: Path) -> None:
    """Half an archive is no archive."""
    whole = packed(
        tmp_path / "model.tar.gz", member("a", data=bytes(range(256)) * 4000)
    ).read_bytes()
    (tmp_path / "model.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TargetError, match="damaged"):
        unpack(tmp_path / "model.tar.gz", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_a_full_disk_is_not_the_archives_fault(tmp_path: Path) -> None:
    """What cannot be written says so, with the system's own reason, and nothing is left behind."""
    archive = packed(tmp_path / "model.tar.gz", member("a", data=bytes(1 << 20)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            unpack(archive, tmp_path / "got")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "got").exists()


def test_a_link_that_was_there_is_not_followed_out(tmp_path: Path) -> None:
    """A folder of the destination that points elsewhere is not written through."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "got").mkdir()
    (tmp_path / "got/parts").symlink_to(tmp_path / "outside")
    with pytest.raises(TargetError, match="`parts` is a link, which may lead outside"):
        unpack(packed(tmp_path / "model.tar.gz", member("parts/1")), tmp_path / "got")
    assert list((tmp_path / "outside").iterdir()) == []


def test_what_is_there_is_replaced(tmp_path: Path) -> None:
    """A second download is like the first."""
    archive = packed(
        tmp_path / "model.tar.gz", member("a", data=b"new"), member("l", tarfile.SYMTYPE, "a")
    )
    (tmp_path / "got").mkdir()
    (tmp_path / "got/a").write_bytes(b"old")
    for _ in range(2):
        assert unpack(archive, tmp_path / "got") == {"a": b"new", "l": b"new"}


names = st.lists(
    st.sampled_from(["a", "b", "..", ".", "", "~", "c d"]), min_size=1, max_size=5
).map("/".join)
members = st.tuples(
    names,
    st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE]),
    names,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(members, max_size=6))
@example([("a", tarfile.SYMTYPE, "a//a")])  # a link to itself, which `realpath` reads as /a
@example([("a", tarfile.SYMTYPE, "a"), ("b", tarfile.LNKTYPE, "a"), ("a", tarfile.SYMTYPE, "a")])
def test_nothing_ever_leaves(entries: list[tuple[str, bytes, str]]) -> None:
    """Whatever an archive holds, nothing outside the destination appears, and no link points out of it."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        archive = packed(
            base / "model.tar.gz",
            *(member(name, kind, link) for name, kind, link in entries if name),
        )
        root = base / "a/b/got"
        with suppress(TargetError):
            extract(archive, root)
        outside = {
            path.relative_to(base).as_posix()
            for path in base.rglob("*")
            if root not in path.parents
        }
        assert outside in ({"model.tar.gz"}, {"model.tar.gz", "a", "a/b", "a/b/got"})
        for path in root.rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(root)
