"""A processing job on SageMaker: the request that the SDK's processors send, but for what is listed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.plans.plan import Bundle, CompileContext, Plan
from cloudtrain.runtime.sagemaker_processing import container_entrypoint
from cloudtrain.targets.sagemaker.catalogue.shapes import violations
from cloudtrain.targets.sagemaker.compile.processing import compile_processing
from cloudtrain.targets.sagemaker.settings import SageMakerAccount

GOLDEN = Path(__file__).parents[2] / "golden" / "sagemaker_sdk_v2_processing"
ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
ACCOUNT = SageMakerAccount("us-west-2", ROLE, "my-bucket")
BUNDLE = Bundle("5" * 64, 1000, 2)
CODE = f"s3://my-bucket/cloudtrain/code/{BUNDLE.sha256}/sourcedir.tar.gz"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/prep:1"
INPUT = "/opt/ml/processing/input"

RAW = ct.ProcessingInput(sagemaker="s3://my-bucket/raw", path=INPUT, shard=True)
TRAIN = ct.ProcessingOutput(sagemaker="s3://my-bucket/prep/train", path="/opt/ml/processing/train")
SCRIPT = ct.ProcessingJob(
    name="golden",
    entry_point="train.py",
    hyperparameters={"size": 96},
    resources={"instance_count": 4, "instance_type": "ml.m5.4xlarge", "volume_size": "100g"},
    environment={"image": IMAGE, "variables": {"A": "b"}},
    inputs={"input_1": RAW},
    outputs={"train": TRAIN},
    max_runtime="1h",
    tags={"team": "ml"},
)
NETWORK = ct.SageMaker(
    subnets=("subnet-1",), security_group_ids=("sg-1",), encrypt_inter_container_traffic=True
)
FRAMEWORK = ct.ProcessingJob(
    name="golden",
    entry_point="train.py",
    resources={"instance_count": 2, "instance_type": "ml.g5.xlarge"},
    environment={"framework": "pytorch", "version": "2.8.0", "python": "3.12"},
    inputs={"raw": RAW},
    outputs={"train": TRAIN},
)
SMALL = {"name": "prep", "entry_point": "prep.py", "resources": {"instance_type": "ml.m5.xlarge"}}


def plan_of(job: ct.ProcessingJob, target: ct.SageMaker | None = None, name: str = "run-1") -> Plan:
    return compile_processing(job, target or ct.SageMaker(), CompileContext(name, BUNDLE, ACCOUNT))


def request_of(**fields: Any) -> dict[str, Any]:
    """The request of a small job with changes."""
    return plan_of(ct.ProcessingJob(**{**SMALL, **fields})).request


def golden(case: str) -> dict[str, Any]:
    request: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text())["request"]
    return request


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place where two requests differ: the way to it, our value, theirs; None for what one lacks."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}".lstrip("."))
    elif (
        isinstance(ours, list)
        and isinstance(theirs, list)
        and all(isinstance(item, dict) for item in ours + theirs)
    ):
        for index in range(max(len(ours), len(theirs))):
            one, other = (items[index] if index < len(items) else None for items in (ours, theirs))
            yield from differences(one, other, f"{path}[{index}]")
    elif ours != theirs:
        yield path, ours, theirs


def test_a_script_job_is_the_sdks_but_for_how_its_code_starts() -> None:
    """ScriptProcessor uploads one file and starts it; ours brings the whole bundle. The SDK numbers inputs, and our
    tag is added. Everything else is equal."""
    ours = plan_of(SCRIPT, NETWORK, "golden-proc-script").request
    found = list(differences(ours, golden("proc_script")))
    python = ["python3", f"{INPUT}/code/train.py"]
    raw_script = "s3://sagemaker-us-west-2-123456789012/golden-proc-script/input/code/train.py"
    assert found == [
        ("AppSpecification.ContainerEntrypoint", container_entrypoint(["train.py"]), python),
        ("ProcessingInputs[0].InputName", "input_1", "input-1"),
        ("ProcessingInputs[1].S3Input.S3Uri", CODE, raw_script),
        ("Tags[1]", {"Key": "cloudtrain:run", "Value": "golden-proc-script"}, None),
    ]


def test_a_framework_job_is_the_sdks_but_for_how_its_code_starts() -> None:
    """FrameworkProcessor sends a second input with a script that unpacks the first; ours needs none. The time limit,
    which the SDK leaves to the service, is written down, and our tag is added. Everything else is equal."""
    ours = plan_of(FRAMEWORK, name="golden-proc-pt").request
    sdk = golden("proc_pytorch_framework")
    assert list(differences(ours, sdk)) == [
        (
            "AppSpecification.ContainerEntrypoint",
            container_entrypoint(["train.py"]),
            ["/bin/bash", f"{INPUT}/entrypoint/runproc.sh"],
        ),
        ("ProcessingInputs[1].S3Input.LocalPath", f"{INPUT}/code", f"{INPUT}/code/"),
        (
            "ProcessingInputs[1].S3Input.S3Uri",
            CODE,
            "s3://my-bucket/code/golden-proc-pt/source/sourcedir.tar.gz",
        ),
        ("ProcessingInputs[2]", None, sdk["ProcessingInputs"][2]),
        ("StoppingCondition", {"MaxRuntimeInSeconds": 86400}, None),
        ("Tags", [{"Key": "cloudtrain:run", "Value": "golden-proc-pt"}], None),
    ]


EVERYTHING = ct.ProcessingJob(
    name="all",
    command="make data RAW=${{inputs.raw}}",
    resources={"instance_count": 3, "instance_preferences": ("ml.m5.xlarge", "ml.c5.xlarge")},
    environment={
        "image": IMAGE,
        "requirements": "requirements.txt",
        "variables": {"OUT": "${{outputs.out}}"},
    },
    inputs={
        "raw": ct.Input(
            sagemaker="s3://my-bucket/raw", shard=True, mode="pipe", compression="gzip"
        ),
        "list": ct.Input(sagemaker="s3://my-bucket/list.json", data_type="manifest"),
        "one": ct.Input(sagemaker="s3://my-bucket/a/b.csv", type="uri_file"),
    },
    outputs={"out": ct.Output(mode="mount"), "lists": ct.Output()},
    max_runtime="2d",
)
ALL_SETTINGS = ct.SageMaker(
    network_isolation=True,
    volume_kms_key="volume-key",
    output_kms_key="output-key",
    experiment="prep",
    trial="one",
    trial_component="raw",
    output="s3://results/here/",
    keep_alive="1h",
)


@pytest.mark.parametrize(
    ("job", "target"), [(SCRIPT, NETWORK), (FRAMEWORK, ct.SageMaker()), (EVERYTHING, ALL_SETTINGS)]
)
def test_the_services_own_model_accepts_it(job: ct.ProcessingJob, target: ct.SageMaker) -> None:
    """Names, types, lengths, patterns and enums of CreateProcessingJob."""
    assert violations(plan_of(job, target).request, "CreateProcessingJob") == []


@pytest.mark.parametrize(("job", "target"), [(SCRIPT, NETWORK), (EVERYTHING, ALL_SETTINGS)])
def test_boto3_sends_it_and_a_service_takes_it(job: ct.ProcessingJob, target: ct.SageMaker) -> None:
    """Through the real client into moto, which describes what it keeps of the job (not its instances) as it was sent."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto")
    request = plan_of(job, target).request
    with moto.mock_aws():
        client = boto3.client(
            "sagemaker", "us-west-2", aws_access_key_id="x", aws_secret_access_key="x"
        )
        client.create_processing_job(**request)
        described = client.describe_processing_job(ProcessingJobName="run-1")
    for field in ("ProcessingInputs", "ProcessingOutputConfig", "AppSpecification"):
        assert described[field] == request[field]


def test_every_setting_lands_in_its_field() -> None:
    """Modes, manifests, keys, network, experiment, preferences, outputs without a place of their own."""
    request = plan_of(EVERYTHING, ALL_SETTINGS).request
    raw, listed, one, code = (item["S3Input"] for item in request["ProcessingInputs"])
    assert (raw["S3InputMode"], raw["S3CompressionType"]) == ("Pipe", "Gzip")
    assert (raw["S3DataDistributionType"], listed["S3DataDistributionType"]) == (
        "ShardedByS3Key",
        "FullyReplicated",
    )
    assert (listed["S3DataType"], one["S3DataType"], code["S3Uri"]) == (
        "ManifestFile",
        "S3Prefix",
        CODE,
    )
    config = request["ProcessingOutputConfig"]
    assert config["KmsKeyId"] == "output-key"
    assert [item["S3Output"] for item in config["Outputs"]] == [
        {
            "S3Uri": f"s3://results/here/run-1/output/{name}",
            "LocalPath": f"/opt/ml/processing/output/{name}",
            "S3UploadMode": mode,
        }
        for name, mode in (("out", "Continuous"), ("lists", "EndOfJob"))
    ]
    assert request["ProcessingResources"]["ClusterConfig"] == {
        "VolumeSizeInGB": 30,
        "VolumeKmsKeyId": "volume-key",
        "InstancePreferences": [
            {"InstanceType": name, "InstanceCount": 3} for name in ("ml.m5.xlarge", "ml.c5.xlarge")
        ],
    }
    assert request["NetworkConfig"] == {"EnableNetworkIsolation": True}
    assert request["Environment"] == {"OUT": "/opt/ml/processing/output/out"}
    assert request["ExperimentConfig"] == {
        "ExperimentName": "prep",
        "TrialName": "one",
        "TrialComponentDisplayName": "raw",
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 172800}
    words = ["--requirements", "requirements.txt", "--command", f"make data RAW={INPUT}/raw"]
    assert request["AppSpecification"]["ContainerEntrypoint"] == container_entrypoint(words)


def test_references_are_the_paths_in_the_container() -> None:
    """A folder, a single file inside its folder, a path of one's own, and an output."""
    request = request_of(
        hyperparameters={
            name: f"${{{{{name}}}}}" for name in ("inputs.a", "inputs.b", "inputs.c", "outputs.d")
        },
        inputs={
            "a": {"sagemaker": "s3://b/a"},
            "b": {"sagemaker": "s3://b/x/y.csv", "type": "uri_file"},
            "c": {"sagemaker": "s3://b/c", "path": "/opt/ml/processing/c/"},
        },
        outputs={"d": {}},
    )
    arguments = request["AppSpecification"]["ContainerArguments"]
    paths = [
        f"{INPUT}/a",
        f"{INPUT}/b/y.csv",
        "/opt/ml/processing/c",
        "/opt/ml/processing/output/d",
    ]
    assert arguments[1::2] == paths
    assert request["ProcessingInputs"][1]["S3Input"]["LocalPath"] == f"{INPUT}/b"


def test_an_image_of_ones_own_runs_by_itself() -> None:
    """Without a script there is no code to bring: the image's entry point gets the arguments."""
    plan = plan_of(
        ct.ProcessingJob(
            **{
                **SMALL,
                "entry_point": None,
                "environment": {"image": IMAGE},
                "hyperparameters": {"size": 1},
            }
        )
    )
    assert plan.request["AppSpecification"] == {
        "ImageUri": IMAGE,
        "ContainerArguments": ["--size", "1"],
    }
    assert "ProcessingInputs" not in plan.request
    assert plan.uploads == ()


def test_overrides_come_last() -> None:
    """A field that the model does not have; nothing else is touched."""
    override = {"AppSpecification": {"ContainerArguments": ["x"]}, "StoppingCondition": None}
    request = request_of(sagemaker_overrides=override)
    assert request["AppSpecification"]["ContainerArguments"] == ["x"]
    assert request["AppSpecification"]["ContainerEntrypoint"] == container_entrypoint(["prep.py"])
    assert "StoppingCondition" not in request


def test_the_plan_shows_what_overrides_made_of_the_machines() -> None:
    """Instances, cost and processes are those of the request that is sent: 50 x $7.09 for an hour."""
    machines = {"InstanceCount": 50, "InstanceType": "ml.g5.12xlarge"}
    plan = plan_of(
        SCRIPT.replace(sagemaker_overrides={"ProcessingResources": {"ClusterConfig": machines}})
    )
    summary = dict(plan.summary)
    assert summary["instances"] == "50 x ml.g5.12xlarge (4 x A10G-24GB)"
    assert summary["shards"] == "input_1: dealt out by file over 50 instances"
    assert summary["cost"] == "at most $354.50 at list prices"
    assert [process.instance for process in plan.processes] == list(range(50))
    assert {process.env["CLOUDTRAIN_INSTANCE_COUNT"] for process in plan.processes} == {"50"}


def test_the_plan_shows_every_type_that_may_be_taken() -> None:
    """And costs what the dearest of them does: $1.41 an hour, for two hours, on three instances."""
    resources = {"instance_count": 3, "instance_preferences": ("ml.m5.xlarge", "ml.g5.xlarge")}
    summary = dict(plan_of(SCRIPT.replace(resources=resources, max_runtime="2h")).summary)
    assert summary["instances"] == "3 x ml.m5.xlarge (4 vCPUs)\nor 3 x ml.g5.xlarge (1 x A10G-24GB)"
    assert summary["cost"] == "at most $8.46 at list prices"


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"ProcessingJobName": None}, "ProcessingJobName"),
        ({"ProcessingResources": None}, "ProcessingResources"),
        ({"ProcessingResources": {"ClusterConfig": None}}, "ProcessingResources.ClusterConfig"),
        (
            {"ProcessingResources": {"ClusterConfig": {"InstanceType": None}}},
            "ProcessingResources.ClusterConfig",
        ),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": "2h"}},
            "StoppingCondition.MaxRuntimeInSeconds",
        ),
        ({"ProcessingOutputConfig": {"Outputs": "x"}}, "ProcessingOutputConfig.Outputs"),
        ({"Environment": {"A": 1}}, "Environment.A"),
        (
            {
                "ProcessingResources": {
                    "ClusterConfig": {
                        "InstanceType": None,
                        "InstanceGroups": [{"InstanceCount": 1}],
                    }
                }
            },
            "ProcessingResources.ClusterConfig",
        ),
    ],
)
def test_no_request_left(overrides: dict[str, Any], place: str) -> None:
    """Overrides that leave something that is no request are refused, each at its place, as those of training are."""
    with pytest.raises(ct.JobError) as caught:
        request_of(sagemaker_overrides=overrides)
    assert f"sagemaker_overrides.{place}" in [problem.dotted for problem in caught.value.problems]


def test_the_plan_shows_every_instances_process() -> None:
    """One process on each instance, told apart by its number."""
    plan = plan_of(SCRIPT)
    assert [process.instance for process in plan.processes] == [0, 1, 2, 3]
    assert {process.argv for process in plan.processes} == {("python3", "train.py", "--size", "96")}
    assert [process.env["CLOUDTRAIN_INSTANCE"] for process in plan.processes] == [
        "0",
        "1",
        "2",
        "3",
    ]
    assert dict(plan.summary)["shards"] == "input_1: dealt out by file over 4 instances"
    assert dict(plan.summary)["cost"].startswith("at most $")


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        (
            {"inputs": {"a": {"local": "x"}}},
            "input `a` has no location on SageMaker",
            "add `sagemaker: s3://BUCKET/PATH`",
        ),
        (
            {"inputs": {"a": {"sagemaker": "fsx://fs-1/x"}}},
            "`fsx://fs-1/x` is not a place that a processing job can read",
            "use `s3://BUCKET/PATH`",
        ),
        (
            {"inputs": {"a": {"sagemaker": "s3://b/x", "mode": "direct"}}},
            "input `a` has the mode `direct`, which only Azure ML has",
            "use `download`",
        ),
        (
            {"inputs": {"a": {"sagemaker": "s3://b/x", "compression": "gzip"}}},
            "input `a` can only be unpacked on the way (`compression: gzip`) in the mode `pipe`",
            "add `mode: pipe`",
        ),
        (
            {"inputs": {"code": {"sagemaker": "s3://b/x", "path": "/opt/ml/processing/x"}}},
            "`code` is the input that brings the job's own code",
            "choose another name",
        ),
        (
            {"outputs": {"a": {"path": f"{INPUT}/code"}}},
            f"`outputs.a` would be in `{INPUT}/code`, as the job's code is",
            "give it another `path`",
        ),
        (
            {"outputs": {"a": {}, "b": {"path": "/opt/ml/processing/output/a/"}}},
            "`outputs.b` would be in `/opt/ml/processing/output/a`, as `outputs.a` is",
            "give it another `path`",
        ),
        (
            {"hyperparameters": {"text": "x" * 257}},
            "`text` must be one line of at most 256 characters",
            "write it to a file",
        ),
        (
            {"hyperparameters": {"text": "a\nb"}},
            "`text` must be one line of at most 256 characters",
            "write it to a file",
        ),
        (
            {"entry_point": None, "command": "a\nb"},
            "`command` must be one line of at most 256 characters",
            "put it into a script: `entry_point: run.sh`",
        ),
        (
            {"resources": {}},
            "the job does not say on which instance type it runs on SageMaker",
            "add `instance_type: {sagemaker: ml.",
        ),
    ],
)
def test_what_sagemaker_cannot_do_is_an_error(
    fields: dict[str, Any], message: str, hint: str
) -> None:
    """Said before anything is sent, with the way out."""
    with pytest.raises(ct.JobError) as caught:
        request_of(**fields)
    assert (caught.value.problems[0].message, len(caught.value.problems)) == (message, 1)
    assert (caught.value.hint or "").startswith(hint)


def test_a_mode_that_processing_lacks_is_told() -> None:
    """`mount` means FastFile for training jobs; here the data is copied, and the plan says so."""
    plan = plan_of(
        ct.ProcessingJob(**SMALL, inputs={"a": {"sagemaker": "s3://b/x", "mode": "mount"}})
    )
    assert plan.request["ProcessingInputs"][0]["S3Input"]["S3InputMode"] == "File"
    assert (
        "processing jobs have no FastFile mode, so `a` will be copied before the start"
        in plan.notes
    )
