"""The notebooks run from top to bottom on the local target, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


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
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    data = [output.get("data", {}) for output in outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert sum("text/html" in item for item in data) >= 2
    assert any("image/png" in item for item in data)
    assert "did you mean `hyperparameters`?" in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95
