"""Settings of the Slurm target: the cluster, and how jobs run there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cloudtrain.core.model import all_at_once
from cloudtrain.core.units import Count, Duration
from cloudtrain.errors import Problem
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.arguments import DurationInput, Texts

_UNFIT = "%\\"
"""Characters that Slurm replaces in the name of an output file."""


def _slurm_rules(slurm: Mapping[str, Any]) -> Iterator[Problem]:
    folder, host = slurm.get("shared_dir"), slurm.get("host")
    if isinstance(folder, str):
        if not folder.startswith("/"):
            message = f"`shared_dir` must be an absolute path of the cluster, not `{folder}`"
            yield Problem(("shared_dir",), message, "write for example `/fsx/cloudtrain`", code="CT915")
        if any(letter in _UNFIT or ord(letter) < ord(" ") for letter in folder):
            message = (
                "`shared_dir` holds a character that Slurm replaces in file names: `%`, `\\` or a control character"
            )
            yield Problem(("shared_dir",), message, "use another folder", code="CT915")
    if isinstance(host, str) and (not host or host.startswith("-") or not host.isprintable() or " " in host):
        message = f"`host` must be a name that `ssh` knows, not `{host}`"
        yield Problem(("host",), message, "write for example `login1` or `me@login.example.org`", code="CT915")
    options = slurm.get("extra_sbatch")
    for number, option in enumerate(options if isinstance(options, list | tuple) else ()):
        if isinstance(option, str) and not (option.startswith("--") and len(option) > len("--")):
            message = f"`{option}` is not one long option of sbatch"
            yield Problem(("extra_sbatch", number), message, 'write for example `"--nice=100"`', code="CT915")


class Slurm(TargetSettings):
    """A Slurm cluster. An instance is a node."""

    type: Literal["slurm"] = "slurm"
    partition: str | None = None
    """The partition. Default: the cluster's default partition."""
    spot_partition: str | None = None
    """Partition for jobs with `spot`: one whose jobs can lose their nodes to other jobs."""
    account: str | None = None
    """The account that Slurm charges the time to."""
    qos: str | None = None
    constraint: str | None = None
    """Features that every node must have: `a100&ib`."""
    reservation: str | None = None
    host: str | None = None
    """The login node, as `ssh` knows it. Without it, cloudtrain runs the commands of this machine."""
    shared_dir: str | None = None
    """A folder that the login node and every node see, for bundles, runs and checkpoints."""
    python: str = "python3"
    """The interpreter that runs the script, on the nodes or in the container."""
    container: Literal["pyxis", "apptainer"] | None = None
    """What runs `environment.image`: pyxis (enroot) or apptainer."""
    mounts: tuple[str, ...] = ()
    """More folders that the container sees: `/data` or `/data:/mnt`."""
    setup: tuple[str, ...] = ()
    """Lines of bash that the batch script runs before it starts the ranks: modules, a virtual environment."""
    exclusive: bool = Field(default=True, strict=True)
    """Give the job whole nodes, with all their CPUs and memory."""
    cpus_per_instance: Count | None = None
    """CPUs of each node that the job asks for when it shares its nodes (`exclusive = false`)."""
    gpu_type: str | None = None
    """Slurm's name of the GPUs: `a100` of `--gres=gpu:a100:8`."""
    mpi: str = Field(default="mpirun", min_length=1)
    """What starts the ranks of `mpi` and `horovod`: `mpirun`, a path to it, or a plug-in of `srun --mpi`: `pmix`."""
    rendezvous_host: str | None = None
    """The host of rank 0 as other nodes reach it. Default: the first node of the job."""
    requeue: bool = Field(default=True, strict=True)
    """Start the job again after its nodes were lost or taken away."""
    grace_period: Duration = 60
    """Time for processes to save and exit after SIGTERM, before SIGKILL."""
    extra_sbatch: tuple[str, ...] = ()
    """More options of sbatch, each as `--option` or `--option=value`."""

    _rules = all_at_once(_slurm_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["slurm"] = "slurm",
            partition: str | None = None,
            spot_partition: str | None = None,
            account: str | None = None,
            qos: str | None = None,
            constraint: str | None = None,
            reservation: str | None = None,
            host: str | None = None,
            shared_dir: str | None = None,
            python: str = "python3",
            container: Literal["pyxis", "apptainer"] | None = None,
            mounts: Texts = (),
            setup: Texts = (),
            exclusive: bool = True,
            cpus_per_instance: int | None = None,
            gpu_type: str | None = None,
            mpi: str = "mpirun",
            rendezvous_host: str | None = None,
            requeue: bool = True,
            grace_period: DurationInput = 60,
            extra_sbatch: Texts = (),
        ) -> None: ...
