"""tf.distribute: which tasks a job has, and the `TF_CONFIG` that tells each of them who the others are."""

from __future__ import annotations

from cloudtrain.plans import canonical_json


def tasks(*, workers: int, parameter_servers: int) -> list[tuple[str, int]]:
    """Task types and indices in rank order: workers, or with parameter servers chief, workers and servers."""
    if not parameter_servers:
        return [("worker", index) for index in range(workers)]
    return [
        ("chief", 0),
        *(("worker", index) for index in range(workers - 1)),
        *(("ps", index) for index in range(parameter_servers)),
    ]


def port_name(task: str, index: int) -> str:
    """The name of the port that a task listens on."""
    return f"{task}_{index}"


def tf_config(all_tasks: list[tuple[str, int]], task: str, index: int) -> str:
    """The `TF_CONFIG` of one task, with every task on loopback at a port that is chosen at start."""
    cluster: dict[str, list[str]] = {}
    for kind, number in all_tasks:
        address = "127.0.0.1:${{ports." + port_name(kind, number) + "}}"
        cluster.setdefault(kind, []).append(address)
    return canonical_json({"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": task}})
