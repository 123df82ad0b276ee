"""The API's operations and field names for training jobs and processing jobs, which have the same life cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
