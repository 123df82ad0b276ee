"""Inputs that an earlier run wrote: found in the store, offline, and refused where they cannot be whole."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.job.data import RunInput, run_input
from cloudtrain.lifecycle.store.schema import open_store
from cloudtrain.plans.progress import RunStatus
from cloudtrain.plans.states import RunState
from tests.deadlines import DEADLINE
from tests.hints import suggested
from tests.lifecycle.store.records import record

pytestmark = pytest.mark.lifecycle

ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
CLOUD = ct.SageMaker(region="eu-west-1", role=ROLE, bucket="my-bucket")

PREPARE = """
import sys
from cloudtrain.runtime import model_dir, output_dir
(output_dir("Lists") / "deep").mkdir()
(output_dir("Lists") / "deep/names.txt").write_text("a b c")
(model_dir() / "weights.txt").write_text("w")
sys.exit({code})
"""


@pytest.fixture
def prepare(make_source: Callable[..., Path]) -> Callable[..., ct.Run]:
    """Runs a training job that writes an output and a model, to its end."""

    def run(name: str = "prep", code: int = 0, **changes: Any) -> ct.Run:
        source = make_source({"prep.py": PREPARE.format(code=code)}, name=f"{name}-{code}")
        job = ct.TrainingJob(
            name=name,
            source_dir=str(source),
            entry_point="prep.py",
            outputs={"Lists": {}},
            **changes,
        )
        started = ct.submit(job, "local")
        started.wait(DEADLINE)
        return started

    return run


def use(place: str, target: str = "local", **changes: Any) -> ct.TrainingJob:
    """A job that reads a place."""
    fields = {
        "name": "use",
        "command": "cat ${{inputs.data}}/deep/names.txt",
        "inputs": {"data": {target: place}},
    }
    return ct.TrainingJob(**{**fields, **changes})


def problem_of(job: ct.TrainingJob | ct.ProcessingJob, target: Any = "local") -> tuple[str, str]:
    """Message and hint of the only problem; it stands at the input's place."""
    with pytest.raises(ct.JobError) as caught:
        ct.plan(job, target)
    (problem,) = caught.value.problems
    assert problem.path[:2] == ("inputs", "data")
    return problem.message, problem.hint or ""


def test_what_a_run_wrote_is_the_next_ones_input(prepare: Callable[..., ct.Run]) -> None:
    """The plan shows the folder, and whose it is; the run reads it."""
    first = prepare()
    plan = ct.plan(use("run:prep/output/Lists"), "local")
    where = f"{first.directory}/outputs/Lists"
    assert plan.request["processes"][0]["argv"][-1] == f"cat {where}/deep/names.txt"
    assert plan.notes == (
        f"input `data`: `run:prep/output/Lists` is `{where}`, written by `{first.name}`",
    )
    second = ct.submit(use("run:prep/output/Lists"), "local")
    assert second.wait(DEADLINE).state is RunState.SUCCEEDED
    assert [line.text for line in second.logs()] == ["a b c"]


def test_every_place_of_a_run_can_be_named(prepare: Callable[..., ct.Run]) -> None:
    """Outputs (in any case of letters), what is below them, the model, the checkpoint."""
    first = prepare()
    for written, below in {
        "run:prep/output/Lists": "outputs/Lists",
        "run:prep/outputs/lists": "outputs/Lists",
        "run:prep/output/Lists/deep": "outputs/Lists/deep",
        "run:prep/model": "model",
        "run:prep/checkpoint": "checkpoint",
        "run:last/model": "model",
    }.items():
        job = use(written, hyperparameters={}, command="ls ${{inputs.data}}")
        (process,) = ct.plan(job, "local").request["processes"]
        assert process["argv"][-1] == f"ls {first.directory}/{below}"


def test_a_run_is_named_whole_or_by_its_beginning(prepare: Callable[..., ct.Run]) -> None:
    """Or by its job, or as the last one."""
    first = prepare()
    for name in (first.name, first.name[:8], "prep", "last"):
        job = use(f"run:{name}/model", command="ls ${{inputs.data}}")
        assert (
            f"{first.directory}/model" in ct.plan(job, "local").request["processes"][0]["argv"][-1]
        )


@pytest.mark.slow
def test_of_a_job_the_newest_run_that_succeeded_counts(prepare: Callable[..., ct.Run]) -> None:
    """A later run that failed does not hide it."""
    prepare(tags={"a": "1"})
    second = prepare(tags={"a": "2"})
    prepare(code=3)
    assert second.name in ct.plan(use("run:prep/model"), "local").notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [0, 1], ids=["older", "newer"])
def test_a_run_of_which_nothing_is_left_hides_no_other(
    prepare: Callable[..., ct.Run], state_dir: Path, forgotten: int
) -> None:
    """Its folder is gone, and it was last seen before its end: another run of the job has succeeded all the same."""
    runs = [prepare(tags={"a": "1"}), prepare(tags={"a": "2"})]
    gone = runs.pop(forgotten)
    assert gone.directory is not None
    shutil.rmtree(gone.directory)
    with open_store(state_dir) as store:
        store.record(gone.name, RunStatus(RunState.PENDING))
    assert runs[0].name in ct.plan(use("run:prep/model"), "local").notes[0]
    assert f"`{gone.name}` is lost" in problem_of(use(f"run:{gone.name}/model"))[0]


def test_a_run_that_failed_is_an_error(prepare: Callable[..., ct.Run]) -> None:
    """By its own name, and by the name of a job of which none succeeded."""
    failed = prepare(code=3)
    why = f"the run `{failed.name}` is failed, so its output is incomplete"
    assert problem_of(use(f"run:{failed.name}/model")) == (
        why,
        f"`cloudtrain status {failed.name}` shows the reason",
    )
    assert problem_of(use("run:prep/model"))[0] == why


@pytest.mark.parametrize(
    ("place", "message", "hint"),
    [
        ("run:prop/model", "no run on `local` is called `prop`", suggested("prep")),
        (
            "run:prep/output/list",
            "writes no `outputs/list`",
            suggested("run:prep/output/lists"),
        ),
    ],
)
def test_what_does_not_exist_is_an_error(
    prepare: Callable[..., ct.Run], place: str, message: str, hint: str
) -> None:
    """A run that is not there, an output that it does not have: with the nearest one."""
    prepare()
    found = problem_of(use(place))
    assert message in found[0]
    assert found[1] == hint


def test_without_any_run_the_hint_says_to_run_it() -> None:
    """Nothing is in the store, not even a store."""
    message, hint = problem_of(use("run:prep/model"))
    assert message == "no run on `local` is called `prep`"
    assert hint == "submit a job of that name with `--target local`"


def test_the_hint_names_the_file_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file is called, beside the file of the job that reads its output; broken files are passed over."""
    folder = tmp_path / "my jobs"
    folder.mkdir()
    (folder / "a.yaml").write_text("name: [prep\n")
    (folder / "first.yaml").write_text("name: other  # before prep\n")
    (folder / "second.toml").write_text('name = "prep"\nentry_point = "prep.py"\n')
    (folder / "use.yaml").write_text(
        "name: use\ncommand: x\ninputs: {data: {local: 'run:prep/model'}}\n"
    )
    monkeypatch.chdir(tmp_path)
    _, hint = problem_of(ct.load_job("my jobs/use.yaml"))
    assert hint == "run it there first: `cloudtrain submit 'my jobs/second.toml' --target local`"


@pytest.mark.slow
def test_a_beginning_of_several_runs_is_an_error(prepare: Callable[..., ct.Run]) -> None:
    """It names them."""
    names = {prepare(name="prep-a").name, prepare(name="prep-b").name}
    message, hint = problem_of(use("run:pre/model"))
    assert message == "`pre` begins the names of 2 runs"
    assert all(f"`{name}`" in hint for name in names)


def test_all_wrong_inputs_are_told_at_once() -> None:
    """One problem each."""
    job = ct.TrainingJob(
        name="x", command="ls", inputs={n: {"local": f"run:{n}/model"} for n in ("a", "b")}
    )
    with pytest.raises(ct.JobError) as caught:
        ct.plan(job, "local")
    assert [problem.path for problem in caught.value.problems] == [
        ("inputs", n, "local") for n in ("a", "b")
    ]


def sent(state_dir: Path, job: ct.TrainingJob | ct.ProcessingJob, state: RunState) -> ct.Plan:
    """A run of this job on SageMaker, as the store keeps one that was accepted and last seen in a state."""
    plan = ct.plan(job, CLOUD)
    row = record(
        plan.run_name,
        target="sagemaker",
        place="eu-west-1",
        job_name=job.name,
        created=time.time(),
        key=plan.sha256,
    )
    with open_store(state_dir) as store:
        lock = store.reserve(row, {name.lower(): place for name, place in plan.outputs.items()})
        assert lock is not None
        lock.release(remove=True)
        store.advance(row.name, "reported")
        store.record(row.name, RunStatus(state))
    return plan


@pytest.fixture
def source(make_source: Callable[..., Path]) -> str:
    return str(make_source({"prep.py": "", "train.py": ""}))


def processing(source: str, **changes: Any) -> ct.ProcessingJob:
    fields = {
        "name": "prep",
        "source_dir": source,
        "entry_point": "prep.py",
        "resources": {"instance_type": "ml.m5.xlarge"},
        "outputs": {"volumes": {}, "lists": {"sagemaker": "s3://other/lists/"}},
    }
    return ct.ProcessingJob(**{**fields, **changes})


def training(source: str, place: str = "", **changes: Any) -> ct.TrainingJob:
    fields: dict[str, Any] = {
        "name": "train",
        "source_dir": source,
        "entry_point": "train.py",
        "resources": {"instance_type": "ml.g5.xlarge"},
    }
    fields |= {"inputs": {"data": {"sagemaker": place}}} if place else {}
    return ct.TrainingJob(**{**fields, **changes})


def channel(plan: ct.Plan) -> str:
    return str(plan.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"])


def test_a_training_job_reads_what_a_processing_job_on_sagemaker_wrote(
    state_dir: Path, source: str
) -> None:
    """The request holds the very URI that the processing job's request wrote to; no network is needed."""
    prep = sent(state_dir, processing(source), RunState.SUCCEEDED)
    plan = ct.plan(training(source, "run:prep/output/volumes/train"), CLOUD)
    assert channel(plan) == f"s3://my-bucket/cloudtrain/output/{prep.run_name}/output/volumes/train"
    assert channel(ct.plan(training(source, "run:prep/output/lists"), CLOUD)) == "s3://other/lists/"
    assert plan.notes[-1].endswith(f"written by `{prep.run_name}`")


def test_a_processing_job_reads_a_model(state_dir: Path, source: str) -> None:
    """Of a training job: an archive, which the plan says."""
    train = sent(state_dir, training(source), RunState.SUCCEEDED)
    evaluate = processing(
        source, name="eval", inputs={"model": {"sagemaker": "run:train/model"}}, outputs={}
    )
    plan = ct.plan(evaluate, CLOUD)
    uri = f"s3://my-bucket/cloudtrain/output/{train.run_name}/output/model.tar.gz"
    assert plan.request["ProcessingInputs"][0]["S3Input"]["S3Uri"] == uri
    assert "input `model` is an archive, which the script has to unpack" in plan.notes


def test_outputs_of_a_training_job_are_one_archive_there(state_dir: Path, source: str) -> None:
    """So none of them can be an input by itself."""
    train = sent(state_dir, training(source, outputs={"lists": {}}), RunState.SUCCEEDED)
    message, hint = problem_of(training(source, "run:train/output/lists"), CLOUD)
    assert message.startswith(
        f"SageMaker keeps all outputs of the training job `{train.run_name}` in one archive"
    )
    assert (
        hint
        == "use `run:train/model`, or produce `lists` with a processing job, which does not put its outputs into one archive"
    )
    message, hint = problem_of(training(source, "run:train/model/weights"), CLOUD)
    assert message.endswith("model.tar.gz` is an archive, so no folder in it can be an input")


def test_a_run_elsewhere_that_was_last_seen_running_is_told(state_dir: Path, source: str) -> None:
    """It may have ended since: a dry run asks nobody, and says so."""
    prep = sent(state_dir, processing(source), RunState.RUNNING)
    notes = ct.plan(training(source, "run:prep/output/volumes"), CLOUD).notes
    told = f"`{prep.run_name}` had not ended at the last check: `cloudtrain status {prep.run_name}`"
    assert told in notes


def test_runs_of_another_target_do_not_count(
    state_dir: Path, source: str, prepare: Callable[..., ct.Run]
) -> None:
    """What ran on this machine is no input on SageMaker."""
    prepare()
    message, _ = problem_of(training(source, "run:prep/model"), CLOUD)
    assert message == "no run on `sagemaker` is called `prep`"


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,20}", fullmatch=True)
OUTPUTS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)


@given(NAMES, OUTPUTS, st.lists(OUTPUTS, max_size=2))
def test_what_is_written_well_is_read_back(name: str, output: str, below: list[str]) -> None:
    """Every name of a run, an output and folders below it."""
    rest = "".join(f"/{part}" for part in below)
    assert run_input(f"run:{name}/output/{output}{rest}") == RunInput(
        name, f"outputs/{output}", rest
    )
    assert run_input(f"run:{name}/model{rest}") == RunInput(name, "model", rest)


@given(st.text(max_size=30))
def test_anything_else_is_refused(text: str) -> None:
    """A text is either read into its parts, which give it back, or refused."""
    found = run_input(f"run:{text}")
    if found is not None:
        what = found.what.partition("/")
        forms = [
            f"{found.run}/{kind}{what[1]}{what[2]}{found.below}" for kind in (what[0], "output")
        ]
        assert text in forms
