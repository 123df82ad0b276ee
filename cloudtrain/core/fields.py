"""A job as plain data that a job file could hold, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.core.job import TrainingJob

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Sweep

TRAINING, PROCESSING, SWEEP = "training", "processing", "sweep"


def kind_of_job(job: AnyJob | Sweep) -> str:
    """Return `training`, `processing` or `sweep`."""
    if getattr(job, "kind", None) == SWEEP:
        return SWEEP
    return TRAINING if isinstance(job, TrainingJob) else PROCESSING


def fields_of(job: AnyJob | Sweep) -> dict[str, Any]:
    """Return what a job file must say to mean the same job: JSON data, without what is the default anyway."""
    data = job.model_dump(mode="json", exclude_defaults=True)
    if kind_of_job(job) == SWEEP:
        return {"kind": SWEEP, **data, "job": fields_of(job.job)}  # type: ignore[union-attr]  # only a sweep is of that kind
    if isinstance(job, TrainingJob) and "distribution" in data:
        data["distribution"] = {"type": job.distribution.type, **data["distribution"]}
    return data if isinstance(job, TrainingJob) else {"kind": PROCESSING, **data}


def model_of_kind(kind: str) -> Any:
    """Return the model of that kind of job, which validates what `fields_of` gave."""
    if kind == TRAINING:
        return TrainingJob
    if kind == SWEEP:
        from cloudtrain.core.sweep import Sweep

        return Sweep
    from cloudtrain.core.processing import ProcessingJob

    return ProcessingJob
