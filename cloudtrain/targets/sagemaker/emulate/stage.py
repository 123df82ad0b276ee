"""The data that all emulated hosts share: the request, the run's folder, and this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from cloudtrain.core.processes import Process
from cloudtrain.errors import JobError, Problem
from cloudtrain.launch.loopback import loopback_variables
from cloudtrain.launch.mpirun import MISSING_HINT
from cloudtrain.targets.common.scaling import gpu_share
from cloudtrain.targets.common.this_machine import LocalAccount
from cloudtrain.targets.sagemaker.emulate.paths import relocate_request, relocate_text
from cloudtrain.targets.sagemaker.launch.job import Container, Host, hosts


@dataclass(frozen=True)
class HostLaunch:
    """The processes that one host starts.

    Attributes:
        processes: the processes that the supervisor starts.
        shown: children of `processes`, which appear only in the plan.
        signal: the processes that get SIGTERM first (see `cloudtrain.launch.specification`).
        ranks: number of ranks that a launcher starts.
        endpoints: every `host:port` at which a process listens, on any host.
        unpacks: whether the host's launcher itself unpacks the code.
        notes: sentences that the plan shows.
    """

    processes: tuple[Process, ...]
    shown: tuple[Process, ...] = ()
    signal: str = "leader"
    ranks: int = 0
    endpoints: tuple[str, ...] = ()
    unpacks: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One emulated job."""

    request: dict[str, Any]
    container: Container
    account: LocalAccount
    python: str
    run_dir: str
    region: str
    world_size: int
    grace_period: int

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts, `algo-1` first."""
        return tuple(sorted(hosts(self.request), key=lambda host: host.index))

    def root(self, host: Host) -> str:
        """Return the folder that replaces the host's `/opt/ml`."""
        return f"{self.run_dir}/hosts/{host.name}/opt/ml"

    def path(self, host: Host, path: str) -> str:
        """Translate a path in the container to its path on this machine."""
        return relocate_text(path, self.root(host))

    def request_of(self, host: Host) -> dict[str, Any]:
        """Return the request with `/opt/ml` replaced by the host's local folder."""
        return relocate_request(self.request, self.root(host))

    def gpus(self, host: Host) -> int:
        """Return the number of GPUs that the host sees."""
        return len(gpu_share(self.account.machine.gpu_ids, len(self.hosts), host.index))

    def variables(self, host: Host) -> dict[str, str]:
        """Return the variables with which a host's toolkit or launcher starts.

        These are the request's variables, and those that only the emulation sets.
        """
        variables = {
            "AWS_REGION": self.region,
            "CLOUDTRAIN_RUN_DIR": self.run_dir,
            **loopback_variables(self.account.loopback),
            "OMP_NUM_THREADS": str(max(1, self.account.machine.cpus // self.world_size)),
            "PYTHONUNBUFFERED": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.grace_period),
            "TRAINING_JOB_NAME": self.request["TrainingJobName"],
        }
        share = gpu_share(self.account.machine.gpu_ids, len(self.hosts), host.index)
        if share and len(self.hosts) > 1:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        return {**variables, **self.request_of(host)["Environment"]}

    @property
    def mpirun(self) -> str:
        """Return the path of this machine's mpirun.

        Raises:
            JobError: this machine has no mpirun.
        """
        if self.account.mpirun is None:
            message = f"the container would start `mpirun`, which is neither beside `{self.python}` nor on the PATH"
            raise JobError([Problem(("distribution", "type"), message, MISSING_HINT, code="CT038")])
        return self.account.mpirun

    def mpirun_variables(self, host: Host) -> dict[str, str]:
        """Return a PATH with which cloudtrain's launcher finds this machine's mpirun."""
        folder, path = os.path.dirname(self.mpirun), self.variables(host).get("PATH", "${{env.PATH}}")  # noqa: PTH120
        return {"PATH": f"{folder}:{path}"}

    def torchrun_variables(self, host: Host) -> dict[str, str]:
        """Return variables that make torchrun write each rank's output to a file; torchrun's argv stays unchanged."""
        return {"PET_LOG_DIR": f"{self.run_dir}/logs/instance_{host.index}", "PET_REDIRECTS": "3"}
