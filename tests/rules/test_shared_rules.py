"""The rules that several targets have, on a target that tells no more of its requests than its instance table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.code.tree import scan
from cloudtrain.plans.plan import CompileContext
from cloudtrain.rules import machines
from cloudtrain.rules import machines as cost
from cloudtrain.rules import machines as network
from cloudtrain.rules import machines as processes
from cloudtrain.rules.engine import Fault, Reading, Subject, check_plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from tests.rules.sagemaker_rule_cases import Case, job, on, retired
from tests.rules.subjects import subject_of

MPI = {"type": "mpi"}

CASES: dict[str, tuple[Callable[[Subject], Iterable[Fault]], Case, str]] = {
    "over_budget": (
        cost.over_budget, Case({"resources": on("ml.p4d.24xlarge"), "max_runtime": "2h"}, {"max_cost": 10}), "SM412",
    ),
    "budget_without_price": (
        cost.budget_without_price, Case({"resources": on("ml.p5e.48xlarge"), "max_runtime": "2h"}, {"max_cost": 10}), "SM413",
    ),
    "type_is_not_as_described": (
        machines.type_is_not_as_described,
        job(resources=on("ml.g5.xlarge", gpus_per_instance=8, interconnect="rdma")),
        "SM205",
    ),
    "retired_type": (machines.retired_type, Case(account=retired("ml.g5.xlarge")), "SM203"),
    "over_ethernet": (
        lambda subject: network.over_ethernet(subject, "SM204"),
        job(resources=on("ml.g5.xlarge", 4), distribution={"type": "torch"}),
        "SM204",
    ),
    "more_processes_than_gpus": (
        processes.more_processes_than_gpus,
        job(resources=on("ml.g5.12xlarge"), distribution={"type": "torch", "processes_per_instance": 5}),
        "SM332",
    ),
    "more_ranks_than_gpus": (
        processes.more_ranks_than_gpus,
        job(resources=on("ml.g5.12xlarge"), distribution=MPI | {"processes_per_instance": 5}),
        "SM333",
    ),
    "mpi_with_one_process": (
        processes.mpi_with_one_process, job(resources=on("ml.g5.xlarge"), distribution=MPI), "SM334",
    ),
    "fewer_processes_than_gpus": (
        processes.fewer_processes_than_gpus, job(resources=on("ml.g5.12xlarge"), distribution={"type": "none"}), "SM331",
    ),
}  # fmt: skip
"""A check, a job that breaks it, and its code on SageMaker."""


@pytest.mark.parametrize("name", CASES)
def test_the_table_is_enough(name: str, make_source: Callable[..., Path]) -> None:
    """What the job says and a table of instance types find the same as what SageMaker reads from its requests."""
    check, case, code = CASES[name]
    written, target = case.training_job, ct.SageMaker(**case.target)
    tree = scan(make_source(case.files))
    plan = compile_sagemaker(
        written, target, CompileContext("job-1a2b3c4d-1", tree.identity, case.account)
    )
    subject = subject_of(written, target, case.account, plan, tree)
    own = [
        (found.message, found.hint, found.path)
        for found in check_plan(subject)
        if found.code == code
    ]
    bare: Any = replace(subject, reading=Reading("sagemaker", written, case.account, plan))
    assert own
    assert [(fault.message, fault.hint, fault.path) for fault in check(bare)] == own
