"""From a job's body to the argv and environment on the instances of an Azure ML job, process by process.

This code is pure. The parts, and their sources, are in `cloudtrain.targets.azureml.launch`.
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
