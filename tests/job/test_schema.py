"""The JSON Schema accepts what the loader accepts, and helps an editor."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import cloudtrain as ct
from cloudtrain.documents.document import read_document
from cloudtrain.job.file import format_of, parse_job
from cloudtrain.job.schema import job_schema
from tests.examples import examples

REPOSITORY = Path(__file__).parents[2]
SCHEMA = job_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

JOB_FILES = sorted(
    path
    for folder in ("examples", "training_scripts")
    for path in (REPOSITORY / folder).rglob("*")
    if path.suffix in (".yaml", ".toml", ".json")
    and (folder == "examples" or path.name.startswith("job."))
    and path.name != "cloudtrain.toml"
    # beside an example's script lies what the script reads
    and "code" not in path.relative_to(REPOSITORY).parts
)


@cache
def validator_of(kind: str) -> Draft202012Validator:
    """Of jobs of a kind. To describe a schema reads the sources of all its types."""
    return Draft202012Validator(job_schema(kind))


def in_schema(job: Any) -> bool:
    """Whether an editor would show no mistake."""
    return VALIDATOR.is_valid(job)


def in_loader(job: Any) -> bool:
    """Whether the loader takes it."""
    try:
        parse_job(json.dumps(job), format="json", file="job.json")
    except ct.JobError:
        return False
    return True


def test_the_schema_is_a_schema() -> None:
    """Of the dialect that it names; its `$id` is a name, not an address that would have to exist."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"] == "urn:cloudtrain:schema:job"
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_job_file_of_the_repository_is_valid(path: Path) -> None:
    """In the schema and in the loader."""
    text = path.read_text()
    parse_job(text, format=format_of(path), file=path.name)
    data = read_document(text, format_of(path)).data
    assert [
        error.message for error in validator_of(data.get("kind", "training")).iter_errors(data)
    ] == []


def test_there_are_job_files() -> None:
    """So that the test above tests something."""
    assert len(JOB_FILES) >= 4


def job(**fields: Any) -> dict[str, Any]:
    """A right job with some fields changed; None removes."""
    return {
        key: value
        for key, value in {"name": "a", "entry_point": "t.py", **fields}.items()
        if value is not ...
    }


VALID: list[dict[str, Any]] = [
    job(),
    job(command="x", entry_point=...),
    job(command="x", entry_point=None, hyperparameters={}),
    job(command=None),
    job(distribution={"type": "torch"}),
    job(distribution={"type": "none"}),
    job(distribution={"type": "torch", "processes_per_instance": None}),
    job(distribution={"type": "smp", "version": 1, "parameters": {"partitions": 2}, "mpi_options": "-x A"}),
    job(distribution={"type": "smp", "version": 2, "parameters": {"hybrid_shard_degree": 8}}),
    job(distribution={"type": "smp", "version": 2, "parameters": {"fsdp_cache_flush_warnings": True}}),
    job(distribution={"type": "smp", "version": 2, "parameters": {"allow_empty_shards": False}}),
    job(distribution={"type": "smp", "version": 1, "parameters": {"deterministic_server": True}}),
    job(distribution={"type": "smp", "version": 1, "parameters": {"load_partition": True, "partition_file": "/p"}}),
    job(distribution={"type": "tensorflow", "strategy": "parameter_server", "parameter_servers": 1}),
    job(distribution={"type": "tensorflow", "parameter_servers": None}),
    job(resources={"instance_type": "x", "gpu": None}),
    job(resources={"instance_type": {"sagemaker": "x", "azureml": None}, "volume_size": "30g", "shm_size": 5}),
    job(resources={"gpu": "T4", "gpus_per_instance": 0, "interconnect": "rdma"}),
    job(resources={"instance_groups": [{"name": "a", "instance_type": "x", "instance_count": 1}],
                   "distribution_groups": ["a"], "instance_type": None}),
    job(resources={"instance_groups": [], "instance_count": 2}),
    job(environment={"image": "x", "variables": {"A": "1"}}),
    job(environment={"image": {"azureml": "x"}}),
    job(inputs={"a": {"local": "x"}, "_b": {"sagemaker": "s3://b", "mode": "pipe", "shard": True}}, outputs={"m": {}}),
    job(checkpoint={"keep": 1}, spot={}, max_runtime="1h 30m", metrics={"loss": "x"}, tags={}),
    job(spot={"max_wait": 60}, max_runtime=" 90 "),
    job(hyperparameters={"a": [1, {"b": None}], "c": 1.5, "d": "x"}, sagemaker_overrides={"A": {"B": 1}}),
]  # fmt: skip

INVALID: list[dict[str, Any]] = [
    job(name=...),
    job(name="a b"),
    job(name="x" * 41),
    job(name=None),
    job(entry_point=...),
    job(entry_point=None),
    job(entry_point="-x.py"),
    job(command="x"),
    job(command="x", entry_point=..., hyperparameters={"a": 1}),
    job(nodes=2),
    job(resources=None),
    job(resources=[]),
    job(resources={"instance_cout": 2}),
    job(resources={"instance_count": "2"}),
    job(resources={"instance_count": 0}),
    job(resources={"instance_count": True}),
    job(resources={"instance_count": 1.5}),
    job(resources={"instance_type": 4}),
    job(resources={"instance_type": {"aws": "x"}}),
    job(resources={"instance_type": "x", "gpu": "T4"}),
    job(resources={"interconnect": "efa"}),
    job(resources={"distribution_groups": ["a"]}),
    job(resources={"instance_groups": [{"name": "a"}]}),
    job(resources={"instance_groups": [{"name": "a", "instance_type": "x", "instance_count": 1}], "instance_count": 1}),
    job(resources={"instance_groups": [{"name": "a", "instance_type": "x", "instance_count": 1}], "gpu": "x"}),
    job(resources={"shm_size": "big"}),
    job(resources={"shm_size": 1.5}),
    job(distribution="torch"),
    job(distribution=None),
    job(distribution={}),
    job(distribution={"type": "torhc"}),
    job(distribution={"type": "torch", "mpi_options": "x"}),
    job(distribution={"type": "torch", "processes_per_instance": 0}),
    job(distribution={"mpi_options": "x"}),
    job(distribution={"type": "smp"}),
    job(distribution={"type": "smp", "version": 3}),
    job(distribution={"type": "smp", "version": True}),
    job(distribution={"type": "smp", "version": 1, "parameters": {"hybrid_shard_degree": 8}}),
    job(distribution={"type": "smp", "version": 2, "parameters": {"partitions": 8}}),
    job(distribution={"type": "smp", "version": 2, "mpi_options": "x"}),
    job(distribution={"type": "tensorflow", "parameter_servers": 1}),
    job(environment={"version": 2.8}),
    job(environment={"framework": "jax"}),
    job(environment={"variables": {"A": 1}}),
    job(inputs={"my train": {"local": "x"}}),
    job(inputs={"train": {}}),
    job(inputs={"train": {"local": None}}),
    job(inputs={"train": "data"}),
    job(inputs={"train": {"local": "x", "mode": "mout"}}),
    job(inputs={"train": {"local": "x", "shard": "yes"}}),
    job(inputs={"x" * 65: {"local": "x"}}),
    job(outputs={"1": {}}),
    job(checkpoint={"keep": 0}),
    job(checkpoint="x"),
    job(spot=True),
    job(spot={"max_wait": "soon"}),
    job(max_runtime="1.5"),
    job(max_runtime="-1h"),
    job(max_runtime=0),
    job(max_runtime=2**31),
    job(max_runtime=True),
    job(tags={"a": 1}),
    job(tags=["a"]),
    job(metrics=None),
]  # fmt: skip


@pytest.mark.parametrize("data", VALID, ids=[json.dumps(data)[:90] for data in VALID])
def test_valid_jobs_pass_both(data: dict[str, Any]) -> None:
    """The schema and the loader."""
    assert (in_loader(data), [error.message for error in VALIDATOR.iter_errors(data)]) == (True, [])


@pytest.mark.parametrize("data", INVALID, ids=[json.dumps(data)[:90] for data in INVALID])
def test_invalid_jobs_fail_both(data: dict[str, Any]) -> None:
    """What the loader refuses, an editor underlines."""
    assert (in_loader(data), in_schema(data)) == (False, False)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(inner for key, item in entries for inner in _paths(item, (*path, key)))]


OTHER = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        3,
        "x",
        "2h",
        "torch",
        "64g",
        "",
        [],
        ["a"],
        {},
        {"type": "torch"},
        {"a": "b"},
    ]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_schema_and_loader_agree_on_changed_jobs(base: dict[str, Any], data: st.DataObject) -> None:
    """One value of a right job is replaced by some other: both take the result, or neither does."""
    changed = copy.deepcopy(base)
    path = data.draw(st.sampled_from([path for path in _paths(changed) if path]))
    holder: Any = changed
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = data.draw(OTHER)
    assert in_schema(changed) == in_loader(changed), changed


def test_fields_carry_their_help() -> None:
    """The text under a field in the source is what an editor shows, with the unit where there is one."""
    fields = SCHEMA["properties"]
    assert fields["source_dir"]["description"].startswith("The folder with the user's code")
    assert "`30m`" in fields["max_runtime"]["description"]
    assert SCHEMA["$defs"]["Resources"]["properties"]["shm_size"]["description"].endswith("`1t`.")
    assert "Raises" not in SCHEMA["description"]


def test_an_editor_can_offer_the_distributions() -> None:
    """All types, each with one line of help, and the fields of the one that was chosen."""
    distribution = SCHEMA["properties"]["distribution"]
    kinds = distribution["properties"]["type"]
    assert kinds["enum"] == [
        "torch",
        "smddp",
        "smp",
        "deepspeed",
        "mpi",
        "horovod",
        "tensorflow",
        "ray",
        "none",
    ]
    assert len(kinds["enumDescriptions"]) == len(kinds["enum"])
    chosen = [case["then"]["$ref"].rpartition("/")[2] for case in distribution["allOf"]]
    assert all(SCHEMA["$defs"][name]["additionalProperties"] is False for name in chosen)
