"""A checkpoint is whole or it is not there: whatever was killed, cut or damaged, the newest whole one is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudtrain.runtime import Checkpoints, SetupError

STATE = {"weights": [0.5, 1.5], "step": 3, "name": "net", "nested": {"none": None, "yes": True}}


class PowerCut(Exception):
    """Stands for a process that ends in the middle of a save."""


@pytest.fixture(autouse=True)
def _without_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most facts do not depend on how a state becomes bytes, so plain data does."""
    if request.node.get_closest_marker("torch") is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)


def saved_steps(folder: Path) -> list[str]:
    """Names in the folder, oldest first."""
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """State and step come back."""
    checkpoints = Checkpoints(tmp_path / "new")
    assert checkpoints.load() is None
    path = checkpoints.save(STATE, 3)
    assert path == tmp_path / "new" / "000001-step-3"
    assert Checkpoints(tmp_path / "new").load() == (STATE, 3)


def test_two_runs_in_one_folder_are_told_so(tmp_path: Path) -> None:
    """The other run clears away what this one is writing, as it would what a killed run has left."""
    with pytest.raises(SetupError, match="no checkpoint can be written to") as caught:
        Checkpoints(tmp_path).save_sharded(lambda _: Checkpoints(tmp_path).save(STATE, 4), 3)
    assert "give each run a folder of its own" in str(caught.value.hint)
    assert saved_steps(tmp_path) == ["000001-step-4"]


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank calls `save`; the others write nothing."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Checkpoints(tmp_path).save(STATE, 1) is None
    assert saved_steps(tmp_path) == []


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher says how many; older ones go after the new one is in place."""
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", "2")
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20, 100):
        checkpoints.save(STATE, step)
    assert saved_steps(tmp_path) == ["000002-step-20", "000003-step-100"]


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_keeping_none_is_an_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that keeps no checkpoint could not resume."""
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", text)
    with pytest.raises(SetupError):
        Checkpoints(tmp_path)


def test_newest_means_saved_last(tmp_path: Path) -> None:
    """A run started afresh in an old folder continues from its own save, not from a higher step of the past."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save("old", 100)
    checkpoints.save("fresh", 5)
    assert checkpoints.load() == ("fresh", 5)
    checkpoints.save("fresh", 5)
    assert saved_steps(tmp_path) == ["000002-step-5", "000003-step-5"]


@pytest.fixture(scope="module")
def two_saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with step 1 and step 2."""
    folder = tmp_path_factory.mktemp("two")
    checkpoints = Checkpoints(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch", raising=False)
        checkpoints.save("first", 1)
        checkpoints.save("second" * 50, 2)
    return folder


@given(data=st.data())
@settings(deadline=None)
def test_a_damaged_checkpoint_is_never_loaded(
    two_saves: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, with any byte changed or any file gone, step 2 is skipped and step 1 is loaded."""
    folder = tmp_path_factory.mktemp("damaged") / "copy"
    shutil.copytree(two_saves, folder)
    victim = data.draw(st.sampled_from(sorted((folder / "000002-step-2").iterdir())))
    content = victim.read_bytes()
    damage = data.draw(st.sampled_from(["cut", "flip", "gone", "longer"]))
    if damage == "cut":
        victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    elif damage == "flip":
        # may still say the same, for example with other white space
        if victim.name == "checkpoint.json":
            content = content.replace(b'"crc32": [', b'"crc32": ["0",')
        place = data.draw(st.integers(0, len(content) - 1))
        victim.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    elif damage == "longer":
        victim.write_bytes(content + b"x")
    else:
        victim.unlink()
    assert Checkpoints(folder).load() == ("first", 1)


@pytest.mark.parametrize("block", [None, 16 << 20])
def test_checkpoints_of_earlier_versions_are_checked_and_loaded(
    two_saves: Path, tmp_path: Path, block: int
) -> None:
    """Their manifests contain SHA-256, of whole files or of blocks."""
    folder = tmp_path / "copy"
    shutil.copytree(two_saves, folder)
    (state,) = (
        path for path in (folder / "000002-step-2").iterdir() if path.name != "checkpoint.json"
    )
    digest = hashlib.sha256(state.read_bytes()).hexdigest()
    entry = {
        "size": state.stat().st_size,
        **({"sha256": digest} if not block else {"block": block, "sha256": [digest]}),
    }
    manifest = json.loads((state.parent / "checkpoint.json").read_text())
    (state.parent / "checkpoint.json").write_text(
        json.dumps({**manifest, "files": {state.name: entry}})
    )
    assert Checkpoints(folder).load() == ("second" * 50, 2)
    content = state.read_bytes()
    state.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    assert Checkpoints(folder).load() == ("first", 1)


def test_skipping_is_said(
    two_saves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person sees on stderr which checkpoint was not used."""
    folder = tmp_path / "copy"
    shutil.copytree(two_saves, folder)
    torn = folder / "000002-step-2" / "state.pickle"
    torn.write_bytes(torn.read_bytes()[:-1])
    found = Checkpoints(folder).latest()
    assert found is not None
    assert found.step == 1
    assert capsys.readouterr().err == f"cloudtrain: skipped the torn checkpoint `{torn.parent}`\n"


def test_a_save_cleans_up_torn_and_half_written_ones(two_saves: Path, tmp_path: Path) -> None:
    """What a killed run left does not stay, and never counts as one of the kept."""
    folder = tmp_path / "copy"
    shutil.copytree(two_saves, folder)
    (folder / "000002-step-2" / "checkpoint.json").unlink()
    (folder / ".writing-3").mkdir()
    Checkpoints(folder, keep=2).save("third", 3)
    assert saved_steps(folder) == ["000001-step-1", "000003-step-3"]


CALLS = ["fsync", "rename", "mkdir", "open"]


@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_system_call_the_old_or_the_new_is_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every single fsync, rename, mkdir and open of a save: stop there, and the next run loads a whole state."""
    survived = set()
    for stop_at in range(1, 40):
        folder = tmp_path / str(stop_at)
        Checkpoints(folder, keep=1).save("old", 1)
        with monkeypatch.context() as patch:
            stopped = _cut_power(patch, call, stop_at)
            with contextlib.suppress(PowerCut):
                Checkpoints(folder, keep=1).save("new", 2)
        found = Checkpoints(folder, keep=1).load()
        assert found in {("old", 1), ("new", 2)}
        survived.add(found)
        if not stopped():
            break
    assert ("new", 2) in survived
    assert len(survived) == 2


def _cut_power(patch: pytest.MonkeyPatch, call: str, stop_at: int) -> Callable[[], bool]:
    """Make the n-th `call` raise; the result tells whether it came to that."""
    owner: Any = os if call == "fsync" else Path
    real = getattr(owner, call)
    count = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == stop_at:
            raise PowerCut
        return real(*args, **kwargs)

    patch.setattr(owner, call, counted)
    return lambda: count >= stop_at


def test_a_state_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that survives a power cut: file, manifest, folder, rename, parent folder."""
    order: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(handle: int) -> None:
        order.append("sync " + Path(f"/proc/self/fd/{handle}").resolve().name)
        fsync(handle)

    def note_rename(self: Path, target: Path) -> Path:
        order.append(f"rename to {target.name}")
        return rename(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name open files")
    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    Checkpoints(tmp_path / "all").save(STATE, 7)
    assert order == [
        "sync state.pickle",
        "sync checkpoint.json",
        "sync .writing-7",
        "rename to 000001-step-7",
        "sync all",
    ]


def test_a_sharded_save_is_whole_or_absent_too(tmp_path: Path) -> None:
    """Files that the ranks write themselves are covered by the same checksums."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_sharded(lambda folder: (folder / "rank0").write_bytes(b"one"), 1)
    checkpoints.save_sharded(lambda folder: (folder / "rank0").write_bytes(b"two"), 2)
    newest = checkpoints.agree()
    assert newest is not None
    assert (newest.path / "rank0").read_bytes() == b"two"
    (newest.path / "rank0").write_bytes(b"tw0")
    older = checkpoints.agree()
    assert older is not None
    assert older.step == 1


class _Trap:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch trapped",)


def test_loading_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that would run a command when unpickled is refused."""
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save_sharded(
        lambda folder: (folder / "state.pickle").write_bytes(pickle.dumps(_Trap())), 1
    )
    with pytest.raises(SetupError, match="neither plain data nor a numpy array"):
        checkpoints.load()
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("value", [1 + 2j, deque([1]), Path("x"), _Trap()])
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, value: object) -> None:
    """The save is refused, naming the type, and the older checkpoint stays for the next run."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(STATE, 1)
    with pytest.raises(SetupError, match="neither plain data nor a numpy array"):
        checkpoints.save({**STATE, "more": value}, 2)
    assert Checkpoints(tmp_path).load() == (STATE, 1)


class _Counter:
    """Counts steps as numpy and TensorFlow do: an integer, but not an `int`."""

    def __index__(self) -> int:
        return 5


def test_the_step_is_a_whole_number_whatever_counted_it(tmp_path: Path) -> None:
    """A numpy or TensorFlow integer is saved, found again as a plain number, and pruned as any other."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(STATE, _Counter())
    assert checkpoints.load() == (STATE, 5)
    checkpoints.save_sharded(_no_shard, _Counter())
    assert saved_steps(tmp_path) == ["000002-step-5"]


def _no_shard(_folder: Path) -> None:
    """Nothing to write."""


@pytest.mark.parametrize("step", [10.0, -1, "3", None])
def test_what_is_no_step_is_refused_before_anything_is_written(tmp_path: Path, step: Any) -> None:
    """A checkpoint whose name nobody could read back would never be loaded."""
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(SetupError, match="is not a whole number of at least 0"):
        checkpoints.save(STATE, step)
    with pytest.raises(SetupError, match="is not a whole number of at least 0"):
        checkpoints.save_sharded(_no_shard, step)
    assert saved_steps(tmp_path) == []


@pytest.mark.torch
def test_tensors_and_optimizers_come_back(tmp_path: Path) -> None:
    """With torch loaded, the file is what plain `torch.load` opens, and weights_only is enough."""
    import torch

    state = {
        "w": torch.arange(4.0),
        "group": [{"lr": 0.1, "betas": (0.9, 0.99)}],
        "n": torch.tensor(3),
    }
    path = Checkpoints(tmp_path).save(state, 1)
    assert path is not None
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert torch.equal(loaded.state["w"], state["w"])
    assert loaded.state["group"] == state["group"]
    assert torch.load(path / "state.pt", weights_only=True)["n"] == 3


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["numpy.float64", "pathlib.Path", "torch.nn.Identity"])
def test_what_torch_would_not_load_is_not_saved(tmp_path: Path, kind: str) -> None:
    """Beside tensors too: the save is refused, naming the type, and the older checkpoint stays."""
    import torch

    module, _, name = kind.rpartition(".")
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save({"w": torch.zeros(2)}, 1)
    with pytest.raises(SetupError, match=r"neither a tensor nor plain data") as caught:
        checkpoints.save({"w": torch.ones(2), "best": getattr(import_module(module), name)()}, 2)
    assert "`model.state_dict()`" in str(caught.value.hint)
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded.step == 1
    assert torch.equal(loaded.state["w"], torch.zeros(2))


@pytest.mark.torch
def test_an_object_in_a_checkpoint_is_explained(tmp_path: Path) -> None:
    """A whole checkpoint that holds an object is an error with a hint, not a torn checkpoint."""
    import torch

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_sharded(lambda folder: torch.save(torch.nn.Identity(), folder / "state.pt"), 1)
    with pytest.raises(SetupError, match=r"save `model.state_dict\(\)`"):
        checkpoints.load()
