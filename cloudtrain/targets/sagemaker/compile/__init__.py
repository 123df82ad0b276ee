"""Compile a job into the exact body of CreateTrainingJob.

machines     instance types, groups and counts        -> ResourceConfig
images       framework and version, or an image       -> AlgorithmSpecification.TrainingImage
modes        which program starts the processes, and why
toolkit      the distribution for the training toolkit -> HyperParameters
entrypoint   the distribution for our own launcher     -> HyperParameters, ContainerEntrypoint
places       data in and out                          -> InputDataConfig, OutputDataConfig, CheckpointConfig
request      combines the parts into the request
overrides    the user's own additions, merged last
summary      the first lines that a person reads
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.compile.compiler import compile_sagemaker

__all__ = ["compile_sagemaker"]
