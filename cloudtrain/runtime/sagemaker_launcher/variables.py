"""The `SM_*` environment variables, with the names and values that sagemaker-training 5.1 gives a
script.

`SM_FRAMEWORK_PARAMS` holds the launcher's own hyperparameters. `SM_MODULE_DIR` is always the path
of the code archive in the container. The toolkit sets this path only under network isolation,
otherwise the archive's S3 URI. The input channel that holds the code has no variable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import CODE_CHANNEL
from .machine import HostMachine

if TYPE_CHECKING:
    from .machine import Config

HOMOGENEOUS = "homogeneousCluster"
"""SageMaker's name for the only group of a cluster whose instances all have one type."""


RDMA_FAMILIES = (
    "p4d",
    "p4de",
    "p5",
    "p5e",
    "p5en",
    "p6-b200",
    "p6-b300",
    "p6e-gb200",
    "trn1",
    "trn1n",
    "trn2",
)
"""Instance families whose EFA reads and writes device memory. sagemaker-training 5.1.4 lacks p5en,
p6-b*, trn1n and trn2."""


def instance_groups(resource: Config) -> dict[str, list[str]]:
    """Return a map from each instance group to its hosts. If there are no groups, as in SageMaker's
    local mode, all hosts form one group."""
    hosts_by_group = {}
    for group in resource.get("instance_groups") or []:
        hosts_by_group[group["instance_group_name"]] = list(group["hosts"])
    return hosts_by_group or {HOMOGENEOUS: list(resource["hosts"])}


def sm_variables(
    user: Config,
    reserved: Config,
    resource: Config,
    channels: Config,
    machine: HostMachine,
    *,
    root: str,
    program: str,
    arguments: Sequence[str],
    groups: Sequence[str],
    hosts: Sequence[str],
    master: str,
) -> dict[str, str]:
    """Return every `SM_` variable of one host. `user` and `reserved` are the hyperparameters of the
    script, decoded from JSON, and of the launcher; `resource` is `resourceconfig.json`, `channels`
    is `inputdataconfig.json`. `root` is `/opt/ml`, or the folder that takes its place under
    emulation; `program` is empty if the job runs a command; `arguments` are those of the script.
    `groups` and `hosts` are the instance groups and the hosts of the distribution; `master` is the
    host of rank 0."""
    channels = dict(channels)
    channels.pop(CODE_CHANNEL, None)
    folders = {name: f"{root}/input/data/{name}" for name in channels}
    hosts_of = instance_groups(resource)
    own_group = resource.get("current_group_name", HOMOGENEOUS)
    described = resource.get("instance_groups") or []
    groups_dict = {group["instance_group_name"]: group for group in described}
    values = {
        "current_host": resource["current_host"],
        "current_instance_group": own_group,
        "current_instance_group_hosts": hosts_of.get(own_group, []),
        "current_instance_type": resource.get("current_instance_type", "local"),
        "distribution_instance_groups": list(groups),
        "framework_module": None,
        "hosts": resource["hosts"],
        "input_config_dir": f"{root}/input/config",
        "input_data_config": channels,
        "input_dir": f"{root}/input",
        "instance_groups": list(hosts_of),
        "instance_groups_dict": groups_dict,
        "is_hetero": len(hosts_of) > 1,
        "log_level": 20,
        "model_dir": f"{root}/model",
        "module_dir": f"{root}/input/data/{CODE_CHANNEL}/sourcedir.tar.gz",
        "module_name": program[:-3] if program.endswith(".py") else program,
        "network_interface_name": resource.get("network_interface_name", "eth0"),
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neurons,
        "output_data_dir": f"{root}/output/data",
        "output_dir": f"{root}/output",
        "output_intermediate_dir": f"{root}/output/intermediate",
        "resource_config": dict(resource),
        "user_entry_point": program,
    }
    training_env = {
        **values,
        "additional_framework_parameters": dict(reserved),
        "channel_input_dirs": folders,
        "distribution_hosts": hosts,
        "hyperparameters": dict(user),
        "is_master": resource["current_host"] == master,
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": machine.variables.get("TRAINING_JOB_NAME", ""),
        "master_hostname": master,
        "topology": resource.get("topology", []),
    }

    values["hps"] = dict(user)
    values["framework_params"] = dict(reserved)
    values["channels"] = sorted(channels)
    values["training_env"] = training_env
    values["user_args"] = arguments
    if resource.get("topology"):
        values["topology"] = resource["topology"]
    for name, folder in folders.items():
        values[f"channel_{name}"] = folder
    for key, value in user.items():
        if "=" not in key:
            values[f"hp_{key}"] = value
    return {f"SM_{name.upper()}": text_of(value) for name, value in values.items()}


def text_of(value: Any) -> str:
    """Return a value as text: an empty text for None, a string unchanged, other values as compact
    JSON with sorted keys (the toolkit's `to_env_vars`)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
