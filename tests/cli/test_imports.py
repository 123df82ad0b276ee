"""What a script imports is looked for where it runs; where cloudtrain cannot look, it says so."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

TRAIN = "import json, torch\nimport nobody_has_this\nfrom own import step\nimport pydantic\n"
HASH = f"--hash=sha256:{'0' * 64}"
TYPE = "{sagemaker: ml.m5.xlarge, azureml: Standard_D2s_v3}"


@pytest.fixture
def project(clean_environment: Path) -> Path:
    """A script, and a module beside it that needs a package, too."""
    (clean_environment / "train.py").write_text(TRAIN)
    (clean_environment / "own.py").write_text("import neither_this\n")
    return clean_environment


def found(cli: Cli, project: Path, environment: str, *options: str) -> dict[str, list[str]]:
    """The codes about packages, each with its messages."""
    text = f"name: job\nentry_point: train.py\nresources: {{instance_type: {TYPE}}}\n"
    (project / "job.yaml").write_text(text + (f"environment: {environment}\n" * bool(environment)))
    items = json.loads(cli("check", "job.yaml", "--offline", "--json", *options).out)
    messages: dict[str, list[str]] = {}
    for item in items:
        if item["code"] in ("CT213", "CT219"):
            messages.setdefault(item["code"], []).append(item["message"])
    return messages


UNKNOWN = {
    "the version of all pages": ("{framework: pytorch, version: '2.10'}", ["-t", "sagemaker"], "image"),
    "the newest version": ("{framework: pytorch}", ["-t", "sagemaker"], "image"),
    "an image of one's own": ("{image: {sagemaker: ghcr.io/me/train:1}}", ["-t", "sagemaker"], "image"),
    "a curated environment": ("{framework: pytorch, version: '2.10'}", ["-t", "azureml"], "image"),
    "an environment of one's own": ("{azureml: 'azureml:mine:1'}", ["-t", "azureml"], "image"),
    "a cluster": ("{framework: pytorch}", ["-t", "slurm"], "interpreter"),
    "another interpreter": ("", ["--python", "/usr/bin/env"], "interpreter"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_image_is_said(cli: Cli, project: Path, case: str) -> None:
    """One notice names all imports that may be missing, and none that Python or the job has."""
    environment, options, whose = UNKNOWN[case]
    messages = found(cli, project, environment, *options)
    assert list(messages) == ["CT219"]
    (message,) = messages["CT219"]
    assert "`nobody_has_this`" in message
    assert "`neither_this`" in message
    assert f"the packages of its {whose} are not known" in message
    assert not {"`json`", "`own`", "`cloudtrain`"} & set(message.replace(",", "").split())
    assert ("`torch`" in message) is ("pytorch" not in environment)


@pytest.mark.parametrize("case", UNKNOWN)
def test_the_text_names_an_unknown_image(cli: Cli, project: Path, case: str) -> None:
    """As in JSON: the check does not end as if everything had been looked for."""
    environment, options, whose = UNKNOWN[case]
    found(cli, project, environment)  # writes the job
    result = cli("check", "job.yaml", "--offline", *options)
    said = " ".join((result.out + result.err).split())
    (notice,) = re.findall(r"notice: [^[]*\[CT219\]", said)
    assert f"the packages of its {whose} are not known" in notice
    assert "`nobody_has_this`" in notice
    assert "`neither_this`" in notice
    assert "no problems found" not in said


def test_torch_of_another_interpreter_is_not_known(cli: Cli, project: Path) -> None:
    """The rule about a missing PyTorch looks into this interpreter alone."""
    torch = ["--set", "distribution.type=torch", "--python", "/usr/bin/env"]
    (message,) = found(cli, project, "", *torch)["CT219"]
    assert "`torch`" in message


def test_each_import_is_looked_for_here(cli: Cli, project: Path) -> None:
    """What this machine lacks is a warning at its line, and nothing is said about the rest."""
    (project / "train.py").write_text(TRAIN.replace("torch", "yaml"))
    messages = found(cli, project, "")
    assert messages == {
        "CT213": [
            "line 2 of `train.py` imports `nobody_has_this`, which the run does not have",
            "line 1 of `own.py` imports `neither_this`, which the run does not have",
        ]
    }
    (project / "train.py").write_text("import json, pydantic, own\n")
    (project / "own.py").write_text("try:\n    import neither_this\nexcept ImportError: pass\n")
    assert found(cli, project, "", "--python", sys.executable) == {}


def test_a_module_beside_the_code_is_found(cli: Cli, project: Path) -> None:
    """Nobody installs it: the folder above is the code. A folder without modules is no package."""
    for path in ("src/loss.py", "wandb/a.txt", "experiments/train.py"):
        (project / path).parent.mkdir()
        (project / path).write_text("import src, wandb\n")
    os.chdir(project / "experiments")
    items = json.loads(cli("check", "--json", "train.py").out)
    src, wandb = (item["hint"] for item in items if item["code"] == "CT213")
    assert f"it is in `{project}`" in src
    assert "add `wandb` to the requirements" in wandb
    os.chdir(project)
    items = json.loads(cli("check", "--json", "experiments/train.py").out)
    assert not any("`src`" in item["message"] for item in items)


@pytest.mark.parametrize("name", ["hydra", "huggingface", "runtime", "errors"])
def test_the_runtime_is_no_package_of_the_script(cli: Cli, project: Path, name: str) -> None:
    """Every bundle has modules of cloudtrain with such names, which `import` does not find."""
    (project / "train.py").write_text(f"import {name}\n")
    (message,) = found(cli, project, "")["CT213"]
    assert f"imports `{name}`" in message


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils.tensorboard import SummaryWriter",
        "from torch.utils import tensorboard",
        "import torch.utils.tensorboard as board",
    ],
)
def test_pytorch_brings_no_tensorboard(cli: Cli, project: Path, line: str) -> None:
    """Its module for it is there, and the package that this imports is another one."""
    (project / "train.py").write_text(f"{line}\n")
    messages = [*found(cli, project, "").get("CT213", ())]
    is_here = find_spec("tensorboard") is not None
    assert any("imports `tensorboard`" in message for message in messages) is not is_here
    (project / "train.py").write_text("import torch.utils.data\n")
    assert not any("tensorboard" in message for message in found(cli, project, "").get("CT213", ()))


def test_requirements_may_bring_more(cli: Cli, project: Path) -> None:
    """A package that they name is there; what another may bring is not known, unless all have hashes."""
    (project / "train.py").write_text("import nobody_has_this, brought\n")
    (project / "requirements.txt").write_text("nobody-has-this==1\n")
    messages = found(cli, project, "{requirements: requirements.txt}")
    assert list(messages) == ["CT219"]
    assert "`brought`, because `requirements.txt` may install more" in messages["CT219"][0]
    (project / "requirements.txt").write_text(f"nobody-has-this==1 {HASH}\n")
    messages = found(cli, project, "{requirements: requirements.txt}")
    assert list(messages) == ["CT213"]
    assert "`brought`" in messages["CT213"][0]


def test_a_sweep_says_it_once(cli: Cli, project: Path) -> None:
    """Its trials would all end with the same ModuleNotFoundError."""
    (project / "train.py").write_text("import nobody_has_this\n")
    (project / "sweep.yaml").write_text(
        "kind: sweep\nname: s\nstrategy: grid\njob: {entry_point: train.py}\nsearch: {lr: [1, 2]}\n"
    )
    items = json.loads(cli("check", "sweep.yaml", "--json").out)
    assert [item["code"] for item in items if item["code"] == "CT213"] == ["CT213"]
