"""Conversion between a job and the plain data of a job file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Sweep

TRAINING, PROCESSING, SWEEP = "training", "processing", "sweep"


def kind_of_job(job: AnyJob | Sweep) -> str:
    """Return the kind of a job as a job file names it: `training`, `processing` or `sweep`."""
    if getattr(job, "kind", None) == SWEEP:
        return SWEEP
    return TRAINING if isinstance(job, TrainingJob) else PROCESSING


def fields_of(job: AnyJob | Sweep) -> dict[str, Any]:
    """Return the fields of the job as a job file writes them, as JSON data. Fields with default values are left out."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    if kind_of_job(job) == SWEEP:
        return {"kind": SWEEP, **data, "job": fields_of(job.job)}  # type: ignore[union-attr]  # only a sweep is of that kind
    if isinstance(job, TrainingJob) and "distribution" in data:
        data["distribution"] = {"type": job.distribution.type, **data["distribution"]}
    return data if isinstance(job, TrainingJob) else {"kind": PROCESSING, **data}


def model_of_kind(kind: str) -> Any:
    """Return the model for jobs of a kind. The model can validate the result of `fields_of`."""
    if kind == TRAINING:
        return TrainingJob
    if kind == SWEEP:
        from cloudtrain.core.sweep import Sweep

        return Sweep
    from cloudtrain.core.processing import ProcessingJob

    return ProcessingJob
