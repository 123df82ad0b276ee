"""One host of a job as the training toolkit sees it: its configuration files, and the variables
that it sets."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cloudtrain.rules.engine import mapping_at
from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of
from cloudtrain.runtime.sagemaker_launcher.variables import text_of
from cloudtrain.targets.sagemaker.catalogue.images import ImageContents
from cloudtrain.targets.sagemaker.reading import TRAINING_MODULE, Start
from cloudtrain.targets.sagemaker.request import (
    GROUPS,
    INFO,
    INTERFACE,
    JOB_NAME,
    LOG_LEVEL,
    MIRRORED,
    MODEL_PARALLEL,
    PARAMETER_SERVER,
    PROCESSES,
    PROGRAM,
    REGION,
    SUBMIT_DIRECTORY,
    Host,
    JsonObject,
    Request,
    input_data_config,
    resource_config,
)

HOSTNAME_SHIM = "/opt/conda/lib/python/site-packages/gethostname.so"
"""The library that mpirun preloads to set host names, without the Python version in its path."""


# One host of one job, as the training toolkit sees it from its configuration files.


@dataclass(frozen=True, eq=False)
class HostSetup:
    """One host of a job, with the configuration files and hardware that the toolkit finds on it.

    Attributes:
        gpus: number of GPUs that `nvidia-smi` lists.
        neurons: number of logical Neuron cores.
        cpus: number of logical CPUs. If None, SM_NUM_CPUS is left out.
        root: the folder that replaces `/opt/ml`.
        package: whether the bundle's top folder contains a `setup.py`, which makes the script a
            module.
        interface: the network interface of the container.
        default_processes: number of ranks where the request names none. Default: the toolkit's, one
            for each accelerator.
    """

    request: Request
    host: Host
    container: ImageContents
    gpus: int = 0
    neurons: int = 0
    cpus: int | None = None
    root: str = ROOT
    package: bool = False
    interface: str = INTERFACE
    default_processes: int | None = None

    @cached_property
    def start(self) -> Start:
        return Start(self.request, self.container)

    @cached_property
    def resource(self) -> JsonObject:
        """The content of the host's `resourceconfig.json`."""
        return resource_config(self.request, self.host, self.interface)

    @property
    def given(self) -> Mapping[str, str]:
        """The variables of the request."""
        return mapping_at(self.request, "Environment")

    @property
    def entry_point(self) -> str:
        """Return the script's path in the code folder. The variable SAGEMAKER_PROGRAM overrides the
        hyperparameter."""
        name = self.given.get("SAGEMAKER_PROGRAM") or self.start.values.get(PROGRAM)
        return str(name or "")

    @cached_property
    def distribution_groups(self) -> list[str]:
        """Return the names of the instance groups that the distribution spans.

        If the hyperparameters list no groups, this is the host's own group. Empty if they also
        select no launcher.
        """
        if GROUPS in self.start.settings:
            return list(self.start.settings[GROUPS] or ())
        return [self.host.group] if self.start.asked is not None else []

    @property
    def takes_part(self) -> bool:
        """Whether the distribution spans the host's instance group."""
        return self.host.group in self.distribution_groups

    @property
    def key(self) -> str | None:
        """Return the hyperparameter that selects this host's launcher; None if the script runs
        without a launcher."""
        key = self.start.key
        return key if self.takes_part or key == PARAMETER_SERVER else None

    @cached_property
    def distribution_hosts(self) -> list[str]:
        """Return the names of the hosts in the distribution's instance groups, in the order of
        their ranks."""
        names: list[str] = []
        for group in self.resource["instance_groups"]:
            if group["instance_group_name"] in self.distribution_groups:
                names += group["hosts"]
        return names

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
        default = self.default_processes or self.gpus or self.neurons or 1
        count = self.start.settings.get(PROCESSES, default)
        return int(count) if count else 0


# TF_CONFIG and the parameter servers that sagemaker-tensorflow-training sets up.

TASK_PORT = 2222
SERVER_PORT = 2223
MIRRORED_PORT = 8890


def task_of(setup: HostSetup) -> tuple[str, int] | None:
    """Return the TensorFlow task of this host's script: its type and index, such as `worker` and
    0; None if the toolkit gives it none."""
    if not setup.takes_part:
        return None
    index = setup.distribution_hosts.index(setup.host.name)
    if setup.key == PARAMETER_SERVER:
        return ("worker", index - 1) if index else ("master", 0)
    # of MultiWorkerMirroredStrategy, for MPI's ranks too
    mirrors = setup.start.starts("tensorflow") and setup.start.settings.get(MIRRORED)
    return ("worker", index) if mirrors else None


def tf_config(setup: HostSetup) -> dict[str, str]:
    """Return the variable TF_CONFIG; empty if the toolkit does not set it."""
    task = task_of(setup)
    if task is None:
        return {}
    kind, index = task
    text = json.dumps({"index": index, "type": kind})
    cluster = _cluster_text(tuple(setup.distribution_hosts), setup.key == PARAMETER_SERVER)
    return {"TF_CONFIG": f'{{"cluster": {cluster}, "environment": "cloud", "task": {text}}}'}


@lru_cache(maxsize=4)
def _cluster_text(hosts: tuple[str, ...], serves: bool) -> str:
    """Return the TensorFlow cluster as JSON text. `serves` tells whether it has parameter
    servers."""
    if serves:
        return json.dumps(server_cluster(hosts))
    return json.dumps({"worker": addresses(hosts, MIRRORED_PORT)})


def server_cluster(hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the cluster with parameter servers: the first host is master, and every host has a
    parameter server."""
    cluster = {"master": addresses(hosts[:1], TASK_PORT)}
    if len(hosts) > 1:
        cluster["ps"] = addresses(hosts, SERVER_PORT)
        cluster["worker"] = addresses(hosts[1:], TASK_PORT)
    return cluster


def addresses(hosts: Sequence[str], port: int) -> list[str]:
    """Return the hosts, each with a number: its port, or its slots for mpirun."""
    return [f"{host}:{port}" for host in hosts]


# The environment variables that the training toolkit sets for the script.
#
# Two variables cannot be known before a container runs. PYTHONPATH is left out, because the toolkit
# makes it from its own `sys.path`. SM_FRAMEWORK_MODULE is empty if the image's
# SAGEMAKER_TRAINING_MODULE is unknown (`Container.training_module` is None).

MASTER_PORT = "7777"
_TOPOLOGY_SINCE = (5, 1)


LONG = ("SM_TRAINING_ENV", "SM_RESOURCE_CONFIG", "SM_NUM_CPUS")
"""Variables left out of a plan's processes.

The first two are long and repeat other variables. The number of CPUs cannot be known from the
request.
"""


def environment(setup: HostSetup, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that the toolkit sets on a host, in its order, except the script's
    variables in `without`.

    They override variables in the request. The variables that launchers add are not among them:
    `ToolkitCommand.env` and, for the ranks of mpirun, `ToolkitCommand.exports`.
    """
    left_out = set(without)
    if setup.cpus is None:
        left_out.add("SM_NUM_CPUS")
    values = setup.start.values
    return {
        "SAGEMAKER_JOB_NAME": str(values.get(JOB_NAME, "")),
        "CURRENT_HOST": setup.host.name,
        "SAGEMAKER_REGION": str(values.get(REGION) or ""),
        **_of_the_framework(setup),
        **script_variables(setup, without=left_out),
    }


def _of_the_framework(setup: HostSetup) -> dict[str, str]:
    """Return the variables that sagemaker-pytorch-training sets; empty for other frameworks.

    They override the job's variables, for example NCCL_DEBUG.
    """
    if setup.start.framework != "pytorch":
        return {}
    variables = {
        "NCCL_SOCKET_IFNAME": setup.interface,
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "WARN",
        "MASTER_ADDR": setup.master,
        "MASTER_PORT": MASTER_PORT,
    }
    if setup.container.torch:
        variables["SM_DLC_TORCH_VERSION"] = setup.container.torch
    return variables


def script_variables(setup: HostSetup, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that the toolkit writes for the script, and that mpirun passes to its
    ranks."""
    facts = _facts(setup)
    channels = facts["channel_input_dirs"]
    values: JsonObject = {name: facts[key] for name, key in _OWN_VARIABLE.items() if key in facts}
    values["NUM_CPUS"] = setup.cpus
    values["CHANNELS"] = sorted(channels)
    values["TRAINING_ENV"] = facts
    values["USER_ARGS"] = argv_of(setup.start.parameters)

    variables: dict[str, str] = {}
    for name in _ORDER:
        if f"SM_{name}" not in without:
            variables[f"SM_{name}"] = text_of(values[name])
    for channel, path in channels.items():
        variables[f"SM_CHANNEL_{channel.upper()}"] = text_of(path)
    for parameter, value in setup.start.parameters.items():
        variables[f"SM_HP_{parameter.upper()}"] = text_of(value)
    return variables | tf_config(setup)


def _facts(setup: HostSetup) -> JsonObject:
    """Return the content of the toolkit's `Environment`, which SM_TRAINING_ENV contains as JSON."""
    root = setup.root
    resource = setup.resource
    channels = input_data_config(setup.request)
    groups = {group["instance_group_name"]: group for group in resource["instance_groups"]}
    entry_point = setup.entry_point
    model_parallel = setup.given.get(f"SM_HP_{MODEL_PARALLEL.upper()}")
    facts = {
        "additional_framework_parameters": setup.start.settings,
        "channel_input_dirs": {name: f"{root}/input/data/{name}" for name in channels},
        "current_host": setup.host.name,
        "current_instance_group": setup.host.group,
        "current_instance_group_hosts": groups[setup.host.group]["hosts"],
        "current_instance_type": setup.host.instance_type,
        "distribution_hosts": setup.distribution_hosts,
        "distribution_instance_groups": setup.distribution_groups,
        "framework_module": setup.given.get(TRAINING_MODULE, setup.container.training_module),
        "hosts": resource["hosts"],
        "hyperparameters": setup.start.parameters,
        "input_config_dir": f"{root}/input/config",
        "input_data_config": channels,
        "input_dir": f"{root}/input",
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": setup.is_master,
        # the toolkit's own mix: None without the variable, an empty text, False for `{}`, and
        # otherwise True
        "is_modelparallel_enabled": model_parallel != "{}" if model_parallel else model_parallel,
        "is_smddpmprun_installed": setup.container.smddpmprun,
        "is_smddprun_installed": setup.container.smddprun,
        "job_name": setup.request["TrainingJobName"],
        "log_level": setup.start.values.get(LOG_LEVEL, INFO),
        "master_hostname": setup.master,
        "model_dir": f"{root}/model",
        "module_dir": str(setup.start.values.get(SUBMIT_DIRECTORY, f"{root}/code")),
        "module_name": entry_point.removesuffix(".py"),
        "network_interface_name": setup.interface,
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


_ORDER = (
    "HOSTS NETWORK_INTERFACE_NAME HPS USER_ENTRY_POINT FRAMEWORK_PARAMS RESOURCE_CONFIG "
    "INPUT_DATA_CONFIG "
    "OUTPUT_DATA_DIR CHANNELS CURRENT_HOST CURRENT_INSTANCE_TYPE CURRENT_INSTANCE_GROUP "
    "CURRENT_INSTANCE_GROUP_HOSTS INSTANCE_GROUPS INSTANCE_GROUPS_DICT "
    "DISTRIBUTION_INSTANCE_GROUPS IS_HETERO "
    "MODULE_NAME LOG_LEVEL FRAMEWORK_MODULE INPUT_DIR INPUT_CONFIG_DIR OUTPUT_DIR NUM_CPUS "
    "NUM_GPUS NUM_NEURONS "
    "MODEL_DIR MODULE_DIR TRAINING_ENV USER_ARGS OUTPUT_INTERMEDIATE_DIR"
).split()
"""The variables that every host has, in the order in which the toolkit writes them and mpirun's
argv lists them."""

_OWN_VARIABLE = {name: name.lower() for name in _ORDER} | {
    "HPS": "hyperparameters",
    "FRAMEWORK_PARAMS": "additional_framework_parameters",
}
"""Maps each variable to its key in `_facts`."""
