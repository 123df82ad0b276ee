"""The page about training scripts is what there is: its table, its commands, and its example, which is run."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

import cloudtrain as ct
from cloudtrain.code.bundled import script_names, script_path
from cloudtrain.lifecycle.rehearse import rehearse, run_whole
from tests.cli.conftest import Cli
from tests.deadlines import DEADLINE, GRACE

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "guides" / "training-scripts.md").read_text("utf-8")
TARGETS: dict[str, ct.Local | ct.SageMaker | ct.AzureML] = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
    ),
    "azureml": ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
    ),
}
OF_THIS_MACHINE = {"LO101", "LO103"}
"""Rules about what is installed here and which data the user has."""


class Row(NamedTuple):
    """A line of the table."""

    name: str
    targets: set[str]
    command: list[str]


def rows() -> list[Row]:
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.splitlines()
        if line.startswith("| `")
    ]
    return [
        Row(
            name.strip("`"),
            set(TARGETS) if targets == "all" else set(targets.split(", ")),
            shlex.split(look[1:-1]),
        )
        for name, _, _, targets, look in cells
    ]


def block(language: str) -> str:
    """The first fenced block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_every_script_has_its_line() -> None:
    """No script is missing, and none is named that is not there."""
    assert sorted(row.name for row in rows()) == script_names()


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_scripts_run_on_the_targets_named(row: Row) -> None:
    """Their jobs can be planned there without an error; elsewhere they are refused, with another way."""
    for name, target in TARGETS.items():
        if name in row.targets:
            errors = ct.plan(ct.bundled_job(row.name), target).errors
            assert {error.code for error in errors} <= OF_THIS_MACHINE
        else:
            with pytest.raises(ct.JobError) as refused:
                ct.plan(ct.bundled_job(row.name), target)
            assert all(problem.hint for problem in refused.value.problems)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_commands_name_files_and_options_that_exist(row: Row) -> None:
    """The script or job is in the folder, and each option is a hyperparameter of the script."""
    folder = script_path(row.name)
    file = next(word for word in row.command if word.endswith((".py", ".yaml")))
    assert (folder / file).is_file()
    options = {
        word.removeprefix("--")
        for word in row.command[row.command.index(file) + 1 :]
        if word.startswith("--")
    }
    declared = {
        node.target.id
        for node in (
            ast.walk(ast.parse((folder / file).read_text("utf-8"))) if file.endswith(".py") else ()
        )
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert options <= declared


def test_the_commands_print_what_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`...` stands for anything."""
    monkeypatch.setenv("COLUMNS", "200")
    for part in re.split(r"^\$ ", block("console"), flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        result = cli(*shlex.split(command)[1:])
        assert result.code == 0, result.err
        pattern = "".join(
            r"(?s:.*)" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
            for line in expected.splitlines()
        )
        assert re.fullmatch(pattern, result.out), result.out


@pytest.mark.torch
def test_the_example_keeps_to_the_contract(tmp_path: Path) -> None:
    """Its job can be planned everywhere; it learns; two processes, interrupted and resumed or not, and one process
    report the same losses."""
    (tmp_path / "train.py").write_text(block("python"))
    (tmp_path / "job.yaml").write_text(block("yaml"))
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    job = ct.load_job(tmp_path / "job.yaml")
    assert isinstance(job, ct.TrainingJob)
    assert [ct.plan(job, target).errors for target in TARGETS.values()] == [(), (), ()]

    def on(processes: int) -> ct.Local:
        return ct.Local(
            launcher="fork", instance_count=1, processes_per_instance=processes, grace_period=GRACE
        )

    rehearsal = rehearse(run_whole(job, lambda one: ct.submit(one, on(2))), at_step=80)
    assert (rehearsal.verdict.kind, rehearsal.left, rehearsal.comparison.saved_at) == (
        "same",
        "saved",
        80,
    )
    alone = ct.submit(job, on(1))
    assert alone.wait(timeout=DEADLINE).state is ct.RunState.SUCCEEDED
    losses = {int(values["step"]): values["loss"] for values in alone.metrics()}
    assert {
        int(values["step"]): values["loss"] for values in rehearsal.whole.metrics()
    } == pytest.approx(losses, abs=1e-5)
    assert sorted(losses) == list(range(10, 201, 10))
    assert losses[200] < losses[10] / 2
