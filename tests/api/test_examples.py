"""Every example is a job that can be planned, here and on SageMaker, and the scripts that can run here do."""

from __future__ import annotations

import ast
import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from tests.deadlines import DEADLINE

ROOT = Path(__file__).parents[2]
JOBS = (".yaml", ".toml", ".json")
FILES = sorted(
    path
    for path in [*ROOT.glob("examples/*.*"), *ROOT.glob("training_scripts/*/job.*")]
    if path.suffix in JOBS and path.name != "cloudtrain.toml"
)
SAGEMAKER_ONLY = {"smp_gpt2.yaml"}
OF_THIS_MACHINE = {"LO101", "LO103"}
"""Rules about what the user has on this machine: the data, and PyTorch."""


def here(path: Path) -> bool:
    return path.name not in SAGEMAKER_ONLY


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if here(path)],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_examples_can_be_planned(path: Path) -> None:
    """It loads, compiles, and no check finds an error; twice the same."""
    job = ct.load_job(path)
    plan = ct.plan(job, "local")
    assert {error.code for error in plan.errors} <= OF_THIS_MACHINE
    assert plan.to_json() == ct.plan(job, "local").to_json()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples_can_be_planned_on_sagemaker(path: Path) -> None:
    """The same on SageMaker, with the examples' own account settings."""
    job = ct.load_job(path)
    target = ct.SageMaker(
        region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
    )
    plan = ct.plan(job, target)
    assert plan.errors == ()
    assert plan.to_json() == ct.plan(job, target).to_json()


def test_every_example_is_described() -> None:
    """The page of the examples names each file."""
    page = (ROOT / "examples" / "README.md").read_text()
    for path in ROOT.glob("examples/*.*"):
        assert path.name == "README.md" or f"`{path.name}`" in page


def digits() -> tuple[list[bytes], bytes]:
    """Real scans, 8 x 8 grey values from 0 to 16, enlarged to 28 x 28, and their labels."""
    from importlib.util import find_spec

    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = [
        [int(float(cell)) for cell in row.split(b",")]
        for row in gzip.decompress(path.read_bytes()).splitlines()
    ]
    images = []
    for row in rows[:600]:
        pixels = bytearray(28 * 28)
        for y in range(24):
            for x in range(24):
                pixels[(y + 2) * 28 + x + 2] = min(255, row[y // 3 * 8 + x // 3] * 16)
        images.append(bytes(pixels))
    return images, bytes(row[64] for row in rows[:600])


def write_mnist(folder: Path) -> None:
    """The four files of MNIST, with few digits in them."""
    images, labels = digits()
    for part, chosen in (("train", slice(0, 512)), ("t10k", slice(512, 600))):
        pixels, names = images[chosen], labels[chosen]
        header = struct.pack(">IIII", 2051, len(pixels), 28, 28)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(header + b"".join(pixels))
        )
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(struct.pack(">II", 2049, len(names)) + names)
        )


def write_cifar(folder: Path) -> None:
    """The folder of CIFAR-10's python version, with grey digits instead of animals in it."""
    import numpy as np

    images, labels = digits()
    grey = np.frombuffer(b"".join(images), np.uint8).reshape(-1, 28, 28)
    colour = np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2)))[:, None], 3, axis=1).reshape(-1, 3072)
    inside = folder / "cifar-10-batches-py"
    inside.mkdir()
    for name, chosen in (
        ("data_batch_1", slice(0, 256)),
        ("data_batch_2", slice(256, 512)),
        ("test_batch", slice(512, 600)),
    ):
        batch = {b"data": colour[chosen], b"labels": list(labels[chosen])}
        (inside / name).write_bytes(pickle.dumps(batch, protocol=2))


RUNS: dict[str, tuple[Any, str, dict[str, Any], float]] = {
    "smddp_mnist.yaml": (write_mnist, "train", {"epochs": 12, "batch": 32}, 0.8),
    "torch_cifar10.yaml": (
        write_cifar,
        "cifar",
        {"epochs": 12, "batch": 16, "width": 16, "learning_rate": 0.05},
        0.5,
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", RUNS)
def test_scripts_train(name: str, tmp_path: Path, state_dir: Path) -> None:
    """Two processes train on data in the very format of the real set, and learn."""
    write, channel, hyperparameters, least = RUNS[name]
    data = tmp_path / "data"
    data.mkdir()
    write(data)
    job = ct.load_job(
        ROOT / "examples" / name,
        [
            f"inputs.{channel}.local={data}",
            *(f"hyperparameters.{key}={value}" for key, value in hyperparameters.items()),
        ],
    )
    if job.checkpoint is not None:
        job = job.replace(checkpoint=None, spot=None)
    run = ct.submit(job, ct.Local(instance_count=1, processes_per_instance=2))
    status = run.wait(timeout=DEADLINE)
    assert status.state is ct.RunState.SUCCEEDED, [line.text for line in run.logs()][-20:]
    last = [values for values in run.metrics() if "test_accuracy" in values][-1]
    assert last["test_accuracy"] >= least


@pytest.mark.torch
def test_cifar10_shifts_each_image_by_itself() -> None:
    """Each image of a batch is one of 81 shifts, mirrored or not, and few are alike."""
    import torch

    source = (ROOT / "examples" / "code" / "cifar10" / "train.py").read_text("utf-8")
    (function,) = (
        node for node in ast.parse(source).body if getattr(node, "name", "") == "augmented"
    )
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn}
    # the script trains when it is imported
    exec(compile(ast.Module([function], []), "train.py", "exec"), names)
    image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = names["augmented"](image.repeat(64, 1, 1, 1), torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(torch.stack([image, image.flip(2)]), (4, 4, 4, 4))
    possible = [
        padded[way, :, down : down + 32, right : right + 32]
        for way in range(2)
        for down in range(9)
        for right in range(9)
    ]
    which = [next(n for n, one in enumerate(possible) if torch.equal(one, each)) for each in found]
    assert len(set(which)) > 40
