"""Processing on this machine, for real: supervisor, processes, links, outputs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.deadlines import DEADLINE

pytestmark = pytest.mark.lifecycle

EXAMPLE = Path(__file__).parents[3] / "examples" / "prepare_data.yaml"

SCRIPT = """
import argparse
from pathlib import Path
from cloudtrain.runtime import detect_environment, input_dir, output_dir

parser = argparse.ArgumentParser()
parser.add_argument("--raw", type=Path)
parser.add_argument("--factor", type=int)
given = parser.parse_args()
here, raw = detect_environment(), input_dir("raw")
assert raw == given.raw, (raw, given.raw)
for path in sorted(path for path in raw.rglob("*") if path.is_file()):
    number = int(path.read_text()) * given.factor
    print("instance", here.node_rank, "of", here.node_count, path.relative_to(raw))
    written = output_dir("scaled") / path.relative_to(raw)
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(str(number))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eleven files, two of them in a folder, each with its own number."""
    raw = tmp_path / "raw"
    (raw / "more").mkdir(parents=True)
    for number in range(11):
        folder = raw / "more" if number > 8 else raw
        (folder / f"part-{number}.txt").write_text(str(number))
    return raw


@pytest.fixture
def job(data: Path, make_source: Callable[..., Path]) -> Callable[..., ct.ProcessingJob]:
    """A job that multiplies numbers, and changes to it."""

    def make(script: str = SCRIPT, **changes: Any) -> ct.ProcessingJob:
        fields = {
            "name": "scale",
            "source_dir": str(make_source({"scale.py": script})),
            "entry_point": "scale.py",
            "hyperparameters": {"raw": "${{inputs.raw}}", "factor": 10},
            "resources": {"instance_count": 4},
            "inputs": {"raw": {"local": str(data), "shard": True}},
            "outputs": {"scaled": {}},
        }
        return ct.ProcessingJob(**{**fields, **changes})

    return make


def finished(job: ct.ProcessingJob, instances: int = 4) -> ct.Run:
    run = ct.submit(job, ct.Local(instance_count=instances))
    run.wait(DEADLINE)
    return run


@pytest.mark.slow
def test_four_instances_process_every_file_exactly_once(
    job: Callable[..., ct.ProcessingJob], tmp_path: Path
) -> None:
    """Each file is read by one instance, all four work, and the outputs of all are one folder."""
    run = finished(job())
    assert run.last_status.state is ct.RunState.SUCCEEDED, run.last_status.reason
    lines = [line.text.split() for line in run.logs() if line.text.startswith("instance")]
    read = Counter(words[4] for words in lines)
    assert len(read) == 11
    assert set(read.values()) == {1}
    assert Counter(words[1] for words in lines) == {"0": 3, "1": 3, "2": 3, "3": 2}
    assert {words[3] for words in lines} == {"4"}
    files = run.download("outputs/scaled", tmp_path / "copy")
    assert sorted(int(file.read_text()) for file in files) == [10 * number for number in range(11)]
    assert (tmp_path / "copy" / "more" / "part-10.txt").read_text() == "100"


def test_the_log_tells_instances_apart(job: Callable[..., ct.ProcessingJob]) -> None:
    """Each process has a rank of its own, the number of its instance."""
    run = finished(job(), instances=2)
    told = {
        (line.rank, line.text.split()[1]) for line in run.logs() if line.text.startswith("instance")
    }
    assert told == {(0, "0"), (1, "1")}


def test_an_input_that_is_not_sharded_is_seen_whole_by_all(
    job: Callable[..., ct.ProcessingJob], data: Path
) -> None:
    """And there are no links: the script sees the place itself."""
    run = finished(job(inputs={"raw": {"local": str(data)}}), instances=2)
    read = Counter(line.text.split()[4] for line in run.logs() if line.text.startswith("instance"))
    assert len(read) == 11
    assert set(read.values()) == {2}
    assert run.directory is not None
    assert not (run.directory / "instances").exists()


def test_one_failing_instance_fails_the_run(job: Callable[..., ct.ProcessingJob]) -> None:
    """As on SageMaker, where one container that exits with an error fails the job."""
    script = SCRIPT + "\nif here.node_rank == 1: raise ValueError('no such volume')\n"
    status = finished(job(script), instances=2).last_status
    assert status.state is ct.RunState.FAILED
    assert "ValueError: no such volume" in (status.reason or "")
    assert status.failed_rank == 1


def test_an_input_that_is_gone_at_the_start_is_the_reason(
    job: Callable[..., ct.ProcessingJob], tmp_path: Path
) -> None:
    """The shards are dealt when the run starts, so what is wrong with the data is the run's reason."""
    data = tmp_path / "gone"
    data.mkdir()
    raw = {"raw": {"local": str(data), "shard": True}}
    run = ct.submit(job(inputs=raw), "local", on_plan=lambda _: data.rmdir())
    status = run.wait(DEADLINE)
    assert status.state is ct.RunState.FAILED
    assert "could not prepare the run" in (status.reason or "")
    assert "gone" in (status.reason or "")


def test_the_plan_is_what_runs(job: Callable[..., ct.ProcessingJob]) -> None:
    """The specification names the shards; the same job gives the same bytes; the launch file is the request."""
    target = ct.Local(instance_count=2)
    plan = ct.plan(job(), target)
    assert plan.errors == ()
    links = plan.request["links"]
    assert [link["shard"] for link in links] == [[0, 2], [1, 2]]
    assert [process.env["CLOUDTRAIN_INPUT_RAW"] for process in plan.processes] == [
        link["path"] for link in links
    ]
    assert plan.request_json == ct.plan(job(), target).request_json
    run = ct.submit(job(), target)
    run.wait(DEADLINE)
    assert run.directory is not None
    assert json.loads((run.directory / "launch.json").read_text()) == plan.request


def test_a_command_sees_its_own_shard(job: Callable[..., ct.ProcessingJob]) -> None:
    """`${{inputs.raw}}` in a command line is another folder on each instance."""
    command = "ls ${{inputs.raw}} > ${{outputs.scaled}}/$CLOUDTRAIN_INSTANCE"
    run = finished(job(entry_point=None, command=command, hyperparameters={}), instances=3)
    assert run.directory is not None
    lists = [(run.directory / "outputs/scaled" / number).read_text().split() for number in "012"]
    assert sorted(name for names in lists for name in names if name != "more") == [
        f"part-{number}.txt" for number in range(9)
    ]


def test_emulation_is_for_training_jobs(job: Callable[..., ct.ProcessingJob]) -> None:
    """It would show the variables of a training container."""
    with pytest.raises(
        ct.JobError, match="emulates training jobs only, and this is a processing job"
    ):
        ct.plan(job(), ct.Local(emulate="sagemaker"))


def codes(job: ct.ProcessingJob, instances: int = 2) -> set[str]:
    return {finding.code for finding in ct.plan(job, ct.Local(instance_count=instances)).findings}


def test_instances_that_would_do_the_same_work_are_told(
    job: Callable[..., ct.ProcessingJob], data: Path
) -> None:
    """CT521 speaks without a sharded input; CT501, which offers a distribution, never does."""
    assert codes(job()) & {"CT501", "CT521", "CT522"} == set()
    plain = {"raw": {"local": str(data)}}
    assert codes(job(inputs=plain)) & {"CT501", "CT521", "CT522"} == {"CT521"}
    assert (
        codes(job(inputs=plain, resources={}), instances=1) & {"CT501", "CT521", "CT522"} == set()
    )


def test_a_shard_that_is_everything_is_told(job: Callable[..., ct.ProcessingJob]) -> None:
    """CT522 speaks where one instance gets all of a sharded input."""
    assert codes(job(resources={}), instances=1) & {"CT521", "CT522"} == {"CT522"}


def test_the_example_prepares_data_on_four_instances(tmp_path: Path) -> None:
    """Every good row of every file is there once; each instance says what it did; a later job reads the result."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(9):
        lines = [
            "length,width,species",
            *(f"{row}.5,{number},kind {number}" for row in range(number)),
            ",1,broken",
        ]
        (raw / f"flowers-{number}.csv").write_text("\n".join(lines) + "\n")
    job = ct.load_job(EXAMPLE, [f"inputs.raw.local={raw}"])
    assert isinstance(job, ct.ProcessingJob)
    run = finished(job)
    assert run.last_status.state is ct.RunState.SUCCEEDED, run.last_status.reason
    files = run.download("outputs/clean", tmp_path / "clean")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    expected = [
        {"length": row + 0.5, "width": n, "species": f"kind {n}"}
        for n in range(9)
        for row in range(n)
    ]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    done = [
        json.loads(file.read_text())
        for file in run.download("outputs/summaries", tmp_path / "done")
    ]
    assert sorted((item["instance"], item["files"]) for item in done) == [
        (0, 3),
        (1, 2),
        (2, 2),
        (3, 2),
    ]
    assert sum(item["dropped"] for item in done) == 9
    reading = ct.TrainingJob(
        name="train",
        source_dir=str(EXAMPLE.parent / "code" / "mnist"),
        command="ls ${{inputs.train}}",
        inputs={"train": {"local": "run:prepare-data/output/clean"}},
    )
    assert str(run.directory) in ct.plan(reading, "local").request["processes"][0]["argv"][-1]


def test_twice_the_instances_are_twice_the_work(job: Callable[..., ct.ProcessingJob]) -> None:
    """A plan of many instances is not compiled once for each of them: counted in calls, not in seconds."""

    def calls(instances: int) -> int:
        count = 0

        def counted(*_: Any) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            plan = ct.plan(job(), ct.Local(instance_count=instances))
        finally:
            sys.setprofile(None)
        assert len(plan.processes) == instances
        return count

    calls(1)  # imports
    assert calls(200) < 2.5 * calls(100)
