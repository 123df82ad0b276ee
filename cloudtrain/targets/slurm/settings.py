"""Settings of the Slurm target: the cluster, and how jobs run on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from pydantic import Field

from cloudtrain.errors import Problem, RunNotFound
from cloudtrain.job.model import Count, Duration, all_at_once
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.job.model import DurationInput, Texts


_UNFIT = "%\\"
"""Characters that have a special meaning to Slurm in the name of an output file."""


ASKED = "the partition, the limits, the start time and the interpreter"
"""What the checks of the cluster are about."""


def _slurm_rules(slurm: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of the settings `slurm`, whose values may still have any type."""
    folder = slurm.get("shared_dir")
    if isinstance(folder, str):
        if not folder.startswith("/"):
            yield Problem(
                ("shared_dir",),
                f"`shared_dir` must be an absolute path on the cluster, not `{folder}`",
                "write for example `/fsx/cloudtrain`",
                code="CT915",
            )
        if any(letter in _UNFIT or letter < " " for letter in folder):
            yield Problem(
                ("shared_dir",),
                "`shared_dir` holds a character that Slurm replaces in file names: `%`, "
                "`\\` or a line break",
                "use another folder",
                code="CT915",
            )

    host = slurm.get("host")
    if isinstance(host, str):
        is_word = host.isprintable() and " " not in host and not host.startswith("-")
        if not (host and is_word):
            yield Problem(
                ("host",),
                f"`host` must be a name that `ssh` knows, not `{host}`",
                "write for example `login1` or `me@login.example.org`",
                code="CT915",
            )

    for name, value in slurm.items():
        # In the script of `--format sbatch` an option is one line. A line break in its value would
        # begin a command.
        is_text = isinstance(value, str) and name not in ("host", "shared_dir")
        if is_text and not value.isprintable():
            message = f"`{name}` holds a line break or another control character"
            hint = f'write the value on one line: `{name} = "..."`'
            yield Problem((name,), message, hint, code="CT915")

    options = slurm.get("extra_sbatch")
    if not isinstance(options, list | tuple):
        return
    for number, option in enumerate(options):
        if isinstance(option, str) and not is_option(option):
            name, _, value = option.partition(" ")
            nearest = f"{name}={value.strip()}"
            hint = 'write for example `"--nice=100"`'
            if value and is_option(nearest):
                hint = f'write `"{nearest}"`'
            yield Problem(
                ("extra_sbatch", number),
                f"`{option}` is not a single long option of sbatch",
                hint,
                code="CT915",
            )


_LONG_OPTION = r"--[A-Za-z0-9][A-Za-z0-9-]+"


def is_option(text: str) -> bool:
    """Return whether a text is a long option of sbatch on one line, with `=` before its value."""
    name, _, value = text.partition("=")
    return re.fullmatch(_LONG_OPTION, name) is not None and value.isprintable()


class Slurm(TargetSettings):
    """Settings of a Slurm cluster. Each instance of a job is one node."""

    type: Literal["slurm"] = "slurm"
    partition: str | None = None
    """The partition that runs the job. Default: the cluster's default partition."""
    spot_partition: str | None = None
    """The partition for jobs with `spot`, which can lose their nodes to other jobs."""
    account: str | None = None
    """The Slurm account that pays for the job's time."""
    qos: str | None = None
    constraint: str | None = None
    """Features that every node must have, such as `a100&ib`."""
    reservation: str | None = None
    host: str | None = None
    """The login node's name for `ssh`. Default: cloudtrain runs Slurm's commands on this
    machine."""
    shared_dir: str | None = None
    """The folder for bundles, runs and checkpoints. The login node and every node must see it."""
    python: str = "python3"
    """The Python interpreter that runs the script, on the nodes or in the container."""
    container: Literal["pyxis", "apptainer"] | None = None
    """The container runtime for `environment.image`: `pyxis` (enroot) or `apptainer`."""
    mounts: tuple[str, ...] = ()
    """More folders to mount in the container, each as `/data` or `/data:/mnt`."""
    setup: tuple[str, ...] = ()
    """Lines of bash to run before the ranks start: load modules, activate a virtual environment."""
    build_environment: bool | None = Field(default=None, strict=True)
    """Install the job's `environment.requirements` on top of `python`, once for all jobs with the
    same requirements. Default: unless `python` or `setup` is set. A job with an image installs
    nothing."""
    exclusive: bool = Field(default=True, strict=True)
    """Give the job whole nodes, with all their CPUs and memory."""
    cpus_per_instance: Count | None = None
    """CPUs to request on each node when the job shares its nodes (`exclusive = false`)."""
    gpu_type: str | None = None
    """Slurm's name for the GPU model: `a100` in `--gres=gpu:a100:8`."""
    mpi: str = Field(default="mpirun", min_length=1)
    """The launcher for `mpi` and `horovod`: `mpirun`, a path to it, or a plug-in of `srun --mpi`
    such as `pmix`."""
    rendezvous_host: str | None = None
    """The host name at which other nodes reach rank 0. Default: the first node of the job."""
    requeue: bool = Field(default=True, strict=True)
    """Start the job again after its nodes were lost or taken away."""
    grace_period: Duration = 60
    """Time for processes to save and exit after SIGTERM, before SIGKILL."""
    extra_sbatch: tuple[str, ...] = ()
    """More options of sbatch, each as `--option` or `--option=value`."""

    _rules = all_at_once(_slurm_rules)

    @property
    def has_own_environment(self) -> bool:
        """Whether the settings select an interpreter or an environment."""
        return bool(self.setup) or self.python != "python3"

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
            build_environment: bool | None = None,
            exclusive: bool = True,
            cpus_per_instance: int | None = None,
            gpu_type: str | None = None,
            mpi: str = "mpirun",
            rendezvous_host: str | None = None,
            requeue: bool = True,
            grace_period: DurationInput = 60,
            extra_sbatch: Texts = (),
        ) -> None: ...


# The layout of the shared file system.
#
# SHARED_DIR/bundles/SHA256/sourcedir.tar.gz      the user's code
# SHARED_DIR/environments/
#     KEY             a link to the environment of a job's requirements, created once the
#                     environment is complete
#     KEY-RANDOM/     the environment itself; its time is that of the last submit that used it
#     KEY.sh          the script that builds it on the login node; KEY.lock and KEY.log are its lock
#                     and its output
#     uv-cache/       uv's cache, on the same file system, so that uv can link files
# SHARED_DIR/runs/NAME/
#     job.sh          the submitted batch script
#     job             a link whose target is the number of the run's job, or `withdrawn` for a
#                     withdrawn run
#     journal         events that the batch script records: `SECONDS JOB EVENT ...`
#     stop            exists after `cloudtrain stop`
#     slurm.out       the output of the batch script itself, and Slurm's own messages
#     code/           the unpacked bundle
#     logs/N/         the output of the processes after N restarts: node_I.rank_R.stdout.log
#     model/  outputs/NAME/
#     checkpoint/


# The login node and the shared folder of a run. A run's reference holds both, so cloudtrain finds
# the run without settings: `slurm://login1:fsx:cloudtrain/digits-1f3a9c2b-1`.

PLACEHOLDER = "/SHARED_DIR"
"""The path used while `shared_dir` is not configured. The rule SL101 then refuses to submit the
job."""


@dataclass(frozen=True)
class SlurmAccount:
    """The cluster that a run belongs to: its login node and its shared folder."""

    host: str | None
    """The login node, as ssh knows it; None if Slurm's commands run on this machine."""
    shared_dir: str
    missing: tuple[str, ...] = ()
    """The names of missing settings, such as `shared_dir`. Each has a placeholder as its value."""

    @property
    def place(self) -> str:
        """`login1:fsx:data` for the folder `/fsx/data`. The host is empty if Slurm's commands run
        on this machine."""
        folders = quote(self.shared_dir.strip("/")).replace("/", ":")
        return f"{quote(self.host or '', safe='@')}:{folders}"

    def run_dir(self, run_name: str) -> str:
        return f"{self.shared_dir}/runs/{run_name}"

    @classmethod
    def of(cls, settings: Slurm) -> SlurmAccount:
        folder = settings.shared_dir
        if folder is None:
            return cls(settings.host, PLACEHOLDER, ("shared_dir",))
        names = [name for name in folder.split("/") if name]
        return cls(settings.host, "/" + "/".join(names))

    @classmethod
    def parse(cls, place: str) -> SlurmAccount:
        """Parse `place`, the part of a run's reference that names the cluster. Raises `RunNotFound`
        if it is not of the form `HOST:FOLDER:FOLDER`."""
        host, _, folders = place.partition(":")
        if not folders:
            raise RunNotFound(
                f"`{place}` does not name a Slurm cluster",
                hint="write the reference as in `slurm://login1:fsx:cloudtrain/NAME`",
                code="CT933",
            )
        shared_dir = unquote(folders.replace(":", "/"))
        return cls(unquote(host) or None, f"/{shared_dir}")


# Every target's function takes the settings.
def examine(settings: Slurm, account: SlurmAccount) -> str | None:  # noqa: ARG001
    """Return the login node and the shared folder as text; None if the settings have no shared
    folder."""
    if account.missing:
        return None
    return f"{account.host or 'this machine'}, {account.shared_dir}"
