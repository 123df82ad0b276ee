"""Each rule about Slurm jobs: a job that breaks it, and the nearest one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Plan
from cloudtrain.rules.engine import all_rules
from cloudtrain.targets.slurm.settings import Slurm

GPUS = {"instance_count": 2, "gpus_per_instance": 8}


@dataclass(frozen=True)
class Case:
    """A job and a cluster, and what is changed to make the rule silent."""

    job: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    good_job: dict[str, Any] = field(default_factory=dict)
    good_cluster: dict[str, Any] = field(default_factory=dict)


CASES = {
    "SL101": Case(cluster={"shared_dir": None}, good_cluster={"shared_dir": "/fsx/ct"}),
    "SL102": Case(job={"spot": {}}, good_cluster={"spot_partition": "spare"}),
    "SL103": Case(cluster={"exclusive": False}, good_cluster={"cpus_per_instance": 16}),
    "SL104": Case(
        cluster={"extra_sbatch": ("--output=/tmp/x",)}, good_cluster={"extra_sbatch": ("--nice=5",)}
    ),
    "SL105": Case(
        job={"resources": {**GPUS, "gpu": "A100-40GB"}, "distribution": {"type": "torch"}},
        good_cluster={"gpu_type": "a100"},
    ),
    "SL203": Case(
        job={"resources": {"gpu": "H100"}},
        good_job={"resources": {"gpu": "H100", "gpus_per_instance": 1}},
    ),
    "SL204": Case(job={"max_runtime": "1m"}, good_job={"max_runtime": "61s"}),
    "SL205": Case(
        job={"environment": {"requirements": "requirements.txt"}},
        cluster={"python": "/home/you/venv/bin/python"},
        good_cluster={"build_environment": True},
    ),
    "SL206": Case(
        job={"environment": {"variables": {"SLURM_CPU_BIND": "cores"}}},
        good_job={"environment": {"variables": {"NCCL_DEBUG": "INFO"}}},
    ),
    "SL207": Case(good_job={"max_runtime": "2h"}),
    "SL208": Case(
        job={"environment": {"framework": "pytorch", "version": "2.8"}},
        good_cluster={"setup": ("module load pytorch/2.8",)},
    ),
    "SL209": Case(
        job={"resources": {"shm_size": "8g"}},
        good_job={"resources": {"instance_count": 2}},
    ),
}


@pytest.fixture
def find(make_source: Callable[..., Path]) -> Callable[..., Plan]:
    """The plan of a job, with everything that is wrong with it, as the dry run has it."""

    def make(job: dict[str, Any], cluster: dict[str, Any]) -> Plan:
        source = make_source({"train.py": "print(1)\n", "requirements.txt": "numpy\n"})
        fields = {"name": "digits", "entry_point": "train.py", "source_dir": str(source)} | job
        return ct.plan(ct.TrainingJob(**fields), Slurm(**({"shared_dir": "/fsx/ct"} | cluster)))

    return make


def codes(plan: Plan) -> set[str]:
    return {finding.code for finding in plan.findings}


def test_every_rule_has_a_case() -> None:
    """Rules that need no cluster have a case; `test_online.py` has the others."""
    assert CASES.keys() == {
        rule.code for rule in all_rules() if rule.code.startswith("SL") and rule.code < "SL9"
    }


@pytest.mark.parametrize("code", CASES)
def test_the_bad_case(find: Callable[..., Plan], code: str) -> None:
    """The rule finds it once, and says what to type."""
    case = CASES[code]
    (finding,) = [found for found in find(case.job, case.cluster).findings if found.code == code]
    assert finding.hint
    assert "`" in finding.hint


@pytest.mark.parametrize("code", CASES)
def test_the_good_case(find: Callable[..., Plan], code: str) -> None:
    """The nearest job that is right is left alone."""
    case = CASES[code]
    assert code not in codes(find(case.job | case.good_job, case.cluster | case.good_cluster))


@pytest.mark.parametrize(("processes", "code"), [(9, "CT503"), (3, "CT502")])
def test_processes_against_gpus_are_told_once(
    find: Callable[..., Plan], processes: int, code: str
) -> None:
    """The rules for all targets compare the job's own two numbers, and no rule of Slurm's repeats them."""
    field = ("distribution", "processes_per_instance")
    plan = find({"resources": GPUS, "distribution": {"type": "torch", field[1]: processes}}, {})
    assert [found.code for found in plan.findings if found.path == field] == [code]


@pytest.mark.parametrize(
    ("option", "is_refused"),
    [
        ("--array=0-3", True), ("--arr=0-3", True), ("--job-n=mine", True), ("--wait", True), ("--clusters=b", True),
        ("--test-only", True), ("--help", True), ("--nodes=2", True), ("--export=NONE", True), ("--parsable", True),
        ("--wait-all-nodes=1", False), ("--dependency=afterok:1", False), ("--hold", False), ("--nice=5", False),
        ("--exclude=n1", False), ("--quiet", False), ("--mail-type=END", False),
    ],
)  # fmt: skip
def test_options_that_collide(find: Callable[..., Plan], option: str, is_refused: bool) -> None:
    """Options that change what cloudtrain relies on are refused by whatever name sbatch takes them, and no others."""
    assert ("SL104" in codes(find({}, {"extra_sbatch": (option,)}))) is is_refused


@pytest.mark.parametrize(
    ("cluster", "image", "words"),
    [
        ({}, None, None),
        ({"build_environment": False}, None, "because `build_environment` is false"),
        (
            {"setup": ("module load cuda",)},
            None,
            "the environment of `setup` must have its packages",
        ),
        ({"setup": ("module load cuda",), "build_environment": False}, None, None),
        ({"container": "pyxis"}, None, None),
        ({"container": "pyxis"}, "pytorch.sif", "the image must have its packages"),
        (
            {"container": "pyxis", "build_environment": True},
            "pytorch.sif",
            "the image must have its packages",
        ),
    ],
)
def test_packages_that_are_not_installed(
    find: Callable[..., Plan], cluster: dict[str, Any], image: str | None, words: str | None
) -> None:
    """A notice says so where the packages must be there already, unless the user has said that they are."""
    environment = {"requirements": "requirements.txt"} | (
        {"image": {"slurm": image}} if image else {}
    )
    plan = find({"environment": environment}, cluster)
    found = [finding.message for finding in plan.findings if finding.code == "SL205"]
    assert [words in message for message in found if words] == ([True] if words else [])
    assert len(found) == (1 if words else 0)
    assert ("environment" in plan.request) is (
        words is None and cluster.get("build_environment") is not False
    )
