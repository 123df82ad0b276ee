"""Derive every process of an Azure ML job, with its argv and environment, from the body of the job.

This code is pure. `cloudtrain.targets.azureml.launch` describes the modules and their sources.
"""

from __future__ import annotations

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.distributions import INTERFACE, MASTER_PORT
from cloudtrain.targets.azureml.launch.layout import JobLayout, addresses, service_layout
from cloudtrain.targets.azureml.launch.places import fill_command, is_literal, mounted_path, service_paths
from cloudtrain.targets.azureml.launch.processes import processes, view
from cloudtrain.targets.azureml.launch.variables import LONG

__all__ = [
    "INTERFACE",
    "LONG",
    "MASTER_PORT",
    "Body",
    "JobLayout",
    "addresses",
    "fill_command",
    "is_literal",
    "mounted_path",
    "processes",
    "service_paths",
    "service_layout",
    "view",
]
