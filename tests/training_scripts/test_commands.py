"""Every command that a job file's header, a README or a docstring shows is planned: it would do what stands there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli.app import run_command
from cloudtrain.code.bundled import copy_script
from cloudtrain.runtime import arguments
from tests.training_scripts.test_script_folders import FOLDERS, declared_in, presets_in

ROOT = Path(__file__).parents[2]

EXAMPLES = ROOT / "examples"

ACCOUNTS = """
[sagemaker]
region = "us-west-2"
role = "arn:aws:iam::111122223333:role/SageMakerTraining"

[azureml]
subscription_id = "11112222-3333-4444-5555-666677778888"
resource_group = "training"
workspace = "vision"

[slurm]
shared_dir = "/fsx"
"""

NOT_HERE = {"LO101", "LO103", "CT021"}
"""Errors that speak of this machine and not of the command: data, programs, and an earlier run that are not there."""

REFUSED = {
    "training_scripts/toy_smddp/README.md: cloudtrain plan job.yaml --target azureml": "CT030",
    "training_scripts/pipeline_gpt/README.md: cloudtrain plan job_smp.yaml": "CT030",
}
"""Commands of which the text says that they are refused, and the code."""


@dataclass(frozen=True)
class Command:
    """A command line, and the file that shows it."""

    shown_in: Path
    line: str

    def __str__(self) -> str:
        return f"{self.shown_in.relative_to(ROOT)}: {self.line}"


def joined(text: str) -> list[str]:
    """The lines of a text; one that ends with a backslash goes on in the next."""
    return re.sub(r" *\\\n\s*(?:#\s*)?", " ", text).splitlines()


def lines_of(file: Path) -> list[str]:
    """The lines of a file that may be commands: comments, code blocks, docstrings and what is quoted."""
    text = file.read_text("utf-8")
    if file.suffix == ".yaml":
        comments = [line for line in text.splitlines() if line.startswith("#")]
        return [line.lstrip("# ") for line in joined("\n".join(comments))]
    if file.suffix == ".py":
        return [line.strip() for line in joined(ast.get_docstring(ast.parse(text)) or "")]
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`((?:cloudtrain|python|torchrun) [^`]*)`", text)
    shown = [line for block in blocks for line in joined(block)]
    return [line.removeprefix("$ ") for line in [*shown, *quoted]]


def commands_that(begin: str) -> list[Command]:
    """The commands of all folders that begin so, each once per file."""
    found: dict[Command, None] = {}
    for folder in [*FOLDERS, EXAMPLES, *sorted(EXAMPLES.glob("code/*"))]:
        for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.md"), *folder.glob("*.py")]):
            for line in lines_of(file):
                # what stands behind a wide gap explains the command
                line = re.split(r" {2,}|  #", line.strip())[0]
                if re.match(begin, line):
                    found[Command(file, line)] = None
    return list(found)


OURS = commands_that(r"cloudtrain (plan|submit|check|rehearse) ")
PROGRAMS = "python|torchrun|mpirun|deepspeed|horovodrun|accelerate launch"
THEIRS = commands_that(rf"([A-Z_]+=\S* )*({PROGRAMS}) .*\.py")


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with accounts, in which folders are copied."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", OURS, ids=str)
def test_a_command_has_a_plan(
    command: Command,
    projects: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As it stands, with `plan` in place of `submit`, in a copy of the folder with accounts for all targets."""
    folder = command.shown_in.parent
    whole = EXAMPLES if folder.is_relative_to(EXAMPLES) else folder
    copy = copied(whole, projects / "copy")
    (copy / "cloudtrain.toml").write_text(ACCOUNTS)
    monkeypatch.chdir(copy / folder.relative_to(whole))
    words = shlex.split(re.sub(r"PATH|/opt/\S+", sys.executable, command.line))[1:]
    words = [word for word in words if word != "--detach"]
    exit_code = run_command(["plan", *words[1:], "--format", "json"])
    found = error_codes(*capfd.readouterr())
    assert bool(exit_code) == bool(found)
    assert found - NOT_HERE == ({REFUSED[str(command)]} if str(command) in REFUSED else set())


def copied(folder: Path, place: Path) -> Path:
    """A copy as a user has it."""
    if folder == EXAMPLES:
        return Path(shutil.copytree(folder, place))
    return copy_script(folder.name, place)


def error_codes(out: str, errors: str) -> set[str]:
    """The codes of a plan's errors: of those in it, or of those that left no plan."""
    if out.startswith("{"):
        findings = json.loads(out)["findings"]
        return {finding["code"] for finding in findings if finding["level"] == "error"}
    return set(re.findall(r"\[([A-Z]{2}\d{3})\]", errors))


def test_a_command_that_would_fail_is_found(
    projects: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An option, a file, a hyperparameter and a library that are not there; and a command with none of these is
    fine."""
    copy = copy_script("toy_smddp", projects / "copy")
    (copy / "cloudtrain.toml").write_text(ACCOUNTS)
    fine = ["--target", "sagemaker"]
    for words, is_fine in (
        (fine, True),
        (["--target", "azureml"], False),
        ([*fine, "--set", "hyperparameters.stepz=1"], False),
        ([*fine, "--processes-per-instanse", "2"], False),
    ):
        exit_code = run_command(["plan", str(copy / "job.yaml"), *words, "--format", "json"])
        capfd.readouterr()
        assert (exit_code == 0) == is_fine, words


def declared_by(script: Path) -> tuple[Any, dict[str, float], dict[str, dict[str, Any]]] | None:
    """`Config`, `AT_LEAST` and `PRESETS` of a script; None if it reads its arguments in another way."""
    text = script.read_text("utf-8")
    if "runtime.arguments(" not in text:
        return None
    config, at_least = declared_in(script.parent, script.name)
    return config, at_least, presets_in(script.parent) if script.name == "train.py" else {}


@pytest.mark.slow_after(60)
@pytest.mark.parametrize("command", THEIRS, ids=str)
def test_a_script_takes_the_options_of_a_command(command: Command) -> None:
    """Their names and values are those that the script declares."""
    words = shlex.split(re.split(r" (?:&|\||>|;)", command.line)[0])
    number = next(place for place, word in enumerate(words) if word.endswith(".py"))
    script = command.shown_in.with_name(words[number])
    assert script.is_file()
    declared = declared_by(script)
    given = words[number + 1 :]
    if "--help" in given:
        return
    if declared is None:
        text = script.read_text("utf-8")
        names = [word.partition("=")[0].lstrip("-") for word in given if word.startswith("-")]
        assert "HfArgumentParser" in text or all(name in text for name in names)
        return
    config, at_least, presets = declared
    found = arguments(config, given, at_least=at_least)
    assert getattr(found, "preset", "") in {"", *presets}
