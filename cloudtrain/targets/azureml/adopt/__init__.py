"""Command jobs of Azure ML as cloudtrain jobs.

documents  what holds a command job, and how its body is got out
job_files  job files of `az ml`, as the body that the SDK makes of them
jobs       the body's fields as those of a job and of the target's settings
adopter    all of it together, and what of a body each submission writes anew
"""

from __future__ import annotations

from cloudtrain.targets.azureml.adopt.adopter import AzureMLAdopter

__all__ = ["AzureMLAdopter"]
