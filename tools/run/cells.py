"""Run the core tests (no torch) on other Pythons, packages and systems: each is a cell, with an environment of its own.

    python tools/run/cells.py [-n WORKERS] [--share N --seed SEED] [CELL ...]          all unless given

--share: one test of N, drawn by the seed and the cell, and none of the slow ones. A cell of the newest packages then
only informs: a release of somebody else's must not stop a change here, and the cells of the pinned packages decide.
Without --share, all tests run and every cell decides.

The cells, and what is not to be had on this machine is said and left out:
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import mac_python
import versions
from environments import (
    CACHE,
    ENVIRONMENTS,
    NEWEST,
    ROOT,
    debian_python,
    find_uv,
    interpreter,
    make_environment,
)

ELSEWHERE = "torch or mpi or wheel or notebook or parity or awscli or slurm or browser"
CORE = f"not ({ELSEWHERE} or lifecycle)"
"""The tests that every cell runs, unless it says otherwise."""

NOBODY = 65534
"""A user without a home and without rights."""


@dataclass(frozen=True)
class Ready:
    """A cell that can run: its interpreter, the checkout that it tests, and as whom."""

    python: Path
    checkout: Path = ROOT
    user: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    temporary: Path | None = None
    """A folder to remove when the tests are done."""


class NotHere(Exception):
    """This machine lacks what the cell needs; the text says what."""


@dataclass(frozen=True)
class Cell:
    """What the core tests run on."""

    what: str
    prepare: Callable[[], Ready]
    marks: str = CORE
    folders: str = "tests"
    decides: bool = True
    """Whether a failure fails a share of the tests too."""


def on(environment: str) -> Callable[[], Ready]:
    """Prepare an environment of tools/environments.py."""

    def prepare() -> Ready:
        python = ENVIRONMENTS[environment].python
        if interpreter(python) is None and debian_python(python) is None:
            raise NotHere(f"there is no Python {python}")
        if environment in NEWEST:
            try:
                versions.write(environment)
            except SystemExit as error:
                raise NotHere(str(error)) from None
        return Ready(make_environment(environment))

    return prepare


def on_mac() -> Ready:
    """Prepare an interpreter, and a PATH, without what only Linux has."""
    python = mac_python.make()
    return Ready(python, variables={"PATH": f"{python.parent}:{mac_python.COMMANDS}"})


DEEP = "a folder with spaces/" + "deep/" * 14
"""A path of more than 90 letters."""

COMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Every process then compiles what it imports."""


def far_away() -> Ready:
    """Prepare a closed folder below the home, with an environment that its own tools made."""
    top = CACHE / "places"
    checkout = _clone(top / DEEP)
    made = subprocess.run(
        [sys.executable, "tools/environments.py", "3.13"], cwd=checkout, check=False
    )
    made.check_returncode()
    return Ready(checkout / ".venv-3.13" / "bin" / "python", checkout, None, COMPILED, top)


def unprivileged() -> Ready:
    """Prepare a closed folder of a user without rights, and an environment there."""
    if os.getuid() != 0:
        raise NotHere("only root can become another user")
    top = Path(tempfile.gettempdir()) / "cloudtrain-nobody"
    checkout = _clone(top / DEEP)
    base = _interpreter_for(NOBODY)
    environment = checkout / ".venv-nobody"
    uv = find_uv()
    if base is None or uv is None:
        raise NotHere("no interpreter that other users may start")
    subprocess.run([base, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [uv, "pip", "install", "-q", "--link-mode", "copy", "--python", str(python)]
    subprocess.run([*install, "-e", f"{checkout}[test]"], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(top)], check=True)
    return Ready(python, checkout, NOBODY, COMPILED, top)


def _interpreter_for(user: int) -> str | None:
    """Return an interpreter that this user may start; below root's home there is none."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        ask = "import sys, venv; sys.exit(sys.version_info < (3, 10))"
        if os.path.exists(path) and not subprocess.call([path, "-c", ask], user=user):
            return path
    return None


def _clone(place: Path) -> Path:
    """Clone the checkout, with what is not committed yet, into a folder that is closed to others."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(place)], check=True)
    place.chmod(0o700)
    changed = ["git", "ls-files", "-z", "-m", "-o", "--exclude-standard"]
    listed = subprocess.run(changed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        target = place / name
        target.unlink(missing_ok=True)
        if (ROOT / name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return place


ON_A_MAC = " ".join(
    f"tests/{folder}"
    for folder in (
        "cli", "code", "runtime", "system", "targets/local", "lifecycle/store", "lifecycle/detached",
        "lifecycle/submission", "lifecycle/rehearsal", "lifecycle/sweeps", "test_mac.py",
    )
)  # fmt: skip

CELLS = {
    "3.10": Cell("Python 3.10, with the oldest packages that are allowed", on("3.10")),
    # Those that only inform have not run whole without a failure yet.
    "3.12": Cell("Python 3.12", on("3.12"), decides=False),
    "3.13": Cell("Python 3.13", on("3.13"), decides=False),
    "3.14": Cell("Python 3.14", on("3.14")),
    "newest": Cell("the newest packages that the registry offers", on("newest"), decides=False),
    "mac": Cell(
        "an interpreter without what only Linux has; runs on this machine, with torch",
        on_mac,
        marks=f"not ({ELSEWHERE}) or (torch and smoke)",
        folders=ON_A_MAC,
        decides=False,
    ),
    "far-away": Cell(
        "a closed folder with a long name and spaces, as this user", far_away, decides=False
    ),
    "unprivileged": Cell("the same as a user without rights", unprivileged, decides=False),
}


def run_tests(name: str, ready: Ready, options: argparse.Namespace) -> int:
    """Run the tests of a cell. Return pytest's exit code."""
    cell = CELLS[name]
    marks = cell.marks
    chosen: list[str] = []
    if options.share > 1:
        # a cell draws others than its neighbours
        seed = zlib.crc32(f"{options.seed} {name}".encode())
        marks = f"({marks}) and not slow"
        chosen = ["--share", str(options.share), "--share-seed", str(seed)]
    command = [
        str(ready.python),
        "-m",
        "pytest",
        "-q",
        "-n",
        str(options.workers),
        "-p",
        "no:cacheprovider",
    ]
    command += ["-m", marks, *chosen, *cell.folders.split()]
    variables = {**os.environ, **ready.variables}
    if ready.user is not None:
        variables["HOME"] = str(ready.checkout)
    return subprocess.run(
        command,
        cwd=ready.checkout,
        env=variables,
        user=ready.user,
        group=ready.user,
        extra_groups=None if ready.user is None else [],
        check=False,
    ).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the cells. Exit code 1 when one that decides has failed."""
    listed = "\n".join(f"    {name:14}{cell.what}" for name, cell in CELLS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--share", type=int, default=1, metavar="N")
    parser.add_argument("--seed", default="")
    parser.add_argument("cells", nargs="*", metavar="CELL", choices=[*CELLS, []], default=[])
    options = parser.parse_args(arguments)

    failed, said = False, []
    for name in options.cells or CELLS:
        cell = CELLS[name]
        print(f"core tests on {name}: {cell.what}", flush=True)
        try:
            ready = cell.prepare()
        except NotHere as error:
            said.append(f"{name}: not run here: {error}")
            continue
        except (SystemExit, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", flush=True)
            code = 1
        else:
            code = run_tests(name, ready, options)
            if ready.temporary:
                shutil.rmtree(ready.temporary, ignore_errors=True)
        if code == 0:
            continue
        if cell.decides or options.share == 1:
            failed = True
            said.append(f"{name}: failed")
        else:
            said.append(
                f"{name}: failed, which only informs; `make test-cells CELLS={name}` decides"
            )
    print("\n".join(said), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
