"""Training on two nodes of a real cluster: to the end, over a preemption, and over nodes that are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

from cloudtrain.plans.progress import LogLine
from cloudtrain.plans.states import RunState
from tests.targets.slurm.site import (
    REPOSITORY,
    STARTER,
    Run,
    Site,
    command,
    eventually,
    processes_on,
)

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

DIGITS = REPOSITORY / "training_scripts" / "digits_ddp"
TWO = {"instance_count": 2}


def digits(site: Site, name: str, *, delay: float = 0.0, epochs: int = 20, **options: Any) -> Run:
    """The bundled digits_ddp on two nodes."""
    pytest.importorskip("torch")
    parameters = {"epochs": epochs, "seed": 1, "step_delay": delay, "checkpoint_every": 10}
    return site.submit(
        name=name,
        source=DIGITS,
        distribution={"type": "torch"},
        resources=TWO,
        hyperparameters=parameters,
        **options,
    )


def without_time(line: LogLine) -> tuple[str, ...]:
    """A line's time is that of its file when it was read."""
    return str(line.instance), str(line.rank), line.stream, line.text


def losses(run: Run) -> dict[str, str]:
    """Step to loss, as the first rank printed it; the last word about a step counts."""
    words = [text.split() for text in run.texts(rank=0) if " loss=" in text]
    return {parts[1]: next(part for part in parts if part.startswith("loss=")) for parts in words}


def lose(cluster: Path, node: str) -> None:
    """A machine is gone: Slurm's daemon, its supervisors of steps (which would report that their step failed), ranks."""
    subprocess.run([sys.executable, str(STARTER), "kill", str(cluster), node], check=True)
    for process in processes_on(cluster, node):
        with suppress(psutil.Error):
            process.kill()


def revive(cluster: Path, node: str) -> None:
    """It is back."""
    subprocess.run([sys.executable, str(STARTER), "revive", str(cluster), node], check=True)


@pytest.mark.torch
def test_two_nodes_train(site: Site) -> None:
    """digits_ddp trains on two nodes to at least 0.95 accuracy, and its model can be downloaded."""
    run = digits(site, "digits-1")
    assert run.wait().state is RunState.SUCCEEDED
    accuracy = float(
        next(text for text in run.texts(rank=0) if text.startswith("test accuracy")).split()[2]
    )
    assert accuracy >= 0.95
    assert "processes=2" in run.texts(rank=0)[0]
    files = site.service.download(run.ref, "model/", site.root / "got")
    assert [file.name for file in files] == ["model.pt"]
    nodes = command(
        site.environ, "sacct", "-X", "-n", "-P", f"--jobs={run.job}", "--format=NNodes,NodeList"
    )
    assert nodes.strip() == "2|n[1-2]"


@pytest.mark.torch
def test_preempted_and_resumed(site: Site) -> None:
    """A job that loses its nodes to another one goes on from its checkpoint, and learns what it would have learned;
    its log has every line once."""
    whole = digits(site, "whole-1", epochs=4)
    whole.wait()
    settings = {
        "spot_partition": "train",
        "grace_period": 30,
        "extra_sbatch": ("--nodelist=n1,n2",),
    }
    run = digits(site, "spot-1", epochs=4, delay=0.35, spot={}, settings=settings)
    run.wait_for_line("step=20 ")
    taker = [
        "sbatch",
        "--partition=urgent",
        "--nodelist=n1,n2",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
    ]
    command(site.environ, *taker, "--wrap=sleep 1")
    seen: list[tuple[RunState, int]] = []
    followed = site.service.logs(
        run.ref, follow=True, on_status=lambda status: seen.append((status.state, status.restarts))
    )
    lines = list(followed)
    status = run.wait()
    assert (status.state, status.restarts) == (RunState.SUCCEEDED, 1)
    assert (RunState.PENDING, 0) in seen
    assert any("resumed from step" in line.text for line in lines)
    assert losses(run).items() >= losses(whole).items()
    assert sorted(map(without_time, lines)) == sorted(map(without_time, run.lines()))


@pytest.mark.torch
def test_bandwidth_between_two_nodes(site: Site) -> None:
    """The first job on a new cluster: every row in the terms of nccl-tests, for processes on two nodes."""
    pytest.importorskip("torch")
    small = {"smallest": 1024, "largest": 4096, "width": 32, "layers": 1, "rounds": 2}
    folder = REPOSITORY / "training_scripts" / "bandwidth"
    run = site.submit(
        name="bandwidth-1",
        source=folder,
        distribution={"type": "torch"},
        resources=TWO,
        hyperparameters=small,
    )
    assert run.wait().state is RunState.SUCCEEDED
    said = run.texts(rank=0)
    assert said[0].startswith("processes=2 instances=2 ")
    rows = [words for text in said if len(words := text.split()) == 5 and words[1] in ("1K", "4K")]
    # 2 (n-1)/n and (n-1)/n
    factors = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "send": 1.0}
    assert [row[0] for row in rows[::2]] == list(factors)
    for name, size, micros, algorithm, bus in rows:
        moved = {"1K": 1024, "4K": 4096}[size]
        assert float(algorithm) == pytest.approx(moved / float(micros) / 1e3, rel=0.01, abs=6e-4)
        assert float(bus) == pytest.approx(float(algorithm) * factors[name], abs=1.1e-3)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("CLOUDTRAIN_TEST_ELASTIC"),
    reason="takes a node from the cluster that other tests share: set CLOUDTRAIN_TEST_ELASTIC=1, and run it alone",
)
def test_an_elastic_training_loses_a_node_and_takes_it_back(site: Site, cluster: Path) -> None:
    """Two runs with a node each train together. One node dies, the other goes on alone; Slurm starts the lost run again,
    and it joins. Every loss is that of a training that lost nobody."""
    long: dict[str, Any] = {"epochs": 60, "report_every": 1}
    whole = site.submit(
        name="still-1",
        source=DIGITS,
        hyperparameters=long,
        settings={"extra_sbatch": ("--nodelist=n3",)},
    )
    elastic = {**long, "step_delay": 0.3, "meeting": f"{site.root}/meeting", "host": "127.0.0.1"}
    runs = [
        site.submit(
            name=f"elastic-{instance}", source=DIGITS, entry_point="elastic_slurm.py", distribution={"type": "none"},
            hyperparameters={**elastic, "instance": instance},
            settings={"grace_period": 5, "extra_sbatch": (f"--nodelist=n{instance + 1}",)},
        )
        for instance in (0, 1)
    ]  # fmt: skip

    def told(text: str) -> int:
        return sum(line.startswith(text) for run in runs for line in run.texts())

    def last_step() -> int:
        return max(
            (int(step.removeprefix("step=")) for run in runs for step in losses(run)), default=0
        )

    eventually(lambda: told("processes=2"), "both train")
    together, before = told("processes=2"), last_step()
    eventually(lambda: last_step() > before, "they make steps")
    alone = told("processes=1")
    lose(cluster, "n2")
    try:
        eventually(
            lambda: runs[1].status.state is RunState.PENDING, "the lost run waits for a node"
        )
        eventually(lambda: told("processes=1") > alone, "the first goes on alone")
    finally:
        revive(cluster, "n2")
    eventually(lambda: runs[1].status.restarts == 1, "Slurm starts the lost run again")
    eventually(lambda: told("processes=2") > together, "the lost one is back")
    before = last_step()
    eventually(lambda: last_step() > before, "they make steps again")
    assert [run.status.restarts for run in runs] == [0, 1]
    for run in runs:
        site.service.stop(run.ref)
    assert whole.wait().state is RunState.SUCCEEDED
    expected = losses(whole)
    for found in map(losses, runs):
        for step, loss in found.items():
            assert float(loss.removeprefix("loss=")) == pytest.approx(
                float(expected[step].removeprefix("loss=")), abs=5e-6
            )


@pytest.mark.torch
def test_lost_node(site: Site, cluster: Path) -> None:
    """A node's daemon is killed while it trains: the job starts again on nodes that are there, and resumes."""
    run = digits(site, "lost-1", epochs=4, delay=0.5, settings={"grace_period": 5})
    run.wait_for_line("step=20 ")
    subprocess.run([sys.executable, str(STARTER), "kill", str(cluster), "n2"], check=True)
    try:
        eventually(lambda: run.status.restarts == 1, "the job starts again")
        status = run.wait()
    finally:
        subprocess.run([sys.executable, str(STARTER), "revive", str(cluster), "n2"], check=True)
    assert status.state is RunState.SUCCEEDED
    assert any("resumed from step" in line.text for line in run.lines(rank=0))


@pytest.mark.torch
@pytest.mark.slow
def test_node_dies_with_its_ranks(site: Site, cluster: Path) -> None:
    """A node is gone with all its processes, and the ranks elsewhere fail before Slurm knows: the job starts again, too."""
    run = digits(site, "dies-1", epochs=3, delay=0.3, settings={"grace_period": 5})
    run.wait_for_line("step=20 ")
    subprocess.run([sys.executable, str(STARTER), "kill", str(cluster), "n2"], check=True)
    try:
        for process in processes_on(cluster, "n2"):
            with suppress(psutil.Error):
                if process.name() != "slurmstepd":
                    process.kill()
        eventually(lambda: run.status.restarts == 1, "the job starts again")
        status = run.wait()
    finally:
        subprocess.run([sys.executable, str(STARTER), "revive", str(cluster), "n2"], check=True)
    assert status.state is RunState.SUCCEEDED
    assert any("resumed from step" in line.text for line in run.lines(rank=0))
