"""What the instances of an Azure ML job really run: the job's body to argv and environment, process by process.

Pure. The parts, and where they are known from, are in `cloudtrain.launch.azureml`.
"""

from __future__ import annotations

from cloudtrain.launch.azureml.body import Body
from cloudtrain.launch.azureml.distributions import INTERFACE, MASTER_PORT
from cloudtrain.launch.azureml.places import filled_command, is_literal, mounted_path, service_paths
from cloudtrain.launch.azureml.processes import processes, view
from cloudtrain.launch.azureml.site import Site, addresses, service_site
from cloudtrain.launch.azureml.variables import LONG

__all__ = [
    "INTERFACE",
    "LONG",
    "MASTER_PORT",
    "Body",
    "Site",
    "addresses",
    "filled_command",
    "is_literal",
    "mounted_path",
    "processes",
    "service_paths",
    "service_site",
    "view",
]
