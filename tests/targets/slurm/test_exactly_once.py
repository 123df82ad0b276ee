"""No submission to a cluster is lost or doubled: killed at every point and run again, exactly one job and one row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.targets.slurm.settings import Slurm
from tests.lifecycle.submission.forking import Submitter, start_submitter
from tests.lifecycle.submission.kill_points import kill_points
from tests.targets.slurm.site import REPOSITORY, Site, command

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

CRASHING = Path(__file__).with_name("crashing.py")
POINTS = 30


@pytest.fixture(scope="module")
def submitter() -> Iterator[Submitter]:
    """The process that forks submitters."""
    with start_submitter(CRASHING) as found:
        yield found


@pytest.fixture
def job(make_source: Callable[..., Path]) -> dict[str, Any]:
    """The job that is submitted, as the fields of a model. It waits, so that jobs are counted and not run."""
    source = make_source({"train.py": "print(1)\n"})
    return {
        "name": "job",
        "source_dir": str(source),
        "entry_point": "train.py",
        "max_runtime": "5m",
    }


@pytest.fixture
def target(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The cluster's settings; this process, and those that it starts, find its commands."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, site.environ[name])
    fields = site.settings(extra_sbatch=("--begin=now+1hour",)).model_dump(exclude_unset=True)
    return fields | {"extra_sbatch": list(fields["extra_sbatch"])}


def find_jobs(site: Site) -> list[str]:
    """The names of the jobs that wait in the cluster for this test."""
    rows = command(site.environ, "squeue", "--noheader", "--format=%j|%k").splitlines()
    return [
        row.partition("|")[0]
        for row in rows
        if row.partition("|")[2].startswith(f"cloudtrain:{site.shared}/")
    ]


def test_the_points_are_all_known(
    submitter: Submitter, job: dict[str, Any], target: dict[str, Any]
) -> None:
    """A submission passes exactly the points that the next test kills it at."""
    answer = submitter.submit(point=0, job=job, target=target)
    assert answer["ended"] == 0
    assert answer["points"] == POINTS


@pytest.mark.parametrize("point", kill_points(POINTS))
def test_killed_anywhere(
    point: int,
    submitter: Submitter,
    site: Site,
    job: dict[str, Any],
    target: dict[str, Any],
    state_dir: Path,
) -> None:
    """Killed at any point and submitted again, exactly one job exists and is in the store, and the user was told its
    name."""
    died = submitter.submit(point=point, job=job, target=target)
    assert died["ended"] == -signal.SIGKILL
    there_already = find_jobs(site)
    assert len(there_already) <= 1
    with read_store(state_dir) as store:
        was_noted = store is not None and [record.stage for record in store.newest()] == [
            "reported"
        ]
    run = ct.submit(ct.TrainingJob(**job), Slurm(**target))
    if was_noted:  # the store knows that the user was told: a new run is meant
        assert died["told"].split() == there_already
        assert sorted(find_jobs(site)) == sorted([*there_already, run.name])
        return
    assert find_jobs(site) == [run.name]
    assert run.adopted == bool(there_already)
    with read_store(state_dir) as store:
        assert [(row.name, row.stage) for row in store.newest()] == [(run.name, "reported")]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_inside_of_sbatch(
    moment: str, site: Site, job: dict[str, Any], target: dict[str, Any], state_dir: Path
) -> None:
    """The sender is killed while sbatch runs, which sends all the same: the next submit waits for it, and reports its
    job."""
    folder = site.root / "bin"
    folder.mkdir()
    real = command(site.environ, "which", "sbatch").strip()
    test_only = f'[[ " $* " != *" --test-only "* ]] || exec {real} "$@"\n'
    kill = '[ -e "$0.done" ] || { touch "$0.done"; kill -9 "$SENDER"; sleep 1; }\n'
    send = f'{real} "$@"\n'
    (folder / "sbatch").write_text(
        "#!/bin/bash\n" + test_only + (kill + send if moment == "before" else send + kill)
    )
    (folder / "sbatch").chmod(0o755)
    code = (
        "import os, sys, cloudtrain as ct\nfrom cloudtrain.targets.slurm.settings import Slurm\n"
        "os.environ['SENDER'] = str(os.getpid())\n"
        f"ct.submit(ct.TrainingJob(**{job!r}), Slurm(**{target!r}))\n"
    )
    environ = {
        **os.environ,
        "PATH": f"{folder}:{site.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }
    assert (
        subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode
        == -signal.SIGKILL
    )
    run = ct.submit(ct.TrainingJob(**job), Slurm(**target))
    assert run.adopted
    assert find_jobs(site) == [run.name]
