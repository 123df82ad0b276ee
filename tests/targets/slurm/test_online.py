"""What the cluster says about a request before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import Level
from cloudtrain.targets.slurm.service.online import parse_partition, parse_time
from tests.targets.slurm.site import Site

ASKED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "good": ({}, {}, ["SL904"]),
    "no partition": ({"partition": "trian"}, {}, ["SL903"]),
    "too long": ({"partition": "short"}, {"max_runtime": "2h"}, ["SL905", "SL904"]),
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
    (finding,) = site.service.check(TrainingJob(name="job", entry_point="train.py"), site.settings(), plan)
    assert finding.hint == "did you mean `train`?"


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
    found = parse_partition("p5*|up|2-00:00:00|16|gpu:h100:8(S:0-1)")
    assert (found.name, found.is_default, found.is_up, found.longest, found.nodes) == ("p5", True, True, 172800, 16)
