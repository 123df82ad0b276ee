"""Exactly one job for a run, though Slurm takes any number of jobs of one name. On a real cluster."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudtrain.errors import NameTaken, TargetError
from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import Site

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]


def test_a_name_is_taken_once(site: Site) -> None:
    """A second submission of a name is refused; the same submission sent again is the same job."""
    plan, tree = site.plan("print(1)\n", name="twice-1")
    site.service.upload(plan, tree)
    site.send(plan)
    with pytest.raises(NameTaken):
        site.send(plan)
    site.send(plan, again=True)
    assert len(site.jobs_named("twice-1")) == 1


def test_twenty_at_once(site: Site) -> None:
    """Of twenty senders of one run at the same time one has it, and there is one job; and twenty runs are twenty jobs."""
    plan, tree = site.plan("print(1)\n", name="race-1")
    site.service.upload(plan, tree)

    def send(_: int) -> bool:
        try:
            site.service.submit(plan)
        except NameTaken:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(send, range(20))) == 1
        plans = [site.plan("print(1)\n", name=f"many-{number}")[0] for number in range(20)]
        refs = list(pool.map(site.service.submit, plans))
    assert len(site.jobs_named("race-1")) == 1
    assert [len(site.jobs_named(ref.name)) for ref in refs] == [1] * 20


def test_refused(site: Site) -> None:
    """What sbatch refuses leaves no run, and says why; the name is free for the next try."""
    plan, _ = site.plan(name="refused-1", settings={"partition": "nope"})
    with pytest.raises(TargetError) as caught:
        site.service.submit(plan)
    assert "invalid partition specified: nope" in caught.value.message
    assert not site.service.has(plan.ref)
    assert site.service.withdraw(plan.ref)
    right, tree = site.plan("print(1)\n", name="refused-1")
    site.service.upload(right, tree)
    assert site.send(right).wait().state is RunState.SUCCEEDED


def test_withdrawn(site: Site) -> None:
    """A run that was withdrawn is there no more; one that has a job cannot be withdrawn."""
    plan, tree = site.plan("print(1)\n", name="withdrawn-1")
    assert site.service.withdraw(plan.ref)
    assert not site.service.has(plan.ref)
    site.service.upload(plan, tree)
    site.send(plan)
    assert not site.service.withdraw(plan.ref)
    assert site.service.has(plan.ref)


def test_found_without_its_link(site: Site) -> None:
    """A job whose sender died before it took a note is found by its name and comment, and is not sent again."""
    plan, _ = site.plan(name="noted-1", settings={"extra_sbatch": ("--begin=now+1hour",)})
    run = site.send(plan)
    number = run.job
    (Path(plan.request["folder"]) / "job").unlink()
    assert site.service.has(plan.ref)
    assert site.service.status(plan.ref).state is RunState.PENDING
    site.send(plan, again=True)
    assert site.jobs_named("noted-1") == [number]


def test_same_name_of_somebody_else(site: Site) -> None:
    """A job that happens to have the name, but not the comment, is not ours."""
    options = [
        "--job-name=theirs-1",
        "--comment=mine",
        "--output=/dev/null",
        "--begin=now+1hour",
        "--wrap=true",
    ]
    subprocess.run(["sbatch", *options], env=site.environ, check=True, capture_output=True)
    plan, _ = site.plan(name="theirs-1")
    assert not site.service.has(plan.ref)


def test_only_one_of_two_jobs_runs(site: Site) -> None:
    """Should two jobs of a run exist all the same, the first one to start has it, and the other does nothing."""
    plan, tree = site.plan(
        "from cloudtrain.runtime import model_dir\nopen(model_dir() / 'n', 'a').write('x')\n",
        name="two-1",
    )
    site.service.upload(plan, tree)
    run = site.send(plan)
    run.wait()
    script = Path(plan.request["folder"]) / "job.sh"
    other = ["sbatch", "--wait", "--job-name=two-1", "--output=/dev/null", str(script)]
    assert subprocess.run(other, env=site.environ, capture_output=True, check=False).returncode == 1
    assert (Path(plan.request["outputs"]["model"]) / "n").read_text() == "x"
    assert run.status.state is RunState.SUCCEEDED
