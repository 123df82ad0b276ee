"""One event of CloudWatch as lines, and which rank wrote them, where its launcher says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cloudtrain.catalogue.instances import instance_named
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.states import LogLine

_MPI = re.compile(r"\[(?:\d+|(?P<name>[^\],]+)),(?P<rank>\d+)\]<(?P<stream>stdout|stderr)>:(?(name) ?)")
"""mpirun's `--tag-output`: the job's number and the rank in Open MPI 4 (`[1,3]<stdout>:text`), the job's name and a
blank behind the tag in 5 (`[prterun-algo-1-7@1,3]<stdout>: text`)."""

_RANK = re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?")
"""PyTorch's own prefix of tracebacks (`[rank3]: `), and cloudtrain's (`[rank 3] `)."""

_LOCAL = re.compile(r"\[default(?P<local>\d+)\]: ?")
"""torchrun's `--tee`: the local rank."""


_TOOLKIT_LAUNCHERS = (
    "sagemaker_mpi_enabled", "sagemaker_torch_distributed_enabled", "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled",
)  # fmt: skip
"""Hyperparameters by which the container's toolkit starts more than the plain script."""


class Writer(NamedTuple):
    """Who wrote the lines of a stream: the instance from whose container they come (of an MPI job, the first one),
    and how many ranks each instance has, where that is known.
    """

    instance: int
    ranks_per_instance: int | None = None


def ranks_per_instance(description: Mapping[str, Any]) -> int | None:
    """How many ranks each instance of a described job has; None where the job does not say."""
    given = description.get("HyperParameters", {})
    if LAUNCH_KEY in given:
        launch = json.loads(given[LAUNCH_KEY])
        if launch["launcher"] == "single":
            return 1
        return launch.get("processes_per_instance") or _devices(description)
    if any(given.get(key) == "true" for key in _TOOLKIT_LAUNCHERS):
        return int(given.get("sagemaker_mpi_num_of_processes_per_host", 0)) or _devices(description)
    return 1 if "sagemaker_program" in given else None


def _devices(description: Mapping[str, Any]) -> int | None:
    known = instance_named("sagemaker", description.get("ResourceConfig", {}).get("InstanceType", ""))
    return known.devices if known is not None else None


def lines_of(message: str, time: float, writer: Writer) -> Iterator[LogLine]:
    """The lines of one event. Of a progress bar, which goes back to the start of its line, the last state is kept."""
    for line in message.rstrip("\r\n").split("\n"):
        yield _line(line.rstrip("\r").rpartition("\r")[2], time, writer)


def _line(text: str, time: float, writer: Writer) -> LogLine:
    instance = writer.instance
    if match := _MPI.match(text):
        return LogLine(time, instance, int(match["rank"]), match["stream"], text[match.end() :])
    if match := _RANK.match(text):
        return LogLine(time, instance, int(match["rank"]), "stdout", text[match.end() :])
    match = _LOCAL.match(text)
    if match and writer.ranks_per_instance:
        rank = instance * writer.ranks_per_instance + int(match["local"])
        return LogLine(time, instance, rank, "stdout", text[match.end() :])
    alone = writer.ranks_per_instance == 1
    return LogLine(time, instance, instance if alone else None, "stdout", text)
