"""The table of fields: every recorded body becomes the job file that the SDK printed of it, and comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from cloudtrain.job.data import Checkpoint, Input, Output
from cloudtrain.job.training import Environment, Resources, Spot, TrainingJob
from cloudtrain.plans.comparison import paths_that_differ
from cloudtrain.system.plugins import target_names
from cloudtrain.targets.azureml.fields import FIELDS, read_fields, sent, tool_codec
from cloudtrain.targets.azureml.settings import AzureML
from cloudtrain.targets.common.fields import Inexpressible, NoEffect, Refused, words

GOLDEN = Path(__file__).parents[2] / "golden" / "azureml"
FILES = {file.name.removesuffix(".rest.json"): file for file in sorted(GOLDEN.glob("*.rest.json"))}
WORKSPACE = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)
IDS = {
    "codeId": f"{WORKSPACE}/codes/c/versions/1",
    "environmentId": f"{WORKSPACE}/environments/e/versions/1",
}
"""The goldens hold paths and short names, which a body never has."""

WRITTEN_OTHERWISE = {
    "docker_args_list": {"resources.docker_args"},
    "locations_with_docker_list": {"resources.docker_args", "resources.locations"},
    "no_name": {"display_name", "experiment_name"},
    "unused_input": {"inputs.x"},
    "inputs_all": {
        "inputs.abfss.path", "inputs.lit_bool", "inputs.lit_float", "inputs.lit_int", "inputs.local_file.path",
        "inputs.local_rel.path", "inputs.uri_file_https.path", "inputs.uri_folder_direct.path", "inputs.uri_folder_rw",
    },
}  # fmt: skip
"""What the SDK prints otherwise than it sends: a list as its text, a number for its text, `azureml:` before a URL."""


def body_in(name: str) -> dict[str, Any]:
    """The recorded properties, with complete ids."""
    body: dict[str, Any] = json.loads(FILES[name].read_text())["properties"]
    return body | {key: value for key, value in IDS.items() if key in body}


def test_there_are_enough_bodies() -> None:
    """The recordings do not shrink unseen."""
    assert len(FILES) >= 36


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_body_comes_back(name: str) -> None:
    """Through the SDK's words, nothing is lost and nothing is added."""
    body = body_in(name)
    assert tool_codec().encode(tool_codec().decode(body)) == body


@pytest.mark.parametrize("name", FILES)
def test_a_recorded_body_is_the_recorded_job_file(name: str) -> None:
    """In the SDK's words, but for what the SDK prints otherwise than it sends."""
    ours = tool_codec().decode(body_in(name))
    theirs = yaml.safe_load(FILES[name].with_name(f"{name}.job.yml").read_text())
    if "compute" in ours:
        theirs["compute"] = theirs["compute"].removeprefix("azureml:")
    if theirs.get("resources"):
        theirs["resources"].pop("properties")
    theirs |= {key: ours[key] for key in ("code", "environment") if key in ours}
    theirs = {
        key: value
        for key, value in theirs.items()
        if value != {} and key not in ("type", "name", "parameters")
    }
    differing = {".".join(map(str, path)) for path, _, _ in paths_that_differ(ours, theirs)}
    assert differing == WRITTEN_OTHERWISE.get(name, set())


def test_all_that_the_tool_cannot_say_is_named_at_once() -> None:
    """Each part by its path."""
    body = body_in("pytorch_2x8") | {"future": 1, "queueSettings": {"jobTier": "Cheap"}}
    body["resources"] = {**body["resources"], "cores": 2}
    with pytest.raises(Inexpressible) as caught:
        tool_codec().decode(body)
    assert set(caught.value.paths) == {"future", "queueSettings.jobTier", "resources.cores"}


def test_settings_come_back() -> None:
    """What the table writes of a job and its settings, it reads again."""
    settings = {
        "experiment": "exp", "display_name": "name", "priority": "high", "identity": "managed",
        "managed_identity_client_id": "id", "docker_args": ["--ipc=host"], "locations": ["eastus"], "max_instance_count": 4,
        "job_tier": "premium", "notifications": {"on": ["failed"], "emails": ["a@b.c"]},
        "services": {"s": {"type": "ssh", "all_instances": True, "ssh_public_key": "ssh-rsa A"}},
    }  # fmt: skip
    fields = {
        "description": "d", "command": "echo 1", "resources": {"instance_count": 2}, "max_runtime": 5400,
        "outputs": {"o": {"mode": "upload", "azureml": "azureml://x", "asset_name": "n", "asset_version": "1"}},
        "tags": {"team.x": "y"},
    }  # fmt: skip
    job = TrainingJob(name="a", **fields)
    assert read_fields(sent(job, AzureML(**settings))) == {**fields, "settings": settings}


MODELS: dict[str, type[BaseModel]] = {
    "": TrainingJob, "resources.": Resources, "environment.": Environment, "inputs.*.": Input, "outputs.*.": Output,
    "checkpoint.": Checkpoint, "spot.": Spot,
}  # fmt: skip


def paths_of_a_job() -> Iterator[str]:
    """Yield every field, as rows name it."""
    for start, model in MODELS.items():
        for name in model.model_fields:
            if name.removesuffix("_overrides") not in {*target_names()} - {"azureml"}:
                yield f"{start}{name}"


@pytest.mark.parametrize("path", list(paths_of_a_job()))
def test_every_field_of_a_job_has_a_row(path: str) -> None:
    """It or its parts change the request, or which requests there are, or it has no effect, or the job is refused."""
    rows = [row for row in FIELDS if f"{row.job}.".startswith(f"{path}.")]
    assert rows
    for row in rows:
        is_sent = bool(row.request) or row.job == "azureml_overrides"
        is_sent = is_sent or row.job.startswith("capacity.")
        assert is_sent or isinstance(row.effect, NoEffect | Refused)


class Marked(str):
    """A text of a script that is adopted."""


@pytest.mark.parametrize(("table", "word"), [({1: "low"}, True), ({"Pipe": "pipe"}, ["Pipe"])])
def test_a_value_of_another_kind_is_no_word(table: dict[Any, str], word: Any) -> None:
    """True is not 1, and a list is looked up nowhere."""
    with pytest.raises(Inexpressible):
        words(table).decode(word)


def test_a_marked_text_is_a_word() -> None:
    """What it is marked with does not count."""
    assert words({"Pipe": "pipe"}).decode(Marked("Pipe")) == "pipe"
