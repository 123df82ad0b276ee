"""A dry run runs nothing, sends nothing, writes nothing and opens no socket; twice it prints the same bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.errors import SettingsError
from tests.deadlines import DEADLINE
from tests.hints import suggested

WATCHED = """
import sys
seen = []
def hook(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        seen.append((event, args))
    if event in ("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "os.exec"):
        seen.append((event, args))
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"):
        seen.append((event, args))
    if event == "open":
        path, mode, flags = args
        import os
        if (mode and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.append((event, args))
sys.addaudithook(hook)
import runpy
sys.argv = ["cloudtrain", *sys.argv[1:]]
try:
    from cloudtrain.cli import main
    main()
finally:
    print(seen, file=sys.stderr)
"""


def dry_run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a hook that writes down what it did to the world."""
    command = [sys.executable, "-B", "-c", WATCHED, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)


@pytest.fixture
def job_file(make_source: Callable[..., Path]) -> Path:
    """A job in a folder with a blank and a quote in its name."""
    source = make_source({"train.py": "raise SystemExit('must not run')\n"}, name="it's a folder")
    file = source / "job.yaml"
    file.write_text(
        "name: job\nentry_point: train.py\nhyperparameters: {lr: 1e-3, text: \"a 'b' $c\"}\n"
    )
    return file


@pytest.mark.parametrize("argv", [("submit", "--dry-run"), ("plan",), ("check",)])
@pytest.mark.slow_after(1)
def test_a_dry_run_changes_nothing(
    argv: tuple[str, ...], job_file: Path, clean_environment: Path
) -> None:
    """No file written, no folder made, no process started, no socket opened; with and without a store."""
    for _ in range(2):
        result = dry_run(argv[0], str(job_file), *argv[1:])
        assert result.returncode == 0, result.stderr
        assert result.stderr.splitlines()[-1] == "[]"
        other = ct.TrainingJob(
            name="other", source_dir=str(job_file.parent), entry_point="train.py"
        )
        ct.submit(other, "local").wait(DEADLINE)


@pytest.mark.parametrize("argv", [("submit", "--dry-run"), ("plan",), ("check", "--offline")])
@pytest.mark.slow_after(1)
def test_a_dry_run_for_sagemaker_asks_nobody(
    argv: tuple[str, ...], job_file: Path, clean_environment: Path
) -> None:
    """Credentials or not: no socket is opened, nothing is written, and boto3 is not even imported."""
    settings = job_file.parent / "cloudtrain.toml"
    settings.write_text(
        '[sagemaker]\nrole = "arn:aws:iam::123456789012:role/train"\nregion = "eu-west-1"\n'
    )
    job_file.write_text(
        "name: job\nentry_point: train.py\nenvironment: {framework: pytorch, version: '2.8'}\n"
        "resources: {instance_type: {sagemaker: ml.m5.xlarge}}\nmax_runtime: 1h\n"
    )
    for name in (".aws", ".aws/credentials"):
        path = clean_environment / name
        path.mkdir() if name == ".aws" else path.write_text(
            "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
        )
    result = dry_run(argv[0], str(job_file), "--target", "sagemaker", *argv[1:])
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_dry_run_prints_the_same_bytes_twice(job_file: Path) -> None:
    """Text and JSON, from two processes."""
    for extra in ((), ("--json",)):
        one, two = (dry_run("submit", str(job_file), "--dry-run", *extra) for _ in range(2))
        assert one.stdout == two.stdout
        assert one.stdout


def test_the_dry_run_names_the_run_that_a_submit_makes(job_file: Path) -> None:
    """The name in the plan is the name of the run, and the request printed is what the supervisor got, byte for byte."""
    job = ct.load_job(job_file)
    plan = ct.plan(job)
    printed = dry_run("plan", str(job_file), "--format", "request").stdout
    run = ct.submit(job)
    assert run.name == plan.run_name
    assert run.directory is not None
    sent = (run.directory / "launch.json").read_text()
    assert sent == plan.request_json
    assert sent == printed.removesuffix("\n")
    run.wait(DEADLINE)


def test_misspelt_targets_are_a_clear_error(job_file: Path) -> None:
    """The nearest target is named."""
    job = ct.load_job(job_file)
    for verb in (ct.plan, ct.submit):
        with pytest.raises(SettingsError) as misspelt:
            verb(job, "sagmaker")
        assert misspelt.value.hint == suggested("sagemaker")


@pytest.mark.parametrize("place", ["data/../ckpt", "~/ckpt", "~nobody-of-this-name/ckpt"])
def test_a_place_means_the_same_in_a_file_and_in_python(
    make_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Dots are resolved, `~` is the home folder, and a home that this machine does not know is a name."""
    text = f"name: job\nentry_point: train.py\ncheckpoint: {{local: {place}}}\n"
    monkeypatch.chdir(make_source({"train.py": "", "job.yaml": text}))
    written = ct.TrainingJob(
        name="job", entry_point="train.py", checkpoint=ct.Checkpoint(local=place)
    )
    assert ct.plan(written, "local").request == ct.plan(ct.load_job("job.yaml"), "local").request
