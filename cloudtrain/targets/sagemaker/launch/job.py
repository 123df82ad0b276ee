"""Compute the argv, environment and files of a SageMaker job's containers from the request.

This package covers jobs that the image's training toolkit starts, and jobs that start cloudtrain's own launcher. The
toolkit's behaviour was recorded with sagemaker-training 5.1.1 and 5.1.4. The code is pure. The docstring of
`cloudtrain.targets.sagemaker.launch` lists the modules.
"""

from __future__ import annotations

from cloudtrain.targets.sagemaker.launch.commands import Command, command, overwritten
from cloudtrain.targets.sagemaker.launch.container import Container, Framework
from cloudtrain.targets.sagemaker.launch.hosts import (
    Host,
    files,
    hosts,
    hyperparameters_file,
    input_data_config,
    is_entrypoint,
    resource_config,
)
from cloudtrain.targets.sagemaker.launch.processes import commands, view
from cloudtrain.targets.sagemaker.launch.shell import arrives, arrives_intact, shell_tokens
from cloudtrain.targets.sagemaker.launch.variables import environment

__all__ = [
    "Command",
    "Container",
    "Framework",
    "Host",
    "arrives",
    "arrives_intact",
    "command",
    "commands",
    "environment",
    "files",
    "hosts",
    "hyperparameters_file",
    "input_data_config",
    "is_entrypoint",
    "overwritten",
    "resource_config",
    "shell_tokens",
    "view",
]
