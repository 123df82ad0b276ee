"""ResNet50 over stages: torchvision's weights, the same gradients however it is cut, the same losses in any number of
processes, and the experiment with its plots."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError, parse_metrics
from tests.deadlines import DEADLINE
from tests.training_scripts.runs import HOLD

FOLDER = Path(__file__).parents[2] / "training_scripts" / "resnet_model_parallel"
SCRIPT = FOLDER / "train.py"
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    SCRIPT,
]

TORCHVISION_RESNET50 = "d7e4f8bb0a5363446a59c81c3887ccf66900a11651a0ae2dec96d1bb1eb6ea81"
"""SHA-256 of the lines `NAME SHAPE` of `torchvision.models.resnet50().state_dict()`, torchvision 0.28."""


def load(name: str) -> ModuleType:
    """One file of the script's folder that imports no other, under a name of its own."""
    spec = importlib.util.spec_from_file_location(
        f"resnet_model_parallel_{name}", FOLDER / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


balance = load("balance")

COSTS = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=8)


@given(COSTS, st.integers(1, 4))
def test_the_balanced_cuts_have_the_fastest_slowest_stage(costs: list[float], stages: int) -> None:
    """No other cuts do better: all are tried."""
    if stages > len(costs):
        with pytest.raises(ValueError, match="cannot make"):
            balance.balanced(costs, stages)
        return
    cuts = balance.balanced(costs, stages)
    others = [[0, *rest] for rest in itertools.combinations(range(1, len(costs)), stages - 1)]
    assert cuts in others
    assert max(balance.stage_costs(costs, cuts)) == min(
        max(balance.stage_costs(costs, other)) for other in others
    )
    assert sum(balance.stage_costs(costs, cuts)) == sum(costs)


def test_balancing_by_time_is_not_balancing_by_number() -> None:
    """One slow piece at the end gets a stage of its own."""
    assert balance.balanced([1.0, 1.0, 1.0, 5.0], 2) == [0, 3]
    assert balance.balanced([1.0, 1.0, 1.0, 1.0], 2) == [0, 2]


@pytest.mark.torch
def test_the_cost_of_a_piece_is_measured_and_leaves_no_trace() -> None:
    """A wide piece takes longer than a narrow one; neither weights, gradients nor BatchNorm's statistics change."""
    import torch
    from torch import nn

    pieces = [
        nn.Linear(8, 8),
        nn.Sequential(nn.Linear(8, 2048), nn.Linear(2048, 8), nn.BatchNorm1d(8)),
    ]
    before = [
        {name: tensor.clone() for name, tensor in piece.state_dict().items()} for piece in pieces
    ]
    narrow, wide = balance.measured(pieces, torch.randn(256, 8))
    assert 0 < narrow < wide
    for piece, state in zip(pieces, before, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in piece.state_dict().items())
        assert all(parameter.grad is None for parameter in piece.parameters())


@pytest.mark.torch
def test_resnet50_has_the_weights_of_torchvision() -> None:
    """25,557,032 parameters; names, order and shapes of the state dict."""
    import torch

    with torch.device("meta"):
        model = load("resnet").ResNet()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    lines = [f"{name} {tuple(tensor.shape)}" for name, tensor in model.state_dict().items()]
    assert (len(lines), lines[0], lines[-1]) == (
        320,
        "conv1.weight (64, 3, 7, 7)",
        "fc.bias (1000,)",
    )
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == TORCHVISION_RESNET50


@pytest.mark.torch
@pytest.mark.parametrize(
    ("stages", "microbatches"), [(1, 1), (1, 4), (2, 1), (2, 6), (3, 2), (4, 8)]
)
def test_one_forward_one_backward_is_a_schedule(stages: int, microbatches: int) -> None:
    """Everything once, nothing before what it needs, few microbatches held, and no bubble beyond theory's."""
    ticks = load("devices").one_forward_one_backward(stages, microbatches)
    when = {tuple(action): tick for tick, actions in enumerate(ticks) for action in actions}
    every = itertools.product("FB", range(stages), range(microbatches))
    assert sorted(when) == sorted(every)
    assert sum(map(len, ticks)) == len(when)
    for (kind, stage, number), tick in when.items():
        if kind == "F" and stage:
            assert when["F", stage - 1, number] < tick
        if kind == "B":
            assert when["F", stage, number] < tick
            assert stage == stages - 1 or when["B", stage + 1, number] < tick
    for stage in range(stages):
        held = itertools.accumulate(
            1 if action.kind == "F" else -1
            for actions in ticks
            for action in actions
            if action.stage == stage
        )
        assert max(held) <= stages - stage
    assert len(ticks) == 2 * (microbatches + stages - 1)


@pytest.fixture
def images_and_labels() -> Any:
    """Eight images of three classes."""
    import torch

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 32, 32, generator=generator).contiguous(
        memory_format=torch.channels_last
    )
    return images, torch.arange(8) % 3


def gradients(
    norm: str,
    batch: Any,
    split_size: int | None,
    cuts: list[int],
    device: str = "cpu",
    overlap: bool = True,
) -> tuple[float, dict[str, Any]]:
    """Loss, and gradients and statistics by name: through the pipeline, or plainly without a split size."""
    import torch

    resnet, devices = load("resnet"), load("devices")
    torch.manual_seed(1)
    model = resnet.MODELS["resnet14"](3, 32, norm)
    model.double()
    images, labels = batch[0].double(), batch[1]

    def loss_of(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / len(images)

    if split_size is None:
        loss = loss_of(model(images), labels)
        loss.backward()
    else:
        chain = list(model.pieces().values())
        parts = [
            torch.nn.Sequential(*chain[first:end])
            for first, end in itertools.pairwise([*cuts, len(chain)])
        ]
        pipeline = devices.DevicePipeline(
            parts, places(device, len(parts)), split_size, loss_of, overlap
        )
        loss = pipeline.step(images, labels)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    everything = {**found, **dict(model.named_buffers())}
    return loss.item(), {name: tensor.detach().cpu() for name, tensor in everything.items()}


def places(kind: str, stages: int) -> list[Any]:
    """A device for each stage: as many GPUs as there are, in turn."""
    import torch

    gpus = torch.cuda.device_count() if kind == "cuda" else 0
    return [
        torch.device("cuda", stage % gpus) if gpus else torch.device("cpu")
        for stage in range(stages)
    ]


def difference(one: tuple[float, dict[str, Any]], other: tuple[float, dict[str, Any]]) -> float:
    """The largest difference of loss, gradients and statistics, as a part of the tensor's largest value where that is
    over one: a sum in another order rounds as its terms are large."""
    assert one[1].keys() == other[1].keys()
    tensors = ((one[1][name], other[1][name]) for name in one[1])
    return max(
        abs(one[0] - other[0]),
        *(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in tensors),
    )


@pytest.mark.torch
@pytest.mark.parametrize("cuts", [[0], [0, 3], [0, 1, 5]])
def test_split_without_pipelining_is_the_whole_model(
    images_and_labels: Any, cuts: list[int]
) -> None:
    """With BatchNorm: one, two and three stages give the loss, gradients and statistics of plain training."""
    assert (
        difference(
            gradients("batch", images_and_labels, 8, cuts),
            gradients("batch", images_and_labels, None, []),
        )
        < 1e-12
    )


@pytest.mark.torch
@pytest.mark.parametrize("split_size", [1, 2, 4])
def test_pipelined_is_the_whole_model_where_images_do_not_mix(
    images_and_labels: Any, split_size: int
) -> None:
    """With GroupNorm, whose statistics are of one image, no split size changes loss or gradients."""
    plain = gradients("group", images_and_labels, None, [])
    assert difference(gradients("group", images_and_labels, split_size, [0, 3]), plain) < 1e-12


@pytest.mark.torch
def test_pipelined_is_one_device_with_the_same_microbatches(images_and_labels: Any) -> None:
    """With BatchNorm the split size counts, since statistics are of a microbatch; the number of stages does not."""
    alone = gradients("batch", images_and_labels, 4, [0])
    assert difference(gradients("batch", images_and_labels, 4, [0, 2]), alone) < 1e-12
    assert difference(gradients("batch", images_and_labels, 4, [0, 2, 4]), alone) < 1e-12
    assert difference(gradients("batch", images_and_labels, 8, [0]), alone) > 1e-3


@pytest.mark.torch
@pytest.mark.parametrize("overlap", [True, False])
def test_copies_beside_the_computing_change_nothing(images_and_labels: Any, overlap: bool) -> None:
    """On GPUs, or on one with all stages: what is used has arrived, and no memory is given away too early."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    images, labels = images_and_labels[0].repeat(16, 1, 2, 2), images_and_labels[1].repeat(16)
    alone = gradients("group", (images, labels), None, [])
    for _ in range(5):
        found = gradients("group", (images, labels), 8, [0, 2, 4], device="cuda", overlap=overlap)
        assert difference(found, alone) < 1e-10


@pytest.mark.torch
def test_a_folder_of_pictures_is_read(tmp_path: Path) -> None:
    """One folder for each class; sizes and colours as they come, other files left alone."""
    import torch
    from PIL import Image

    for name, colour, size in [
        ("cat/a.png", 20, (40, 30)),
        ("cat/b.JPG", 30, (16, 16)),
        ("dog/c.png", 200, (20, 50)),
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", size, colour).save(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    images = load("data").load_folder(tmp_path, 16)
    assert (images.pixels.shape, images.labels.tolist(), images.classes) == (
        (3, 3, 16, 16),
        [0, 0, 1],
        2,
    )
    assert images.pixels.mean().abs() < 1e-5
    pixels, labels = images.batch(torch.tensor([2, 0]), 32)
    assert (pixels.shape, labels.tolist()) == ((2, 3, 32, 32), [1, 0])
    assert pixels[0].mean() > pixels[1].mean()


def environment(folder: Path) -> dict[str, str]:
    """A plain environment without a GPU: these tests are about processes."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


TRAINING = (
    "--model resnet14 --image_size 32 --batch 12 --split_size 4 --steps 12 --report_every 1".split()
)


def lines_of(folder: Path, *command: str | Path, stop_at: int | None = None) -> Iterator[str]:
    """The output of a run that ends well, as it comes; with `stop_at`, SIGTERM once that step is reported."""
    held = {} if stop_at is None else {HOLD: str(stop_at)}  # it does not go on before the signal
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=environment(folder) | held,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                yield line
                if stop_at is not None and f"step={stop_at} " in line:
                    process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE)
    finally:
        process.kill()
    if stop_at is None:
        assert code == 0, (folder / "stderr.txt").read_text()


def losses_of(lines: Iterator[str]) -> dict[int, float]:
    """Step to loss; the last entry, at -1, is the accuracy."""
    values = [parsed for line in lines if (parsed := parse_metrics(line))]
    losses = {int(found["step"]): found["loss"] for found in values if "loss" in found}
    return losses | {-1: values[-1]["test_accuracy"]} if "test_accuracy" in values[-1] else losses


@pytest.mark.torch
def test_processes_and_interruptions_change_nothing(tmp_path: Path) -> None:
    """One stage in one process; two stages in two processes, stopped by SIGTERM; resumed as three stages in one process:
    the same losses and accuracy to every printed digit."""
    (alone := tmp_path / "alone").mkdir()
    (stopped := tmp_path / "stopped").mkdir()
    expected = losses_of(lines_of(alone, sys.executable, SCRIPT, *TRAINING, "--stages", "1"))
    assert sorted(expected) == [-1, *range(1, 13)]

    first = losses_of(lines_of(stopped, *TORCHRUN, *TRAINING, "--step_delay", "0.2", stop_at=4))
    marker = json.loads((stopped / "checkpoint" / "preempted").read_text())
    assert 4 <= marker["step"] < 12
    rest = losses_of(lines_of(stopped, sys.executable, SCRIPT, *TRAINING, "--stages", "3"))
    assert min(set(rest) - {-1}) == marker["step"] + 1
    assert first | rest == expected
    assert (stopped / "model" / "model.pt").is_file()


@pytest.mark.torch
def test_it_can_do_without_momentum(tmp_path: Path) -> None:
    """There is none to save, and none is missed when it goes on, with or without."""
    toy = "--model toy --image_size 8 --batch 4 --split_size 2 --report_every 1".split()
    first = losses_of(
        lines_of(tmp_path, sys.executable, SCRIPT, *toy, "--momentum", "0", "--steps", "2")
    )
    second = losses_of(lines_of(tmp_path, sys.executable, SCRIPT, *toy, "--steps", "3"))
    assert (sorted(first), sorted(second)) == ([-1, 1, 2], [-1, 3])


@pytest.mark.torch
def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    """Of 1,797 scans 1,438 are trained on."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--model",
        "toy",
        "--batch",
        "1439",
        "--split_size",
        "1439",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "error: `--batch 1439` of 1438 images\n\nhint: give at most as many\n"


@pytest.mark.torch
def test_the_experiment_draws_its_three_plots(tmp_path: Path) -> None:
    """One command: two processes are started as devices, all variants measured, three pictures and the times written."""
    output = list(lines_of(tmp_path, sys.executable, SCRIPT, "--experiment", "--tiny"))
    assert "2 processes with 1 CPU thread each as devices" in output[0]
    seconds = json.loads((tmp_path / "plots" / "times.json").read_text())["seconds"]
    kinds = {(kind, size) for kind in ("one device", "pipelined") for size in (2, 4)}
    names = {
        "whole, one device",
        "split, two devices",
        *(f"{kind}, split size {size}" for kind, size in kinds),
    }
    assert set(seconds) == names
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())
    for name in names:
        assert any(line.startswith(name) for line in output)
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "plots").glob("*.png")}
    assert set(pictures) == {"mp_vs_rn.png", "mp_vs_rn_vs_pp.png", "split_size_tradeoff.png"}
    assert all(
        content.startswith(b"\x89PNG") and len(content) > 10_000 for content in pictures.values()
    )


@pytest.mark.torch
@pytest.mark.slow
def test_as_tutorial_measures_what_the_tutorial_measures(tmp_path: Path) -> None:
    """One command: its batch, split sizes and two devices, with means and standard deviations, and its three plots."""
    output = list(lines_of(tmp_path, sys.executable, SCRIPT, "--as_tutorial", "--tiny"))
    head = next(line for line in output if "means of" in line)
    assert head.startswith(
        "resnet14, batch 120, 64 pixels; 2 processes with 1 CPU thread each as devices; means of 2"
    )
    assert output[output.index(head) + 1].split() == [
        "seconds",
        "standard",
        "deviation",
        "speed-up",
    ]
    seconds = json.loads((tmp_path / "plots" / "times.json").read_text())["seconds"]
    sizes = [1, 3, 5, 8, 10, 12, 20, 40, 60]
    kinds = {f"{kind}, split size {size}" for kind in ("one device", "pipelined") for size in sizes}
    assert set(seconds) == {"whole, one device", "split, two devices", *kinds}
    mean, deviation = next(line for line in output if line.startswith("whole, one device")).split()[
        3:5
    ]
    first, second = seconds["whole, one device"]
    assert float(mean) == pytest.approx((first + second) / 2, abs=1e-4)
    assert float(deviation) == pytest.approx(abs(first - second) / 2, abs=1e-4)
    assert any(line.startswith("pipelined at split size 20: ") for line in output)
    plots = {path.name for path in (tmp_path / "plots").glob("*.png")}
    assert plots == {"mp_vs_rn.png", "mp_vs_rn_vs_pp.png", "split_size_tradeoff.png"}


@pytest.mark.torch
def test_the_numbers_of_the_tutorial(monkeypatch: pytest.MonkeyPatch, place: ModuleType) -> None:
    """Those of "Single-Machine Model Parallel Best Practices", and its loss in parts of a batch."""
    import torch

    experiment = importlib.import_module("experiment")
    numbers = experiment.TUTORIAL
    assert [numbers[name] for name in ("batch", "image_size", "batches", "repeats")] == [
        120,
        128,
        3,
        10,
    ]
    assert numbers["splits"] == [1, 3, 5, 8, 10, 12, 20, 40, 60]
    logits, labels = torch.randn(6, 1000), torch.randint(1000, (6,))
    loss = experiment.mse_on_one_hot(6)
    parts = sum(loss(logits[first : first + 2], labels[first : first + 2]) for first in (0, 2, 4))
    whole = torch.nn.MSELoss()(logits, torch.zeros(6, 1000).scatter_(1, labels.view(6, 1), 1))
    assert parts.item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "--experiment --splits 5",
            "48 images cannot be divided into microbatches of 5",
            "use divisors of 48 in `--splits`",
        ),
        (
            "--as_tutorial --splits 7",
            "120 images cannot be divided into microbatches of 7",
            "use divisors of 120 in `--splits`",
        ),
        (
            "--split_size 7",
            "24 images cannot be divided into microbatches of 7",
            "use divisors of 24 in `--split_size`",
        ),
        (
            "--experiment --tiny --splits 1",
            "BatchNorm has nothing to average over in a microbatch of one image of 32 pixels",
            "use `--norm group`, `--image_size 64` or larger microbatches",
        ),
        (
            "--backend ucc",
            "the backend `ucc` cannot run here: this PyTorch is built without ucc",
            "use `auto`, which chooses a backend that can run",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, words: str, message: str, hint: str
) -> None:
    """One sentence instead of a traceback or an abort, before processes start."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [sys.executable, SCRIPT, "--model", "resnet14", *words.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (1, f"error: {message}\n\nhint: {hint}\n")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script's `place`, which imports the files beside it; none of them stays imported."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module("place")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("stages", "cuts", "message"),
    [
        (2, ["net3"], "no stage can begin at `net3`\nhint: it can at net2"),
        (3, ["net2"], "1 cuts do not make 3 stages\nhint: give 2, or none"),
        (3, [], "2 pieces do not make 3 stages\nhint: use fewer stages"),
    ],
)
def test_cuts_that_cannot_be_are_refused(
    place: ModuleType, stages: int, cuts: list[str], message: str
) -> None:
    """One line that names it, and what can be done."""
    import torch

    here = place.find_place(1, "gloo", "cpu", stages)
    pieces = load("resnet").MODELS["toy"](10, 8, "batch").pieces()
    with pytest.raises(SetupError) as refused:
        place.cut(here, pieces, torch.randn(4, 3, 8, 8), cuts)
    assert str(refused.value) == message


@pytest.mark.torch
def test_as_many_stages_as_processes(place: ModuleType) -> None:
    """Two stages where nothing else is said; another number than that of the processes is refused."""
    assert [str(device) for device in place.find_place(1, "gloo", "cpu", None).devices] == [
        "cpu",
        "cpu",
    ]
    assert len(place.find_place(4, "gloo", "cpu", None).devices) == 4
    with pytest.raises(SetupError, match="4 processes are 4 stages, not 2"):
        place.find_place(4, "gloo", "cpu", 2)


@pytest.mark.torch
def test_eight_gpus_are_not_eight_stages_of_two_microbatches(
    place: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process uses at most as many GPUs as there are microbatches, unless stages are asked for. Several processes
    use GPUs where they can send between them."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")

    def devices(*arguments: Any) -> list[str]:
        return [str(device) for device in place.find_place(*arguments).devices]

    assert devices(1, "gloo", "auto", None, 2) == ["cuda:0", "cuda:1"]
    assert devices(1, "gloo", "auto", None, 16) == [f"cuda:{number}" for number in range(8)]
    assert len(devices(1, "gloo", "auto", 8, 2)) == 8
    assert devices(2, "cpu:gloo,cuda:nccl", "auto", None, 2) == ["cuda:3"] * 2
    assert devices(2, "gloo", "auto", None, 2) == ["cpu"] * 2
