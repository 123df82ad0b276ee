"""Read the started program from the hyperparameters of the training toolkit or of cloudtrain's launcher."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cloudtrain.runtime.sagemaker_launcher import CODE_CHANNEL, LAUNCH_KEY
from cloudtrain.targets.sagemaker.export import distributions as dist
from cloudtrain.targets.sagemaker.export.scripts import script_of
from cloudtrain.targets.sagemaker.launch import keys

_TOOLKIT = frozenset((keys.SUBMIT_DIRECTORY, keys.PROGRAM, keys.LOG_LEVEL, keys.JOB_NAME, keys.REGION))


@dataclass(frozen=True)
class Start:
    """The program that a request starts.

    Attributes:
        launcher: `torchrun`, `mpirun`, `single`, or the name of the hyperparameter that selects another launcher.
        archive: the location of the code.
        entry_point: the script; None for a command.
        processes: processes of each instance, or None for one per GPU.
        hyperparameters: the script's hyperparameters, as text from the request.
        channels: all channels except the code channel.
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
    """Return the program that a request starts.

    Returns None if the request has no code, or fits neither the toolkit nor cloudtrain's launcher.
    """
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
        processes=values.get(keys.PROCESSES),
        mpi_options=values.get(keys.MPI_OPTIONS, ""),
        model_parallel=values.get(keys.MODEL_PARALLEL),
        groups=tuple(values.get(keys.GROUPS, ())),
    )


def _launcher(values: dict[str, Any]) -> str:
    """Return the launcher that the toolkit chooses.

    A launcher that only the toolkit supports is returned as the name of its hyperparameter.
    """
    if values.get(keys.TORCH) is True:
        return "torchrun"
    for key in (keys.PARAMETER_SERVER, keys.MIRRORED, keys.SMDDP):
        if values.get(key) is True:
            return key
    if keys.MODEL_PARALLEL in values or keys.SMDDP in values:
        return keys.MODEL_PARALLEL
    return "mpirun" if values.get(keys.MPI) is True else "single"


def _by_our_launcher(request: dict[str, Any]) -> Start | None:
    launch = json.loads(request["HyperParameters"][LAUNCH_KEY])
    channels = request.get("InputDataConfig", [])
    code = next((channel for channel in channels if channel["ChannelName"] == CODE_CHANNEL), None)
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
