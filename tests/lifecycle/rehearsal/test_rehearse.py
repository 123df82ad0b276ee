"""Rehearsals with real processes: small scripts in plain Python, right and wrong in the ways in which scripts are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.rehearse import Rehearsal, rehearsal_name, rehearse, run_whole
from tests.cli.conftest import Cli, cli  # noqa: F401 - the fixture
from tests.deadlines import GRACE
from tests.hints import suggested

pytestmark = pytest.mark.lifecycle

TRAIN = """\
import random, signal
from cloudtrain import runtime

config = runtime.arguments({"bug": "", "steps": 12, "keep_every": 4})
bug = config.bug
checkpoints = runtime.Checkpoints()
loaded = checkpoints.load() if bug != "saves nothing" else None
weight, speed, first = loaded.state if loaded else (0.0, 0.0, 0)
if bug == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif bug != "saves nothing":
    runtime.watch_for_stop()

for step in range(first + 1, config.steps + 1 + (first if bug == "counts its own steps" else 0)):
    here = step - first  # what a script knows that forgets where it was
    sample = (1.0, 5.0, 2.0, 8.0, 3.0)[(here if bug == "forgets its position" else step) % 5]
    rate = 0.1 / (1 + (here if bug == "forgets its schedule" else step))
    error = weight - sample
    speed = 0.9 * (0.0 if bug == "forgets its momentum" and here == 1 else speed) + error
    weight -= rate * speed
    noise = random.random() if bug == "does not repeat" else 0.0
    errors = [*(errors if step > first + 1 else ()), error ** 2]
    if bug == "logs means":
        if step % 4 == 0:
            runtime.report(step=step, loss=sum(errors) / len(errors))
            errors.clear()
        if step % 6 == 0:
            runtime.report(step=step, eval_loss=weight)
    elif bug != "reports nothing":
        runtime.report(step=step, **{"error" if bug == "has no loss" else "loss": error ** 2 + noise})
    if step % config.keep_every == 0 and bug != "saves nothing":
        checkpoints.save((weight, speed, step), step)
    if runtime.should_stop():
        if bug == "breaks its checkpoint":
            checkpoints.save("nonsense", step)
        else:
            checkpoints.save((weight, speed, step), step)
        runtime.exit_preempted(step)
"""


def job(folder: Path, bug: str = "", **fields: Any) -> ct.TrainingJob:
    """The script above as a job."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text(TRAIN)
    return ct.TrainingJob(
        name="toy",
        source_dir=str(folder / "src"),
        entry_point="train.py",
        hyperparameters={"bug": bug},
        **fields,
    )


def rehearsed(
    folder: Path,
    bug: str = "",
    *,
    target: ct.Local | None = None,
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Rehearsal:
    """The rehearsal of that job."""
    where = target or ct.Local(grace_period=GRACE)
    return rehearse(
        run_whole(job(folder, bug, **fields), lambda one: ct.submit(one, where)), **options or {}
    )


@pytest.mark.slow
def test_a_script_that_survives(tmp_path: Path) -> None:
    """SIGTERM comes at the chosen step exactly, the script saves there, and every value is the same."""
    found = rehearsed(tmp_path, options={"at_step": 7})
    assert (found.verdict.kind, found.left) == ("same", "saved")
    comparison = found.comparison
    assert (
        comparison.stopped_at,
        comparison.saved_at,
        comparison.resumed_at,
        comparison.compared,
    ) == (7, 7, 8, 12)
    assert comparison.largest_difference == 0.0
    assert (comparison.repeated, sorted(comparison.resumed)) == (0, [8, 9, 10, 11, 12])
    assert {run.job_name for run in (found.whole, found.interrupted, found.resumed)} == {
        "toy-rehearsal"
    }
    assert str(found.interrupted.status().reason).endswith("the script saved and left at step 7")


@pytest.mark.slow
def test_about_half_way_unless_told(tmp_path: Path) -> None:
    """Without a step it is one in the middle."""
    found = rehearsed(tmp_path)
    assert (found.at_step, found.comparison.stopped_at) == (6, 6)


@pytest.mark.slow
def test_half_way_is_a_step_of_the_metric_that_is_reported_most(tmp_path: Path) -> None:
    """A Trainer logs the mean since it has last logged. Stopped at step 6, where it only evaluates, it would log another
    mean at step 8."""
    found = rehearsed(tmp_path, "logs means")
    assert (found.at_step, found.verdict.kind, found.comparison.compared) == (8, "same", 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "kind", "step", "look_at"),
    [
        ("forgets its position", "differs", 7, "data order"),
        ("forgets its momentum", "differs", 8, "optimizer state"),
        ("forgets its schedule", "differs", 8, "learning-rate schedule"),
        ("counts its own steps", "overrun", None, "the end"),
        ("saves nothing", "started_over", None, "checkpoints"),
        ("does not repeat", "unrepeatable", 1, "seed"),
        ("breaks its checkpoint", "cannot_resume", None, "its output"),
    ],
)
@pytest.mark.slow_after(3)
def test_scripts_that_do_not(
    tmp_path: Path, bug: str, kind: str, step: int | None, look_at: str
) -> None:
    """Each way to be wrong has its verdict, with the first step that differs and what to look at."""
    found = rehearsed(tmp_path, bug)
    assert (found.verdict.kind, found.verdict.survives) == (kind, False)
    assert any(item.startswith(look_at) for item in found.verdict.look_at)
    if step is not None:
        assert f"at step {step} `loss`" in found.verdict.words
    assert found.to_dict()["verdict"] == kind


@pytest.mark.slow
def test_a_script_without_a_handler_is_gone_at_once(tmp_path: Path) -> None:
    """It has said nothing of saving, and the rehearsal does not claim that it did."""
    assert rehearsed(tmp_path, "saves nothing").left == "exited"


@pytest.mark.slow
def test_a_deaf_script_lives_from_its_last_checkpoint(tmp_path: Path) -> None:
    """It is killed after the grace period and resumes from step 4: the curve is the same, two steps were for nothing."""
    found = rehearsed(tmp_path, "deaf", target=ct.Local(grace_period=1))
    assert (found.left, found.verdict.kind) == ("killed", "same")
    assert found.seconds_to_leave >= 1
    assert (
        found.comparison.stopped_at,
        found.comparison.resumed_at,
        found.comparison.repeated,
    ) == (6, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "options", "message", "hint"),
    [
        ("reports nothing", {}, "reported no metrics", "integrations.train(trainer)"),
        ("has no loss", {}, "reported no loss, only `error`", "--metric error"),
        ("", {"metrics": ("los",)}, "reported no `los`", suggested("loss")),
        ("", {"at_step": 12}, "ends at step 12, so it cannot be stopped at 12", "a step before 12"),
    ],
)
def test_what_cannot_be_rehearsed_is_said_clearly(
    tmp_path: Path, bug: str, options: dict[str, Any], message: str, hint: str
) -> None:
    """With what to type; and no further run is started."""
    with pytest.raises(ct.CloudtrainError) as caught:
        rehearsed(tmp_path, bug, options=options)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    assert len(ct.runs()) == 1


@pytest.mark.slow
def test_another_metric_may_be_compared(tmp_path: Path) -> None:
    """A script without a loss has something else that must not change."""
    assert (
        rehearsed(tmp_path, "has no loss", options={"metrics": ("error",)}).verdict.kind == "same"
    )


def test_a_failing_job_is_not_rehearsed(tmp_path: Path) -> None:
    """Its own reason is passed on."""
    broken = job(tmp_path).replace(hyperparameters={"steps": "many"})
    with pytest.raises(
        ct.CloudtrainError, match=r"failed, .* with it: rank 0 failed with exit code 2"
    ):
        rehearse(run_whole(broken, lambda one: ct.submit(one, ct.Local())))


@pytest.mark.slow
@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
def test_emulated_services_keep_what_the_job_keeps(tmp_path: Path, service: Any) -> None:
    """With `checkpoint` the service's folder is there again; without, nothing is, as on the service itself."""
    fields: dict[str, Any] = {
        "environment": {"framework": "pytorch", "version": "2.8"},
        "resources": {"instance_type": {"sagemaker": "ml.m5.xlarge"}},
    }
    target = ct.Local(emulate=service, grace_period=GRACE)
    kept = rehearsed(tmp_path, target=target, checkpoint=ct.Checkpoint(), **fields)
    assert (kept.verdict.kind, kept.left, kept.comparison.resumed_at) == ("same", "saved", 7)
    lost = rehearsed(tmp_path, target=target, **fields)
    assert lost.verdict.kind == "started_over"
    assert "said that it saved, but not where the next run looks" in lost.verdict.look_at[0]


@pytest.mark.slow
@pytest.mark.parametrize("emulate", [None, "azureml"])
def test_a_finished_run_stands_for_the_whole(tmp_path: Path, emulate: Any) -> None:
    """Its own checkpoints and outputs, kept at places outside its folder, are neither found nor touched."""
    places = {"checkpoint": ct.Checkpoint(local=str(tmp_path / "kept")), "outputs": {"plots": {"local": str(tmp_path / "p")}}}  # fmt: skip
    fields = {"environment": {"framework": "pytorch", "version": "2.8"}} if emulate else {}
    run = ct.submit(job(tmp_path, **places, **fields), ct.Local(emulate=emulate))
    run.wait()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*")}
    found = rehearse(ct.run(run.name))
    assert (found.verdict.kind, found.whole.name) == ("same", run.name)
    assert (found.comparison.saved_at, found.comparison.resumed_at) == (6, 7)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("*")} == before
    assert all(
        path.startswith(str(found.interrupted.directory))
        for path in found.interrupted.written.values()
    )


@pytest.mark.slow
def test_the_job_s_own_checkpoints_are_not_used(tmp_path: Path) -> None:
    """A job that keeps its checkpoints somewhere is rehearsed from the start, and leaves that place alone."""
    kept = ct.Checkpoint(local=str(tmp_path / "kept"), keep=2)
    ct.submit(job(tmp_path, checkpoint=kept), ct.Local()).wait()
    before = sorted((tmp_path / "kept").iterdir())
    found = rehearsed(tmp_path, checkpoint=kept)
    assert (found.verdict.kind, min(found.comparison.whole)) == ("same", 1)
    assert sorted((tmp_path / "kept").iterdir()) == before
    assert len([*(Path(str(found.whole.directory)) / "checkpoint").glob("*-step-*")]) == 2


@pytest.mark.slow
def test_a_run_that_is_no_whole_is_refused(tmp_path: Path) -> None:
    """One that was stopped has no curve to compare with."""
    stopped = rehearsed(tmp_path).interrupted
    with pytest.raises(ct.CloudtrainError, match=r"stopped, .*: stopped on request"):
        rehearse(ct.run(stopped.name))


def test_a_run_that_has_not_ended_is_left_alone(tmp_path: Path) -> None:
    """It is refused at once, and trains on: a person who lost patience would otherwise have stopped it."""
    (tmp_path / "src").mkdir()
    running = ct.submit(
        ct.TrainingJob(name="toy", source_dir=str(tmp_path / "src"), command="sleep 300"),
        ct.Local(),
    )
    try:
        with pytest.raises(ct.CloudtrainError, match="has not ended") as caught:
            rehearse(ct.run(running.name))
        assert f"`cloudtrain wait {running.name}`" in str(caught.value.hint)
        assert not running.status().state.is_final
    finally:
        running.stop()
        running.wait()


def test_ctrl_c_stops_the_run_that_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would read the verdict of the whole run any more."""
    sent: list[ct.Run] = []

    def submit(one: ct.TrainingJob) -> ct.Run:
        sent.append(
            ct.submit(
                one.replace(command="sleep 300", entry_point=None, hyperparameters={}), ct.Local()
            )
        )
        return sent[0]

    def interrupted(_run: ct.Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ct.Run, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_whole(job(tmp_path), submit)
    assert sent[0].wait().state is ct.RunState.STOPPED


def test_names_fit() -> None:
    """However long the job's name is, and however often it is rehearsed."""
    assert (
        rehearsal_name("digits-ddp")
        == rehearsal_name("digits-ddp-rehearsal")
        == "digits-ddp-rehearsal"
    )
    assert len(rehearsal_name("x" * 40)) == 40
    assert rehearsal_name(f"{'x' * 29}-yyyyyy") == f"{'x' * 29}-rehearsal"


JOB = """\
name: toy
source_dir: src
entry_point: train.py
hyperparameters: {{bug: {bug}}}
"""


@pytest.mark.slow
def test_command(cli: Cli, clean_environment: Path) -> None:  # noqa: F811
    """Exit code 0 and 1 by verdict; text on stdout, the stages on stderr; JSON with everything."""
    job(clean_environment)
    (clean_environment / "job.yaml").write_text(JOB.format(bug="forgets its momentum"))
    bad = cli("rehearse", "job.yaml", "--at-step", "8")
    assert bad.code == 1
    text = " ".join(bad.out.split())
    assert "SIGTERM at step 8; saved at step 8 and exited after" in text
    assert "verdict differs: at step 10 `loss` is" in text
    assert "look at optimizer state: save and load" in text
    assert [line[:6] for line in bad.err.splitlines() if " of 3: " in line] == [
        "1 of 3",
        "2 of 3",
        "3 of 3",
    ]

    good = cli("rehearse", "job.yaml", "--set", "hyperparameters.bug=none", "--json")
    assert good.code == 0, good.err
    result = json.loads(good.out)
    assert (result["verdict"], result["survives"], result["compared"]) == ("same", True, 12)
    assert (result["left"], result["saved_at"], result["resumed_at"], result["repeated_steps"]) == (
        "saved",
        6,
        7,
        0,
    )

    again = json.loads(cli("rehearse", result["runs"]["whole"], "--json").out)
    assert (again["verdict"], again["runs"]["whole"]) == ("same", result["runs"]["whole"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nothing-here",), 3, "there is no run `nothing-here`"),
        (("nothing.yaml",), 2, "there is no job file `nothing.yaml`"),
        (
            ("some-run", "--set", "hyperparameters.x=1"),
            2,
            "`--set` works only with a job file, but `some-run` is a run",
        ),
        (("some-run", "--instances", "2"), 2, "`--instances` works only with a job file"),
    ],
)
def test_wrong_command_lines(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:  # noqa: F811
    """What is named does not exist, or an option has no meaning for it."""
    result = cli("rehearse", *arguments)
    assert result.code == code
    assert message in result.err
