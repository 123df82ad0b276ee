"""The variable TF_CONFIG of Azure ML's TensorFlow distribution.

The documentation shows two clusters of TensorFlow processes, in which every process uses port 2222. The first cluster
has only workers (`host0:2222`, `host1:2222`, without a key `ps`). The second has parameter servers on the first hosts
and workers on the next hosts.

If a job has more processes than hosts, some processes share a host. cloudtrain assumes that Azure ML then assigns ports
as its predecessor Batch AI did: 2222 to the server and 2223 to the worker on the same host (recorded with three
instances, one server and three workers).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.layout import JobLayout

FIRST_PORT = 2222


@dataclass(frozen=True)
class Task:
    """One process of the TensorFlow cluster: a parameter server (`ps`) or a worker."""

    kind: str
    index: int
    instance: int
    port: int


def tasks(body: Body) -> tuple[Task, ...]:
    """Return the parameter servers, followed by the workers. Default: one worker for each instance."""
    servers, workers = body.parameter_servers, body.workers
    behind = servers if servers + workers <= body.instances else 0
    wanted = [("ps", number, number % body.instances) for number in range(servers)]
    wanted += [("worker", number, (behind + number) % body.instances) for number in range(workers)]
    next_port = [FIRST_PORT] * body.instances
    found = []
    for kind, index, instance in wanted:
        found.append(Task(kind, index, instance, next_port[instance]))
        next_port[instance] += 1
    return tuple(found)


def cluster_text(all_tasks: tuple[Task, ...], layout: JobLayout) -> str:
    """Return the addresses of all tasks as JSON: the part of TF_CONFIG that all tasks share."""
    cluster: dict[str, list[str]] = {}
    for each in all_tasks:
        cluster.setdefault(each.kind, []).append(":".join(layout.listen(each.instance, each.port)))
    return json.dumps(cluster)


def tf_config(cluster: str, task: Task) -> str:
    """Return one task's TF_CONFIG; `cluster` is the result of `cluster_text`."""
    own = json.dumps({"type": task.kind, "index": task.index})
    return f'{{"cluster": {cluster}, "task": {own}, "environment": "cloud"}}'
