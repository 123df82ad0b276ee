"""Where a SageMaker job's data comes from and goes to, and the paths that its script sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.targets.sagemaker.compile.training import compile_sagemaker
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

ACCOUNT = SageMakerAccount("us-west-2", "arn:aws:iam::123456789012:role/Training", "bucket")
PLAN_ARN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/plan-1"
GROUPS = [
    {"name": "gpu", "instance_type": "ml.g5.12xlarge", "instance_count": 1},
    {"name": "cpu", "instance_type": "ml.c5.2xlarge", "instance_count": 1},
]


def plan(target: ct.SageMaker | None = None, **fields: Any) -> Plan:
    job = ct.TrainingJob(
        **{
            "name": "job",
            "entry_point": "train.py",
            "resources": {"instance_type": {"sagemaker": "ml.g5.xlarge"}},
            "environment": {"framework": "pytorch", "version": "2.8"},
        }
        | fields
    )
    context = CompileContext("job-1", Bundle("5" * 64, 1, 1), ACCOUNT)
    return compile_sagemaker(job, target or ct.SageMaker(), context)


def channels(**fields: Any) -> dict[str, dict[str, Any]]:
    return {
        channel["ChannelName"]: channel for channel in plan(**fields).request["InputDataConfig"]
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, {"InputMode": "FastFile"}),
        ({"mode": "download"}, {}),
        ({"mode": "pipe"}, {"InputMode": "Pipe"}),
        ({"mode": "download", "compression": "gzip"}, {"CompressionType": "Gzip"}),
        (
            {"mode": "pipe", "record_wrapper": "recordio"},
            {"InputMode": "Pipe", "RecordWrapperType": "RecordIO"},
        ),
        ({"mode": "download", "content_type": "text/csv"}, {"ContentType": "text/csv"}),
        ({"mode": "pipe", "shuffle_seed": 7}, {"InputMode": "Pipe", "ShuffleConfig": {"Seed": 7}}),
    ],
)
def test_how_a_channel_is_read(item: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each option of an input is one field of its channel, and what is not asked for is not there."""
    channel = channels(inputs={"train": {"sagemaker": "s3://data/train"} | item})["train"]
    assert {
        key: value for key, value in channel.items() if key not in ("DataSource", "ChannelName")
    } == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, {"S3DataType": "S3Prefix", "S3DataDistributionType": "FullyReplicated"}),
        ({"shard": True}, {"S3DataType": "S3Prefix", "S3DataDistributionType": "ShardedByS3Key"}),
        (
            {"data_type": "manifest"},
            {"S3DataType": "ManifestFile", "S3DataDistributionType": "FullyReplicated"},
        ),
        (
            {"data_type": "augmented_manifest", "attribute_names": ["image", "label"]},
            {
                "S3DataType": "AugmentedManifestFile",
                "S3DataDistributionType": "FullyReplicated",
                "AttributeNames": ["image", "label"],
            },
        ),
    ],
)
def test_what_a_channel_reads(item: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the address means, and how it is dealt to the instances."""
    source = channels(inputs={"train": {"sagemaker": "s3://data/train"} | item})["train"][
        "DataSource"
    ]["S3DataSource"]
    assert source == {"S3Uri": "s3://data/train"} | expected


@pytest.mark.parametrize(
    ("address", "system"),
    [
        ("fsx://fs-0123456789abcdef0/abc/data", "FSxLustre"),
        ("efs://fs-0123456789abcdef0/abc/data", "EFS"),
    ],
)
def test_file_systems(address: str, system: str) -> None:
    """FSx and EFS are addresses too; `access` says how they are mounted."""
    item = {"sagemaker": address, "access": "rw"}
    source = channels(inputs={"data": item})["data"]["DataSource"]
    assert source == {
        "FileSystemDataSource": {
            "FileSystemId": "fs-0123456789abcdef0",
            "FileSystemType": system,
            "DirectoryPath": "/abc/data",
            "FileSystemAccessMode": "rw",
        }
    }


def test_paths() -> None:
    """References become the container's paths; a single file lies in its channel's folder."""
    found = plan(
        inputs={
            "train": {"sagemaker": "s3://d/train"},
            "words": {"sagemaker": "s3://d/w.txt", "type": "uri_file"},
        },
        outputs={"report": {}},
        checkpoint={},
        hyperparameters={
            "data": "${{inputs.train}}",
            "words": "${{inputs.words}}",
            "report": "${{outputs.report}}/report.txt",
            "model": "${{outputs.model}}",
            "checkpoint": "${{checkpoint}}",
        },
    ).request["HyperParameters"]
    assert {
        name: json.loads(found[name]) for name in ("data", "words", "report", "model", "checkpoint")
    } == {
        "data": "/opt/ml/input/data/train",
        "words": "/opt/ml/input/data/words/w.txt",
        "report": "/opt/ml/output/data/report/report.txt",
        "model": "/opt/ml/model",
        "checkpoint": "/opt/ml/checkpoints",
    }


def test_a_channel_of_another_name() -> None:
    """The channel and its folder have the channel's name; the job refers to the input's."""
    found = plan(
        inputs={"train_1": {"sagemaker": "s3://d/x", "channel": "train-1.x"}},
        hyperparameters={"data": "${{inputs.train_1}}"},
    )
    assert [channel["ChannelName"] for channel in found.request["InputDataConfig"]] == ["train-1.x"]
    assert json.loads(found.request["HyperParameters"]["data"]) == "/opt/ml/input/data/train-1.x"
    (process,) = found.processes
    assert process.env["SM_CHANNEL_TRAIN-1.X"] == "/opt/ml/input/data/train-1.x"


def test_preferences_with_counts_and_plans() -> None:
    """A type without a count has the job's; each may have a training plan of its own."""
    resources = {
        "instance_count": 2,
        "instance_preferences": [
            {"instance_type": "ml.p5.48xlarge", "training_plan": PLAN_ARN},
            {"instance_type": "ml.p4d.24xlarge", "instance_count": 4},
            "ml.p5e.48xlarge",
        ],
    }
    assert plan(resources=resources).request["ResourceConfig"]["InstancePreferences"] == [
        {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "TrainingPlanArns": [PLAN_ARN]},
        {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4},
        {"InstanceType": "ml.p5e.48xlarge", "InstanceCount": 2},
    ]


def test_a_checkpoint_folder_of_your_own() -> None:
    """The request, the job's reference and the runtime's variable name it; a job without a checkpoint has none."""
    target = ct.SageMaker(checkpoint_path="/opt/ml/mine")
    found = plan(target, checkpoint={}, hyperparameters={"to": "${{checkpoint}}/last"}).request
    assert found["CheckpointConfig"]["LocalPath"] == "/opt/ml/mine"
    assert json.loads(found["HyperParameters"]["to"]) == "/opt/ml/mine/last"
    assert found["Environment"] == {"CLOUDTRAIN_CHECKPOINT_DIR": "/opt/ml/mine"}
    assert not {"CheckpointConfig", "Environment"} & plan(target).request.keys()


def test_details_of_a_feature_that_is_off() -> None:
    """All errors at once; the profiler's rules are sent beside a profiler that is off, as the service takes them."""
    with pytest.raises(ct.JobError) as caught:
        ct.SageMaker(
            debugger_path="/d", profiler=False, profiler_interval=500, checkpoint_path="two words"
        )
    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert problems.keys() == {("debugger_path",), ("profiler_interval",), ("checkpoint_path",)}
    assert problems["debugger_path",] == "`debugger_path` has no effect without `debugger`"
    assert problems["checkpoint_path",] == "`two words` cannot be the folder of checkpoints"
    rules = plan(ct.SageMaker(profiler_rules=({"name": "r", "image": "i:1"},))).request
    assert rules["ProfilerRuleConfigurations"] == [
        {"RuleConfigurationName": "r", "RuleEvaluatorImage": "i:1"}
    ]
    assert rules["ProfilerConfig"] == {"DisableProfiler": True}


def test_a_checkpoint_without_a_place_is_the_runs_own() -> None:
    """It outlives interruptions of the run, and no other run finds it."""
    assert plan(checkpoint={}).request["CheckpointConfig"] == {
        "S3Uri": "s3://bucket/cloudtrain/checkpoints/job-1",
        "LocalPath": "/opt/ml/checkpoints",
    }


def test_all_channels_are_assigned_to_groups_or_none() -> None:
    """Where an input names its instance groups, the code names all of them."""
    target = ct.SageMaker(launch="entrypoint")
    train = {"sagemaker": "s3://data/train", "instance_groups": ["gpu"]}
    fields: dict[str, Any] = {"resources": {"instance_groups": GROUPS}, "target": target}
    assigned = channels(inputs={"train": train}, **fields)
    assert assigned["code"]["DataSource"]["S3DataSource"]["InstanceGroupNames"] == ["gpu", "cpu"]
    free = channels(inputs={"train": {"sagemaker": "s3://data/train"}}, **fields)
    assert "InstanceGroupNames" not in free["code"]["DataSource"]["S3DataSource"]


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"inputs": {"train": {"local": "data"}}}, "sagemaker: s3://"),
        ({"inputs": {"train": {"sagemaker": "/data"}}}, "fsx://"),
        ({"inputs": {"train": {"sagemaker": "s3://d/x", "mode": "direct"}}}, "`mount`"),
        ({"outputs": {"report": {"sagemaker": "s3://d/report"}}}, "cloudtrain download"),
        ({"resources": {}}, "ml.g5.xlarge"),  # one GPU for one process
        ({"resources": {}, "distribution": {"type": "torch"}}, "ml.g5.12xlarge"),
        ({"distribution": {"type": "deepspeed", "launch": "launcher"}}, "`launch: torch`"),
    ],
)
def test_what_sagemaker_lacks(fields: dict[str, Any], hint: str) -> None:
    """It is an error with the alternative, never left out in silence."""
    with pytest.raises(ct.JobError) as caught:
        plan(**fields)
    assert hint in (caught.value.hint or "")


PYTHON_36 = {"framework": "pytorch", "version": "1.8.1"}
PYTHON_37 = {"framework": "tensorflow", "version": "1.15.5"}
PYTHON_38 = {"framework": "pytorch", "version": "1.12.1"}


@pytest.mark.parametrize(
    ("fields", "target", "mode", "reason"),
    [
        ({}, {}, "toolkit", "5.1.1"),
        ({"hyperparameters": {"text": "two words"}}, {}, "entrypoint", "would break `text`"),
        ({"command": "bash run.sh", "entry_point": None}, {}, "entrypoint", "command line"),
        ({"environment": {"image": {"sagemaker": "me/image:1"}}}, {}, "entrypoint", "your own image"),
        ({"environment": {"framework": "pytorch", "version": "2.8", "requirements": "more.txt"}}, {}, "entrypoint", "requirements.txt"),
        ({"entry_point": "train.sh", "distribution": {"type": "torch"}}, {}, "entrypoint", "only Python"),
        ({"environment": PYTHON_38, "hyperparameters": {"text": "two words"}}, {}, "entrypoint", "would break `text`"),
        ({"environment": PYTHON_37}, {}, "entrypoint", "knows no training toolkit"),
        ({"environment": PYTHON_36}, {}, "toolkit", "the image has Python 3.6, and cloudtrain's own launcher needs 3.7"),
        ({"environment": PYTHON_36, "hyperparameters": {"text": "two words"}}, {}, "toolkit", "Python 3.6"),
        ({"environment": {"image": {"sagemaker": "me/image:1"}}, "entry_point": None}, {}, "image", "no code"),
        ({"hyperparameters": {"text": "two words"}}, {"launch": "toolkit"}, "toolkit", "the target sets"),
    ],
)  # fmt: skip
def test_who_starts_it(
    fields: dict[str, Any], target: dict[str, Any], mode: str, reason: str
) -> None:
    """The launch mode that works for the job and its image, and why."""
    made = plan(ct.SageMaker(**target), **fields)
    launch = dict(made.summary)["launch"]
    assert reason in launch
    words = {
        "toolkit": "the image's training toolkit",
        "entrypoint": "our launcher",
        "image": "the image's own entry",
    }
    assert ("ContainerEntrypoint" in made.request["AlgorithmSpecification"]) is (
        mode == "entrypoint"
    )
    assert launch.startswith(words[mode].replace("our launcher", "cloudtrain's own launcher"))


@pytest.mark.parametrize(
    ("fields", "target"),
    [({"command": "bash run.sh", "entry_point": None}, {}), ({}, {"launch": "entrypoint"})],
)
def test_a_python_that_cannot_run_our_launcher(
    fields: dict[str, Any], target: dict[str, Any]
) -> None:
    """A job that only our launcher starts is refused for an image whose Python does not run it, with the reason."""
    with pytest.raises(
        ct.JobError, match=r"the image has Python 3\.6, and cloudtrain's own launcher needs 3\.7"
    ):
        plan(ct.SageMaker(**target), environment=PYTHON_36, **fields)


def test_an_image_gets_the_text_of_the_sdk() -> None:
    """Without a script every hyperparameter is the `str` of its value, as the SDK's `Estimator` writes it."""
    values = {"list": [1, "a", None], "nothing": None, "map": {"b": 1}, "flag": True, "text": "x"}
    made = plan(
        entry_point=None, environment={"image": {"sagemaker": "me/image:1"}}, hyperparameters=values
    )
    assert made.request["HyperParameters"] == {name: str(value) for name, value in values.items()}


def test_both_launchers_needed() -> None:
    """A job that needs what only the toolkit has and what it does not have is refused, with both reasons."""
    with pytest.raises(ct.JobError) as caught:
        plan(command="bash run.sh", entry_point=None, distribution={"type": "smddp"})
    assert "toolkit" in caught.value.message
    assert "command line" in caught.value.message
