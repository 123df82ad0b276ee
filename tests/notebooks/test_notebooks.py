"""The notebooks run from top to bottom, on this machine and against fake clouds, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


class Executed(NamedTuple):
    """What the cells of a notebook left: the richer outputs by type, and everything printed."""

    data: list[dict[str, Any]]
    text: str


def execute(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Executed:
    """Run all cells in `folder`; an error in one is an error here."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    return Executed([output.get("data", {}) for output in outputs], text)


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
