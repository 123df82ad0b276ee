"""The examples that users bring, planned, adopted and run as the clouds would run them, by scripts that do not know us."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Level
from tests.cli.conftest import Cli, cli
from tests.deadlines import DEADLINE
from tests.originals.standins import (
    AUTOTUNING,
    AWS,
    AZURE,
    CIFAR,
    DEEPSPEED,
    HUGGING_FACE,
    MODEL_PARALLEL,
    MODEL_PARALLEL_SCRIPT,
    MPI4PY,
    SMDDP,
    SMP,
    TENSORFLOW,
    StandIn,
)

__all__ = ["cli"]

SAGEMAKER = ct.SageMaker(
    region="us-east-1", role="arn:aws:iam::111122223333:role/Training", bucket="bucket"
)
WORKSPACE = ct.AzureML(
    subscription_id="11111111-2222-3333-4444-555555555555",
    resource_group="group",
    workspace="workspace",
    compute="gpu-cluster",
)
ABSENT = "\nimport sys\nassert 'cloudtrain' not in sys.modules, 'our runtime helps'\n"
"""What each script ends with: nothing of cloudtrain is in its process."""


def written(example: StandIn, folder: Path) -> Path:
    """The example's files and shims."""
    files = dict(example.files)
    files |= {str(Path(example.code, name)): text for name, text in example.shims.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + (ABSENT if path.name == "train.py" else ""))
        path.chmod(0o755)
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("words")
    return folder


def job_of(example: StandIn, folder: Path) -> ct.TrainingJob:
    """The job of an example that the SDK starts, or the adopted one of a job file."""
    if not example.fields:
        return ct.adopt(folder / "job.yml").job
    fields = {**example.fields, "source_dir": str(folder / "src")}
    inputs = {
        name: {**item, "local": str(folder / item["local"])}
        for name, item in example.fields.get("inputs", {}).items()
    }
    return ct.TrainingJob(**{**fields, "inputs": inputs})


def errors_of(plan: ct.Plan) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in plan.findings if one.level is Level.ERROR]


@pytest.mark.parametrize("name", AWS)
def test_a_plan_for_sagemaker(name: str, tmp_path: Path) -> None:
    """Without errors, through the image's toolkit, as the SDK would send it."""
    example = AWS[name]
    plan = ct.plan(job_of(example, written(example, tmp_path)), SAGEMAKER)
    assert errors_of(plan) == []
    assert plan.request["HyperParameters"]["sagemaker_program"] == '"train.py"'


@pytest.mark.parametrize("name", AZURE)
def test_a_job_file_of_azure_is_adopted(name: str, tmp_path: Path) -> None:
    """Equal, and its plan has no errors."""
    found = ct.adopt(written(AZURE[name], tmp_path) / "job.yml")
    assert found.equal, found.differences
    plan = ct.plan(found.job, WORKSPACE)
    assert errors_of(plan) == []
    assert plan.request["properties"]["command"] == found.job.command


def test_the_ranks_of_smddp_on_sagemaker_find_torchs_variables(tmp_path: Path) -> None:
    """The plan shows what smddprun sets, whichever key asks for it; plain mpirun sets none of it."""
    job = job_of(SMDDP, written(SMDDP, tmp_path))
    variables = {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "16",
        "SMDATAPARALLEL_LOCAL_RANK": "1",
    }
    pytorchddp = {"HyperParameters": {"sagemaker_pytorch_ddp_enabled": "true"}}
    changes: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, variables),
        ({"sagemaker_overrides": pytorchddp}, variables),
        ({"distribution": ct.MPI()}, {}),
        ({"distribution": ct.Horovod()}, {}),
    ]
    for change, expected in changes:
        plan = ct.plan(job.model_copy(update=change), SAGEMAKER)
        (rank,) = [process for process in plan.processes if process.rank == 9]
        assert {name: rank.env[name] for name in variables if name in rank.env} == expected


@pytest.mark.parametrize(
    "distribution",
    [ct.SMDDP(processes_per_instance=4), ct.SMDDP(processes_per_instance=4, launch="torch")],
)
def test_smddp_starts_as_many_processes_as_the_job_says(
    distribution: ct.SMDDP, tmp_path: Path
) -> None:
    """On SageMaker too, where the SDK has no word for it."""
    job = job_of(SMDDP, written(SMDDP, tmp_path)).model_copy(update={"distribution": distribution})
    plan = ct.plan(job, SAGEMAKER)
    assert plan.request["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"] == "4"
    assert sum(process.rank is not None for process in plan.processes) == 8


@pytest.mark.parametrize("kind", ["torch", "deepspeed", "smddp", "mpi", "horovod"])
@pytest.mark.parametrize("processes", [3, 8])
def test_an_emulation_starts_as_many_processes_as_it_says(
    kind: str, processes: int, tmp_path: Path
) -> None:
    """Also as many as the real instance has GPUs, which the request then does not mention."""
    job = job_of(SMDDP, written(SMDDP, tmp_path)).model_copy(
        update={"distribution": {"smddp": ct.SMDDP, "torch": ct.Torch, "mpi": ct.MPI,
                                 "deepspeed": ct.DeepSpeed, "horovod": ct.Horovod}[kind]()}
    )  # fmt: skip
    target = ct.Local(emulate="sagemaker", instance_count=1, processes_per_instance=processes)
    plan = ct.plan(job, target)
    argv = plan.request["processes"][0]["argv"]
    option = "--nproc_per_node" if "--nproc_per_node" in argv else "-np"
    assert argv[argv.index(option) + 1] == str(processes)
    assert plan.request["world_size"] == processes


def test_an_emulation_tells_that_the_library_is_missing(tmp_path: Path) -> None:
    """For both of SageMaker's libraries, and for no other distribution."""
    target = ct.Local(emulate="sagemaker", instance_count=1)
    for example, is_told in ((SMDDP, True), (SMP, True), (HUGGING_FACE, False)):
        folder = tmp_path / example.fields["name"]
        plan = ct.plan(job_of(example, written(example, folder)), target)
        assert any("only in SageMaker's images" in note for note in plan.notes) == is_told


def test_a_plan_of_the_tutorial_on_two_devices(cli: Cli, tmp_path: Path) -> None:
    """No launcher, although the script imports torch: one process uses both devices."""
    os.chdir(written(MODEL_PARALLEL, tmp_path))
    result = cli("plan", "--json", "model_parallel_tutorial.py")
    assert result.code == 0, result.err
    plan = json.loads(result.out)
    assert [process["role"] for process in plan["processes"]] == ["process"]
    assert plan["request"]["world_size"] == 1


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("", False),  # the tutorial names `cuda:1`
        ("model = nn.DataParallel(model)", False),
        ("AutoModel.from_pretrained('gpt2', device_map='auto')", False),
        ("model.to('cuda:0')", True),
    ],
)
@pytest.mark.parametrize("target", [SAGEMAKER, WORKSPACE], ids=["sagemaker", "azureml"])
def test_one_process_may_use_all_gpus(
    line: str, is_told: bool, target: Any, tmp_path: Path
) -> None:
    """Nothing calls them idle, and nothing proposes torchrun, which would start the whole model on each."""
    script = f"import torch\nfrom torch import nn\n{line}\n" if line else MODEL_PARALLEL_SCRIPT
    (tmp_path / "train.py").write_text(script)
    job = ct.TrainingJob(
        name="tutorial",
        source_dir=str(tmp_path),
        entry_point="train.py",
        environment={"framework": "pytorch", "version": "2.8"},
        resources={
            "instance_type": {
                "sagemaker": "ml.g5.12xlarge",
                "azureml": "Standard_NC48ads_A100_v4",
            }
        },
    )
    codes = {finding.code for finding in ct.plan(job, target).findings}
    assert bool(codes & {"SM331", "AZ321"}) == is_told


def emulated(
    example: StandIn, folder: Path, emulate: str | None, *, instances: int = 2, processes: int = 1, **more: Any
) -> tuple[ct.Run, list[str]]:  # fmt: skip
    """The run of an example, and its sorted lines."""
    job = job_of(example, written(example, folder))
    data = ct.Input(azureml="azureml:cifar:1", local=str(folder / "text"))
    if "cifar" in job.inputs:
        more["inputs"] = {**job.inputs, "cifar": data}
    job = job.model_copy(update=more)
    target = ct.Local(
        emulate=emulate,
        instance_count=instances,
        processes_per_instance=processes,
        python=sys.executable,
        grace_period=1,
    )
    run = ct.submit(job, target)
    status = run.wait(DEADLINE)
    lines = [line.text for line in run.logs()]
    assert status.state is ct.RunState.SUCCEEDED, (status, lines)
    return run, sorted(lines)


@pytest.mark.mpi
@pytest.mark.torch
def test_smddp_runs(tmp_path: Path) -> None:
    """Both ranks join through the variables of smddprun, and hold the same weights."""
    _, lines = emulated(SMDDP, tmp_path, "sagemaker")
    first, second = (line.split() for line in lines if line.startswith("rank"))
    assert first[:6] == "rank 0 local 0 of 2".split()
    assert second[:6] == "rank 1 local 0 of 2".split()  # on a host of its own
    assert first[6:] == second[6:]


@pytest.mark.mpi
@pytest.mark.torch
def test_smp_runs(tmp_path: Path) -> None:
    """Each batch is cut into the job's microbatches, and every rank saves its part of the model."""
    run, lines = emulated(SMP, tmp_path, "sagemaker", instances=1, processes=2)
    assert [line for line in lines if line.startswith("rank")] == [
        "rank 0 of 2 files ['a.txt']",
        "rank 1 of 2 files ['a.txt']",
    ]
    assert any(line.startswith("loss ") for line in lines)
    names = [path.name for path in run.download("model/", tmp_path / "model")]
    assert sorted(names) == ["partial_0.pt", "partial_1.pt"]


@pytest.mark.torch
def test_cifar_runs(tmp_path: Path) -> None:
    """Azure ML's variables alone join the ranks, and the dataset is where the command says."""
    _, lines = emulated(CIFAR, tmp_path, "azureml")
    assert [line for line in lines if line.startswith(("rank", "logged"))] == [
        "logged ./model",
        "rank 0 local 0 of 2 reads ['a.txt']",
        "rank 1 local 0 of 2 reads ['a.txt']",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "emulate"),
    [
        ("torch", "azureml"),
        ("mpi", "azureml"),
        pytest.param("torch", None, marks=pytest.mark.torch),
        pytest.param("mpi", None, marks=pytest.mark.mpi),
    ],
)
def test_deepspeed_runs(launch: str, emulate: str | None, tmp_path: Path) -> None:
    """Through torch's variables, and under MPI through those that DeepSpeed itself copies."""
    distribution = {"distribution": ct.DeepSpeed(launch=launch)}
    _, lines = emulated(DEEPSPEED, tmp_path, emulate, **distribution)
    assert [line for line in lines if line.startswith("rank")] == [
        "rank 0 of 2 steps 4",
        "rank 1 of 2 steps 4",
    ]


@pytest.mark.slow
def test_autotuning_runs(tmp_path: Path) -> None:
    """One process of all starts DeepSpeed's launcher, with both instances in its hostfile."""
    _, lines = emulated(AUTOTUNING, tmp_path, "azureml", processes=2)
    assert lines == [
        "127.0.0.1 slots=8",
        "127.0.0.2 slots=8",
        "called with: --hostfile hostfile --autotuning tune --force_multi train.py --deepspeed "
        "--deepspeed_config ds_config.json",
        "rank is 0, starting deepspeed",
    ]


@pytest.mark.slow
def test_tensorflow_runs(tmp_path: Path) -> None:
    """Two workers find each other in TF_CONFIG, and the first one saves the model."""
    run, lines = emulated(TENSORFLOW, tmp_path, "azureml")
    assert lines == [
        "worker 0 of 2 saved outputs/keras-model",
        "worker 1 of 2 saved outputs/keras-model/workertemp_1",
    ]
    run.download("outputs/", tmp_path / "outputs")
    assert (tmp_path / "outputs/keras-model/workertemp_1/saved_model.pb").exists()


@pytest.mark.slow
def test_hugging_face_runs(tmp_path: Path) -> None:
    """Its defaults are SageMaker's variables: channels, model folder, number of GPUs."""
    run, lines = emulated(HUGGING_FACE, tmp_path, "sagemaker", instances=1)
    assert lines == ["trained distilbert-base-uncased on ['a.txt'] for 1"]
    assert [path.name for path in run.download("model/", tmp_path / "model")] == ["config.json"]


@pytest.mark.torch
def test_the_tutorial_on_two_devices_runs(cli: Cli, tmp_path: Path) -> None:
    """As a script without a job file."""
    os.chdir(written(MODEL_PARALLEL, tmp_path))
    result = cli("submit", "model_parallel_tutorial.py")
    assert result.code == 0, result.err
    assert "outputs (20, 5)" in result.out


TELL = {
    "run.sh": 'echo told $RANK $LOCAL_RANK $WORLD_SIZE $SMDATAPARALLEL_LOCAL_RANK "$@"\n',
    "tell.py": "import os, sys\nnames = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'SMDATAPARALLEL_LOCAL_RANK')\n"
    "print('told', *[os.environ[name] for name in names], *sys.argv[1:])\n",
}


def of_scripts(script: str, kind: str) -> StandIn:
    """A job of one of these two scripts."""
    files = {f"src/{name}": text for name, text in TELL.items()}
    distribution = ct.SMDDP() if kind == "smddp" else ct.NoDistribution()
    fields = {**SMDDP.fields, "entry_point": script, "distribution": distribution}
    return StandIn(files, MPI4PY, {**fields, "outputs": {"model": {}}})


@pytest.mark.slow
@pytest.mark.parametrize("value", ["x", "two words", "it's"])
def test_a_shell_script_gets_its_arguments(value: str, tmp_path: Path) -> None:
    """Old toolkits pass the command through a shell, which takes its own quotes away."""
    given = {"hyperparameters": {"note": value, "out": "${{outputs.model}}"}}
    example = of_scripts("run.sh", "none")
    run, lines = emulated(example, tmp_path, "sagemaker", instances=1, **given)
    assert run.directory is not None
    expected = f"told --note {value} --out {run.directory}/hosts/algo-1/opt/ml/model"
    assert lines[-1] == expected


@pytest.mark.mpi
@pytest.mark.parametrize("script", TELL)
def test_smddprun_sets_torchs_variables(script: str, tmp_path: Path) -> None:
    """For each rank, with the local ranks of two hosts, whatever the script is."""
    example = of_scripts(script, "smddp")
    given = {"hyperparameters": {"note": "two words"}}
    _, lines = emulated(example, tmp_path, "sagemaker", processes=2, **given)
    expected = ["0 0 4 0", "1 1 4 1", "2 0 4 0", "3 1 4 1"]
    assert [line for line in lines if line.startswith("told")] == [
        f"told {numbers} --note two words" for numbers in expected
    ]


@pytest.mark.mpi
@pytest.mark.parametrize("processes", [1, 2])
def test_the_failed_rank_is_named(processes: int, tmp_path: Path) -> None:
    """With its error, also where it is the only one."""
    example = of_scripts("tell.py", "smddp")
    job = job_of(example, written(example, tmp_path))
    (tmp_path / "src" / "tell.py").write_text("raise KeyError('mine')\n")
    target = ct.Local(
        emulate="sagemaker", instance_count=1, processes_per_instance=processes, grace_period=1
    )
    status = ct.submit(job, target).wait(DEADLINE)
    assert status.state is ct.RunState.FAILED
    assert "KeyError: 'mine'" in str(status.reason)
