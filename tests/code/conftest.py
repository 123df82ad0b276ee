"""What the tests of bundles share."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_VERSION = 0x20080522
"""Of the layout below: `_LINUX_CAPABILITY_VERSION_3`."""

_READS_EVERYTHING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, for which root can read what has no permission."""


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A folder in which permissions hold, for root as well."""
    folder = tmp_path / "code"
    folder.mkdir()
    if os.geteuid() != 0:
        yield folder
        return
    with _permissions_hold():
        yield folder


@contextmanager
def _permissions_hold() -> Iterator[None]:
    """Root gives up for a while what lets it read everything. It stays the owner of its own files: another user could
    not import the package where it lies in a private folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        pytest.skip("root reads every file here")
    header = _Header(_VERSION, 0)
    sets = (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    before = sets[0].effective
    sets[0].effective = before & ~_READS_EVERYTHING
    assert libc.capset(ctypes.byref(header), sets) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(header), sets) == 0
