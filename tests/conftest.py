"""Every test runs in a clean environment: its own home, state folder and working directory, and no credentials."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).parent.parent

_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START")


settings.register_profile("cloudtrain", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cloudtrain")
"""Hypothesis measures no times: a busy machine is slow."""


def pytest_configure() -> None:
    """Ctrl-C and a lost terminal do what they do at a prompt, also in the programs that tests start: a shell starts its
    background jobs with SIGINT ignored, and nohup with SIGHUP ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    read_service_descriptions_once()


def read_service_descriptions_once() -> None:
    """Keep what botocore reads about AWS's services. Parsing it for each client was a tenth of the tests' time."""
    with suppress(ImportError):
        from botocore.loaders import JSONFileLoader

        read = cache(JSONFileLoader().load_file)
        JSONFileLoader.load_file = lambda self, file_path: read(file_path)


@pytest.fixture(autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only what programs need to start is left of the environment; home and state are new folders."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("CLOUDTRAIN_GIT_TIMEOUT", "300")  # the same for git
    monkeypatch.setenv("CLOUDTRAIN_CHECK_TIMEOUT", "300")  # a busy machine answers late
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def state_dir(clean_environment: Path) -> Path:
    """Where the run store and the local runs of this test live."""
    return clean_environment / "state"


@pytest.fixture
def make_source(tmp_path: Path) -> Callable[..., Path]:
    """Writes a source folder: `make_source({"train.py": "print(1)"})`."""

    def make(files: dict[str, str], name: str = "src") -> Path:
        root = tmp_path / name
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return root

    return make


@pytest.fixture
def python() -> str:
    """The interpreter that runs the tests."""
    return sys.executable


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes the golden files anew; look at the difference before you commit it."""
    parser.addoption("--update-golden", action="store_true", default=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("local/torch.json", text)` compares the whole text with the file in tests/golden."""

    def compare(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"no golden file {name}; write it with pytest --update-golden"
        assert file.read_text() == text

    return compare
