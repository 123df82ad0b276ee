"""The output of local runs: files, journal, and what can be downloaded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import TargetError, UsageError
from cloudtrain.targets.common.specification import LaunchSpecification
from cloudtrain.targets.local.folder import RunFolder
from cloudtrain.targets.local.output import RunOutput
from cloudtrain.targets.local.service import JournalReader
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


def test_attempts(tmp_path: Path) -> None:
    """Later attempts are followed too, also one that takes the folder of the one before; both count as restarts."""
    output = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    reader = JournalReader(tmp_path / "output.jsonl")
    seen = []
    for number, text in ((0, "first"), (0, "again"), (1, "next")):
        keep = tmp_path / f"keep_{text}"  # so that the new file cannot get the old one's inode
        if (tmp_path / "logs").exists():
            keep.mkdir()
            for n, file in enumerate((tmp_path / "logs").rglob("attempt_*/*/std*.log")):
                os.link(file, keep / str(n))
        attempt(tmp_path / "logs", 0, number, text)
        output.pump(at_once=True)
        seen += [(line.rank, line.text) for line in reader.new_lines()]
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
    found = {line.rank: line.text for line in JournalReader(tmp_path / "output.jsonl").new_lines()}
    assert found == {rank: f"instance {i} local rank {n}" for (i, n), rank in swapped.items()}


def test_resume(tmp_path: Path) -> None:
    """Who takes over goes on after the last whole line that the journal has, with the ranks that it has."""
    attempt(tmp_path / "logs", 0, 0, "one")
    file = tmp_path / "logs/instance_0/run_x7f/attempt_0/1/stdout.log"
    file.write_text("one\ntwo\nhal")
    first = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    first.pump(at_once=True)
    first.close()
    with file.open("a") as more:
        more.write("f\nlast")
    second = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    second.resume()
    second.drain()
    second.close()
    texts = [line.text for line in JournalReader(tmp_path / "output.jsonl", 1).new_lines()]
    assert texts == ["one", "two", "half", "last"]


@pytest.mark.parametrize("part", [0.1, 0.4, 0.99])
def test_resume_behind_a_batch_that_was_cut(tmp_path: Path, part: float) -> None:
    """Of a batch that a killed supervisor wrote half, nothing stays: every line is there once, and every record whole."""
    attempt(tmp_path / "logs", 0, 0, "")
    file = tmp_path / "logs/instance_0/run_x7f/attempt_0/1/stdout.log"
    file.write_text("".join(f"line {n}\n" for n in range(5)))
    first = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    first.pump(at_once=True)
    first.close()
    journal = tmp_path / "output.jsonl"
    journal.write_bytes(journal.read_bytes()[: int(journal.stat().st_size * part)])
    second = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    second.resume()
    second.drain()
    second.close()
    assert [line.text for line in JournalReader(journal, 1).new_lines()] == [
        f"line {n}" for n in range(5)
    ]
    assert all(json.loads(record) for record in journal.read_bytes().splitlines())
    assert (tmp_path / "logs/rank_1.log").read_text().splitlines() == [
        f"line {n}" for n in range(5)
    ]


@pytest.mark.parametrize("before", [0, 1])
def test_resume_between_the_two_writes_of_a_batch(tmp_path: Path, before: int) -> None:
    """A supervisor that was killed when a rank's file had lines that the journal had not: they are there once."""
    attempt(tmp_path / "logs", 0, 0, "first")
    folder = tmp_path / "logs/instance_0/run_x7f/attempt_0/1"
    journal, rank_file = tmp_path / "output.jsonl", tmp_path / "logs/rank_1.log"
    first = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    for _ in range(before):
        first.pump(at_once=True)
    kept = journal.read_bytes()
    for stream in ("stdout", "stderr"):
        with (folder / f"{stream}.log").open("a") as more:
            more.writelines(f"{stream} {n}\n" for n in range(250))
    first.pump(at_once=True)
    first.close()
    journal.write_bytes(kept)
    second = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    second.resume()
    second.drain()
    second.close()
    expected = [
        "first 1",
        *(f"{stream} {n}" for stream in ("stdout", "stderr") for n in range(250)),
    ]
    assert rank_file.read_text().splitlines() == expected
    assert [line.text for line in JournalReader(journal, 1).new_lines()] == expected


def test_resume_of_a_journal_of_an_earlier_version(tmp_path: Path) -> None:
    """Its records do not say how long the ranks' files are, so nothing is cut off."""
    attempt(tmp_path / "logs", 0, 0, "first")
    first = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    first.pump(at_once=True)
    first.close()
    journal = tmp_path / "output.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {record.pop("size", 0) for record in records} == {0, len("first 0\n")}
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    with (tmp_path / "logs/instance_0/run_x7f/attempt_0/1/stdout.log").open("a") as more:
        more.write("more\n")
    second = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    second.resume()
    second.drain()
    second.close()
    assert (tmp_path / "logs/rank_1.log").read_text().splitlines() == ["first 1", "more"]


def test_a_full_disk_tears_no_record(tmp_path: Path) -> None:
    """The lines that fit are in the journal, whole, and what is written once there is room again can be read."""
    attempt(tmp_path / "logs", 0, 0, "first")
    output = RunOutput(RunFolder(str(tmp_path)), spec(1), lambda _instance, _local_rank: None)
    output.pump(at_once=True)
    journal, rank_0 = (
        tmp_path / "output.jsonl",
        tmp_path / "logs/instance_0/run_x7f/attempt_0/0/stdout.log",
    )
    whole = journal.read_bytes()
    with rank_0.open("a") as more:
        more.write("too much\n" * 100)
    with files_of_at_most(len(whole) + 1000), pytest.raises(OSError, match="File too large"):
        output.drain()
    assert len(whole) + 800 < journal.stat().st_size <= len(whole) + 1000
    with rank_0.open("a") as more:
        more.write("room again\n")
    output.drain()
    output.close()
    texts = [line.text for line in JournalReader(journal, 0).new_lines()]
    assert list(dict.fromkeys(texts)) == ["first 0", "too much", "room again"]
    assert all(json.loads(record) for record in journal.read_bytes().splitlines())


def test_a_torn_record_is_left_out(tmp_path: Path) -> None:
    """A power cut tears what was written last; the lines around it can still be read."""
    record = json.dumps(
        {"time": 1.0, "instance": 0, "rank": 0, "stream": "stdout", "attempt": 0, "text": "whole"}
    )
    (tmp_path / "output.jsonl").write_text(
        f"{record}\n{record[:20]}{record}\n{record[:30]}\0\0\n{record}\n"
    )
    assert [line.text for line in JournalReader(tmp_path / "output.jsonl").new_lines()] == [
        "whole",
        "whole",
    ]


def test_record_still_being_written(tmp_path: Path) -> None:
    """A reader leaves half a record for the next time."""
    journal = tmp_path / "output.jsonl"
    record = json.dumps(
        {"time": 1.0, "instance": 0, "rank": 0, "stream": "stdout", "attempt": 0, "text": "whole"}
    )
    reader = JournalReader(journal)
    assert list(reader.new_lines()) == []
    journal.write_text(record[:30])
    assert list(reader.new_lines()) == []
    journal.write_text(record + "\n" + record[:10])
    assert [line.text for line in reader.new_lines()] == ["whole"]
    assert list(reader.new_lines()) == []


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
        (
            "logs/",
            {"rank_0.log", "instance_0/process_0.stdout.log", "instance_0/process_0.stderr.log"},
        ),
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
