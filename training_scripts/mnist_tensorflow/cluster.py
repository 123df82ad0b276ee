"""Read a job's cluster from every form of `TF_CONFIG`, and run a server until the chief has ended.

    written by                          value                                      result
    cloudtrain, by hand                 worker; or chief, worker, ps               unchanged
    Azure ML, mirrored workers          worker, and `ps: []`                       no ps
    Azure ML, parameter servers         worker, ps                                 the first worker is the chief
    SageMaker, mirrored workers         worker                                     unchanged
    SageMaker, parameter servers        master, worker, ps                         the master is the chief
    nobody                                                                         one process alone

SageMaker's toolkit starts the servers itself, on every host, beside the script. Elsewhere they are processes of this
script. The runtime's `apply_tf_config` does the rows of `ps: []` and `master`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from cloudtrain import runtime

PATIENCE = 600.0
"""Seconds that a server waits for the chief."""

POLL = 0.5


def join_cluster() -> dict[str, Any]:
    """Read `TF_CONFIG`, bring it into one form, and write it back for TensorFlow, which reads it on import or later.
    Return a cluster without tasks if it is not set.
    """
    runtime.apply_tf_config()
    config = runtime.read_tf_config()
    if config is None:
        return {"cluster": {}, "task": {"type": "worker", "index": 0}}
    config = with_chief(config)
    os.environ["TF_CONFIG"] = json.dumps(config)
    return config


def with_chief(config: dict[str, Any]) -> dict[str, Any]:
    """Make sure that the cluster has a chief, which assigns work in a job with parameter servers. If there is none, the
    first worker becomes the chief, and the index of every other worker decreases by one.
    """
    cluster, task = config["cluster"], config["task"]
    if "ps" not in cluster or "chief" in cluster:
        return config
    first, *others = cluster["worker"]
    if task["type"] == "worker":
        number = task["index"]
        task = (
            {**task, "type": "worker", "index": number - 1}
            if number
            else {**task, "type": "chief", "index": 0}
        )
    cluster = {**cluster, "chief": [first], "worker": others}
    return {
        **config,
        "cluster": {role: places for role, places in cluster.items() if places},
        "task": task,
    }


def serve(config: dict[str, Any]) -> None:
    """Run a worker or a parameter server, which executes the chief's requests until the chief has ended.

    All processes get SIGTERM at a stop. A server ignores it, because the chief must still read the weights to save
    them.
    """
    import tensorflow as tf

    cluster, task = config["cluster"], config["task"]
    server = tf.distribute.Server(cluster, job_name=task["type"], task_index=task["index"])
    address = cluster["chief"][0]
    wait_for(address)
    while answers(address):
        time.sleep(POLL)
    del server


def wait_for(address: str) -> None:
    """Wait until the chief listens at `address`, or until this process is asked to stop.

    Raises:
        SetupError: the chief did not start in time. It may still start, and must not find that its servers have left
        with success.
    """
    deadline = time.monotonic() + PATIENCE
    while not answers(address) and not runtime.should_stop():
        if time.monotonic() > deadline:
            raise runtime.SetupError(
                f"no chief at `{address}` after {PATIENCE:g} s",
                hint="see what the chief's log says; `PATIENCE` in cluster.py is how long its servers wait",
            )
        time.sleep(POLL)


def answers(address: str) -> bool:
    """Return whether a process listens at `host:port`; False while the host's name cannot be resolved."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True
