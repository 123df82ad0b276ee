"""The notebooks run from top to bottom, on this machine and against fake clouds, and show what they print there."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deadlines import DEADLINE
from tests.hints import suggested

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

PLACE = re.compile(
    r"(?<![\w.~}-])/(?:home|root|Users|tmp|var|private|work|usr/local)/\w|(?:127\.0\.0\.1|localhost):\d"
)
"""Folders of a machine, and ports that change."""

VARYING = re.compile(r"(?<=\()\d+ CPUs?, [^)]*(?=\))|\b[0-9a-f]*\d[0-9a-f]*\b")
"""What a machine has, hashes and figures."""

OF_A_RUN = re.compile(r"\b(?:run|status)\b")
"""A cell whose outputs depend on the moment."""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/notebooks.py."""
    pytest.importorskip("nbclient", reason="notebooks are executed with the [dev] extra only")
    monkeypatch.syspath_prepend(str(FOLDER.parent / "tools"))
    import notebooks

    return notebooks


class Executed(NamedTuple):
    """What the cells of a notebook left: the richer outputs by type, and everything printed."""

    data: list[dict[str, Any]]
    text: str


def execute(
    tools: Any, name: str, folder: Path = FOLDER, compare: bool = True, **variables: str
) -> Executed:
    """Run all cells in `folder`; an error in one is an error here. Outputs that nothing of a run is in are those that
    the notebook is kept with."""
    notebook = tools.execute(FOLDER / name, DEADLINE, folder, **variables)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [
        cell
        for cell in tools.nbformat.read(FOLDER / name, as_version=4).cells
        if cell.cell_type == "code"
    ]
    for cell, before in zip(cells, kept, strict=True):
        if compare and not OF_A_RUN.search(cell.source):
            assert _comparable(cell) == _comparable(before), "make notebooks"
    outputs = [output for cell in cells for output in cell.outputs]
    return Executed(
        [output.get("data", {}) for output in outputs],
        "".join(output.get("text", "") for output in outputs),
    )


def _comparable(cell: Any) -> list[Any]:
    """What a cell shows on each machine."""
    texts = [output.get("data") or {"text/plain": output.text} for output in cell.outputs]
    return [{kind: VARYING.sub("?", text) for kind, text in by_kind.items()} for by_kind in texts]


def _speaks(source: str) -> bool:
    """Whether a cell must have outputs: it prints, draws, or ends with a value."""
    lines = source.splitlines()
    body = ast.parse("\n".join(line for line in lines if not line.startswith("!"))).body
    calls = [
        node
        for part in body
        if not isinstance(part, ast.FunctionDef)
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
    ]
    names = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in calls
    }
    ends = bool(body) and isinstance(body[-1], ast.Expr)
    return (
        any(line.startswith("!") for line in lines)
        or ends
        or bool(names & {"print", "display", "show"})
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_belong_to_the_code(path: Path, tools: Any) -> None:
    """Each cell was run once, in order, as it is, without an error or a warning; no place of a machine is shown."""
    notebook = tools.nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.get("executed") == tools.sources_hash(notebook), (
        f"make notebooks NOTEBOOKS={path.name[:2]}"
    )
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert [cell.id for cell in cells if _speaks(cell.source) and not cell.outputs] == []
    kinds = {output.get("name", output.output_type) for cell in cells for output in cell.outputs}
    assert kinds <= {"stdout", "display_data", "execute_result"}
    texts = [
        text
        for cell in cells
        for output in cell.outputs
        for kind, text in output.get("data", {"": output.get("text")}).items()
        if kind != "image/png"
    ]
    assert [found[0] for text in texts for found in PLACE.finditer(text)] == []
    assert not any("\r" in text or "\x1b" in text for text in texts)
    assert path.stat().st_size <= tools.LARGEST == 300_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_it_needs(path: Path, tools: Any) -> None:
    """It looks for no checkout and changes no path of modules; what it imports beside cloudtrain is named above."""
    cells = tools.nbformat.read(path, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    if path.stem != "04_parallelism":
        assert [
            source for source in sources if re.search(r"sys\.path|Path\.cwd|tests\.", source)
        ] == []
    if "script_path" in "".join(sources) and path.stem != "04_parallelism":
        named = "".join(cell.source for cell in cells[:2] if cell.cell_type == "markdown")
        assert "pip install cloudtrain torch" in named


@pytest.mark.notebook
@pytest.mark.filterwarnings("default")
def test_what_belongs_to_a_machine_is_not_kept(tools: Any, tmp_path: Path) -> None:
    """Of the home, the checkout, the machine's name, colours and a progress bar stays what each machine has."""
    source = """import os, sys
from pathlib import Path
from IPython.display import HTML
print(Path.home() / "runs", os.uname().nodename and f"local://{os.uname().nodename}/run", flush=True)
print("10%\\r\\x1b[32m100%\\x1b[0m\\r", flush=True)
HTML(f"<p>{sys.argv[0] and CHECKOUT}/examples</p>")""".replace("CHECKOUT", repr(str(FOLDER.parent)))
    new = tools.nbformat.v4
    cell = new.new_code_cell(
        source, id="one", metadata={"execution": {"iopub.execute_input": "2026-01-01"}}
    )
    tools.nbformat.write(
        new.new_notebook(cells=[cell], metadata={"widgets": {}}), tmp_path / "n.ipynb"
    )
    made = tools.execute(tmp_path / "n.ipynb", DEADLINE, tmp_path)
    assert made.cells[0].outputs[0].text == "~/runs local://laptop/run\n100%\n"
    assert made.cells[0].outputs[1].data["text/html"] == "<p>~/cloudtrain/examples</p>"
    assert made.metadata.keys() == {"kernelspec", "language_info", "executed"}
    assert (made.cells[0].id, made.cells[0].metadata) == ("one", {})


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_the_first_job_trains_a_model(tools: Any, tmp_path: Path) -> None:
    """Every cell runs; the plan is shown as HTML, the plot is an image, and the model is good."""
    data, text = execute(tools, "01_first_job.ipynb", tmp_path)
    assert sum("text/html" in item for item in data) >= 2
    assert any("image/png" in item for item in data)
    assert suggested("hyperparameters") in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_sagemaker_trains_a_model(tools: Any, tmp_path: Path) -> None:
    """Every cell runs outside a checkout; two hosts train one model, which is downloaded; the price is shown."""
    data, text = execute(tools, "02_sagemaker.ipynb", tmp_path)
    assert sum("text/html" in item for item in data) >= 2
    assert "SM301 error" in text
    assert "processes=2" in text
    assert "succeeded" in text
    assert float(text.partition(" at list price")[0].rpartition("$")[2]) > 0
    assert any("model.pt" in item.get("text/plain", "") for item in data)
    assert 'distribution={"torch_distributed": {"enabled": True}}' in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_azureml_trains_a_model(tools: Any, tmp_path: Path) -> None:
    """Every cell runs outside a checkout; two machines train one model; the three types of Microsoft's page are
    judged; the file for az is that of the run."""
    data, text = execute(tools, "03_azureml.ipynb", tmp_path)
    assert sum("text/html" in item for item in data) >= 2
    judged = text.partition("Standard_ND96asr_v4")[0]
    assert [judged.count(code) for code in ("AZ203", "AZ204", "AZ206")] == [1, 1, 3]
    assert "AZ322 error" in text
    assert "processes=2" in text
    assert "succeeded" in text
    assert float(text.partition(" at list price")[0].rpartition("$")[2]) > 0
    assert any("model.pt" in item.get("text/plain", "") for item in data)
    assert "\n  type: pytorch\n  process_count_per_instance: 1\n" in text
    accuracy = float(text.rpartition("test accuracy ")[2].split()[0])
    assert accuracy >= 0.95


SHOWN = {
    "05_sagemaker_libraries": "smddprun mp_parameters job_name=ps HOROVOD_WITH_PYTORCH ShardedByS3Key SM332 @smp.step "
    "strategy.run hvd.DistributedOptimizer loss.backward() loss_of",
    "06_azureml_libraries": "data/cifar-10/versions/1 cifar-resnet parameterServerCount Mpi process_count_per_instance "
    "engine.backward(loss) strategy.run hvd.DistributedOptimizer optimizer.step() --autotuning processes=2",
}
"""What the plans and the training steps in the output of each notebook have."""

PICTURES = {"05_sagemaker_libraries": 3, "06_azureml_libraries": 1}
"""Curves, and a slice of a volume."""

FIRST, *OTHERS = SHOWN


# the first is also the one of CI: without the mark `torch`, of which CI takes one test in ten
@pytest.mark.notebook
@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(name, marks=pytest.mark.torch) for name in OTHERS)]
)
@pytest.mark.filterwarnings("default")
def test_every_library_has_its_step_and_its_plan(name: str, tools: Any, tmp_path: Path) -> None:
    """Every cell runs outside a checkout, without an account. Plans are shown as HTML, and what is trained is drawn and
    good."""
    data, text = execute(tools, f"{name}.ipynb", tmp_path)
    assert sum("text/html" in item for item in data) >= 1
    shown = text + "".join(item.get("text/plain", "") for item in data)
    assert [word for word in SHOWN[name].split() if word not in shown] == []
    assert sum("image/png" in item for item in data) == PICTURES[name]
    assert float(text.rpartition("succeeded, test accuracy ")[2].split()[0]) >= 0.9


@pytest.mark.notebook
@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_parallelism_is_measured_and_drawn(tools: Any, tmp_path: Path) -> None:
    """Every cell runs, in small: ten pictures, two plans; losses and gradients are those of one process, whatever the
    method; one server sends more than a ring; bubbles are shares of the time; an interruption changes nothing."""
    small = {"CLOUDTRAIN_NOTEBOOK_SMALL": "1"}
    data, text = execute(tools, "04_parallelism.ipynb", tmp_path, compare=False, **small)
    assert sum("image/png" in item for item in data) == 10
    assert sum("text/html" in item for item in data) == 2
    differences = [
        float(found) for found in re.findall(r"largest difference of a loss (\S+)", text)
    ]
    assert len(differences) == 2
    assert max(differences) <= 1e-5

    exchanges = {
        line[:16].strip(): line[16:].split() for line in section(text, "4 processes, gradients of")
    }
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
    bubbles = {
        line.split()[0]: line.split() for line in section(text, "bubbles of 4 processes and 8")
    }
    assert bubbles["1f1b"][1:3] == ["0.273", "0.273"]
    assert all(0 <= float(bubbles[name][3]) < 1 for name in ("simple", "1f1b", "zero-bubble-v"))

    assert "  verdict      same: all " in text
    assert text.count("balanced by ") == 3
    assert (
        len(re.findall(r"^\w+ +(?:sagemaker|azureml) .* processes: \d", text, re.MULTILINE)) == 10
    )


def section(text: str, title: str) -> list[str]:
    """The lines of a table below the line that begins with `title`, up to the next empty line."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(title))
    return list(itertools.takewhile(str.strip, lines))


@pytest.mark.notebook
def test_a_command_of_a_cell_that_fails_is_an_error(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython would go on. Nothing of the check stays in the notebook."""
    from nbclient.exceptions import CellExecutionError

    monkeypatch.setattr(tools, "FOLDER", tmp_path)
    new = tools.nbformat.v4
    for command, is_right in (("true", True), ("of_nobody", False)):
        file = tmp_path / f"{command}.ipynb"
        cell = new.new_code_cell(f"x = 1\n!{command}")
        tools.nbformat.write(new.new_notebook(cells=[cell]), file)
        if is_right:
            (executed,) = tools.execute(file, DEADLINE, tmp_path).cells
            assert executed.source == f"x = 1\n!{command}"
        else:
            with pytest.raises(CellExecutionError, match="the command ended with code 127"):
                tools.execute(file, DEADLINE, tmp_path)
