"""Checkpoints in parts: hashed while they are written, read once on each instance, and never by running code."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain import runtime
from cloudtrain.runtime import atomic, sharded

pytestmark = pytest.mark.torch


class Malice:
    """What a forged pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("planted",)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process with a group, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    runtime.init_process_group("gloo")
    yield
    runtime.destroy_process_group()


def state_of(value: float) -> dict[str, Any]:
    """Tensors large enough to be hashed beside the writing, and values that are none."""
    import torch

    return {"weights": torch.full((600_000,), value), "small": {"bias": torch.full((3,), value)}, "step": int(value)}


def saved(value: float = 2.0) -> Path:
    """A checkpoint."""
    path = runtime.Checkpoints("checkpoint").save_sharded(
        lambda folder: sharded.write_shards(state_of(value), folder), int(value)
    )
    assert path is not None
    return path


def republish(path: Path) -> None:
    """What somebody does who changes a checkpoint and has read how it is checked."""
    files = atomic.entries(path, [name for name in atomic.file_names(path) if name != atomic.MANIFEST])
    manifest = json.loads((path / atomic.MANIFEST).read_text())
    (path / atomic.MANIFEST).write_text(json.dumps({**manifest, "files": files}))


def test_what_was_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors into the tensors that are there, other values in place; the manifest comes from hashing while writing."""
    read: list[Path] = []
    digest = atomic.digest
    monkeypatch.setattr(atomic, "digest", lambda path: (read.append(path), digest(path))[1])
    path = saved()
    assert read == []
    assert atomic.is_whole(path)
    assert sorted(file.name for file in read) == [".metadata", "__0_0.distcp"]
    found = state_of(0.0)
    sharded.read_shards(found, path)
    assert found["step"] == 2
    assert bool((found["weights"] == 2).all())
    assert found["small"]["bias"].tolist() == [2, 2, 2]


def test_a_byte_that_changed_is_seen() -> None:
    """The digest of the stream is that of the file."""
    path = saved()
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    assert runtime.Checkpoints("checkpoint").agree() is None


def test_the_ranks_of_an_instance_share_out_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they read each once, and about as much each."""
    files = {f"part{number}": {"size": size} for number, size in enumerate((7, 5, 4, 3, 2, 1))}
    shares = [atomic.share_of(files, rank, 3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    assert max(sum(entry["size"] for entry in share.values()) for share in shares) <= 8


def test_forged_metadata_runs_no_code() -> None:
    """A pickle in place of torch's metadata, with the right digest, is refused by name."""
    path = saved()
    (path / sharded.METADATA).write_bytes(pickle.dumps(Malice()))
    republish(path)
    assert runtime.Checkpoints("checkpoint").agree() is not None
    with pytest.raises(runtime.SetupError, match=r"no checkpoint of this script holds: it names `posix.mkdir`"):
        sharded.read_shards(state_of(0.0), path)
    assert not Path("planted").exists()


def test_forged_values_run_no_code() -> None:
    """The value beside the tensors, which torch reads as a pickle."""
    import torch

    clean, forged = io.BytesIO(), io.BytesIO()
    torch.save(2, clean)
    torch.save(Malice(), forged)
    path = saved()
    metadata = sharded.read_metadata(path)
    (index,) = [index for index in metadata.storage_data if index.fqn == "step"]
    info = metadata.storage_data[index]
    data = (path / "__0_0.distcp").read_bytes()
    info.offset, info.length = len(data), len(forged.getvalue())
    (path / "__0_0.distcp").write_bytes(data + forged.getvalue())
    (path / sharded.METADATA).write_bytes(pickle.dumps(metadata))
    assert zipfile.is_zipfile(forged)
    with pytest.raises(runtime.SetupError, match="no checkpoint of this script holds"):
        sharded.read_shards(state_of(0.0), path)
    assert not Path("planted").exists()


def test_a_forged_place_is_refused() -> None:
    """Nothing outside of the checkpoint is read."""
    path = saved()
    metadata = sharded.read_metadata(path)
    next(iter(metadata.storage_data.values())).relative_path = "../../secret"
    (path / sharded.METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(runtime.SetupError, match=r"it reads `\.\./\.\./secret`"):
        sharded.read_metadata(path)
