"""`cloudtrain exec` in a real run on this machine: commands, a shell on a terminal, ports, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pexpect
import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.runs.run import Run
from tests.cli.conftest import Cli, Result
from tests.deadlines import DEADLINE
from tests.guards import needs_proc
from tests.ports import free_ports
from tests.terminals import interrupt

pytestmark = pytest.mark.lifecycle

REPOSITORY = Path(__file__).parents[2]
RANK = """\
import os, pathlib, sys, time
for rank in (1, 2):
    if os.fork() == 0:
        os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3")
        os.chdir("ranks")
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "rank"])
os.environ.update(RANK="0", WORLD_SIZE="3", LOCAL_RANK="0", LOCAL_WORLD_SIZE="3", LD_PRELOAD="/no.so")
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "rank"])
"""
AWKWARD = [
    "",
    " ",
    "a b",
    "it's",
    '"',
    "$HOME",
    "`ls`",
    "a\nb",
    "--",
    "--rank",
    "-x",
    "*",
    "é☃",
    "\\",
]
SHOW = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['RANK'], os.getcwd(),"
    " sorted({'LD_PRELOAD', 'CLOUDTRAIN_RUN_TOKEN', 'MINE'} & set(os.environ))]))"
)


@pytest.fixture
def run(clean_environment: Path) -> Iterator[Run]:
    """A run with three ranks, which a launcher of its own starts."""
    folder = clean_environment / "src"
    (folder / "ranks").mkdir(parents=True)
    (folder / "ranks" / "it's").write_text("here")
    (folder / "launch.py").write_text(RANK)
    job = ct.TrainingJob(
        name="inside", source_dir=str(folder), command=f"{sys.executable} launch.py"
    )
    started = ct.submit(job)
    end = time.monotonic() + DEADLINE
    while run_command(["exec", started.name, "--rank", "2", "--", "true"]):
        assert time.monotonic() < end
        time.sleep(0.02)
    yield started
    started.stop()
    started.wait()


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """One command line with what the programs print that it starts."""

    def of(*arguments: str) -> Result:
        capfd.readouterr()
        code = run_command(arguments)
        return Result(code, *capfd.readouterr())

    return of


def test_commands(run: Run, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets each argument as it was written, a rank's environment and folder, nothing that makes it a process of
    the run, and its exit code is that of `exec`."""
    monkeypatch.setenv("MINE", "not the rank's")
    code, out, err = cli(
        "exec", run.name, "--rank", "1", "--", sys.executable, "-c", SHOW, *AWKWARD
    )
    assert code == 0, err
    place = f"{run.directory}/code"
    assert json.loads(out) == [AWKWARD, "1", f"{place}/ranks", []]

    assert cli(
        "exec",
        run.name,
        "--",
        "sh",
        "-c",
        "echo $RANK $PWD; ps -o args= -p $CLOUDTRAIN_RANK_PID >&2; exit 7",
    )[:2] == (
        7,
        f"0 {place}\n",
    )
    assert cli("exec", run.name, "sh", "-c", 'echo "$@"', "sh", "--rank", "-h")[:2] == (
        0,
        "--rank -h\n",
    )
    assert cli("exec", run.name, "--", "sh", "-c", "kill -9 $$")[0] == 137
    assert cli("exec", run.name, "--instance", "0", "--", "cat", "no-such-file")[0] == 1
    assert cli("exec", run.name, "--", "no-such-program")[0] == 127
    code, _, err = cli("exec", run.name, "--", "echo a | wc")
    assert code == 127
    assert "`sh -c 'echo a | wc'`" in err
    assert cli("exec", run.name, "--rank", "1", "--", "./")[0] == 126


def test_refused(run: Run, cli: Cli) -> None:
    """A rank, an instance or a port that there is not, options that exclude each other, and a run that has ended."""
    for options, code, part in (
        (["--rank", "7"], "CT958", "0, 1, 2"),
        (["--rank", "1", "--instance", "3"], "CT958", "rank 1 on instance 3"),
        (["--forward", "99999"], "CT909", "--forward 6006"),
        (["--forward", "0:80"], "CT909", "--forward 6006"),
        (["--ssh-config", "--forward", "80"], "CT902", "alone"),
        (["--ssh-config"], "CT957", "without ssh"),
    ):
        result = cli("exec", run.name, *options)
        assert (result.code, result.out) == (2, "")
        assert f"[{code}]" in result.err
        assert part in result.err
    run.stop()
    run.wait()
    result = cli("exec", run.name, "--", "true")
    assert result.code == 2
    assert "is not running: it is stopped [CT958]" in result.err


@pytest.mark.slow
def test_shell_on_a_terminal(run: Run) -> None:
    """Without a command it is the user's shell. Ctrl-C reaches what runs in it, and neither `exec` nor the run."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TERM": "dumb",
        "SHELL": "/bin/sh",
        "PS1": "$ ",
    }
    words = ["-m", "cloudtrain", "exec", run.name, "--rank", "2"]
    shell = pexpect.spawn(sys.executable, words, env=environ, encoding="utf-8", timeout=DEADLINE)  # type: ignore[arg-type]
    shell.sendline('cat "it\'s"; echo " rank-$RANK"; sleep 3600')
    shell.expect_exact("here rank-2")
    assert interrupt(shell) == 130
    shell.sendline("exit 9")
    shell.expect_exact(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 9
    assert not run.state.is_final


@pytest.mark.slow
def test_ports(run: Run, cli: Cli, tmp_path: Path) -> None:
    """A port of the run is another one here, for as long as the command runs: every byte, many connections at once. One
    that is in use is refused; one where nothing listens is said."""
    (tmp_path / "big").write_bytes(os.urandom(1_000_000))

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    port = server.server_address[1]
    local, closed = free_ports(2)
    fetch = (
        "import concurrent.futures as c, sys, urllib.request as u\n"
        "get = lambda _: u.urlopen(sys.argv[1]).read()\n"
        "with c.ThreadPoolExecutor(8) as pool:\n    got = set(pool.map(get, range(16)))\n"
        "print(got == {open(sys.argv[2], 'rb').read()})"
    )
    url = f"http://127.0.0.1:{local}/big"
    command = [sys.executable, "-c", fetch, url, str(tmp_path / "big")]
    code, out, err = cli("exec", run.name, "--forward", f"{local}:{port}", "--", *command)
    assert (code, out) == (0, "True\n"), err
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)

    code, _, err = cli("exec", run.name, "--forward", f"{port}:{closed}")
    assert (code, "[CT959]" in err, "in use" in err) == (2, True, True)
    assert cli("exec", run.name, "--forward", str(port)) == (
        0, "", f"the run is on this machine, and so is its port {port}: `http://127.0.0.1:{port}`\n",
    )  # fmt: skip
    ask = f"import socket; print(socket.create_connection(('127.0.0.1', {local})).recv(9))"
    command = [sys.executable, "-c", ask]
    code, out, err = cli("exec", run.name, "--forward", f"{local}:{closed}", "--", *command)
    assert (code, out) == (0, "b''\n")
    assert f"nothing listens on port {closed}" in err
    server.shutdown()
    server.server_close()


@needs_proc
def test_forked_rank(run: Run, cli: Cli) -> None:
    """A forked rank has its launcher's variables in the process table; those that it registered count. A registration of
    another process with the same id counts for nothing."""
    from cloudtrain.runtime.ranks import read_ranks

    assert run.directory is not None
    with subprocess.Popen(["sleep", "600"], cwd="/") as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = {
            "pid": process.pid, "start": stat[19], "boot": boot, "host": "here", "rank": 3, "local_rank": 3,
            "attempt": 0, "signal": None, "stacks": None, "cwd": "/", "environ": {"RANK": "3"},
        }  # fmt: skip
        folder = run.directory / "ranks"
        folder.mkdir(exist_ok=True)
        file = folder / "3.json"
        file.write_text(json.dumps(record))
        assert [rank.rank for rank in read_ranks(run.directory)] == [3]
        command = ["exec", run.name, "--rank", "3", "--", "sh", "-c", "echo $RANK $PWD"]
        assert cli(*command)[:2] == (0, "3 /\n")
        file.write_text(json.dumps({**record, "start": "1"}))
        assert cli(*command)[0] == 2
        process.kill()
