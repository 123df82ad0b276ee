"""What the GPUs of this machine do: NVIDIA's by NVML, which every driver brings along, and AMD's by
files of Linux.

Only the standard library is used, so that it works in every container. A value that a GPU or a
driver does not tell is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import glob
from importlib.util import find_spec

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
HAS_CTYPES = find_spec("_ctypes") is not None
"""Whether the interpreter was built with it. Some are not."""
if TYPE_CHECKING or HAS_CTYPES:
    import ctypes

LIBRARY = "libnvidia-ml.so.1"

NO_GPUS = (9, 12)
"""Codes of a machine without GPUs of NVIDIA: its driver is not loaded, or not installed."""

_NOT_FOUND = 12
_LACKS_FUNCTION = 13
_IS_LOST = 15

_ERRORS = {
    4: "NVML may not be used",
    9: "the NVIDIA driver is not loaded",
    _NOT_FOUND: "the NVIDIA driver is not installed",
    _LACKS_FUNCTION: "NVML is of another version, which lacks a function",
    _IS_LOST: "a GPU is lost",
    18: "the NVIDIA driver and NVML have different versions; restart the machine",
}
"""Codes that NVML's functions return (`nvmlReturn_t`)."""

_OWN_MEMORY = 4 << 30
"""Bytes. An AMD GPU with less memory of its own is the display of a laptop or a server."""


class NVMLError(Exception):
    """An NVML function returned another code than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(_ERRORS.get(code, f"NVML returned the error {code}"))
        self.code = code


class NvidiaGpus:
    """GPUs of NVIDIA, numbered as CUDA numbers them for a process of the run."""

    def __init__(self, visible: Sequence[str] | None, library: str = LIBRARY) -> None:
        """Use the GPUs with these ids, which are indices, UUIDs or beginnings of UUIDs, as in
        CUDA_VISIBLE_DEVICES; all with None. Raises `NVMLError`."""
        self.alerts: list[str] = []
        """Texts about GPUs that are lost."""
        if not HAS_CTYPES:
            raise NVMLError(_NOT_FOUND)
        try:
            self._library = ctypes.CDLL(library)
        except OSError:
            raise NVMLError(_NOT_FOUND) from None
        self._call("nvmlInit_v2")

        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._indices = range(count.value)
        self._devices: dict[int, ctypes.c_void_p] = {}
        for number, name in enumerate(map(str, self._indices) if visible is None else visible):
            with self._noting_loss(number):
                self._devices[number] = self._open(name)

    def _call(self, function: str, *arguments: object) -> None:
        try:
            called = getattr(self._library, function)
        except AttributeError:
            raise NVMLError(_LACKS_FUNCTION) from None
        code = called(*arguments)
        if code:
            raise NVMLError(code)

    def _open(self, name: str) -> ctypes.c_void_p:
        """Return the GPU with an index or a UUID; for a UUID, also a part of a GPU (MIG)."""
        device = ctypes.c_void_p()
        if name.isdecimal():
            self._call("nvmlDeviceGetHandleByIndex_v2", int(name), ctypes.byref(device))
            return device
        uuid = ctypes.create_string_buffer(96)
        for index in self._indices:
            with suppress(NVMLError):  # of another GPU
                device = self._open(str(index))
                self._call("nvmlDeviceGetUUID", device, uuid, len(uuid))
                if uuid.value.startswith(name.encode()):
                    return device
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(device))
        return device

    @contextmanager
    def _noting_loss(self, number: int) -> Iterator[None]:
        """Leave out what a GPU does not tell, and remember if it is lost."""
        try:
            yield
        except NVMLError as error:
            text = f"gpu{number} is lost: it needs a reset, or another machine"
            if error.code == _IS_LOST and text not in self.alerts:
                self.alerts.append(text)

    def measure(self) -> dict[str, float]:
        """Return the utilization in percent, the memory in bytes and the power in watts of each
        GPU, such as `gpu0.utilization`."""
        values: dict[str, float] = {}
        rates = (ctypes.c_uint * 2)()  # of the GPU, and of its memory
        memory = (ctypes.c_ulonglong * 3)()  # in all, free and used
        milliwatts = ctypes.c_uint()
        for number, device in self._devices.items():
            name = f"gpu{number}"
            with self._noting_loss(number):
                self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates))
                values[f"{name}.utilization"] = float(rates[0])
            with self._noting_loss(number):
                self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
                values[f"{name}.memory"] = float(memory[2])
                values[f"{name}.memory_limit"] = float(memory[0])
            with self._noting_loss(number):
                self._call("nvmlDeviceGetPowerUsage", device, ctypes.byref(milliwatts))
                values[f"{name}.power"] = milliwatts.value / 1000
        return values


_AMD_FILES = (
    ("utilization", "gpu_busy_percent", 1.0),
    ("memory", "mem_info_vram_used", 1.0),
    ("memory_limit", "mem_info_vram_total", 1.0),
    ("power", "hwmon/hwmon*/power1_average", 1e-6),
)
"""Name, file and unit of each value."""


class AmdGpus:
    """All GPUs of AMD. `root` stands before the paths of their files."""

    def __init__(self, root: str = "", alerts: Sequence[str] = ()) -> None:
        """`alerts` are about other GPUs that cannot be read."""
        self.alerts = alerts
        self._folders = []
        for file in glob(f"{root}/sys/class/drm/card*/device/mem_info_vram_total"):
            with suppress(OSError, ValueError):
                if read_number(file) >= _OWN_MEMORY:
                    self._folders.append(os.path.dirname(file))
        self._folders.sort(key=lambda folder: (len(folder), folder))  # card10 after card9

    def measure(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for number, folder in enumerate(self._folders):
            for name, pattern, unit in _AMD_FILES:
                for file in glob(f"{folder}/{pattern}"):
                    with suppress(OSError, ValueError):  # the GPU sleeps
                        values[f"gpu{number}.{name}"] = read_number(file) * unit
        return values


def read_number(file: str) -> float:
    """Return the number in a file. Raises `OSError` or `ValueError`."""
    with open(file, "rb") as text:
        return float(text.read())
