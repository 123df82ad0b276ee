"""The input pipeline of the CIFAR-10 scripts: files read without trust, and batches that depend on seed and step alone.

The images are scikit-learn's scans of digits, which `make_digits.py` writes in the format of CIFAR-10's python version.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import pickletools
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cloudtrain.runtime import SetupError

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[2] / "training_scripts"
PARTS = ("cifar", "make_digits", "batches", "network")


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    """The script's modules, imported as the script does; other scripts have modules of the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS / "cifar_ddp")
        for name in PARTS:
            patch.delitem(sys.modules, name, raising=False)
        modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in PARTS}
        yield SimpleNamespace(**modules)
        for name in PARTS:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def digits(parts: Any) -> dict[str, bytes]:
    """The files of the layout."""
    return dict(parts.make_digits.digits_files())


@pytest.fixture
def folder(tmp_path: Path, digits: dict[str, bytes]) -> Path:
    """`cifar-10-batches-py`, as it comes out of the archive."""
    folder = tmp_path / "given" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, content in digits.items():
        (folder / name).write_bytes(content)
    return folder


def refusal(call: Callable[[], object]) -> str:
    """The sentence with which a call ends the script."""
    with pytest.raises(SetupError) as ended:
        call()
    return str(ended.value)


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A `.tar.gz` with these members."""
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


# The format


def test_folder_and_archive_hold_the_same_images(parts: Any, tmp_path: Path, folder: Path) -> None:
    """The folder, the one above it, the archive and a folder with the archive: all four places that a user may name."""
    archive = parts.make_digits.write_digits(tmp_path / "archive", archive=True)
    pixels, labels = parts.make_digits.load_digits()
    for place in (folder, folder.parent, archive, archive.parent):
        train, test, names = parts.cifar.read_cifar(place)
        assert names == "zero one two three four five six seven eight nine".split()
        assert (train.pixels.shape, test.pixels.shape) == ((1438, 3, 32, 32), (359, 3, 32, 32))
        assert test.pixels.flatten(1).equal(pixels[:359])
        assert train.pixels.flatten(1).equal(pixels[359:])
        assert train.labels.equal(labels[359:])


def test_the_small_set_is_written_as_python_2_wrote_cifar(digits: dict[str, bytes]) -> None:
    """The opcodes of Python 2: protocol 2, texts as byte strings, the module names of numpy 1, no detour by a codec."""
    for name, content in digits.items():
        opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
        assert opcodes[0] == ("PROTO", 2)
        globals_used = {argument for opcode, argument in opcodes if opcode == "GLOBAL"}
        arrays = {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
        assert globals_used == (set() if name == "batches.meta" else arrays)
        assert "SHORT_BINSTRING" in {opcode for opcode, _ in opcodes}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_batches_that_python_3_has_written_are_read_too(
    parts: Any, folder: Path, protocol: int, digits: dict[str, bytes]
) -> None:
    """Some people write them anew: keys as texts, arrays in the way of newer protocols, labels that are numpy's."""
    import numpy as np

    batch = parts.cifar.unpickled("test_batch", io.BytesIO(digits["test_batch"]))
    again = {"data": batch["data"], "labels": [np.int64(label) for label in batch["labels"]]}
    (folder / "test_batch").write_bytes(pickle.dumps(again, protocol=protocol))
    assert parts.cifar.read_cifar(folder).test.labels.tolist() == batch["labels"]


# What must not happen


class Calls:
    """Pickles to a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.made = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


@pytest.mark.parametrize(
    "function", [os.system, os.mkdir, eval, importlib.import_module], ids=lambda f: f.__name__
)
def test_a_batch_that_runs_code_is_refused_before_it_runs(
    parts: Any, folder: Path, tmp_path: Path, function: Callable[..., object]
) -> None:
    """A plain `pickle.load` of these files would call it: here nothing happens but a sentence that names it."""
    trace = tmp_path / "trace"
    text = {"mkdir": str(trace), "system": f"mkdir {trace}"}.get(
        function.__name__, f"__import__('os').mkdir('{trace}')"
    )
    (folder / "data_batch_3").write_bytes(
        pickle.dumps({b"data": Calls(function, text)}, protocol=2)
    )
    message = refusal(lambda: parts.cifar.read_cifar(folder))
    assert "`data_batch_3` is no batch of CIFAR-10" in message
    assert f"{function.__name__}`, which no image needs" in message
    assert not trace.exists()


def test_an_archive_writes_nothing_and_follows_nothing(
    parts: Any, tmp_path: Path, digits: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that climb out of the folder are just names, links are passed over, and no file appears anywhere."""
    monkeypatch.chdir(tmp_path)
    link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    good = [(tarfile.TarInfo(f"../../{name}"), content) for name, content in digits.items()]
    archive = archive_of(tmp_path / "a.tar.gz", (link, b""), *good)
    assert len(parts.cifar.read_cifar(archive).train.labels) == 1438
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
    assert sorted(path.name for path in tmp_path.parent.iterdir() if path.name in digits) == []


def test_what_is_too_large_is_not_read(
    parts: Any,
    folder: Path,
    tmp_path: Path,
    digits: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file of the layout has more than 31 million bytes; a larger one is a mistake or an attack."""
    monkeypatch.setattr(parts.cifar, "LARGEST", 1_000_000)
    archive = archive_of(
        tmp_path / "a.tar.gz",
        *[(tarfile.TarInfo(name), content) for name, content in digits.items()],
    )
    for place in (folder, archive):
        assert "_batch" in refusal(lambda place=place: parts.cifar.read_cifar(place))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({}, "`data` of `test_batch`"),
        ({b"data": [[0] * 3072], b"labels": [1]}, "no uint8 array"),
        ("short", "no uint8 array"),
        ("labels", "are not 359 numbers below 10"),
        ("class", "are not 359 numbers below 10"),
        ([1], "`test_batch` is no batch"),
    ],
)
def test_a_batch_that_is_not_one_is_named(
    parts: Any, folder: Path, digits: dict[str, bytes], batch: Any, said: str
) -> None:
    """Wrong shapes, numbers and kinds end in a sentence, and not in a network that learns nonsense."""
    good = parts.cifar.unpickled("test_batch", io.BytesIO(digits["test_batch"]))
    wrong = {
        "short": {**good, "data": good["data"][:, :3000]},
        "labels": {**good, "labels": good["labels"][:-1]},
        "class": {**good, "labels": [10, *good["labels"][1:]]},
    }
    content = wrong[batch] if isinstance(batch, str) else batch
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    assert said in refusal(lambda: parts.cifar.read_cifar(folder))


@pytest.mark.parametrize("names", [5, [1, 2], None])
def test_names_that_are_none_are_said(parts: Any, folder: Path, names: Any) -> None:
    """`batches.meta` of something else."""
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    assert "`label_names` of `batches.meta`" in refusal(lambda: parts.cifar.read_cifar(folder))


@pytest.mark.parametrize("cut", [0, 100, 20_000])
def test_an_archive_that_was_cut_off_is_no_archive(parts: Any, tmp_path: Path, cut: int) -> None:
    """A download that broke off: said in one sentence."""
    whole = parts.make_digits.write_digits(tmp_path, archive=True)
    whole.write_bytes(whole.read_bytes()[:cut])
    assert "is not a whole `.tar.gz` archive" in refusal(lambda: parts.cifar.read_cifar(whole))


def test_an_empty_place_is_named(parts: Any, tmp_path: Path) -> None:
    """Neither folder nor archive: what should be there is said."""
    assert f"`{tmp_path}` holds neither" in refusal(lambda: parts.cifar.read_cifar(tmp_path))
    archive = archive_of(tmp_path / "other.tar.gz", (tarfile.TarInfo("readme"), b"hello"))
    assert "has no `data_batch_1`" in refusal(lambda: parts.cifar.read_cifar(archive))


# Batches


@pytest.fixture
def batches(parts: Any, folder: Path) -> Callable[..., Any]:
    """Makes `Batches` of the digits, 64 images per step."""
    train = parts.cifar.read_cifar(folder).train
    return lambda **options: parts.batches.Batches(
        train, **{"global_batch": 64, "seed": 1, **options}
    )


@pytest.mark.parametrize("processes", [2, 3, 5, 64])
def test_the_shares_of_all_processes_are_the_batch(
    batches: Callable[..., Any], processes: int
) -> None:
    """Every image of a global batch is with exactly one process, cropped and mirrored as it would be with one alone."""
    import torch

    alone = batches()
    shares = [batches(rank=rank, world_size=processes) for rank in range(processes)]
    for step in (0, 21, 22, 50):
        pixels, labels = alone[step]
        assert pixels.shape == (64, 3, 32, 32)
        for rank, share in enumerate(shares):
            found_pixels, found_labels = share[step]
            assert found_pixels.equal(pixels[rank::processes])
            assert found_labels.equal(labels[rank::processes])
        assert (
            torch.cat([share.numbers(step) for share in shares])
            .sort()[0]
            .equal(alone.numbers(step).sort()[0])
        )


@pytest.mark.parametrize(
    ("batch", "processes"),
    [(1439, 1), (2, 3)],
    ids=["more than the images", "fewer than the processes"],
)
def test_a_batch_that_cannot_be_is_refused(
    batches: Callable[..., Any], batch: int, processes: int
) -> None:
    """Otherwise an epoch had no step, and a training of nothing would succeed; or a process had no image."""
    message = refusal(lambda: batches(global_batch=batch, world_size=processes))
    assert f"a batch of {batch} for {processes} processes and 1438 images" in message


def test_an_epoch_shows_an_image_at_most_once_and_the_next_in_another_order(
    batches: Callable[..., Any],
) -> None:
    """22 whole batches of 1,438 images; asked again, in any order, a step has the same images."""
    some = batches()
    assert some.steps_per_epoch == 22
    epochs = [
        [number for step in range(22) for number in some.numbers(22 * epoch + step).tolist()]
        for epoch in (0, 1)
    ]
    assert [len(set(numbers)) for numbers in epochs] == [1408, 1408]
    assert epochs[0] != epochs[1]
    assert some.numbers(0).tolist() == epochs[0][:64]
    assert batches(seed=2).numbers(0).tolist() != epochs[0][:64]


def test_augmentation_is_what_a_loop_over_images_gives(
    parts: Any, batches: Callable[..., Any]
) -> None:
    """Pad by four, cut a window out, mirror it: the indexed form against the obvious one, image by image."""
    import torch

    some, b = batches(), parts.batches
    numbers = some.numbers(3)
    down, right, mirrored = b.draws(numbers, 1, 0, (9, 9, 2))
    pixels, _ = some[3]
    for place, number in enumerate(numbers.tolist()):
        padded = torch.nn.functional.pad(some.images.pixels[number], (4, 4, 4, 4))
        y, x = int(down[place]), int(right[place])
        window = padded[:, y : y + 32, x : x + 32]
        assert pixels[place].equal(window.flip(2) if mirrored[place] else window)
    assert batches(mirror=False)[3][0].equal(
        torch.where(mirrored.view(-1, 1, 1, 1).bool(), pixels.flip(3), pixels)
    )
    assert batches(augment=False)[3][0].equal(some.images.pixels[numbers])


def test_throws_are_fair_and_new_in_every_epoch(parts: Any) -> None:
    """Of 9 x 9 x 2 outcomes each comes about equally often over 50,000 images, and epochs and seeds are unrelated."""
    import torch

    numbers = torch.arange(50_000)
    joint = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        down, right, mirrored = parts.batches.draws(numbers, seed, epoch, (9, 9, 2))
        joint.append((down * 9 + right) * 2 + mirrored)
        counts = torch.bincount(joint[-1], minlength=162).double()
        chi_square = ((counts - 50_000 / 162).square() / (50_000 / 162)).sum()
        # the mean of chi-square is 161, its deviation 18
        assert 161 - 5 * 18 < chi_square < 161 + 5 * 18
    for other in joint[1:]:
        assert (joint[0] == other).double().mean() == pytest.approx(1 / 162, abs=0.002)


def test_the_hash_is_splitmix64(parts: Any) -> None:
    """Its first outputs from seed 0, as published with xoshiro, without the highest bit."""
    import torch

    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert parts.batches.mixed(torch.tensor([1, 2, 3])).tolist() == [
        number % 2**63 for number in published
    ]


# The network


def test_group_norm_sees_images_and_batch_norm_sees_batches(parts: Any) -> None:
    """Two halves of a batch give what the whole gives with GroupNorm, and something else with BatchNorm."""
    import torch

    images = torch.randn(
        8, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    far = {}
    for norm in ("group", "batch"):
        torch.manual_seed(1)
        network = parts.network.ResNet(8, 1, norm=norm).double()
        with torch.no_grad():
            far[norm] = (
                (network(images) - torch.cat([network(half) for half in images.split(4)]))
                .abs()
                .max()
                .item()
            )
    assert far["group"] < 1e-12
    assert far["batch"] > 0.01


def test_group_norm_keeps_the_layout_in_memory(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's own returns (channel, height, width), as it does on GPUs."""
    import torch
    from torch.nn import functional

    usual = functional.group_norm
    monkeypatch.setattr(functional, "group_norm", lambda *arguments: usual(*arguments).contiguous())
    images = torch.randn(2, 8, 4, 4)
    for layout in (torch.channels_last, torch.contiguous_format):
        found = parts.network.group_norm(8)(images.contiguous(memory_format=layout))
        assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("width", "groups"), [(2, 1), (6, 1), (8, 2), (13, 1), (14, 2), (18, 3)])
def test_any_width_has_groups(parts: Any, width: int, groups: int) -> None:
    """Groups of four channels, or of a few more where four do not divide them."""
    network = parts.network.ResNet(width, 1)
    norms = [module for module in network.body.modules() if hasattr(module, "num_groups")]
    assert norms[0].num_groups == groups
    assert all(norm.num_channels // norm.num_groups >= min(4, norm.num_channels) for norm in norms)


def test_every_parameter_is_decayed_or_not(parts: Any) -> None:
    """Kernels and matrices are, scales and biases are not; ResNet-20 has about 0.27 million of them before the head."""
    network = parts.network.ResNet(16, 3)
    decayed, free = parts.network.decayed_and_not(network, 5e-4)
    assert (decayed["weight_decay"], free["weight_decay"]) == (5e-4, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(list(network.parameters()))
    assert {parameter.ndim for parameter in decayed["params"]} == {2, 4}
    assert sum(parameter.numel() for parameter in network.body.parameters()) == pytest.approx(
        0.27e6, rel=0.03
    )
