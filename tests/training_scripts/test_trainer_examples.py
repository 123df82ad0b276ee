"""The two scripts with a Trainer, of Hugging Face and of Lightning, as their pages and examples have them.

Their libraries are not in the project's own environment. These make environments that have them:

    python tools/run/training_scripts.py integrations llm llm-pinned
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Level
from tests.deadlines import DEADLINE
from tests.training_scripts.runs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tools" / "generate"))
try:
    import pages
finally:
    sys.path.pop(0)

EXAMPLES = REPOSITORY / "examples"
PYTHONS = {
    word: os.environ.get(f"CLOUDTRAIN_{word}_PYTHON", "") for word in ("INTEGRATIONS", "LLM")
}
PAGES = {"huggingface_trainer": "hugging-face.md", "lightning": "lightning.md"}
NOTICES = {"local": ["LO201"], "sagemaker": [], "azureml": ["AZ117", "AZ702"], "slurm": []}
"""That the counts are scaled down to a machine without GPUs; that spot waits without a limit; the size of /dev/shm."""


def blocks(page: str) -> dict[str, str]:
    """The files of a page."""
    text = (REPOSITORY / "docs" / "guides" / page).read_text("utf-8")
    return {block["name"]: block["text"] for block in pages.BLOCK.finditer(text) if block["name"]}


@pytest.fixture(params=PAGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    """The files of a page, with the change applied."""
    for path, text in blocks(PAGES[name]).items():
        (tmp_path / path).write_text(text, "utf-8")
    assert "cloudtrain" not in (tmp_path / "train.py").read_text("utf-8")
    subprocess.run(["git", "apply", "cloudtrain.diff"], cwd=tmp_path, check=True)
    return tmp_path


def test_a_page_makes_the_example(name: str, folder: Path) -> None:
    """The script with the change, the packages and the job are those of the example."""
    code = EXAMPLES / "code" / name
    for path in ("train.py", "requirements.txt"):
        assert (folder / path).read_text("utf-8") == (code / path).read_text("utf-8")
    job = ct.load_job(folder / "job.yaml", [f"source_dir={code}", "checkpoint.local=/c"])
    assert job == ct.load_job(
        EXAMPLES / f"{name}.yaml", [f"source_dir={code}", "checkpoint.local=/c"]
    )


@pytest.mark.parametrize("target", NOTICES)
def test_every_target_takes_the_job(folder: Path, target: str, state_dir: Path) -> None:
    """With the accounts of the page: no error, no warning, and no notice but the expected."""
    plan = ct.plan(ct.load_job(folder / "job.yaml"), target)
    findings = [finding for finding in plan.findings if finding.code != "LO103"]
    assert {finding.code for finding in findings} <= {*NOTICES[target]}
    assert not [finding for finding in findings if finding.level is not Level.NOTICE]


def command(name: str, word: str, verb: str, *options: str) -> list[str]:
    """cloudtrain's command for an example, with the interpreter that has the libraries."""
    module = {"huggingface_trainer": "transformers"}.get(name, name)
    ask = ["-c", f"import importlib.util as u; raise SystemExit(not u.find_spec('{module}'))"]
    python = PYTHONS[word]
    if not python or subprocess.run([python, *ask], check=False).returncode:
        pytest.skip(f"set CLOUDTRAIN_{word}_PYTHON to a Python that has {module}")
    run = [
        sys.executable,
        "-m",
        "cloudtrain",
        verb,
        str(EXAMPLES / f"{name}.yaml"),
        "--python",
        python,
    ]
    return [*run, "--no-build-environment", *options]


def run(words: list[str], state: Path) -> str:
    """What the command prints; it must succeed."""
    usual = {
        "CLOUDTRAIN_STATE_DIR": str(state),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "80",
    }
    variables = {**os.environ, **usual}
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, check=False, timeout=3 * DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.torch
@pytest.mark.parametrize("word", PYTHONS)
def test_an_interruption_changes_nothing(name: str, word: str, tmp_path: Path) -> None:
    """Two processes train, are stopped in the middle of an epoch, and resume. The page shows the very verdict."""
    printed = run(command(name, word, "rehearse", "--grace-period", "300"), tmp_path)
    text = (REPOSITORY / "docs" / "guides" / PAGES[name]).read_text("utf-8")
    shown = text[text.index("Preemption of ") :].partition("```")[0]
    assert pages.comparable(shown) == pages.comparable(printed)
    model = {path.name for path in (tmp_path / "runs" / printed.split()[2] / "model").iterdir()}
    assert model & {"model.safetensors", "model.ckpt"}


@pytest.mark.torch
@pytest.mark.parametrize("word", PYTHONS)
def test_azure_ml_starts_the_processes(name: str, word: str, tmp_path: Path) -> None:
    """Without torchrun, whose variables accelerate sets nonetheless."""
    options = ("--emulate", "azureml", "--set", "checkpoint.local=null")
    run(command(name, word, "submit", *options), tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert list(folder.rglob("model/model.*"))
