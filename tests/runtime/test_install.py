"""`cloudtrain.runtime.install`: the job's packages, PyTorch as it was, and processes that take turns."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deadlines import DEADLINE
from tests.wheels import write_uv, write_wheel

REPOSITORY = Path(__file__).parents[2]

COMPLETE = "# Written by cloudtrain from the job's requirements.\n# Complete: installed without dependencies.\n"
EXPECTS = "# Expects torch {}\n"


class Machine(NamedTuple):
    """An interpreter with torch 2.8.0, the folder of a job's code, an index in a folder, and a place for uv."""

    python: str
    packages: Path
    code: Path
    wheels: Path
    variables: dict[str, str]

    def start(
        self, text: str, *words: str, python: str = "", **variables: str
    ) -> subprocess.Popen[str]:
        """Install a requirements file in another process."""
        (self.code / "needs.txt").write_text(text)
        return subprocess.Popen(
            [python or self.python, "-m", "cloudtrain.runtime.install", "needs.txt", *words],
            cwd=self.code, env={**self.variables, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    def install(
        self, text: str, *words: str, python: str = "", **variables: str
    ) -> tuple[int, str]:
        """Return the exit code and what was said."""
        process = self.start(text, *words, python=python, **variables)
        said = process.communicate(timeout=DEADLINE)[1]
        return process.returncode, said

    def versions(self, python: str = "") -> dict[str, str]:
        """What is installed."""
        code = "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: m.version(d.metadata['Name']) for d in m.distributions()}))"
        found = subprocess.run(
            [python or self.python, "-c", code], stdout=subprocess.PIPE, check=True, cwd="/"
        )
        versions: dict[str, str] = json.loads(found.stdout)
        return {
            name: version for name, version in versions.items() if name not in ("pip", "setuptools")
        }


@pytest.fixture
def machine(tmp_path: Path, clean_environment: Path) -> Machine:
    """As an image has it: torch 2.8.0, and an index whose newest torchvision needs another torch."""
    place, wheels, code, temporary = (
        tmp_path / name for name in ("image", "wheels", "code", "tmp")
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for folder in (code, temporary):
        folder.mkdir()
    import pip  # the environment gets that of the tests, because making one takes seconds

    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    # pip removes a folder all of whose files it removes, links or not
    (packages / "other.pth").touch()
    for version, vision in (("2.8.0", "0.23.0"), ("2.14.1", "0.29.2")):
        write_wheel(wheels, "torch", version)
        write_wheel(wheels, "torchvision", vision, needs=[f"torch=={version}"])
    write_wheel(wheels, "timm", "1.0", needs=["torchvision"])
    variables = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary), "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    found = Machine(str(place / "bin" / "python"), packages, code, wheels, variables)
    subprocess.run(
        [found.python, "-m", "pip", "install", "-q", "torch==2.8.0"],
        env=variables,
        check=True,
        capture_output=True,
    )
    return found


@pytest.fixture(params=[pytest.param("pip", marks=pytest.mark.in_ci), "uv"])
def either(machine: Machine, request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """With and without uv on the PATH."""
    own = write_uv(tmp_path / "uv") if request.param == "uv" else {}
    return machine._replace(variables={**machine.variables, **own})


def calls(tmp_path: Path) -> list[list[str]]:
    """The arguments of each call of uv."""
    return [json.loads(line) for line in (tmp_path / "uv" / "log.json").read_text().splitlines()]


@pytest.mark.in_ci
def test_a_file_without_pins_keeps_torch(either: Machine, tmp_path: Path) -> None:
    """`timm` takes any torchvision, and the newest pins another torch."""
    code, said = either.install("timm\n")
    assert code == 0, said
    assert either.versions() == {"torch": "2.8.0", "torchvision": "0.23.0", "timm": "1.0"}
    assert ("with uv" in said) is (tmp_path / "uv").exists()


@pytest.mark.in_ci
def test_a_complete_list_is_installed_as_it_is(either: Machine) -> None:
    """Without dependencies, which nobody has, with or without hashes; and a changed file is refused."""
    wheel = write_wheel(either.wheels, "ct-greeting", "1.0", needs=["torch>=9", "nothing-such"])
    line = f"ct-greeting==1.0 --hash=sha256:{wheel}\n"
    code, said = either.install(f"{COMPLETE}{line.replace(wheel, '0a' * 32)}")
    assert (code, "ct-greeting" in either.versions()) == (1, False)
    assert "error: `needs.txt` cannot be installed: THESE PACKAGES DO NOT MATCH THE HASHES" in said
    code, said = either.install(f"{COMPLETE}{EXPECTS.format('2.8.0')}{line}")
    assert code == 0, said
    link = f"ct-greeting @ {(either.wheels / 'ct_greeting-1.0-py3-none-any.whl').as_uri()}\n"
    assert either.install(COMPLETE + link)[0] == 0
    assert either.versions() == {"torch": "2.8.0", "ct-greeting": "1.0"}


@pytest.mark.in_ci
def test_uv_gets_what_pip_gets(machine: Machine, tmp_path: Path) -> None:
    """Hashes and constraints, in the interpreter of the job."""
    wheel = write_wheel(machine.wheels, "ct-greeting", "1.0")
    variables = write_uv(tmp_path / "uv")
    assert (
        machine.install(f"{COMPLETE}ct-greeting==1.0 --hash=sha256:{wheel}\n", **variables)[0] == 0
    )
    assert machine.install("ct-greeting\n", **variables)[0] == 0
    first, second = calls(tmp_path)
    assert first == [
        "pip",
        "install",
        "--python",
        machine.python,
        "--no-deps",
        "--require-hashes",
        "-r",
        "needs.txt",
    ]
    assert second[4] == "-c"


@pytest.mark.slow
def test_uv_does_not_read_the_settings_of_pip(machine: Machine, tmp_path: Path) -> None:
    """Where only pip knows a private index, pip installs: uv would take a public package of that name."""
    write_wheel(machine.wheels, "ct-greeting", "1.0")
    variables = write_uv(tmp_path / "uv")
    del variables["UV_OFFLINE"]
    code, said = machine.install("ct-greeting\n", **variables)
    assert (code, "with pip" in said) == (0, True), said
    beside = Path(machine.python).with_name("uv")
    beside.symlink_to(tmp_path / "uv" / "uv")
    only_in_file = {**machine.variables, "UV_FIND_LINKS": "x"}
    assert "with uv" in machine._replace(variables=only_in_file).install("ct-greeting>=1\n")[1]


@pytest.mark.in_ci
def test_a_replaced_torch_ends_the_job(machine: Machine, tmp_path: Path) -> None:
    """After seconds, where an installer does not keep to the constraint."""
    variables = write_uv(tmp_path / "uv")
    program = tmp_path / "uv" / "uv"
    program.write_text(program.read_text().replace("words = [", "arguments[4:6] = []\nwords = ["))
    code, said = machine.install("timm\n", **variables)
    assert code == 1
    assert said.endswith(
        "error: the installation replaced torch 2.8.0 by 2.14.1\n\n"
        "hint: pin the packages that need another torch to versions for this one\n"
    )


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_ends_the_job(machine: Machine) -> None:
    """With the last line of its error; one that the list brings is not a mistake by itself."""
    assert machine.install(f"{COMPLETE}torch==2.14.1\n")[0] == 0
    write_wheel(
        machine.wheels, "torch", "2.15.0", code="raise ImportError('libcudart.so.13 is missing')\n"
    )
    code, said = machine.install(f"{COMPLETE}torch==2.15.0\n")
    assert code == 1
    assert (
        "torch cannot be imported after the installation: ImportError: libcudart.so.13 is missing\n"
        in said
    )


@pytest.mark.slow
def test_another_torch_than_the_plans_ends_the_job(machine: Machine) -> None:
    """Where an image has changed, or none."""
    text = COMPLETE + EXPECTS.format("2.9.1")
    code, said = machine.install(text)
    assert code == 1
    assert "error: the requirements are for torch 2.9.1, and this machine has 2.8.0\n" in said
    subprocess.run(
        [machine.python, "-m", "pip", "uninstall", "-qy", "torch"],
        check=True,
        env=machine.variables,
    )
    assert "for torch 2.9.1, and this machine has none" in machine.install(text)[1]


@pytest.mark.slow
def test_a_file_that_asks_for_another_torch_is_refused(machine: Machine) -> None:
    """With what to write."""
    code, said = machine.install("torch==2.14.1\n")
    assert code == 1
    assert "`needs.txt` cannot be installed: Cannot install torch==2.14.1" in said
    assert "hint: torch 2.8.0 of this machine stays: ask for that version" in said
    assert machine.install("", python=machine.python)[0] == 0
    (machine.code / "needs.txt").unlink()
    process = subprocess.run(
        [machine.python, "-m", "cloudtrain.runtime.install", "needs.txt"],
        cwd=machine.code, env=machine.variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (1, "error: the code has no file `needs.txt`\n")


@pytest.mark.slow
def test_processes_take_turns(machine: Machine, tmp_path: Path) -> None:
    """One of an instance's processes installs, and the others find nothing to do: until a package or the list, or a
    file that it includes, is another."""
    write_wheel(machine.wheels, "ct-greeting", "1.0")
    text, variables = "-r more.txt\n", write_uv(tmp_path / "uv")
    (machine.code / "more.txt").write_text("ct-greeting\n")
    processes = [machine.start(text, **variables) for _ in range(4)]
    said = [process.communicate(timeout=DEADLINE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert sum("installing `needs.txt`" in text for text in said) == len(calls(tmp_path)) == 1
    assert machine.install(text, **variables) == (0, "")
    subprocess.run(
        [machine.python, "-m", "pip", "uninstall", "-qy", "ct-greeting"],
        check=True,
        env=machine.variables,
    )
    assert "installing" in machine.install(text, **variables)[1]
    (machine.code / "more.txt").write_text("ct-greeting>=1\n")
    assert "installing" in machine.install(text, **variables)[1]
    assert len(calls(tmp_path)) == 3


# Environments of their own.


def whole(parent: Path) -> list[Path]:
    """The folders of environments, half made ones as well."""
    return [item for item in parent.iterdir() if item.is_dir() and not item.is_symlink()]


def build(machine: Machine, folder: Path, text: str, **variables: str) -> tuple[int, str]:
    """Build an environment on the machine's interpreter, by that of the tests."""
    return machine.install(
        text, "--into", str(folder), "--base", machine.python, python=sys.executable, **variables
    )


@pytest.mark.in_ci
def test_an_environment_keeps_the_torch_below(either: Machine, tmp_path: Path) -> None:
    """A file without pins gets only what is missing; one that names torch gets its own, and the interpreter below stays
    as it is."""
    subprocess.run(
        [either.python, "-m", "pip", "install", "-q", "torchvision==0.23.0"],
        env=either.variables,
        check=True,
    )
    folder = tmp_path / "environments" / "one"
    code, said = build(either, folder, "timm\n")
    assert code == 0, said
    python = str(folder / "bin" / "python")
    assert either.versions(python) == {"torch": "2.8.0", "torchvision": "0.23.0", "timm": "1.0"}
    (own,) = folder.glob("lib/python*/site-packages")
    assert not [item.name for item in own.glob("torch*")]
    assert build(either, folder, "timm\n") == (0, "")
    other = tmp_path / "environments" / "other"
    code, said = build(either, other, "torch==2.14.1\n")
    assert code == 0, said
    assert either.versions(str(other / "bin" / "python"))["torch"] == "2.14.1"
    assert either.versions()["torch"] == "2.8.0"
    assert sorted(len([*item.iterdir()]) for item in whole(tmp_path / "environments")) == [1, 1]


@pytest.mark.slow
def test_uv_is_told_what_the_interpreter_below_has(machine: Machine, tmp_path: Path) -> None:
    """It looks only into the environment, and would install torch again."""
    variables = write_uv(tmp_path / "uv")
    program = tmp_path / "uv" / "uv"
    listing = "import glob\nnames = glob.glob(arguments[3].replace('/bin/python', '/lib/python*/site-packages/torch-*'))\n"
    program.write_text(
        program.read_text().replace("words = [", f"{listing}open({str(tmp_path / 'seen')!r}, 'w').write(str(names))\nwords = [")
    )  # fmt: skip
    write_wheel(machine.wheels, "ct-greeting", "1.0")
    code, said = build(machine, tmp_path / "one", "ct-greeting\n", **variables)
    assert code == 0, said
    assert "torch-2.8.0.dist-info" in (tmp_path / "seen").read_text()
    assert "--compile-bytecode" in calls(tmp_path)[1]
    assert not [*tmp_path.glob("one/lib/python*/site-packages/torch-*")]


@pytest.mark.slow
def test_twenty_at_once_build_once(machine: Machine, tmp_path: Path) -> None:
    """And all find it."""
    write_wheel(machine.wheels, "ct-greeting", "1.0")
    variables, folder = write_uv(tmp_path / "uv"), tmp_path / "environments" / "one"
    words = ("--into", str(folder), "--base", machine.python)
    processes = [
        machine.start("ct-greeting\n", *words, python=sys.executable, **variables)
        for _ in range(20)
    ]
    said = [process.communicate(timeout=DEADLINE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 20, said
    assert [call[0] for call in calls(tmp_path)] == ["venv", "pip"]
    assert len(whole(folder.parent)) == 1
    assert machine.versions(str(folder / "bin" / "python"))["ct-greeting"] == "1.0"


@pytest.mark.slow
def test_a_killed_build_is_never_used(machine: Machine, tmp_path: Path) -> None:
    """kill -9 leaves a folder without a link, and no lock."""
    write_wheel(machine.wheels, "ct-greeting", "1.0")
    variables, folder = write_uv(tmp_path / "uv"), tmp_path / "environments" / "one"
    (tmp_path / "uv" / "hold").touch()
    killed = machine.start(
        "ct-greeting\n",
        "--into",
        str(folder),
        "--base",
        machine.python,
        python=sys.executable,
        **variables,
    )
    wait(lambda: (tmp_path / "uv" / "log").exists())
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not folder.is_symlink()
    (tmp_path / "uv" / "hold").unlink()
    code, said = build(machine, folder, "ct-greeting\n", **variables)
    assert code == 0, said
    assert len(whole(folder.parent)) == 2
    assert machine.versions(str(folder / "bin" / "python"))["ct-greeting"] == "1.0"


@pytest.mark.slow
def test_what_cannot_be_built_says_why(machine: Machine, tmp_path: Path) -> None:
    """An interpreter that is none, one without a builder, and a package that nobody has; nothing half made is left."""
    folder = tmp_path / "environments" / "one"
    code, said = machine.install(
        "x\n", "--into", str(folder), "--base", "no/python", python=sys.executable
    )
    assert (code, "code/no/python` failed: No such file or directory" in said) == (1, True), said
    broken: Mapping[str, str] = {"PATH": os.defpath}
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] && echo "Error: ensurepip is missing" && exit 1\nexec "{machine.python}" "$@"\n'
    )
    python.chmod(0o755)
    code, said = machine.install(
        "x\n", "--into", str(folder), "--base", str(python), python=sys.executable, **broken
    )
    assert (
        "error: the environment of `needs.txt` cannot be made: Error: ensurepip is missing\n"
        in said
    )
    assert f"hint: install uv: `{python} -m pip install uv`\n" in said
    code, said = build(machine, folder, "no-such-package\n", **write_uv(tmp_path / "uv"))
    assert (code, "no-such-package" in said.splitlines()[-1]) == (1, True), said
    assert whole(folder.parent) == []
    assert not folder.is_symlink()


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def private_index(wheels: Path) -> Iterator[str]:
    """The address of an index of the wheels of ct-greeting that asks for a password."""

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = (
                self.headers.get("Authorization")
                == f"Basic {base64.b64encode(b'me:pa55w0rd').decode()}"
            )
            name = self.path.rpartition("/")[2]
            links = "".join(
                f'<a href="/{each.name}">{each.name}</a>' for each in wheels.glob("ct_greeting*")
            )
            content = (wheels / name).read_bytes() if name else links.encode()
            self.send_response(200 if is_known else 401)
            if not is_known:
                self.send_header("WWW-Authenticate", "Basic")
                content = b""
            self.send_header("Content-Type", "application/octet-stream" if name else "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.in_ci
def test_the_password_of_an_index_is_a_secret_of_the_job(either: Machine) -> None:
    """It is looked up before the installation, and in no output, whatever the installer prints."""
    digest = write_wheel(either.wheels, "ct-greeting", "1.0")
    with private_index(either.wheels) as address:
        secret = address.replace("//", "//me:pa55w0rd@")
        variables = {
            **either.variables,
            "OWN": secret,
            "PIP_INDEX_URL": address,
            "UV_DEFAULT_INDEX": address,
        }
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            del variables[name]
        text = f"{COMPLETE}--index-url {address}\nct-greeting==1.0 --hash=sha256:{digest}\n"
        machine = either._replace(variables=variables)
        code, said = machine.install(text)
        assert code == 1, said
        machine = either._replace(
            variables={
                **variables,
                "CLOUDTRAIN_SECRETS": '{"PIP_EXTRA_INDEX_URL": "env:OWN", "OTHER": "env:MISSING"}',
            }
        )
        code, said = machine.install(text)
        assert code == 0, said
        assert "pa55w0rd" not in said
        code, said = machine.install(text.replace("1.0", "2.0"))
        assert (code, "pa55w0rd" in said) == (1, False), said
