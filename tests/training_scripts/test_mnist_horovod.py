"""The Horovod script: idx files, and runs with real processes under mpirun, bare and under both emulations.

Horovod is not in the project's own environment, and its release does not compile against a current PyTorch. The runs use
the stand-in of `tests/fakes/horovod`, which makes the same calls over a socket. `CLOUDTRAIN_HOROVOD_PYTHON` names an
interpreter that has Horovod with MPI; the runs then use that:

    CLOUDTRAIN_HOROVOD_PYTHON=/tmp/horovod/bin/python python -m pytest tests/training_scripts/test_mnist_horovod.py
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import psutil  # noqa: TID253 - tests may start slowly
import pytest

import cloudtrain as ct
from cloudtrain.runtime import SetupError
from cloudtrain.targets.common.launch import find_mpirun
from tests.training_scripts import runs
from tests.training_scripts.runs import (
    REPOSITORY,
    SAME_GRADIENT,
    Edit,
    Run,
    assert_same_losses,
    check_out,
    plant,
    rank_of,
)

FOLDER = REPOSITORY / "training_scripts" / "mnist_horovod"
STAND_IN = REPOSITORY / "tests" / "fakes" / "horovod"
PYTHON = os.environ.get("CLOUDTRAIN_HOROVOD_PYTHON", sys.executable)
IS_REAL = "CLOUDTRAIN_HOROVOD_PYTHON" in os.environ
MPIRUN = [
    find_mpirun(PYTHON, os.environ) or "mpirun",
    *["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"],
]


def starts_ranks(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that starts processes with mpirun."""
    return pytest.mark.torch(pytest.mark.mpi(test))


# What would be sent


@pytest.mark.parametrize("target", ["sagemaker", "azureml"])
def test_both_clouds_start_eight_processes_with_mpi(target: str) -> None:
    """The job file compiles for both without an error: four processes on each of two instances, and Horovod's source."""
    targets = {
        "sagemaker": ct.SageMaker(
            region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
        ),
        "azureml": ct.AzureML(
            subscription_id="00000000-0000-0000-0000-000000000000",
            resource_group="group",
            workspace="work",
        ),
    }
    plan = ct.plan(ct.load_job(FOLDER / "job.yaml"), targets[target])
    assert plan.errors == ()
    ranks = [process for process in plan.processes if process.role == "rank"]
    assert [process.env["OMPI_COMM_WORLD_RANK"] for process in ranks] == [
        str(rank) for rank in range(8)
    ]
    assert {process.env["OMPI_COMM_WORLD_LOCAL_SIZE"] for process in ranks} == {"4"}
    assert '"PIP_NO_BUILD_ISOLATION": "0"' in plan.to_json()


def test_azure_is_not_emulated_with_horovod() -> None:
    """Without Azure's own mpirun every rank would train alone and seem to work; what to do instead is said."""
    with pytest.raises(ct.JobError) as refusal:
        ct.plan(ct.load_job(FOLDER / "job.yaml"), ct.Local(emulate="azureml"))
    (problem,) = refusal.value.problems
    assert problem.hint == "run it here without `--emulate azureml`"


# The files of MNIST


@pytest.fixture(scope="module")
def images() -> Any:
    """`images.py` of the script."""
    pytest.importorskip("torch")
    spec = spec_from_file_location("mnist_horovod_images", FOLDER / "images.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def idx(magic: int, sizes: tuple[int, ...], content: bytes) -> bytes:
    """A file of MNIST."""
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + content


def write_mnist(folder: Path, parts: Any, *, gzipped: bool) -> Path:
    """The four files, of training and test images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train", "t10k"), parts, strict=True):
        count, _, rows, columns = part.pixels.shape
        for kind, content in {
            "images-idx3": idx(2051, (count, rows, columns), part.pixels.numpy().tobytes()),
            "labels-idx1": idx(2049, (count,), part.labels.byte().numpy().tobytes()),
        }.items():
            path = folder / f"{name}-{kind}-ubyte"
            path.write_bytes(content)
            if gzipped:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
                path.unlink()
    return folder


@pytest.mark.slow
@pytest.mark.slow
def test_the_digits_are_all_there(images: Any) -> None:
    """1,797 scans, every fifth for the test, with every grey value still told apart."""
    train, test = images.read_digits()
    assert (len(train.labels), len(test.labels)) == (1438, 359)
    assert train.pixels.shape[1:] == (1, 8, 8)
    assert sorted(set(train.pixels.flatten().tolist())) == [
        round(grey * 255 / 16) for grey in range(17)
    ]
    assert sorted(set(test.labels.tolist())) == list(range(10))


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("gzipped", [False, True])
def test_idx_files_are_read_as_written(images: Any, tmp_path: Path, gzipped: bool) -> None:
    """Pixels and labels come back, gzipped or not."""
    written = images.read_digits()
    for before, after in zip(
        written, images.read_mnist(write_mnist(tmp_path, written, gzipped=gzipped)), strict=True
    ):
        assert after.pixels.equal(before.pixels)
        assert after.labels.equal(before.labels)


TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
DAMAGE = {
    "missing": (
        TRAIN_LABELS,
        None,
        "has neither `train-labels-idx1-ubyte` nor `train-labels-idx1-ubyte.gz`",
    ),
    "another kind": (TRAIN_IMAGES, idx(2049, (1,), b"0"), "does not begin with the number 2051"),
    "empty": (TRAIN_IMAGES, b"", "does not begin with the number 2051"),
    "cut off": (TRAIN_IMAGES, idx(2051, (2, 8, 8), bytes(100)), "declares 128 bytes and has 100"),
    "huge numbers": (TRAIN_IMAGES, idx(2051, (2**31, 2**31, 2**31), bytes(9)), "bytes and has 9"),
    "other labels": (TRAIN_LABELS, idx(2049, (3,), bytes(3)), "has 1438 images and 3 labels"),
    "label 10": (
        TRAIN_LABELS,
        idx(2049, (1438,), bytes([10] * 1438)),
        "has the label 10, and there are ten classes",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content", "said"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_wrong_with_a_file_is_said(
    images: Any, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    """One sentence names the file and the fault, and another says what to do."""
    folder = write_mnist(tmp_path, images.read_digits(), gzipped=False)
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(SetupError) as refusal:
        images.read_mnist(folder)
    assert said in refusal.value.message
    assert refusal.value.hint


@pytest.mark.slow
def test_a_broken_gzip_file_is_said(images: Any, tmp_path: Path) -> None:
    """A download that ended early."""
    folder = write_mnist(tmp_path, images.read_digits(), gzipped=True)
    path = folder / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SetupError, match="cannot be read: Compressed file ended"):
        images.read_mnist(folder)


# Runs


@pytest.fixture
def with_horovod() -> Iterator[dict[str, str]]:
    """Variables with which a run finds Horovod: the real one of the interpreter, or a new socket for the stand-in."""
    folder = tempfile.mkdtemp(prefix="hvd")  # a socket's path must be short
    yield {} if IS_REAL else {"PYTHONPATH": str(STAND_IN), "HOROVOD_STAND_IN": f"{folder}/socket"}
    shutil.rmtree(folder)


def renewed(variables: dict[str, str]) -> dict[str, str]:
    """The same with another socket, for one more run."""
    return {
        name: f"{value}x" if name == "HOROVOD_STAND_IN" else value
        for name, value in variables.items()
    }


def run(
    folder: Path,
    *command: str | Path,
    variables: dict[str, str] | None = None,
    stop_at: int | None = None,
) -> Run:
    """A run in `folder` to its end. With `stop_at`, SIGTERM goes to rank 1 alone once that step is reported."""
    kept = {name: os.environ[name] for name in ("CLOUDTRAIN_STATE_DIR",) if name in os.environ}
    disturb = None if stop_at is None else stop_rank_1
    return runs.run(folder, *command, disturb=disturb, at=stop_at or 0, **kept, **(variables or {}))


def stop_rank_1(mpirun: psutil.Process) -> None:
    """SIGTERM to a process that mpirun has started."""
    rank_of(mpirun, 1, "OMPI_COMM_WORLD_RANK").send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process without Horovod, never interrupted: what all other runs are compared with."""
    return run(tmp_path_factory.mktemp("alone"), sys.executable, FOLDER / "train.py")


@pytest.mark.torch
def test_one_process_needs_no_horovod(alone: Run) -> None:
    """It says so, trains, and reads at least 95% of the test scans right."""
    assert alone.exit_code == 0, alone.errors
    assert "`horovod` is not installed: training in one process, without Horovod" in alone.errors
    assert alone.lines[0] == "processes=1 device=cpu images=1438 of 8 x 8 pixels"
    assert sorted(alone.accuracies) == [23, 46, 69, 92]
    assert alone.last("total") == 92
    assert alone.accuracies[92] >= 0.95
    assert alone.lines[-1].startswith(f"test accuracy {alone.accuracies[92]:.4f} after 92 steps")


@starts_ranks
def test_two_processes_learn_the_same(
    alone: Run, with_horovod: dict[str, str], tmp_path: Path
) -> None:
    """Under bare mpirun: the same losses to 5 decimals, the same accuracy, and one process that reports."""
    found = run(tmp_path, *MPIRUN, PYTHON, FOLDER / "train.py", variables=with_horovod)
    assert found.exit_code == 0, found.errors
    assert found.lines[0] == "processes=2 device=cpu images=1438 of 8 x 8 pixels"
    assert_same_losses(found, alone, at_least=19)
    assert found.accuracies == alone.accuracies
    assert len(found.lines) == len(alone.lines)
    assert [path.name for path in sorted((tmp_path / "checkpoint").iterdir())] == [
        f"{number:06d}-step-{step}" for number, step in ((2, 50), (3, 75), (4, 92))
    ]


FAULTS: dict[str, Edit] = {
    "factor": ("train.py", "    loss.backward()", "    (2 * loss).backward()"),
    "average": (
        "train.py",
        "network.named_parameters(), op=hvd.Sum",
        "network.named_parameters(), op=hvd.Average",
    ),
    "missing": (
        "train.py",
        "optimizer = hvd.DistributedOptimizer(",
        "(lambda *_, **__: None)(",
    ),
    "shard": ("train.py", "batch[hvd.rank() :: hvd.size()]", "batch[:: hvd.size()]"),
}


@starts_ranks
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(
    alone: Run, with_horovod: dict[str, str], tmp_path: Path, fault: str
) -> None:
    """A factor, gradients averaged or not exchanged, a share taken twice: the first norm of the gradient says so."""
    script = check_out("mnist_horovod", tmp_path / "checkout")
    plant(script, FAULTS[fault])
    found = run(tmp_path / "run", *MPIRUN, PYTHON, script, "--epochs", "1", variables=with_horovod)
    assert found.exit_code == 0, found.errors
    with pytest.raises(AssertionError):
        assert_same_losses(found, alone, at_least=2)
    assert abs(found.norms[1] / alone.norms[1] - 1) > SAME_GRADIENT


@starts_ranks
def test_stopped_twice_it_goes_on_with_2_processes_and_then_with_1(
    alone: Run, with_horovod: dict[str, str], tmp_path: Path
) -> None:
    """Rank 1 alone gets the SIGTERM, rank 0 alone has the checkpoints: the losses of a run that was never stopped."""
    marker = tmp_path / "checkpoint" / "preempted"
    two = [*MPIRUN, PYTHON, FOLDER / "train.py", "--step_delay", "0.3"]  # the signal may come late
    first = run(tmp_path, *two, variables=with_horovod, stop_at=20)
    assert first.exit_code == 0, first.errors
    stopped_at = json.loads(marker.read_text())["step"]
    assert 20 <= stopped_at < 92

    second = run(tmp_path, *two, variables=renewed(with_horovod), stop_at=stopped_at + 10)
    assert f"resumed from step {stopped_at}\n" in second.errors
    assert second.exit_code == 0, second.errors
    stopped_again_at = json.loads(marker.read_text())["step"]
    assert stopped_at + 10 <= stopped_again_at < 92

    third = run(tmp_path, sys.executable, FOLDER / "train.py")
    assert f"resumed from step {stopped_again_at}\n" in third.errors
    assert not marker.exists()
    assert (min(second.losses), min(third.losses)) == (stopped_at + 1, stopped_again_at + 1)
    for part in (first, second, third):
        assert_same_losses(part, alone, at_least=2)
    assert third.accuracies[92] == alone.accuracies[92]


@starts_ranks
@pytest.mark.parametrize("service", ["sagemaker", "azureml"])
def test_under_the_emulations_two_processes_learn_the_same(
    alone: Run, with_horovod: dict[str, str], tmp_path: Path, service: str
) -> None:
    """As SageMaker's toolkit starts Horovod, and with the variables of Azure ML's MPI, where there is no mpirun here."""
    if IS_REAL and service == "azureml":
        pytest.skip("without mpirun the real Horovod finds itself alone")
    two = [
        "--emulate",
        service,
        "--instances",
        "2",
        "--processes-per-instance",
        "1",
        "--python",
        PYTHON,
    ]
    changes = ["distribution.type=mpi"] if service == "azureml" else []
    options = [part for change in changes for part in ("--set", change)]
    command = [
        sys.executable,
        "-m",
        "cloudtrain",
        "submit",
        FOLDER / "job.yaml",
        "--no-build-environment",
        *two,
        *options,
    ]
    here = {
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(REPOSITORY), with_horovod.get("PYTHONPATH")))
        )
    }
    found = run(tmp_path, *command, variables={**with_horovod, **here})
    assert found.exit_code == 0, "\n".join(found.lines) + found.errors
    # the first ten lines of a run with a folder are printed, accuracies too; then at most ten a second
    assert_same_losses(found, alone, at_least=8)
    assert any("processes=2 device=cpu" in line for line in found.lines)
    assert found.accuracies.items() <= alone.accuracies.items()
    assert max(found.accuracies) == max(alone.accuracies)


@pytest.mark.torch
def test_several_processes_without_horovod_end_with_a_sentence(tmp_path: Path) -> None:
    """A rank of two, as MPI's variables say, does not train alone: exit code 1, and what to type."""
    rank = {f"OMPI_COMM_WORLD_{name}": "2" if name.endswith("SIZE") else "0" for name in NUMBERS}
    found = run(tmp_path, sys.executable, FOLDER / "train.py", variables=rank)
    assert (found.exit_code, found.lines) == (1, [])
    assert found.errors == (
        "error: `horovod` is not installed, and 2 processes need it\n\n"
        "hint: pip install --no-build-isolation -r requirements.txt; digits_ddp is the same training without Horovod\n"
    )


NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


@pytest.mark.torch
def test_a_horovod_that_finds_itself_alone_is_not_believed(tmp_path: Path) -> None:
    """mpirun started two, and a Horovod without MPI sees one: both would train on everything and seem to work."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch.py").write_text("from alone import *\n")
    rank = {f"OMPI_COMM_WORLD_{name}": "2" if name.endswith("SIZE") else "0" for name in NUMBERS}
    found = run(
        tmp_path,
        sys.executable,
        FOLDER / "train.py",
        variables={**rank, "PYTHONPATH": str(tmp_path)},
    )
    assert (found.exit_code, found.lines) == (1, [])
    assert found.errors.startswith("error: 2 processes were started, and Horovod finds 1\n\nhint: ")


@pytest.mark.slow
@pytest.mark.torch
def test_mnist_given_as_an_input_is_what_it_trains_on(images: Any, tmp_path: Path) -> None:
    """Files of another size, 12 x 10 pixels: read, trained on for one epoch, and nothing is said of digits."""
    import torch

    parts = images.read_digits()
    padded = [
        images.Images(torch.nn.functional.pad(part.pixels, (1, 1, 2, 2))[:200], part.labels[:200])
        for part in parts
    ]
    variables = {
        "CLOUDTRAIN_INPUT_MNIST": str(write_mnist(tmp_path / "mnist", padded, gzipped=True))
    }
    found = run(tmp_path, sys.executable, FOLDER / "train.py", "--epochs", "1", variables=variables)
    assert found.exit_code == 0, found.errors
    assert found.lines[0] == "processes=1 device=cpu images=200 of 12 x 10 pixels"
    assert "digits" not in found.errors
    assert sorted(found.losses) == [1]
