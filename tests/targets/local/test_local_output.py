"""The output of local runs: files, journal, and what can be downloaded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.signals.journal import INDEX, ROW
from cloudtrain.signals.log import JournalIndex
from cloudtrain.targets.common.specification import LaunchSpecification
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.output import RunOutput
from tests.specifications import specification
from tests.targets.places import Place, files_of_at_most


@pytest.mark.slow
def test_burst(place: Place) -> None:
    """A hundred thousand lines arrive whole and in order."""
    run = place.submit(
        "import sys\nsys.stdout.write(''.join(f'line {n}\\n' for n in range(100_000)))"
    )
    assert [line.text for line in run.lines(follow=True)] == [f"line {n}" for n in range(100_000)]
    assert (run.folder / "logs/rank_0.log").read_text().count("\n") == 100_000


def test_awkward_output(place: Place) -> None:
    """Quotes, control characters, other alphabets and a last line without a newline survive."""
    text = 'a "quoted" \\ line\tწრფე \x1b[31mred\x1b[0m \x00 🙂'
    run = place.submit(f"import sys\nsys.stdout.buffer.write({text.encode()!r} + b'\\n\\nend')")
    run.wait()
    assert run.texts() == [text, "", "end"]


def test_ranks_apart(place: Place) -> None:
    """Each rank's lines are in its own file, and the filter gives just these."""
    script = "import os\nprint('rank', os.environ['CLOUDTRAIN_OUTPUT_MODEL'] and os.getpid())"
    run = place.submit(script, target=ct.Local(instance_count=3))
    run.wait()
    for rank in range(3):
        assert (run.folder / f"logs/rank_{rank}.log").read_text().splitlines() == run.texts(rank)
        assert [line.instance for line in run.lines(rank=rank)] == [rank]
    assert len({*run.texts(0), *run.texts(1), *run.texts(2)}) == 3


def spec(instances: int) -> LaunchSpecification:
    """As much of a torchrun specification as the output needs."""
    return specification(launcher="torchrun", instances=instances, world_size=2 * instances)


def attempt(logs: Path, instance: int, number: int, text: str) -> None:
    """The files of one attempt of one instance's two ranks, as torchrun makes them."""
    folder = logs / f"instance_{instance}/run_x7f/attempt_{number}"
    shutil.rmtree(folder, ignore_errors=True)
    for local_rank in (0, 1):
        (folder / str(local_rank)).mkdir(parents=True)
        (folder / f"{local_rank}/stdout.log").write_text(f"{text} {local_rank}\n")
        (folder / f"{local_rank}/stderr.log").write_text("")


def output_of(folder: Path, *, instances: int = 1, resumes: bool = False) -> RunOutput:
    """The output of a run in this folder, or of one whose supervisor has died."""
    output = RunOutput(RunFolder(str(folder)), spec(instances), lambda _instance, _local_rank: None)
    if resumes:
        output.resume()
    return output


def finish(folder: Path) -> None:
    """What the process does that finishes a lost run."""
    output = output_of(folder, resumes=True)
    output.drain()
    output.close()


def texts_of(folder: Path, rank: int | None = None) -> list[str]:
    """The lines of one rank in the journal, or of all."""
    batches = JournalIndex(str(folder), rank=rank).new_lines()
    return [text for batch in batches for text in batch.texts]


def test_attempts(tmp_path: Path) -> None:
    """Later attempts are followed too, also one that takes the folder of the one before; both count as restarts."""
    output = output_of(tmp_path)
    reader = JournalIndex(str(tmp_path))
    seen = []
    for number, text in ((0, "first"), (0, "again"), (1, "next")):
        keep = tmp_path / f"keep_{text}"  # so that the new file cannot get the old one's inode
        if (tmp_path / "logs").exists():
            keep.mkdir()
            for n, file in enumerate((tmp_path / "logs").rglob("attempt_*/*/std*.log")):
                os.link(file, keep / str(n))
        attempt(tmp_path / "logs", 0, number, text)
        output.pump(at_once=True)
        seen += [(batch.rank, *batch.texts) for batch in reader.new_lines()]
    output.close()
    assert seen == [
        (rank, f"{text} {rank}") for text in ("first", "again", "next") for rank in (0, 1)
    ]
    assert output.restarts == 2
    assert (tmp_path / "logs/rank_1.log").read_text().split("\n")[:-1] == [
        "first 1",
        "again 1",
        "next 1",
    ]


def test_ranks_as_torchrun_gave_them(tmp_path: Path) -> None:
    """With several instances torchrun decides which is first: the process's own rank counts, not the usual one."""
    swapped = {(0, 0): 2, (0, 1): 3, (1, 0): 0, (1, 1): 1}
    for instance in (0, 1):
        attempt(tmp_path / "logs", instance, 0, f"instance {instance} local rank")
    output = RunOutput(RunFolder(str(tmp_path)), spec(2), lambda *key: swapped[key])
    output.drain()
    output.close()
    found = {batch.rank: batch.texts[0] for batch in JournalIndex(str(tmp_path)).new_lines()}
    assert found == {rank: f"instance {i} local rank {n}" for (i, n), rank in swapped.items()}
    only = JournalIndex(str(tmp_path), instance=1).new_lines()
    assert {batch.rank for batch in only} == {0, 1}


RANK_1 = "logs/instance_0/run_x7f/attempt_0/1"


def test_resume(tmp_path: Path) -> None:
    """Who takes over goes on after the last whole line that the journal has, with the ranks that it has."""
    attempt(tmp_path / "logs", 0, 0, "one")
    file = tmp_path / RANK_1 / "stdout.log"
    file.write_text("one\ntwo\nhal")
    first = output_of(tmp_path)
    first.pump(at_once=True)
    first.close()
    with file.open("a") as more:
        more.write("f\nlast")
    finish(tmp_path)
    assert texts_of(tmp_path, 1) == ["one", "two", "half", "last"]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("part", [0, 1, 15, 16, 17, 31])
def test_resume_behind_a_row_that_was_cut(tmp_path: Path, part: int, before: int) -> None:
    """A supervisor that was killed between any two of its writes: every line is there once."""
    attempt(tmp_path / "logs", 0, 0, "first")
    first = output_of(tmp_path)
    for _ in range(before):
        first.pump(at_once=True)
    index = tmp_path / INDEX
    kept = index.stat().st_size
    for stream in ("stdout", "stderr"):
        with (tmp_path / RANK_1 / f"{stream}.log").open("a") as more:
            more.writelines(f"{stream} {n}\n" for n in range(250))
    first.pump(at_once=True)
    first.close()
    assert index.stat().st_size == kept + 48 - 16 * before
    os.truncate(index, kept + part)
    finish(tmp_path)
    expected = [
        "first 1",
        *(f"{stream} {n}" for stream in ("stdout", "stderr") for n in range(250)),
    ]
    assert (tmp_path / "logs/rank_1.log").read_text().splitlines() == expected
    assert texts_of(tmp_path, 1) == expected
    assert texts_of(tmp_path, 0) == ["first 0"]


def test_files_of_processes_go_when_they_are_copied(tmp_path: Path) -> None:
    """At the end of a run, unless another file has taken their place or they have grown since."""
    attempt(tmp_path / "logs", 0, 0, "first")
    output = output_of(tmp_path)
    output.pump(at_once=True)
    files = sorted((tmp_path / "logs").rglob("attempt_*/*/std*.log"))
    assert len(files) == 4
    files[0].rename(tmp_path / "moved")
    files[0].write_text("another file")
    output._finder._known[str(files[0])] = files[0].stat().st_ino  # as if it had come too late
    output.drain()
    output.close()
    assert sorted((tmp_path / "logs").rglob("attempt_*/*/std*.log")) == [files[0]]
    assert texts_of(tmp_path) == ["first 0", "first 1"]


def test_a_lost_run_of_an_earlier_version(place: Place) -> None:
    """Its output is not completed, but none of it goes: the reason says where the rest is."""
    run = place.submit("import time\nprint('up', flush=True)\ntime.sleep(3600)")
    run.wait_for_line("up")
    (run.folder / "output.jsonl").touch()  # its presence tells
    run.ours("supervisor").kill()
    status = run.wait()
    assert status.state is ct.RunState.LOST
    assert "an earlier cloudtrain started it; the rest is in" in str(status.reason)
    assert (run.folder / "logs/instance_0/process_0.stdout.log").read_text() == "up\n"


def test_logs_of_an_earlier_version(place: Place) -> None:
    """They are read as ever: all, of one rank, by number, and while they grow; damaged records are left out."""
    run = place.submit("")
    run.wait()
    record = json.dumps(
        {"time": 1.0, "instance": 0, "rank": 0, "stream": "stdout", "attempt": 0, "text": "whole"}
    )
    journal = run.folder / "output.jsonl"
    journal.write_text(f"{record}\n{record[:20]}{record}\n{record[:30]}\0\0\n{record}\n{record}")
    assert run.texts() == run.texts(0) == ["whole", "whole"]
    assert run.texts(1) == []
    assert run.lines(rank=0)[0] == ct.LogLine(1.0, 0, 0, "stdout", "whole")


def test_a_full_disk_tears_no_batch(tmp_path: Path) -> None:
    """What fits is there, whole; what did not fit is there, once, when there is room again."""
    attempt(tmp_path / "logs", 0, 0, "first")
    output = output_of(tmp_path)
    output.pump(at_once=True)
    rank_0 = tmp_path / "logs/instance_0/run_x7f/attempt_0/0/stdout.log"
    with rank_0.open("a") as more:
        more.writelines(f"too much {n:4}\n" for n in range(5000))
    for _ in range(2):
        with files_of_at_most(40_000), pytest.raises(OSError, match="File too large"):
            output.drain()
        assert (tmp_path / "logs/rank_0.log").stat().st_size % 14 == len("first 0\n")
        assert len(texts_of(tmp_path, 0)) > 2000
    assert rank_0.exists()
    with rank_0.open("a") as more:
        more.write("room again\n")
    output.drain()
    output.close()
    expected = ["first 0", *(f"too much {n:4}" for n in range(5000)), "room again"]
    assert texts_of(tmp_path, 0) == expected
    assert (tmp_path / "logs/rank_0.log").read_text().splitlines() == expected


def test_what_a_power_failure_has_damaged(tmp_path: Path) -> None:
    """Rows without a source, rows of zeros, text that never reached the disk: the lines around them can still be read."""
    attempt(tmp_path / "logs", 0, 0, "first")
    output = output_of(tmp_path)
    output.drain()
    output.close()
    with (tmp_path / INDEX).open("ab") as more:
        more.write(ROW.pack(0, 77, 1, 5, 5) + bytes(ROW.size) + ROW.pack(9, 1, 2, 20, 20) + b"half")
    (tmp_path / "logs/rank_0.log").write_bytes(b"")
    assert texts_of(tmp_path, 1) == ["first 1", "", ""]
    assert texts_of(tmp_path, 0) == [""]


def test_a_row_that_is_being_written(tmp_path: Path) -> None:
    """A reader leaves it for the next time."""
    attempt(tmp_path / "logs", 0, 0, "first")
    output = output_of(tmp_path)
    output.drain()
    output.close()
    index = tmp_path / INDEX
    whole = index.read_bytes()
    reader = JournalIndex(str(tmp_path), rank=1)
    for size, expected in ((0, []), (31, []), (32, [["first 1"]]), (32, [])):
        index.write_bytes(whole[:size])
        assert [batch.texts for batch in reader.new_lines()] == expected
    assert list(JournalIndex(str(tmp_path / "nowhere")).new_lines()) == []


WRITER = """\
import os, pathlib
pathlib.Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "model.pt").write_text("m")
pathlib.Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step_1").mkdir()
pathlib.Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step_1/state").write_text("c")
pathlib.Path(os.environ["CLOUDTRAIN_OUTPUT_PLOTS"], "a.png").write_text("p")
os.symlink("/nowhere", os.environ["CLOUDTRAIN_OUTPUT_PLOTS"] + "/broken")
os.makedirs("out/__pycache__")
pathlib.Path("out/last.pt").write_text("l")
pathlib.Path("out/__pycache__/last.pyc").write_text("cache")
pathlib.Path("train.py").write_text(pathlib.Path("train.py").read_text())
os.symlink("out/last.pt", "link.pt")
os.symlink("/usr", "elsewhere")
print("written")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("model/", {"model.pt"}),
        ("model", {"model.pt"}),
        ("model/model.pt", {"model.pt"}),
        ("checkpoint/", {"step_1/state"}),
        ("checkpoint/step_1", {"state"}),
        ("outputs/plots", {"a.png"}),
        ("outputs/", {"plots/a.png"}),
        ("work/", {"train.py", "out/last.pt", "link.pt"}),
        ("work/out", {"last.pt"}),
        ("work/out/last.pt", {"last.pt"}),
        ("logs/", {"rank_0.log"}),
    ],
)
def test_download(place: Place, path: str, files: set[str]) -> None:
    """A folder's content arrives directly in the destination; one file by itself."""
    run = place.submit(WRITER, outputs={"plots": ct.Output()})
    run.wait()
    written = run.service.download(run.ref, path, place.root / "got")
    assert {file.relative_to(place.root / "got").as_posix() for file in written} == files
    assert all(file.is_file() for file in written)


def test_download_everything(place: Place) -> None:
    """Without a path each place gets its own folder; downloading again replaces files of the same name."""
    run = place.submit(WRITER, outputs={"Plots": ct.Output()})
    run.wait()
    got = place.root / "got"
    (got / "model").mkdir(parents=True)
    (got / "model/model.pt").write_text("old")
    (got / "model/mine").write_text("kept")
    for _ in range(2):
        run.service.download(run.ref, "", got)
    assert (got / "model/model.pt").read_text() == "m"
    assert (got / "model/mine").read_text() == "kept"
    assert (got / "outputs/Plots/a.png").read_text() == "p"
    assert (got / "checkpoint/step_1/state").read_text() == "c"
    assert (got / "work/out/last.pt").read_text() == "l"


def test_what_is_as_it_was_unpacked_is_no_work(place: Place) -> None:
    """The code that a script only reads is not copied."""
    run = place.submit("print(open('train.py').read())")
    run.wait()
    assert run.service.download(run.ref, "work/", place.root / "got") == []
    with pytest.raises(TargetError, match=r"wrote nothing to `work/train\.py`"):
        run.service.download(run.ref, "work/train.py", place.root / "got")


@pytest.mark.parametrize(
    "path", ["modle", "code", "..", "model/../../launch.json", "/etc", "outputs"]
)
def test_download_of_what_is_no_place(place: Place, path: str) -> None:
    """Only what a run writes can be downloaded."""
    run = place.submit("")
    run.wait()
    with pytest.raises(UsageError) as caught:
        run.service.download(run.ref, path, place.root / "got")
    assert caught.value.hint


def test_download_of_links_that_lead_back(place: Place) -> None:
    """A link to a folder on the way to it is not followed, however many there are; one to another folder is."""
    run = place.submit(LINKS)
    run.wait()
    got = place.root / "got"
    written = run.service.download(run.ref, "model", got)
    assert {file.relative_to(got).as_posix() for file in written} == {
        "a/one", "a/there/two", "b/two", "b/back/one", "kept/weights"
    }  # fmt: skip


def test_download_while_checkpoints_are_pruned(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is removed before it was copied is not missed, and a save that is not finished is not copied."""
    run = place.submit(CHECKPOINTS)
    run.wait()
    copy = shutil.copy2

    def prune_then_copy(source: Path, destination: Path) -> object:
        if source.parent.name == "000001-step-1":
            shutil.rmtree(source.parent)
        return copy(source, destination)

    monkeypatch.setattr(shutil, "copy2", prune_then_copy)
    got = place.root / "got"
    written = run.service.download(run.ref, "checkpoint", got)
    assert {file.relative_to(got).as_posix() for file in written} == {"000002-step-2/state.pt"}


LINKS = """\
import os
os.chdir(os.environ["CLOUDTRAIN_MODEL_DIR"])
for folder, file in (("a", "one"), ("b", "two"), ("../kept", "weights")):
    os.mkdir(folder)
    open(f"{folder}/{file}", "w").close()
for link, to in (("latest", "."), ("b/newest", "../.."), ("a/there", "../b"), ("b/back", "../a"), ("kept", "../kept")):
    os.symlink(to, link)
"""

CHECKPOINTS = """\
import os
os.chdir(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
for folder in ("000001-step-1", "000002-step-2", ".writing-3"):
    os.mkdir(folder)
    open(f"{folder}/state.pt", "w").close()
"""


def test_download_of_what_was_not_written(place: Place) -> None:
    """A file that the script has not written is not an empty success."""
    run = place.submit("")
    run.wait()
    with pytest.raises(TargetError, match=r"wrote nothing to `model/weights\.pt`"):
        run.service.download(run.ref, "model/weights.pt", place.root / "got")
