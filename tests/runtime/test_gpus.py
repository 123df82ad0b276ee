"""What NVML says of GPUs, and each way in which it fails: what cannot be read is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cloudtrain.runtime.gpus import AmdGpus, NvidiaGpus, NVMLError
from cloudtrain.runtime.machine import Machine
from tests.runtime.nvml import fake_nvml

GIB = 1 << 30
KINDS = ("utilization", "memory", "memory_limit", "power")


def measured(*options: str, visible: Sequence[str] | None = None) -> dict[str, float]:
    return NvidiaGpus(visible, str(fake_nvml(*options))).measure()


def names(*gpus: int, without: Sequence[str] = ()) -> set[str]:
    return {f"gpu{gpu}.{kind}" for gpu in gpus for kind in KINDS if kind not in without}


@pytest.mark.parametrize("count", range(9))
def test_each_gpu_is_measured(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Utilization in percent, memory in bytes, power in watts."""
    monkeypatch.setenv("FAKE_NVML_GPUS", str(count))
    values = measured()
    assert set(values) == names(*range(count))
    for gpu in range(count):
        found = [values[f"gpu{gpu}.{kind}"] for kind in KINDS]
        assert found == [90.0, (10 + gpu) * GIB, 80 * GIB, 350.5]


@pytest.mark.parametrize(
    ("visible", "memories"),
    [
        (["1"], [11]),
        (["1", "0"], [11, 10]),
        (["GPU-b0000000-fake", "GPU-a"], [11, 10]),
        (["MIG-1"], [11]),
        ([], []),
        (["7", "0"], [None, 10]),
        (["GPU-nobody"], [None]),
    ],
)
def test_gpus_are_numbered_as_cuda_does(visible: list[str], memories: list[int | None]) -> None:
    """By their place in CUDA_VISIBLE_DEVICES, which may hold indices, and UUIDs or their beginnings;
    one that there is not has no values."""
    values = measured(visible=visible)
    expected = {number: memory for number, memory in enumerate(memories) if memory is not None}
    assert set(values) == names(*expected)
    for number, memory in expected.items():
        assert values[f"gpu{number}.memory"] == memory * GIB


@pytest.mark.parametrize(
    ("variables", "options", "code"),
    [
        ({"FAKE_NVML_INIT": "9"}, (), 9),  # no driver
        ({"FAKE_NVML_INIT": "18"}, (), 18),  # a driver of another version
        ({}, ("-DWITHOUT_INIT",), 13),
    ],
    ids=["driver not loaded", "wrong version", "no nvmlInit_v2"],
)
def test_nvml_that_does_not_start(
    variables: dict[str, str],
    options: tuple[str, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The machine has no GPUs then, and says why if it should have some; all else is measured."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NVMLError) as caught:
        measured(*options)
    assert caught.value.code == code

    machine = Machine([str(tmp_path)], library=str(fake_nvml(*options)))
    values = machine.measure(0.0)
    assert not [name for name in values if name.startswith("gpu")]
    assert values["disk_free"] > 0
    alerts = [] if code == 9 else [f"no GPU can be watched: {caught.value}"]
    assert list(machine.alerts) == alerts


def test_no_nvml_at_all(tmp_path: Path) -> None:
    """A machine without NVIDIA's driver has no problem to tell of."""
    with pytest.raises(NVMLError):
        NvidiaGpus(None, str(tmp_path / "libnvidia-ml.so.1"))
    machine = Machine([], library=str(tmp_path / "libnvidia-ml.so.1"), root=str(tmp_path))
    assert machine.measure(0.0) == {}
    assert not machine.alerts


@pytest.mark.parametrize(
    ("call", "code", "lacking"),
    [
        ("RATES", 3, ["utilization"]),  # not supported, as where a GPU is divided
        ("MEMORY", 4, ["memory", "memory_limit"]),  # no permission
        ("POWER", 999, ["power"]),  # unknown
        ("HANDLE", 2, KINDS),
    ],
)
def test_a_call_that_fails(
    call: str, code: int, lacking: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the values of this call, of this GPU, are left out."""
    monkeypatch.setenv("FAKE_NVML_GPUS", "3")
    monkeypatch.setenv("FAKE_NVML_BROKEN", "1")
    monkeypatch.setenv(f"FAKE_NVML_{call}", str(code))
    assert set(measured()) == names(0, 2) | names(1, without=lacking)


def test_a_library_without_a_function() -> None:
    """As an older or a newer one is: the other values are there."""
    assert set(measured("-DWITHOUT_POWER")) == names(0, 1, without=["power"])


@pytest.mark.parametrize("call", ["HANDLE", "RATES"])
def test_a_lost_gpu(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has fallen off the bus is named; the others are measured."""
    monkeypatch.setenv("FAKE_NVML_BROKEN", "1")
    monkeypatch.setenv(f"FAKE_NVML_{call}", "15")
    gpus = NvidiaGpus(None, str(fake_nvml()))
    assert set(gpus.measure()) >= names(0)
    gpus.measure()
    (alert,) = gpus.alerts
    assert "gpu1 is lost" in alert


def test_gpus_of_amd(tmp_path: Path) -> None:
    """Read from files of Linux; a small one is the display of a laptop."""
    for card, memory in (("card0", 1 << 29), ("card2", 64 * GIB), ("card10", 64 * GIB)):
        folder = tmp_path / "sys/class/drm" / card / "device"
        (folder / "hwmon/hwmon3").mkdir(parents=True)
        (folder / "gpu_busy_percent").write_text(f"{card[4:]}\n")
        (folder / "mem_info_vram_used").write_text(f"{GIB}\n")
        (folder / "mem_info_vram_total").write_text(f"{memory}\n")
        (folder / "hwmon/hwmon3/power1_average").write_text("300000000\n")
    values = AmdGpus(str(tmp_path)).measure()
    assert set(values) == names(0, 1)
    assert [values["gpu0.utilization"], values["gpu1.utilization"]] == [2.0, 10.0]
    assert values["gpu0.power"] == pytest.approx(300.0)
