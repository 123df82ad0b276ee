"""Submit commands that are killed at random times, on each target: one run and one row each, told to the user.

Each kill is `cloudtrain submit --detach`, SIGKILL after a random part of the time that the command takes, and the same
command again. What the user read counts: a command that printed the name and died before it could note so is followed
by one that prints the same name again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import yaml

from cloudtrain.system.files import STORE_FILE
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws
from tests.lifecycle.submission.forking import Submitter, start_submitter
from tests.lifecycle.submission.test_exactly_once_azureml import TARGET as AZUREML
from tests.lifecycle.submission.test_exactly_once_sagemaker import INSTANCE
from tests.lifecycle.submission.test_exactly_once_sagemaker import TARGET as SAGEMAKER

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

HERE = Path(__file__).parent
KILLS = int(os.environ.get("CLOUDTRAIN_TEST_KILLS", "20"))


@pytest.fixture(params=["local", "sagemaker", "azureml"])
def jobs(
    request: pytest.FixtureRequest, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """What a target has: the names of its runs. The environment leads there."""
    target = str(request.param)
    settings = {"sagemaker": SAGEMAKER, "azureml": AZUREML}.get(target, {})
    lines = [
        f'target = "{target}"',
        f"[{target}]",
        *(f'{name} = "{value}"' for name, value in settings.items()),
    ]
    Path("cloudtrain.toml").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("CRASHING", str(HERE / f"crashing_{target}.py"))
    if target == "local":
        yield lambda: [path.parent.name for path in (state_dir / "runs").glob("*/status.json")]
        return
    with FakeAws() if target == "sagemaker" else FakeAzure() as service:
        if isinstance(service, FakeAws):
            service.identity.quotas[f"{INSTANCE} for training job usage"] = 4.0
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield lambda: list(service.jobs.by_name)


@pytest.fixture
def submitter(jobs: object) -> Iterator[Submitter]:
    """The process that forks the commands."""
    with start_submitter(Path(os.environ["CRASHING"])) as found:
        yield found


def write_job(name: str) -> str:
    """A job file that every target takes."""
    Path("src").mkdir(exist_ok=True)
    Path("src/train.py").write_text("print(1)\n")
    job = {
        "name": name,
        "source_dir": "src",
        "entry_point": "train.py",
        "environment": {
            "image": {
                "sagemaker": "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.8.0-cpu-py312-ubuntu22.04-sagemaker",
                "azureml": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:20240709.v1",
            }
        },
        "resources": {"instance_type": {"sagemaker": INSTANCE, "azureml": "Standard_DS3_v2"}},
        "max_runtime": "1h",
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(job))
    return f"{name}.yaml"


def test_killed_at_random_times(
    jobs: Callable[[], list[str]], submitter: Submitter, state_dir: Path
) -> None:
    """One run and one row for each pair of a killed command and its repetition, and the user knows its name; two where
    the killed one had told of its run, and the store knew."""
    random, told = Random(1), list[str]()
    whole = submitter.submit(job=write_job("whole"))
    told += whole["told"].split()
    for number in range(KILLS):
        job = write_job(f"k{number}")
        killed = submitter.submit(job=job, killed_after=random.uniform(0.0, 1.1) * whole["seconds"])
        first = [line for line in killed["told"].splitlines(keepends=True) if line.endswith("\n")]
        again = submitter.submit(job=job)
        assert again["ended"] == 0, again
        (second,) = again["told"].split()
        names = {*(line.strip() for line in first), second}
        assert {name for name in jobs() if name.startswith(f"k{number}-")} == names, (killed, again)
        assert not (len(names) > 1 and not first)
        told += names
    assert sorted(jobs()) == sorted(told)
    with sqlite3.connect(state_dir / STORE_FILE) as db:
        rows = db.execute("SELECT name, stage FROM runs ORDER BY name").fetchall()
    db.close()
    assert rows == [(name, "reported") for name in sorted(told)]
