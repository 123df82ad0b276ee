"""Sweeps on this machine from submission to their end: real drivers, real runs, and kills on purpose."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.errors import MissingExtra, RunNotFound, UsageError
from cloudtrain.lifecycle.detached.driven import DrivenFolder, sleep_until_woken
from cloudtrain.lifecycle.runs.sweep import SweepRun, sweep_document, sweep_of
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.lifecycle.sweeps import study
from cloudtrain.lifecycle.sweeps.service import SweepService
from cloudtrain.plans.document import Document, Table
from cloudtrain.system.plugins import pip_line
from cloudtrain.system.processes import ProcessLock
from cloudtrain.targets.local.service import LocalService
from tests.deadlines import DEADLINE
from tests.lifecycle.sweeps.conftest import MakeSweep

pytestmark = pytest.mark.lifecycle

STEPS = ("before asked", "asked", "accepted", "submitted", "noted", "before told", "told")
KILLS = (*STEPS * 4, "before end", "before end")

NURSERY = """
import json, os, signal, sys
from pathlib import Path
import cloudtrain.lifecycle.past.sent, cloudtrain.targets.local.service  # once for all drivers
from cloudtrain.lifecycle.sweep_driver import drive
from cloudtrain.lifecycle.detached.driven import DrivenFolder
for line in sys.stdin:
    name, point = json.loads(line)
    pid = os.fork()
    if pid == 0:
        moment = lambda here: os.kill(os.getpid(), signal.SIGKILL) if here == point else None
        drive(DrivenFolder(Path(sys.argv[1]), "sweep", name), lambda: None, moment)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def submitted(sweep: ct.Sweep) -> SweepRun:
    """The sweep, submitted on this machine."""
    return sweep_of(ct.submit(sweep, "local"))


def ended(sweep: ct.Sweep) -> SweepRun:
    """The sweep, submitted on this machine, when it has ended."""
    run = submitted(sweep)
    run.wait(DEADLINE)
    return run


def test_a_sweep_runs_its_trials_and_knows_the_best(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """Each is a run of its own, with its own folders; the best is downloaded."""
    run = ended(make_sweep(trials=4, parallel=2, seed=3))
    trials = run.trials()
    assert run.state is ct.RunState.SUCCEEDED
    assert [trial.run for trial in trials] == [
        f"{run.name}-t{number:03d}" for number in range(1, 5)
    ]
    best = max(trials, key=lambda trial: trial.value or 0.0)
    assert run.best == best
    assert best.value == pytest.approx(2 - (best.values["rate"] - 0.3) ** 2)
    assert len({str(run.trial(number).directory) for number in range(1, 5)}) == 4
    assert [item.name for item in ct.runs()] == [run.name]
    assert len(ct.runs(trials=True)) == 5
    assert run.download("logs/", tmp_path / "copy")


@pytest.mark.slow
def test_a_notebook_shows_the_trials_and_their_curve(make_sweep: MakeSweep) -> None:
    """The best trials as a table, and the history as a picture where matplotlib is installed."""
    run = ended(make_sweep(trials=2))
    page = run._repr_html_()
    assert page.count("<tr>") >= 3
    assert "Best trials" in page
    assert ("data:image/svg+xml;base64," in page) == (find_spec("matplotlib") is not None)
    trials = [trial.run for trial in run.trials()]
    assert [row["run"] for row in ct.compare(run).rows] == trials
    assert {curve.run for curve in run.curves() if curve.name == "score"} == set(trials)
    assert all(not curve.goal.is_minimized for curve in run.curves())


@pytest.mark.slow
def test_a_running_sweep_knows_the_steps_of_its_trials(
    make_sweep: MakeSweep, tmp_path: Path
) -> None:
    """While a trial runs, the status has its step and its objective; none at the end."""
    wait = "\nimport pathlib\nwhile not pathlib.Path(os.environ['STARTED'] + '.go').exists(): time.sleep(0.05)\n"
    with (tmp_path / "src" / "train.py").open("a") as script:
        script.write(wait)
    run = submitted(make_sweep(trials=1))
    trials: dict[int, dict[str, float]] = {}
    deadline = time.monotonic() + DEADLINE
    while trials.get(1, {}).get("step") != 2.0 and time.monotonic() < deadline:
        trials = run.status().trials
        time.sleep(0.1)
    (tmp_path / "started.txt.go").touch()
    assert trials[1].keys() == {"step", "score"}
    assert run.wait(DEADLINE).trials == {}


@pytest.mark.slow
def test_the_plan_says_which_values_the_first_trials_have(make_sweep: MakeSweep) -> None:
    """The same seed gives the same values, in the plan and in the run."""
    sweep = make_sweep(seed=5)
    plan = ct.plan(sweep, "local")
    run = ended(sweep)
    assert plan.run_name == run.name
    rows = [" ".join(line.split()) for line in plan.to_text(width=None).splitlines()]
    assert "TRIAL RUN VALUES" in rows
    for trial in run.trials():
        value = f"rate={trial.values['rate']:.4g}"
        assert f"{trial.number} {trial.run} {value}" in rows
        assert (
            f"trial {trial.number} of 3 will be `{trial.run}`: {value}" in plan.to_dict()["notes"]
        )


@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_loses_no_trial(
    make_sweep: MakeSweep, started: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty drivers die, each at the next step of the protocol: twelve trials, none twice."""
    points, deaths = iter((*KILLS, "never")), list[int]()
    command = [sys.executable, "-c", NURSERY, str(state_dir)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        to_it, from_it = nursery.stdin, nursery.stdout

        def start(_: SweepService, folder: DrivenFolder) -> None:
            to_it.write(json.dumps([folder.name, next(points)]) + "\n")
            deaths.append(int(from_it.readline()))

        monkeypatch.setattr(SweepService, "_start", start)
        rates = [number / 12 for number in range(12)]
        run = submitted(
            make_sweep(search={"rate": rates}, strategy="grid", trials=None, parallel=2)
        )
        while run.status().state is not ct.RunState.SUCCEEDED:
            assert run.status().state is ct.RunState.LOST
            run.resume()
    assert deaths == [-signal.SIGKILL] * 30 + [0]
    assert [trial.values["rate"] for trial in run.trials()] == rates
    assert all(trial.state is ct.RunState.SUCCEEDED for trial in run.trials())
    assert Counter(started.read_text().split()) == Counter(trial.run for trial in run.trials())
    with read_store(state_dir) as store:
        assert store.unfinished() == []


PRINTS = """
import sys
rate = float(sys.argv[sys.argv.index("--rate") + 1])
for epoch in range(1, 5):
    print(f"[metrics] step={epoch} loss={1 / epoch}")
    print(f"Epoch {epoch}: val score: {rate * epoch % 0.7:.4f}", flush=True)
"""


@pytest.mark.parametrize("has_metrics", [True, False])
def test_an_objective_that_a_script_only_prints_counts(
    make_sweep: MakeSweep, tmp_path: Path, has_metrics: bool
) -> None:
    """What is recognised in the output, whatever else the script reports; the best value may be an earlier one."""
    (tmp_path / "src" / "train.py").write_text(PRINTS)
    job: dict[str, Any] = {"metrics": "none"} if not has_metrics else {}
    grid = {"search": {"rate": [0.2, 0.3]}, "strategy": "grid", "trials": None}
    run = ended(make_sweep(**grid, objective={"maximize": "val_score"}, job=job))
    assert [trial.value for trial in run.trials()] == ([0.1, 0.5] if has_metrics else [None, None])
    if not has_metrics:
        return
    (table,) = [block for block in run_document_of(run).blocks if isinstance(block, Table)]
    assert table.headers[:4] == ("TRIAL", "STATE", "VAL_SCORE", "BEST")
    assert [row[2:4] for row in table.rows] == [("0.5", "0.6"), ("0.1", "0.6")]
    objective = run.trial(1).objective
    assert objective is not None
    assert objective.metric == "val_score"


def run_document_of(run: SweepRun) -> Document:
    return sweep_document(run, run.status(), run.trials())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("silent", "the first 3 trials failed, so no more were started: the script never reported `score`; it reported `loss`"),
        ("nan", "the first 3 trials failed, so no more were started: the last `score` that the script reported is nan"),
        ("dead", "the first 3 trials failed, so no more were started: rank 0 failed with exit code 1: no such data"),
    ],
)  # fmt: skip
@pytest.mark.slow_after(1)
def test_a_sweep_without_a_value_ends_with_a_sentence(
    make_sweep: MakeSweep, mode: str, reason: str
) -> None:
    """It does not start forty trials that all fail alike."""
    run = ended(make_sweep(trials=9, job={"hyperparameters": {"mode": mode}}))
    assert run.state is ct.RunState.FAILED
    assert (run.last_status.reason or "").startswith(reason[:90])
    assert len(run.trials()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "count"), [([0.1, 0.2, 0.3, 0.4], 3), (["x", 0.1, 0.2, 0.3], 4)])
def test_trials_without_an_objective_stop_when_they_fail_alike(
    make_sweep: MakeSweep, rates: list[object], count: int
) -> None:
    """Three failures with one reason end the sweep. Failures with several reasons do not, because each trial of
    `--each` is a job of its own."""
    fields = {"search": {"rate": rates}, "objective": None, "strategy": "grid", "trials": None}
    run = ended(make_sweep(**fields, job={"hyperparameters": {"mode": "dead"}}))
    assert run.state is ct.RunState.FAILED
    assert len(run.trials()) == count
    assert ("failed, so no more were started" in (run.last_status.reason or "")) == (count == 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dead", "killed"])
def test_one_dead_trial_does_not_end_the_others(make_sweep: MakeSweep, mode: str) -> None:
    """The sweep ends well, and says what failed: a script, or the supervisor of a run."""
    run = ended(
        make_sweep(
            search={"rate": [0.1, 0.2], "mode": [mode, "good"]}, strategy="grid", trials=None
        )
    )
    assert run.state is ct.RunState.SUCCEEDED
    failed = next(trial for trial in run.trials() if trial.values["mode"] == mode)
    assert f"2 of 4 trials failed; trial {failed.number}: {failed.reason}" == run.last_status.reason
    assert run.best is not None
    assert run.best.values == {"mode": "good", "rate": 0.2}


@pytest.mark.slow
def test_failed_trials_run_again(
    make_sweep: MakeSweep, started: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under their numbers, with their values; the others stay as they are. Then the best trial's model is an input."""
    run = ended(
        make_sweep(
            search={"rate": [0.1, 0.9, 0.2], "mode": ["good", "later"]},
            strategy="grid",
            trials=None,
        )
    )
    before = run.trials()
    assert [trial.state is ct.RunState.FAILED for trial in before] == [False] * 3 + [True] * 3
    started.with_name("ready").touch()
    assert run_command(["rerun", run.name]) == 0
    after = run.trials()
    assert [trial.values for trial in after] == [trial.values for trial in before]
    assert after[:3] == before[:3]
    assert [trial.run for trial in after[3:]] == [
        f"{run.name}-t{number:03d}-2" for number in (4, 5, 6)
    ]
    assert run.status().state is ct.RunState.SUCCEEDED
    assert run.best == after[2]  # as good as the last one, and earlier
    with pytest.raises(UsageError, match="no trial of"):
        run.rerun()
    with pytest.raises(UsageError, match="repeats the trials of a sweep unchanged"):
        run.rerun(["hyperparameters.rate=1"])

    source = {"source_dir": str(tmp_path / "src"), "entry_point": "train.py"}
    reader = ct.TrainingJob(
        name="reader", **source, inputs={"model": {"local": f"run:{run.job_name}/model"}}
    )
    assert after[2].run in ct.plan(reader, "local").to_text(width=None)
    capsys.readouterr()
    assert run_command(["show", after[5].run, "--job"]) == 0
    assert "mode: later" in capsys.readouterr().out
    assert run_command(["show", run.name, "--job"]) == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    assert ct.load_sweep(tmp_path / "again.yaml").space.grid_size == 6
    assert run_command(["rerun", after[0].run]) == 0
    assert len(ct.runs()) == 2  # it is a run of its own now
    assert run.trials() == after


@pytest.mark.slow
def test_a_sweep_that_goes_on_prints_only_what_is_new(
    make_sweep: MakeSweep, started: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`continue` and `rerun` follow from where they began; `logs -f` prints everything, each line once."""
    search = {"rate": [0.1], "mode": ["good", "later", "silent"]}
    run = ended(make_sweep(search=search, strategy="grid", trials=2))
    before = [line.text for line in run.logs()]
    capsys.readouterr()
    run_command(["continue", run.name, "--trials", "1"])
    continued = capsys.readouterr().out.splitlines()
    started.with_name("ready").touch()
    assert run_command(["rerun", run.name]) == 0
    repeated = capsys.readouterr().out.splitlines()
    assert (before[0], continued[0]) == ("trial 1 started: mode=good rate=0.1", "1 more trials")
    assert repeated[0].startswith("these trials run again: 2")
    assert run_command(["logs", run.name, "-f"]) == 0
    assert capsys.readouterr().out.splitlines() == [*before, *continued, *repeated]


@pytest.mark.slow
def test_more_trials(make_sweep: MakeSweep) -> None:
    """A sweep that has ended goes on under its name; one that ended without more does not."""
    run = ended(make_sweep(trials=2))
    with pytest.raises(UsageError, match="all 2 trials"):
        run.resume()
    with pytest.raises(UsageError, match="at most 10,000 trials, and"):
        run.resume(9_999)
    run.resume(2)
    assert run.status().metrics["trials"] == 4
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
    assert len(run.trials()) == 4


@pytest.mark.slow
def test_a_damaged_journal_is_named(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its line and its path; nothing is started from what is left of it."""
    run = ended(make_sweep(trials=1))
    assert run.directory is not None
    with (run.directory / "study.jsonl").open("a") as file:
        file.write("{\n")
    for command in (["status"], ["trials"], ["logs"], ["continue", "--trials", "1"]):
        assert run_command([command[0], run.name, *command[1:]]) not in (0, 70)
        said = " ".join(capsys.readouterr().err.split())
        assert "of the sweep's journal is damaged" in said
        assert "[CT994]" in said


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_no_defect(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a read-only disk, `continue` and `rerun` name the folder."""
    run = ended(make_sweep(trials=1))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(ProcessLock, "take", refuse)
    for command in (["continue", run.name, "--trials", "1"], ["rerun", run.name]):
        assert run_command(command) not in (0, 70)
        assert "error: the files of the sweep cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_itself_does_not_wait_in_the_queue(
    make_sweep: MakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials do."""
    run = ended(make_sweep(trials=1))
    for command in (["drop", run.name], ["move", run.name, "--first"]):
        assert run_command(["queue", *command]) == 2
        assert "only its trials wait" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_whole_grid_has_no_more_trials(make_sweep: MakeSweep) -> None:
    """The hint never proposes more trials than the grid has combinations."""
    run = ended(make_sweep(search={"rate": [0.1, 0.2, 0.3]}, strategy="grid", trials=2))
    for ask in (run.resume, run.rerun):
        with pytest.raises(UsageError) as refused:
            ask()
        assert refused.value.hint == f"`cloudtrain continue {run.name} --trials 1` adds trials"
    run.resume(1)
    run.wait(DEADLINE)
    for ask in (run.resume, run.rerun, lambda: run.resume(1)):
        with pytest.raises(UsageError) as refused:
            ask()
        assert refused.value.hint == "submit another sweep with more values"


@pytest.mark.slow
def test_what_the_best_trial_wrote_is_offered(
    make_sweep: MakeSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a sweep whose trials leave the model folder empty offers the working files instead."""
    script = tmp_path / "src" / "train.py"
    make = make_sweep(trials=1)
    script.write_text(script.read_text() + "open('model.pt', 'w').write('weights')\n")
    run = ended(make)
    assert run_command(["wait", run.name]) == 0
    err = capsys.readouterr().err
    assert f"`cloudtrain download {run.name} work/`" in err
    assert "model/" not in err
    assert run_command(["download", run.name, "work/", "--to", str(tmp_path / "copy")]) == 0
    assert (tmp_path / "copy" / "model.pt").read_text() == "weights"


def test_the_best_trial_is_known_at_the_end(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """An input from a sweep that is running says to wait for the sweep."""
    (tmp_path / "src" / "train.py").write_text("import time\ntime.sleep(600)\n")
    sweep = make_sweep()
    run = submitted(sweep)
    job = sweep.job.replace(inputs={"model": ct.Input(local=f"run:{run.name}/model")})
    with pytest.raises(ct.JobError) as refused:
        ct.plan(job, "local")
    run.stop()
    assert (refused.value.problems[0].hint or "").startswith(
        f"wait for it: `cloudtrain wait {run.name}`; or "
    )
    run.wait(DEADLINE)


@pytest.mark.slow
def test_max_runtime_says_which_trials_are_left_and_begins_again(
    make_sweep: MakeSweep, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that ran out of time says so, and `continue` starts the trials that are left."""

    def start(_: SweepService, folder: DrivenFolder) -> None:
        command = [sys.executable, "-c", NURSERY, str(state_dir)]
        subprocess.run(
            command, input=json.dumps([folder.name, "told"]) + "\n", text=True, check=True
        )

    with monkeypatch.context() as patch:
        patch.setattr(SweepService, "_start", start)
        run = submitted(make_sweep(trials=2, max_runtime="1h"))
    long_ago = time.time() - 7200
    DrivenFolder(state_dir, "sweep", run.name).write_status(
        ct.RunState.RUNNING, None, start_time=long_ago, since=long_ago
    )
    run.resume()
    status = run.wait(DEADLINE)
    assert (status.state, len(run.trials())) == (ct.RunState.SUCCEEDED, 1)
    assert status.reason == (
        f"`max_runtime` had passed with 1 of 2 trials not started; `cloudtrain continue {run.name}` starts the rest"
    )
    run.resume()
    status = run.wait(DEADLINE)
    assert (status.state, status.reason, len(run.trials())) == (ct.RunState.SUCCEEDED, None, 2)


@pytest.mark.slow
def test_stop_ends_every_trial(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """And no other is started."""
    (tmp_path / "src" / "train.py").write_text(
        "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    )
    run = submitted(make_sweep(trials=5, parallel=2))
    for line in run.logs(follow=True):
        if line.text.startswith("trial 2 started"):
            break
    run.stop()
    assert run.wait(DEADLINE).state is ct.RunState.STOPPED
    assert [trial.state for trial in run.trials()] == [ct.RunState.STOPPED] * 2


def test_stop_right_after_submit(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """The driver has told its process id, and has not read its specification yet."""
    (tmp_path / "src" / "train.py").write_text("import time\ntime.sleep(600)\n")
    run = submitted(make_sweep(trials=5, parallel=2))
    run.stop()
    assert run.wait(DEADLINE).state is ct.RunState.STOPPED


def test_a_signal_ends_one_sleep_only() -> None:
    """Otherwise a driver that was asked to stop would ask for its trials without a pause until they have ended."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.write(writer, bytes([signal.SIGTERM]))
    sleep_until_woken(reader, DEADLINE)
    assert select.select([reader], [], [], 0)[0] == []
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
def test_a_sweep_that_is_being_continued_is_not_lost(
    make_sweep: MakeSweep, state_dir: Path
) -> None:
    """Its driver is starting, and another command looks. A stop signals nobody then; the driver finds the file."""
    run = ended(make_sweep(trials=2))
    folder = DrivenFolder(state_dir, "sweep", run.name)
    turn = ProcessLock.take(folder.turn, patience=DEADLINE)
    assert turn is not None
    folder.write_status(ct.RunState.PENDING, None, start_time=1.0, pid=0)
    assert run.status().state is ct.RunState.PENDING
    driver = ProcessLock.take(folder.lock, patience=DEADLINE)
    assert driver is not None
    run.stop()
    assert folder.stop.exists()
    driver.release()
    assert run.status().state is ct.RunState.PENDING
    turn.release()
    assert run.status().state is ct.RunState.LOST


@pytest.mark.slow
def test_stop_ends_the_trials_of_a_driver_that_was_killed(
    make_sweep: MakeSweep, tmp_path: Path, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They cost money on a cloud, and nobody watches them."""
    (tmp_path / "src" / "train.py").write_text("import time\ntime.sleep(600)\n")
    run = submitted(make_sweep(trials=5, parallel=2))
    for line in run.logs(follow=True):
        if line.text.startswith("trial 2 started"):
            break
    folder = DrivenFolder(state_dir, "sweep", run.name)
    os.kill(folder.read_status()["pid"], signal.SIGKILL)
    while run.status().state is not ct.RunState.LOST:
        time.sleep(0.05)
    assert run_command(["wait", run.name]) == 1
    assert f"`cloudtrain trials {run.name}` lists its trials" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run_command(["rm", run.name]) == 2
    assert f"`cloudtrain stop {run.name} --wait` ends them" in capsys.readouterr().err
    assert run_command(["stop", run.name, "--wait"]) == 0
    assert f"`{run.name}` is stopped" in capsys.readouterr().err
    assert [run.trial(number).status().state for number in (1, 2)] == [ct.RunState.STOPPED] * 2


@pytest.mark.slow
def test_two_that_continue_at_once_do_not_both_add_trials(
    make_sweep: MakeSweep, state_dir: Path
) -> None:
    """The second is told that the sweep goes on, although no driver has taken over yet."""
    run = ended(make_sweep(trials=2))
    turn = ProcessLock.take(DrivenFolder(state_dir, "sweep", run.name).turn)
    assert turn is not None
    with pytest.raises(UsageError, match="is still running"):
        run.resume(2)
    turn.release()
    run.resume(2)
    assert run.wait(DEADLINE).metrics["trials"] == 4


@pytest.mark.slow
def test_a_sweep_goes_on_although_its_driver_is_still_leaving(
    make_sweep: MakeSweep, state_dir: Path
) -> None:
    """A driver notes the end in the store after it has written the end, and has its lock until then."""
    run = ended(make_sweep(trials=2))
    leaving = ProcessLock.take(DrivenFolder(state_dir, "sweep", run.name).lock, patience=DEADLINE)
    assert leaving is not None
    release = threading.Timer(1.0, leaving.release)
    release.start()
    run.resume(2)
    assert run.wait(DEADLINE).metrics["trials"] == 4
    release.join()


@pytest.mark.slow
def test_more_trials_than_are_drawn_at_random_need_optuna_before_they_start(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`continue` refuses them, and the sweep stays as it was."""
    run = ended(make_sweep(trials=2, strategy="bayesian"))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match="needs Optuna"):
        run.resume(9)
    assert run.status().state is ct.RunState.SUCCEEDED
    run.resume(1)
    assert run.wait(DEADLINE).metrics["trials"] == 3


@pytest.mark.slow
def test_an_array_from_the_command_line(
    make_sweep: MakeSweep, tmp_path: Path, started: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every combination, under one name; its trials as a table, and the output of one."""
    make_sweep()
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: small\nsource_dir: src\nentry_point: train.py\nenvironment: {{variables: {{STARTED: {started}}}}}\n"
    )
    each = ("--each", "hyperparameters.rate=0.1,0.2", "--each", "hyperparameters.mode=good,silent")
    assert run_command(["submit", str(file), *each, "--parallel", "2"]) == 0
    capsys.readouterr()
    assert run_command(["trials", "last", "--csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:5] == ["trial", "run", "state", "value", "values.mode"]
    assert [row[4:6] for row in rows[1:]] == [
        ["good", "0.1"],
        ["good", "0.2"],
        ["silent", "0.1"],
        ["silent", "0.2"],
    ]
    times = [row[rows[0].index("ended")] for row in rows[1:]]
    assert all(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").year > 2000 for text in times)
    assert run_command(["logs", "last", "--trial", "3"]) == 0
    assert "loss=1" in capsys.readouterr().out
    assert run_command(["status", "last"]) == 0
    assert "4 of 4 ended" in capsys.readouterr().out
    assert run_command(["logs", "last", "--trial", "9"]) == 3
    assert run_command(["ps"]) == 0
    assert capsys.readouterr().out.count("small-") == 1


def test_a_look_at_a_thousand_trials_asks_for_none_of_them(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is shown of them is in the journal: one read of it for each command."""
    reads = list[Path]()

    def start(_: SweepService, folder: DrivenFolder) -> None:
        lines = [
            {"event": "asked", "trial": number, "values": {"rate": number}}
            for number in range(1, 1001)
        ]
        (folder.path / study.FILE_NAME).write_text(
            "".join(json.dumps({"at": 0.0, **line}) + "\n" for line in lines)
        )
        folder.write_status(ct.RunState.SUCCEEDED, None, start_time=0.0, metrics={"trials": 1000})

    def read(folder: Path) -> list[dict[str, Any]]:
        reads.append(folder)
        return read_events(folder)

    def asked(_: LocalService, ref: ct.RunRef) -> ct.RunStatus:
        raise AssertionError(f"{ref} was asked for")

    read_events = study.read_events
    monkeypatch.setattr(SweepService, "_start", start)
    monkeypatch.setattr(study, "read_events", read)
    monkeypatch.setattr(LocalService, "status", asked)
    submitted(make_sweep(trials=1000))
    for command, expected in {
        "ps": 0,
        "status last": 1,
        "trials last": 1,
        "trials last --best 5": 1,
    }.items():
        reads.clear()
        assert run_command(command.split()) == 0
        assert len(reads) == expected
    assert "1000 running" in capsys.readouterr().out


def test_a_running_trial_has_its_newest_value(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is no result yet, so that no running trial is the best."""

    def start(_: SweepService, folder: DrivenFolder) -> None:
        lines = [
            {"event": "asked", "trial": number, "values": {"rate": number}} for number in (1, 2)
        ]
        (folder.path / study.FILE_NAME).write_text(
            "".join(json.dumps({"at": 0.0, **line}) + "\n" for line in lines)
        )
        progress = {1: {"step": 3.0, "score": 0.75}}
        folder.write_status(ct.RunState.RUNNING, None, start_time=0.0, progress=progress)

    monkeypatch.setattr(SweepService, "_start", start)
    sweep = sweep_of(submitted(make_sweep(trials=2)))
    assert run_command(["trials", "last", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows] == [0.75, None]
    assert [trial.value for trial in sweep.trials()] == [None, None]
    assert sweep.best is None


def test_values_of_trials_cannot_steer_a_terminal(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table, as CSV, where no cell is a formula, and as JSON, which keeps them."""
    evil = "a\x1b[2J\x9b1m\r\u202eb\nerror: forged"

    def start(_: SweepService, folder: DrivenFolder) -> None:
        line = {
            "at": 0.0,
            "event": "asked",
            "trial": 1,
            "values": {f"n\u202e{evil[0]}": evil, "sum": "=1+1"},
        }
        (folder.path / study.FILE_NAME).write_text(json.dumps(line) + "\n")
        folder.write_status(ct.RunState.SUCCEEDED, evil, start_time=0.0, metrics={"trials": 1})

    monkeypatch.setattr(SweepService, "_start", start)
    submitted(make_sweep(trials=1))
    for command in (
        "trials last",
        "trials last --csv",
        "trials last --json",
        "status last",
        "ps --trials",
        "show last",
    ):
        capsys.readouterr()
        assert run_command(command.split()) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\x9b", "\r", "\u202e"} & {*out}, command
        assert not any(line.startswith("error: forged") for line in out.splitlines())
        assert "--csv" not in command or ",'=1+1," in out
        assert "--json" not in command or evil in json.loads(out)[0].values()


def test_trials_of_a_run_that_is_no_sweep(make_sweep: MakeSweep) -> None:
    """It is said, with what is one."""
    run = ct.submit(make_sweep().job, "local")
    with pytest.raises(UsageError, match="is not a sweep"):
        sweep_of(run)
    run.wait(DEADLINE)


@pytest.mark.slow
def test_a_removed_sweep_takes_its_trials_along(make_sweep: MakeSweep, state_dir: Path) -> None:
    """Rows and folders."""
    run = ended(make_sweep(trials=2))
    run.remove()
    assert ct.runs(trials=True) == []
    assert list((state_dir / "sweeps").iterdir()) == []
    assert list((state_dir / "runs").iterdir()) == []
    with pytest.raises(RunNotFound):
        ct.run(run.name)


FULL = """
import sys
from pathlib import Path
from cloudtrain.lifecycle.sweeps import study
from cloudtrain.lifecycle.sweep_driver import drive
from cloudtrain.lifecycle.detached.driven import DrivenFolder
write = study.Journal.write
def full(self, event, **fields):
    if event == "asked" and fields["trial"] == 2:
        raise OSError(28, "No space left on device")
    write(self, event, **fields)
study.Journal.write = full
drive(DrivenFolder(Path(sys.argv[1]), "sweep", sys.argv[2]), lambda: None)
"""


@pytest.mark.slow
def test_a_full_disk_ends_a_sweep_with_a_sentence(
    make_sweep: MakeSweep, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it goes on when there is room again."""
    with monkeypatch.context() as patched:

        def start(_: SweepService, folder: DrivenFolder) -> None:
            subprocess.run([sys.executable, "-c", FULL, str(state_dir), folder.name], check=True)

        patched.setattr(SweepService, "_start", start)
        run = submitted(make_sweep(trials=3))
    assert run.status().state is ct.RunState.FAILED
    assert run.last_status.reason == (
        f"the sweep's folder cannot be written: No space left on device; `cloudtrain continue {run.name}` continues the sweep"
    )
    run.resume()
    assert run.wait(DEADLINE).state is ct.RunState.SUCCEEDED
    assert len(run.trials()) == 3


WITHOUT_OPTUNA = """
import sys
from pathlib import Path
sys.modules["optuna"] = None
from cloudtrain.lifecycle import sweep_driver as driver
from cloudtrain.lifecycle.sweeps import study as strategies
from cloudtrain.lifecycle.detached.driven import DrivenFolder
strategies.DRAWN_FIRST, strategies._LEAST = 1, 1
driver.drive(DrivenFolder(Path(sys.argv[1]), "sweep", sys.argv[2]), lambda: None)
"""


@pytest.mark.slow
def test_a_driver_that_fails_says_what_to_type(
    make_sweep: MakeSweep, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its error advises, and how to go on afterwards."""

    def start(_: SweepService, folder: DrivenFolder) -> None:
        subprocess.run(
            [sys.executable, "-c", WITHOUT_OPTUNA, str(state_dir), folder.name], check=True
        )

    monkeypatch.setattr(SweepService, "_start", start)
    run = submitted(make_sweep(strategy="bayesian"))
    assert run.status().state is ct.RunState.FAILED
    assert (run.last_status.reason or "").endswith(
        f"{pip_line('sweeps')}, or use `strategy: random`; `cloudtrain continue {run.name}` continues the sweep"
    )


@pytest.mark.slow
def test_weak_trials_are_stopped_early(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """They are shown as such, and do not count as failed."""
    (tmp_path / "src" / "train.py").write_text(
        "import sys, time\nfrom cloudtrain import runtime\nrate = float(sys.argv[sys.argv.index('--rate') + 1])\n"
        "step = 0\nwhile rate == 0.5 or step < 5:\n    runtime.report(step=step, score=1 - rate)\n    step += 1\n"
        "    time.sleep(0.05)\n"
    )
    run = ended(
        make_sweep(
            search={"rate": [0.1, 0.5]},
            strategy="grid",
            trials=None,
            stop_early={"median": {"after": 2}},
        )
    )
    assert run.state is ct.RunState.SUCCEEDED
    assert [(trial.stopped_early, str(trial.state)) for trial in run.trials()] == [
        (False, "succeeded"),
        (True, "stopped"),
    ]
    assert (run.trials()[1].reason or "").startswith(
        "its best score, 0.5, was worse than the median"
    )
