"""Translate a container's paths and addresses to this machine's."""

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
"""Matches `/opt/ml` as a whole path or as its beginning, but not `/data/opt/ml` or `/opt/mlflow`."""

_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME")


def relocate_text(text: str, root: str) -> str:
    """Replace `/opt/ml` in a text with `root`."""
    return _ROOT.sub(lambda _: root, text)


def relocate_request(request: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Replace `/opt/ml` in a request's hyperparameters and variables with `root`."""
    hyperparameters = {name: _relocate_json(text, root) for name, text in request.get("HyperParameters", {}).items()}
    variables = {name: relocate_text(text, root) for name, text in request.get("Environment", {}).items()}
    return {**request, "HyperParameters": hyperparameters, "Environment": variables}


def _relocate_json(text: str, root: str) -> str:
    """Replace `/opt/ml` in a text with `root`, which is escaped if the text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return relocate_text(text, root)
    return relocate_text(text, json.dumps(root)[1:-1])


def port_name(endpoint: str) -> str:
    """Return the name of the local port that replaces `host:port`, such as `algo-1_7777`."""
    return endpoint.replace(":", "_")


def local_endpoint(endpoint: str) -> str:
    """Return the local address that replaces an endpoint such as `algo-1:7777`; its port is chosen at start."""
    return LOOPBACK + ":${{ports." + port_name(endpoint) + "}}"


def local_port(host: str, port: int | str) -> str:
    """Return a placeholder for the local port that replaces `port` of `host`; it is filled in at start."""
    return local_endpoint(f"{host}:{port}").partition(":")[2]


def local_tf_config(text: str) -> tuple[str, tuple[str, ...]]:
    """Return TF_CONFIG with every task's address on loopback, and the original addresses."""
    config = json.loads(text)
    endpoints = tuple(address for members in config["cluster"].values() for address in members)
    config["cluster"] = {role: list(map(local_endpoint, members)) for role, members in config["cluster"].items()}
    return json.dumps(config), endpoints


def with_loopback(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return `resourceconfig.json` with the loopback network interface."""
    return {**resource, "network_interface_name": LOOPBACK_INTERFACE}


def local_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a host's variables with the loopback network interface."""
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
    """Return MASTER_ADDR and MASTER_PORT for this machine; empty if the toolkit does not set them."""
    if "MASTER_ADDR" not in variables:
        return {}
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": local_port(variables["MASTER_ADDR"], variables["MASTER_PORT"]),
    }


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
