"""Compile a job into the exact body of CreateTrainingJob.

machines     instance types, groups and counts        -> ResourceConfig
images       framework and version, or an image       -> AlgorithmSpecification.TrainingImage
modes        the program that starts the processes, and the reason for its choice
toolkit      the distribution for the image's toolkit -> HyperParameters
entrypoint   the settings of cloudtrain's launcher    -> HyperParameters, ContainerEntrypoint
places       inputs, outputs and checkpoints           -> InputDataConfig, OutputDataConfig, CheckpointConfig
request      combines the parts into the request
overrides    the user's `sagemaker_overrides`, merged last
summary      the lines at the top of a printed plan
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.compile.compiler import compile_sagemaker

__all__ = ["compile_sagemaker"]
