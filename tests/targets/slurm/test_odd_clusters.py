"""Clusters whose commands and file systems behave oddly. Small scripts are the commands here; needs no cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.errors import TargetError, TargetUnreachable
from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import Run, Site

QUIET = {"squeue": "exit 0", "sacct": "exit 0", "sbatch": "echo 7"}


@pytest.fixture
def odd(tmp_path: Path) -> Callable[..., Site]:
    """A machine whose commands are these scripts."""

    def make(**commands: str) -> Site:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, text in (QUIET | commands).items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        return Site(tmp_path, {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)})

    return make


def test_sbatch_that_greets(odd: Callable[..., Site]) -> None:
    """A site's own sbatch prints its rules first: the number is the last line that is one."""
    site = odd(sbatch="echo 'Welcome to the cluster'; echo '--> 2 rules checked'; echo '123;here'")
    plan, _ = site.plan(name="greeted-1")
    assert site.send(plan).job == "123"


def test_sbatch_that_prints_no_number(odd: Callable[..., Site]) -> None:
    """What is no number becomes no job."""
    site = odd(sbatch="echo 'see the portal'")
    plan, _ = site.plan(name="greeted-1")
    with pytest.raises(TargetError, match="see the portal"):
        site.send(plan)
    assert not (Path(plan.request["folder"]) / "job").is_symlink()


def test_file_system_without_locks(odd: Callable[..., Site]) -> None:
    """Lustre is often mounted without `flock`: no minute of waiting helps there."""
    site = odd(flock="echo 'flock: 9: Function not implemented' >&2; exit 71")
    plan, _ = site.plan(name="lustre-1")
    with pytest.raises(TargetError) as caught:
        site.send(plan)
    assert not isinstance(caught.value, TargetUnreachable)
    assert "Function not implemented" in caught.value.message
    assert "`flock`" in str(caught.value.hint)


def test_lock_that_is_held(odd: Callable[..., Site]) -> None:
    """Another command's lock is worth the wait."""
    held = (
        'while [ $# -gt 0 ]; do [ "$1" != --conflict-exit-code ] || exit "$2"; shift; done; exit 1'
    )
    site = odd(flock=held)
    plan, _ = site.plan(name="held-1")
    with pytest.raises(TargetUnreachable, match="another command submits"):
        site.send(plan)


def test_shared_folder_that_cannot_be_written(odd: Callable[..., Site]) -> None:
    """An error of the file system is not blamed on Slurm."""
    site = odd()
    (site.root / "shared dir's").write_text("a file")
    plan, _ = site.plan(name="full-1")
    with pytest.raises(TargetError) as caught:
        site.send(plan)
    assert "`shared_dir`" in str(caught.value.hint)


def test_variables_of_the_user(odd: Callable[..., Site]) -> None:
    """Options of Slurm's commands in the environment are dropped; the user's token and configuration are not."""
    site = odd(
        sbatch='env | grep -E "^(SLURM|SBATCH|SQUEUE|SACCT)" | sort >"$(dirname "$0")/said"; echo 7'
    )
    names = (
        "SBATCH_PARTITION",
        "SBATCH_ARRAY_INX",
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "SQUEUE_FORMAT",
        "SACCT_FORMAT",
    )
    site.environ.update({**dict.fromkeys(names, "1"), "SLURM_CONF": "/conf", "SLURM_JWT": "token"})
    plan, _ = site.plan(name="mine-1")
    site.send(plan)
    said = (site.root / "bin" / "said").read_text().splitlines()
    assert said == ["SLURM_CONF=/conf", "SLURM_JWT=token", "SLURM_TIME_FORMAT=%s"]


FORGOTTEN = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
SILENT = 'echo "sacct: error: Problem talking to the database: Connection refused" >&2; exit 1'


def test_silent_accounting(odd: Callable[..., Site]) -> None:
    """While the accounting does not answer, a job that Slurm has forgotten is not lost: its end is unknown, and it is
    known as soon as the accounting answers."""
    site = odd()
    plan, _ = site.plan(name="silent-1")
    run = site.send(plan)
    (Path(plan.request["folder"]) / "journal").write_text("100.5 7 started 0\n")
    commands = site.root / "bin"
    (commands / "squeue").write_text(f"#!/bin/bash\n{FORGOTTEN}\n")
    (commands / "sacct").write_text(f"#!/bin/bash\n{SILENT}\n")
    assert run.status.state is RunState.RUNNING
    assert "Connection refused" in str(run.status.reason)
    (listed,) = site.service.runs(run.ref.place)
    assert listed.status.state is RunState.RUNNING
    (commands / "sacct").write_text("#!/bin/bash\necho 'silent-1|NODE_FAIL|0:0|90|100|160'\n")
    assert (run.status.state, run.status.reason) == (RunState.FAILED, "a node of the job was lost")


def test_accounting_that_is_off(odd: Callable[..., Site]) -> None:
    """A cluster without accounting is no cluster that is silent."""
    site = odd()
    plan, _ = site.plan(name="off-1")
    run = site.send(plan)
    (site.root / "bin" / "squeue").write_text(f"#!/bin/bash\n{FORGOTTEN}\n")
    (site.root / "bin" / "sacct").write_text(
        "#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2; exit 1\n"
    )
    assert run.status.state is RunState.LOST


def test_number_of_another_job(odd: Callable[..., Site]) -> None:
    """Numbers of jobs begin again some day: a job of that number with another script is not the run's."""
    site = odd()
    plan, _ = site.plan(name="number-1")
    run = Run(site, site.send(plan).ref)
    (Path(plan.request["folder"]) / "journal").write_text("100.5 7 started 0\n160.5 7 ended 0\n")
    other = 'case "$*" in *%o*) echo "/other/job.sh" ;; *) echo "theirs|RUNNING|None|90|100|N/A" ;; esac'
    (site.root / "bin" / "squeue").write_text(f"#!/bin/bash\n{other}\n")
    assert run.status.state is RunState.SUCCEEDED
    own = other.replace("/other", str(plan.request["folder"]))
    (site.root / "bin" / "squeue").write_text(f"#!/bin/bash\n{own}\n")
    assert run.status.state is RunState.RUNNING
