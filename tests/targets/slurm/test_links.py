"""Downloads of folders that hold links, and of runs without a list of outputs. Needs no cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloudtrain.errors import TargetError
from cloudtrain.system.processes import listening
from cloudtrain.targets.slurm.runner import Runner
from cloudtrain.targets.slurm.transfer import download


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that wrote a checkpoint."""
    folder = tmp_path / "run"
    (folder / "model" / "steps").mkdir(parents=True)
    (folder / "model" / "steps" / "10.pt").write_bytes(b"ten")
    (folder / "outputs.json").write_text(json.dumps({"model": str(folder / "model")}))
    return folder


def copied(run: Path, place: str = "model") -> dict[str, bytes]:
    """Download `place`, and return the content of each file."""
    target = run.parent / "copy"
    target.mkdir()
    download(Runner(None, dict(os.environ), run.parent), str(run), place, target)
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }


def test_a_file_of_several_names(run: Path) -> None:
    """A link to the last checkpoint, and a second name of the best one, are files as the checkpoint itself is."""
    (run / "model" / "last.pt").symlink_to("steps/10.pt")
    os.link(run / "model" / "steps" / "10.pt", run / "model" / "best.pt")
    (run / "model" / "all").symlink_to("steps")
    names = ("steps/10.pt", "last.pt", "best.pt", "all/10.pt")
    assert copied(run) == dict.fromkeys(names, b"ten")


@pytest.mark.parametrize("place", ["", "model/steps", "outputs/it's"])
def test_run_that_was_given_to_sbatch(run: Path, place: str) -> None:
    """A run of `--format sbatch` has no list of its outputs, and they are found all the same."""
    (run / "outputs.json").unlink()
    (run / "outputs" / "it's").mkdir(parents=True)
    (run / "outputs" / "it's" / "1").write_bytes(b"one")
    everything = {"model/steps/10.pt": b"ten", "outputs/it's/1": b"one"}
    assert (
        copied(run, place)
        == {"": everything, "model/steps": {"10.pt": b"ten"}, "outputs/it's": {"1": b"one"}}[place]
    )


@pytest.mark.parametrize("place", ["model", "model/steps"])
def test_links_to_nowhere(run: Path, place: str) -> None:
    """A link whose file is gone and a link to the folder above it are left out, and the files are copied."""
    steps = run / "model" / "steps"
    (steps / "gone.pt").symlink_to("9.pt")
    (steps / "above").symlink_to("..")
    (steps / "itself").symlink_to("itself")
    expected = "steps/10.pt" if place == "model" else "10.pt"
    assert set(copied(run, place)) == {expected}


def test_one_linked_file(run: Path) -> None:
    """A file that is a link, with a name that an option could have."""
    (run / "model" / "--last").symlink_to("steps/10.pt")
    assert copied(run, "model/--last") == {"--last": b"ten"}


IN = {
    "kept.pt": "../kept.pt",
    "it's\nsame.pt": "steps/10.pt",
    "chain.pt": "kept.pt",
    "round.pt": "steps/../../model/steps/10.pt",
    "other.pt": "../../scratch/state.pt",
    "folder": "../kept",
}
OUT = {
    "passwd": "/etc/passwd",
    "steps/up": "../../../key",
    "through": "home/key",
    "home": "../..",
    "steps/chain": "../passwd",
    "it's\nout": "/etc/passwd",
}


def test_links_out_of_the_run(run: Path) -> None:
    """Links to other places of the run are followed, also to an output elsewhere; others are named and left, as are
    what is no file and what lies below them."""
    scratch = run.parent / "scratch"
    for folder in (scratch, run / "kept"):
        folder.mkdir()
    for file in (scratch / "state.pt", run / "kept.pt", run / "kept/a.pt"):
        file.write_bytes(b"ten")
    (run.parent / "key").write_text("secret")
    (run / "mine").symlink_to(run.parent)
    (scratch.parent / "entrance").symlink_to("scratch")
    outputs = {
        "model": str(run / "model"),
        "checkpoint": str(scratch.parent / "entrance"),
        "outputs/mine": str(run / "mine"),
    }
    (run / "outputs.json").write_text(json.dumps(outputs))
    for link, target in {**IN, **OUT}.items():
        (run / "model" / link).symlink_to(target)
    os.mkfifo(run / "model/pipe")
    told: list[str] = []
    with listening(told.append):
        found = copied(run, "")
    files = ("steps/10.pt", *(name for name in IN if name != "folder"), "folder/a.pt")
    expected = dict.fromkeys([*(f"model/{name}" for name in files), "checkpoint/state.pt"], b"ten")
    assert found == expected
    assert {text.partition("` is not copied")[0] for text in told} == {
        f"`{run}/{name}".replace("\n", "?") for name in ("mine", *(f"model/{name}" for name in OUT))
    }


@pytest.mark.parametrize("place", ["model/passwd", "model/home", "model/home/key"])
def test_a_link_out_of_the_run_that_is_asked_for(run: Path, place: str) -> None:
    """It is none of the run's results."""
    (run.parent / "key").write_text("secret")
    for link in ("passwd", "home"):
        (run / "model" / link).symlink_to(OUT[link])
    with pytest.raises(TargetError, match="wrote nothing to"):
        copied(run, place)


def test_unreadable_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that tar cannot read is an error and not a file less."""
    tar = run.parent / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text(
        "#!/bin/sh\n/bin/tar \"$@\"\necho 'tar: ./steps/10.pt: Cannot open: Permission denied' >&2\nexit 2\n"
    )
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
    with pytest.raises(TargetError, match="Permission denied"):
        copied(run)
