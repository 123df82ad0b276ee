"""Turn SageMaker requests into cloudtrain jobs.

documents  finds CreateTrainingJob requests in documents
jobs       turns the request's fields into fields of a job and of the target's settings
launches   reads the distribution from the training toolkit's hyperparameters
adopter    combines the parts, and lists the fields that change with each submission
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.adopt.adopter import SageMakerAdopter

__all__ = ["SageMakerAdopter"]
