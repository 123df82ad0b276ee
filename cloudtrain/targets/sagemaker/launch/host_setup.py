"""One host of one job, as the training toolkit sees it from its configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.arguments import decode_hyperparameters
from cloudtrain.targets.sagemaker.launch.container import Container, Framework
from cloudtrain.targets.sagemaker.launch.hosts import Host, Request, hyperparameters_file, resource_config
from cloudtrain.targets.sagemaker.launch.keys import (
    GROUPS,
    JOB_NAME,
    LAUNCHER_KEYS,
    LOG_LEVEL,
    PROCESSES,
    PROGRAM,
    REGION,
    SUBMIT_DIRECTORY,
)

TRAINING_MODULE = "SAGEMAKER_TRAINING_MODULE"
"""The variable with the function that the toolkit calls: `sagemaker_pytorch_container.training:main`."""

_FRAMEWORK_OF: dict[str, Framework] = {
    "sagemaker_pytorch_container": "pytorch",
    "sagemaker_tensorflow_container": "tensorflow",
}

_OF_THE_JOB = {
    PROGRAM,
    SUBMIT_DIRECTORY,
    "sagemaker_enable_cloudwatch_metrics",
    REGION,
    LOG_LEVEL,
    JOB_NAME,
    "default_user_module_name",
    "_tuning_objective_metric",
    "sagemaker_s3_output",
}
"""Hyperparameters about the job, which neither the script nor a launcher gets (sagemaker-training's `params.py`)."""


@dataclass(frozen=True)
class HostSetup:
    """One host of a job, with the configuration files and hardware that the toolkit finds on it.

    Attributes:
        gpus: number of GPUs that `nvidia-smi` lists.
        neurons: number of logical Neuron cores.
        cpus: number of logical CPUs. If None, SM_NUM_CPUS is left out.
        root: the folder that replaces `/opt/ml`.
        package: whether the bundle's top folder contains a `setup.py`, which makes the script a module.
    """

    request: Request
    host: Host
    container: Container
    gpus: int = 0
    neurons: int = 0
    cpus: int | None = None
    root: str = ROOT
    package: bool = False

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return all hyperparameters, decoded."""
        return decode_hyperparameters(hyperparameters_file(self.request))

    @cached_property
    def user(self) -> dict[str, Any]:
        """Return the script's hyperparameters."""
        return {
            key: value
            for key, value in self.values.items()
            if key not in _OF_THE_JOB and not key.startswith("sagemaker_")
        }

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the launchers' hyperparameters, whose names begin with `sagemaker_`."""
        return {
            key: value for key, value in self.values.items() if key.startswith("sagemaker_") and key not in _OF_THE_JOB
        }

    @cached_property
    def resource(self) -> dict[str, Any]:
        """Return the content of `resourceconfig.json`."""
        return resource_config(self.request, self.host)

    @property
    def given(self) -> Mapping[str, str]:
        """Return the environment variables in the request."""
        environment: Mapping[str, str] = self.request.get("Environment") or {}
        return environment

    @property
    def training_module(self) -> str | None:
        """Return SAGEMAKER_TRAINING_MODULE, the function that the toolkit calls; None if unknown."""
        return self.given.get(TRAINING_MODULE, self.container.training_module)

    @property
    def framework(self) -> Framework:
        """Return the framework whose toolkit runs.

        SAGEMAKER_TRAINING_MODULE in the request can select another framework than the image's.
        """
        return _FRAMEWORK_OF.get(self.given.get(TRAINING_MODULE, "").partition(".")[0], self.container.framework)

    @property
    def entry_point(self) -> str:
        """Return the script's path in the code folder.

        The variable SAGEMAKER_PROGRAM overrides the hyperparameter.
        """
        return str(self.given.get("SAGEMAKER_PROGRAM") or self.values.get(PROGRAM) or "")

    @cached_property
    def distribution_groups(self) -> list[str]:
        """Return the names of the instance groups that the distribution spans.

        If the hyperparameters list no groups, this is the host's own group. Empty if they also select no launcher.
        """
        if GROUPS in self.settings:
            return list(self.settings[GROUPS] or ())
        return [self.host.group] if any(self.settings.get(key) for key in LAUNCHER_KEYS) else []

    @property
    def takes_part(self) -> bool:
        """Return whether the distribution spans this host."""
        return self.host.group in self.distribution_groups

    @cached_property
    def distribution_hosts(self) -> list[str]:
        """Return the names of the hosts in the distribution's instance groups, in the order of their ranks."""
        groups = self.resource["instance_groups"]
        return [
            name
            for group in groups
            if group["instance_group_name"] in self.distribution_groups
            for name in group["hosts"]
        ]

    @property
    def master(self) -> str:
        """Return the name of the host with rank 0."""
        return str((self.distribution_hosts or self.resource["hosts"])[0])

    @property
    def is_master(self) -> bool:
        return self.host.name == self.master

    @property
    def processes(self) -> int:
        """Return the number of ranks that torchrun or mpirun starts on this host."""
        given = self.settings.get(PROCESSES, self.gpus or self.neurons or 1)
        return int(given) if given else 0
