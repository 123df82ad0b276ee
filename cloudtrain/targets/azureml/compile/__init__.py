"""Compile a job into the exact body of the PUT request that creates the command job.

machines       the instance type and count, on a cluster or serverless      -> resources, computeId
distributions  the launcher, and the number of processes                    -> distribution
mpi_options    options of mpirun, as environment variables                  -> environmentVariables
environments   a registered environment, or one made of an image            -> environmentId
places         inputs, outputs, and the texts that replace references       -> inputs, outputs
command        the shell line that every process runs                       -> command
network        variables for several instances on InfiniBand                -> environmentVariables
identifiers    ids in Azure Resource Manager
request        combines the parts into the body
summary        the first lines of the plan, for the user
"""

from __future__ import annotations

from cloudtrain.targets.azureml.compile.compiler import compile_azureml

__all__ = ["compile_azureml"]
