"""A job as plain data that a job file could hold, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob

TRAINING, PROCESSING = "training", "processing"


def kind_of_job(job: AnyJob) -> str:
    """Return `training` or `processing`."""
    return TRAINING if isinstance(job, TrainingJob) else PROCESSING


def fields_of(job: AnyJob) -> dict[str, Any]:
    """Return what a job file must say to mean the same job: JSON data, without what is the default anyway."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    if isinstance(job, TrainingJob) and "distribution" in data:
        data["distribution"] = {"type": job.distribution.type, **data["distribution"]}
    return data if isinstance(job, TrainingJob) else {"kind": PROCESSING, **data}


def model_of_kind(kind: str) -> Any:
    """Return the model of that kind of job, which validates what `fields_of` gave."""
    if kind == TRAINING:
        return TrainingJob
    from cloudtrain.core.processing import ProcessingJob

    return ProcessingJob
