"""A plan that is renamed is the plan that compile makes under that name. So cloudtrain compiles a job once, under a
placeholder, and the hash of that plan is part of the run's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.job.file import SUFFIXES
from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.system.plugins import part
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.contract import SweepCompiler
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.registry import all_targets, target_of
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount
from tests.lifecycle.sweeps import test_requests as sweeps
from tests.targets.azureml import test_compile_golden as azureml
from tests.targets.local import test_compile as local
from tests.targets.sagemaker import test_compile as sagemaker
from tests.targets.sagemaker import test_compile_processing as processing
from tests.targets.slurm import test_compile as slurm
from tests.targets.slurm.site import compile_plan

NAMELESS, NAME = "job-00000000-0", "a-job-with-a-long-name-of-forty-letters0-1f3a9c2b-12"
BUNDLE = Bundle("5" * 64, 1000, 3)
REPOSITORY = Path(__file__).parents[2]

ACCOUNTS: dict[str, Any] = {
    "local": LocalAccount(
        "/state", "/py/bin/python", Machine(32, ("0", "1", "2", "3")), "host", "/usr/bin/mpirun"
    ),
    "sagemaker": sagemaker.ACCOUNT,
    "azureml": azureml.ACCOUNT,
    "slurm": SlurmAccount(None, "/fsx/you/cloudtrain"),
}
SETTINGS: dict[str, Any] = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(),
    "azureml": ct.AzureML(compute="cluster"),
    "slurm": Slurm(shared_dir="/fsx/you/cloudtrain"),
}

Compile = Callable[[str], Plan]


def goldens() -> Iterator[tuple[str, Compile]]:
    """Each job of a golden file, as a function of the run's name."""
    for key, (fields, target, machine) in local.CASES.items():
        job = local.job(**fields)
        yield (
            f"local {key}",
            lambda name, j=job, t=target, m=machine: compile_local(
                j, t, local.context(m, name=name)
            ),
        )
    for case in (*sagemaker.SAME, *sagemaker.STOPPED):
        settings = sagemaker.target_of(case)
        yield (
            f"sagemaker {case.golden}",
            lambda name, c=case, s=settings: compile_sagemaker(
                c.job, s, CompileContext(name, BUNDLE, sagemaker.ACCOUNT)
            ),
        )
    for job, target in (
        (processing.SCRIPT, processing.NETWORK),
        (processing.EVERYTHING, processing.ALL_SETTINGS),
    ):
        yield f"processing {job.name}", lambda name, j=job, t=target: processing.plan_of(j, t, name)
    for key, case in azureml.CASES.items():
        job, target = azureml.job_of(case.job), ct.AzureML(**case.target)
        context = CompileContext("", BUNDLE, azureml.ACCOUNT)
        yield (
            f"azureml {key}",
            lambda name, j=job, t=target, c=context: compile_azureml(
                j, t, c._replace(run_name=name)
            ),
        )
    for key, (settings, fields) in {
        **{key: ({}, job) for key, job in slurm.JOBS.items()},
        **slurm.CLUSTERS,
    }.items():
        job, target = slurm.job_of(fields), Slurm(shared_dir=slurm.SHARED, **settings)
        yield f"slurm {key}", lambda name, j=job, t=target: compile_plan(j, t, name=name)


def everywhere() -> Iterator[tuple[str, Compile]]:
    """Each example and each bundled script on every target, and emulated."""
    files = [
        file
        for file in (REPOSITORY / "examples").iterdir()
        if file.suffix in SUFFIXES and "toml" not in file.name
    ]
    files += (REPOSITORY / "training_scripts").glob("*/job.yaml")
    emulated = {
        target.name: ct.Local(emulate=target.name)
        for target in all_targets()
        if "emulate" in target.parts
    }
    for file in sorted(files):
        job = ct.load_job(file)
        for settings in (*SETTINGS.values(), *emulated.values()):
            account = ACCOUNTS[settings.type]
            yield (
                f"{file.parent.name} {file.name} {settings}",
                lambda name, j=job, s=settings, a=account: target_of(s.type).compile(
                    j, s, CompileContext(name, BUNDLE, a, conda="dependencies: [python=3.12]\n")
                ),
            )


def tuners() -> Iterator[tuple[str, Compile]]:
    """A sweep as a request to each tuner."""
    job = {**sweeps.JOB, "checkpoint": {"sagemaker": "s3://b/c/"}, "outputs": {"logs": {}}}
    fields: dict[str, Any] = {
        "search": {"lr": {"log": [1e-4, 1e-1]}},
        "objective": {"minimize": "val_loss"},
    }
    for target in all_targets():
        if "tuner" in target.parts:
            place = job if target.name == "azureml" else {**job, "outputs": {}}
            sweep = ct.Sweep(name="tune", job={**place, "checkpoint": None}, trials=8, **fields)
            yield (
                f"sweep on {target.name}",
                lambda name, t=target, s=sweep: part(t, SweepCompiler)(
                    s, SETTINGS[t.name], CompileContext(name, BUNDLE, ACCOUNTS[t.name])
                ),
            )


def differences(compile_as: Compile, name: str) -> list[str]:
    """The parts of the plan under that name that differ from those of the renamed plan."""
    named, renamed = compile_as(name), compile_as(NAMELESS).renamed(name)
    parts = {part: (one, renamed.to_dict()[part]) for part, one in named.to_dict().items()}
    parts |= {
        "outputs": (named.outputs, renamed.outputs),
        "order": (named.request_json, renamed.request_json),
    }
    parts |= {"every process": (list(named.processes), list(renamed.processes))}
    parts |= {"forms": tuple([sorted(plan.forms()) for plan in (named, renamed)])}  # type: ignore[dict-item]
    return [part for part, (one, other) in parts.items() if one != other]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [goldens, everywhere, tuners], ids=lambda kind: kind.__name__)
def test_a_renamed_plan_is_the_plan_of_that_name(
    kind: Callable[[], Iterator[tuple[str, Compile]]],
) -> None:
    """In every part, for every job of the golden files, the examples and the bundled scripts."""
    compared, wrong = 0, dict[str, list[str]]()
    for title, compile_as in chain(kind()):
        with suppress(JobError):
            found = differences(compile_as, NAME)
            compared += 1
            if found:
                wrong[title] = found
    assert wrong == {}
    assert compared >= {"goldens": 100, "everywhere": 60, "tuners": 2}[kind.__name__]


def test_a_longer_name_and_a_longer_number_stay() -> None:
    """Only the name itself changes, also in keys and in the processes, which are renamed when one looks at them."""
    asked = list[int]()

    def make(number: int) -> Process:
        asked.append(number)
        return Process(0, "rank", ("run", "/runs/job-1"), {"NAME": f"job-1{number}"}, number)

    processes = Processes([Alike("rank", ((0, 1_000_000),), make)])
    plan = Plan(
        "local", "job-1", "job", {"job-1": ["job-12", "see job-1."]}, processes=processes
    ).renamed("job-2")
    assert plan.request == {"job-2": ["job-12", "see job-2."]}
    assert asked == []
    assert plan.processes[-1].argv == ("run", "/runs/job-2")
    assert plan.processes[3].env == {"NAME": "job-13"}
    assert asked == [999_999, 3]
