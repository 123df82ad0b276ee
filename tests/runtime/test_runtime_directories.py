"""Inputs, outputs, model and checkpoint folders: the launcher's word first, then the platform's, then a default."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.runtime import (
    SetupError,
    checkpoint_dir,
    input_dir,
    model_dir,
    output_dir,
    run_dir,
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "variable",
    [
        "CLOUDTRAIN_INPUT_TRAIN",
        "SM_CHANNEL_TRAIN",
        "AZURE_ML_INPUT_train",
        "AZUREML_DATAREFERENCE_train",
    ],
)
def test_an_input_is_where_its_platform_put_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call finds the data on every target."""
    (tmp_path / "there").mkdir()
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    assert input_dir("train") == tmp_path / "there"


@pytest.mark.parametrize(
    ("name", "variable"),
    [("train_1_x", "SM_CHANNEL_TRAIN-1.X"), ("_1x", "SM_CHANNEL_1X"), ("a_b", "SM_CHANNEL_A_B")],
)
def test_a_channel_with_another_name(
    name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is found under its own name where the channel's has other characters."""
    (tmp_path / "there").mkdir()
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    assert input_dir(name) == tmp_path / "there"


def test_without_a_platform_an_input_is_under_data(tmp_path: Path) -> None:
    """`data/NAME` in the working directory, or the script's own default."""
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    assert input_dir("train") == Path("data/train")
    assert input_dir("other", default="mine") == Path("mine")


def test_missing_data_is_an_error_that_names_the_variable() -> None:
    """An input is never created."""
    with pytest.raises(SetupError, match="set `CLOUDTRAIN_INPUT_TRAIN` to its folder"):
        input_dir("train")
    assert list(Path().iterdir()) == []


def test_missing_data_is_looked_for_where_the_script_says() -> None:
    """The hint names the script's own place and not one where it would not look."""
    with pytest.raises(
        SetupError,
        match=r"put the data into `data/raw/dataset\.json`, or set `CLOUDTRAIN_INPUT_DATASET`",
    ):
        input_dir("dataset", default=Path("data/raw/dataset.json"))


@pytest.mark.parametrize(
    ("variables", "model", "result"),
    [
        ({}, "model", "result"),
        (
            {"CLOUDTRAIN_MODEL_DIR": "m", "CLOUDTRAIN_OUTPUT_RESULT": "r", "SM_MODEL_DIR": "s"},
            "m",
            "r",
        ),
        ({"SM_MODEL_DIR": "s", "SM_OUTPUT_DATA_DIR": "o"}, "s", "o/result"),
        (
            {"AZUREML_RUN_ID": "1", "AZURE_ML_OUTPUT_model": "a", "AZURE_ML_OUTPUT_result": "b"},
            "a",
            "b",
        ),
        ({"AZUREML_RUN_ID": "1"}, "outputs/model", "outputs/result"),
    ],
)
def test_outputs_go_where_the_platform_keeps_them(
    variables: dict[str, str], model: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher, SageMaker, Azure ML, Azure ML's own `outputs/`, working directory; all created."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (model_dir(), output_dir("result"), output_dir("model")) == (
        Path(model),
        Path(result),
        Path(model),
    )
    assert Path(model).is_dir()
    assert Path(result).is_dir()


def test_the_checkpoint_folder_on_each_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SageMaker's folder counts only on SageMaker, and only when the job has a checkpoint configuration."""
    synced = tmp_path / "opt" / "checkpoints"
    assert checkpoint_dir() == Path("checkpoint")
    monkeypatch.setenv("SM_MODEL_DIR", str(tmp_path / "opt" / "model"))
    assert checkpoint_dir() == Path("checkpoint")
    synced.mkdir(parents=True)
    assert checkpoint_dir() == synced
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_DIR", str(tmp_path / "mine"))
    assert checkpoint_dir() == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()


def test_the_run_folder_exists_only_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clouds have none."""
    assert run_dir() is None
    monkeypatch.setenv("CLOUDTRAIN_RUN_DIR", "/runs/1")
    assert run_dir() == Path("/runs/1")
