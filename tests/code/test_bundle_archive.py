"""The archive: the same content gives the same bytes, and what comes out is what went in."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import stat
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.code.content import hash_lines, line_of
from cloudtrain.code.tree import SourceChanged, Tree, scan
from cloudtrain.code.unpack import DamagedBundle, unpack, verify
from cloudtrain.errors import UsageError
from tests.examples import examples

Content = dict[str, tuple[bytes, bool]]
"""Path to bytes and executable bit."""

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12
).filter(lambda name: not name.startswith((".", "cloudtrain")))
paths = (
    st.lists(names, min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: len(os.fsencode(path)) < 200)
)
trees = st.dictionaries(paths, st.tuples(st.binary(max_size=2000), st.booleans()), max_size=8)


def build(root: Path, content: Content, seed: int = 0) -> Path:
    """Make the folder, in an order, with times and permissions that depend on the seed."""
    rng = random.Random(seed)
    items = sorted(content.items())
    rng.shuffle(items)
    root.mkdir()
    for path, (data, executable) in items:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(
            rng.choice([0o700, 0o755, 0o744])
            if executable
            else rng.choice([0o600, 0o644, 0o664, 0o655])
        )
        os.utime(target, (rng.randrange(2**31), rng.randrange(2**31)))
    return root


def fits(content: Content) -> Content:
    """The paths of which none is both a file and a folder, and that stay apart where case does not count."""
    folders = {
        "/".join(path.split("/")[:depth])
        for path in content
        for depth in range(1, path.count("/") + 1)
    }
    return {path: value for path, value in content.items() if path not in folders}


def inside(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def written(tree: Tree) -> bytes:
    """The archive's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        tree.write(Path(folder, "out.tar.gz"))
        assert inside(Path(folder)) == ["out.tar.gz"]
        return Path(folder, "out.tar.gz").read_bytes()


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=trees, seed=st.integers(1, 2**32))
def test_the_same_content_gives_the_same_bytes(content: Content, seed: int) -> None:
    """Order of creation, times and permissions other than the executable bit leave no trace."""
    content = fits(content)
    with tempfile.TemporaryDirectory() as folder:
        first = scan(build(Path(folder, "one"), content))
        second = scan(build(Path(folder, "two"), content, seed))
        assert first.identity == second.identity
        assert written(first) == written(second)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=trees)
def test_what_was_packed_is_unpacked(content: Content) -> None:
    """Unpacking gives every path, byte and executable bit back, and a scan of it gives the same name."""
    content = fits(content)
    with tempfile.TemporaryDirectory() as folder:
        tree = scan(build(Path(folder, "src"), content))
        tree.write(Path(folder, "out.tar.gz"))
        out = Path(folder, "out")
        unpack(Path(folder, "out.tar.gz"), out, tree.sha256)
        files = [
            path
            for path in out.rglob("*")
            if path.is_file() and "cloudtrain" not in path.relative_to(out).parts
        ]
        left_out = [item.path for item in tree.ignored]
        assert {
            path: value
            for path, value in content.items()
            if not any(path == item or path.startswith(item + "/") for item in left_out)
        } == {
            path.relative_to(out).as_posix(): (
                path.read_bytes(),
                bool(path.stat().st_mode & stat.S_IXUSR),
            )
            for path in files
        }
        (out / "cloudtrain").rename(Path(folder, "runtime"))
        assert scan(out).sha256 == tree.sha256


def test_every_member_has_the_same_owner_time_and_mode(tmp_path: Path) -> None:
    """Nothing of the machine is in the archive: no user, no time, no group permissions."""
    build(tmp_path / "src", {"a.py": (b"1", False), "run.sh": (b"2", True)}, seed=3)
    (tmp_path / "src/link").symlink_to("a.py")
    with tarfile.open(fileobj=io.BytesIO(written(scan(tmp_path / "src")))) as tar:
        members = {member.name: member for member in tar}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {
        (0, 0, "", "", 315532800)
    }
    assert [members[name].mode for name in ("a.py", "run.sh", "link")] == [0o644, 0o755, 0o777]
    assert list(members) == sorted(members)


def test_the_gzip_header_names_nothing(tmp_path: Path) -> None:
    """No file name and no time in the header; one member that every gzip reads, checksum and length right."""
    build(tmp_path / "src", {"noise.bin": (random.Random(1).randbytes(3_500_000), False)})
    data = written(scan(tmp_path / "src"))
    assert data[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    stream = zlib.decompressobj(31)
    plain = stream.decompress(data)
    assert stream.eof
    assert stream.unused_data == b""
    assert len(plain) % 10240 == 0
    assert gzip.decompress(data) == plain


def test_compression_does_not_depend_on_the_number_of_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One processor and eight write the same bytes."""
    build(tmp_path / "src", {"text.py": (b"import torch\n" * 400_000, False)})
    tree = scan(tmp_path / "src")
    packed = set()
    for count in (1, 8):
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda _, count=count: set(range(count)), raising=False
        )
        packed.add(written(tree))
    assert len(packed) == 1


def test_without_isal_the_standard_library_writes_the_same_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where isal has no wheel, the bundle is made all the same: other compressed bytes, same name, same content."""
    build(tmp_path / "src", {"text.py": (b"import torch\n" * 200_000, False)})
    tree = scan(tmp_path / "src")
    fast = written(tree)
    monkeypatch.setitem(sys.modules, "isal", None)
    plain = written(tree)
    assert plain != fast
    assert gzip.decompress(plain) == gzip.decompress(fast)


def test_the_systems_tar_reads_it(tmp_path: Path) -> None:
    """Long, odd and non-UTF-8 names come out of GNU tar as they went in."""
    odd = [
        "a b",
        "-rf",
        "two\nlines",
        "x" * 120 + "/" + "y" * 120,
        "ünï",
        os.fsdecode(b"\xff\xfe"),
        "'\"$(id)",
    ]
    build(tmp_path / "src", {name: (name[:5].encode("utf-8", "replace"), False) for name in odd})
    tree = scan(tmp_path / "src")
    tree.write(tmp_path / "out.tar.gz")
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-xzf", tmp_path / "out.tar.gz", "-C", tmp_path / "gnu"], check=True)
    unpack(tmp_path / "out.tar.gz", tmp_path / "ours", tree.sha256)
    for place in ("gnu", "ours"):
        for name in odd:
            assert (tmp_path / place / name).read_bytes() == (tmp_path / "src" / name).read_bytes()


def overwrite(file: Path) -> None:
    """Other bytes, as many as before."""
    file.write_bytes(b"X" * file.stat().st_size)


def grow(file: Path) -> None:
    """The same bytes and one more."""
    file.write_bytes(file.read_bytes() + b"1")


def shrink(file: Path) -> None:
    """One byte fewer."""
    file.write_bytes(file.read_bytes()[:-1])


def become_a_link(file: Path) -> None:
    """The same bytes, but through a link to elsewhere."""
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")


@pytest.mark.parametrize("size", [1, 5_000, 1 << 20, (1 << 20) + 5])
@pytest.mark.parametrize("change", [overwrite, grow, shrink, become_a_link, Path.unlink])
def test_a_file_that_changes_after_the_scan_is_noticed(
    tmp_path: Path, change: Callable[[Path], object], size: int
) -> None:
    """An archive is never written under a name that does not fit it; nothing is left behind."""
    build(tmp_path / "src", {"train.py": (b"a" * size, False)})
    tree = scan(tmp_path / "src")
    change(tmp_path / "src/train.py")
    (tmp_path / "out").mkdir()
    with pytest.raises(SourceChanged, match=r"`train\.py` changed") as caught:
        tree.write(tmp_path / "out/bundle.tar.gz")
    assert caught.value.hint
    assert inside(tmp_path / "out") == []


def test_a_failed_write_leaves_the_archive_that_was_there(tmp_path: Path) -> None:
    """The old archive stays whole until the new one is."""
    build(tmp_path / "src", {"train.py": (b"1", False)})
    tree = scan(tmp_path / "src")
    out = tmp_path / "made/here/bundle.tar.gz"
    tree.write(out)
    before = out.read_bytes()
    grow(tmp_path / "src/train.py")
    with pytest.raises(SourceChanged):
        tree.write(out)
    assert out.read_bytes() == before
    assert inside(out.parent) == ["bundle.tar.gz"]


# The other side


def test_unpack_wants_an_empty_place(tmp_path: Path) -> None:
    """An empty folder is filled; a folder with something in it is left alone."""
    build(tmp_path / "src", {"train.py": (b"1", False)})
    tree = scan(tmp_path / "src")
    tree.write(tmp_path / "out.tar.gz")
    (tmp_path / "empty").mkdir()
    unpack(tmp_path / "out.tar.gz", tmp_path / "empty", tree.sha256)
    assert (tmp_path / "empty/train.py").read_bytes() == b"1"
    with pytest.raises(UsageError, match="exists already"):
        unpack(tmp_path / "out.tar.gz", tmp_path / "src", tree.sha256)
    assert inside(tmp_path / "src") == ["train.py"]
    assert inside(tmp_path) == ["empty", "out.tar.gz", "src"]


@pytest.mark.parametrize("damage", [slice(0, -9), slice(0, 2000), slice(5, None), slice(0, 0)])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, damage: slice) -> None:
    """A cut archive is an error, not half a folder."""
    build(tmp_path / "src", {"noise.bin": (random.Random(1).randbytes(100_000), False)})
    tree = scan(tmp_path / "src")
    (tmp_path / "bad.tar.gz").write_bytes(written(tree)[damage])
    with pytest.raises(DamagedBundle, match="cannot be read"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "out", tree.sha256)
    with pytest.raises(DamagedBundle, match="cannot be read"):
        verify(tmp_path / "bad.tar.gz", tree.sha256)
    assert inside(tmp_path) == ["bad.tar.gz", "src"]


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """The checksum at the end of the stream is read."""
    build(tmp_path / "src", {"a.py": (b"1", False)})
    tree = scan(tmp_path / "src")
    data = bytearray(written(tree))
    data[-8] ^= 1
    (tmp_path / "bad.tar.gz").write_bytes(data)
    with pytest.raises(DamagedBundle, match="cannot be read"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "out", tree.sha256)


def test_another_bundle_under_the_name_is_noticed(tmp_path: Path) -> None:
    """Whole, well-formed, and not what was asked for: one byte, one name, one bit or one link is enough."""
    build(tmp_path / "src", {"a.py": (b"1", False)})
    wanted = scan(tmp_path / "src").sha256
    changes: dict[str, Content] = {
        "byte": {"a.py": (b"2", False)}, "name": {"b.py": (b"1", False)}, "bit": {"a.py": (b"1", True)},
        "more": {"a.py": (b"1", False), "b.py": (b"", False)}, "less": {},
    }  # fmt: skip
    for name, content in changes.items():
        tree = scan(build(tmp_path / name, content))
        tree.write(tmp_path / f"{name}.tar.gz")
        verify(tmp_path / f"{name}.tar.gz", tree.sha256)
        with pytest.raises(DamagedBundle, match="its content does not match"):
            verify(tmp_path / f"{name}.tar.gz", wanted)
        with pytest.raises(DamagedBundle, match="its content does not match"):
            unpack(tmp_path / f"{name}.tar.gz", tmp_path / "out", wanted)
    assert not (tmp_path / "out").exists()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A member that a hostile archive might hold."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("/tmp/evil")],
        [member("a/../../evil")],
        [member("a//b")],
        [member("link", tarfile.SYMTYPE, "/etc/passwd")],
        [member("link", tarfile.SYMTYPE, "..")],
        [member("a/link", tarfile.SYMTYPE, "../../x")],
        [member("a/link", tarfile.SYMTYPE, "b/../../../x")],
        [member("d", tarfile.SYMTYPE, "a"), member("d/evil")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("null", tarfile.CHRTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a/b")],
    ],
    ids=lambda members: "+".join(f"{item.name}>{item.linkname}" for item in members),
)
def test_a_hostile_archive_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    """Nothing outside the folder is written or reachable, whoever made the archive, also where the hash is right."""
    lines, empty = list[bytes](), hashlib.sha256().hexdigest()
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        for item in members:
            tar.addfile(item)
            is_link = item.issym()
            lines.append(
                line_of(item.name, target=item.linkname) if is_link else line_of(item.name, empty)
            )
    with pytest.raises(DamagedBundle):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "deep/out", hash_lines(lines))
    assert inside(tmp_path) == ["bad.tar.gz"]


def test_unpack_imports_the_standard_library_only(tmp_path: Path) -> None:
    """The supervisor unpacks without pydantic and without the side that packs."""
    build(tmp_path / "src", {"a.py": (b"1", False)})
    tree = scan(tmp_path / "src")
    tree.write(tmp_path / "a.tar.gz")
    code = (
        "import sys; from pathlib import Path; from cloudtrain.code.unpack import unpack\n"
        "unpack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])\n"
        "print(sorted(m for m in sys.modules if m.startswith(('cloudtrain', 'pydantic', 'isal'))))"
    )
    command = [sys.executable, "-c", code, tmp_path / "a.tar.gz", tmp_path / "out", tree.sha256]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ours = ["", ".code", ".code.content", ".code.unpack", ".system", ".system.staging"]
    assert done.stdout == f"{[f'cloudtrain{name}' for name in ours]}\n"
