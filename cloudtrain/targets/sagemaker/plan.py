"""The plan of a job on SageMaker, which can also be exported to the SageMaker Python SDK: as an object or as code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from cloudtrain.errors import UsageError
from cloudtrain.plans.document import visible, visible_json
from cloudtrain.plans.plan import Plan

if TYPE_CHECKING:
    from cloudtrain.targets.common.export import Program


class SageMakerPlan(Plan):
    """The compiled job. `request` is the body of the API request, from which all SDK calls and formats are made.

    If you start the job with the SDK, the archive of the code must already be at the S3 address in `plan.uploads`.
    `cloudtrain submit --upload-only` uploads it.
    """

    @classmethod
    def of(cls, plan: Plan) -> SageMakerPlan:
        """Return a compiled plan as a `SageMakerPlan`. `plan.place` must be set."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Return the S3 locations of the run's results.

        Empty for a sweep: each trial has its own locations, and the service chooses their names.
        """
        if "HyperParameterTuningJobName" in self.request:
            return {}

        return {name: str(uri) for name, uri in places_of(self.request, kind_of(self.request)).items()}

    @property
    def region(self) -> str:
        """Return the AWS region to which the request is sent."""
        return self.place.rpartition("@")[2]

    @property
    def profile(self) -> str | None:
        """Return the target's AWS profile; None if boto3 finds the credentials itself."""
        profile, at, _ = self.place.partition("@")
        return unquote(profile) if at else None

    def to_estimator(self, session: Any = None) -> Any:
        """Return the estimator of version 2 of the SDK whose `fit` sends exactly `request`.

            plan.to_estimator().fit(**plan.fit_arguments())

        If you pass a `sagemaker.Session`, it must use this plan's region. Its configuration must set no defaults for
        training jobs, because the SDK would add them to the request. By default, cloudtrain makes a session that reads
        no configuration files and sends no telemetry.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export import build

        return build(self._estimator(), session=session)[0]

    def fit_arguments(self) -> dict[str, Any]:
        """Return the arguments for the estimator's `fit`: inputs, the job's name, and the experiment.

        Raises: the same errors as `to_estimator`.
        """
        from cloudtrain.targets.common.export import build_arguments

        return build_arguments(self._estimator())

    def to_python(self, sdk: Literal[2, 3] = 2) -> str:
        """Return Python code that starts the job with version `sdk` of the SDK.

        The code makes an estimator for version 2, and a `ModelTrainer` for version 3. The SDK need not be installed.

        Raises:
            TargetError: the SDK cannot express a field of the request; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export import python_code

        program, package = (self._estimator(), "sagemaker<3") if sdk == 2 else (self._trainer(), "sagemaker>=3")
        title = (
            f"Training job `{self.run_name}`, for version {sdk} of the SageMaker Python SDK: pip install '{package}'"
        )
        if self.uploads:
            title += "\n\nThe archive of the code must be in its place: `cloudtrain submit` puts it there.\n"
        return python_code(program, title=title)

    def to_model_trainer(self, session: Any = None) -> Any:
        """Return the `ModelTrainer` of version 3 of the SDK.

            plan.to_model_trainer().train(**plan.train_arguments())

        In version 3, the SDK's own drivers start torchrun, MPI and plain scripts. The image's toolkit starts all other
        jobs. The trainer sends `request`, except for the fields in `export.trainer.DIFFERENCES` and `WITH_DRIVERS`,
        which version 3 always changes, such as the job's name. The drivers pass `True` to the script as `true`, and
        run an MPI job only on the first instance. The SDK sends a request to IAM when the trainer is made.

        Raises:
            MissingExtra: the SDK is not installed.
            TargetError: version 3 cannot express a field of the request, or cannot start the job; the message names it.
            UsageError: the plan is not for a training job.
        """
        from cloudtrain.targets.common.export import build

        return build(self._trainer(), session=session)[0]

    def train_arguments(self) -> dict[str, Any]:
        """Return the arguments for the trainer's `train`: the inputs.

        Raises: the same errors as `to_model_trainer`.
        """
        from cloudtrain.targets.common.export import build_arguments

        return build_arguments(self._trainer())

    def forms(self) -> dict[str, Callable[[], str]]:
        """Return functions that write the plan in other formats, by format name.

        `aws-cli`: JSON for `--cli-input-json` of the AWS command line. `python` (only for training jobs): code for
        version 2 of the SDK.
        """
        forms: dict[str, Callable[[], str]] = {"aws-cli": self._aws_cli}
        return forms | ({"python": lambda: visible(self.to_python())} if self._trains else {})

    @property
    def _trains(self) -> bool:
        return "TrainingJobName" in self.request

    def _aws_cli(self) -> str:
        return visible_json(json.dumps(self.request, indent=2, ensure_ascii=False) + "\n")

    def _estimator(self) -> Program:
        from cloudtrain.targets.sagemaker.export.estimator import estimator_program

        self._must_train()
        return estimator_program(self.request, self.region, self.profile)

    def _trainer(self) -> Program:
        from cloudtrain.targets.sagemaker.export.trainer import trainer_program

        self._must_train()
        return trainer_program(self.request, self.region, self.profile)

    def _must_train(self) -> None:
        if not self._trains:
            hint = "print the request with `--format aws-cli`, or send `plan.request` with boto3"
            raise UsageError("only training jobs can be exported to the SageMaker SDK", hint=hint, code="CT904")


# The API's operations and field names for training jobs and processing jobs, which have the same life cycle.


@dataclass(frozen=True)
class JobKind:
    """The boto3 operations and API field names of one job type."""

    noun: str
    name: str
    """The field that holds the job's name."""
    status: str
    arn: str
    started: str
    ended: str
    summaries: str
    outputs: str
    """The field with the location of results and their KMS key."""
    log_group: str

    @property
    def _words(self) -> str:
        return f"{self.noun}_job"

    @property
    def create(self) -> str:
        return f"create_{self._words}"

    @property
    def describe(self) -> str:
        return f"describe_{self._words}"

    @property
    def stop(self) -> str:
        return f"stop_{self._words}"

    @property
    def list(self) -> str:
        return f"list_{self._words}s"


TRAINING = JobKind(
    noun="training",
    name="TrainingJobName",
    status="TrainingJobStatus",
    arn="TrainingJobArn",
    started="TrainingStartTime",
    ended="TrainingEndTime",
    summaries="TrainingJobSummaries",
    outputs="OutputDataConfig",
    log_group="/aws/sagemaker/TrainingJobs",
)

PROCESSING = JobKind(
    noun="processing",
    name="ProcessingJobName",
    status="ProcessingJobStatus",
    arn="ProcessingJobArn",
    started="ProcessingStartTime",
    ended="ProcessingEndTime",
    summaries="ProcessingJobSummaries",
    outputs="ProcessingOutputConfig",
    log_group="/aws/sagemaker/ProcessingJobs",
)

KINDS = (TRAINING, PROCESSING)


def kind_of(body: Mapping[str, Any]) -> JobKind:
    """Return the job type of a request or job description: training or processing."""
    return next(kind for kind in KINDS if kind.name in body)


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
        """Return the prefix of all keys in this folder: `data/` for the key `data`; empty if the key is empty."""
        return f"{self.key.rstrip('/')}/" if self.key else ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


# The S3 locations of a job's results.

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


# The tag that marks a SageMaker job as created by cloudtrain.

RUN_TAG = "cloudtrain:run"
"""The tag's key; its value is the run's name."""
