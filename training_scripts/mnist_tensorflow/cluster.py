"""The cluster of a job: one `TF_CONFIG`, whoever wrote it, and what its servers do until the chief is gone.

    who writes it                       what stands there                          what becomes of it
    cloudtrain, by hand                 worker; or chief, worker, ps               as it is
    Azure ML, mirrored workers          worker, and `ps: []`                       no ps: nobody serves
    Azure ML, parameter servers         worker, ps                                 the first worker is the chief
    SageMaker, mirrored workers         worker                                     as it is
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
"""Seconds that a server waits for the chief to come."""

POLL = 0.5


def join_cluster() -> dict[str, Any]:
    """`TF_CONFIG` in its one form, written back for TensorFlow, which reads it when it is imported or later. Without
    one, a cluster without tasks.
    """
    runtime.apply_tf_config()
    config = runtime.read_tf_config()
    if config is None:
        return {"cluster": {}, "task": {"type": "worker", "index": 0}}
    config = with_chief(config)
    os.environ["TF_CONFIG"] = json.dumps(config)
    return config


def with_chief(config: dict[str, Any]) -> dict[str, Any]:
    """Parameter servers need a chief who hands out the work. Where there is none the first worker takes the part, and
    those behind it move up."""
    cluster, task = config["cluster"], config["task"]
    if "ps" not in cluster or "chief" in cluster:
        return config
    first, *others = cluster["worker"]
    if task["type"] == "worker":
        number = task["index"]
        task = {**task, "type": "worker", "index": number - 1} if number else {**task, "type": "chief", "index": 0}
    cluster = {**cluster, "chief": [first], "worker": others}
    return {**config, "cluster": {role: places for role, places in cluster.items() if places}, "task": task}


def serve(config: dict[str, Any]) -> None:
    """A worker's or a parameter server's whole life: it does what the chief asks, until the chief is gone.

    SIGTERM, which everybody gets who is to stop, does not end it: the chief still reads the weights, to save them.
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
    """Until the chief listens there, or this process is to stop.

    Raises:
        SetupError: the chief did not come. It may still do, and must not find that its servers have left with success.
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
    """Whether somebody listens at `host:port`. A host whose name is not known yet does not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True
