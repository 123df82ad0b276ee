"""The S3 locations of a job's results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.targets.sagemaker.jobs import TRAINING, JobKind
from cloudtrain.targets.sagemaker.s3_uri import S3Uri

Places = Mapping[str, S3Uri]
"""Maps `model`, `outputs`, `outputs/NAME`, `checkpoint` to a folder, or to an archive (`.tar.gz`)."""


def places_of(description: Mapping[str, Any], kind: JobKind) -> Places:
    """Return the S3 locations of a job's results.

    Locations that the description does not contain are computed from SageMaker's documented folder layout.
    """
    if kind is not TRAINING:
        outputs = description.get("ProcessingOutputConfig", {}).get("Outputs", ())
        named = {item["OutputName"]: item.get("S3Output", {}).get("S3Uri") for item in outputs}
        return {f"outputs/{name}": S3Uri.parse(uri) for name, uri in named.items() if uri}
    config = description["OutputDataConfig"]
    root = f"{config['S3OutputPath'].rstrip('/')}/{description[kind.name]}/output"
    packed = config.get("CompressionType", "GZIP") != "NONE"
    model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    checkpoint = description.get("CheckpointConfig", {}).get("S3Uri")
    places = {
        "model": model or f"{root}/model{'.tar.gz' if packed else '/'}",
        "outputs": f"{root}/{'output.tar.gz' if packed else 'data/'}",
        "checkpoint": checkpoint,
    }
    return {name: S3Uri.parse(uri) for name, uri in places.items() if uri}
