"""The launch specification: the hyperparameter `cloudtrain_launch`, a JSON object that cloudtrain writes into the
request.

entry_point             the script in the bundle; or
command                 a shell command line
launcher                torchrun | mpirun | tensorflow | single
processes_per_instance  torchrun and mpirun; default: the number of GPUs or Neuron cores, else one
instance_groups         the groups of the distribution; hosts of other groups run the script alone
requirements            a pip requirements file in the bundle
interpreter             the Python that runs the script; default: the launcher's own
mpi_options             more options for mpirun
strategy                tensorflow: multi_worker_mirrored | parameter_server
workers                 tensorflow: workers including the chief; default: one per host
parameter_servers       tensorflow; default: one
bare_flags              true hyperparameters become `--key` alone; false ones are left out
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from cloudtrain.runtime.errors import SetupError

from . import LAUNCH_KEY

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LAUNCHERS = ("torchrun", "mpirun", "tensorflow", "single")


@dataclass(frozen=True)
class Launch:
    """The launch specification. Its fields are the keys that the module's docstring lists."""

    launcher: str = "single"
    entry_point: str | None = None
    command: str | None = None
    processes_per_instance: int | None = None
    instance_groups: tuple[str, ...] = ()
    requirements: str | None = None
    interpreter: str | None = None
    mpi_options: str = ""
    strategy: str = "multi_worker_mirrored"
    workers: int | None = None
    parameter_servers: int | None = None
    bare_flags: bool = False

    @property
    def needs_master(self) -> bool:
        """Return whether the launcher's processes connect to the first host: those of torchrun and tensorflow do."""
        return self.launcher in ("torchrun", "tensorflow")


def read_launch(reserved: Mapping[str, Any]) -> Launch:
    """Read the launch specification from `reserved`, the launcher's hyperparameters.

    Raises:
        SetupError: the specification is missing or not valid, or another version of cloudtrain wrote it.
    """
    given = reserved.get(LAUNCH_KEY)
    if not isinstance(given, dict):
        message = (
            f"the hyperparameter `{LAUNCH_KEY}` is missing" if given is None else f"`{LAUNCH_KEY}` is not a JSON object"
        )
        raise SetupError(message, hint="submit the job with cloudtrain, which adds this hyperparameter")
    unknown = sorted(set(given) - {field.name for field in fields(Launch)})
    if unknown:
        raise _refusal(f"has the unknown key `{unknown[0]}`")
    launch = Launch(**{**given, "instance_groups": tuple(given.get("instance_groups") or ())})
    if launch.launcher not in LAUNCHERS:
        raise _refusal(f"names the launcher `{launch.launcher}`, which is none of {', '.join(LAUNCHERS)}")
    if (launch.entry_point is None) == (launch.command is None):
        raise _refusal("must have either an `entry_point` or a `command`")
    return launch


def _refusal(what: str) -> SetupError:
    hint = "the bundle and the request come from different versions of cloudtrain; submit the job again"
    return SetupError(f"the hyperparameter `{LAUNCH_KEY}` {what}", hint=hint)
