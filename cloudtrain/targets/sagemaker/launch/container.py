"""The contents of an image, and the features of its version of the training toolkit."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, decode_hyperparameters
from cloudtrain.runtime.sagemaker_launcher.variables import text_of
from cloudtrain.targets.sagemaker.request import (
    GROUPS,
    INTERFACE,
    JOB_NAME,
    LAUNCHER_KEYS,
    LOG_LEVEL,
    MIRRORED,
    MODEL_PARALLEL,
    PARAMETER_SERVER,
    PROCESSES,
    PROGRAM,
    REGION,
    SUBMIT_DIRECTORY,
    Host,
    Request,
    hyperparameters_file,
    input_data_config,
    resource_config,
)

Framework = Literal["pytorch", "tensorflow", "generic"]

HOSTNAME_SHIM = "/opt/conda/lib/python/site-packages/gethostname.so"
"""The library that mpirun preloads to set host names, without the Python version in its path."""


class Container(NamedTuple):
    """The facts about an image that decide how a job starts.

    Attributes:
        framework: the framework whose toolkit runs; `generic` for images without SAGEMAKER_TRAINING_MODULE.
        toolkit: the version of sagemaker-training.
        smddprun: whether the data-parallel library is installed.
        smddpmprun: whether the model-parallel library's wrapper is installed.
        torch: the version of PyTorch; None if unknown.
        python: the interpreter.
        training_module: the value of SAGEMAKER_TRAINING_MODULE in the image; None if unknown.
    """

    framework: Framework
    toolkit: str
    smddprun: bool = False
    smddpmprun: bool = False
    torch: str | None = None
    python: str = "python"
    training_module: str | None = None

    @property
    def version(self) -> tuple[int, ...]:
        """Return the toolkit's version as numbers: (5, 1, 4)."""
        return version_of(self.toolkit)

    def sets_efa(self, instance_type: str) -> bool:
        """Return whether the toolkit makes libfabric use EFA on instances of this type."""
        return _knows(_EFA_SINCE, instance_type, self.version)

    def sets_rdma(self, instance_type: str) -> bool:
        """Return whether the toolkit lets EFA read and write GPU memory on instances of this type."""
        return _knows(_RDMA_SINCE, instance_type, self.version)


@cache
def version_of(toolkit: str) -> tuple[int, ...]:
    """Return a version as numbers: (5, 1, 4) for `5.1.4`. Stops at the first part that is not a number."""
    numbers: list[int] = []
    for part in toolkit.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


_ALWAYS = (0,)
_EFA_SINCE = {
    "ml.g4dn.8xlarge": _ALWAYS,
    "ml.g4dn.12xlarge": _ALWAYS,
    "ml.g5.48xlarge": _ALWAYS,
    "ml.p3dn.24xlarge": _ALWAYS,
    "ml.p4d.24xlarge": _ALWAYS,
    "ml.p4de.24xlarge": _ALWAYS,
    "ml.p5.48xlarge": (4, 9),
    "ml.p5e.48xlarge": (5, 1, 2),
    "ml.p6e-gb200.36xlarge": (5, 1),
    "ml.trn1.32xlarge": _ALWAYS,
}
_RDMA_SINCE = {
    "ml.p4d.24xlarge": _ALWAYS,
    "ml.p4de.24xlarge": _ALWAYS,
    "ml.p5.48xlarge": (5, 1, 2),
    "ml.p5e.48xlarge": (5, 1, 2),
    "ml.p6e-gb200.36xlarge": (5, 1),
    "ml.trn1.32xlarge": _ALWAYS,
}
"""The toolkit's own lists of instance types, by the version that first has each type.

The lists were read in 4.7.4, 4.9.0 and 5.0.0 to 5.1.4. They never had p5en, p6-b200, p6-b300, g6, g6e, trn1n and trn2.
"""


def _knows(since: dict[str, tuple[int, ...]], instance_type: str, version: tuple[int, ...]) -> bool:
    return instance_type in since and version >= since[instance_type]


# One host of one job, as the training toolkit sees it from its configuration files.

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


# TF_CONFIG and the parameter servers that sagemaker-tensorflow-training sets up.

TASK_PORT, SERVER_PORT, MIRRORED_PORT = 2222, 2223, 8890


def serves_parameters(setup: HostSetup) -> bool:
    """Return whether parameter servers start: in a TensorFlow job that asks for them and has several hosts."""
    return bool(
        setup.framework == "tensorflow" and setup.settings.get(PARAMETER_SERVER) and len(setup.resource["hosts"]) > 1
    )


def mirrors(setup: HostSetup) -> bool:
    """Return whether the toolkit sets up the workers of MultiWorkerMirroredStrategy."""
    return bool(
        setup.framework == "tensorflow"
        and setup.settings.get(MIRRORED)
        and not serves_parameters(setup)
        and setup.takes_part
    )


def server_cluster(setup: HostSetup) -> dict[str, list[str]]:
    """Return the cluster with parameter servers: the first host is master, and every host has a parameter server."""
    return _server_cluster(setup.distribution_hosts)


def task_of(setup: HostSetup) -> tuple[str, int]:
    """Return the TensorFlow task of this host's script: its type and index, such as `worker` and 0."""
    index = setup.distribution_hosts.index(setup.host.name)
    if mirrors(setup):
        return "worker", index
    return ("worker", index - 1) if index else ("master", 0)


def tf_config(setup: HostSetup) -> dict[str, str]:
    """Return the variable TF_CONFIG; empty if the toolkit does not set it."""
    if not setup.takes_part or not (serves_parameters(setup) or mirrors(setup)):
        return {}
    cluster = _cluster_text(tuple(setup.distribution_hosts), serves_parameters(setup))
    kind, index = task_of(setup)
    task = json.dumps({"index": index, "type": kind})
    return {"TF_CONFIG": f'{{"cluster": {cluster}, "environment": "cloud", "task": {task}}}'}


@lru_cache(maxsize=4)
def _cluster_text(hosts: tuple[str, ...], serves: bool) -> str:
    """Return the TensorFlow cluster as JSON text. `serves` tells whether it has parameter servers."""
    return json.dumps(_server_cluster(hosts) if serves else {"worker": _addresses(hosts, MIRRORED_PORT)})


def _server_cluster(hosts: Sequence[str]) -> dict[str, list[str]]:
    cluster = {"master": _addresses(hosts[:1], TASK_PORT)}
    if len(hosts) > 1:
        cluster["ps"] = _addresses(hosts, SERVER_PORT)
        cluster["worker"] = _addresses(hosts[1:], TASK_PORT)
    return cluster


def _addresses(hosts: Sequence[str], port: int) -> list[str]:
    return [f"{host}:{port}" for host in hosts]


# The environment variables that the training toolkit sets for the script.
#
# Two variables cannot be known before a container runs. PYTHONPATH is left out, because the toolkit makes it from its
# own `sys.path`. SM_FRAMEWORK_MODULE is empty if the image's SAGEMAKER_TRAINING_MODULE is unknown
# (`Container.training_module` is None).

MASTER_PORT = "7777"
_INFO = 20
"""The level logging.INFO."""

_TOPOLOGY_SINCE = (5, 1)


def environment(
    request: Request,
    host: Host,
    container: Container,
    *,
    gpus: int,
    neurons: int = 0,
    cpus: int | None = None,
    root: str = ROOT,
) -> dict[str, str]:
    """Return the variables that the toolkit sets on one host, in the toolkit's order.

    They override variables in the request. The result does not contain the variables that launchers add: `Command.env`
    and, for the ranks of mpirun, `Command.exports`. SM_NUM_CPUS is left out if `cpus` is None.
    """
    return host_environment(HostSetup(request, host, container, gpus=gpus, neurons=neurons, cpus=cpus, root=root))


LONG = ("SM_TRAINING_ENV", "SM_RESOURCE_CONFIG", "SM_NUM_CPUS")
"""Variables left out of a plan's processes.

The first two are long and repeat other variables. The number of CPUs cannot be known from the request.
"""


def host_environment(setup: HostSetup, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that the toolkit sets on a host, except the script's variables in `without`."""
    left_out = {*without, *(() if setup.cpus is not None else ("SM_NUM_CPUS",))}
    return {**_of_the_job(setup), **_of_the_framework(setup), **script_variables(setup, without=left_out)}


def _of_the_job(setup: HostSetup) -> dict[str, str]:
    return {
        "SAGEMAKER_JOB_NAME": str(setup.values.get(JOB_NAME, "")),
        "CURRENT_HOST": setup.host.name,
        "SAGEMAKER_REGION": str(setup.values.get(REGION) or ""),
    }


def _of_the_framework(setup: HostSetup) -> dict[str, str]:
    """Return the variables that sagemaker-pytorch-training sets; empty for other frameworks.

    They override the job's variables, for example NCCL_DEBUG.
    """
    if setup.framework != "pytorch":
        return {}
    version = {"SM_DLC_TORCH_VERSION": setup.container.torch} if setup.container.torch else {}
    return {
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
        "MASTER_ADDR": setup.master,
        "MASTER_PORT": MASTER_PORT,
        **version,
    }


def script_variables(setup: HostSetup, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that the toolkit writes for the script, and that mpirun passes to its ranks.

    Variables in `without`, such as SM_NUM_CPUS, are left out.
    """
    facts = _facts(setup)
    variables: dict[str, Any] = {name: facts[key] for name, key in _OWN_VARIABLE.items() if key in facts}
    variables["NUM_CPUS"] = setup.cpus
    variables["CHANNELS"] = sorted(facts["channel_input_dirs"])
    variables["TRAINING_ENV"] = facts
    variables["USER_ARGS"] = argv_of(setup.user)
    in_order = {name: variables[name] for name in _ORDER if f"SM_{name}" not in without}
    in_order |= {f"CHANNEL_{name.upper()}": path for name, path in facts["channel_input_dirs"].items()}
    in_order |= {f"HP_{key.upper()}": value for key, value in setup.user.items()}
    return {f"SM_{name}": text_of(value) for name, value in in_order.items()} | tf_config(setup)


def _facts(setup: HostSetup) -> dict[str, Any]:
    """Return the content of the toolkit's `Environment`, which SM_TRAINING_ENV contains as JSON."""
    root, resource, channels = setup.root, setup.resource, input_data_config(setup.request)
    groups = {group["instance_group_name"]: group for group in resource["instance_groups"]}
    entry_point = setup.entry_point
    facts = {
        "additional_framework_parameters": setup.settings,
        "channel_input_dirs": {name: f"{root}/input/data/{name}" for name in channels},
        "current_host": setup.host.name,
        "current_instance_group": setup.host.group,
        "current_instance_group_hosts": groups[setup.host.group]["hosts"],
        "current_instance_type": setup.host.instance_type,
        "distribution_hosts": setup.distribution_hosts,
        "distribution_instance_groups": setup.distribution_groups,
        "framework_module": setup.training_module,
        "hosts": resource["hosts"],
        "hyperparameters": setup.user,
        "input_config_dir": f"{root}/input/config",
        "input_data_config": channels,
        "input_dir": f"{root}/input",
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": setup.is_master,
        "is_modelparallel_enabled": _model_parallel_from_outside(setup.given),
        "is_smddpmprun_installed": setup.container.smddpmprun,
        "is_smddprun_installed": setup.container.smddprun,
        "job_name": setup.request["TrainingJobName"],
        "log_level": setup.values.get(LOG_LEVEL, _INFO),
        "master_hostname": setup.master,
        "model_dir": f"{root}/model",
        "module_dir": str(setup.values.get(SUBMIT_DIRECTORY, f"{root}/code")),
        "module_name": entry_point.removesuffix(".py"),
        "network_interface_name": INTERFACE,
        "num_gpus": setup.gpus,
        "num_neurons": setup.neurons,
        "output_data_dir": f"{root}/output/data",
        "output_dir": f"{root}/output",
        "output_intermediate_dir": f"{root}/output/intermediate",
        "resource_config": resource,
        "user_entry_point": entry_point,
    }
    if setup.cpus is not None:
        facts["num_cpus"] = setup.cpus
    if setup.container.version >= _TOPOLOGY_SINCE:
        facts["topology"] = []
    return facts


def _model_parallel_from_outside(given: Mapping[str, str]) -> bool | str | None:
    """Return the toolkit's `is_modelparallel_enabled`, computed from the variable SM_HP_MP_PARAMETERS.

    Returns None if the variable is missing, the empty string if it is empty, False if it is `{}`, and otherwise True.
    """
    parameters = given.get(f"SM_HP_{MODEL_PARALLEL.upper()}")
    return parameters != "{}" if parameters else parameters


_ORDER = (
    "HOSTS",
    "NETWORK_INTERFACE_NAME",
    "HPS",
    "USER_ENTRY_POINT",
    "FRAMEWORK_PARAMS",
    "RESOURCE_CONFIG",
    "INPUT_DATA_CONFIG",
    "OUTPUT_DATA_DIR",
    "CHANNELS",
    "CURRENT_HOST",
    "CURRENT_INSTANCE_TYPE",
    "CURRENT_INSTANCE_GROUP",
    "CURRENT_INSTANCE_GROUP_HOSTS",
    "INSTANCE_GROUPS",
    "INSTANCE_GROUPS_DICT",
    "DISTRIBUTION_INSTANCE_GROUPS",
    "IS_HETERO",
    "MODULE_NAME",
    "LOG_LEVEL",
    "FRAMEWORK_MODULE",
    "INPUT_DIR",
    "INPUT_CONFIG_DIR",
    "OUTPUT_DIR",
    "NUM_CPUS",
    "NUM_GPUS",
    "NUM_NEURONS",
    "MODEL_DIR",
    "MODULE_DIR",
    "TRAINING_ENV",
    "USER_ARGS",
    "OUTPUT_INTERMEDIATE_DIR",
)
"""The variables that every host has, in the order in which the toolkit writes them and mpirun's argv lists them."""

_OWN_VARIABLE = {name: name.lower() for name in _ORDER} | {
    "HPS": "hyperparameters",
    "FRAMEWORK_PARAMS": "additional_framework_parameters",
}
"""Maps each variable to its key in `_facts`."""
