"""Requests to look at: recorded ones, and small ones made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.request import Host, hosts

GOLDEN = Path(__file__).parents[2] / "golden"


def recorded(case: str) -> dict[str, Any]:
    """A CreateTrainingJob body that the SageMaker SDK sent."""
    found: dict[str, Any] = json.loads((GOLDEN / "sagemaker_sdk_v2" / f"{case}.json").read_text())[
        "request"
    ]
    return found


def request(
    instance_type: str = "ml.g5.12xlarge",
    count: int = 1,
    *,
    groups: dict[str, tuple[str, int]] | None = None,
    environment: dict[str, str] | None = None,
    **hyperparameters: Any,
) -> dict[str, Any]:
    """A small body, with hyperparameters encoded as the SDK does."""
    resources: dict[str, Any] = {"InstanceType": instance_type, "InstanceCount": count}
    if groups:
        resources = {
            "InstanceGroups": [
                {"InstanceGroupName": name, "InstanceType": of, "InstanceCount": number}
                for name, (of, number) in groups.items()
            ]
        }
    values = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://b/c.tar.gz",
        **hyperparameters,
    }
    return {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "ResourceConfig": resources,
        "HyperParameters": {key: json.dumps(value) for key, value in values.items()},
        "Environment": environment or {},
    }


def host_named(body: dict[str, Any], name: str = "algo-1") -> Host:
    """One host of a job."""
    return next(host for host in hosts(body) if host.name == name)


def pytorch(toolkit: str = "5.1.4", **contents: Any) -> ImageContents:
    """A PyTorch image."""
    return ImageContents("pytorch", toolkit, **contents)
