"""stdout and stderr that are full, closed, or of a poor encoding; and Ctrl-C before there is a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

Shell = Callable[..., subprocess.CompletedProcess[str]]

SCRIPTED = """\
import sys
from cloudtrain.system import plugins as targets
from cloudtrain.cli import main
from tests.cli.scripted import ScriptedTarget
targets.LOADED["local"] = ScriptedTarget()
main()
"""

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """`shell("ps >&-")` runs a command line of `cloudtrain` in a shell, with its redirections."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    program = tmp_path / "program.py"
    program.write_text(SCRIPTED)

    def run(
        line: str, *, setting: str = "", stdout: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        command = f"exec env {setting} '{sys.executable}' {program} {line}"
        done = subprocess.run(
            ["sh", "-c", command],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        return done

    return run


@pytest.mark.slow
@full
@pytest.mark.parametrize(
    "line", ["--version", "explain", "explain --json", "plan job.yaml", "scripts show digits_ddp"]
)
def test_full_stdout_is_an_error_that_says_so(
    shell: Shell, scripted: Path, job: str, line: str
) -> None:
    """Code 74 and one error with a hint, whether the output is a line or a page."""
    done = shell(f"{line} >/dev/full")
    assert done.returncode == 74
    assert done.stderr.startswith(
        "error: stdout cannot be written: No space left on device [CT907]\n\nhint: "
    )
    assert done.stderr.count("error: ") == 1


@full
@pytest.mark.parametrize(
    "line", ["submit job.yaml -d", "submit job.yaml -d --json", "submit job.yaml"]
)
@pytest.mark.slow_after(1)
def test_a_run_that_was_sent_is_named_although_stdout_is_full(
    shell: Shell, scripted: Path, job: str, line: str
) -> None:
    """The run costs money, so stderr has its name and how to stop it."""
    (scripted / "fate.json").write_text(json.dumps({"lines": [[0, "begin"]]}))
    done = shell(f"{line} >/dev/full")
    (sent,) = (scripted / "jobs").iterdir()
    assert done.returncode == 74
    assert f"`{sent.name}` continues" in done.stderr
    assert f"`cloudtrain stop {sent.name}`" in done.stderr
    assert "error: stdout cannot be written: No space left on device" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("line", ["submit job.yaml -d --json", "submit job.yaml"])
def test_a_run_that_was_sent_is_named_although_nobody_reads(
    shell: Shell, scripted: Path, job: str, line: str
) -> None:
    """The reader of stdout is gone: code 141, and stderr has the name."""
    (scripted / "fate.json").write_text(json.dumps({"lines": [[0, "begin"]]}))
    reading, writing = os.pipe()
    os.close(reading)
    done = shell(line, stdout=writing)
    os.close(writing)
    (sent,) = (scripted / "jobs").iterdir()
    assert done.returncode == 141
    assert f"`{sent.name}` continues" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--version >&-", 0),
        ("explain >&-", 0),
        ("--version >&- 2>&- <&-", 0),
        ("plan job.yaml >&-", 0),
        ("plan nope.yaml 2>&-", 2),
        ("status nothing 2>&- >&-", 3),
        pytest.param("plan nope.yaml 2>/dev/full", 2, marks=full),
        pytest.param("plan job.yaml 2>/dev/full", 0, marks=full),
    ],
)
@pytest.mark.slow_after(2)
def test_a_stream_that_nobody_wants_changes_no_exit_code(
    shell: Shell, scripted: Path, job: str, line: str, code: int
) -> None:
    """Closed streams, and a stderr that is full, lead nowhere; the command does what it does otherwise."""
    assert shell(line).returncode == code


@pytest.mark.slow
def test_a_submit_without_stdout_keeps_the_store_whole(
    shell: Shell, scripted: Path, job: str
) -> None:
    """A closed descriptor is not given to the next file that is opened, such as the store."""
    assert shell("submit job.yaml -d >&- 2>&-").returncode == 0
    (sent,) = (scripted / "jobs").iterdir()
    assert [run["name"] for run in json.loads(shell("ps --json").stdout)] == [sent.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    ["PYTHONIOENCODING=ascii", "LC_ALL=POSIX PYTHONCOERCECLOCALE=0 PYTHONUTF8=0"],
)
@pytest.mark.slow_after(1)
def test_any_encoding_takes_any_character(
    shell: Shell, scripted: Path, job: str, setting: str
) -> None:
    """What ASCII lacks is escaped as in JSON: in plans, in logs, and in what `--json` prints, which stays JSON."""
    (scripted / "fate.json").write_text(json.dumps({"lines": [[0, "é \N{ROCKET}"]]}))
    assert shell("submit job.yaml -d").returncode == 0

    def printed(line: str) -> str:
        done = shell(line, setting=setting)
        assert (done.returncode, done.stderr) == (0, "")
        return str(done.stdout)

    assert printed("logs last") == "[rank 0] \\u00e9 \\ud83d\\ude80\n"
    assert json.loads(printed("logs last --json"))["text"] == "é \N{ROCKET}"
    Path(job).write_text(
        "name: digits\nentry_point: train.py\nhyperparameters: {name: é}\n", encoding="utf-8"
    )
    assert "\\u00e9" in printed("plan job.yaml")
    plan = json.loads(printed("plan job.yaml --json"))
    assert "é" in json.dumps(plan, ensure_ascii=False)


@pytest.mark.slow
def test_a_name_that_is_no_text_is_printed(shell: Shell, scripted: Path, job: str) -> None:
    """A file name may hold any bytes; it is escaped, not a defect."""
    folder = b"\xff"
    Path(os.fsdecode(folder)).mkdir()
    done = shell("scripts copy digits_ddp $(printf '\\377')/mine")
    assert (done.returncode, done.stdout) == (0, "\\udcff/mine\n")


@pytest.mark.parametrize(
    "module", ["cloudtrain.cli.app", "cloudtrain.system.processes", "cloudtrain.cli.commands.plan"]
)
def test_ctrl_c_while_the_program_is_read(clean_environment: Path, module: str) -> None:
    """Code 130 and not a word, however early the signal comes."""
    program = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from cloudtrain.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "explain"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
