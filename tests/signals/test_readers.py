"""Files of TensorBoard, W&B and Lightning: what the libraries wrote, in pieces, and damaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.signals.readers import BLOCK, Scalar, read_events, read_lightning, read_wandb

RECORDED = Path(__file__).parent / "recorded"
OLD = RECORDED / "events.out.tfevents.1.old"
NEW = RECORDED / "events.out.tfevents.2.new"
WANDB = RECORDED / "run-1.wandb"
Reader = Callable[[Path, int], tuple[list[Scalar], int]]
FILES: list[tuple[Path, Reader]] = [
    (OLD, read_events),
    (NEW, read_events),
    (WANDB, read_wandb),
]


def curve(scalars: list[Scalar], name: str) -> list[tuple[float | None, float]]:
    return [(scalar.step, scalar.value) for scalar in scalars if scalar.name == name]


@pytest.mark.parametrize(
    ("file", "read", "name", "others"),
    [
        (OLD, read_events, "train/loss", {"val/acc"}),
        (NEW, read_events, "train/loss", {"nan"}),
        (WANDB, read_wandb, "loss", {"acc", "train/f1"}),
    ],
)
def test_scalars_are_those_that_the_library_wrote(
    file: Path, read: Reader, name: str, others: set[str]
) -> None:
    """Texts and histograms are none."""
    scalars, offset = read(file, 0)
    assert offset == file.stat().st_size
    assert {scalar.name for scalar in scalars} == {name, *others}
    assert curve(scalars, name) == [(10 * i, pytest.approx(1 / (i + 1))) for i in range(20)]
    assert all(scalar.seconds and scalar.seconds > 1.7e9 for scalar in scalars)


def test_a_value_that_is_not_a_number_stays_one() -> None:
    (found,) = curve(read_events(NEW)[0], "nan")
    assert math.isnan(found[1])


@pytest.mark.parametrize(("file", "read"), FILES)
def test_a_file_that_grows_is_read_in_pieces(file: Path, read: Reader, tmp_path: Path) -> None:
    """Whatever the piece ends in, each value comes once."""
    data = file.read_bytes()
    copy = tmp_path / file.name
    found = []
    offset = 0
    for end in [*range(0, len(data), 97), len(data)]:
        copy.write_bytes(data[:end])
        scalars, offset = read(copy, offset)
        found += scalars
    assert repr(found) == repr(read(file, 0)[0])


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_damage_invents_a_value(data: st.DataObject, tmp_path: Path) -> None:
    """Any byte changed, put in or cut out: no error, and only values that were written."""
    file, read = data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(start, min(start + 20, len(content))))
    content[start:end] = data.draw(st.binary(max_size=20))
    damaged = tmp_path / file.name
    damaged.write_bytes(content)

    written = {repr(scalar) for scalar in read(file, 0)[0]}
    scalars, offset = read(damaged, 0)
    assert {repr(scalar) for scalar in scalars} <= written
    assert 0 <= offset <= max(len(content), 7)


@pytest.mark.parametrize(("file", "read"), FILES)
def test_what_follows_damage_is_read(file: Path, read: Reader, tmp_path: Path) -> None:
    """One changed byte costs at most the values up to the next record or block."""
    content = file.read_bytes()
    doubled = content + bytes(BLOCK - len(content)) if read is read_wandb else b""
    damaged = tmp_path / file.name
    if doubled:
        # The second block holds the same chunks again, behind a first block that is broken.
        damaged.write_bytes(doubled[:7] + b"x" * 40 + doubled[47:] + content[7:])
    else:
        damaged.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    whole = len(read(file, 0)[0])
    assert len(read(damaged, 0)[0]) >= whole - 2


@pytest.mark.parametrize("content", [b"", b"x", b":W&B", b"\0" * 100, b"a,b\n1,2", b"\xff" * 9000])
@pytest.mark.parametrize("read", [read_events, read_wandb])
def test_other_files_hold_nothing(read: Reader, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert read(file, 0)[0] == []


def test_lightning_rewrites_its_file_for_a_new_name(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,train_loss\n0,9,1.5\n0,19,1.25\n0,2")
    scalars, position = read_lightning(file)
    assert curve(scalars, "train_loss") == [(9, 1.5), (19, 1.25)]
    assert curve(scalars, "epoch") == [(9, 0), (19, 0)]

    file.write_text("epoch,step,train_loss\n0,9,1.5\n0,19,1.25\n0,29,1.0\n")
    scalars, position = read_lightning(file, position)
    assert curve(scalars, "train_loss") == [(29, 1)]

    file.write_text("epoch,step,train_loss,val_loss\n0,9,1.5,\n0,19,1.25,\n0,29,1.0,\n0,29,,0.75\n")
    scalars, position = read_lightning(file, position)
    assert curve(scalars, "val_loss") == [(29, 0.75)]
    assert not curve(scalars, "train_loss")
    assert read_lightning(file, position) == ([], position)


@given(content=st.binary(max_size=60), more=st.binary(max_size=60))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_csv_breaks_its_reader(content: bytes, more: bytes, tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_bytes(b"epoch,step,loss\n1,2,0.5\n" + content)
    scalars, position = read_lightning(file)
    assert scalars[:2] == [Scalar("epoch", 2, None, 1), Scalar("loss", 2, None, 0.5)]
    file.write_bytes(more)
    read_lightning(file, position)
