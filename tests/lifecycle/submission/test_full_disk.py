"""A disk on which nothing can be written: runs can be seen, read and stopped, and nothing new is sent."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.system.files import STORE_FILE
from tests.fakes.sagemaker.server import FakeAws
from tests.lifecycle.submission.test_exactly_once_sagemaker import INSTANCE, TARGET

pytestmark = pytest.mark.lifecycle


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """The account to which commands talk."""
    with FakeAws() as service:
        service.identity.quotas[f"{INSTANCE} for training job usage"] = 4.0
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


def _write_no_more() -> None:
    """Every write to a file fails, as on a full disk; pipes go on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command line in a process that cannot write files."""
    program = [sys.executable, "-m", "cloudtrain", *arguments]
    return subprocess.run(
        program, capture_output=True, text=True, check=False, preexec_fn=_write_no_more
    )


@pytest.fixture
def job(clean_environment: Path) -> ct.TrainingJob:
    """A job that goes on until it is stopped."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src/train.py").write_text(
        "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    )
    (clean_environment / "job.yaml").write_text(
        "name: job\nsource_dir: src\nentry_point: train.py\n"
    )
    return ct.TrainingJob(
        name="job",
        source_dir="src",
        entry_point="train.py",
        environment=ct.Environment(framework="pytorch", version="2.8"),
        resources=ct.Resources(instance_type={"sagemaker": INSTANCE}),
        max_runtime="1h",
    )


@pytest.mark.slow
def test_a_run_on_a_cloud_can_be_stopped(fake: FakeAws, job: ct.TrainingJob) -> None:
    """`ps`, `status`, `logs` and `stop` work; the service is asked to stop the job."""
    run = ct.submit(job, ct.SageMaker(**TARGET))
    for arguments in (
        ("ps", "--json"),
        ("status", "last", "--json"),
        ("logs", "last"),
        ("stop", "last"),
    ):
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done)
        if "--json" in arguments:
            assert run.name in str(json.loads(done.stdout))
    assert len(fake.operations("StopTrainingJob")) == 1


@pytest.mark.slow
def test_a_run_on_this_machine_can_be_stopped(job: ct.TrainingJob) -> None:
    """The same, although its status cannot be kept in the store."""
    run = ct.submit(job, "local")
    while not any(line.text == "here" for line in run.logs()):
        time.sleep(0.02)
    assert [
        command(*words).returncode for words in (("ps",), ("status", "last"), ("stop", run.name))
    ] == [0, 0, 0]
    assert "here" in command("logs", "last").stdout
    assert str(run.wait().state) == "stopped"


def test_nothing_new_is_sent(fake: FakeAws, job: ct.TrainingJob, state_dir: Path) -> None:
    """A submit says what is full, and leaves nothing at the service."""
    done = command("submit", "job.yaml", "--detach", "--target", "local")
    assert (done.returncode, done.stdout) == (4, "")
    assert "the run store in" in done.stderr
    assert not (state_dir / "runs").exists()


def test_a_log_without_its_index_is_read_without_it(job: ct.TrainingJob, state_dir: Path) -> None:
    """The write-ahead log of a writer that died, where no file can be made beside it."""
    run = ct.submit(job, "local")
    run.stop()
    run.wait()
    (state_dir / f"{STORE_FILE}-wal").write_bytes(b"")
    (state_dir / f"{STORE_FILE}-shm").mkdir()  # nor can the index be
    with read_store(state_dir) as store:
        assert [record.name for record in store.newest()] == [run.name]
