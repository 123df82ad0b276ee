"""Turn Azure ML's command jobs into cloudtrain jobs.

documents  finds command jobs in documents
job_files  turns job files of `az ml` into the body that the SDK sends for them
jobs       turns the body's fields into fields of a job and of the target's settings
adopter    combines the parts, and lists the fields that each submission writes anew
"""

from __future__ import annotations

from cloudtrain.targets.azureml.adopt.adopter import AzureMLAdopter

__all__ = ["AzureMLAdopter"]
