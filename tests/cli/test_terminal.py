"""On a real terminal: the live table, colour, NO_COLOR, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE

REPOSITORY = Path(__file__).parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

PROGRAM = (
    "import sys; from cloudtrain.system import plugins as targets; from tests.cli.scripted import ScriptedTarget;"
    "targets.LOADED['local'] = ScriptedTarget();"
    "from cloudtrain.cli.app import run_command; sys.exit(run_command(sys.argv[1:]))"
)


@pytest.fixture
def terminal(scripted: Path) -> Iterator[object]:
    """`terminal("ps", NO_COLOR="1")` runs a command in a terminal of 80 columns; returns its output and exit code."""
    children: list[pexpect.spawn[str]] = []

    def run(*arguments: str, **environ: str) -> tuple[str, int]:
        settings = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        child = pexpect.spawn(
            sys.executable,
            ["-c", PROGRAM, *arguments],
            env={**settings, "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), **environ},  # type: ignore[arg-type]
            dimensions=(24, 80),
            encoding="utf-8",
            timeout=DEADLINE,
        )
        children.append(child)
        child.expect(pexpect.EOF)
        child.close()
        return child.before or "", child.exitstatus if child.exitstatus is not None else -1

    yield run
    for child in children:
        child.close(force=True)


def fate(service: Path, **fields: object) -> None:
    """Decide what becomes of every run."""
    (service / "fate.json").write_text(json.dumps(fields))


def lines_with_metrics(steps: int) -> list[list[object]]:
    """Output of two ranks, and a loss that falls."""
    return [
        [0, "begin"],
        *([0, f"[metrics] step={step} loss={1 / (step + 1):.3f}"] for step in range(steps)),
        [1, "end"],
    ]


@pytest.mark.slow
def test_metrics_are_a_table_below_the_lines(terminal: object, scripted: Path, job: str) -> None:
    """Metric lines do not scroll by; the last values and the course over the whole width stay on the screen."""
    fate(scripted, lines=lines_with_metrics(30))
    output, code = terminal("submit", job)  # type: ignore[operator]
    text = ESCAPE.sub("", output)
    assert code == 0
    assert "[metrics]" not in text
    assert "[rank 0] begin" in text
    assert "[rank 1] end" in text
    assert "step 29  1 steps/s" in text
    last = text[text.rindex("loss  0.033  min 0.033  max 1  log scale") :]
    assert any(len(line.rstrip()) == 80 and "⣀" in line for line in last.splitlines())
    assert "succeeded after 12s: loss 0.033 (step 29)" in " ".join(text.split())


@pytest.mark.slow
def test_what_it_waits_for_is_there_before_the_first_line(
    terminal: object, scripted: Path, job: str
) -> None:
    """A run without any output: the screen says what is going on, and nothing of it stays."""
    fate(scripted, states={}, lines=[])
    output, code = terminal("submit", job)  # type: ignore[operator]
    assert code == 0
    assert "asking for the run's state" in output
    assert "waiting" not in ESCAPE.sub("", output[output.rindex("succeeded") :])


@pytest.mark.slow
def test_colour_on_a_terminal_and_never_with_no_color(
    terminal: object, scripted: Path, job: str
) -> None:
    """Ranks and states are coloured on a terminal; NO_COLOR turns every colour off and changes no word."""
    fate(scripted, lines=[[0, "begin"], [1, "end"]])
    assert "\x1b[36m" in terminal("submit", job)[0]  # type: ignore[operator]
    coloured, plain = terminal("status", "last")[0], terminal("status", "last", NO_COLOR="1")[0]  # type: ignore[operator]
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert ESCAPE.sub("", coloured) == plain
    following = terminal("logs", "last", "-f", NO_COLOR="1")[0]  # type: ignore[operator]
    assert not re.search(r"\x1b\[[0-9;]*m", re.sub(r"\x1b\[0m", "", following))


@pytest.mark.slow
def test_dumb_terminal_gets_plain_lines(terminal: object, scripted: Path, job: str) -> None:
    """TERM=dumb: no live table, no escape sequence at all."""
    fate(scripted, lines=lines_with_metrics(3))
    output, code = terminal("submit", job, TERM="dumb")  # type: ignore[operator]
    assert code == 0
    assert "\x1b" not in output
    assert "[rank 0] [metrics] step=2 loss=0.333" in output


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "ends"), [("y", 0), ("n", 6)])
def test_last_of_another_folder_is_stopped_only_after_a_yes(
    cli: Cli,
    scripted: Path,
    job: str,
    clean_environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    ends: int,
) -> None:
    """`stop last` names the run that it would stop, and the folder that it was submitted from."""
    fate(scripted, state="running")
    assert cli("submit", job, "--detach").code == 0
    (run,) = json.loads(cli("ps", "--json").out)
    other = clean_environment / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "stop", "last"],
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(REPOSITORY)},  # type: ignore[arg-type]
        dimensions=(24, 200),
        encoding="utf-8",
        timeout=DEADLINE,
    )
    try:
        child.expect_exact(f"stop `{run['name']}`? [y/N]: ")
        assert f"`last` is `{run['name']}`, from `{clean_environment}`" in " ".join(
            (child.before or "").split()
        )
        assert not (scripted / "stopped").exists()
        child.sendline(answer)
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == ends
    assert (scripted / "stopped").exists() == (answer == "y")
    if answer == "n":
        assert "nothing was done [CT924]" in " ".join((child.before or "").split())


@pytest.mark.slow
def test_everything_fits_a_terminal_of_80_columns(
    terminal: object, cli: Cli, scripted: Path, job: str
) -> None:
    """Tables and messages keep to the width, for a run with the longest name that there can be."""
    fate(scripted, state="failed", reason="rank 1 exited with 1: " + "word " * 20, failed_rank=1)
    cli("submit", job, "--detach", "--set", f"name={'a' * 40}")
    for arguments in (
        ("ps", "-a"),
        ("wait", "last"),
        ("status", "last"),
        ("explain",),
        ("scripts", "list"),
    ):
        for line in terminal(*arguments, NO_COLOR="1")[0].splitlines():  # type: ignore[operator]
            # commands and paths are never broken
            whole = "`cloudtrain logs a" in line or "/runs/a" in line
            assert len(line) <= 80 or whole, line


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(terminal: object, scripted: Path, job: str) -> None:
    """The live table is put away, the cursor comes back, and the run goes on."""
    fate(scripted, lines=lines_with_metrics(5), interrupt=True, state="running")
    output, code = terminal("submit", job)  # type: ignore[operator]
    name = next((scripted / "jobs").iterdir()).name
    assert code == 130
    text = ESCAPE.sub("", output)
    assert f"`{name}` continues" in text
    assert f"`cloudtrain stop {name}`" in text
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    assert not (scripted / "stopped").exists()


@pytest.mark.slow
def test_what_changed_since_the_last_run(terminal: object, job: str) -> None:
    """In at most three lines, before the run is sent; nothing the first time, when nothing changed, or with --quiet."""
    assert callable(terminal)
    first, _ = terminal("submit", job, "--detach")
    assert "since" not in first
    assert "since" not in terminal("submit", job, "--detach")[0]
    Path("train.py").write_text("print(1)\nprint(2)\n")
    changed = ("--set", "hyperparameters.epochs=5")
    assert (
        "since"
        not in terminal("submit", job, "--detach", "--quiet", *changed, "--set", "name=other")[0]
    )
    text = ESCAPE.sub("", terminal("submit", job, "--detach", *changed)[0])
    assert re.search(
        r"since digits-[0-9a-f]{8}-2: epochs 2 -> 5; train.py \+1 -0", " ".join(text.split())
    )
    for number in range(60):
        Path(f"a_file_of_code_{number}.py").write_text("1")
    lines = ESCAPE.sub("", terminal("submit", job, "--detach", *changed)[0]).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("since"))
    assert lines[start + 3] == ""
    assert " more: cloudtrain diff digits-" in " ".join(lines[start : start + 3])
