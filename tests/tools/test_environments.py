"""tools/environments.py: several at once leave good environments, wherever the checkout lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
try:
    import environments
    import versions
finally:
    sys.path.remove(str(TOOLS))

PYTHON = """\
#!/bin/sh
case "$*" in
*-VV*) echo Python 3.99 ;;
*venv*)
    for place; do :; done
    mkdir -p "$place/bin"
    ln -sf "$0" "$place/bin/python"
    echo "$place" >>"$LOG"
    sleep 0.1
    ;;
esac
"""
"""An interpreter that makes an empty environment, slowly."""

MAKE = """
import sys
from pathlib import Path
import environments as e

e.ROOT = Path(sys.argv[1])
e._base_of = lambda environment: sys.argv[2]
e._install = lambda python, environment: [
    (python.parent / f"program{number}").write_text(str(python)) for number in range(50)
]
for name in sys.argv[3:]:
    e.ENVIRONMENTS[name] = e.Environment(f".venv-{name}")
    e.make_environment(name)
"""


class Machine:
    """A home with a cache of environments, and an interpreter whose calls are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "python3.99"
        self.base.write_text(PYTHON)
        self.base.chmod(0o755)
        self.cache = folder / "cache"
        self.log = folder / "log"

    def checkout(self, name: str = "checkout") -> Path:
        """A new folder."""
        (self.folder / name).mkdir()
        return self.folder / name

    def start(self, checkout: Path, *names: str) -> subprocess.Popen[str]:
        """Make environments in another process."""
        return subprocess.Popen(
            [sys.executable, "-c", MAKE, checkout, self.base, *names],
            env={**os.environ, "PYTHONPATH": str(TOOLS), "XDG_CACHE_HOME": str(self.cache), "LOG": str(self.log)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def made(self, word: str) -> int:
        """How many environments were made in folders with this word in their names."""
        return sum(word in line for line in self.log.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A new one."""
    return Machine(tmp_path)


def succeed(*started: subprocess.Popen[str]) -> None:
    for process in started:
        said = process.communicate()[0]
        assert process.returncode == 0, said


def assert_good(checkout: Path, name: str) -> None:
    """All programs are there, with the place of this environment in them."""
    programs = checkout / f".venv-{name}" / "bin"
    expected = str(programs / "python")
    assert [file.read_text() for file in programs.glob("program*")] == [expected] * 50


def test_several_at_once_in_a_checkout_make_one(machine: Machine) -> None:
    """The others wait, and find it made."""
    checkout = machine.checkout()
    succeed(*(machine.start(checkout, "x") for _ in range(3)))
    assert_good(checkout, "x")
    assert machine.made("cloudtrain-environments") == 1
    assert machine.made("checkout") == 1


def test_two_checkouts_share_what_is_installed(machine: Machine) -> None:
    """The packages are installed once, and each checkout has its own copy."""
    checkouts = [machine.checkout(name) for name in ("one", "two")]
    succeed(*(machine.start(checkout, "x") for checkout in checkouts))
    for checkout in checkouts:
        assert_good(checkout, "x")
    assert machine.made("cloudtrain-environments") == 1


@pytest.mark.slow
def test_what_was_interrupted_is_made_anew(machine: Machine) -> None:
    """Half a copy is no environment, nor is half of what the machine shares."""
    checkout = machine.checkout()
    succeed(machine.start(checkout, "x"))
    (shared,) = machine.cache.glob("*/x-*")
    (shared / ".complete").unlink()
    (shared / "bin" / "program7").unlink()
    (checkout / ".venv-x" / ".installed-x").unlink()
    (checkout / ".venv-x-unfinished").mkdir()
    succeed(machine.start(checkout, "x"))
    assert_good(checkout, "x")
    assert not (checkout / ".venv-x-unfinished").exists()


@pytest.mark.slow
def test_a_name_does_not_remove_those_that_begin_with_it(machine: Machine) -> None:
    """An unfinished `x-pinned` may be in the hands of another process."""
    checkout = machine.checkout()
    succeed(machine.start(checkout, "x-pinned"))
    (other,) = machine.cache.glob("*/x-pinned-*")
    (other / ".complete").unlink()
    succeed(machine.start(checkout, "x"))
    assert other.is_dir()


def test_the_environment_of_another_checkout_is_left_alone(machine: Machine) -> None:
    """A link would have its packages changed."""
    checkout, other = machine.checkout(), machine.checkout("other")
    (checkout / ".venv-x").symlink_to(other)
    process = machine.start(checkout, "x")
    said = process.communicate()[0]
    assert process.returncode == 1
    assert f"rm {checkout / '.venv-x'}" in said
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "with a space", "long" * 40])
def test_a_program_starts_wherever_it_lies(name: str, tmp_path: Path) -> None:
    """A kernel reads neither spaces nor more than 127 letters in a first line."""
    place = tmp_path / name
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    program = place / "bin" / "program"
    source = b"#!/source/bin/python\nimport sys\nprint(sys.argv[1:])\n"
    program.write_bytes(environments._moved(source, "/source", str(place)))
    program.chmod(0o755)
    said = subprocess.run([program, "a b", "c"], capture_output=True, text=True, check=True)
    assert said.stdout == "['a b', 'c']\n"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), ([], 2), (["nothing"], 2), (["--pythons"], 2)]
)
def test_the_help_names_the_environments(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name, and with a wrong one, too."""
    with pytest.raises(SystemExit) as stopped:
        environments.main(arguments)
    assert stopped.value.code == code
    said = capsys.readouterr()
    if arguments != ["nothing"]:
        assert "NAME" in said.out + said.err
    assert "3.14" in said.out or code == 2


@pytest.mark.parametrize(
    ("pinned", "loosened"),
    [
        ("boto3==1.44.5", "boto3>=1.44.5,==1.*"),
        ('  "moto[server]==5.2.5",', 'moto[server]>=5.2.5,==5.*",'),
        ("numpy>=1.26", "numpy>=1.26"),
        ("# torch==2.13.0", "# torch==2.13.0"),
        ("sagemaker==2.257.7 # SDK 2", "sagemaker>=2.257.7,==2.* # SDK 2"),
    ],
)
def test_the_newest_is_of_the_same_major_version(pinned: str, loosened: str) -> None:
    """Comments and ranges stay."""
    assert versions.loosened(pinned) == loosened
