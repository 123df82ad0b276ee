"""The launcher of processing jobs: a container is rehearsed in a folder, with the real shell line and a real bundle."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from cloudtrain.runtime.environment import detect_environment
from cloudtrain.runtime.sagemaker_processing import container_entrypoint, script_argv, variables_of
from tests.deadlines import DEADLINE

PACKAGE = Path(__file__).parents[2] / "cloudtrain" / "runtime"

SCRIPT = """
import sys
from cloudtrain.runtime import detect_environment, input_dir, output_dir
here = detect_environment()
names = sorted(path.name for path in input_dir("raw").iterdir())
(output_dir("lists") / f"{here.node_rank}-of-{here.node_count}.txt").write_text(" ".join([*names, *sys.argv[1:]]))
"""


def container(root: Path, files: dict[str, str], *, hosts: int = 2, number: int = 1) -> Path:
    """`/opt/ml` of one instance, as the service lays it out before the container starts."""
    code, config = root / "processing" / "input" / "code", root / "config"
    for folder in (code, config, root / "output", root / "processing" / "input" / "raw"):
        folder.mkdir(parents=True)
    with tarfile.open(code / "sourcedir.tar.gz", "w:gz") as archive:
        archive.add(
            PACKAGE,
            "cloudtrain/runtime",
            filter=lambda item: None if "__pycache__" in item.name else item,
        )
        for name, text in {"cloudtrain/__init__.py": "", **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    names = [f"algo-{index + 1}" for index in range(hosts)]
    (config / "resourceconfig.json").write_text(
        json.dumps({"current_host": names[number], "hosts": names})
    )
    (config / "processingjobconfig.json").write_text(json.dumps(job_config(root)))
    return root


def job_config(root: Path) -> dict[str, object]:
    """The parts of `processingjobconfig.json` that matter: the request, as the service hands it over."""
    raw, code, lists = (
        f"{root}/processing/{end}" for end in ("input/raw", "input/code", "output/lists")
    )
    return {
        "ProcessingJobName": "prep-1",
        "ProcessingInputs": [
            {"InputName": "raw", "S3Input": {"S3Uri": "s3://b/raw", "LocalPath": raw}},
            {"InputName": "code", "S3Input": {"S3Uri": "s3://b/code", "LocalPath": code}},
        ],
        "ProcessingOutputConfig": {
            "Outputs": [{"OutputName": "lists", "S3Output": {"LocalPath": lists}}]
        },
    }


def environment() -> dict[str, str]:
    """A container's: nothing of this process but where programs are."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


def run(
    root: Path, *words: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """What Docker runs: the entry point, then the arguments."""
    argv = [*container_entrypoint(words, root=str(root), python=sys.executable), *arguments]
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=DEADLINE)


@pytest.mark.slow
def test_the_script_finds_its_data_its_arguments_and_its_number(tmp_path: Path) -> None:
    """Inputs, outputs, arguments (exact, whatever they hold) and the instance's number reach the script."""
    root = container(tmp_path, {"prepare.py": SCRIPT})
    (root / "processing/input/raw/b.csv").touch()
    (root / "processing/input/raw/a.csv").touch()
    done = run(root, "prepare.py", arguments=("--size", "it's $HOME; *"))
    assert done.returncode == 0, done.stderr
    written = root / "processing/output/lists/1-of-2.txt"
    assert written.read_text() == "a.csv b.csv --size it's $HOME; *"
    assert not (root / "output/message").exists()


@pytest.mark.slow
def test_a_script_in_a_folder_imports_the_runtime(tmp_path: Path) -> None:
    """The bundle is on the path, wherever in it the script is."""
    root = container(tmp_path, {"steps/prepare.py": SCRIPT})
    assert run(root, "steps/prepare.py").returncode == 0


def test_a_failure_becomes_the_exit_message(tmp_path: Path) -> None:
    """The message names the instance, the exit code and the error, and the traceback is in the log too."""
    root = container(tmp_path, {"bad.py": "raise ValueError('no such volume \\u00e9')"})
    done = run(root, "bad.py")
    message = (root / "output/message").read_text("utf-8")
    assert done.returncode == 1
    assert message.startswith(
        "the script on algo-2 failed with exit code 1: ValueError: no such volume é\n"
    )
    assert "ValueError" in done.stderr


def test_a_message_is_at_most_a_kilobyte_of_whole_characters(tmp_path: Path) -> None:
    """The service keeps 1,024 bytes, and fails a job whose message is no UTF-8."""
    root = container(tmp_path, {"bad.py": "raise ValueError('\\u00e9' * 3000)"})
    run(root, "bad.py")
    data = (root / "output/message").read_bytes()
    assert 1000 < len(data) <= 1024
    data.decode("utf-8")


def test_the_scripts_own_message_stays(tmp_path: Path) -> None:
    """What the script wrote to the message file is not replaced."""
    script = f"open({str(tmp_path / 'output/message')!r}, 'w').write('mine'); raise SystemExit(3)"
    root = container(tmp_path, {"bad.py": script})
    assert run(root, "bad.py").returncode == 3
    assert (root / "output/message").read_text() == "mine"


def test_a_command_line_runs_in_a_shell(tmp_path: Path) -> None:
    """`--command` runs a shell line in the bundle's folder, with the instance's number in its environment."""
    root = container(tmp_path, {"x.txt": "data"})
    line = 'cat x.txt > "$CLOUDTRAIN_INPUT_RAW/copy-$CLOUDTRAIN_INSTANCE"'
    assert run(root, "--command", line).returncode == 0
    assert (root / "processing/input/raw/copy-1").read_text() == "data"


@pytest.mark.slow
def test_requirements_that_cannot_be_installed_are_the_message(tmp_path: Path) -> None:
    """pip's own error is the reason, and the script never starts."""
    root = container(
        tmp_path, {"ok.py": "open('ran', 'w')", "requirements.txt": "./no-such-folder\n"}
    )
    done = run(root, "--requirements", "requirements.txt", "ok.py")
    assert done.returncode == 1
    assert "`requirements.txt` cannot be installed: " in (root / "output/message").read_text()
    assert not (root / "processing/input/code/ran").exists()


def test_sigterm_reaches_the_script(tmp_path: Path) -> None:
    """A stopped job's script can save, and no reason is made up."""
    script = (
        "import signal, sys, time\n"
        "def leave(*_): open('saved', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(3600)\n"
    )
    root = container(tmp_path, {"slow.py": script})
    argv = container_entrypoint(["slow.py"], root=str(root), python=sys.executable)
    code, process = root / "processing/input/code", subprocess.Popen(argv, env=environment())
    deadline = time.monotonic() + DEADLINE
    while not (code / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=DEADLINE) == 0
    assert (code / "saved").exists()
    assert not (root / "output/message").exists()


def test_every_word_of_the_entry_point_fits_the_service() -> None:
    """CreateProcessingJob takes items of at most 256 characters without line breaks."""
    items = container_entrypoint(["--requirements", "requirements.txt", "prepare.py"])
    assert max(map(len, items)) <= 256
    assert not any("\n" in item for item in items)


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["a.py", "--x"], ["python3", "a.py", "--x"]),
        (["a.sh", "1"], ["/bin/sh", "a.sh", "1"]),
        (["bin/tool", "1"], ["bin/tool", "1"]),
        (["--command", "a | b"], ["/bin/sh", "-c", "a | b"]),
    ],
)
def test_what_starts_follows_the_suffix(words: list[str], argv: list[str]) -> None:
    """Python for `.py`, a shell for `.sh` and for command lines, and any other program itself."""
    assert script_argv(words) == argv


def test_instances_are_counted_in_the_order_of_their_hosts() -> None:
    """The number of an instance is its place in the list of hosts, which is the same on every instance."""
    hosts = ["algo-1", "algo-10", "algo-2"]
    found = variables_of({}, {"current_host": "algo-2", "hosts": hosts})
    here = detect_environment(found)
    assert (here.platform, here.node_rank, here.node_count) == ("sagemaker", 2, 3)
    assert (here.rank, here.world_size) == (0, 1)
