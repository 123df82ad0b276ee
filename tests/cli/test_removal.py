"""`rm` and `prune`: what goes, what stays, and that a name is never given twice."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.store.schema import open_store
from tests.cli.conftest import Cli
from tests.cli.test_runs import fate, submitted
from tests.hints import suggested


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A folder with a job that writes a model and ends at once."""
    (clean_environment / "train.py").write_text(
        "import os\nopen(os.environ['CLOUDTRAIN_MODEL_DIR'] + '/m', 'w').write('x' * 5000)\n"
    )
    (clean_environment / "job.yaml").write_text(
        "name: quick\nentry_point: train.py\noutputs: {report: {local: report}}\n"
    )
    return clean_environment


def names(cli: Cli) -> list[str]:
    """What `ps` lists, the newest first."""
    return [item["name"] for item in json.loads(cli("ps", "--all", "--json").out)]


@pytest.mark.lifecycle
def test_rm(cli: Cli, project: Path, state_dir: Path) -> None:
    """The row and the folder go, declared outputs stay, and the same job gets another name than before."""
    first = ct.submit(ct.load_job("job.yaml"))
    assert first.wait().state == "succeeded"
    (project / "report" / "kept.txt").write_text("mine")
    assert first.directory is not None
    assert (first.size or 0) > 5000
    assert json.loads(cli("ps", "--size", "--json").out)[0]["size"] == first.size
    assert cli("rm", "last").out == f"{first.name}\n"
    assert not first.directory.exists()
    assert list(first.directory.parent.iterdir()) == []
    assert (project / "report" / "kept.txt").read_text() == "mine"
    assert names(cli) == []
    again = cli("status", first.name)
    assert again.code == 3
    assert f"the run `{first.name}` was removed" in again.err
    second = ct.submit(ct.load_job("job.yaml"))
    assert second.name != first.name
    second.wait()


@pytest.mark.lifecycle
def test_a_run_that_goes_on_is_not_removed(cli: Cli, project: Path) -> None:
    """It is named with the command that ends it; nothing of it is touched."""
    (project / "train.py").write_text("import time\ntime.sleep(600)\n")
    run = ct.submit(ct.load_job("job.yaml"))
    try:
        result = cli("rm", run.name)
        assert result.code == 2
        assert f"`cloudtrain stop {run.name} --wait` ends it" in result.err
        assert cli("prune", "--keep", "0", "--yes").out == ""
        assert not run.status().state.is_final
    finally:
        run.stop()
        run.wait()


def test_prune(cli: Cli, scripted: Path, job: str, state_dir: Path) -> None:
    """Every option narrows the choice; --dry-run removes nothing; without --yes somebody has to be asked."""
    made = [submitted(cli, "--set", f"hyperparameters.epochs={epochs}") for epochs in range(1, 5)]
    fate(scripted, states={made[0]: "failed", made[1]: "running"}, state="succeeded")
    cli("ps")  # asks how they are
    with open_store(state_dir) as store:
        for name, ended in ((made[0], 3 * 86400.0), (made[2], 86400.0)):
            store._db.execute(
                "UPDATE runs SET ended = ? WHERE name = ?", (time.time() - ended, name)
            )
    assert cli("prune", "--state", "failed", "--dry-run").out.split() == [made[0]]
    assert cli("prune", "--older-than", "2d", "--dry-run").out.split() == [made[3], made[0]]
    assert cli("prune", "--older-than", "2d", "--state", "succeeded", "--dry-run").out.split() == [
        made[3]
    ]
    assert cli("prune", "--keep", "1", "--dry-run").out.split() == [made[2], made[0]]
    nothing = cli("prune", "--keep", "0", "--job", "other", "--dry-run")
    assert nothing == (0, "", "no run matches; nothing would be removed\n")
    refused = cli("prune", "--keep", "1")
    assert (refused.code, refused.out) == (6, "")
    assert "2 runs would be removed; nothing was removed" in refused.err
    assert len(names(cli)) == 4
    assert cli("prune", "--keep", "1", "--yes").out.split() == [made[2], made[0]]
    assert names(cli) == [made[3], made[1]]


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.parametrize(
    ("by", "kept"), [("accuracy", [0.9, 0.7]), ("-accuracy", [0.2, 0.5]), ("acuracy", None)]
)
def test_keep_the_best(cli: Cli, project: Path, by: str, kept: list[float] | None) -> None:
    """`--by` keeps the best by a metric, `-` before it the lowest; a metric that no run has removes nothing."""
    (project / "train.py").write_text(
        "import sys\nprint('[metrics] step=1 accuracy=' + sys.argv[2])\n"
    )
    runs = {}
    for value in (0.5, 0.9, 0.2, 0.7):
        run = ct.submit(ct.load_job("job.yaml", [f"hyperparameters.value={value}"]))
        assert run.wait().state == "succeeded"
        runs[run.name] = value
    result = cli("prune", "--keep", "2", "--by", by, "--yes")
    assert result.code == (0 if kept else 2)
    assert kept or suggested("accuracy") in result.err
    left = {runs[name] for name in names(cli)}
    assert left == set(kept or runs.values())


def test_prune_says_what_it_needs(cli: Cli) -> None:
    """No option, a state in which no run ends, and `--by` without a number are mistakes with a hint."""
    for wrong in (
        [],
        ["--state", "running"],
        ["--by", "loss"],
        ["--older-than", "x"],
        ["--larger-than", "x"],
    ):
        result = cli("prune", *wrong)
        assert (result.code, "hint: " in result.err) == (2, True)


@pytest.mark.slow
@pytest.mark.lifecycle
def test_prune_takes_old_archives(cli: Cli, project: Path, state_dir: Path) -> None:
    """An archive of code that no submit has asked for in a day goes, and what an interrupted removal has left; a submit
    makes the archive again."""
    ct.submit(ct.load_job("job.yaml")).wait()
    (archive,) = (state_dir / "bundles").iterdir()
    (state_dir / "runs" / "old-1.removed").mkdir()
    run = ct.submit(ct.load_job("job.yaml"))
    run.wait()
    with open_store(state_dir) as store:
        store.remove(run.name)  # and killed before the folder was gone
    assert cli("prune", "--older-than", "1d", "--yes").code == 0
    assert archive.is_dir()
    assert not (state_dir / "runs" / "old-1.removed").exists()
    assert not (state_dir / "runs" / run.name).exists()
    day_ago = time.time() - 90000
    os.utime(archive, (day_ago, day_ago))
    ct.submit(ct.load_job("job.yaml")).wait()
    assert cli("prune", "--older-than", "1d", "--yes").code == 0
    assert archive.is_dir()
    os.utime(archive, (day_ago, day_ago))
    cli("prune", "--older-than", "1d", "--yes")
    assert not archive.exists()
    assert ct.submit(ct.load_job("job.yaml")).wait().state == "succeeded"
