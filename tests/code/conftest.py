"""What the tests of bundles share."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtrain

_NOBODY = 65534
_PACKAGE = Path(cloudtrain.__path__[0])


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder owned by the user that the test runs as; never root, for whom every file can be read."""
    top = Path(tempfile.mkdtemp())
    folder = top / "code"
    folder.mkdir()
    was = os.geteuid()
    try:
        if was == 0:
            _make_the_package_readable(top / "cloudtrain", monkeypatch)
            for made in (top, *top.rglob("*")):
                os.chown(made, _NOBODY, -1)
            os.seteuid(_NOBODY)
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(top)


def _make_the_package_readable(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import what a test may need, and take the files that every bundle has from a copy: another user may not even see
    the package, where it is in a private folder."""
    for room in ("code", "system", "documents"):
        for module in pkgutil.iter_modules([str(_PACKAGE / room)], f"cloudtrain.{room}."):
            importlib.import_module(module.name)
    shutil.copytree(_PACKAGE / "runtime", copy / "runtime")
    shutil.copy(_PACKAGE / "__init__.py", copy)
    monkeypatch.setattr(cloudtrain, "__file__", str(copy / "__init__.py"))
