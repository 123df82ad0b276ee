"""What the cluster says about a request before it is sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.job.model import parse_time
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Level
from cloudtrain.targets.slurm.online import parse_gres, parse_partition
from tests.hints import suggested
from tests.targets.slurm.site import Site

ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "good": ({}, {}, ["SL904"]),
    "no partition": ({"partition": "trian"}, {}, ["SL903"]),
    "too long": ({"partition": "short"}, {"max_runtime": "2h"}, ["SL905", "SL904"]),
    "first partition that has room": ({"partition": "train,urgent"}, {}, ["SL904"]),
    "one of two": ({"partition": "train,urgnt"}, {}, ["SL903"]),
    "too long for one of two": ({"partition": "short,train"}, {"max_runtime": "2h"}, ["SL904"]),
    "says nothing": ({"extra_sbatch": ("--quiet",)}, {}, []),
    "too many": ({}, {"resources": {"instance_count": 9}}, ["SL905"]),
    "no GPUs": ({}, {"resources": {"gpus_per_instance": 8}}, ["SL907"]),
    "no feature": ({"constraint": "a100"}, {}, ["SL901"]),
    "no folder": ({"shared_dir": "/dev/null/here"}, {}, ["SL906", "SL904"]),
    "no host": ({"host": "nohost.invalid"}, {}, ["SL902"]),
}


@pytest.mark.slurm
@pytest.mark.lifecycle
@pytest.mark.parametrize("name", ASKED)
def test_check(site: Site, name: str) -> None:
    """Each thing that the cluster lacks is one finding, and a job that fits is told when it would start."""
    settings, fields, codes = ASKED[name]
    plan, _ = site.plan(name="asked-1", settings=settings, **fields)
    job = TrainingJob(name="job", entry_point="train.py")
    found = site.service.check(job, site.settings(**settings), plan)
    assert [finding.code for finding in found] == codes
    assert all(finding.hint for finding in found if finding.level is not Level.NOTICE)


@pytest.mark.slurm
@pytest.mark.lifecycle
def test_nearest_partition(site: Site) -> None:
    """A misspelt partition is an error with the nearest name."""
    plan, _ = site.plan(name="asked-1", settings={"partition": "trian"})
    (finding,) = site.service.check(
        TrainingJob(name="job", entry_point="train.py"), site.settings(), plan
    )
    assert finding.hint == suggested("train")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("infinite", None), ("10:00", 600), ("1-00:00:00", 86400), ("2:00:00", 7200), ("30", 1800), ("1-2", 93600),
        ("0-00:30:00", 1800), ("n/a", None),
    ],
)  # fmt: skip
def test_times(text: str, seconds: int | None) -> None:
    """Slurm's ways to write a time."""
    assert parse_time(text) == seconds


def test_partitions() -> None:
    """The default partition has an asterisk, which is no part of its name."""
    found = parse_partition("p5*|up|2-00:00:00|9/4/3/16|gpu:h100:8(S:0-1)")
    assert (found.name, found.names, found.state, found.longest) == ("p5", ("p5", ""), "up", 172800)
    assert (found.nodes, found.idle) == (16, 4)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("gpu:2080ti:4", ("gpu", "2080ti", 4)), ("gpu:3090:4", ("gpu", "3090", 4)), ("gpu:1g.5gb:7", ("gpu", "1g.5gb", 7)),
        ("gpu:8", ("gpu", "", 8)), ("gpu", ("gpu", "", 1)), ("gpu:a100", ("gpu", "a100", 1)),
        ("gpu:a100:8(S:0-1)", ("gpu", "a100", 8)),
    ],
)  # fmt: skip
def test_resources(text: str, parsed: tuple[str, str, int]) -> None:
    """The names of GPU models that clusters have, also those that begin with a digit."""
    assert parse_gres(text) == [parsed]


STARTS: dict[str, tuple[str, str, int, str]] = {
    "idle": ("$(date +%Y-%m-%dT%H:%M:%S)", "p5*|up|infinite|0/2/0/2|gpu:8", 2, "the job would start at once"),
    "idle beside a waiting job": (
        "2099-01-02T03:04:05", "p5*|up|infinite|3/2/0/5|gpu:8", 2,
        "2 nodes are idle, so the job may start at once; without backfill, it would at 2099-01-02 03:04:05",
    ),
    "too few idle": (
        "2099-01-02T03:04:05", "p5*|up|infinite|3/1/0/4|gpu:8", 2,
        "the job would start at 2099-01-02 03:04:05, or earlier if running jobs end before their limits",
    ),
    "idle without GPUs": (
        "2099-01-02T03:04:05", "p5*|up|infinite|0/9/0/9|(null)\np5*|up|infinite|1/0/0/1|gpu:8", 1,
        "the job would start at 2099-01-02 03:04:05, or earlier if running jobs end before their limits",
    ),
    "idle elsewhere": (
        "2099-01-02T03:04:05", "other|up|infinite|0/9/0/9|gpu:8\np5*|up|infinite|1/0/0/1|gpu:8", 1,
        "the job would start at 2099-01-02 03:04:05, or earlier if running jobs end before their limits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_when_the_job_would_start(tmp_path: Path, name: str) -> None:
    """Slurm's estimate leaves out the backfill, so idle nodes are named beside it."""
    start, partitions, nodes, words = STARTS[name]
    (tmp_path / "bin").mkdir()
    told = f'echo "sbatch: Job 5 to start at {start} using 2 processors on nodes n[1-2] in partition p5" >&2'
    for command, text in (("sbatch", told), ("sinfo", f"cat <<'END'\n{partitions}\nEND")):
        (tmp_path / "bin" / command).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / command).chmod(0o755)
    fake = Site(
        tmp_path, {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    )
    resources = {"instance_count": nodes, "gpus_per_instance": 8}
    plan, _ = fake.plan(name="asked-1", settings={"partition": "p5"}, resources=resources)
    (finding,) = fake.service.check(
        TrainingJob(name="job", entry_point="train.py"), fake.settings(), plan
    )
    assert (finding.code, finding.message) == ("SL904", words)


LUA = "sbatch: error: Please name a project\nsbatch: error: Batch job submission failed: Unspecified error"
SBATCH = {
    "refused for two reasons": (f"echo '{LUA}' >&2; exit 1", ["SL901"], "Please name a project"),
    "has nodes that are down": (
        "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1",
        ["SL901"],
        "refuse the job: Requested node",
    ),
    "greets": (
        "echo 'Welcome.'; echo 'sbatch: Job 5 to start at 2099-01-02T03:04:05 using 2' >&2",
        ["SL904"],
        "2099",
    ),
    "inactive": (
        "echo 'allocation failure: Required partition not available' >&2; exit 1",
        ["SL903"],
        "its state is `inact`",
    ),
    "hidden": (
        "echo 'sbatch: Job 5 to start at 2099-01-02T03:04:05 using 2' >&2",
        ["SL904"],
        "2099",
    ),
}


@pytest.mark.parametrize("name", SBATCH)
def test_answers(tmp_path: Path, name: str) -> None:
    """What sbatch says is passed on whole, and partitions that sinfo hides are asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    state = "inact" if name == "inactive" else "up"
    sinfo = f'case "$*" in *--all*) echo "p5*|{state}|infinite|2/0/0/2|(null)" ;; *) [ {name} = hidden ] ;; esac'
    if name != "hidden":
        sinfo = f'echo "p5*|{state}|infinite|2/0/0/2|(null)"'
    for command, text in (("sbatch", SBATCH[name][0]), ("sinfo", sinfo)):
        (folder / command).write_text(f"#!/bin/sh\n{text}\n")
        (folder / command).chmod(0o755)
    fake = Site(tmp_path, {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)})
    plan, _ = fake.plan(name="asked-1", settings={"partition": "p5"})
    job = TrainingJob(name="job", entry_point="train.py")
    (finding,) = fake.service.check(job, fake.settings(), plan)
    assert [finding.code] == SBATCH[name][1]
    assert SBATCH[name][2] in finding.message


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    """The finding names the missing command, without what the shell puts in front of it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in ("bash", "sed", "dirname"):
        (folder / command).symlink_to(str(shutil.which(command)))
    bare = Site(tmp_path, {"PATH": str(folder), "HOME": str(tmp_path)})
    plan, _ = bare.plan(name="asked-1")
    (finding,) = bare.service.check(
        TrainingJob(name="job", entry_point="train.py"), bare.settings(), plan
    )
    said = "this machine's Slurm cannot be used: sinfo: command not found"
    assert finding.code == "SL902"
    assert finding.message.endswith(said)
