"""Paths and addresses of a container, as they are on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.targets.sagemaker.launch.hosts import INTERFACE

LOOPBACK = "127.0.0.1"

LOOPBACK_INTERFACE = "lo"

_ROOT = re.compile(rf"(?<![\w.~/-]){re.escape(ROOT)}(?![\w.-])")
"""`/opt/ml` as a whole path or its beginning: not in `/data/opt/ml`, not in `/opt/mlflow`."""

_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME")


def relocate_text(text: str, root: str) -> str:
    """The text with `/opt/ml` at `root`."""
    return _ROOT.sub(lambda _: root, text)


def relocate_request(request: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The request with hyperparameters and variables that name `/opt/ml` as one host must see them."""
    hyperparameters = {name: _relocate_json(text, root) for name, text in request.get("HyperParameters", {}).items()}
    variables = {name: relocate_text(text, root) for name, text in request.get("Environment", {}).items()}
    return {**request, "HyperParameters": hyperparameters, "Environment": variables}


def _relocate_json(text: str, root: str) -> str:
    """Inside JSON the root is written as JSON writes it."""
    try:
        json.loads(text)
    except ValueError:
        return relocate_text(text, root)
    return relocate_text(text, json.dumps(root)[1:-1])


def port_name(endpoint: str) -> str:
    """The name of the port that stands for `host:port`."""
    return endpoint.replace(":", "_")


def local_endpoint(endpoint: str) -> str:
    """`algo-1:7777` as an address on this machine; its port is chosen at start."""
    return LOOPBACK + ":${{ports." + port_name(endpoint) + "}}"


def local_port(host: str, port: int | str) -> str:
    """The port alone."""
    return local_endpoint(f"{host}:{port}").partition(":")[2]


def local_tf_config(text: str) -> tuple[str, tuple[str, ...]]:
    """TF_CONFIG with every task on loopback, and the endpoints that it had."""
    config = json.loads(text)
    endpoints = tuple(address for members in config["cluster"].values() for address in members)
    config["cluster"] = {role: list(map(local_endpoint, members)) for role, members in config["cluster"].items()}
    return json.dumps(config), endpoints


def with_loopback(resource: Mapping[str, Any]) -> dict[str, Any]:
    """`resourceconfig.json` with an interface that exists."""
    return {**resource, "network_interface_name": LOOPBACK_INTERFACE}


def local_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """A host's variables with the interface of this machine."""
    local = dict(variables)
    for name in _INTERFACE_VARIABLES:
        if local.get(name) == INTERFACE:
            local[name] = LOOPBACK_INTERFACE
    if "SM_RESOURCE_CONFIG" in local:
        local["SM_RESOURCE_CONFIG"] = _compact(with_loopback(json.loads(local["SM_RESOURCE_CONFIG"])))
    if "SM_TRAINING_ENV" in local:
        whole = with_loopback(json.loads(local["SM_TRAINING_ENV"]))
        local["SM_TRAINING_ENV"] = _compact({**whole, "resource_config": with_loopback(whole["resource_config"])})
    return local


def local_master(variables: Mapping[str, str]) -> dict[str, str]:
    """Where the toolkit says that rank 0 is, on this machine; nothing where it does not say so."""
    if "MASTER_ADDR" not in variables:
        return {}
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": local_port(variables["MASTER_ADDR"], variables["MASTER_PORT"]),
    }


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
