"""Find the rank that wrote a log file from the file's name, and split a growing file into lines.

Azure ML keeps a log file for each process; the lines do not name the process. azure-ai-ml 1.35.2 and its tests contain
these file names:

    user_logs/std_log.txt                                   a single process
    user_logs/std_log_process_03.txt                        one of several processes
    std_log_node_00_ps.txt, std_log_node_01_worker.txt      processes of TensorFlow
    azureml-logs/70_driver_log_3.txt                        a process of the older runtime
    70_driver_log-worker-0.txt                              a TensorFlow process of the older runtime
    mpi_log.txt                                             mpirun's own messages

In the logs of one retried job, the files of an attempt were in `user_logs/retry_001/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloudtrain.errors import UsageError
from cloudtrain.targets.azureml.compile.command import LAUNCHER
from cloudtrain.targets.azureml.launch.body import Body
from cloudtrain.targets.azureml.launch.tf_config import tasks

_FILE = re.compile(
    r"(?:user_logs/(?:retry_\d+/)?std_log|azureml-logs/70_driver_log)(?:[-_](?:process|node|rank))?"
    r"(?:[-_](?P<before>ps|worker|chief))?(?:[-_](?P<number>\d+))?(?:[-_](?P<behind>ps|worker|chief))?\.txt"
)
_LAUNCHERS_OWN = re.compile(r"user_logs/(?:retry_\d+/)?mpi_log\.txt")


class Writer(NamedTuple):
    """The process that writes a log file. `rank` is None for a launcher, whose lines may come from several ranks."""

    instance: int
    rank: int | None


@dataclass(frozen=True)
class Layout:
    """The ranks of a job, and the instance of each rank."""

    body: Body

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Layout:
        """Return the layout of the job with these `properties` in its body."""
        return cls(Body({"properties": properties}))

    @property
    def has_ranks(self) -> bool:
        """Return whether the service itself starts each rank; otherwise it starts one launcher on each instance."""
        command = str(self.body.request["properties"].get("command") or "")
        return self.body.kind != "Ray" and LAUNCHER not in command

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        if self.body.kind == "TensorFlow":
            return self.body.workers + self.body.parameter_servers
        return self.body.instances * self.body.processes_per_instance

    def writer(self, file: str) -> Writer | None:
        """Return the process that writes a log file; None for files that are not a process's output."""
        if _LAUNCHERS_OWN.fullmatch(file):
            return Writer(0, None)
        match = _FILE.fullmatch(file)
        if match is None:
            return None
        number = int(match["number"] or 0)
        if not self.has_ranks:
            return Writer(number, None)
        if self.body.kind != "TensorFlow":
            return Writer(number // self.body.processes_per_instance, number)
        kind = "ps" if "ps" in (match["before"], match["behind"]) else "worker"
        rank = number + (self.body.workers if kind == "ps" else 0)
        places = {(task.kind, task.index): task.instance for task in tasks(self.body)}
        return Writer(places.get((kind, number), 0), rank)

    def check(self, rank: int | None, instance: int | None) -> None:
        """Check that a rank or an instance can be selected.

        Without this check, the empty log of a missing rank would look like the log of a rank without output.

        Raises:
            UsageError: the rank or instance does not exist, or the log mixes the lines of all ranks of an instance.
        """
        if rank is not None and not self.has_ranks:
            raise UsageError(
                "you cannot select a rank, because the log mixes the lines of all ranks of an instance",
                hint="use `--instance N`",
                code="CT937",
            )
        for noun, asked, count in (("rank", rank, self.ranks), ("instance", instance, self.body.instances)):
            if asked is not None and asked >= count:
                plural = f"the {noun}s 0 to {count - 1}" if count > 1 else f"one {noun}, 0"
                raise UsageError(f"the job has no {noun} {asked}", hint=f"the job has {plural}", code="CT937")


class Cutter:
    """Splits arriving bytes into lines. It keeps incomplete lines and characters until the rest arrives."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Add bytes, and yield the lines that are now complete."""
        *whole, self._pending = (self._pending + data).split(b"\n")
        # A progress bar returns to the start of its line; only its last state is kept.
        self._pending = self._pending[self._pending.rstrip(b"\r").rfind(b"\r") + 1 :]
        return map(_text, whole)

    def rest(self) -> Iterator[str]:
        """Yield the last line if it does not end with a newline."""
        pending, self._pending = self._pending, b""
        if pending:
            yield _text(pending)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
