"""Jobs of a thousand instances and a million processes: what a plan shows is true, and costs what is looked at."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.errors import JobError
from cloudtrain.plans.plan import Bundle, CompileContext, Machine, Plan
from cloudtrain.plans.processes import LISTED, TOLD_APART, Processes, common_variables
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.settings import AzureMLAccount
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.local.compile import compile_local
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

BUNDLE = Bundle("ab" * 32, 100, 1)
ACCOUNTS: dict[str, Any] = {
    "sagemaker": SageMakerAccount("us-west-2", "arn:aws:iam::123456789012:role/R", "bucket"),
    "azureml": AzureMLAccount("00000000-0000-0000-0000-000000000000", "rg", "ws"),
    "local": LocalAccount("/state", "/usr/bin/python3", Machine(4), mpirun="/usr/bin/mpirun"),
}
TORCH, MPI, NONE = {"type": "torch"}, {"type": "mpi"}, {"type": "none"}
SERVERS = {"type": "tensorflow", "strategy": "parameter_server"}
WORKERS = {"type": "tensorflow", "strategy": "multi_worker_mirrored"}
EIGHT = {"sagemaker": "ml.p4d.24xlarge", "azureml": "Standard_ND96asr_v4"}


def plan_of(target: str, distribution: dict[str, Any], count: int, **settings: Any) -> Plan:
    """The plan of a small script on so many instances."""
    framework = "tensorflow" if distribution["type"] == "tensorflow" else "pytorch"
    version = {"sagemaker": "2.2.0"} if distribution["type"] == "smddp" else {}
    overrides = settings.pop("overrides", {})
    fields: dict[str, Any] = {
        "name": "job",
        "entry_point": "train.py",
        "distribution": distribution,
        "resources": settings.pop("resources", {"instance_count": count, "instance_type": EIGHT}),
        "environment": {
            "framework": framework,
            **({"version": version["sagemaker"]} if version else {}),
        },
        f"{'azureml' if target == 'azureml' else 'sagemaker'}_overrides": overrides,
    }
    context = CompileContext("job-1a2b3c4d-1", BUNDLE, ACCOUNTS[target])
    if target == "local":
        return compile_local(
            ct.TrainingJob(**fields), ct.Local(instance_count=count, **settings), context
        )
    if target == "azureml":
        return compile_azureml(ct.TrainingJob(**fields), ct.AzureML(**settings), context)
    return compile_sagemaker(ct.TrainingJob(**fields), ct.SageMaker(**settings), context)


def two_groups(*spans: str) -> dict[str, Any]:
    """Two groups, of which the second has the host whose name comes first."""
    groups = [
        {"name": "a", "instance_type": "ml.p4d.24xlarge", "instance_count": 4},
        {"name": "b", "instance_type": "ml.p4d.24xlarge", "instance_count": 9},
    ]
    return {"instance_groups": groups, "distribution_groups": list(spans)}


OWN = {"launch": "entrypoint"}
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "toolkit, torchrun": ("sagemaker", TORCH, {"launch": "toolkit"}),
    "toolkit, mpirun": ("sagemaker", MPI, {}),
    "toolkit, smddp": ("sagemaker", {"type": "smddp"}, {}),
    "toolkit, alone": ("sagemaker", NONE, {"launch": "toolkit"}),
    "toolkit, servers": ("sagemaker", SERVERS, {"launch": "toolkit"}),
    "toolkit, workers": ("sagemaker", WORKERS, {"launch": "toolkit"}),
    "toolkit, two groups": ("sagemaker", TORCH, {"launch": "toolkit", "resources": two_groups()}),
    "toolkit, the second group": ("sagemaker", MPI, {"resources": two_groups("b")}),
    "toolkit, servers in the second group": (
        "sagemaker", SERVERS, {"launch": "toolkit", "resources": two_groups("b")},
    ),
    "toolkit, too few ranks": (
        "sagemaker", MPI, {"overrides": {"HyperParameters": {"sagemaker_mpi_num_processes": "21"}}},
    ),
    "own, torchrun": ("sagemaker", TORCH, OWN),
    "own, alone": ("sagemaker", NONE, OWN),
    "own, servers": ("sagemaker", SERVERS, OWN),
    "own, more workers than hosts": ("sagemaker", WORKERS | {"workers": 17}, OWN),
    "own, fewer servers": ("sagemaker", SERVERS | {"workers": 3, "parameter_servers": 5}, OWN),
    "own, the second group": ("sagemaker", TORCH, OWN | {"resources": two_groups("b")}),
    "another program": (
        "sagemaker", TORCH, {"overrides": {"AlgorithmSpecification": {"ContainerEntrypoint": ["run"]}}},
    ),
    "azure, torch": ("azureml", TORCH, {}),
    "azure, mpi": ("azureml", MPI, {}),
    "azure, servers": ("azureml", SERVERS | {"workers": 12, "parameter_servers": 4}, {}),
    "azure, workers": ("azureml", WORKERS, {}),
    "azure, alone": ("azureml", NONE, {}),
    "local, torchrun": ("local", TORCH, {"processes_per_instance": 2}),
    "local, fork": ("local", TORCH, {"processes_per_instance": 2, "launcher": "fork"}),
    "local, mpirun": ("local", MPI, {"processes_per_instance": 2}),
    "local, servers": ("local", SERVERS, {}),
    "local, alone": ("local", NONE, {}),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kind_of_processes_is_uniform(shape: str) -> None:
    """What the first, second and last of a kind share is what all share; and each is where its kind says it is."""
    target, distribution, settings = SHAPES[shape]
    for count in (1, 2, 3, 13):
        processes = Processes.of(plan_of(target, distribution, count, **settings).processes)
        assert len(list(processes)) == len(processes) > 0
        for group in processes.groups:
            every = list(group)
            assert group.env == common_variables(process.env for process in every)
            assert {process.role for process in every} == {group.role}
            assert [process.instance for process in every] == [
                instance for instance, number in group.spread for _ in range(number)
            ]
            assert len({process.rank is None for process in every}) == 1
        assert processes[len(processes) - 1] == list(processes)[-1]


@pytest.mark.parametrize("shape", SHAPES)
def test_json_tells_every_process(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many processes share is written once, and from that and their own part each can be put together again."""
    target, distribution, settings = SHAPES[shape]
    plan = plan_of(target, distribution, 13, **settings)
    every = [json.loads(json.dumps(entry)) for entry in plan.to_dict()["processes"]]
    monkeypatch.setattr("cloudtrain.plans.processes.LISTED", 2)
    monkeypatch.setattr("cloudtrain.plans.processes._LONG", 20)
    again = [process for entry in plan.to_dict()["processes"] for process in _whole(entry)]
    assert again == [process for entry in every for process in _whole(entry)]
    assert len(again) == len(plan.processes)


def _whole(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The processes of one entry of the JSON, each with everything."""
    if "each" not in entry:
        return [entry]
    assert entry["count"] == len(entry["each"])
    begins = entry.get("env_begins", {})
    return [
        {
            "role": entry["role"],
            "argv": own.get("argv", entry.get("argv")),
            **own,
            "env": entry["env"]
            | {name: begins.get(name, "") + text for name, text in own["env"].items()},
        }
        for own in entry["each"]
    ]


@pytest.mark.parametrize(
    ("target", "distribution", "settings"),
    [
        ("sagemaker", TORCH | {"processes_per_instance": 1024}, {"launch": "toolkit"}),
        ("sagemaker", TORCH | {"processes_per_instance": 1024}, OWN),
        ("sagemaker", MPI | {"processes_per_instance": 1024}, {}),
        ("azureml", TORCH | {"processes_per_instance": 1024}, {}),
        ("azureml", MPI | {"processes_per_instance": 1024}, {}),
        ("local", TORCH, {"processes_per_instance": 1024}),
    ],
)
@pytest.mark.slow_after(3)
def test_a_million_processes_are_planned_without_being_made(
    target: str, distribution: dict[str, Any], settings: dict[str, Any]
) -> None:
    """1,024 instances with 1,024 processes each: the text takes a part of the memory that a million would."""
    tracemalloc.start()
    plan = plan_of(target, distribution, 1024, **settings)
    text = plan.to_text()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        sum(group.count for group in Processes.of(plan.processes).groups if group.role == "rank")
        == 2**20
    )
    assert "ranks 0 to 1048575 on instances 0 to 1023\n" in text
    assert peak < 60_000_000


LONG = ("toolkit, servers", "own, servers", "own, more workers than hosts", "own, fewer servers")
"""Plans whose texts are long: seconds for each."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=pytest.mark.slow if shape in LONG else ())
        for shape, (target, *_) in SHAPES.items()
        if target != "local"
    ],
)
@pytest.mark.slow_after(6)
def test_the_json_of_a_plan_grows_with_its_instances(shape: str) -> None:
    """Not with their square: eight times the instances are about eight times the text."""
    target, distribution, settings = SHAPES[shape]
    if "resources" in settings:
        return
    large = {**distribution, **({"workers": 100} if "workers" in distribution else {})}
    larger = {**distribution, **({"workers": 800} if "workers" in distribution else {})}
    if "parameter_servers" in distribution:
        large, larger = large | {"parameter_servers": 72}, larger | {"parameter_servers": 576}
    small = len(plan_of(target, large, 72, **dict(settings)).to_json())
    assert len(plan_of(target, larger, 576, **dict(settings)).to_json()) < 10 * small


def test_very_many_are_told_by_their_first_and_last() -> None:
    """Up to `TOLD_APART` each is there; of more, the first two and the last, with their count."""
    for count, told in ((LISTED, None), (LISTED + 1, LISTED + 1), (TOLD_APART + 1, 3)):
        plan = plan_of(
            "sagemaker",
            MPI,
            1,
            overrides={"HyperParameters": {"sagemaker_mpi_num_processes": str(count)}},
        )
        ranks = [entry for entry in plan.to_dict()["processes"] if entry["role"] == "rank"]
        if told is None:
            assert [entry["rank"] for entry in ranks] == list(range(count))
            continue
        (entry,) = ranks
        assert (entry["count"], len(entry["each"]), entry["each"][-1]["rank"]) == (
            count,
            told,
            count - 1,
        )


@pytest.mark.parametrize(
    ("target", "overrides", "path"),
    [
        (
            "sagemaker",
            {"ResourceConfig": {"InstanceCount": 1025}},
            ("ResourceConfig", "InstanceCount"),
        ),
        ("azureml", {"resources": {"instanceCount": 10**9}}, ("resources", "instanceCount")),
        (
            "azureml",
            {"distribution": {"processCountPerInstance": 10**9}},
            ("distribution", "processCountPerInstance"),
        ),
    ],
)
def test_counts_of_the_overrides_are_bounded(
    target: str, overrides: dict[str, Any], path: tuple[str, ...]
) -> None:
    """A billion instances are a slip in the overrides too, and are refused before anything is listed."""
    with pytest.raises(JobError) as caught:
        plan_of(target, TORCH, 1, overrides=overrides)
    (problem,) = caught.value.problems
    assert problem.path == (f"{target}_overrides", *path)
    assert "at most 1024" in problem.message


def test_tensorflow_on_this_machine_has_an_end() -> None:
    """Every task is told of all others: 1,024 workers are planned, and as many servers beside them are refused."""
    plan = plan_of("local", SERVERS | {"workers": 1, "parameter_servers": 1}, 1024)
    assert len(plan.processes) == 1025
    with pytest.raises(
        JobError, match=r"1,024 workers and 1,024 parameter servers are too many for this machine"
    ):
        plan_of("local", SERVERS | {"workers": 1024, "parameter_servers": 1024}, 1024)


@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
def test_an_emulation_has_an_end(service: str, tmp_path: Path) -> None:
    """Every emulated process is told of all instances; what a machine cannot start anyway is refused at once."""
    with pytest.raises(
        JobError, match=r"1024 x 8 \(instances x processes\) is too much to emulate"
    ):
        plan_of("local", TORCH, 1024, processes_per_instance=8, emulate=service)
