"""Folders for data and results, by name, on every target.

A folder is taken from cloudtrain's own variables, else from SageMaker's, else from Azure ML's. The
last choice is a folder under the working directory, so the same code also works in a notebook.
Folders for results are created; folders of data must exist.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .environment import detect_environment
from .errors import SetupError

INPUTS = (
    "CLOUDTRAIN_INPUT_{upper}",
    "SM_CHANNEL_{upper}",
    "AZURE_ML_INPUT_{name}",
    "AZURE_ML_INPUT_{upper}",
    "AZUREML_INPUT_{name}",
    "AZUREML_INPUT_{upper}",
    "AZUREML_DATAREFERENCE_{name}",
)
_AZURE = (
    "AZURE_ML_OUTPUT_{name}",
    "AZURE_ML_OUTPUT_{upper}",
    "AZUREML_OUTPUT_{name}",
    "AZUREML_OUTPUT_{upper}",
)
OUTPUTS = ("CLOUDTRAIN_OUTPUT_{upper}", "SM_OUTPUT_DATA_DIR", *_AZURE)
MODEL = ("CLOUDTRAIN_MODEL_DIR", "CLOUDTRAIN_OUTPUT_MODEL", "SM_MODEL_DIR", *_AZURE)
CHECKPOINT = ("CLOUDTRAIN_CHECKPOINT_DIR", *_AZURE)
"""Variables that hold a folder; the first one that is set wins. `{name}` is the name as written,
`{upper}` in capitals."""

SHARED = frozenset({"SM_OUTPUT_DATA_DIR"})
"""Folders that all outputs share. Each output gets a folder of its name inside."""

SAGEMAKER_CHECKPOINTS = "checkpoints"
"""The checkpoint folder beside SM_MODEL_DIR: `/opt/ml/checkpoints`. It exists on SageMaker when the
job has a checkpoint configuration; the service keeps it in step with S3."""


def input_dir(name: str, *, default: str | Path | None = None) -> Path:
    """Return the folder (or file) of the input `name`; else `default`; else `data/NAME` under the
    working directory.

    Raises:
        SetupError: the folder does not exist.
    """
    usual = Path("data", name) if default is None else Path(default)
    path = _first(INPUTS, name) or _channel(name) or usual
    if not path.exists():
        variable = f"CLOUDTRAIN_INPUT_{name.upper()}"
        hint = f"put the data into `{usual}`, or set `{variable}` to its folder"
        raise SetupError(f"the input `{name}` was not found: `{path}` does not exist", hint=hint)
    return path


def output_dir(name: str) -> Path:
    """Create and return the folder of the output `name`; `model` means `model_dir()`."""
    if name == "model":
        return model_dir()
    return _create(_first(OUTPUTS, name), name)


def model_dir() -> Path:
    """Create and return the folder for the trained model, which the target keeps."""
    return _create(_first(MODEL, "model"), "model")


def checkpoint_dir() -> Path:
    """Create and return the folder for checkpoints. It outlives the run, and a resumed run finds
    its files there."""
    folder = _first(CHECKPOINT, "checkpoint")
    if folder is None and detect_environment().platform == "sagemaker":
        model = Path(os.environ.get("SM_MODEL_DIR") or "/opt/ml/model")
        beside = model.parent / SAGEMAKER_CHECKPOINTS
        if beside.is_dir():
            return beside
    return _create(folder, "checkpoint")


def run_dir() -> Path | None:
    """Return the run's folder if cloudtrain runs the job on this machine; None on the clouds or
    without cloudtrain."""
    text = os.environ.get("CLOUDTRAIN_RUN_DIR")
    return Path(text) if text else None


def _first(templates: tuple[str, ...], name: str) -> Path | None:
    for template in templates:
        value = os.environ.get(template.format(name=name, upper=name.upper()))
        if value:
            return Path(value, name) if template in SHARED else Path(value)
    return None


def _channel(name: str) -> Path | None:
    """Return the folder of the SageMaker channel whose name has `-` or `.` where the input's `name`
    has `_`; None without such a channel."""
    upper = name.upper()
    for key, value in os.environ.items():
        plain = re.sub(r"\W", "_", key)
        if value and plain in (f"SM_CHANNEL_{upper}", f"SM_CHANNEL{upper}"):
            return Path(value)
    return None


def _create(folder: Path | None, name: str) -> Path:
    """Create and return a folder for results; default: `name` under the working directory. On
    Azure ML it is below `outputs/`, which Azure ML uploads."""
    if folder is None:
        folder = Path(name)
        if detect_environment().platform == "azureml":
            folder = Path("outputs", name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
