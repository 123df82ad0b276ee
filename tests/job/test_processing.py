"""A processing job as a person writes it: in Python and in a file, with its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import cloudtrain as ct
from cloudtrain.job.file import parse_job
from cloudtrain.job.schema import job_schema
from tests.hints import no_field, one_of, words_before_name

SMALL = {"name": "prep", "entry_point": "prep.py"}
FILE = """\
kind: processing
name: prep
entry_point: prep.py
hyperparameters: {out: "${{outputs.volumes}}"}
resources: {instance_count: 4, instance_type: {sagemaker: ml.m5.xlarge}}
inputs:
  raw: {sagemaker: s3://bucket/raw, local: raw, shard: true, path: /opt/ml/processing/raw}
outputs: {volumes: {}}
"""
VALIDATOR = Draft202012Validator(job_schema("processing"))


def parse(text: str, *overrides: str) -> Any:
    return parse_job(text, format="yaml", file="job.yaml", overrides=overrides)


def problem_of(text: str, *overrides: str) -> tuple[str, str, str | None]:
    """Place, message and hint of the only problem."""
    with pytest.raises(ct.JobError) as caught:
        parse(text, *overrides)
    (problem,) = caught.value.problems
    return problem.place, problem.message, problem.hint


def test_a_file_says_what_kind_of_job_it_holds() -> None:
    """`kind: processing` makes a ProcessingJob, the same as in Python; no kind, or `training`, a TrainingJob."""
    assert parse(FILE) == ct.ProcessingJob(
        **SMALL,
        hyperparameters={"out": "${{outputs.volumes}}"},
        resources=ct.Resources(instance_count=4, instance_type={"sagemaker": "ml.m5.xlarge"}),
        inputs={
            "raw": ct.ProcessingInput(
                sagemaker="s3://bucket/raw", local="raw", shard=True, path="/opt/ml/processing/raw"
            )
        },
        outputs={"volumes": ct.Output()},
    )
    assert isinstance(parse("name: a\nentry_point: t.py\n"), ct.TrainingJob)
    assert parse("kind: training\nname: a\nentry_point: t.py\n") == parse(
        "name: a\nentry_point: t.py\n"
    )


def test_names_that_differ_only_in_case_are_refused() -> None:
    """As in a training job, but for `model`, which a processing job does not have by itself."""
    places = "outputs: {Model: {}, a: {}, A: {}}\n"
    assert problem_of("kind: processing\nname: prep\nentry_point: prep.py\n" + places) == (
        "job.yaml:4:29  outputs.A",
        "`A` and `a` differ only in case, and `CLOUDTRAIN_OUTPUT_A` would mean both",
        "write for example `A_2`",
    )


def test_an_input_of_a_training_job_does_as_well() -> None:
    """`ct.Input` and `ct.Output` may be written where the processing job has models of its own."""
    job = ct.ProcessingJob(
        **SMALL, inputs={"a": ct.Input(local="x", shard=True)}, outputs={"b": ct.Output(local="y")}
    )
    assert job.inputs["a"] == ct.ProcessingInput(local="x", shard=True)
    assert job.outputs["b"] == ct.ProcessingOutput(local="y")


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ("kind: procesing\nname: a\n", "job.yaml:1:7  kind", 'there is no kind of job `"procesing"`', "processing"),
        ("kind: 3\nname: a\n", "job.yaml:1:7  kind", "there is no kind of job `3`", words_before_name(one_of("")).strip()),
        (FILE + "distribution: {type: torch}\n", "job.yaml:9:1", no_field("distribution", "a processing job"), "shard"),
        (FILE + "checkpoint: {local: c}\n", "job.yaml:9:1", no_field("checkpoint", "a processing job"), "mode: mount"),
        (FILE + "spot: {}\n", "job.yaml:9:1", no_field("spot", "a processing job"), "spot capacity"),
        (FILE + "max_rutime: 1h\n", "job.yaml:9:1", no_field("max_rutime", "a processing job"), "`max_runtime`"),
        (FILE.replace("path: /opt/ml/processing/raw", "path: raw"), "job.yaml:7", '`"raw"` is not a folder', "begins with"),
        (FILE.replace("path: /opt/ml/processing/raw", "access: rw"), "job.yaml:7", "`access` applies to inputs of training", "remove"),
        (FILE.replace("outputs.volumes", "outputs.model"), "job.yaml:4", "the job has no output `model`", "volumes"),
        (FILE.replace("outputs.volumes", "checkpoint"), "job.yaml:4", "a reference is `inputs.NAME`", "outputs.volumes"),
        (FILE.replace("local: raw", 'local: "run:prep/x"'), "job.yaml:7", "`run:prep/x` does not name an output of a run", "run:NAME/output/OUTPUT"),
        (FILE.replace("local: raw", 'local: "run:a/output/b/../c"'), "job.yaml:7", "does not name an output of a run", "run:NAME"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(text: str, place: str, message: str, hint: str) -> None:
    """In the words of processing jobs, with what to do instead."""
    found = problem_of(text)
    assert found[0].startswith(place)
    assert message in found[1]
    assert hint in (found[2] or "")


def test_groups_of_instances_are_for_training() -> None:
    """Instances of a processing job are equal."""
    group = {"name": "a", "instance_type": "ml.m5.xlarge", "instance_count": 1}
    with pytest.raises(
        ct.JobError, match="runs on equal instances, so it has no `instance_groups`"
    ):
        ct.ProcessingJob(**SMALL, resources={"instance_groups": (group,)})


def test_overrides_know_the_fields_of_the_kind() -> None:
    """`--set` sets a field that only inputs of processing jobs have, and refuses one that only training has."""
    assert (
        parse(FILE, "inputs.raw.path=/opt/ml/processing/x").inputs["raw"].path
        == "/opt/ml/processing/x"
    )
    assert problem_of(FILE, "spot.max_wait=1h")[0] == "--set spot.max_wait=1h  spot"


def test_relative_places_follow_the_file_and_runs_stay(tmp_path: Path) -> None:
    """A path is made absolute; `run:NAME/output/OUTPUT` is no path."""
    text = FILE.replace(
        "outputs: {volumes", "  old: {local: 'run:prep/output/volumes'}\noutputs: {volumes"
    )
    (tmp_path / "job.yaml").write_text(text)
    job = ct.load_job(tmp_path / "job.yaml")
    assert job.inputs["raw"].local == str(tmp_path / "raw")
    assert job.inputs["old"].local == "run:prep/output/volumes"


CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"kind": "training"}, False),
    ({"entry_point": None, "command": "make"}, True),
    ({"command": "make"}, False),
    ({"entry_point": None}, False),
    ({"entry_point": "-prep.py"}, False),
    ({"entry_point": None, "environment": {"image": "x"}}, True),
    ({"distribution": {"type": "torch"}}, False),
    ({"resources": {"instance_groups": []}}, True),
    (
        {
            "resources": {
                "instance_groups": [{"name": "a", "instance_type": "b", "instance_count": 1}]
            }
        },
        False,
    ),
    ({"resources": {"instance_type": "a", "instance_preferences": ["b"]}}, False),
    ({"inputs": {"a": {"local": "x", "path": "/opt/ml/processing/x"}}}, True),
    ({"inputs": {"a": {"local": "x", "path": "/data"}}}, False),
    ({"inputs": {"a": {"local": "x", "shuffle_seed": 1}}}, False),
    ({"inputs": {"a": {"local": "x", "shuffle_seed": None, "access": "ro"}}}, True),
    ({"inputs": {"a": {"local": "x", "data_type": "augmented_manifest"}}}, False),
    ({"inputs": {"a": {"local": "x", "data_type": "manifest"}}}, True),
    ({"inputs": {"a": {}}}, False),
    ({"outputs": {"a": {"mode": "upload", "path": "/opt/ml/processing/y"}}}, True),
    ({"outputs": {"a": {"path": "y"}}}, False),
]


@pytest.mark.parametrize(("change", "good"), CHANGES)
def test_the_schema_says_what_the_loader_says(change: dict[str, Any], good: bool) -> None:
    """An editor shows a mistake exactly where the loader finds one."""
    data = {"kind": "processing", "name": "prep", "entry_point": "prep.py", **change}
    try:
        ct.ProcessingJob(**data)
        loads = True
    except ct.JobError:
        loads = False
    assert (VALIDATOR.is_valid(data), loads) == (good, good)


def test_the_schema_needs_the_kind() -> None:
    """A file without it would be a training job."""
    assert not VALIDATOR.is_valid(dict(SMALL))
    assert Draft202012Validator(job_schema()).is_valid({**SMALL, "kind": "training"})
    assert not Draft202012Validator(job_schema()).is_valid({**SMALL, "kind": "processing"})
