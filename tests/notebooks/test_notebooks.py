"""The notebooks run from top to bottom, on this machine and against fake clouds, and are kept without outputs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deadlines import DEADLINE

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXECUTED = FOLDER.parent / "build" / "notebooks"
"""Where the site (`make site`) finds them with their outputs."""


class Executed(NamedTuple):
    """What the cells of a notebook left: the richer outputs by type, and everything printed, without its colours."""

    data: list[dict[str, Any]]
    text: str


def execute(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Executed:
    """Run all cells in `folder`; an error in one is an error here."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(
        notebook,
        timeout=DEADLINE,
        startup_timeout=DEADLINE,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, EXECUTED / name)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    return Executed([output.get("data", {}) for output in outputs], re.sub(r"\x1b\[[\d;]*m", "", text))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    """No outputs and no execution counts in git."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks are executed with the [dev] extra only")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_the_first_job_trains_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every cell runs; the plan is shown as HTML, the plot is an image, and the model is good."""
    data, text = execute("01_first_job.ipynb", tmp_path, monkeypatch)
    assert sum("text/html" in item for item in data) >= 2
    assert any("image/png" in item for item in data)
    assert "did you mean `hyperparameters`?" in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_sagemaker_trains_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs where the notebook stands; two hosts train one model, which is downloaded; the bill is shown."""
    data, text = execute("02_sagemaker.ipynb", FOLDER, monkeypatch)
    assert sum("text/html" in item for item in data) >= 2
    assert "SM301 error" in text
    assert "processes=2" in text
    assert "succeeded" in text
    assert float(text.partition(" by list price")[0].rpartition("$")[2]) > 0
    assert any("model.pt" in item.get("text/plain", "") for item in data)
    assert 'distribution={"torch_distributed": {"enabled": True}}' in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_azureml_trains_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs where the notebook stands; two machines train one model; the three types of Microsoft's page are
    judged; the file for az is that of the run."""
    data, text = execute("03_azureml.ipynb", FOLDER, monkeypatch)
    assert sum("text/html" in item for item in data) >= 2
    judged = text.partition("Standard_ND96asr_v4")[0]
    assert [judged.count(code) for code in ("AZ203", "AZ204", "AZ206")] == [1, 1, 3]
    assert "AZ322 error" in text
    assert "processes=2" in text
    assert "succeeded" in text
    assert float(text.partition(" by list price")[0].rpartition("$")[2]) > 0
    assert any("model.pt" in item.get("text/plain", "") for item in data)
    assert "\n  type: pytorch\n  process_count_per_instance: 1\n" in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


PLANS = {
    "05_sagemaker_libraries": "smddprun mp_parameters job_name=ps HOROVOD_WITH_PYTORCH ShardedByS3Key SM332",
    "06_azureml_libraries": "data/cifar-10/versions/1 cifar-resnet parameterServerCount Mpi process_count_per_instance",
}
"""What the plans in the output of each notebook have."""

FIRST, *OTHERS = PLANS


@pytest.mark.notebook  # the first is also the one of CI: without the mark `torch`, of which CI takes one test in ten
@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.torch) for name in OTHERS)])
@pytest.mark.filterwarnings("default")
def test_every_library_is_planned_and_one_trains(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every cell runs where the notebook stands, without an account. Plans are shown as HTML; the training's curve is an
    image, and its model is good."""
    monkeypatch.setenv("CLOUDTRAIN_STATE_DIR", str(tmp_path))
    data, text = execute(f"{name}.ipynb", FOLDER, monkeypatch)
    assert sum("text/html" in item for item in data) >= 1
    shown = text + "".join(item.get("text/plain", "") for item in data)
    assert [word for word in PLANS[name].split() if word not in shown] == []
    assert sum("image/png" in item for item in data) == 1
    assert float(text.rpartition("succeeded, test accuracy ")[2].split()[0]) >= 0.9


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_parallelism_is_measured_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every cell runs, in small: ten pictures, two plans; losses and gradients are those of one process, whatever the
    method; one server sends more than a ring; bubbles are shares of the time; an interruption changes nothing."""
    monkeypatch.setenv("CLOUDTRAIN_NOTEBOOK_SMALL", "1")
    data, text = execute("04_parallelism.ipynb", tmp_path, monkeypatch)
    assert sum("image/png" in item for item in data) == 10
    assert sum("text/html" in item for item in data) == 2
    differences = [float(found) for found in re.findall(r"largest difference of a loss (\S+)", text)]
    assert len(differences) == 2
    assert max(differences) <= 1e-5

    exchanges = {line[:16].strip(): line[16:].split() for line in section(text, "4 processes, gradients of")}
    ring, server = (float(exchanges[name][3]) for name in ("ring", "one server"))
    assert server > 1.5 * ring > 0

    layouts = {line[:16].strip(): line[16:].split() for line in section(text, "layout   ")}
    assert layouts.keys() >= {"ddp", "fsdp", "hsdp", "tp", "2d"}
    for name, row in layouts.items():
        loss, gradient, bound = float(row[6]), float(row[7]), 1e-2 if "bf16" in name else 1e-5
        assert max(loss, gradient) <= bound, name
    assert float(layouts["fsdp"][8]) < 0.6 * float(layouts["ddp"][8])

    rows = itertools.takewhile(
        lambda line: not line.startswith("gradients:"), section(text, "gradients of 4 processes")
    )
    gradients = {line[:24].strip(): float(line.split()[-1]) for line in list(rows)[1:]}
    assert gradients.keys() >= {"simple", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"}
    for name, difference in gradients.items():
        assert difference <= (1e-2 if "bf16" in name else 1e-6), name
    bubbles = {line.split()[0]: line.split() for line in section(text, "bubbles of 4 processes and 8")}
    assert bubbles["1f1b"][1:3] == ["0.273", "0.273"]
    assert all(0 <= float(bubbles[name][3]) < 1 for name in ("simple", "1f1b", "zero-bubble-v"))

    assert "  verdict      same: all " in text
    assert text.count("balanced by ") == 3
    assert len(re.findall(r"^\w+ +(?:sagemaker|azureml) .* processes: \d", text, re.MULTILINE)) == 10


def section(text: str, title: str) -> list[str]:
    """The lines of a table below the line that begins with `title`, up to the next empty line."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(title))
    return list(itertools.takewhile(str.strip, lines))
