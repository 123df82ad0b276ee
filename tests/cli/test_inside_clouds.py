"""`cloudtrain exec` on the clouds, against recorded answers: what the services are asked, and what leads to a container.
AWS's plug-in, ssh and the Azure CLI are small programs here, which run on this machine what they would run in the container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pexpect
import pytest

from cloudtrain.cli.app import run_command
from tests.cli.conftest import Cli
from tests.cli.test_azureml import JOB as AZURE_JOB
from tests.cli.test_azureml import SETTINGS as AZURE_SETTINGS
from tests.cli.test_azureml import TYPE as AZURE_TYPE
from tests.cli.test_inside import AWKWARD, REPOSITORY
from tests.cli.test_inside import cli as cli
from tests.cli.test_sagemaker import fake as aws
from tests.cli.test_sagemaker import job_file as aws_job
from tests.cli.test_sagemaker import name as aws_name
from tests.deadlines import DEADLINE
from tests.fakes.azureml import FakeAzure
from tests.fakes.sagemaker.server import FakeAws
from tests.ports import free_ports
from tests.programs import write_program
from tests.terminals import interrupt

pytestmark = pytest.mark.lifecycle

fake = aws
job_file = aws_job
name = aws_name

PLUGIN = """\
import http.server, json, os, subprocess, sys
if sys.argv[1:] == ["--version"]:
    print(os.environ.get("PLUGIN_VERSION", "1.2.707.0"))
    sys.exit()
place, region, operation, profile, request, endpoint = sys.argv[1:]
with open(@CALLS@, "a") as file:
    print(json.dumps([json.loads(os.environ[place]), region, operation, profile, json.loads(request)]), file=file)
values = json.loads(request)["Parameters"]
print("\\nStarting session with SessionId: ada-0f1e2d3c", flush=True)
if "command" in values:
    is_shell = "NonInteractive" not in request
    if is_shell:
        assert os.get_terminal_size(1).columns > 1
    subprocess.run(["sh", "-c", values["command"][0]], stdin=None if is_shell else subprocess.DEVNULL)
    print("\\n\\nExiting session with sessionId: ada-0f1e2d3c.\\n")
else:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"port " + values["portNumber"][0].encode())
        def log_message(self, *_):
            pass
    server = http.server.HTTPServer(("127.0.0.1", int(values["localPortNumber"][0])), Handler)
    print("Port opened for sessionId ada-0f1e2d3c.\\nWaiting for connections...", flush=True)
    server.serve_forever()
"""
SSH = """\
#!/bin/bash
printf '%s\\n' "$@" >@CALLS@
while [ "$1" != -- ]; do shift; done
echo "Welcome to the container."
shift 2
exec sh -c "$*"
"""
AZ = """\
#!/bin/bash
printf "azure-cli 2.79.0\\n\\nPython location '%s'\\nConfig directory '/none'\\nExtensions directory '%s'\\n" /opt/az/bin/python3 @EXTENSIONS@
"""
SHOW = "import json, os, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that is first on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def add(programs: Path, name: str, text: str) -> Path:
    """Add a program, and return the file with its calls."""
    calls = programs.parent / f"{name}.calls"
    file = programs / name
    text = text.replace("@CALLS@", repr(str(calls))).replace("@EXTENSIONS@", str(programs))
    if text.startswith("#!"):
        file.write_text(text)
        file.chmod(0o755)
    else:
        write_program(file, text)
    return calls


@pytest.mark.slow
def test_sagemaker(
    cli: Cli, fake: FakeAws, name: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remote debugging is switched on only where somebody says so. Then a command gets its arguments as they were
    written, and its output and exit code come back without the plug-in's own lines; the token is in no argument."""
    fake.jobs[name].enter("Training")
    command = ("exec", name, "--", sys.executable, "-c", SHOW, *AWKWARD, "{{ssm:secret}}")

    code, _, err = cli(*command)
    assert (code, "session-manager-plugin" in err, "[CT959]" in err) == (2, True, True)
    calls = add(programs, "session-manager-plugin", PLUGIN)
    monkeypatch.setenv("PLUGIN_VERSION", "1.2.463.0")
    assert "too old [CT959]" in cli(*command)[2]
    monkeypatch.delenv("PLUGIN_VERSION")
    code, _, err = cli(*command)
    assert (code, "[CT957]" in err, "remote_debug = true" in err) == (6, True, True)
    assert not fake.operations("UpdateTrainingJob", "StartSession")

    code, out, err = cli("exec", name, "--yes", *command[2:])
    assert code == 0, err
    assert json.loads(out) == [*AWKWARD, "{{ssm:secret}}"]
    (update,) = fake.operations("UpdateTrainingJob")
    assert update.body == {
        "TrainingJobName": name,
        "RemoteDebugConfig": {"EnableRemoteDebug": True},
    }
    token, region, operation, profile, request = json.loads(calls.read_text())
    assert token["TokenValue"] == "AAEAAd-token"
    assert (region, operation, profile) == ("eu-west-1", "StartSession", "")
    assert request["Target"] == f"sagemaker-training-job:{name}_algo-1"
    assert request["DocumentName"] == "AWS-StartNonInteractiveCommand"
    (sent,) = fake.operations("StartSession")
    assert sent.body == request
    assert "{" not in request["Parameters"]["command"][0]

    assert cli("exec", name, "--", "sh", "-c", "echo out; exit 7")[:2] == (7, "out\n")
    assert cli("exec", name, "--", "no-such-program")[0] == 127
    own = {
        "RANK": "0",
        "TRAINING_JOB_NAME": name,
        "OWN": "a\nb",
        "LD_PRELOAD": "",
        "PATH": os.environ["PATH"],
    }
    with subprocess.Popen(["sleep", "600"], env=own, cwd=programs) as rank:
        command = ("sh", "-c", 'echo "$OWN $PWD $#"; env | grep -c LD_PRELOAD', "sh", "")
        assert cli("exec", name, *command).out == f"a\nb {programs} 1\n0\n"
        rank.kill()
    assert len(fake.operations("UpdateTrainingJob")) == 1
    assert "[CT958]" in cli("exec", name, "--instance", "4", "--", "true")[2]
    assert "needs a terminal" in cli("exec", name)[2]
    assert "[CT957]" in cli("exec", name, "--ssh-config")[2]


@pytest.mark.in_ci
def test_sagemaker_shell(fake: FakeAws, name: str, programs: Path) -> None:
    """On a terminal, `exec` asks whether remote debugging shall be switched on. The shell gets the terminal, whose size the
    plug-in sees, and its exit code comes back."""
    fake.jobs[name].enter("Training")
    add(programs, "session-manager-plugin", PLUGIN)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "dumb", "SHELL": "/bin/sh"}
    words = ["-m", "cloudtrain", "exec", name]
    shell = pexpect.spawn(sys.executable, words, env=environ, encoding="utf-8", timeout=DEADLINE)  # type: ignore[arg-type]
    shell.expect_exact(f"Switch remote debugging of `{name}` on? [y/N]")
    assert not fake.operations("UpdateTrainingJob")
    shell.sendline("y")
    shell.sendline("tty; echo mark-$((40 + 2)); exit 9")
    shell.expect("/dev/pts/.*mark-42")
    shell.expect_exact(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 9
    assert "Starting session" not in str(shell.before)
    (sent,) = fake.operations("StartSession")
    assert sent.body["DocumentName"] == "AWS-StartInteractiveCommand"


def test_sagemaker_port(cli: Cli, fake: FakeAws, name: str, programs: Path) -> None:
    """A port is forwarded as long as the command runs."""
    job = fake.jobs[name]
    job.enter("Training")
    job.more["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    add(programs, "session-manager-plugin", PLUGIN)
    (local,) = free_ports(1)
    fetch = (
        f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{local}').read().decode())"
    )
    done = cli("exec", name, "--forward", f"{local}:6006", "--", sys.executable, "-c", fetch)
    assert done[:2] == (0, "port 6006\n"), done[2]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{local}")


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('print("Port opened', 'sys.exit(3); print("', "port 6006 of the run cannot be forwarded"),
        ("server.serve_forever()", "server.handle_request()", "a port is no longer forwarded"),
    ],
    ids=["before", "after"],
)
def test_sagemaker_port_that_breaks_off(
    cli: Cli, fake: FakeAws, name: str, programs: Path, old: str, new: str, part: str
) -> None:
    """The plug-in ends by itself, before it listens or after a first connection: `exec` waits for nothing any more."""
    job = fake.jobs[name]
    job.enter("Training")
    job.more["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    assert old in PLUGIN
    add(programs, "session-manager-plugin", PLUGIN.replace(old, new))
    (local,) = free_ports(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fetch_when_open, local)
        code, _, err = cli("exec", name, "--forward", f"{local}:6006")
    assert code == 4
    assert part in err
    assert "[CT959]" in err


def fetch_when_open(port: int) -> None:
    """Connect once, as soon as somebody listens."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=DEADLINE).close()
            return
        time.sleep(0.02)


@pytest.mark.in_ci
def test_sagemaker_says_what_is_wrong(
    cli: Cli, fake: FakeAws, name: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that has not started, network isolation, an agent that is not connected, a session that breaks off."""
    add(programs, "session-manager-plugin", PLUGIN)
    job = fake.jobs[name]
    job.enter("Downloading")
    job.more["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    code, _, err = cli("exec", name, "--", "true")
    assert (code, "[CT958]" in err) == (2, True)
    job.enter("Training")
    job.more["EnableNetworkIsolation"] = True
    assert "network isolation" in cli("exec", name, "--yes", "--", "true")[2]
    job.more["EnableNetworkIsolation"] = False

    broken = PLUGIN.replace('if "command" in values:', "sys.exit(3)\nif False:")
    add(programs, "session-manager-plugin", broken)
    code, out, err = cli("exec", name, "--", "true")
    assert (code, out, "exit code is unknown" in err) == (3, "", True)

    answers = fake.jobs.session
    monkeypatch.setattr(
        fake.jobs, "session",
        lambda operation, body: {**answers(operation, body), "Status": "notconnected"},
    )  # fmt: skip
    code, _, err = cli("exec", name, "--", "true")
    assert (code, "ssmmessages:CreateControlChannel" in err) == (4, True)


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAzure]:
    with FakeAzure() as service:
        service.computes.add("a100", AZURE_TYPE)
        for key, value in service.environ.items():
            monkeypatch.setenv(key, value)
        yield service


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ ada@home"
WITH_SSH = f'services = {{ssh = {{type = "ssh", ssh_public_key = "{KEY}"}}}}\n'


def submit_to_azure(
    cli: Cli, azure: FakeAzure, make_source: Callable[..., Path], settings: str
) -> str:
    """A running job with these settings."""
    files = {"train.py": "print(1)\n", "job.yaml": AZURE_JOB, "cloudtrain.toml": settings}
    job = make_source(files) / "job.yaml"
    done = cli("submit", str(job), "--target", "azureml", "--detach", "--ignore", "AZ723")
    name = done.out.strip()
    azure.jobs[name].enter("Running")
    return name


def add_connector(programs: Path) -> Path:
    """The program of the Azure CLI's extension."""
    connector = programs / "ml/azext_mlv2/manual/custom/_ssh_connector.py"
    connector.parent.mkdir(parents=True)
    connector.touch()
    return connector


class AzureJob(NamedTuple):
    """A job with an ssh service, and all that leads into it. `calls` has the arguments of ssh."""

    name: str
    connector: Path
    home: Path
    calls: Path


@pytest.fixture
def azure_job(
    cli: Cli, azure: FakeAzure, programs: Path, make_source: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> AzureJob:  # fmt: skip
    name = submit_to_azure(cli, azure, make_source, AZURE_SETTINGS + WITH_SSH)
    add(programs, "az", AZ)
    connector = add_connector(programs)
    home = programs.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "work").touch()
    (home / ".ssh" / "work.pub").write_text(f"{KEY}\n")
    monkeypatch.setenv("HOME", str(home))
    return AzureJob(name, connector, home, add(programs, "ssh", SSH))


def test_azureml_says_what_is_missing(
    cli: Cli, azure: FakeAzure, programs: Path, make_source: Callable[..., Path]
) -> None:
    """Without the ssh service, the error says what to set; without the CLI or its extension, what to install."""
    name = submit_to_azure(cli, azure, make_source, AZURE_SETTINGS)
    code, _, err = cli("exec", name, "--", "true")
    assert (code, "[CT957]" in err, "services.ssh" in err) == (2, True, True)

    name = submit_to_azure(cli, azure, make_source, AZURE_SETTINGS + WITH_SSH)
    code, _, err = cli("exec", name, "--", "true")
    assert (code, "az extension add" in err, "[CT959]" in err) == (2, True, True)
    add(programs, "az", AZ)
    assert "[CT959]" in cli("exec", name, "--", "true")[2]


def test_azureml(cli: Cli, azure_job: AzureJob) -> None:
    """A job with an ssh service is entered through the extension's connector, with the key that the job knows. A command
    gets its arguments as they were written, and its output and exit code come back alone."""
    name, connector, home, calls = azure_job
    code, out, err = cli("exec", name, "--", sys.executable, "-c", SHOW, *AWKWARD)
    assert code == 0, err
    assert json.loads(out) == AWKWARD
    assert cli("exec", name, "--", "sh", "-c", "exit 7")[0] == 7
    words = calls.read_text().splitlines()
    proxy = f'"/opt/az/bin/python3" "{connector}" wss://ssh-{name}-0.eastus.nodes.azureml.ms'
    assert f"ProxyCommand={proxy}" in words
    assert f"IdentityFile={home}/.ssh/work" in words
    assert cli("exec", name, "--ssh-config")[1].splitlines()[:4] == [
        f"Host {name}", f"    HostName {name}", "    User azureuser", f"    ProxyCommand {proxy}",
    ]  # fmt: skip
    assert "[CT958]" in cli("exec", name, "--instance", "3", "--", "true")[2]
    assert run_command(["exec", name, "--rank", "9", "--", "true"]) == 2


@pytest.mark.in_ci
def test_azureml_port(cli: Cli, azure_job: AzureJob) -> None:
    """A port of the container is one here as long as the command runs, whatever the container says at first."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        port = server.server_address[1]
        (local,) = free_ports(1)
        fetch = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{local}').status)"
        command = ("--", sys.executable, "-c", fetch)
        done = cli("exec", azure_job.name, "--forward", f"{local}:{port}", *command)
        assert done.out == "200\n", done.err
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{local}")
        server.shutdown()


@pytest.mark.in_ci
def test_azureml_shell(azure_job: AzureJob) -> None:
    """A shell gets the terminal; Ctrl-C reaches what runs in it, and its exit code comes back."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "dumb", "SHELL": "/bin/sh"}
    words = ["-m", "cloudtrain", "exec", azure_job.name]
    shell = pexpect.spawn(sys.executable, words, env=environ, encoding="utf-8", timeout=DEADLINE)  # type: ignore[arg-type]
    shell.sendline("tty; echo mark-$((40 + 2)); sleep 3600")
    shell.expect("/dev/pts/.*mark-42")
    assert interrupt(shell) == 130
    shell.sendline("exit 9")
    shell.expect_exact(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 9
    assert "-t" in azure_job.calls.read_text().splitlines()
