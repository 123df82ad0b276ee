"""The Azure ML target: a job becomes the exact body of the command job that is PUT under the run's name.

machines       the instance type and how many, on a cluster or serverless   -> resources, computeId
distributions  who starts how many processes                                -> distribution
mpi_options    options of mpirun, as the variables that do the same    -> environmentVariables
environments   a registered environment, or one made of an image            -> environmentId
places         data in and out, and what references become                  -> inputs, outputs
command        the shell line that every process runs                       -> command
network        what multi-instance training needs on InfiniBand             -> environmentVariables
identifiers    the names of all of these in Azure Resource Manager
request        all of it together
summary        what a person reads first
"""

from __future__ import annotations

from cloudtrain.targets.azureml.compile.compiler import compile_azureml

__all__ = ["compile_azureml"]
