"""Runs on a real cluster, from submission to their end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cloudtrain.errors import RunNotFound, TargetError
from cloudtrain.job.processing import ProcessingJob
from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import REPOSITORY, Run, Site, command, eventually

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

DIGITS = REPOSITORY / "training_scripts" / "digits_ddp"
TWO = {"instance_count": 2}
ENDLESS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ENDLESS
SAVING = (
    "import signal, sys, time\nfrom cloudtrain.runtime import model_dir\n"
    "def save(*_):\n    time.sleep(3)\n    (model_dir() / 'saved').write_text('yes')\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n" + ENDLESS
)


def test_cancelled_by_slurm(site: Site) -> None:
    """A job that somebody cancels with Slurm's own command is a run that was stopped."""
    run = site.submit(ENDLESS, name="cancelled-1")
    run.wait_for_line("up")
    command(site.environ, "scancel", run.job)
    status = run.wait()
    assert (status.state, status.reason) == (RunState.STOPPED, "the job was cancelled")


def test_cancelled_while_it_waits(site: Site) -> None:
    """A job that waits for nodes is stopped without ever having started."""
    run = site.submit(ENDLESS, name="waits-1", settings={"extra_sbatch": ("--begin=now+1hour",)})
    assert run.status.state is RunState.PENDING
    site.service.stop(run.ref)
    status = run.wait()
    assert (status.state, status.started) == (RunState.STOPPED, None)
    assert run.lines(follow=True) == []


def test_stop_lets_every_rank_save(site: Site) -> None:
    """A stop waits for the processes to save, on every node."""
    run = site.submit(SAVING, name="saves-1", resources=TWO)
    eventually(lambda: run.texts().count("up") == 2, "both ranks are up")
    site.service.stop(run.ref)
    assert run.status.state in (RunState.STOPPING, RunState.STOPPED)
    assert run.wait().state is RunState.STOPPED
    assert [file.name for file in site.service.download(run.ref, "model", site.root / "got")] == [
        "saved"
    ]
    accounted = ["sacct", "-X", "-n", "-P", f"--jobs={run.job}", "--format=State"]
    eventually(
        lambda: command(site.environ, *accounted).startswith("CANCELLED"),
        "it is accounted as cancelled",
    )


def test_stop_kills_after_the_grace_period(site: Site) -> None:
    """What ignores SIGTERM is killed when the grace period is over."""
    run = site.submit(STUBBORN, name="stubborn-1", settings={"grace_period": 2})
    run.wait_for_line("up")
    site.service.stop(run.ref)
    status = run.wait()
    assert status.state is RunState.STOPPED
    assert status.ended is not None
    assert status.started is not None


@pytest.mark.slow
def test_time_limit(site: Site) -> None:
    """A job that reaches its time limit may save before, and has failed for that reason."""
    run = site.submit(SAVING, name="limit-1", max_runtime="2m", settings={"grace_period": 30})
    status = run.wait()
    assert (status.state, status.reason) == (RunState.FAILED, "the time limit was reached")
    assert (Path(site.shared) / "runs" / "limit-1" / "model" / "saved").exists()


def test_failed_rank(site: Site) -> None:
    """A failed run names the rank and its error, with its exit code and not that of a rank that Slurm ended then."""
    script = (
        "import os, time\nif os.environ['CLOUDTRAIN_INSTANCE'] == '1':\n    raise ValueError('bad thing')\n"
        "time.sleep(600)\n"
    )
    status = site.submit(script, name="fails-1", resources=TWO).wait()
    assert status.state is RunState.FAILED
    assert (status.failed_rank, status.reason) == (1, "rank 1: ValueError: bad thing (exit code 1)")


@pytest.mark.mpi
@pytest.mark.parametrize("plug_in", ["mpirun", "pmi2"])
def test_mpi(site: Site, plug_in: str) -> None:
    """mpirun and srun start the ranks on all nodes of the job, and each one's output is its own."""
    mpirun = str(Path(sys.executable).with_name("mpirun")) if plug_in == "mpirun" else plug_in
    script = (
        "import os\nprint(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['SLURM_PROCID'])\n"
    )
    run = site.submit(
        script,
        name=f"{plug_in}-1",
        resources=TWO,
        distribution={"type": "mpi", "processes_per_instance": 2},
        settings={"mpi": mpirun},
    )
    assert run.wait().state is RunState.SUCCEEDED
    assert {(line.instance, line.rank, line.text) for line in run.lines()} == {
        (0, 0, "0"), (0, 1, "1"), (1, 2, "2"), (1, 3, "3")
    }  # fmt: skip


def test_parameter_servers(site: Site) -> None:
    """Every task of a TensorFlow job has its place in one cluster, and the servers end when the chief has."""
    script = (  # the chief ends when the others have printed, because its end stops them
        "import json, os, time\nfrom cloudtrain.runtime import model_dir\n"
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "print(config['task']['type'], config['task']['index'], len(config['cluster']['ps']), flush=True)\n"
        "(model_dir() / config['task']['type']).touch()\n"
        "if config['task']['type'] == 'ps':\n    time.sleep(3600)\n"
        "while config['task']['type'] == 'chief' and len(list(model_dir().iterdir())) < 3:\n    time.sleep(0.05)\n"
    )
    distribution = {"type": "tensorflow", "strategy": "parameter_server", "parameter_servers": 1}
    run = site.submit(script, name="servers-1", resources=TWO, distribution=distribution)
    assert run.wait().state is RunState.SUCCEEDED
    assert [
        (line.rank, line.text) for line in sorted(run.lines(), key=lambda line: line.rank or 0)
    ] == [
        (0, "chief 0 1"),
        (1, "worker 0 1"),
        (2, "ps 0 1"),
    ]


def test_without_accounting(forgetful_site: Site) -> None:
    """Where nothing is accounted, the run's own journal tells what became of it when Slurm has forgotten the job."""
    runs = {
        RunState.SUCCEEDED: forgetful_site.submit("print('hello')\n", name="good-1"),
        RunState.FAILED: forgetful_site.submit("raise ValueError('bad')\n", name="bad-1"),
        RunState.STOPPED: forgetful_site.submit(ENDLESS, name="stop-1"),
    }
    runs[RunState.STOPPED].wait_for_line("up")
    forgetful_site.service.stop(runs[RunState.STOPPED].ref)
    before = {state: run.wait() for state, run in runs.items()}
    environ = forgetful_site.environ
    eventually(
        lambda: not command(environ, "squeue", "--noheader", "--states=all").strip(),
        "Slurm forgets the jobs",
    )
    assert {state: run.status for state, run in runs.items()} == before
    assert {status.state: state for state, status in before.items()} == {
        state: state for state in runs
    }


def test_unknown_run(site: Site) -> None:
    """A run that nobody sent is not found."""
    plan, _ = site.plan(name="nobody-1")
    with pytest.raises(RunNotFound):
        site.service.status(plan.ref)


def test_no_slurm(site: Site) -> None:
    """Where Slurm is not installed, the error says where to look for it."""
    plan, _ = site.plan(name="nowhere-1")
    folder = site.root / "bin"
    folder.mkdir()
    for name in ("bash", "mkdir", "flock", "id", "readlink", "rm"):
        (folder / name).symlink_to(command(site.environ, "which", name).strip())
    site.environ["PATH"], path = str(folder), site.environ["PATH"]
    with pytest.raises(TargetError) as caught:
        site.service.submit(plan)
    site.environ["PATH"] = path
    assert "host" in str(caught.value.hint)


def test_processing_job(site: Site) -> None:
    """A processing job runs on every node, which knows its number, and its output is one place."""
    script = (
        "import os\nfrom cloudtrain.runtime import output_dir\nnumber = os.environ['CLOUDTRAIN_INSTANCE']\n"
        "(output_dir('parts') / number).write_text(number)\n"
    )
    run = site.submit(
        script, name="process-1", kind=ProcessingJob, resources=TWO, outputs={"parts": {}}
    )
    assert run.wait().state is RunState.SUCCEEDED
    files = site.service.download(run.ref, "outputs/parts", site.root / "got")
    assert sorted(file.read_text() for file in files) == ["0", "1"]


def test_file_for_sbatch(site: Site) -> None:
    """sbatch takes what `--format sbatch` prints, and the run is the same."""
    plan, tree = site.plan("print('from a file')\n", name="file-1")
    site.service.upload(plan, tree)
    file = site.root / "job.sbatch"
    file.write_text(plan.forms()["sbatch"]())
    Path(plan.request["folder"]).mkdir(parents=True)
    command(site.environ, "sbatch", str(file))
    run = Run(site, plan.ref)
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["from a file"]


@pytest.mark.parametrize("line", ["exit 0", "cat <<EOF", "set -e; false"])
def test_setup_that_ends_the_script(site: Site, line: str) -> None:
    """A line of `setup` that ends the batch script is a failure that names it: no rank has run."""
    run = site.submit("print('up')\n", name="setup-1", settings={"setup": ("true", line)})
    status = run.wait()
    assert status.state is RunState.FAILED
    assert "`setup`" in str(status.reason)
    assert run.texts() == []


def test_setup_of_windows_with_a_trap(site: Site) -> None:
    """Lines that end as on Windows, and a trap of one's own, are no failure."""
    setup = ("export WHO=me\r", "trap 'echo bye' EXIT\r\nset -u\r")
    run = site.submit(
        "import os\nprint(os.environ['WHO'])\n", name="windows-1", settings={"setup": setup}
    )
    assert run.wait().state is RunState.SUCCEEDED
    assert run.texts() == ["me"]
    assert (Path(site.shared) / "runs" / "windows-1" / "slurm.out").read_text().splitlines()[
        -1
    ] == "bye"


def test_stop_of_a_suspended_job(site: Site) -> None:
    """A job that somebody suspended says how to resume it, and a stop ends it as it is."""
    run = site.submit(ENDLESS, name="suspended-1")
    run.wait_for_line("up")
    command(site.environ, "scontrol", "suspend", run.job)
    assert f"`scontrol resume {run.job}`" in str(run.status.reason)
    site.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED


def test_renamed_job(site: Site) -> None:
    """A job that somebody renamed is still the run's, in the queue and in the accounting, and it can be stopped."""
    run = site.submit(ENDLESS, name="renamed-1")
    run.wait_for_line("up")
    command(site.environ, "scontrol", "update", "job", run.job, "JobName=other")
    assert run.status.state is RunState.RUNNING
    site.service.stop(run.ref)
    assert run.wait().state is RunState.STOPPED
    (Path(site.shared) / "runs" / "renamed-1" / "journal").unlink()
    eventually(
        lambda: not command(site.environ, "squeue", "-h", "--states=all", "-o%i").strip(),
        "Slurm forgets the job",
    )
    assert run.status.state is RunState.STOPPED
