"""A processing job on Azure ML: the body that is PUT, what the plan says of it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.azureml.compile.job import compile_azureml
from cloudtrain.targets.azureml.settings import AzureMLAccount

ACCOUNT = AzureMLAccount("00000000-0000-0000-0000-000000000000", "rg", "ws")
BUNDLE = Bundle("5" * 64, 1000, 2)
WORKSPACE = ACCOUNT.workspace_id
START = "python -m cloudtrain.runtime.azureml_processing"

JOB: dict[str, Any] = {
    "name": "prep",
    "entry_point": "prep.py",
    "hyperparameters": {"size": 96, "note": "a b", "raw": "${{inputs.raw}}"},
    "resources": {"instance_count": 4, "instance_type": "Standard_E4ds_v4"},
    "environment": {"azureml": "azureml:base:3", "variables": {"A": "b"}},
    "inputs": {
        "raw": {"azureml": "azureml:raw:1", "shard": True},
        "labels": {"azureml": "azureml:labels:1"},
    },
    "outputs": {"volumes": {}},
    "max_runtime": "1h",
    "tags": {"team": "ml"},
    "description": "cleans",
}


def plan_of(target: ct.AzureML | None = None, **changes: Any) -> Plan:
    job = ct.ProcessingJob(
        **{key: value for key, value in {**JOB, **changes}.items() if value is not None}
    )
    return compile_azureml(job, target or ct.AzureML(), CompileContext("run-1", BUNDLE, ACCOUNT))


def body_of(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = plan_of(**changes).request["properties"]
    return body


def problem_of(**changes: Any) -> tuple[str, str, str | None]:
    """Place, message and hint of the only problem."""
    with pytest.raises(ct.JobError) as caught:
        plan_of(**changes)
    (problem,) = caught.value.problems
    return problem.place, problem.message, problem.hint


def test_the_whole_body() -> None:
    """One process on each instance; inputs whole, outputs mounted, no model, and the runtime before the script."""
    line = f"{START} --shard raw=${{{{inputs.raw}}}} -- python prep.py --note 'a b' --raw ${{{{inputs.raw}}}} --size 96"
    assert plan_of().request == {
        "properties": {
            "jobType": "Command",
            "displayName": "run-1",
            "experimentName": "prep",
            "description": "cleans",
            "command": line,
            "codeId": f"{WORKSPACE}/codes/cloudtrain-{'5' * 40}/versions/1",
            "environmentId": f"{WORKSPACE}/environments/base/versions/3",
            "distribution": {"distributionType": "PyTorch", "processCountPerInstance": 1},
            "resources": {"instanceCount": 4, "properties": {}, "instanceType": "Standard_E4ds_v4"},
            "limits": {"jobLimitsType": "Command", "timeout": "PT1H"},
            "inputs": {
                "raw": {"jobInputType": "uri_folder", "uri": f"{WORKSPACE}/data/raw/versions/1"},
                "labels": {
                    "jobInputType": "uri_folder",
                    "uri": f"{WORKSPACE}/data/labels/versions/1",
                },
            },
            "outputs": {"volumes": {"jobOutputType": "uri_folder", "mode": "ReadWriteMount"}},
            "environmentVariables": {"A": "b"},
            "properties": {"cloudtrain.run": "run-1"},
            "tags": {"team": "ml"},
            "isArchived": False,
        }
    }


def test_one_instance_takes_the_same_path() -> None:
    """So that what works on one works on several."""
    body = body_of(resources={"instance_type": "Standard_E4ds_v4"})
    assert body["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 1}
    assert body["command"].startswith(f"{START} --shard raw=")


def test_a_shell_line_is_one_word() -> None:
    """`command` runs on each instance behind the runtime; what it holds is not read by the shell outside."""
    body = body_of(
        entry_point=None, hyperparameters={}, command='cat ${{inputs.raw}}/* | sort > "$OUT"'
    )
    assert body["command"].endswith("-- bash -c 'cat ${{inputs.raw}}/* | sort > \"$OUT\"'")


def test_requirements_are_installed_first() -> None:
    """As for training jobs."""
    command = body_of(environment={**JOB["environment"], "requirements": "requirements.txt"})[
        "command"
    ]
    assert command.startswith(
        f"python -m cloudtrain.runtime.install requirements.txt || exit; {START} --shard"
    )


def test_a_plain_value_arrives_exactly() -> None:
    """A literal input is in the arguments as it is, and not put into the line unquoted by the service."""
    inputs = {"word": {"value": "it's; $x"}}
    body = body_of(inputs=inputs, hyperparameters={"word": "${{inputs.word}}"})
    assert body["command"] == f"{START} -- python prep.py --word 'it'\"'\"'s; $x'"
    assert body["inputs"] == {"word": {"jobInputType": "literal", "value": "it's; $x"}}


def test_an_output_can_be_uploaded_at_the_end() -> None:
    """What the job says about an output's mode holds."""
    assert (
        body_of(outputs={"volumes": {"mode": "upload"}})["outputs"]["volumes"]["mode"] == "Upload"
    )


def test_overrides_are_merged_last() -> None:
    """`azureml_overrides`, as in training jobs; those of SageMaker are not looked at."""
    overrides = {"queueSettings": {"jobTier": "Spot"}, "tags": {"a": "b"}}
    body = body_of(azureml_overrides=overrides, sagemaker_overrides={"RoleArn": "x"})
    assert body["queueSettings"] == {"jobTier": "Spot"}
    assert body["tags"] == {"team": "ml", "a": "b"}
    assert problem_of(azureml_overrides={"command": None})[0] == "azureml_overrides.command"


def test_the_plan_speaks_of_the_job_that_was_written() -> None:
    """The script and the shards; no distribution, no checkpoint; what is only SageMaker's is told."""
    plan = plan_of(outputs={"volumes": {"path": "/opt/ml/processing/volumes"}})
    said = dict(plan.summary)
    assert said["script"] == "prep.py"
    assert said["shards"] == "raw: dealt out by file over 4 instances"
    assert said["instances"].startswith("4 x Standard_E4ds_v4")
    assert not {"distribution", "checkpoint", "processes"} & said.keys()
    assert plan.notes == (
        "`path` has no effect on Azure ML, which itself chooses the path of `volumes`",
    )
    assert [(each.instance, each.rank) for each in plan.processes] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
    ]


def test_a_sharded_download_copies_everything_to_everyone() -> None:
    """The plan says so: shares are made of what an instance has."""
    (note,) = plan_of(
        inputs={"raw": {"azureml": "azureml:raw:1", "shard": True, "mode": "download"}}
    ).notes
    assert (
        note
        == "every instance downloads all of `raw` before it takes its share; `mode: mount` reads its share only"
    )


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"value": "x"}, "input `raw` is a plain value, so cloudtrain cannot distribute its files"),
        (
            {"azureml": "azureml:raw:1", "mode": "direct"},
            "input `raw` is only an address (`mode: direct`)",
        ),
        ({"azureml": "azureml:raw:1", "type": "mltable"}, "input `raw` is of the type `mltable`"),
    ],
)
def test_what_has_no_files_cannot_be_dealt_out(item: dict[str, Any], message: str) -> None:
    """With the reason and a way out."""
    place, text, hint = problem_of(inputs={"raw": {**item, "shard": True}})
    assert (place, bool(hint)) == ("inputs.raw.shard", True)
    assert text.startswith(message)


def test_what_only_sagemaker_has_is_refused_with_the_alternative() -> None:
    """An image's own entry point, pipes, and lists of instance types."""
    own = {
        "entry_point": None,
        "hyperparameters": {},
        "environment": {"image": "mcr.microsoft.com/tool:1"},
    }
    assert problem_of(**own)[1].startswith("a job on Azure ML needs something to run")
    pipe = {"raw": {"azureml": "azureml:raw:1", "mode": "pipe"}}
    assert problem_of(inputs=pipe)[1:] == (
        "input `raw` is a pipe, which only SageMaker has",
        "use `mount` to read on demand, or `download`",
    )
    preferences = {"instance_preferences": ["ml.m5.xlarge", "ml.m5.2xlarge"]}
    assert problem_of(resources=preferences)[1].startswith(
        "`instance_preferences` works only on SageMaker"
    )


def test_an_input_without_a_place_on_azure_is_named() -> None:
    """As in training jobs."""
    place, message, _ = problem_of(inputs={"raw": {"sagemaker": "s3://bucket/raw"}})
    assert (place, message) == ("inputs.raw", "input `raw` has no location on Azure ML")
