"""Finding runs and lines again: `last`, tags and hyperparameters, and what `logs` selects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.cli.test_runs import fate, submitted

CLOUDTRAIN = [sys.executable, "-m", "cloudtrain"]


def in_another_terminal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a session of its own, as a second terminal is, with the real local target."""
    return subprocess.run(
        [*CLOUDTRAIN, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a job whose run goes on until it is stopped."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    (folder / "job.yaml").write_text("name: long\nentry_point: train.py\n")
    return folder


@pytest.mark.lifecycle
@pytest.mark.slow
def test_last_is_of_this_folder_and_terminal(
    project: Path, tmp_path: Path, clean_environment: Path
) -> None:
    """Another terminal's newer run in the same folder is not this terminal's `last`; a third terminal's `last` is the
    newest of the folder; from another folder, or one above, `stop last` stops nothing that nobody named."""
    os.chdir(project)
    first = ct.submit(ct.load_job("job.yaml"))
    second = in_another_terminal(
        project, "submit", "job.yaml", "--detach", "--set", "hyperparameters.a=1"
    ).stdout.strip()
    assert second not in ("", first.name)
    try:
        assert ct.run("last").name == first.name
        assert (
            json.loads(in_another_terminal(project, "status", "last", "--json").stdout)["name"]
            == second
        )
        (tmp_path / "elsewhere").mkdir()
        refused = in_another_terminal(tmp_path / "elsewhere", "stop", "last")
        assert refused.returncode == 6
        assert f"`{second}`, from `{project}`" in " ".join(refused.stderr.split())
        assert f"`cloudtrain stop {second}`" in refused.stderr
        # such as a new terminal in the home folder
        above = in_another_terminal(tmp_path, "stop", "last")
        assert (above.returncode, f"`cloudtrain stop {second}`" in above.stderr) == (6, True)
        assert not ct.run(second).state.is_final
        assert in_another_terminal(project, "stop", "last", "--wait").returncode == 0
        assert ct.run(second).state.is_final
        assert not ct.run("last").state.is_final
    finally:
        for name in (first.name, second):
            ct.run(name).stop()
            ct.run(name).wait()


def test_last_of_a_job_file_below(
    cli: Cli, scripted: Path, clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run counts for the folder of its job file and for the folders above it; the newest of all is the last resort,
    which says where it is from."""
    for name in ("one", "two"):
        folder = clean_environment / name
        folder.mkdir()
        (folder / "train.py").write_text("print(1)\n")
        (folder / "job.yaml").write_text(f"name: {name}\nentry_point: train.py\n")
    runs = {
        name: cli("submit", f"{name}/job.yaml", "--detach").out.strip() for name in ("one", "two")
    }
    for folder, expected in (("one", "one"), ("two", "two"), (".", "two")):
        monkeypatch.chdir(clean_environment / folder)
        result = cli("status", "last", "--json")
        assert json.loads(result.out)["name"] == runs[expected]
        assert result.err == ""
    (clean_environment / "three").mkdir()
    monkeypatch.chdir(clean_environment / "three")
    result = cli("status", "last", "--json")
    assert json.loads(result.out)["name"] == runs["two"]
    assert "no run was submitted from this folder" in result.err


def test_labels(cli: Cli, scripted: Path, job: str) -> None:
    """Runs are found by their tags and by comparisons with their hyperparameters, numbers compared as numbers."""
    rates = ["0.1", "0.02", "1e-3"]
    names = {
        rate: submitted(
            cli, "--set", f"hyperparameters.lr={rate}", "--set", f"tags.team=t{len(rate)}"
        )
        for rate in rates
    }

    def found(*options: str) -> list[str]:
        return [item["name"] for item in json.loads(cli("ps", "--json", *options).out)]

    assert found("--where", "lr<0.05") == [names["1e-3"], names["0.02"]]
    assert found("--where", "lr>=0.02", "--where", "lr < 0.05") == [names["0.02"]]
    assert found("--where", "lr=0.001") == [names["1e-3"]]
    assert found("--where", "epochs=2") == [names[rate] for rate in reversed(rates)]
    assert found("--where", "epochs!=2") == []
    assert found("--tag", "team=t3") == [names["0.1"]]
    assert found("--tag", "team=t3", "--where", "lr<0.05") == []
    assert "no run matches" in cli("ps", "--tag", "team=none").err
    for wrong in (["--where", "lr"], ["--tag", "team"], ["--target", "local", "--tag", "a=b"]):
        result = cli("ps", *wrong)
        assert (result.code, "hint: " in result.err) == (2, True)


def test_labels_hold_no_secret(cli: Cli, scripted: Path, job: str, state_dir: Path) -> None:
    """A secret among the hyperparameters is not written to the run store."""
    secret = "hf_" + "kRtB3mQz8WvX1cNy5LpD7sFgH2jK9aEu4T"
    cli("submit", job, "--detach", "--set", f"hyperparameters.token={secret}", "--ignore", "CT305")
    assert all(secret.encode() not in file.read_bytes() for file in state_dir.rglob("runs.db*"))


LINES = [
    [0, "INFO starting"],
    [0, "UserWarning: slow"],
    [1, "Traceback (most recent call last):"],
    [1, '  File "train.py", line 3, in <module>'],
    [0, "step=4 loss=0.25"],
    [1, "ValueError: no"],
    [1, "bye"],
]


def test_selected_lines(cli: Cli, scripted: Path, job: str) -> None:
    """`--grep`, `--level` and `--since` choose lines; `--tail` counts what they chose; a traceback is one error."""
    fate(scripted, lines=LINES)
    name = submitted(cli)

    def lines(*options: str) -> list[str]:
        return cli("logs", name, "--no-prefix", *options).out.splitlines()

    texts = [text for _, text in LINES]
    assert lines("--grep", r"loss=\d") == ["step=4 loss=0.25"]
    assert lines("--level", "error") == [texts[2], texts[3], texts[5]]
    assert lines("--level", "warning") == [texts[1], texts[2], texts[3], texts[5]]
    assert lines("--level", "error", "--tail", "1") == ["ValueError: no"]
    # the first line is of second 100.25
    assert lines("--since", "1970-01-01T00:01:44+00:00") == texts[4:]
    assert lines("--since", "1m") == []
    assert lines("--grep", "e", "--rank", "0", "--level", "warning") == ["UserWarning: slow"]
    followed = cli("logs", name, "--no-prefix", "-f", "--grep", "bye|starting", "--tail", "1")
    assert followed.out.splitlines() == ["bye"]
    for wrong in (["--grep", "("], ["--since", "yesterday"], ["--level", "loud"]):
        result = cli("logs", name, *wrong)
        assert result.code == 2
        assert "Traceback" not in result.err


def test_a_rank_without_output(cli: Cli, scripted: Path, job: str) -> None:
    """A rank that the run does not have is answered in words, on stderr."""
    fate(scripted, lines=LINES)
    name = submitted(cli)
    result = cli("logs", name, "--rank", "7")
    assert (result.code, result.out, result.err) == (0, "", f"`{name}` has no output of rank 7\n")
    assert cli("logs", name, "--rank", "1").err == ""
