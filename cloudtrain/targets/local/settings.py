"""Settings of the local target: how a job runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cloudtrain.core.model import all_at_once
from cloudtrain.core.targets import all_targets, find_target
from cloudtrain.core.units import Count, Duration
from cloudtrain.errors import Problem, did_you_mean
from cloudtrain.problems.source import describe_value
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.arguments import DurationInput


def _local_rules(local: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _queue_rules(local)
    name = local.get("emulate")
    if not isinstance(name, str):
        return
    if name not in emulated_targets():
        message, hint = f"`emulate` cannot be {describe_value(name)}", did_you_mean(name, emulated_targets())
        yield Problem(("emulate",), message, hint or did_you_mean("", emulated_targets()), code="CT013")
        return
    service = find_target(name).title
    if local.get("max_restarts"):
        message = f"`max_restarts` has no effect with `emulate`: {service} does not restart ranks"
        yield Problem(("max_restarts",), message, "remove one of them", code="CT018")
    if local.get("build_environment"):
        message = "`build_environment` has no effect with `emulate`: the job uses the packages of the interpreter"
        yield Problem(("build_environment",), message, "remove one of them", code="CT018")
    if local.get("launcher") == "fork":
        message = f"`launcher: fork` has no effect with `emulate`: the ranks start as {service} starts them"
        yield Problem(("launcher",), message, "remove one of them", code="CT018")


def _queue_rules(local: Mapping[str, Any]) -> Iterator[Problem]:
    if local.get("priority") and "queue" not in local:
        message = "`priority` has no effect without `queue`: the run starts at once"
        yield Problem(("priority",), message, "add `--queue`, or remove `priority`", code="CT018")


def emulated_targets() -> list[str]:
    """Return the names of the targets that this machine can emulate."""
    return [target.name for target in all_targets() if target.can_emulate]


class Local(TargetSettings):
    """Settings of the local target. Each instance of a job is simulated by a launcher with its own environment. The
    instances communicate over the loopback interface."""

    type: Literal["local"] = "local"
    python: str | None = None
    """The Python interpreter that runs the script: a path, `conda:NAME` for a conda environment, or `uv` for the
    environment of the project that contains the working directory. Default: the interpreter that runs cloudtrain."""
    instance_count: Count | None = None
    """The exact number of simulated instances. Default: the job's number, reduced to this machine."""
    processes_per_instance: Count | None = None
    """The exact number of processes per simulated instance. Default: the job's number, reduced to this machine."""
    max_restarts: int = Field(default=0, ge=0, strict=True)
    """How often all ranks are restarted after one rank fails (torchrun's `--max-restarts`)."""
    launcher: Literal["torchrun", "fork"] = "torchrun"
    """The launcher of a `torch` job: `torchrun`, or `fork`, which forks all ranks from one process that has imported
    torch (CPU only)."""
    grace_period: Duration = 30
    """Time for processes to save and exit after SIGTERM, before SIGKILL."""
    build_environment: bool = False
    """Install the job's `environment.requirements` into an environment on top of the interpreter. The environment is
    built once for all runs with the same requirements."""
    emulate: str | None = None
    """The target to emulate: run the job on this machine with that target's paths, files, variables and command
    lines."""
    queue: bool = Field(default=False, strict=True)
    """Wait for the GPUs or CPU slots that the run needs, instead of starting at once."""
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000, strict=True)
    """Priority in the queue. Runs with a higher number start first."""
    slots: Count | None = None
    """Maximum number of processes that queued runs may have at the same time on a machine without GPUs. Default: the
    number of cores."""
    gpus: str | None = None
    """The GPUs that runs may use, written as in CUDA_VISIBLE_DEVICES: `0,1`. Default: all GPUs of this machine."""

    _rules = all_at_once(_local_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["local"] = "local",
            python: str | None = None,
            instance_count: int | None = None,
            processes_per_instance: int | None = None,
            max_restarts: int = 0,
            launcher: Literal["torchrun", "fork"] = "torchrun",
            grace_period: DurationInput = 30,
            build_environment: bool = False,
            emulate: str | None = None,
            queue: bool = False,
            priority: int = 0,
            slots: int | None = None,
            gpus: str | None = None,
        ) -> None: ...
