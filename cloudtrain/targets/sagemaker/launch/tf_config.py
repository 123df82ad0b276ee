"""TF_CONFIG and the parameter servers that sagemaker-tensorflow-training sets up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from cloudtrain.targets.sagemaker.launch.host_setup import HostSetup
from cloudtrain.targets.sagemaker.launch.keys import MIRRORED, PARAMETER_SERVER

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
