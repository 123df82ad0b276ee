"""Requests become jobs that send the same request: proven with every recorded request of the SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct
from cloudtrain.adoption.job_text import job_yaml, settings_toml
from cloudtrain.cli.app import run_command
from cloudtrain.documents.document import read_document
from cloudtrain.job.file import parse_job

GOLDEN = Path(__file__).parents[1] / "golden"
SAGEMAKER = {
    file.stem: found["request"]
    for file in sorted((GOLDEN / "sagemaker_sdk_v2").glob("*.json"))
    if (found := json.loads(file.read_text())).get("request")
}
AZUREML = {
    file.name.removesuffix(".rest.json"): json.loads(file.read_text())
    for file in sorted((GOLDEN / "azureml").glob("*.rest.json"))
}


@pytest.fixture
def adopted(tmp_path: Path) -> Callable[..., ct.Adoption]:
    """Adopt a document, through a file."""

    def adopt(document: Any, job: str | None = None, name: str = "request.json") -> ct.Adoption:
        file = tmp_path / name
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return ct.adopt(file, job=job)

    return adopt


REFUSED = {"pt_bad_job_name": ["TrainingJobName"]}
"""What the SDK sends and the service refuses."""


@pytest.mark.parametrize("name", SAGEMAKER)
def test_every_recorded_request_is_adopted(name: str, adopted: Callable[..., ct.Adoption]) -> None:
    """The job sends the recorded request, and its file and settings say what the objects say."""
    found = adopted(SAGEMAKER[name])
    paths = [item.path for item in found.differences]
    assert paths == REFUSED.get(name, [])
    assert parse_job(found.job_text, format="yaml", file="job.yaml") == found.job
    assert read_document(found.settings_text, "toml").data == {"sagemaker": found.settings}


@pytest.mark.parametrize("name", AZUREML)
def test_every_recorded_body_is_adopted(name: str, adopted: Callable[..., ct.Adoption]) -> None:
    """The same for Azure ML."""
    found = adopted(AZUREML[name])
    assert found.equal, [vars(item) for item in found.differences]
    assert parse_job(found.job_text, format="yaml", file="job.yaml") == found.job
    assert read_document(found.settings_text or "[azureml]", "toml").data == {
        "azureml": found.settings
    }


@pytest.mark.slow
def test_the_share_that_fields_alone_say(adopted: Callable[..., ct.Adoption]) -> None:
    """Nearly all recorded requests need no override: a job file is made of fields."""
    overridden = [
        name
        for name, request in SAGEMAKER.items()
        if adopted(request).fields.get("sagemaker_overrides")
    ]
    assert len(SAGEMAKER) >= 60
    assert len(overridden) / len(SAGEMAKER) < 0.1
    overridden = [
        name for name, body in AZUREML.items() if adopted(body).fields.get("azureml_overrides")
    ]
    assert len(overridden) / len(AZUREML) < 0.2


FULL = SAGEMAKER["pt_full_lifecycle"]


def described(request: dict[str, Any]) -> dict[str, Any]:
    """What `aws sagemaker describe-training-job` prints of a finished job."""
    return {key: value for key, value in request.items() if key != "Tags"} | {
        "TrainingJobArn": "arn:aws:sagemaker:us-west-2:123456789012:training-job/golden",
        "TrainingJobStatus": "Completed",
        "SecondaryStatus": "Completed",
        "CreationTime": "2026-11-01T10:00:00+00:00",
        "BillableTimeInSeconds": 12,
        "ModelArtifacts": {"S3ModelArtifacts": "s3://b/model.tar.gz"},
        "ResourceConfig": request["ResourceConfig"] | {"SelectedInstanceType": "ml.p4d.24xlarge"},
        "HyperParameters": request["HyperParameters"] | {"_tuning_objective_metric": "loss"},
    }


def test_a_description_is_adopted(adopted: Callable[..., ct.Adoption]) -> None:
    """What the service adds is no part of the job."""
    found = adopted(described(FULL))
    assert found.equal
    assert found.job.name == "golden-pt-full-lifecycle"
    assert "_tuning_objective_metric" not in found.job.hyperparameters


def test_defaults_that_a_description_names_are_no_overrides(
    adopted: Callable[..., ct.Adoption],
) -> None:
    """The service fills them in; as overrides they would shadow fields that are edited later."""
    answer = described(
        {key: value for key, value in SAGEMAKER["pt_torchdist"].items() if key != "Tags"}
    )
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": "s3://b/train",
        "S3DataDistributionType": "FullyReplicated",
    }
    channel = {"ChannelName": "train", "DataSource": {"S3DataSource": source}}
    answer |= {
        "InputDataConfig": [channel | {"CompressionType": "None", "RecordWrapperType": "None"}],
        "EnableManagedSpotTraining": False,
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "OutputDataConfig": answer["OutputDataConfig"]
        | {"KmsKeyId": "", "CompressionType": "GZIP"},
        "ResourceConfig": answer["ResourceConfig"] | {"VolumeKmsKeyId": ""},
    }
    found = adopted(answer)
    assert found.equal
    assert "sagemaker_overrides" not in found.fields
    assert found.job.inputs["train"].sagemaker == "s3://b/train"


def test_the_fields_of_an_adopted_job_can_be_edited(
    adopted: Callable[..., ct.Adoption], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An override holds only what fields cannot express, so the request has the new address. Where it contradicts a
    field, the plan is refused."""
    source = {
        "S3DataType": "S3Prefix", "S3Uri": "s3://my-bucket/old", "S3DataDistributionType": "FullyReplicated",
        "ModelAccessConfig": {"AcceptEula": True},
    }  # fmt: skip
    rows = [
        {"ChannelName": name, "DataSource": {"S3DataSource": source}} for name in ("train", "test")
    ]
    found = adopted(SAGEMAKER["est_byoc_plain"] | {"InputDataConfig": rows})
    assert found.equal
    more = {"DataSource": {"S3DataSource": {"ModelAccessConfig": {"AcceptEula": True}}}}
    assert found.fields["sagemaker_overrides"] == {
        "InputDataConfig": [{"ChannelName": name} | more for name in ("test", "train")]
    }
    (tmp_path / "cloudtrain.toml").write_text(found.settings_text)
    plan = ["plan", str(tmp_path / "job.yaml"), "--target", "sagemaker", "--format", "request"]
    (tmp_path / "job.yaml").write_text(found.job_text)
    assert run_command([*plan, "--set", "inputs.train.sagemaker=s3://my-bucket/new"]) == 0
    sent = {
        row["ChannelName"]: row["DataSource"]
        for row in json.loads(capsys.readouterr().out)["InputDataConfig"]
    }
    assert sent["train"] == {"S3DataSource": source | {"S3Uri": "s3://my-bucket/new"}}
    assert sent["test"] == {"S3DataSource": source}
    override = '--set=sagemaker_overrides.InputDataConfig=[{ChannelName: train, DataSource: {S3DataSource: {S3Uri: "s3://x/y"}}}]'
    assert run_command(["check", *plan[1:4], override]) == 2
    assert "CT210" in "".join(capsys.readouterr())


def test_no_run_shares_the_places_of_the_original(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """The name of one run in hyperparameters, rules, places and variables becomes the name of each run."""
    name = "tensorflow-training-2026-03-01-10-20-30-456"
    text = json.dumps(SAGEMAKER["tf_none"]).replace("golden-tf-none", name)
    request = json.loads(text) | {
        "Environment": {"PREFIX": f"s3://mine/{name}/logs"},
        "CheckpointConfig": {"S3Uri": f"s3://mine/{name}/checkpoints"},
        "DebugRuleConfigurations": [{
            "RuleConfigurationName": "LossNotDecreasing", "RuleEvaluatorImage": "i:1", "RuleParameters": {
                "action_json": json.dumps([{"name": "stoptraining", "training_job_prefix": name}])
            },
        }],
    }  # fmt: skip
    found = adopted(request)
    assert found.equal, [vars(item) for item in found.differences]
    assert name not in str(found.fields) + found.settings_text
    (tmp_path / "cloudtrain.toml").write_text(found.settings_text)
    (tmp_path / "job.yaml").write_text(found.job_text)
    plan = ct.plan(ct.load_job(tmp_path / "job.yaml"), "sagemaker")
    sent = json.dumps(plan.request)
    assert "${{run.name}}" not in sent
    assert f"/{plan.run_name}/model" in plan.request["HyperParameters"]["model_dir"]
    assert sent.count(plan.run_name) >= 6


def test_what_is_meant_for_an_images_own_toolkit_stays_in_the_request(
    adopted: Callable[..., ct.Adoption], tmp_path: Path
) -> None:
    """MXNet's parameter servers are not TensorFlow's, the Training Compiler's switch is not the script's; neither stops
    the job."""
    request = json.loads(json.dumps(SAGEMAKER["tf_ps"]))
    image = "763104351884.dkr.ecr.us-west-2.amazonaws.com/mxnet-training:1.9.0-gpu-py38"
    request["AlgorithmSpecification"] |= {"TrainingImage": image}
    request["HyperParameters"].pop("model_dir")
    # as the SDK sends it for its own images
    request["HyperParameters"]["sagemaker_training_compiler_enabled"] = "true"
    found = adopted(request)
    assert found.equal, [vars(item) for item in found.differences]
    assert found.job.distribution == ct.NoDistribution()
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "cloudtrain.toml").write_text(found.settings_text)
    (tmp_path / "job.yaml").write_text(found.job_text)
    plan = ct.plan(ct.load_job(tmp_path / "job.yaml"), "sagemaker")
    assert plan.request["HyperParameters"]["sagemaker_parameter_server_enabled"] == "true"
    assert [finding.code for finding in plan.findings if finding.level is ct.Level.ERROR] == []


def tuning(**config: Any) -> dict[str, Any]:
    """A tuning job as version 2 of the SDK asks for it."""
    definition = {name: value for name, value in FULL.items() if name in OF_DEFINITION}
    of_machines = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
    machines = {
        name: value for name, value in FULL["ResourceConfig"].items() if name in of_machines
    }
    definition["AlgorithmSpecification"] = {
        **{
            name: FULL["AlgorithmSpecification"][name]
            for name in ("TrainingImage", "TrainingInputMode")
        },
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    }
    continuous = [
        {"Name": "lr", "MinValue": "0.001", "MaxValue": "0.1", "ScalingType": "Logarithmic"}
    ]
    return {
        "HyperParameterTuningJobName": "pytorch-training-251122-1015",
        "HyperParameterTuningJobConfig": {
            "Strategy": "Bayesian",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 20, "MaxParallelTrainingJobs": 2},
            "ParameterRanges": {
                "ContinuousParameterRanges": continuous,
                "CategoricalParameterRanges": [{"Name": "bs", "Values": ['"16"', '"32"']}],
                "IntegerParameterRanges": [
                    {"Name": "depth", "MinValue": "2", "MaxValue": "8", "ScalingType": "Linear"}
                ],
            },
            "TrainingJobEarlyStoppingType": "Auto",
            **config,
        },
        "TrainingJobDefinition": {
            **definition,
            "StaticHyperParameters": FULL["HyperParameters"],
            "HyperParameterTuningResourceConfig": machines,
        },
    }


OF_DEFINITION = (
    "RoleArn", "InputDataConfig", "VpcConfig", "OutputDataConfig", "StoppingCondition", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "RetryStrategy", "Environment",
)  # fmt: skip


def test_a_tuning_job_is_adopted_as_a_sweep(
    adopted: Callable[..., ct.Adoption], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose plan sends the request; its file can be read."""
    found = adopted(tuning(RandomSeed=7))
    assert found.equal, [vars(item) for item in found.differences]
    (tmp_path / "request.json").write_text(json.dumps(tuning(RandomSeed=7)))
    assert (
        run_command(["adopt", str(tmp_path / "request.json"), "--write", str(tmp_path / "out")])
        == 0
    )
    assert "equal: the job sends the same request" in capsys.readouterr().err
    sweep = ct.load_sweep(tmp_path / "out" / "sweep.yaml")
    assert (sweep.name, sweep.strategy, sweep.trials, sweep.parallel, sweep.seed) == (
        "pytorch-training", "bayesian", 20, 2, 7
    )  # fmt: skip
    assert sweep.search["bs"].choice == ("16", "32")
    assert sweep.objective == ct.Objective(minimize="loss")


def test_what_a_sweep_cannot_say(adopted: Callable[..., ct.Adoption]) -> None:
    """Of a search each difference with its reason; where nothing of it can be said, the trial's job."""
    document = tuning(Autotune={"Mode": "Enabled"})
    document["WarmStartConfig"] = {
        "WarmStartType": "TransferLearning",
        "ParentHyperParameterTuningJobs": [],
    }
    document["TrainingJobDefinition"]["CheckpointConfig"] = {"S3Uri": "s3://b/c"}
    rows = document["HyperParameterTuningJobConfig"]["ParameterRanges"]
    found = adopted(document)
    assert found.sweep is not None
    assert sorted(item.path for item in found.differences) == [
        "CheckpointConfig",
        "HyperParameterTuningJobConfig.Autotune",
        "WarmStartConfig",
    ]
    rows["ContinuousParameterRanges"][0]["ScalingType"] = "ReverseLogarithmic"
    found = adopted(document)
    assert found.sweep is None
    assert {"HyperParameterTuningJobConfig", "ParameterRanges"} <= {
        item.path for item in found.differences
    }
    assert any(
        "no scale `ReverseLogarithmic` for `lr`" in item.reason for item in found.differences
    )


def test_a_search_that_a_sweep_refuses_says_why(adopted: Callable[..., ct.Adoption]) -> None:
    """With the error of the sweep's field."""
    document = tuning()
    document["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]["MetricName"] = (
        "loss of a trial"
    )
    definition = document["TrainingJobDefinition"]
    own = {
        "sagemaker_job_name": '"base"',
        "sagemaker_submit_directory": '"s3://b/c/sourcedir.tar.gz"',
    }
    definition |= {
        "StaticHyperParameters": definition["StaticHyperParameters"] | own,
        "InputDataConfig": [],
    }
    definition |= {"EnableNetworkIsolation": False}
    found = adopted(document)
    assert found.sweep is None
    assert {item.path for item in found.differences} == {
        "HyperParameterTuningJobConfig",
        "ParameterRanges",
    }
    assert any("loss of a trial" in item.reason for item in found.differences)
    assert (found.job.entry_point, "sagemaker_program" in found.job.hyperparameters) == (
        "train.py",
        False,
    )


def test_scales_that_the_tuner_chooses(adopted: Callable[..., ct.Adoption]) -> None:
    """`Auto` is the default of the service and of the SDK; bounds may be whole numbers."""
    document = tuning()
    document["HyperParameterTuningJobConfig"]["ParameterRanges"] = {
        "ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}],
        "IntegerParameterRanges": [
            {"Name": "depth", "MinValue": "2", "MaxValue": "8", "ScalingType": "Auto"}
        ],
    }
    found = adopted(document)
    assert found.equal, [vars(item) for item in found.differences]
    assert found.sweep is not None
    assert found.sweep["search"]["lr"] == {"uniform": [0.0, 1.0], "scale": "auto"}


def test_a_search_of_an_algorithm_of_aws(adopted: Callable[..., ct.Adoption]) -> None:
    """Its metrics have a colon in their names, and no definitions in the request; the list has one job."""
    document = tuning()
    definition = document.pop("TrainingJobDefinition")
    image = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1"
    definition |= {
        "DefinitionName": "xgboost",
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File"},
        "StaticHyperParameters": {"num_round": "100", "eval_metric": "auc"},
        "TuningObjective": {"Type": "Maximize", "MetricName": "validation:auc"},
        "HyperParameterRanges": document["HyperParameterTuningJobConfig"].pop("ParameterRanges"),
    }
    del document["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]
    found = adopted(document | {"TrainingJobDefinitions": [definition]})
    assert found.equal, [vars(item) for item in found.differences]
    assert found.sweep is not None
    assert found.sweep["objective"] == {"maximize": "validation:auc"}


def test_a_search_whose_ranges_the_tuner_chooses_keeps_the_code(
    adopted: Callable[..., ct.Adoption],
) -> None:
    """With Autotune, the SDK sends all hyperparameters as hints: the script and its code, too."""
    document = tuning(Autotune={"Mode": "Enabled"})
    hints = document["TrainingJobDefinition"].pop("StaticHyperParameters")
    rows = [{"Name": name, "ValueHint": text} for name, text in hints.items()]
    document["HyperParameterTuningJobConfig"]["ParameterRanges"] = {"AutoParameters": rows}
    found = adopted(document)
    assert found.sweep is None
    assert found.job.entry_point == "train.py"
    reasons = {item.path: item.reason for item in found.differences}
    assert "Autotune" in reasons["HyperParameterTuningJobConfig"]
    assert "sagemaker_program" not in reasons["ParameterRanges"]


def test_nulls_are_missing_fields(adopted: Callable[..., ct.Adoption]) -> None:
    """Deep in a request, too. A null in a list stands for nothing."""
    nothing = {"VpcConfig": None, "CheckpointConfig": {"S3Uri": None}, "InputDataConfig": None}
    channel = {"ChannelName": "train", "ContentType": None, "ShuffleConfig": {"Seed": None}, "DataSource": {
        "FileSystemDataSource": None, "S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/d", "AttributeNames": None},
    }}  # fmt: skip
    request = SAGEMAKER["est_byoc_plain"] | {
        "OutputDataConfig": {"S3OutputPath": "s3://b/o", "KmsKeyId": None}
    }
    for own in (
        nothing,
        {"InputDataConfig": [channel], "StoppingCondition": {"MaxRuntimeInSeconds": None}},
    ):
        assert adopted(request | own).equal
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(request | {"InputDataConfig": [None]})
    assert "`null`" in caught.value.message
    assert caught.value.hint is not None


def test_a_tuning_job_is_adopted_without_its_search(adopted: Callable[..., ct.Adoption]) -> None:
    """The training job of a tuning job, and the search as a difference."""
    definition = {
        key: value
        for key, value in FULL.items()
        if key not in ("HyperParameters", "TrainingJobName", "Tags")
    }
    document = {
        "HyperParameterTuningJobName": "tune",
        "HyperParameterTuningJobConfig": {
            "ParameterRanges": {
                "ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}]
            }
        },
        "TrainingJobDefinition": definition | {"StaticHyperParameters": FULL["HyperParameters"]},
    }
    found = adopted(document)
    assert {item.path for item in found.differences} == {
        "HyperParameterTuningJobConfig",
        "ParameterRanges",
    }
    assert found.job.entry_point == "train.py"


UNSAYABLE: dict[str, dict[str, Any]] = {
    "an algorithm of the marketplace": {
        "AlgorithmSpecification": {
            "TrainingInputMode": "File",
            "AlgorithmName": "arn:aws:sagemaker:x:algorithm/a",
        }
    },
    "two collections of one name": {
        "DebugHookConfig": {
            "S3OutputPath": "s3://b/d",
            "CollectionConfigurations": [{"CollectionName": "c"}] * 2,
        }
    },
    "a collection without a name": {
        "DebugHookConfig": {
            "S3OutputPath": "s3://b/d",
            "CollectionConfigurations": [{"CollectionParameters": {}}],
        }
    },
    "a profiler that is neither on nor off": {"ProfilerConfig": {"S3OutputPath": "s3://b/p"}},
    "a folder of checkpoints that a shell would split": {
        "CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/c d"}
    },
    "a field of tomorrow": {"NewConfig": {"Enable": True, "Rates": [1, 2.5, None]}},
    "a hyperparameter that is no JSON": {
        "HyperParameters": FULL["HyperParameters"] | {"x": "plain text", "y": "01"}
    },
}


@pytest.mark.parametrize("case", UNSAYABLE)
def test_what_fields_cannot_say_goes_to_overrides(
    case: str, adopted: Callable[..., ct.Adoption]
) -> None:
    """Never silently away: the request is the same, or the difference is listed."""
    request = {key: value for key, value in FULL.items() if key != "EnableNetworkIsolation"}
    request["HyperParameters"] = request["HyperParameters"] | {
        "sagemaker_submit_directory": '"s3://my-bucket/code/golden/source/sourcedir.tar.gz"'
    }
    request["InputDataConfig"] = request["InputDataConfig"][:1]
    found = adopted(request | UNSAYABLE[case])
    assert found.differences == ()
    assert found.fields.get("sagemaker_overrides") or case.startswith("a hyperparameter")


RULE = {
    "RuleConfigurationName": "r", "RuleEvaluatorImage": "i:1", "InstanceType": "ml.m5.xlarge", "VolumeSizeInGB": 10,
    "LocalPath": "/r", "S3OutputPath": "s3://b/r", "RuleParameters": {"rule_to_invoke": "LossNotDecreasing"},
}  # fmt: skip

SAYABLE: dict[str, dict[str, Any]] = {
    "a checkpoint without a path": {"CheckpointConfig": {"S3Uri": "s3://b/c"}},
    "pipe mode of the job": {
        "AlgorithmSpecification": FULL["AlgorithmSpecification"] | {"TrainingInputMode": "Pipe"}
    },
    "a run of an experiment": {"ExperimentConfig": {"ExperimentName": "e", "RunName": "r"}},
    "MLflow": {"MlflowConfig": {"MlflowResourceArn": "arn:aws:sagemaker:x", "MlflowRunName": "r"}},
    "debugger rules": {
        "DebugRuleConfigurations": [{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i:1"}]
    },
    "rules in full": {
        "DebugRuleConfigurations": [RULE],
        "ProfilerRuleConfigurations": [RULE, RULE | {"RuleConfigurationName": "s"}],
    },
    "the debugger's hook": {
        "DebugHookConfig": {
            "S3OutputPath": "s3://b/d",
            "LocalPath": "/d",
            "HookParameters": {"save_interval": "10"},
            "CollectionConfigurations": [
                {"CollectionName": "losses", "CollectionParameters": {"save_interval": "5"}},
                {"CollectionName": "all"},
            ],
        }
    },
    "the profiler": {
        "ProfilerConfig": {
            "S3OutputPath": "s3://b/p",
            "DisableProfiler": False,
            "ProfilingIntervalInMilliseconds": 500,
            "ProfilingParameters": {"FileOpenFailThreshold": "50"},
        }
    },
    "a folder of TensorBoard": {
        "TensorBoardOutputConfig": {"S3OutputPath": "s3://b/t", "LocalPath": "/tb"}
    },
    "a folder of checkpoints": {
        "CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/mine"}
    },
    "TensorBoard": {"TensorBoardOutputConfig": {"S3OutputPath": "s3://b/t"}},
    "a channel with another name": {
        "InputDataConfig": [FULL["InputDataConfig"][0] | {"ChannelName": "train-1.x"}]
    },
    "preferences with counts and plans": {
        "ResourceConfig": {
            "VolumeSizeInGB": 30,
            "InstancePreferences": [
                {
                    "InstanceType": "ml.p5.48xlarge",
                    "InstanceCount": 2,
                    "TrainingPlanArns": ["arn:aws:sagemaker:x:p"],
                },
                {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4},
            ],
        }
    },
    "one count for all preferences": {
        "ResourceConfig": {
            "VolumeSizeInGB": 30,
            "InstanceCount": 2,
            "InstancePreferences": [
                {"InstanceType": "ml.p5.48xlarge"},
                {"InstanceType": "ml.p4d.24xlarge"},
            ],
        }
    },
    "tags of the session": {"SessionChainingConfig": {"EnableSessionTagChaining": True}},
}


@pytest.mark.parametrize("case", SAYABLE)
def test_what_fields_and_settings_say(case: str, adopted: Callable[..., ct.Adoption]) -> None:
    """No override names the field."""
    request = {key: value for key, value in FULL.items() if key != "EnableNetworkIsolation"}
    request["HyperParameters"] = request["HyperParameters"] | {
        "sagemaker_submit_directory": '"s3://my-bucket/code/golden/source/sourcedir.tar.gz"'
    }
    request["InputDataConfig"] = request["InputDataConfig"][:1]
    found = adopted(request | SAYABLE[case])
    assert found.differences == ()
    assert not found.fields.get("sagemaker_overrides", {}).keys() & (
        SAYABLE[case].keys() | {"InputDataConfig"}
    )
    assert read_document(found.settings_text, "toml").data == {"sagemaker": found.settings}


def test_channels_whose_names_are_no_inputs(adopted: Callable[..., ct.Adoption]) -> None:
    """Each has a name of its own in the job, and the channel's beside it."""
    source = {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            "S3Uri": "s3://b/x",
            "S3DataDistributionType": "FullyReplicated",
        }
    }
    names = ("a-b", "a.b", "a_b", "1x")
    found = adopted(
        FULL | {"InputDataConfig": [{"ChannelName": name, "DataSource": source} for name in names]}
    )
    assert {name: item.channel for name, item in found.job.inputs.items()} == {
        "a_b_": "a-b", "a_b__": "a.b", "a_b": None, "_1x": "1x",
    }  # fmt: skip


def test_the_answer_of_the_service_is_adopted(adopted: Callable[..., ct.Adoption]) -> None:
    """A body that was read back: its id names the workspace, and what the service added is dropped."""
    workspace = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.MachineLearningServices/workspaces/ws"
    body = json.loads(json.dumps(AZUREML["pytorch_2x8"]))
    body["properties"] |= {
        "status": "Completed",
        "computeId": f"{workspace}/computes/gpu-cluster",
        "codeId": f"{workspace}/codes/abc/versions/1",
        "services": {"Studio": {"endpoint": "https://x"}, "Tracking": {"endpoint": "azureml://x"}},
    }
    found = adopted(
        {"id": f"{workspace}/jobs/lemon_plow", "name": "lemon_plow", "systemData": {}} | body
    )
    assert found.equal
    assert found.job.name == "lemon-plow"
    assert found.settings["compute"] == "gpu-cluster"
    assert (found.settings["subscription_id"], found.settings["workspace"]) == ("sub", "ws")
    assert "az ml job download" in found.job_text


def test_a_data_asset_that_the_service_names_by_its_id(adopted: Callable[..., ct.Adoption]) -> None:
    """The adopted job can be planned, and sends that id; a tier `Null` was none, and is not sent back."""
    workspace = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.MachineLearningServices/workspaces/ws"
    asset = f"{workspace}/data/test_514063525183/versions/foo"
    inputs = {
        "train": {
            "jobInputType": "uri_folder",
            "uri": asset,
            "mode": "ReadOnlyMount",
            "description": None,
        }
    }
    body = json.loads(json.dumps(AZUREML["single_node"]))
    body["properties"] |= {
        "status": "Completed",
        "inputs": inputs,
        "codeId": None,
        "queueSettings": {"jobTier": "Null"},
    }
    body["properties"]["command"] = "ls ${{inputs.train}}"
    found = adopted({"id": f"{workspace}/jobs/lemon_plow", "name": "lemon_plow"} | body)
    assert found.equal, [vars(item) for item in found.differences]
    assert "azureml_overrides" not in found.fields
    plan = ct.plan(
        parse_job(found.job_text, format="yaml", file="job.yaml"), ct.AzureML(**found.settings)
    )
    assert plan.request["properties"]["inputs"]["train"]["uri"] == asset
    assert "queueSettings" not in plan.request["properties"]


def test_a_pipeline_has_several_jobs(adopted: Callable[..., ct.Adoption]) -> None:
    """One of them is chosen by name; the error says how."""
    step = AZUREML["single_node"]["properties"]
    body = {
        "properties": {
            "jobType": "Pipeline",
            "jobs": {"prepare": step, "train": step | {"command": "python t.py"}},
        }
    }
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(body)
    assert "`prepare` (equal), `train` (equal)" in caught.value.message
    assert "--job prepare" in str(caught.value.hint)
    assert adopted(body, job="train").job.command == "python t.py"
    body["properties"]["jobs"] = {
        "train": step,
        "score": {"type": "command", "componentId": "azureml:score:1"},
    }
    (left_out,) = adopted(body).differences
    assert (left_out.path, "`azureml:score:1`" in left_out.reason) == ("jobs.score", True)


def test_the_trial_of_a_sweeps_body(adopted: Callable[..., ct.Adoption]) -> None:
    """Each part of the search is a difference, under its name in the body; the trial's own limit is kept."""
    single = AZUREML["single_node"]["properties"]
    trial = {key: single[key] for key in ("codeId", "environmentId")} | {
        "command": "t ${{search_space.lr}}"
    }
    body = {
        "properties": {
            "jobType": "Sweep",
            "computeId": "gpu",
            "trial": trial,
            "searchSpace": {"lr": ["uniform", [0, 1]]},
            "objective": {"goal": "Maximize", "primaryMetric": "accuracy"},
            "samplingAlgorithm": {"samplingAlgorithmType": "Random"},
            "limits": {"jobLimitsType": "Sweep", "maxTotalTrials": 4, "trialTimeout": "PT600S"},
        }
    }
    found = adopted(body)
    assert found.job.max_runtime == 600
    assert [item.path for item in found.differences] == [
        "searchSpace", "samplingAlgorithm", "objective", "limits.maxTotalTrials",
    ]  # fmt: skip
    assert found.differences[0].reason.endswith("its command names no script in Python")


@pytest.mark.parametrize(
    "document",
    [
        {"ProcessingJobName": "p"}, {"properties": {"jobType": "AutoML"}}, {"a": 1}, [], "", "{", "a: [", "a: b: c",
        {"name": "x", "entry_point": "train.py"}, "!!python/object:os.system {}", '{"a": 1}{', "\0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["request.json", "request.yaml", "request"])
def test_what_cannot_be_adopted_is_refused(
    document: Any, name: str, adopted: Callable[..., ct.Adoption]
) -> None:
    """With a code and a hint."""
    with pytest.raises(ct.CloudtrainError) as caught:
        adopted(document, name=name)
    assert caught.value.code == "CT981"
    assert caught.value.hint


TEXTS = ["", " x", "yes", "010", "1e-4", "a: b", "- a", "line\nline\n", "\n", "a\n\n", "tab\t", "é \u2028", "${{inputs.x}}",
         "'", '"', "# no", "null", "~", "1.0", "0x1f", "=", "*a", "&a", "a #b", "%", "@x", "\\", "a\n  b\nc"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_files(text: str) -> None:
    """As a value and as a key, in YAML and in TOML, beside comments."""
    data = {"a": {text: [text, {"b": text}]}, "b": text, "c": [text * 30] * 5}
    assert (
        read_document(job_yaml(data, {("a",): "why\nbecause", ("z",): "gone"}), "yaml").data == data
    )
    assert read_document(settings_toml("t", {"a": [text], "b": {text: text}}), "toml").data == {
        "t": {"a": [text], "b": {text: text}}
    }
