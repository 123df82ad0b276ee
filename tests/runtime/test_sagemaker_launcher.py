"""The real start line in a real shell, on a temporary `/opt/ml`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.runtime import SetupError
from cloudtrain.runtime.sagemaker_launcher import network
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.runtime.sagemaker_launcher.failure import LIMIT, failure_text
from cloudtrain.targets.sagemaker.service.logs import lines_of
from tests.deadlines import DEADLINE
from tests.examples import examples
from tests.ports import free_ports
from tests.runtime.sagemaker_host import RECORDER, Host, resource_config

pytestmark = pytest.mark.lifecycle

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")

SHELLS = [
    shell for shell in (("dash",), ("bash", "--posix"), ("busybox", "sh")) if shutil.which(shell[0])
]
TWO = ("algo-1", "algo-2")

AWKWARD = {
    "spaces": "two  words ",
    "quotes": 'it\'s "so" `id`',
    "dollar": "$HOME ${PATH} $(id)",
    "semicolon": "a; touch pwned & | > x",
    "newline": "one\ntwo\ttabs",
    "umlaut": "Grüße 你好 🙂",
    "glob": "*.py ~ ? [a]",
    "backslash": "C:\\new\\",
    "empty": "",
    "dashes": "--other",
    "list": [1, 2.5, "a b"],
    "flag": False,
    "none": None,
    "tiny": 1e-07,
    "x": 1,
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host whose folder has a space in its name."""
    return Host(tmp_path / "opt ml")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_awkward_values_arrive_exactly(host: Host, shell: tuple[str, ...]) -> None:
    """Whatever a hyperparameter holds, the script finds it in argv, and in `SM_HPS` with its type."""
    host.fill({"train.py": RECORDER}, AWKWARD, entry_point="train.py")
    assert host.run(shell=shell) == 0, host.err
    seen = host.seen()
    assert seen["argv"] == argv_of(AWKWARD)
    assert json.loads(seen["env"]["SM_HPS"]) == AWKWARD
    assert seen["env"]["SM_MODEL_DIR"] == f"{host.root}/model"
    assert "Warning" not in host.err


@pytest.mark.parametrize("version", ["3.7", "3.8"])
def test_it_runs_on_the_python_of_old_images(host: Host, version: str, tmp_path: Path) -> None:
    """Images of TensorFlow 1.15 have Python 3.7 and those of PyTorch 1.12 have 3.8: a script is started there, and a
    failure is explained."""
    python = next(iter(sorted(PYENV.glob(f"{version}.*/bin/python"))), None) or shutil.which(
        f"python{version}"
    )
    if (
        python is None
        or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"Python {version} is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(python)
    host.variables["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    code = f"{RECORDER}\nassert sys.version.startswith({version!r})\nraise ValueError(sys.argv[2])"
    host.fill({"train.py": code}, {"text": "two words"}, entry_point="train.py")
    assert host.run() == 1, host.err
    assert host.seen()["argv"] == ["--text", "two words"]
    assert host.failure is not None
    assert host.failure.startswith("process failed with exit code 1: ValueError: two words")


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@pytest.mark.slow
@settings(
    max_examples=examples(15, quick=5),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(
        TEXTS.filter(lambda key: key and not key.startswith("cloudtrain_")), TEXTS, max_size=40
    )
)
def test_any_text_arrives_exactly(
    tmp_path_factory: pytest.TempPathFactory, user: dict[str, str]
) -> None:
    """The same for any text that a process can receive."""
    host = Host(tmp_path_factory.mktemp("host") / "ml").fill(
        {"train.py": RECORDER}, user, entry_point="train.py"
    )
    own = {key: value for key, value in user.items() if not key.startswith("sagemaker_")}
    assert host.run() == 0, host.err
    assert host.seen()["argv"] == argv_of(own)


def test_nul_is_refused_in_words(host: Host) -> None:
    """No process can receive a NUL; the job fails with a reason, not with a traceback."""
    host.fill({"train.py": RECORDER}, {"bad": "a\0b"}, entry_point="train.py")
    assert host.run() == 1
    assert "null byte" in (host.failure or "")
    assert "Traceback" not in host.err


def test_script_in_a_folder_finds_its_neighbours(host: Host) -> None:
    """The bundle's top and the runtime can be imported, wherever the script stands."""
    script = "import helper\nfrom cloudtrain import runtime\nassert runtime.detect_environment().platform == 'sagemaker'"
    host.fill({"sub/train.py": script, "helper.py": ""}, {}, entry_point="sub/train.py")
    assert host.run() == 0, host.err


def test_shell_script_and_command(tmp_path: Path) -> None:
    """A shell script gets the hyperparameters as arguments; a command is a shell line."""
    script = 'printf "%s|" "$@" > "$SM_OUTPUT_DATA_DIR/out"'
    first = Host(tmp_path / "a").fill(
        {"run.sh": script}, {"name": "two words"}, entry_point="run.sh"
    )
    second = Host(tmp_path / "b").fill(
        {"a": ""}, {}, command='echo "$SM_CURRENT_HOST" | tee $SM_OUTPUT_DATA_DIR/out'
    )
    assert (first.run(), second.run()) == (0, 0), first.err + second.err
    assert (first.root / "output/data/out").read_text() == "--name|two words|"
    assert (second.root / "output/data/out").read_text() == "algo-1\n"


def test_failure_file(host: Host) -> None:
    """A failing script ends the host with its exit code; the reason names the error and keeps within the limit."""
    steps = [f"def step_{n}():\n    step_{n + 1}()\n" for n in range(40)]
    script = (
        "".join(steps)
        + "def step_40():\n    raise ValueError('no such column: ' + 'y' * 20)\nstep_0()"
    )
    host.fill({"train.py": script}, {}, entry_point="train.py")
    assert host.run() == 1
    assert host.failure is not None
    first, *rest = host.failure.splitlines()
    assert first == f"process failed with exit code 1: ValueError: no such column: {'y' * 20}"
    assert rest[-1] == f"ValueError: no such column: {'y' * 20}"
    frame = max(len(line) for line in host.err.splitlines()) + len("\n    step_10()\n")
    assert LIMIT - frame <= len(host.failure) <= LIMIT
    assert "Traceback (most recent call last):" in host.err


def test_scripts_own_failure_file_stays(host: Host) -> None:
    """A script that writes its own reason, as SageMaker's documentation asks, is not overruled."""
    script = "import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('mine')\nraise SystemExit(7)"
    host.fill({"train.py": script}, {}, entry_point="train.py")
    assert (host.run(), host.failure) == (7, "mine")


def test_killed_process(host: Host) -> None:
    """A process that the kernel kills is told from one that fails."""
    host.fill({"train.py": "import os\nos.kill(os.getpid(), 9)"}, {}, entry_point="train.py")
    assert host.run() == 137
    assert host.failure == "process was killed by SIGKILL (most likely the host ran out of memory)"


@pytest.mark.slow
def test_missing_requirements(host: Host) -> None:
    """A requirements file that cannot be installed fails the job before the script starts, and says so."""
    files = {"train.py": RECORDER, "needs.txt": "./no-such-folder\n"}
    host.fill(files, {}, entry_point="train.py", requirements="needs.txt")
    assert host.run() == 1
    assert (host.failure or "").startswith("`needs.txt` cannot be installed: ")
    assert not (host.root / "output/data/seen_0.json").exists()


@pytest.mark.in_ci
def test_requirements_are_installed_for_the_interpreter(host: Host) -> None:
    """pip runs in the code folder, with the Python that runs the script, before the script. Its settings name an index,
    which uv would not know."""
    fake = host.root.parent / "python"
    fake.write_text(
        '#!/bin/sh\n[ "$3" = config ] && exec echo "global.index-url=x"\n'
        '[ "$2" = pip ] && echo "$PWD $*" > "$SM_OUTPUT_DATA_DIR/pip" || exec python3 "$@"\n'
    )
    fake.chmod(0o755)
    files = {"train.py": RECORDER, "needs.txt": ""}
    host.fill(files, {}, entry_point="train.py", requirements="needs.txt", interpreter=str(fake))
    assert host.run() == 0, host.err
    said = (host.root / "output/data/pip").read_text().strip()
    assert said.startswith(f"{host.root}/code -m pip install --disable-pip-version-check ")
    assert said.endswith(" -r needs.txt")


def test_configuration_is_missing(host: Host) -> None:
    """Outside a container the launcher says what is missing."""
    host.fill({"train.py": ""}, {}, entry_point="train.py")
    (host.root / "input/config/resourceconfig.json").unlink()
    assert host.run() == 1
    assert "hint: run this launcher in a SageMaker container" in host.err
    assert "resourceconfig.json` cannot be read" in (host.failure or "")


@pytest.mark.parametrize("content", ["null", "[1]", '"text"'])
def test_configuration_is_no_object(host: Host, content: str) -> None:
    host.fill({"train.py": ""}, {}, entry_point="train.py")
    (host.root / "input/config/resourceconfig.json").write_text(content)
    assert host.run() == 1
    assert "Traceback" not in host.err
    assert "resourceconfig.json` does not hold a JSON object" in (host.failure or "")


def test_no_python(host: Host, tmp_path: Path) -> None:
    """An image without Python fails with a reason."""
    host.fill({"train.py": ""}, {}, entry_point="train.py")
    host.variables = {"PATH": str(tmp_path / "nothing")}
    assert host.run() == 127
    assert host.failure == "no Python in the image\n"


WAITS = """
import os, signal, sys, time
def leave(*_):
    time.sleep(float(os.environ.get("SAVING_TAKES", 0)))
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
os.makedirs(os.environ["SM_MODEL_DIR"], exist_ok=True)
open(os.environ["SM_OUTPUT_DATA_DIR"] + "/ready", "w").close()
while True: time.sleep(0.05)
"""


def test_stop_reaches_the_script(host: Host) -> None:
    """SIGTERM to the container's main process (a stop, or spot capacity taken away) lets the script save."""
    host.fill({"train.py": WAITS}, {}, entry_point="train.py").start()
    host.when((host.root / "output/data/ready").exists)
    assert host.process is not None
    host.process.send_signal(signal.SIGTERM)
    assert host.wait() == 0, host.err
    assert (host.root / "model/saved").exists()
    assert host.failure is None


@pytest.mark.slow
def test_stop_reaches_what_a_shell_started(host: Host) -> None:
    """A shell does not pass SIGTERM on and dies of it, so its children get it too, and their time to save."""
    host.fill({"train.py": WAITS}, {}, command="SAVING_TAKES=1 python3 train.py; true").start()
    host.when((host.root / "output/data/ready").exists)
    assert host.process is not None
    host.process.send_signal(signal.SIGTERM)
    host.wait()
    assert (host.root / "model/saved").exists()
    assert host.failure is None


TASK = """
import json, os, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
seen = os.environ["SM_OUTPUT_DATA_DIR"] + "/" + task["type"] + str(task["index"])
open(seen, "w").close()
others = [p for p in sys.argv[sys.argv.index("--roots") + 1].split(":")]
if task["type"] != "chief":
    while True: time.sleep(0.05)
while not all(any(os.path.exists(f"{p}/output/data/{n}") for p in others) for n in ("ps0", "worker0")):
    time.sleep(0.02)
sys.exit(int(sys.argv[sys.argv.index("--code") + 1]))
"""


def two_hosts(
    tmp_path: Path, files: dict[str, str], user: dict[str, Any], **launch: Any
) -> list[Host]:
    """Two hosts that share this machine, as an emulation has them."""
    names = [f"{host}:{port}" for host in TWO for port in (7777, 7778, 2222, 2223)]
    endpoints = {
        name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)
    }  # 8 at once, so that they differ
    return [
        Host(tmp_path / name, resource_config(name, hosts=TWO), endpoints=endpoints).fill(
            files, user, **launch
        )
        for name in TWO
    ]


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.slow_after(1)
def test_servers_end_with_the_chief(tmp_path: Path, code: int) -> None:
    """Workers and parameter servers serve for ever; the chief's end ends them on every host, with its exit code."""
    user = {"roots": f"{tmp_path / 'algo-1'}:{tmp_path / 'algo-2'}", "code": code}
    launch = {"launcher": "tensorflow", "strategy": "parameter_server", "parameter_servers": 2}
    hosts = two_hosts(tmp_path, {"train.py": TASK}, user, entry_point="train.py", **launch)
    for host in hosts:
        host.start()
    assert [host.wait() for host in hosts] == [code, code], hosts[0].err + hosts[1].err
    reasons = [host.failure for host in hosts]
    if code:
        assert reasons[0] == "chief failed with exit code 3"
        assert (reasons[1] or "").startswith("the chief failed, or its host was lost")
    else:
        assert reasons == [None, None]


def test_first_failure_ends_the_host(host: Host) -> None:
    """One dead task ends the others at once, although they would go on."""
    script = """
import json, os, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    raise RuntimeError("second")
time.sleep(3600)
"""
    host.fill({"train.py": script}, {}, entry_point="train.py", launcher="tensorflow", workers=3)
    assert host.start().wait(timeout=DEADLINE) == 1
    assert (host.failure or "").startswith("worker failed with exit code 1: RuntimeError: second")


@pytest.mark.mpi
def test_mpirun(host: Host) -> None:
    """Ranks of one host get their argv exactly, through mpirun too."""
    host.fill(
        {"train.py": RECORDER},
        AWKWARD,
        entry_point="train.py",
        launcher="mpirun",
        processes_per_instance=2,
    )
    assert host.run() == 0, host.err
    assert [host.seen(rank)["argv"] for rank in range(2)] == [argv_of(AWKWARD)] * 2


@pytest.mark.mpi
def test_stop_of_mpirun_waits_for_the_ranks(host: Host) -> None:
    """Ranks that need longer than mpirun's second still save."""
    script = WAITS.replace("def leave(*_):", "def leave(*_):\n    time.sleep(2.5)").replace(
        '"/ready"', '"/ready" + os.environ["OMPI_COMM_WORLD_RANK"]'
    )
    script = script.replace('"/saved"', '"/saved" + os.environ["OMPI_COMM_WORLD_RANK"]')
    host.fill(
        {"train.py": script},
        {},
        entry_point="train.py",
        launcher="mpirun",
        processes_per_instance=2,
    ).start()
    host.when(lambda: len(list((host.root / "output/data").glob("ready*"))) == 2)
    assert host.process is not None
    host.process.send_signal(signal.SIGTERM)
    host.wait()
    assert sorted(path.name for path in (host.root / "model").iterdir()) == ["saved0", "saved1"]


@pytest.mark.torch
def test_two_hosts_under_torchrun(tmp_path: Path) -> None:
    """Two hosts over loopback form one group of four ranks, in the order of the hosts."""
    script = (
        RECORDER
        + "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    )
    launch = {"launcher": "torchrun", "processes_per_instance": 2}
    hosts = two_hosts(tmp_path, {"train.py": script}, AWKWARD, entry_point="train.py", **launch)
    for host in hosts:
        host.start()
    assert [host.wait() for host in hosts] == [0, 0], hosts[0].err + hosts[1].err
    for rank in range(4):
        seen = hosts[rank // 2].seen(rank)
        assert seen["argv"] == argv_of(AWKWARD)
        assert (seen["env"]["WORLD_SIZE"], seen["env"]["GROUP_RANK"]) == ("4", str(rank // 2))


@pytest.mark.torch
def test_lines_carry_their_rank(host: Host) -> None:
    """A host has one log; what the backend reads of it tells the ranks apart."""
    script = "import os, sys\nprint('to stdout', os.environ['RANK'])\nprint('to stderr', os.environ['RANK'], file=sys.stderr)"
    host.fill(
        {"train.py": script},
        {},
        entry_point="train.py",
        launcher="torchrun",
        processes_per_instance=2,
    )
    assert host.run() == 0, host.err
    found = [line for text in (host.out, host.err) for line in lines_of(text, 0.0, 0, range(2))]
    ranks = {(line.rank, line.text) for line in found if line.text.startswith("to ")}
    assert ranks == {(0, "to stdout 0"), (1, "to stdout 1"), (0, "to stderr 0"), (1, "to stderr 1")}


@pytest.mark.torch
def test_torchruns_rank_is_named(host: Host) -> None:
    """The rank that failed first is the reason, not torchrun's own traceback, which comes last."""
    script = "import os, time\nif os.environ['RANK'] == '1': raise KeyError('rank one')\ntime.sleep(3600)"
    host.fill(
        {"train.py": script},
        {},
        entry_point="train.py",
        launcher="torchrun",
        processes_per_instance=2,
    )
    assert host.run() == 1
    assert (host.failure or "").startswith(
        "rank 1 failed with exit code 1: KeyError: 'rank one'"
    ), host.failure


@pytest.mark.torch
def test_ranks_that_cannot_leave(host: Host) -> None:
    """A rank that ignores SIGTERM because it waits for a dead one does not keep the failed job alive and paid for."""
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    time.sleep(1)
    raise KeyError("rank one")
time.sleep(3600)
"""
    host.fill(
        {"train.py": script},
        {},
        entry_point="train.py",
        launcher="torchrun",
        processes_per_instance=2,
    )
    assert host.start().wait(timeout=DEADLINE) == 1
    assert (host.failure or "").startswith(
        "rank 1 failed with exit code 1: KeyError: 'rank one'"
    ), host.failure


def test_reason_prefers_the_failed_rank() -> None:
    """Where torch marks lines with their rank, those of the first rank to fail are told, whatever comes later."""
    said = """[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank0]:   File "train.py", line 9, in <module>
[rank1]: ValueError: bad batch
[rank0]: torch.distributed.DistNetworkError: Connection closed by peer
E0101 00:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "run.py", line 1, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : algo-1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12)
  error_file: <N/A>
"""
    assert failure_text("torchrun", 1, said) == (
        "rank 1 failed with exit code 1: ValueError: bad batch\n"
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch'
    )


def test_reason_is_what_a_rank_told() -> None:
    """The sentence and the hint of an error that the runtime told, and not the traceback of a rank that lost its peer;
    mpirun's mark of each line is no part of the sentence."""
    told = "error: `x.pt` is broken\n\nhint: remove it\n"
    lost = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\nRuntimeError: closed by peer\n'
    expected = "process failed with exit code 1: `x.pt` is broken"
    assert (
        failure_text("process", 1, told + lost)
        == f"{expected}\nerror: `x.pt` is broken\nhint: remove it"
    )
    assert failure_text("process", 1, lost + told).startswith(expected)
    marked = "".join(f"[1,0]<stderr>:{line}\n" for line in told.splitlines())
    assert failure_text("process", 1, marked).startswith(expected)
    own = lost.replace("closed by peer", "bad thing")
    assert failure_text("process", 1, told + own).startswith(
        "process failed with exit code 1: RuntimeError: bad thing"
    )


@given(st.text(max_size=3000), st.integers(-70, 255))
def test_reason_fits(said: str, code: int) -> None:
    """Whatever a process says, the reason is never empty and never longer than the service keeps."""
    assert 0 < len(failure_text("process", code, said)) <= LIMIT


def test_a_host_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve is waited for, said once, and given up in words."""
    told: list[str] = []
    now = [0.0]  # a clock that only sleep moves, and no resolver that may take its time

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(network, "tell", told.append)
    with pytest.raises(SetupError, match="has no address after"):
        network.wait_for_name("algo-1.invalid", patience=0.5)
    assert told == ["waiting for the host `algo-1.invalid`"]
