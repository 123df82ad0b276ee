"""Compile a job into the exact body of the command job that is PUT under the run's name.

machines       the instance type and count, on a cluster or serverless      -> resources, computeId
distributions  the launcher, and the number of processes                    -> distribution
mpi_options    options of mpirun, as the variables that do the same    -> environmentVariables
environments   a registered environment, or one made of an image            -> environmentId
places         data in and out, and the texts that replace references       -> inputs, outputs
command        the shell line that every process runs                       -> command
network        what multi-instance training needs on InfiniBand             -> environmentVariables
identifiers    the names of all of these in Azure Resource Manager
request        combines the parts into the body
summary        the first lines that a person reads
"""

from __future__ import annotations

from cloudtrain.targets.azureml.compile.compiler import compile_azureml

__all__ = ["compile_azureml"]
