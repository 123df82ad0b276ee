"""The SageMaker target: a job becomes the exact body of CreateTrainingJob.

machines     instance types, groups and counts        -> ResourceConfig
images       framework and version, or an image       -> AlgorithmSpecification.TrainingImage
modes        who starts the processes, and why
toolkit      the distribution for the training toolkit -> HyperParameters
entrypoint   the distribution for our own launcher     -> HyperParameters, ContainerEntrypoint
places       data in and out                          -> InputDataConfig, OutputDataConfig, CheckpointConfig
request      all of it together
overrides    what the user adds by hand, merged last
summary      what a person reads first
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.compile.compiler import compile_sagemaker

__all__ = ["compile_sagemaker"]
