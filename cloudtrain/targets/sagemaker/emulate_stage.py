"""The data that all emulated hosts share: the request, the run's folder, and this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cloudtrain.errors import JobError, Problem
from cloudtrain.plans.processes import Process
from cloudtrain.runtime.sagemaker_launcher import ROOT
from cloudtrain.targets.common.launch import LocalAccount
from cloudtrain.targets.common.launchers import install_mpirun, loopback_variables
from cloudtrain.targets.common.scaling import gpu_share
from cloudtrain.targets.sagemaker.catalogue.contents import ImageContents
from cloudtrain.targets.sagemaker.request import Host, JsonMapping, JsonObject, hosts

# Translate a container's paths and addresses to this machine's.

LOOPBACK = "127.0.0.1"

LOOPBACK_INTERFACE = "lo"

_ROOT = re.compile(rf"(?<![\w.~/-]){re.escape(ROOT)}(?![\w.-])")
"""Matches `/opt/ml` as a whole path or as its beginning, but not `/data/opt/ml` or
`/opt/mlflow`."""


def relocate_text(text: str, root: str) -> str:
    """Return the text with `root` in place of each path `/opt/ml`."""
    return _ROOT.sub(lambda _: root, text)


def relocate_request(request: JsonMapping, root: str) -> JsonObject:
    """Replace `/opt/ml` in a request's hyperparameters and variables with `root`."""
    texts = request.get("HyperParameters", {})
    values = request.get("Environment", {})
    return {
        **request,
        "HyperParameters": {name: _relocate_json(text, root) for name, text in texts.items()},
        "Environment": {name: relocate_text(text, root) for name, text in values.items()},
    }


def _relocate_json(text: str, root: str) -> str:
    """Replace `/opt/ml` in a text with `root`, which is escaped if the text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return relocate_text(text, root)
    return relocate_text(text, json.dumps(root)[1:-1])


def port_name(endpoint: str) -> str:
    """Return the name of the local port that replaces `host:port`, such as `algo-1_7777`."""
    return endpoint.replace(":", "_")


def local_endpoint(endpoint: str) -> str:
    """Return the local address that replaces an endpoint such as `algo-1:7777`; its port is chosen
    at start."""
    return LOOPBACK + ":${{ports." + port_name(endpoint) + "}}"


def local_port(host: str, port: int | str) -> str:
    """Return a placeholder for the local port that replaces `port` of `host`; it is filled in at
    start."""
    return local_endpoint(f"{host}:{port}").partition(":")[2]


def local_tf_config(text: str) -> tuple[str, tuple[str, ...]]:
    """Return TF_CONFIG with every task's address on loopback, and the original addresses."""
    config = json.loads(text)
    endpoints: list[str] = []
    for role, members in config["cluster"].items():
        endpoints += members
        config["cluster"][role] = list(map(local_endpoint, members))
    return json.dumps(config), tuple(endpoints)


@dataclass(frozen=True)
class HostLaunch:
    """The processes that one host starts.

    Attributes:
        processes: the processes that the supervisor starts.
        children: children of `processes`, which appear only in the plan.
        signal: the processes that get SIGTERM first (see
            `cloudtrain.targets.common.specification`).
        ranks: number of ranks that a launcher starts.
        endpoints: every `host:port` at which a process listens, on any host.
        wrappers: programs that take the place of those in the image, by their paths.
        notes: sentences that the plan shows.
    """

    processes: tuple[Process, ...]
    children: tuple[Process, ...] = ()
    signal: str = "leader"
    ranks: int = 0
    endpoints: tuple[str, ...] = ()
    wrappers: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmulatedJob:
    """An emulated job. `request` is the one that SageMaker would get. It names no number of
    processes where the toolkit would count the GPUs of the real instance, so each host starts
    `processes_per_instance`. `world_size` is the number of all ranks, among which the CPUs are
    divided."""

    request: JsonObject
    container: ImageContents
    account: LocalAccount
    python: str
    run_dir: str
    region: str
    processes_per_instance: int
    world_size: int
    grace_period: int

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(sorted(hosts(self.request), key=lambda host: host.index))

    def root(self, host: Host) -> str:
        """Return the folder that replaces the host's `/opt/ml`."""
        return f"{self.run_dir}/hosts/{host.name}/opt/ml"

    def request_of(self, host: Host) -> JsonObject:
        return relocate_request(self.request, self.root(host))

    def gpu_share(self, host: Host) -> tuple[str, ...]:
        return gpu_share(self.account.machine.gpu_ids, len(self.hosts), host.index)

    def variables(self, host: Host) -> dict[str, str]:
        """Return the variables with which a host's toolkit or launcher starts: the request's and
        the emulation's."""
        threads = max(1, self.account.machine.cpus // self.world_size)
        variables = {
            "AWS_REGION": self.region,
            "CLOUDTRAIN_RUN_DIR": self.run_dir,
            **loopback_variables(self.account.loopback),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(self.grace_period),
            "TRAINING_JOB_NAME": self.request["TrainingJobName"],
        }
        share = self.gpu_share(host)
        if share and len(self.hosts) > 1:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        return {**variables, **self.request_of(host)["Environment"]}

    @property
    def mpirun(self) -> str:
        """Return the path of mpirun. Raises a `JobError` if this machine has none."""
        if self.account.mpirun is None:
            message = (
                "the container would start `mpirun`, which is neither beside "
                f"`{self.python}` nor on the PATH"
            )
            path = ("distribution", "type")
            raise JobError([Problem(path, message, install_mpirun(), code="CT038")])
        return self.account.mpirun

    def torchrun_variables(self, host: Host) -> dict[str, str]:
        """Return variables that make torchrun write each rank's output to a file; torchrun's argv
        stays unchanged."""
        return {"PET_LOG_DIR": f"{self.run_dir}/logs/instance_{host.index}", "PET_REDIRECTS": "3"}
