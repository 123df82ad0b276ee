"""What requests of training jobs and processing jobs have in common: the API's names, and the
locations of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.plans.document import visible, visible_json
from cloudtrain.targets.sagemaker.fields import CHECKPOINT, OUTPUT

if TYPE_CHECKING:
    from cloudtrain.plans.plan import Plan

# The API's operations and field names for training jobs and processing jobs, which have the same
# life cycle.


class JobKind:
    """The boto3 operations and API field names of one job type: `training` has `TrainingJobName`.

    `outputs` is the field with the location of results and their KMS key.
    """

    def __init__(self, noun: str, outputs: str) -> None:
        title = noun.title().replace("_", "")
        self.noun = noun
        self.name: str = f"{title}JobName"
        self.status: str = f"{title}JobStatus"
        self.arn: str = f"{title}JobArn"
        self.start_time: str = f"{title}StartTime"
        self.end_time: str = f"{title}EndTime"
        self.summaries: str = f"{title}JobSummaries"
        self.log_group: str = f"/aws/sagemaker/{title}Jobs"
        self.create: str = f"create_{noun}_job"
        self.describe: str = f"describe_{noun}_job"
        self.stop: str = f"stop_{noun}_job"
        self.list: str = f"list_{noun}_jobs"
        self.outputs = outputs


TRAINING = JobKind("training", outputs=OUTPUT)
PROCESSING = JobKind("processing", outputs="ProcessingOutputConfig")
KINDS = (TRAINING, PROCESSING)


def kind_of(body: Mapping[str, Any], kinds: tuple[JobKind, ...] = KINDS) -> JobKind:
    """Return the job type of a request or job description.

    The first name counts: an override may add the other type's name, which stands behind.
    """
    by_name = {kind.name: kind for kind in kinds}
    return next(by_name[name] for name in body if name in by_name)


# `s3://bucket/key`, the form of all S3 addresses.


class S3Uri(NamedTuple):
    """An S3 address: `s3://bucket/key`."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Uri:
        """Parse an address into bucket and key. The key may be empty."""
        bucket, _, key = text.removeprefix("s3://").partition("/")
        return cls(bucket, key)

    @property
    def folder(self) -> str:
        """Return the prefix of all keys in this folder: `data/` for the key `data`; empty if the
        key is empty."""
        if not self.key:
            return ""
        return self.key.rstrip("/") + "/"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


# The S3 locations of a job's results.

Places = Mapping[str, S3Uri]
"""Maps `model`, `outputs`, `outputs/NAME`, `checkpoint` to a folder, or to an archive
(`.tar.gz`)."""


def places_of(description: Mapping[str, Any], kind: JobKind) -> Places:
    """Return the S3 locations of a job's results.

    Locations that the description does not contain are computed from SageMaker's documented folder
    layout.
    """
    places: dict[str, str | None] = {}
    if kind is not TRAINING:
        for item in description.get("ProcessingOutputConfig", {}).get("Outputs", ()):
            name = item["OutputName"]
            places[f"outputs/{name}"] = item.get("S3Output", {}).get("S3Uri")
    else:
        config = description[OUTPUT]
        folder = config["S3OutputPath"].rstrip("/")
        root = f"{folder}/{description[kind.name]}/output"
        if config.get("CompressionType") == "NONE":
            places = {"model": f"{root}/model/", "outputs": f"{root}/data/"}
        else:
            places = {"model": f"{root}/model.tar.gz", "outputs": f"{root}/output.tar.gz"}
        model = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
        if model:
            places["model"] = model
        places["checkpoint"] = description.get(CHECKPOINT, {}).get("S3Uri")
    return {name: S3Uri.parse(uri) for name, uri in places.items() if uri}


def outputs_of(request: Mapping[str, Any], kind: JobKind) -> dict[str, str]:
    """Map the results of a run to the S3 locations that its request names."""
    return {name: str(uri) for name, uri in places_of(request, kind).items()}


# The tag that marks a SageMaker job as created by cloudtrain.

RUN_TAG = "cloudtrain:run"
"""The tag's key; its value is the run's name."""


# The request in other tools' formats. What the SageMaker SDK needs is read only when somebody asks
# for it.


def is_of_api(request: Mapping[str, Any]) -> bool:
    """Return whether the request is one of SageMaker's API, and not that of an emulated job."""
    names = (TRAINING.name, PROCESSING.name, "HyperParameterTuningJobName")
    return not request.keys().isdisjoint(names)


def forms_of(plan: Plan) -> dict[str, Callable[[], str]]:
    """`aws-cli`: JSON for `--cli-input-json` of the AWS command line. `python` (only for training
    jobs): code for version 2 of the SDK."""
    forms: dict[str, Callable[[], str]] = {}
    if is_of_api(plan.request):
        text = json.dumps(plan.request, indent=2, ensure_ascii=False)
        forms["aws-cli"] = lambda: visible_json(text + "\n")
    if TRAINING.name in plan.request:
        forms["python"] = lambda: visible(plan.to_python())
    return forms
