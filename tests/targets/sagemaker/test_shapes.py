"""What the service accepts: each kind of violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.targets.sagemaker.catalogue import shapes
from cloudtrain.targets.sagemaker.catalogue.shapes import ShapeViolation, violations
from tests.guards import skip_guard
from tests.hints import one_of, suggested

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "sagemaker_sdk_v2"

GOOD: dict[str, Any] = {
    "TrainingJobName": "cifar10-ddp",
    "RoleArn": "arn:aws:iam::123456789012:role/SageMakerRole",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "Tags": [{"Key": "équipe", "Value": "vision 2"}],
}

REFUSED = {
    "pt_bad_job_name": ("TrainingJobName",),
    "pt_no_such_instance": ("ResourceConfig", "InstanceType"),
    "pt_no_such_instance_g": ("ResourceConfig", "InstanceType"),
}
"""Recorded requests of SDK 2 that the service would refuse, and where."""


def with_(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The good request with one other value."""
    request = json.loads(json.dumps(GOOD))
    place = request
    for part in path[:-1]:
        place = place[part] if isinstance(place, list) else place.setdefault(part, {})
    place[path[-1]] = value
    return dict(request)


def one(path: tuple[str | int, ...], value: Any) -> ShapeViolation:
    """The only violation of the good request with one other value."""
    (found,) = violations(with_(path, value))
    return found


def recorded() -> list[Any]:
    """Every recorded training request."""
    requests = {
        file.stem: json.loads(file.read_text())["request"] for file in sorted(GOLDEN.glob("*.json"))
    }
    return [
        pytest.param(request, id=name)
        for name, request in requests.items()
        if "RoleArn" in (request or {})
    ]


def test_a_good_request_has_no_violation() -> None:
    """Letters of all languages are letters in a tag."""
    assert violations(GOOD) == []


@pytest.mark.parametrize("request_", recorded())
def test_what_sdk_2_sent_is_accepted(
    request_: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """No recorded request has a violation, but for those that the service would refuse."""
    found = [violation.path for violation in violations(request_)]
    case = request.node.callspec.id
    assert found == ([REFUSED[case]] if case in REFUSED else [])


@pytest.mark.parametrize(
    ("path", "value", "kind", "message", "hint"),
    [
        (("TrainingJobName",), "a" * 64, "max", "`TrainingJobName` has 64 characters, and the service takes at most 63", "use at most 63 characters"),
        (("TrainingJobName",), "my_job", "pattern", '`TrainingJobName` is `"my_job"`, which the service refuses', "letters, digits and hyphens"),
        (("TrainingJobName",), "job\n", "pattern", "which the service refuses", "letter or digit at both ends"),
        (("RoleArn",), "arn:aws:iam::1:role/SageMaker", "pattern", "which the service refuses", "arn:aws:iam::123456789012:role/R"),
        (("RoleArn",), "admin", "min", "`RoleArn` has 5 characters, and the service takes at least 20", "use at least 20 characters"),
        (("OutputDataConfig", "S3OutputPath"), "bucket/out", "pattern", "`OutputDataConfig.S3OutputPath`", "`s3://bucket/folder`"),
        (("ResourceConfig", "InstanceTyp"), "x", "unknown", "`ResourceConfig` has no field `InstanceTyp`", suggested("InstanceType")),
        (("ResourceConfig", "InstanceType"), "ml.p4d.24xlage", "enum", "which the service does not know", suggested("ml.p4d.24xlarge")),
        (("ResourceConfig", "InstanceType"), "8 GPUs please", "enum", "which the service does not know", None),
        (("ResourceConfig", "InstanceCount"), -1, "min", "`ResourceConfig.InstanceCount` is -1, and the service takes at least 0", "write `0` or more"),
        (("ResourceConfig", "InstanceCount"), "2", "type", "and the service takes a whole number", "write a whole number"),
        (("ResourceConfig", "InstanceCount"), True, "type", "is `true`, and the service takes a whole number", "write a whole number"),
        (("ResourceConfig", "KeepAlivePeriodInSeconds"), 21601, "max", "is 21,601, and the service takes at most 21,600", "write `21600` or less"),
        (("AlgorithmSpecification", "TrainingInputMode"), "Files", "enum", "does not know", suggested("File")),
        (("AlgorithmSpecification", "TrainingInputMode"), "mount", "enum", "does not know", one_of("FastFile", "File", "Pipe")),
        (("AlgorithmSpecification", "ContainerEntrypoint"), [], "min", "has 0 entries, and the service takes at least 1", "use at least 1 entry"),
        (("HyperParameters",), {f"p{n}": "1" for n in range(101)}, "max", "`HyperParameters` has 101 entries, and the service takes at most 100", "use at most 100 entries"),
        (("HyperParameters", "lr"), 0.1, "type", "`HyperParameters.lr` is `0.1`, and the service takes a text", "write a text"),
        (("HyperParameters", "text"), "two\nlines", "pattern", "which the service refuses", "one line"),
        (("HyperParameters", "k" * 257), "1", "max", "a key of `HyperParameters` has 257 characters", "use at most 256 characters"),
        (("Environment", "2GPUS"), "1", "pattern", 'a key of `Environment` is `"2GPUS"`, which the service refuses', "no digit first"),
        (("Environment", "A"), "x" * 513, "max", "`Environment.A` has 513 characters, and the service takes at most 512", "use at most 512 characters"),
        (("Tags", 0, "Key"), "a;b", "pattern", '`Tags[0].Key` is `"a;b"`', "letters, digits, spaces"),
        (("Tags",), {"Key": "a"}, "type", "`Tags` is a mapping, and the service takes a list", "write a list"),
        (("EnableNetworkIsolation",), "yes", "type", "and the service takes true or false", "write true or false"),
        (("VpcConfig",), {"Subnets": ["s-1"]}, "missing", "`VpcConfig` needs `SecurityGroupIds`", "add `SecurityGroupIds`"),
    ],
)  # fmt: skip
def test_each_violation(
    path: tuple[str | int, ...], value: Any, kind: str, message: str, hint: str | None
) -> None:
    """Each is found where it stands, with the numbers in the message."""
    found = one(path, value)
    assert found.kind == kind
    assert found.path[: len(path)] == path
    assert message in found.message
    assert (hint is None) == (found.hint is None)
    assert (hint or "") in (found.hint or "")


@pytest.mark.parametrize("case", ["proc_script", "proc_pytorch_framework"])
def test_what_sdk_2_sent_for_processing_is_accepted(case: str) -> None:
    """The shapes of CreateProcessingJob, too; and they are other shapes."""
    request = json.loads(
        (GOLDEN.parent / "sagemaker_sdk_v2_processing" / f"{case}.json").read_text()
    )["request"]
    assert violations(request, "CreateProcessingJob") == []
    assert "unknown" in {violation.kind for violation in violations(request, "CreateTrainingJob")}


def test_the_operation_names_the_request() -> None:
    """A field of the request itself is one of its operation."""
    request = {name: value for name, value in GOOD.items() if name != "RoleArn"}
    (found,) = violations(request)
    assert (found.path, found.message) == (("RoleArn",), "`CreateTrainingJob` needs `RoleArn`")
    messages = [fault.message for fault in violations({}, "CreateProcessingJob")]
    assert "`CreateProcessingJob` needs `RoleArn`" in messages


def test_a_misspelt_field_is_reported_once() -> None:
    """Not also as missing: the hint names it."""
    request = {("RoleARN" if name == "RoleArn" else name): value for name, value in GOOD.items()}
    (found,) = violations(request)
    assert (found.path, found.hint) == (("RoleARN",), suggested("RoleArn"))


def test_the_words_for_patterns_are_for_patterns_that_exist() -> None:
    """A pattern that the model no longer has would be shown raw."""
    patterns = {shape.get("pattern") for shape in shapes._model()["shapes"].values()}
    assert set(shapes._hints()) <= patterns


def test_the_table_is_what_botocore_says() -> None:
    """The drift test: the generator finds nothing to change, where botocore is the one that it was made with."""
    botocore = pytest.importorskip("botocore")
    if botocore.__version__ != shapes._model()["botocore"]:
        skip_guard(
            f"made with botocore {shapes._model()['botocore']}, here is {botocore.__version__}"
        )
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "generate" / "sagemaker_shapes.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
