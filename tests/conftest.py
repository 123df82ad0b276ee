"""Every test runs in a clean environment: its own home, state folder and working directory, and no credentials."""

from __future__ import annotations

import compileall
import gc
import itertools
import os
import pwd
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

sys.dont_write_bytecode = False
"""pytest keeps its own versions of the tests and of Hypothesis; to make them is half of the time that it takes to find the
tests."""

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.examples import ASKED, examples  # noqa: E402

REPOSITORY = Path(__file__).parent.parent

_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START",
)

_SET = {
    "COLUMNS": "80",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CLOUDTRAIN_GIT_TIMEOUT": "300",  # a busy machine answers late
    "CLOUDTRAIN_CHECK_TIMEOUT": "300",
}

settings.register_profile(
    "cloudtrain",
    deadline=None,
    max_examples=examples(100),
    derandomize=not ASKED,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cloudtrain")
"""Hypothesis measures no times: a busy machine is slow."""

gc.disable()
"""Until the tests are found: see `pytest_collection_finish`."""


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C and a lost terminal do what they do at a prompt, also in the programs that tests start: a shell starts its
    background jobs with SIGINT ignored, and nohup with SIGHUP ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):  # once, and not in each process that a test starts
        compileall.compile_dir(REPOSITORY / "cloudtrain", quiet=2)
    read_service_descriptions_once()
    config.pluginmanager.register(_Slow())


def read_service_descriptions_once() -> None:
    """Keep what botocore reads about AWS's services. Parsing it for each client was a tenth of the tests' time."""
    with suppress(ImportError):
        from botocore.loaders import JSONFileLoader, Loader

        read = cache(JSONFileLoader().load_file)
        JSONFileLoader.load_file = lambda self, file_path: read(file_path)
        list_services = Loader.list_available_services
        names = cache(
            lambda kind, paths: list_services(
                Loader(paths, include_default_search_paths=False), kind
            )
        )
        Loader.list_available_services = lambda self, type_name: names(
            type_name, tuple(path for path in self.search_paths if Path(path).is_dir())
        )


@pytest.fixture(scope="session")
def _new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes folders with numbers of its own; pytest looks at all earlier folders to find a free number."""
    top = tmp_path_factory.mktemp("folders")
    numbers = itertools.count()

    def make(name: str) -> Path:
        folder = top / f"{name}{next(numbers)}"
        folder.mkdir()
        return folder

    return make


@pytest.fixture(autouse=True)
def clean_environment(_new_folder: Callable[[str], Path]) -> Iterator[Path]:
    """Only what programs need to start is left of the environment; home and state are new folders.
    The home is that of the account, too."""
    home = _new_folder("home")
    before, folder = dict(os.environ), Path.cwd()
    _set_variables({
        **{name: value for name, value in before.items() if name in _KEPT},
        **_SET,
        "HOME": str(home),
        "CLOUDTRAIN_STATE_DIR": str(home / "state"),
    })  # fmt: skip
    os.chdir(home)
    look_up = pwd.getpwuid

    def with_home(uid: int) -> pwd.struct_passwd:
        fields = list(look_up(uid))
        if uid == os.getuid():
            fields[5] = str(home)
        return pwd.struct_passwd(fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pwd, "getpwuid", with_home)
        yield home
    os.chdir(folder)
    _set_variables(before)


def _set_variables(variables: Mapping[str, str]) -> None:
    """Replace the environment, but for pytest's own variables."""
    for name in [
        name for name in os.environ if name not in variables and not name.startswith("PYTEST")
    ]:
        del os.environ[name]
    for name, value in variables.items():
        if not name.startswith("PYTEST") and os.environ.get(name) != value:
            os.environ[name] = value


@pytest.fixture
def tmp_path(_new_folder: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """A new folder, named after the test."""
    return _new_folder(re.sub(r"\W", "_", request.node.name)[:30])


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
    """`pytest --update-golden` writes the golden files anew; look at the difference before you commit it. `--first` and
    `--share` select some of many tests of a kind."""
    parser.addoption("--update-golden", action="store_true", default=False)
    parser.addoption(
        "--first", action="store_true", help="only the first parameter set of each test"
    )
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="one of N tests, others for each --share-seed",
    )
    parser.addoption(
        "--share-seed", default="", metavar="SEED", help="chooses the tests of --share"
    )


class _Slow:
    """Marks what `slow_after` and `in_ci` leave out of `make test`; before pytest selects by marks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        counts = dict[str, int]()
        for item in items:
            if item.get_closest_marker("in_ci"):
                item.add_marker("slow")
            if mark := item.get_closest_marker("slow_after"):
                name = item.nodeid.partition("[")[0]
                counts[name] = counts.get(name, 0) + 1
                if counts[name] > mark.args[0]:
                    item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--first` and `--share` do not select. Beside other workers, what waits comes first."""
    selected, seen = list[pytest.Item](), set[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_first = name not in seen
        if item.get_closest_marker("in_ci"):  # beside the first of those that are only slow
            is_first = True
        else:
            seen.add(name)
        drawn = (
            zlib.crc32(f"{config.option.share_seed} {item.nodeid}".encode()) % config.option.share
            == 0
        )
        if drawn and (is_first or not config.option.first):
            selected.append(item)
    if len(selected) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(selected)])
        items[:] = selected
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("lifecycle") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there when the tests are found stays until the end. To look through it for garbage, again and again, was a
    quarter of the time that it takes to find the tests."""
    gc.freeze()
    gc.enable()


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
