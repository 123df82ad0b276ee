"""Who starts the processes of a request: everybody who reads it agrees, with each other and with the toolkits' code."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.plans.plan import Bundle, CompileContext, Machine
from cloudtrain.plans.processes import Processes
from cloudtrain.targets.adoption import Original
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.sagemaker.adopt.jobs import drafts_of
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.emulate import ACCOUNT
from cloudtrain.targets.sagemaker.export.distributions import start_of
from cloudtrain.targets.sagemaker.reading import SageMakerReading

BUNDLE = Bundle("c0ffee" * 8, 10, 1)
HERE = LocalAccount("/state", "/usr/bin/python3", Machine(4), mpirun="/usr/bin/mpirun")
KEYS = {
    "mpi": "sagemaker_mpi_enabled",
    "servers": "sagemaker_parameter_server_enabled",
    "smddp": "sagemaker_distributed_dataparallel_enabled",
    "ddp": "sagemaker_pytorch_ddp_enabled",
    "xla": "sagemaker_pytorch_xla_multi_worker_enabled",
    "workers": "sagemaker_multi_worker_mirrored_strategy_enabled",
    "torch": "sagemaker_torch_distributed_enabled",
}
SUBSETS = [chosen for size in range(len(KEYS) + 1) for chosen in combinations(KEYS, size)]
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "pytorch": {"framework": "pytorch", "version": "2.5.1"},
    "tensorflow": {"framework": "tensorflow", "version": "2.11.0"},
    "generic": {"image": {"sagemaker": "registry/mine:1"}},
}


def acting(framework: str, chosen: tuple[str, ...], instances: int) -> str | None:
    """The launcher by the code of the toolkits (their `training.py` and `trainer.py`), branch for branch."""
    if framework == "generic" and "smddp" in chosen:
        framework = "pytorch"  # only an image of AWS has the library
    if framework == "tensorflow" and "servers" in chosen and instances > 1:
        return "servers"
    if "mpi" in chosen:
        return "mpi"
    if framework == "pytorch":
        return next((name for name in ("ddp", "torch", "smddp", "xla") if name in chosen), None)
    if framework == "tensorflow":
        return "smddp" if "smddp" in chosen else "workers" if "workers" in chosen else None
    return None


ROLES = {
    None: {"process"}, "mpi": {"mpirun", "sshd"}, "ddp": {"mpirun", "sshd"}, "smddp": {"mpirun", "sshd"},
    "torch": {"torchrun"}, "servers": {"master", "worker", "ps"}, "workers": {"worker"}, "xla": set[str](),
}  # fmt: skip
"""What the hosts start; of mpirun on one host there is no sshd."""

WORDS = {
    "mpi": "mpi",
    "ddp": "mpi",
    "smddp": "smddp",
    "servers": "tensorflow",
    "workers": "tensorflow",
    "xla": "none",
}
EXPORTED = {"mpi": "mpirun", "torch": "torchrun", None: "single"}


def words_of(chosen: tuple[str, ...], key: str | None) -> str:
    """The distribution's type: of the launcher that acts, or else of one that the toolkit ignores."""
    if key is None:
        key = next(
            (
                name
                for name in ("servers", "workers", "mpi", "ddp", "torch", "smddp", "xla")
                if name in chosen
            ),
            None,
        )
    if key == "torch":
        return "smddp" if "smddp" in chosen else "torch"  # both keys: SMDDP under torchrun
    return WORDS.get(key or "", "none")


def job_of(framework: str, chosen: tuple[str, ...], instances: int) -> ct.TrainingJob:
    """A job whose overrides write these keys."""
    return ct.TrainingJob(
        name="job",
        entry_point="train.py",
        environment=FRAMEWORKS[framework],
        resources={"instance_count": instances, "instance_type": {"sagemaker": "ml.p4d.24xlarge"}},
        sagemaker_overrides={"HyperParameters": {KEYS[name]: "true" for name in chosen}},
    )


@pytest.mark.parametrize(
    ("framework", "instances"), [(name, 2) for name in FRAMEWORKS] + [("tensorflow", 1)]
)
@pytest.mark.slow_after(1)
def test_every_reader_agrees(framework: str, instances: int) -> None:
    """Launch view, summary, rules, adoption, export and emulation, for all 128 combinations of launcher keys."""
    for chosen in SUBSETS:
        key, case = acting(framework, chosen, instances), (framework, chosen, instances)
        words, roles = words_of(chosen, key), ROLES[key] - ({"sshd"} if instances == 1 else set())
        job = job_of(framework, chosen, instances)
        settings = ct.SageMaker(launch="toolkit")
        plan = compile_sagemaker(job, settings, CompileContext("job-1", BUNDLE, ACCOUNT))
        assert {process.role for process in plan.processes} - {"rank"} == roles, case
        assert dict(plan.summary)["distribution"] == words, case
        reading = SageMakerReading("sagemaker", job, ACCOUNT, plan)
        assert reading.distribution.type == words, case
        assert reading.start.key == (None if key is None else KEYS[key]), case
        draft = next(drafts_of(Original("sagemaker", plan.request, "job", "a request")))
        assert draft.job.get("distribution", {"type": "none"})["type"] == words, case
        start = start_of(dict(plan.request), ACCOUNT.region)
        assert start is not None
        assert start.launcher == _exported(chosen, key), case
        emulated = _emulated_roles(job, stops=not roles)
        assert emulated == (roles - {"sshd"}), case


def _exported(chosen: tuple[str, ...], key: str | None) -> str:
    asked = key
    if asked is None:
        order = ("servers", "workers", "mpi", "ddp", "torch", "smddp", "xla")
        asked = next((name for name in order if name in chosen), None)
    if asked in (None, "mpi") and "smddp" in chosen:
        return "mp_parameters"
    return EXPORTED.get(asked) or KEYS[str(asked)]


def _emulated_roles(job: ct.TrainingJob, *, stops: bool) -> set[str]:
    account = HERE._replace(emulated=ct.SageMaker(launch="toolkit"))
    context = CompileContext("job-1", BUNDLE, account)
    if stops:
        with pytest.raises(JobError, match="Training Compiler"):
            compile_local(job, ct.Local(emulate="sagemaker"), context)
        return set()
    plan = compile_local(job, ct.Local(emulate="sagemaker"), context)
    return {process.role for process in Processes.of(plan.processes)} - {"rank"}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((), {"type": "none"}),
        (("mpi",), {"type": "mpi", "options": "-x A=1"}),
        (("ddp",), {"type": "mpi", "options": "-x B=2"}),
        (("smddp",), {"type": "smddp", "mpi_options": "-x B=2"}),
        (("torch", "smddp"), {"type": "smddp", "launch": "torch", "mpi_options": "-x B=2"}),
        (("torch",), {"type": "torch", "processes_per_instance": 2}),
        (("servers",), {"type": "tensorflow", "strategy": "parameter_server"}),
    ],
)
def test_the_options_of_the_launcher_that_acts(
    chosen: tuple[str, ...], expected: dict[str, Any]
) -> None:
    """A request with options for every launcher is adopted with those of its own launcher."""
    job = job_of("pytorch", chosen, 2)
    values = {
        "sagemaker_mpi_custom_mpi_options": "-x A=1",
        "sagemaker_distributed_dataparallel_custom_mpi_options": "-x B=2",
    }
    values |= {"sagemaker_mpi_num_of_processes_per_host": "2"} if chosen == ("torch",) else {}
    overrides = {"HyperParameters": job.sagemaker_overrides["HyperParameters"] | values}
    request = compile_sagemaker(
        job.model_copy(update={"sagemaker_overrides": overrides}),
        ct.SageMaker(launch="toolkit"),
        CompileContext("job-1", BUNDLE, ACCOUNT),
    ).request
    draft = next(drafts_of(Original("sagemaker", request, "job", "a request")))
    assert draft.job.get("distribution", {"type": "none"}) == expected
