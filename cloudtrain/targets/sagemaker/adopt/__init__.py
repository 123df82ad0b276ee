"""Requests of SageMaker as cloudtrain jobs.

documents  what holds a CreateTrainingJob request, and how it is got out
jobs       the request's fields as those of a job and of the target's settings
launches   the distribution, out of the hyperparameters that start it
adopter    all of it together, and what of a request each submission writes anew
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.adopt.adopter import SageMakerAdopter

__all__ = ["SageMakerAdopter"]
