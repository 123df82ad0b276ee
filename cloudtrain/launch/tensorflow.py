"""tf.distribute: the tasks of a job, and the variable `TF_CONFIG`, which tells each task the addresses of all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloudtrain.core.plan import canonical_json


def tasks(*, workers: int, parameter_servers: int) -> list[tuple[str, int]]:
    """Return the type and index of each task in rank order: all workers; or if there are parameter servers, the chief,
    the other workers and the servers.
    """
    if not parameter_servers:
        return [("worker", index) for index in range(workers)]
    return [
        ("chief", 0),
        *(("worker", index) for index in range(workers - 1)),
        *(("ps", index) for index in range(parameter_servers)),
    ]


def port_name(task: str, index: int) -> str:
    """Return the name of the port that a task listens on."""
    return f"{task}_{index}"


def tf_configs(all_tasks: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield the `TF_CONFIG` of each task. Every task is on loopback at a port that is chosen at start."""
    cluster: dict[str, list[str]] = {}
    for kind, number in all_tasks:
        cluster.setdefault(kind, []).append("127.0.0.1:${{ports." + port_name(kind, number) + "}}")
    shared = canonical_json({"cluster": cluster, "environment": "cloud"})
    for kind, number in all_tasks:
        own = canonical_json({"task": {"index": number, "type": kind}})
        yield f"{shared[:-1]},{own[1:]}"
