"""`build_environment`: what a job requires is installed once, whole or not at all, and found by the script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cloudtrain as ct
from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE
from tests.locks import PROJECT, lock, package, write
from tests.wheels import write_uv, write_wheel

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A job that requires a package which only a folder has."""
    wheels = clean_environment / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(wheels, "ct-greeting", version, code=f"WORD = 'hello {version}'\n")
    folder = clean_environment / "project"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import ct_greeting, pydantic, sys\nprint(ct_greeting.WORD, sys.prefix)\n"
    )
    (folder / "requirements.txt").write_text(
        f"--no-index\n--find-links {wheels}\nct-greeting==1.0\n"
    )
    (folder / "job.yaml").write_text(
        "name: greets\nentry_point: train.py\nenvironment: {requirements: requirements.txt}\n"
    )
    os.chdir(folder)
    return folder


@pytest.fixture
def uv(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a uv on the PATH, its log, and `hold`, which makes it hang."""
    folder = clean_environment / "uv"
    for name, value in write_uv(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def environment_in(plan: ct.Plan) -> str:
    """The folder of a plan's environment."""
    return str(plan.request["environment"]["folder"])


def whole(state_dir: Path) -> list[Path]:
    """The environments that can be used."""
    return [item for item in (state_dir / "environments").glob("*") if item.is_symlink()]


def in_another_process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_it_is_built_where_packages_are_missing(cli: Cli, project: Path) -> None:
    """Or always, or never; and then the finding names the flag."""
    for words in ((), ("--build-environment",)):
        built = cli("plan", "job.yaml", "--short", *words)
        assert "LO207" not in built.out
        assert "/environments/" in built.out
    plain = cli("plan", "job.yaml", "--short", "--no-build-environment")
    assert "[LO207]" in plain.out
    assert "`--build-environment`" in " ".join(plain.out.split())
    assert "/environments/" not in plain.out
    (project / "requirements.txt").write_text("pydantic\n")
    assert "/environments/" not in cli("plan", "job.yaml", "--short").out
    assert "/environments/" in cli("plan", "job.yaml", "--short", "--build-environment").out


def test_what_the_plan_says(project: Path, state_dir: Path) -> None:
    """The environment is in the request and in every command line; another requirement or interpreter is another one,
    another script is not."""
    here = ct.Local(build_environment=True)

    def folder(target: ct.Local = here) -> str:
        return environment_in(ct.plan(ct.load_job("job.yaml"), target))

    plan = ct.plan(ct.load_job("job.yaml"), here)
    first = folder()
    assert plan.processes[0].argv[0] == f"{first}/bin/python"
    assert first.startswith(f"{state_dir}/environments/")
    assert not state_dir.exists()
    (project / "train.py").write_text("print(1)\n")
    assert folder() == first
    (project / "more.txt").write_text("")
    with (project / "requirements.txt").open("a") as file:
        file.write("-r more.txt\n")
    second = folder()
    (project / "more.txt").write_text("pydantic\n")
    assert (
        len({first, second, folder(), folder(ct.Local(build_environment=True, python="/bin/sh"))})
        == 4
    )
    assert folder(ct.Local()) == folder()
    assert (
        "environment"
        not in ct.plan(ct.load_job("job.yaml"), ct.Local(build_environment=False)).request
    )


def test_files_of_the_bundle_are_part_of_it(project: Path) -> None:
    """Where the requirements install the code itself, another code is another environment."""
    (project / "requirements.txt").write_text("./package\n")
    (project / "package").mkdir()
    (project / "package" / "setup.py").write_text("")
    here = ct.Local(build_environment=True)
    first = environment_in(ct.plan(ct.load_job("job.yaml"), here))
    (project / "train.py").write_text("print(1)\n")
    assert environment_in(ct.plan(ct.load_job("job.yaml"), here)) != first


EMULATED = """\
name: greets
entry_point: train.py
environment: {requirements: requirements.txt, framework: pytorch, version: "2.8"}
resources: {instance_type: {sagemaker: ml.g5.2xlarge, azureml: Standard_NC4as_T4_v3}}
"""


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "settings"),
    [("sagemaker", 'launch = "toolkit"'), ("sagemaker", 'launch = "entrypoint"'), ("azureml", "")],
)
def test_an_emulation_runs_in_it(
    cli: Cli, project: Path, state_dir: Path, uv: Path, service: str, settings: str
) -> None:
    """In both launch modes; the launcher itself installs nothing."""
    (project / "job.yaml").write_text(EMULATED)
    (project / "cloudtrain.toml").write_text(f"[{service}]\n{settings}\n")
    result = cli("submit", "job.yaml", "--emulate", service)
    assert result.code == 0, result.err
    (link,) = whole(state_dir)
    assert f"hello 1.0 {link}\n" in result.out
    assert (uv / "log").read_text().splitlines() == ["venv", "pip"]
    assert "not installed" not in result.out + result.err


SWEEP = """\
kind: sweep
name: greets
strategy: grid
job: {entry_point: train.py, environment: {requirements: requirements.txt}, hyperparameters: {lr: 1}}
search: {lr: [1, 2]}
"""


@pytest.mark.lifecycle
@pytest.mark.slow
def test_the_trials_of_a_sweep_run_in_it(
    cli: Cli, project: Path, state_dir: Path, uv: Path
) -> None:
    """It is built when the sweep is submitted."""
    (project / "train.py").write_text("import ct_greeting, sys\nprint(sys.prefix)\n")
    (project / "sweep.yaml").write_text(SWEEP)
    result = cli("submit", "sweep.yaml")
    assert result.code == 0, result.err
    (link,) = whole(state_dir)
    assert (uv / "log").read_text().splitlines() == ["venv", "pip"]
    for number in (1, 2):
        (name,) = [
            run["name"]
            for run in json.loads(cli("ps", "--all", "--trials", "--json").out)
            if run["name"].endswith(f"t00{number}")
        ]
        assert f"{link}" in cli("logs", name).out


REHEARSED = """\
import ct_greeting, sys
from cloudtrain import runtime
checkpoints = runtime.Checkpoints()
loaded = checkpoints.load()
runtime.watch_for_stop()
for step in range(loaded.state + 1 if loaded else 1, 9):
    runtime.report(step=step, loss=1 / step)
    if runtime.should_stop():
        checkpoints.save(step, step)
        runtime.exit_preempted(step)
"""


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_rehearsal_and_a_run_again_run_in_it(
    cli: Cli, project: Path, state_dir: Path, uv: Path
) -> None:
    """All runs of a rehearsal; and a run again with another value, which has the environment of the first."""
    (project / "train.py").write_text(REHEARSED)
    result = cli("rehearse", "job.yaml")
    assert result.code == 0, result.err
    assert "same: " in result.out
    again = cli("rerun", "last", "--set", "environment.variables.A=1")
    assert again.code == 0, again.err
    assert (uv / "log").read_text().splitlines() == ["venv", "pip"]
    assert len(whole(state_dir)) == 1


def test_a_lock_and_a_block_are_built_without_a_flag(cli: Cli, project: Path) -> None:
    """What lies beside the script decides, as in a cloud."""
    (project / "requirements.txt").unlink()
    block = '# /// script\n# dependencies = ["ct-greeting"]\n# ///\n'
    (project / "tool.py").write_text(f"{block}import ct_greeting\n")
    assert "/environments/" in cli("plan", "--short", "tool.py").out
    greeting = package("ct-greeting", "1.0")
    own = PROJECT.format(dependencies='"ct-greeting"')
    write(project, {"uv.lock": lock(['name = "ct-greeting"'], [greeting]), "pyproject.toml": own})
    shown = cli("plan", "--short", "train.py").out
    assert "/environments/" in shown
    assert "`requirements.txt` on top of what" in " ".join(shown.split())


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.usefixtures("without_uv")
def test_pip_builds_once(cli: Cli, project: Path, state_dir: Path) -> None:
    """The script finds what it requires, and what the interpreter below has; the second run builds nothing."""
    first = cli("submit", "job.yaml", "--build-environment")
    assert first.code == 0, first.err
    (link,) = whole(state_dir)
    assert first.out == f"[rank 0] hello 1.0 {link}\n"
    assert "building an environment from `requirements.txt` with pip" in " ".join(first.err.split())
    inode = (link / "pyvenv.cfg").stat().st_ino
    second = cli("submit", "job.yaml", "--build-environment")
    assert (second.code, second.out) == (0, first.out)
    assert "building" not in second.err
    assert (link / "pyvenv.cfg").stat().st_ino == inode
    assert not list((state_dir / "environments").glob("*/source"))


@pytest.mark.slow
@pytest.mark.lifecycle
def test_uv_builds_where_it_is_installed(
    cli: Cli, project: Path, state_dir: Path, uv: Path
) -> None:
    """The setting does what the flag does."""
    (project / "cloudtrain.toml").write_text("[local]\nbuild_environment = true\n")
    result = cli("submit", "job.yaml")
    assert result.code == 0, result.err
    assert "with uv" in " ".join(result.err.split())
    assert (uv / "log").read_text().splitlines() == ["venv", "pip"]
    assert result.out.startswith("[rank 0] hello 1.0 ")


@pytest.mark.lifecycle
@pytest.mark.slow
def test_what_cannot_be_installed_stops_the_submit(
    cli: Cli,
    project: Path,
    state_dir: Path,
    uv: Path,
) -> None:
    """The error has the installer's reason and the log; nothing half made and no run is left, and mending helps."""
    text = (project / "requirements.txt").read_text()
    (project / "requirements.txt").write_text(text.replace("1.0", "3.0"))
    result = cli("submit", "job.yaml", "--build-environment")
    assert result.code == 4
    said = " ".join(result.err.split())
    assert (
        "`requirements.txt` cannot be installed: Could not find a version that satisfies the requirement ct-greeting==3.0"
        in said
    )
    assert "[CT953]" in said
    assert "`--no-build-environment` runs with the interpreter as it is" in said
    assert whole(state_dir) == []
    assert [item.suffix for item in sorted((state_dir / "environments").iterdir())] == [
        ".lock",
        ".log",
    ]
    assert json.loads(cli("ps", "--all", "--json").out) == []
    (project / "requirements.txt").write_text(text.replace("1.0", "2.0"))
    assert cli("submit", "job.yaml", "--build-environment").out.startswith("[rank 0] hello 2.0 ")


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_is_used(
    cli: Cli,
    project: Path,
    state_dir: Path,
    uv: Path,
) -> None:
    """kill -9 in the middle: the next submit builds a whole one, and `prune` removes the rest after a day."""
    (uv / "hold").touch()
    submit = in_another_process("submit", "job.yaml", "--build-environment", "--detach")
    deadline = time.monotonic() + DEADLINE
    while not (uv / "log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(submit.pid, signal.SIGKILL)
    submit.communicate()
    (left,) = [item for item in (state_dir / "environments").iterdir() if item.is_dir()]
    (uv / "hold").unlink()
    assert cli("submit", "job.yaml", "--build-environment").code == 0
    (link,) = whole(state_dir)
    assert left != link.resolve().parent
    os.utime(left, (0, 0))
    assert cli("prune", "--older-than", "30d").code == 0
    assert not left.exists()
    assert (link / "bin" / "python").exists()


@pytest.mark.lifecycle
@pytest.mark.slow
def test_two_at_once_build_once(project: Path, state_dir: Path, uv: Path) -> None:
    """The second waits for the first, and both run."""
    commands = [
        in_another_process("submit", "job.yaml", "--build-environment", "--set", f"name={name}")
        for name in ("one", "two")
    ]
    outputs = [command.communicate(timeout=DEADLINE) for command in commands]
    assert [command.returncode for command in commands] == [0, 0], outputs
    assert (uv / "log").read_text().splitlines() == ["venv", "pip"]
    assert all(out.startswith("[rank 0] hello 1.0 ") for out, _ in outputs)


@pytest.mark.lifecycle
@pytest.mark.slow
def test_prune_removes_what_no_submit_has_asked_for(
    cli: Cli,
    project: Path,
    state_dir: Path,
    uv: Path,
) -> None:
    """After two weeks, with its log and lock; a submit makes it young again."""
    assert cli("submit", "job.yaml", "--build-environment").code == 0
    (link,) = whole(state_dir)
    home = link.resolve().parent
    os.utime(home, (0, 0))
    assert cli("submit", "job.yaml", "--build-environment").code == 0
    assert home.stat().st_mtime > 0
    os.utime(home, (0, 0))
    assert cli("prune", "--older-than", "30d").code == 0
    assert list((state_dir / "environments").iterdir()) == []


@pytest.mark.slow
def test_an_installer_does_not_flood_the_terminal(
    cli: Cli, project: Path, uv: Path, state_dir: Path
) -> None:
    """Its lines are in the log; of many in a moment, at most one is printed."""
    program = uv / "uv"
    lines = "if arguments[0] == 'pip':\n    print(*(f'Collecting package{n}' for n in range(99)), sep='\\n', flush=True)\n"
    program.write_text(
        program.read_text().replace("if arguments[0] ==", f"{lines}if arguments[0] ==", 1)
    )
    result = cli("submit", "job.yaml", "--build-environment")
    assert result.code == 0, result.err
    assert "building an environment from `requirements.txt` with uv" in result.err
    assert result.err.count("Collecting") <= 1
    [log] = (state_dir / "environments").glob("*.log")
    assert log.read_text().count("Collecting package") == 99


@pytest.mark.skipif(shutil.which("yes") is None, reason="there is no program `yes`")
def test_a_program_that_writes_for_ever_is_no_python(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan asks the setting's interpreter for its packages. It reads the beginning of an answer, and needs no timer
    to stop a program that never ends."""
    monkeypatch.setattr("cloudtrain.targets.local.rules._PATIENCE", 3600.0)
    (clean_environment / "train.py").write_text("import torch\n")
    (clean_environment / "requirements.txt").write_text("torch\n")
    environment = ct.Environment(requirements="requirements.txt")
    job = ct.TrainingJob(name="j", source_dir=".", entry_point="train.py", environment=environment)
    assert ct.plan(job, ct.Local(python=shutil.which("yes"))).run_name.startswith("j-")
