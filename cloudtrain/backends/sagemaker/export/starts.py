"""What a request starts, whichever mode says it: the training toolkit's hyperparameters or our launcher's one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cloudtrain.backends.sagemaker.export import distributions as dist
from cloudtrain.backends.sagemaker.export.inputs import CODE
from cloudtrain.backends.sagemaker.export.scripts import script_of
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY

_TOOLKIT = frozenset(
    f"sagemaker_{name}" for name in ("submit_directory", "program", "container_log_level", "job_name", "region")
)


@dataclass(frozen=True)
class Start:
    """What runs.

    Attributes:
        launcher: `torchrun`, `mpirun`, `single`, or the hyperparameter that asks for anything else.
        archive: where the code is.
        entry_point: the script, unless it is a command.
        processes: of each instance, or None for one of each GPU.
        hyperparameters: the script's own, as they stand in the request.
        channels: all but that of the code.
    """

    launcher: str
    archive: str
    channels: list[dict[str, Any]]
    hyperparameters: dict[str, str]
    entry_point: str | None = None
    command: str | None = None
    processes: int | None = None
    mpi_options: str = ""
    model_parallel: dict[str, Any] | None = None
    requirements: str | None = None
    groups: tuple[str, ...] = ()


def start_of(request: dict[str, Any], region: str) -> Start | None:
    """What a request starts; None where it brings no code, or its hyperparameters are not those of either mode."""
    if LAUNCH_KEY in request.get("HyperParameters", {}):
        return _by_our_launcher(request)
    script = script_of(request, region)
    if script is None:
        return None
    values = script.values
    return Start(
        launcher=_launcher(values),
        archive=script.source_dir,
        channels=script.channels,
        hyperparameters=_own(request, {*_TOOLKIT, *dist.KEYS}),
        entry_point=script.entry_point,
        processes=values.get(dist.MPI_PROCESSES),
        mpi_options=values.get(dist.MPI_OPTIONS, ""),
        model_parallel=values.get(dist.SMP),
        groups=tuple(values.get(dist.GROUPS, ())),
    )


def _launcher(values: dict[str, Any]) -> str:
    """As the toolkit decides it; what only the toolkit starts is named by its hyperparameter."""
    if values.get(dist.TORCH) is True:
        return "torchrun"
    for key in (dist.PARAMETER_SERVER, dist.MIRRORED, dist.SMDDP):
        if values.get(key) is True:
            return key
    if dist.SMP in values or dist.SMDDP in values:
        return dist.SMP
    return "mpirun" if values.get(dist.MPI) is True else "single"


def _by_our_launcher(request: dict[str, Any]) -> Start | None:
    launch = json.loads(request["HyperParameters"][LAUNCH_KEY])
    channels = request.get("InputDataConfig", [])
    code = next((channel for channel in channels if channel["ChannelName"] == CODE), None)
    if code is None:
        return None
    known = ("torchrun", "mpirun", "single")
    return Start(
        launcher=launch["launcher"] if launch["launcher"] in known else LAUNCH_KEY,
        archive=code["DataSource"]["S3DataSource"]["S3Uri"],
        channels=[channel for channel in channels if channel is not code],
        hyperparameters=_own(request, {LAUNCH_KEY}),
        entry_point=launch.get("entry_point"),
        command=launch.get("command"),
        processes=launch.get("processes_per_instance"),
        mpi_options=launch.get("mpi_options", ""),
        requirements=launch.get("requirements"),
        groups=tuple(launch.get("instance_groups", ())),
    )


def _own(request: dict[str, Any], others: set[str]) -> dict[str, str]:
    return {name: text for name, text in request["HyperParameters"].items() if name not in others}
