"""The table of fields: every recorded body becomes a job file of Azure ML's and comes back as it was, and every field of
a job has a row that says what Azure ML does with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import cloudtrain as ct
from cloudtrain.job.data import Checkpoint, Input, Output
from cloudtrain.job.training import Environment, Resources, Spot, TrainingJob
from cloudtrain.system.plugins import target_names
from cloudtrain.targets.azureml.fields import FIELDS, MODES, tool_codec
from cloudtrain.targets.common.fields import Inexpressible, NoEffect, Refused
from tests.rules.subjects import findings_of
from tests.targets.azureml.test_export import loaded

GOLDEN = Path(__file__).parents[2] / "golden" / "azureml"
WORKSPACE = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)
IDS = {
    "codeId": f"{WORKSPACE}/codes/c/versions/1",
    "environmentId": f"{WORKSPACE}/environments/e/versions/1",
}
"""The goldens hold short ids, which the SDK would look up."""
