"""Commands, shells and ports inside a run on a real cluster, also behind a login node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

import pexpect
import pytest

from tests.deadlines import DEADLINE
from tests.ports import free_ports
from tests.targets.slurm.site import REPOSITORY, Run, Site
from tests.targets.slurm.test_quoting import NASTY
from tests.targets.slurm.test_ssh import behind as behind
from tests.terminals import interrupt

pytestmark = [pytest.mark.lifecycle, pytest.mark.slurm]

SERVE = """\
import http.server, os, sys, threading, time
handler = http.server.SimpleHTTPRequestHandler
if os.environ["RANK"] == "1":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("up", os.environ["RANK"], flush=True)
time.sleep(600)
"""
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['RANK'], os.getcwd()]))"


def words_of(run: Run, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cloudtrain", "exec", str(run.ref), *arguments]


def environ_of(run: Run) -> dict[str, str]:
    own = {"PYTHONPATH": str(REPOSITORY), "CLOUDTRAIN_STATE_DIR": str(run.site.root / "state")}
    return {**run.site.environ, **own, "MINE": "not the rank's", "SHELL": "/bin/bash"}


def inside(run: Run, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words_of(run, *arguments), env=environ_of(run), input=stdin, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def terminal_of(run: Run, *arguments: str) -> pexpect.spawn[str]:
    """`cloudtrain exec` on a terminal of its own."""
    program, *words = words_of(run, *arguments)
    environ = {"TERM": "dumb", **environ_of(run)}
    return pexpect.spawn(program, words, env=environ, encoding="utf-8", timeout=DEADLINE)


def serving(site: Site, port: int) -> Run:
    """A run of two ranks on two nodes; rank 1 listens on the loopback address of its own."""
    run = site.submit(
        SERVE,
        name="inside-1",
        hyperparameters={"port": port},
        entry_point="train.py",
        distribution={"type": "torch", "processes_per_instance": 1},
        resources={"instance_count": 2},
    )
    run.wait_for_line("up 0")
    run.wait_for_line("up 1")
    return run


@pytest.mark.parametrize("place", ["site", "behind"])
def test_commands_and_ports(place: str, request: pytest.FixtureRequest) -> None:
    """A command gets a rank's environment and folder, each argument as it was written, and stdin. Its output and its exit
    code come back alone. A port that listens to nobody but its node is reached here, and by nobody else. So is a shell."""
    site: Site = request.getfixturevalue(place)
    port, local_port = free_ports(2)
    run = serving(site, port)

    shown = inside(run, "--rank", "1", "--", sys.executable, "-c", SHOW, *NASTY)
    code = f"{site.shared}/runs/{run.ref.name}/code"
    assert json.loads(shown.stdout) == [list(NASTY), "1", os.path.realpath(code)], shown.stderr
    assert shown.returncode == 0
    variables = inside(run, "--", "env").stdout.splitlines()
    assert "RANK=0" in variables
    assert not [line for line in variables if line.startswith(("MINE=", "CLOUDTRAIN_METRICS_DIR="))]
    assert inside(run, "--instance", "1", "--", "sh", "-c", 'exit "$((RANK + 6))"').returncode == 7
    assert inside(run, "--", "wc", "-c", stdin="x" * 70_000).stdout == "70000\n"
    assert inside(run, "--", "no-such-program").returncode == 127

    missing = inside(run, "--rank", "5", "--", "true")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "CT958" in missing.stderr
    assert "0 to 1" in missing.stderr

    forward = f"{local_port}:{port}"
    tunnel = terminal_of(run, "--rank", "1", "--forward", forward)
    tunnel.expect_exact("Ctrl-C ends it")
    url = f"http://127.0.0.1:{local_port}/train.py"
    for _ in range(3):
        with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
            assert answer.read().decode() == SERVE
    tunnel.sendintr()
    tunnel.expect_exact(pexpect.EOF)
    tunnel.close()
    assert tunnel.exitstatus == 0

    shell = terminal_of(run, "--rank", "1")
    shell.sendline("echo rank-$RANK; tty; sleep 3600")
    shell.expect("rank-1\\s")
    shell.expect("/dev/pts/")
    assert interrupt(shell) == 130
    shell.sendline("exit 9")
    shell.expect_exact(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 9
    assert not run.status.state.is_final


def test_without_a_launcher(site: Site) -> None:
    """Each node's process is a rank of its own, beside that of another run; one that waits, or has ended, is refused."""
    waiting = "import time; print('up', flush=True); time.sleep(600)\n"
    other = site.submit(waiting, name="other-1")
    run = site.submit(
        waiting,
        name="alone-1",
        distribution={"type": "none"},
        resources={"instance_count": 2},
        environment={"variables": {"OWN": "alone"}},
    )
    for one in (other, run):
        one.wait_for_line("up")
    show = ("--", "sh", "-c", "echo $OWN $CLOUDTRAIN_INSTANCE ${PWD%/code}")
    place = f"{os.path.realpath(site.shared)}/runs"
    assert inside(run, "--rank", "1", *show).stdout == f"alone 1 {place}/alone-1\n"
    assert inside(run, *show).stdout == f"alone 0 {place}/alone-1\n"
    assert inside(other, *show).stdout == f"0 {place}/other-1\n"

    pending = site.submit(waiting, name="pending-1", resources={"instance_count": 3})
    refused = inside(pending, "true")
    assert (refused.returncode, "[CT958]" in refused.stderr) == (2, True)
    site.service.stop(other.ref)
    other.wait()
    assert "[CT958]" in inside(other, "true").stderr


def test_ssh_configuration(behind: Site) -> None:
    """The host that VS Code needs leads through the login node to the rank's own."""
    run = behind.submit("import time; print('up', flush=True); time.sleep(600)\n", name="code-1")
    run.wait_for_line("up")
    lines = inside(run, "--ssh-config").stdout.splitlines()
    assert lines == ["Host code-1", "    HostName n1", "    ProxyJump me@login1"]
