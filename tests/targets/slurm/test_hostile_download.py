"""Results that a hostile machine packs, or that break off: nothing leaves the folder, and it is all or nothing. Needs no
cluster."""

from __future__ import annotations

import io
import json
import os
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.errors import CloudtrainError, TargetError, TargetUnreachable
from cloudtrain.targets.slurm import runner
from cloudtrain.targets.slurm.runner import Runner
from cloudtrain.targets.slurm.shell import shell_script
from cloudtrain.targets.slurm.transfer import download


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that wrote three files."""
    for name in ("model", "checkpoint"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "a.pt").write_bytes(os.urandom(30_000))
    (tmp_path / "run" / "model" / "b.pt").write_bytes(b"b")
    places = {name: str(tmp_path / "run" / name) for name in ("model", "checkpoint")}
    (tmp_path / "run" / "outputs.json").write_text(json.dumps(places))
    return tmp_path / "run"


def copied(run: Path, place: str = "") -> list[str]:
    """Download into `home/copy`, and return what lies below `home` then."""
    home = run.parent / "home"
    (home / "copy").mkdir(parents=True, exist_ok=True)
    download(Runner(None, dict(os.environ), run.parent), str(run), place, home / "copy")
    return left(run)


def answer_with(monkeypatch: pytest.MonkeyPatch, tar: str) -> None:
    """Run another script in place of the one that packs the files."""
    monkeypatch.setattr(
        runner, "shell_script", lambda name: tar if name == "tar" else shell_script(name)
    )


def left(run: Path) -> list[str]:
    """What lies below `home`."""
    return sorted(
        str(path.relative_to(run.parent / "home")) for path in (run.parent / "home").rglob("*")
    )


def test_whole(run: Path) -> None:
    """As it is without an attacker."""
    (run / "logs").mkdir()
    files = ["copy/checkpoint/a.pt", "copy/model/a.pt", "copy/model/b.pt"]
    assert [path for path in copied(run) if path.endswith(".pt")] == files


@pytest.mark.parametrize("place", ["", "model"])
@pytest.mark.parametrize(
    ("after", "code"),
    [(1, 2), (700, 2), (5_000, 2), (20_000, 255), (30_800, 255), (20_000, 0), (5_000, 0)],
)
def test_a_copy_that_breaks_off(
    run: Path, monkeypatch: pytest.MonkeyPatch, place: str, after: int, code: int
) -> None:
    """Anywhere in the stream, whatever the exit code says: an error, and no file."""
    answer_with(monkeypatch, f"({shell_script('tar')}) | head -c {after}; exit {code}")
    with pytest.raises(TargetUnreachable if code == 0 else TargetError):
        copied(run, place)
    assert not [path for path in (run.parent / "home").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/tmp/cloudtrain-evil", "..\\evil", "link/evil"]
)
@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_names_are_not_trusted(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes
) -> None:
    """Nothing is written outside of the folder, through a link that the same archive makes neither."""
    with tarfile.open(run / "evil.tar", "w") as archive:
        link = tarfile.TarInfo("./link")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(link)
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = (
            kind,
            "../../x",
            4 if kind == tarfile.REGTYPE else 0,
        )
        archive.addfile(member, io.BytesIO(b"evil"))
    answer_with(monkeypatch, f"cat {run}/evil.tar")
    with suppress(CloudtrainError):
        copied(run, "model")
    assert set(left(run)) <= {"copy", "copy/link", "copy/link/evil", "copy/..\\evil"}
    assert not (run.parent / "home/copy/link").is_symlink()
    assert not [*run.parent.glob("evil"), *Path("/tmp").glob("cloudtrain-evil")]
