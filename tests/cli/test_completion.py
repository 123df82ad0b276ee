"""Completion as the shells ask for it: through the environment, one answer a line, silent whatever happens."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.store.schema import open_store
from tests.cli.conftest import Cli

REPOSITORY = Path(__file__).parents[2]


def complete(line: str, *, shell: str = "bash", process: bool = False) -> list[str]:
    """What the shell would offer at the end of `line`: from this process, or from one of its own as a shell starts it."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
    }[shell]
    asked["_CLOUDTRAIN_COMPLETE"] = f"complete_{shell}"
    if not process:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name, value in asked.items():
                patch.setenv(name, value)
            with suppress(SystemExit):
                run_command([])
        assert err.getvalue() == ""
        return [word for word in out.getvalue().splitlines() if word]
    environ = {**os.environ, **asked, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "cloudtrain"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


def test_commands_and_options() -> None:
    """Commands by their beginning, options of a command."""
    assert set(complete("cloudtrain st", process=True)) == {"status", "stop"}
    assert "--processes-per-instance" in complete("cloudtrain submit --pro", process=True)


def test_run_names(cli: Cli, scripted: Path, job: str) -> None:
    """The names of the store, and `last`."""
    name = cli("submit", job, "--detach").out.strip()
    assert complete("cloudtrain logs dig") == [name]
    assert complete("cloudtrain status ") == ["last", name]
    assert complete("cloudtrain stop x") == []


def test_only_sweeps_have_trials(cli: Cli, scripted: Path, job: str, state_dir: Path) -> None:
    """`trials` does not offer ordinary runs."""
    names = [cli("submit", job, "--detach").out.strip() for _ in range(2)]
    with open_store(state_dir) as store:
        row = store.get(names[0])
        assert row is not None
        store._db.execute("UPDATE runs SET key = ? WHERE name = ?", (f"sweep:{row.key}", names[0]))
    assert complete("cloudtrain trials ") == ["last", names[0]]
    assert complete("cloudtrain logs ") == ["last", *reversed(names)]


def test_fields_and_hyperparameters(cli: Cli, scripted: Path, job: str) -> None:
    """`--set` and `--each` take the fields of a job, and the hyperparameters that earlier runs had; so does `--where`."""
    assert complete("cloudtrain submit job.yaml --set resources.instance_t") == [
        "resources.instance_type="
    ]
    assert complete("cloudtrain plan job.yaml --set max_r") == ["max_runtime="]
    assert complete("cloudtrain plan job.yaml --set hyperp") == ["hyperparameters."]
    cli("submit", job, "--detach")
    assert complete("cloudtrain submit job.yaml --each hyperparameters.e") == [
        "hyperparameters.epochs="
    ]
    assert complete("cloudtrain ps --where e") == ["epochs"]


@pytest.mark.lifecycle
def test_metrics_to_keep_runs_by(clean_environment: Path) -> None:
    """`prune --by` takes the metrics that ended runs of this machine reported; with a minus, the lowest are kept."""
    assert complete("cloudtrain prune --keep 2 --by ") == []
    (clean_environment / "train.py").write_text("print('[metrics] step=1 accuracy=0.5 loss=2.0')\n")
    assert ct.submit(ct.TrainingJob(name="job", entry_point="train.py")).wait().state == "succeeded"
    assert complete("cloudtrain prune --keep 2 --by acc") == ["accuracy"]
    assert complete("cloudtrain prune --keep 2 --by=")[-3:] == ["-accuracy", "-loss", "-step"]


def test_job_files_and_folders(clean_environment: Path) -> None:
    """What may be a job: files with the right end, and folders to look into. Bundled scripts have a command."""
    (clean_environment / "jobs").mkdir()
    (clean_environment / "jobs" / "big.toml").write_text("")
    (clean_environment / "job.yaml").write_text("")
    (clean_environment / "joke.txt").write_text("")
    assert complete("cloudtrain submit jo") == ["job.yaml", "jobs/"]
    assert complete("cloudtrain plan jobs/") == ["jobs/big.toml"]
    assert complete("cloudtrain check bun") == []
    assert complete("cloudtrain scripts copy digits_d") == ["digits_ddp"]


def test_codes_targets_states_and_parts() -> None:
    """Everything else that has a list."""
    assert "CT101" in complete("cloudtrain explain CT1")
    assert complete("cloudtrain submit job.yaml --target sage") == ["sagemaker"]
    assert complete("cloudtrain ps --state fa") == ["failed"]
    assert complete("cloudtrain download last mod") == ["model/"]


def test_fish_and_zsh_answer_too() -> None:
    """The other shells' protocols give the same words."""
    assert [line.split("\t")[0] for line in complete("cloudtrain exp", shell="fish")] == ["explain"]
    assert '"digits_ddp"' in "".join(complete("cloudtrain scripts show dig", shell="zsh"))


def test_a_broken_store_is_silent(state_dir: Path) -> None:
    """Nothing is printed into the line that the user is typing, whatever state the store is in."""
    state_dir.mkdir()
    for file in ("runs.sqlite", "runs.db", "cloudtrain.db", "store.sqlite3"):
        (state_dir / file).write_text("no database")
    assert complete("cloudtrain logs dig", process=True) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("cloudtrain scr", "scripts"),
        ("cloudtrain scripts copy digits_dd", "digits_ddp"),
        ("cloudtrain explain CT10", "CT101 CT102"),
    ],
)
@pytest.mark.slow_after(1)
def test_bash_completes_with_the_installed_script(
    clean_environment: Path, words: str, answer: str
) -> None:
    """The script that `--show-completion` prints, read by bash."""
    binary = clean_environment / "bin"
    binary.mkdir()
    (binary / "cloudtrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cloudtrain "$@"\n')
    (binary / "cloudtrain").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{binary}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
    }
    script = (
        'eval "$(_CLOUDTRAIN_COMPLETE=source_bash cloudtrain)"\n'
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n"
        '_cloudtrain_completion cloudtrain; echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{answer}\n"
