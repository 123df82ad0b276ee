"""`submit --queue` and `cloudtrain queue`: what a user sees, with real runs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError, UsageError
from tests.cli.conftest import Cli
from tests.hints import suggested
from tests.targets.places import eventually

HOLDS = (
    "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
)

Submit = Callable[..., str]


@pytest.fixture
def submit(cli: Cli, clean_environment: Path) -> Submit:
    """Submits a script that waits for a file, and gives the run's name."""
    Path("cloudtrain.toml").write_text("[local]\nslots = 1\n")

    def run(name: str, *flags: str) -> str:
        Path(name).mkdir()
        Path(name, "train.py").write_text(HOLDS)
        Path(f"{name}.yaml").write_text(
            f"name: {name}\nsource_dir: {name}\nentry_point: train.py\n"
        )
        result = cli("submit", f"{name}.yaml", "--queue", "--detach", *flags)
        assert result.code == 0, result.err
        return result.out.strip()

    return run


def release(state_dir: Path, *names: str) -> None:
    """Let scripts end, also of runs that are unpacking their code at this moment."""
    for name in names:
        eventually(
            lambda folder=state_dir / f"runs/{name}": (folder / "unpacked").exists(),
            "its code is unpacked",
        )
        (state_dir / f"runs/{name}/code/go").touch()


def has_started(cli: Cli, name: str) -> None:
    eventually(lambda: "up" in cli("logs", name).out)


@pytest.mark.slow
@pytest.mark.lifecycle
def test_a_day_in_the_queue(cli: Cli, submit: Submit, state_dir: Path) -> None:
    """Submitted, listed, moved, dropped, followed."""
    first = submit("one")
    has_started(cli, first)
    second, third = submit("two"), submit("three")
    urgent = submit("urgent", "--priority", "5")
    rows = [line.split() for line in cli("queue").out.splitlines()]
    assert rows[0] == ["PLACE", "NAME", "NEEDS", "HAS", "PRIORITY", "SINCE"]
    assert [row[:2] for row in rows[2:]] == [["1", urgent], ["2", second], ["3", third]]
    assert rows[1][:4] == [first, "1", "CPU", "slot"]
    items = json.loads(cli("queue", "--json").out)
    assert [(item["name"], item["place"], item["priority"]) for item in items] == [
        (first, None, 0), (urgent, 1, 5), (second, 2, 0), (third, 3, 0)
    ]  # fmt: skip
    assert items[0] | {"since": 0} == {
        "name": first, "ref": f"local://{items[0]['ref'].split('/')[2]}/{first}", "place": None, "needs": "",
        "has": "1 CPU slot", "priority": 0, "since": 0,
    }  # fmt: skip

    moved = cli("queue", "move", third, "--before", urgent)
    assert (moved.code, moved.err) == (0, f"`{third}` has place 1\n")
    ps = cli("ps").out
    assert f"{third} queued 1" in " ".join(ps.split())
    assert [
        json.loads(cli("status", name, "--json").out)["queue_place"] for name in (first, urgent)
    ] == [None, 2]
    assert "place 2" in cli("status", urgent).out
    assert cli("ps", "--state", "queued").out.count("queued") == 3
    gone = cli("queue", "drop", urgent)
    assert gone.err == f"`{urgent}` was dropped before it started\n"
    waited = cli("wait", urgent)
    words = f"`{urgent}` was stopped: stopped on request while it was queued; nothing had started"
    assert (waited.code, " ".join(waited.err.split())) == (1, words)
    assert json.loads(cli("status", urgent, "--json").out)["state"] == "stopped"

    started = cli("queue", "drop", first)
    assert started.code == 2
    assert f"`{first}` is not waiting in the queue [CT940]" in started.err
    assert f"`cloudtrain stop {first}` ends it" in started.err
    assert cli("stop", second).code == 0
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "logs", "-f", third],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stderr is not None
        assert (
            follower.stderr.readline()
            == f"`{third}` is queued: place 1, waits for 1 CPU slot of 1\n"
        )
        release(state_dir, first, third)
        out, err = follower.communicate()
    assert (follower.returncode, out) == (0, "[rank 0] up\n")
    assert f"`{third}` succeeded" in err
    eventually(lambda: cli("queue").err.startswith("the queue is empty; "), "the last one leaves")
    assert [item["state"] for item in json.loads(cli("ps", "--json").out)] == [
        "stopped", "succeeded", "stopped", "succeeded"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.lifecycle
def test_the_setting(cli: Cli, job: str) -> None:
    """`queue = true` is the default then, and `--no-queue` goes round it."""
    Path("cloudtrain.toml").write_text("[local]\nqueue = true\npriority = 3\n")
    plan = json.loads(cli("submit", job, "--dry-run", "--json").out)
    assert plan["request"]["queue"]["priority"] == 3
    assert (
        "queue" not in json.loads(cli("plan", job, "--no-queue", "--format", "json").out)["request"]
    )
    assert cli("submit", job).code == 0


def test_a_state_folder_that_is_none(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named; it is no defect."""
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", "/dev/null")
    result = cli("queue")
    assert result.code != 0
    assert result.err.startswith("error: the queue cannot be read")
    assert "CLOUDTRAIN_STATE_DIR" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queue", "--target", "slurm"], ["`slurm` does not use cloudtrain's queue [CT902]", "`cloudtrain ps --target slurm`", "`cloudtrain queue --target local`"]),
        (["queue", "--target", "slrum"], ["`slrum` is not a target [CT913]", suggested("slurm")]),
        (["queue", "move", "last"], ["the new position is missing", "`--first`, `--last` or `--before OTHER`"]),
        (["queue", "move", "last", "--first", "--last"], ["the new position is missing"]),
        (["queue", "--json", "drop", "last"], ["`--json` has no effect with `drop`"]),
        (["queue", "drop", "nobody"], ["there is no run `nobody`"]),
        (["submit", "job.yaml", "--priority", "3"], ["`priority` has no effect without `queue`", "add `--queue`"]),
        (["submit", "job.yaml", "--queue", "--target", "sagemaker"], ["`--queue` works only on the local target"]),
        (["submit", "job.yaml", "--queue", "--instances", "9"], ["need 9 CPU slots", "--instances 2`", "`slots = 9`"]),
        (["squeue"], [suggested("cloudtrain queue")]),
    ],
)  # fmt: skip
def test_mistakes(cli: Cli, job: str, arguments: list[str], words: list[str]) -> None:
    """Each says what to type."""
    Path("cloudtrain.toml").write_text("[local]\nslots = 2\n")
    result = cli(*arguments)
    text = " ".join((result.out + result.err).split())
    assert result.code in (2, 3)
    for word in words:
        assert word in text


def test_settings_that_are_wrong(cli: Cli, job: str) -> None:
    """Each with its place in the file."""
    Path("cloudtrain.toml").write_text('[local]\nqueue = "yes"\nslots = 0\ngpus = 2\n')
    result = cli("plan", job)
    assert result.code == 2
    for field, line in (("queue", 2), ("slots", 3), ("gpus", 4)):
        assert f"cloudtrain.toml:{line}:" in result.err, field


@pytest.mark.lifecycle
def test_from_python(clean_environment: Path) -> None:
    """`queue` and `priority` go before the settings of the target."""
    Path("train.py").write_text("print(1)\n")
    job = ct.TrainingJob(name="job", source_dir=".", entry_point="train.py")
    plans = list[ct.Plan]()
    run = ct.submit(job, queue=True, priority=2, on_plan=plans.append)
    assert str(run.wait().state) == "succeeded"
    assert plans[0].request["queue"]["priority"] == 2
    with pytest.raises(JobError, match="`priority` has no effect"):
        ct.submit(job, priority=2)
    with pytest.raises(UsageError, match="`sagemaker` does not use cloudtrain's queue"):
        ct.submit(job, "sagemaker", queue=True)
