"""Checkpoints in parts: hashed while they are written, read once on each instance, and never by running code."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain import runtime
from cloudtrain.runtime import atomic, sharded
from tests.deadlines import DEADLINE
from tests.ports import free_port

pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).parents[2]


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

    return {
        "weights": torch.full((600_000,), value),
        "small": {"bias": torch.full((3,), value)},
        "step": int(value),
    }


def saved(value: float = 2.0) -> Path:
    """A checkpoint."""
    path = runtime.Checkpoints("checkpoint").save_sharded(
        lambda folder: sharded.write_shards(state_of(value), folder), int(value)
    )
    assert path is not None
    return path


def republish(path: Path) -> None:
    """What somebody does who changes a checkpoint and has read how it is checked."""
    files = atomic.entries(
        path, [name for name in atomic.file_names(path) if name != atomic.MANIFEST]
    )
    manifest = json.loads((path / atomic.MANIFEST).read_text())
    (path / atomic.MANIFEST).write_text(json.dumps({**manifest, "files": files}))


def test_what_was_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors into the tensors that are there, other values in place; the manifest comes from hashing while writing."""
    monkeypatch.setattr(atomic, "BLOCK", 1 << 20)  # the tensor has several
    read: list[str] = []
    entries = atomic.entries
    monkeypatch.setattr("cloudtrain.runtime.checkpoints.entries", lambda path, names: (
        read.extend(names), entries(path, names))[1])  # fmt: skip
    path = saved()
    assert read == []
    assert atomic.is_whole(path)
    found = state_of(0.0)
    assert (
        runtime.Checkpoints("checkpoint").load_sharded(
            lambda folder: sharded.read_shards(found, folder)
        )
        is not None
    )
    assert found["step"] == 2
    assert bool((found["weights"] == 2).all())
    assert found["small"]["bias"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("change", [{"weights": 5}, {"more": 5}])
def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(change: dict[str, int]) -> None:
    """A tensor has another shape, or is not there."""
    import torch

    path, state = saved(), state_of(0.0)
    state |= {name: torch.zeros(size) for name, size in change.items()}
    with pytest.raises(runtime.SetupError, match=r"step-2` is of another model: .*(weights|more)"):
        sharded.read_shards(state, path)


def test_an_error_of_the_disk_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells it to one sync only, which here is an early one, beside the writing."""
    sync, told = os.fsync, []

    def once(handle: int) -> None:
        told.append(handle)
        if len(told) == 1:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(sharded, "_SYNCED_AT_ONCE", 1000)
    monkeypatch.setattr(os, "fsync", once)
    with pytest.raises(runtime.SetupError, match="No space left on device"):
        saved()
    assert [path.name for path in Path("checkpoint").iterdir()] == [".writing-2"]


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_a_byte_that_changed_is_seen(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """By who verifies, and by who reads: the older checkpoint is taken, and with none there is no training on a half."""
    monkeypatch.setattr(atomic, "BLOCK", 1 << 20)
    saved(1.0)
    path = saved()
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[{"start": 0, "middle": len(data) // 2, "end": -1}[place]] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    checkpoints, found = runtime.Checkpoints("checkpoint"), state_of(0.0)
    older = checkpoints.agree()
    assert older is not None
    assert checkpoints.load_sharded(lambda folder: sharded.read_shards(found, folder)) == older
    assert (found["step"], found["weights"].unique().tolist()) == (1, [1])
    shutil.rmtree(older.path)
    assert checkpoints.agree() is None
    with pytest.raises(runtime.SetupError, match="every checkpoint in `checkpoint` is damaged"):
        checkpoints.load_sharded(lambda folder: sharded.read_shards(found, folder))


def test_a_truncated_file_is_not_read() -> None:
    """Its length says enough."""
    path = saved()
    os.truncate(path / "__0_0.distcp", 100)
    checkpoints = runtime.Checkpoints("checkpoint")
    assert checkpoints.load_sharded(lambda _: pytest.fail("it was read")) is None


READER = """
import json, os, pathlib, sys, torch
from cloudtrain import runtime
from cloudtrain.runtime import atomic, sharded
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

atomic.BLOCK = 1 << 16
group = runtime.init_process_group("gloo")
mesh = init_device_mesh("cpu", (group.world_size,))

def state(value):
    whole = torch.arange(400_000.0).reshape(400, 1000) * value
    return {"shared": whole.clone(), "cut": distribute_tensor(whole, mesh, [Shard(0)]), "step": value}

checkpoints = runtime.Checkpoints("checkpoint")
if sys.argv[1] == "save":
    checkpoints.save_sharded(lambda folder: sharded.write_shards(state(3), folder), 3)
else:
    read, opened, plain = [], [], sharded._read_block
    def counting(folder, files, block):
        data = plain(folder, files, block)
        read.append((*block, len(data) - 1))
        return data
    sharded._read_block = counting
    sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event == "open" else None)
    found, wanted = state(0), state(3)
    assert checkpoints.load_sharded(lambda folder: sharded.read_shards(found, folder)).step == 3
    parts = [path for path in opened if path.endswith((".distcp", ".metadata"))]
    assert len(parts) == len(read)  # nobody else has opened them
    assert found["step"] == 3 and bool((found["shared"] == wanted["shared"]).all())
    assert bool((found["cut"].to_local() == wanted["cut"].to_local()).all())
    node = runtime.detect_environment().node_rank
    pathlib.Path(f"read{group.rank}.json").write_text(json.dumps([node, read]))
runtime.destroy_process_group()
"""


def start_ranks(count: int, instances: int, what: str) -> None:
    """As many processes, shared out to instances that are simulated by what a launcher says to each."""
    each = count // instances
    Path("reader.py").write_text(READER)
    usual = {
        "PATH": "/usr/bin:/bin",
        "HOME": ".",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    started = []
    for rank in range(count):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank % each,
            "LOCAL_WORLD_SIZE": each,
            "GROUP_RANK": rank // each,
        }
        variables = {**usual, **{name: str(value) for name, value in place.items()}}
        started.append(subprocess.Popen([sys.executable, "reader.py", what], env=variables))
    assert [process.wait(DEADLINE) for process in started] == [0] * count


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "instances"), [(2, 1), (4, 2)])
def test_an_instance_reads_each_byte_once(processes: int, instances: int) -> None:
    """Whatever its processes share or have of their own: two wrote; two on one instance or on two with two each read."""
    start_ranks(2, 1, "save")
    start_ranks(processes, instances, "load")
    (path,) = Path("checkpoint").glob("0*")
    size = sum(file.stat().st_size for file in path.iterdir() if file.name != atomic.MANIFEST)
    reports = [json.loads(Path(f"read{rank}.json").read_text()) for rank in range(processes)]
    for instance in range(instances):
        here = [report for report in reports if report[0] == instance]
        lengths = {(name, number): length for _, read in here for name, number, length in read}
        assert len(lengths) == sum(len(read) for _, read in here)
        assert all(read for _, read in here)  # each of them took a part
        assert sum(lengths.values()) == size if instances == 1 else sum(lengths.values()) < size


def test_the_ranks_of_an_instance_share_out_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they read each once, and about as much each."""
    files = {f"part{number}": {"size": size} for number, size in enumerate((7, 5, 4, 3, 2, 1))}
    shares = [atomic.share_of(files, rank, 3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    assert max(sum(entry["size"] for entry in share.values()) for share in shares) <= 8


def test_forged_metadata_runs_no_code() -> None:
    """A pickle in place of torch's metadata, with the right checksum, is refused by name."""
    path = saved()
    (path / sharded.METADATA).write_bytes(pickle.dumps(Malice()))
    republish(path)
    assert runtime.Checkpoints("checkpoint").agree() is not None
    with pytest.raises(
        runtime.SetupError, match=r"data that this script never saves: it names `posix.mkdir`"
    ):
        sharded.read_shards(state_of(0.0), path)
    assert not Path("planted").exists()


@pytest.mark.parametrize("name", ["step", "weights"])
def test_forged_values_run_no_code(name: str) -> None:
    """A tensor, and the value beside the tensors, which torch reads as a pickle."""
    import torch

    clean, forged = io.BytesIO(), io.BytesIO()
    torch.save(2, clean)
    torch.save(Malice(), forged)
    path = saved()
    metadata = sharded.parse_metadata((path / sharded.METADATA).read_bytes(), path)
    (index,) = [index for index in metadata.storage_data if index.fqn == name]
    info = metadata.storage_data[index]
    data = (path / "__0_0.distcp").read_bytes()
    info.offset, info.length = len(data), len(forged.getvalue())
    (path / "__0_0.distcp").write_bytes(data + forged.getvalue())
    (path / sharded.METADATA).write_bytes(pickle.dumps(metadata))
    assert zipfile.is_zipfile(forged)
    with pytest.raises(sharded.TornError):
        sharded.read_shards(state_of(0.0), path)
    republish(path)
    with pytest.raises(runtime.SetupError, match="data that this script never saves"):
        sharded.read_shards(state_of(0.0), path)
    assert not Path("planted").exists()


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (0, 0), (0, 1 << 40), (1 << 40, 10)])
def test_a_forged_span_is_refused(offset: int, length: int) -> None:
    """No byte is read that the file does not have."""
    path = saved()
    metadata = sharded.parse_metadata((path / sharded.METADATA).read_bytes(), path)
    info = next(iter(metadata.storage_data.values()))
    info.offset, info.length = offset, length
    (path / sharded.METADATA).write_bytes(pickle.dumps(metadata))
    republish(path)
    with pytest.raises(runtime.SetupError, match="it reads"):
        sharded.read_shards(state_of(0.0), path)


def test_a_forged_place_is_refused() -> None:
    """Nothing outside of the checkpoint is read."""
    path = saved()
    metadata = sharded.parse_metadata((path / sharded.METADATA).read_bytes(), path)
    next(iter(metadata.storage_data.values())).relative_path = "../../secret"
    (path / sharded.METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(runtime.SetupError, match=r"it reads `\.\./\.\./secret`"):
        sharded.parse_metadata((path / sharded.METADATA).read_bytes(), path)
