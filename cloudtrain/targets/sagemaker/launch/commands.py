"""The launcher that the toolkit starts on a host, and its argv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import NamedTuple

from cloudtrain.runtime.sagemaker_launcher.arguments import argv_of, decode_hyperparameters
from cloudtrain.targets.sagemaker.launch.container import (
    HOSTNAME_SHIM,
    MASTER_PORT,
    HostSetup,
    addresses,
    script_variables,
    server_cluster,
)
from cloudtrain.targets.sagemaker.launch.shell import kind_of, name_refusal, program
from cloudtrain.targets.sagemaker.request import (
    INSTANCE_TYPE,
    INTERFACE,
    MIRRORED,
    MODEL_PARALLEL,
    MPI,
    MPI_OPTIONS,
    PARAMETER_SERVER,
    PROCESSES,
    PYTORCH_DDP,
    RANKS,
    SMDDP,
    SMDDP_OPTIONS,
    TORCH,
    XLA,
    JsonObject,
)

# The command lines of mpirun, for MPI and for the data-parallel library, which uses mpirun.

_SMDDP_PORT = 7592

SMDDPRUN = "smddprun"
"""The data-parallel library's wrapper of the script."""

SMDDPRUN_VARIABLES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "SMDATAPARALLEL_LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}
"""The variables that `smddprun` sets for torch.distributed, each with mpirun's variable of the same
value.

That it sets such variables stands in AWS's developer guide (launcher options of the data-parallel
library). Which ones follows from the scripts that read them: AWS's MNIST example, and the Trainer
of Hugging Face.
"""


def _mpi(setup: HostSetup) -> ToolkitCommand:
    """Return the mpirun call with which the master starts an MPI job (hyperparameter
    `sagemaker_mpi_enabled`), or sshd for the other hosts."""
    if not setup.is_master:
        return _WAITING
    hosts = setup.distribution_hosts
    slots = setup.processes
    settings = setup.start.settings
    # the toolkit repeats a text instead of multiplying: "4" on two hosts becomes 44
    count = settings.get(PROCESSES)
    is_text = isinstance(count, str)
    ranks = settings.get(RANKS) or slots * len(hosts)
    if count and is_text and not settings.get(RANKS):
        ranks = int(count * len(hosts))

    names = hosts
    if slots != 1 or is_text:
        names = addresses(hosts, slots)

    debug, more = split_options(settings.get(MPI_OPTIONS) or "")
    credentials = [name for name in _CREDENTIALS if name in setup.given]
    options = (
        "mpirun",
        "--host", ",".join(names),
        "-np", str(ranks),
        "--allow-run-as-root",
        "--display-map",
        "--tag-output",
        *_TCP,
        "-bind-to", "none",
        "-map-by", "slot",
        *_TRANSPORT,
        *_export_options(
            "NCCL_MIN_NRINGS=4",
            f"NCCL_SOCKET_IFNAME={INTERFACE}",
            f"NCCL_DEBUG={debug}",
            "LD_LIBRARY_PATH",
            "PATH",
            f"LD_PRELOAD={HOSTNAME_SHIM}",
        ),
        *more,
        *_efa(setup, setup.host.instance_type, provider=True),
        *_export_options(*credentials, *script_variables(setup), "PYTHONPATH"),
        *_model_parallel(setup),
    )  # fmt: skip
    return _mpirun(setup, options, _model_parallel_wrapper(setup), int(ranks))


def _smddp(setup: HostSetup) -> ToolkitCommand:
    """Return the mpirun call with which the master starts a job with the data-parallel library.

    mpirun starts the script through the library's wrapper `smddprun`, or directly if the image
    lacks `smddprun`. On the other hosts sshd starts.
    """
    if not setup.is_master:
        return _WAITING
    hosts = setup.distribution_hosts
    slots = setup.processes
    ranks = slots * len(hosts)
    instance_type = setup.start.settings.get(INSTANCE_TYPE) or setup.host.instance_type
    names = hosts
    cluster = "SINGLENODE"
    server: tuple[str, ...] = ()
    if len(hosts) > 1:
        names = addresses(hosts, slots)
        cluster = "HOMOGENEOUS"
        server = (
            f"SMDATAPARALLEL_SERVER_ADDR={setup.master}",
            f"SMDATAPARALLEL_SERVER_PORT={_SMDDP_PORT}",
            f"SAGEMAKER_INSTANCE_TYPE={instance_type}",
        )

    given = setup.start.settings.get(SMDDP_OPTIONS)
    debug, more = split_options(given or "")
    options = (
        "mpirun",
        "--host", ",".join(names),
        "-np", str(ranks),
        "--allow-run-as-root",
        "--tag-output",
        "--oversubscribe",
        *_TCP,
        *_TRANSPORT,
        "-mca", "plm_rsh_num_concurrent", str(len(hosts)),
        *_export_options(
            f"NCCL_SOCKET_IFNAME={INTERFACE}",
            f"NCCL_DEBUG={debug}",
            "LD_LIBRARY_PATH",
            "PATH",
            f"SMDATAPARALLEL_USE_{cluster}=1",
            "FI_PROVIDER=efa",
            "RDMAV_FORK_SAFE=1",
            f"LD_PRELOAD={HOSTNAME_SHIM}",
        ),
        *more,
        *_efa(setup, instance_type, provider=False),
        *_export_options(*server),
    )  # fmt: skip
    wrapper = (SMDDPRUN,) if setup.container.smddprun else ()
    return _mpirun(setup, options, wrapper, ranks)


def _mpirun(
    setup: HostSetup, options: tuple[str, ...], wrapper: tuple[str, ...], ranks: int
) -> ToolkitCommand:
    """Return the mpirun call that starts the script in all ranks. `wrapper` is the program that
    starts the script in each rank, with its options; empty for none."""
    ranked = (*wrapper, *program(setup, mpi4py=True))
    exports: dict[str, str] = {}
    for flag, text in pairwise(options):
        name, equals, value = text.partition("=")
        if flag == "-x" and equals:
            exports[name] = value  # the last value of a repeated name counts
    return ToolkitCommand("mpirun", options + ranked, program=ranked, ranks=ranks, exports=exports)


_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables that the toolkit passes to the ranks if its own environment has them, job variables
included."""

_TCP = (
    "-mca", "btl_tcp_if_include", INTERFACE,
    "-mca", "oob_tcp_if_include", INTERFACE,
    "-mca", "plm_rsh_no_tree_spawn", "1",
)  # fmt: skip
_TRANSPORT = (
    "-mca", "pml", "ob1",
    "-mca", "btl", "^openib",
    "-mca", "orte_abort_on_non_zero_status", "1",
    "-mca", "btl_vader_single_copy_mechanism", "none",
)  # fmt: skip


def split_options(text: str) -> tuple[str, list[str]]:
    """Split the user's mpirun options: return the value of `--NCCL_DEBUG` (default `INFO`) and all
    other options.

    Like the toolkit, this function uses argparse, which accepts abbreviations such as `--NCCL X`.
    An option that begins with `-h` makes argparse print its help and exit. The toolkit then ends
    with exit code 0, so the job counts as completed without training (`trainer.train` in
    sagemaker-training 5.1.1 to 5.1.4).
    """
    words = text.split()
    if not words:
        return "INFO", []
    from argparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_argument("--NCCL_DEBUG", default="INFO")
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            options, others = parser.parse_known_args(words)
    except SystemExit:
        raise ValueError(
            f"the mpirun options `{text}` stop the toolkit, and the job ends as completed "
            "without training"
        ) from None
    return str(options.NCCL_DEBUG), others


def _efa(setup: HostSetup, instance_type: str, *, provider: bool) -> tuple[str, ...]:
    """Return mpirun's options for EFA, with FI_PROVIDER if `provider` is true."""
    variables: list[str] = []
    if setup.container.sets_efa(instance_type):
        if provider:
            variables.append("FI_PROVIDER=efa")
        variables.append("NCCL_PROTO=simple")
    if setup.container.sets_rdma(instance_type):
        variables.append("FI_EFA_USE_DEVICE_RDMA=1")
    return _export_options(*variables)


def _parameters(setup: HostSetup) -> JsonObject:
    """Return the model-parallel library's parameters; empty if the job does not use this library.

    They come from the hyperparameter `mp_parameters`, or else from the variable
    SM_HP_MP_PARAMETERS.
    """
    parameters = setup.start.parameters.get(MODEL_PARALLEL)
    if MODEL_PARALLEL not in setup.start.parameters:
        parameters = decode_hyperparameters(setup.given).get(f"SM_HP_{MODEL_PARALLEL.upper()}")
    return parameters if isinstance(parameters, dict) else {}


def _model_parallel(setup: HostSetup) -> tuple[str, ...]:
    """Return mpirun's options for the model-parallel library; empty unless the job uses it with
    PyTorch."""
    version = setup.container.torch
    if version is None or setup.start.framework != "pytorch":
        return ()
    if not _parameters(setup):
        return ()
    major = int(version.partition(".")[0])
    algorithm = ("NCCL_ALGO=ring",) if major > 1 else ()
    return _export_options("NCCL_PROTO=simple", *algorithm)


def _model_parallel_wrapper(setup: HostSetup) -> tuple[str, ...]:
    """Return the model-parallel library's wrapper of the script; empty if the job has none."""
    parameters = _parameters(setup)
    if not parameters or not setup.container.smddpmprun:
        return ()
    if parameters.get("ddp_dist_backend", "auto") != "auto":
        return ()
    return ("smddpmprun", "-i", setup.host.instance_type, "--allow-bypass")


def _export_options(*variables: str) -> tuple[str, ...]:
    """Return mpirun's options `-x VARIABLE`, which pass variables to the ranks."""
    options: list[str] = []
    for variable in variables:
        options += ["-x", variable]
    return tuple(options)


class ToolkitCommand(NamedTuple):
    """The command that the toolkit starts on one host.

    Attributes:
        role: `torchrun`, `mpirun`, `process` for the script itself, or `sshd` if the host waits for
            mpirun's ranks.
        argv: the command line; empty if `error` is set.
        env: variables that the launcher sets in addition to the toolkit's.
        program: the program of each rank; the script itself if no launcher starts ranks.
        ranks: number of ranks that this command starts: on all hosts for mpirun, otherwise on this
            host.
        exports: variables that `mpirun -x NAME=VALUE` sets for every rank.
        error: why the toolkit stops before it starts anything; None if it starts the command.
    """

    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    program: tuple[str, ...] = ()
    ranks: int = 1
    exports: Mapping[str, str] = {}
    error: str | None = None

    @property
    def copies(self) -> Mapping[str, str]:
        """The variables that a wrapper sets in each rank, each with mpirun's variable of the same
        value."""
        return SMDDPRUN_VARIABLES if self.program[:1] == (SMDDPRUN,) else {}


_WAITING = ToolkitCommand("sshd", ("/usr/sbin/sshd", "-D"), ranks=0)
"""The command of a host that waits for mpirun's ranks."""


def command(setup: HostSetup) -> ToolkitCommand:
    """Return the command that the toolkit starts on a host."""
    error = name_refusal(setup)
    if error is None:
        try:
            return _LAUNCHERS[setup.key](setup)
        except ValueError as refusal:
            error = str(refusal)
    return ToolkitCommand("process", (), error=error, ranks=0)


def _alone(setup: HostSetup) -> ToolkitCommand:
    argv = program(setup)
    return ToolkitCommand("process", argv, program=argv)


def _torchrun(setup: HostSetup) -> ToolkitCommand:
    """Return the torchrun call of one host. Raises `ValueError` for scripts that the toolkit does
    not start with torchrun."""
    if kind_of(setup.entry_point, package=setup.package) != "python":
        raise ValueError("with torchrun the toolkit starts only Python scripts, and no packages")

    hosts = setup.distribution_hosts
    rendezvous: tuple[str, ...] = ()
    if len(hosts) > 1:
        rendezvous = (
            "--master_addr", setup.master,
            "--master_port", MASTER_PORT,
            "--node_rank", str(hosts.index(setup.host.name)),
        )  # fmt: skip

    is_neuron = setup.given.get("RUN_NEURON_PARALLEL_COMPILE") == "1"
    wrapper = ("neuron_parallel_compile",) if is_neuron else ()
    script = (setup.entry_point, *argv_of(setup.start.parameters))
    argv = (
        *wrapper,
        "torchrun",
        "--nnodes", str(len(hosts)),
        "--nproc_per_node", str(setup.processes),
        *rendezvous,
        *script,
    )  # fmt: skip

    container = setup.container
    env: dict[str, str] = {}
    if container.sets_efa(setup.host.instance_type):
        env["FI_PROVIDER"] = "efa"
    if container.sets_rdma(setup.host.instance_type):
        env["FI_EFA_USE_DEVICE_RDMA"] = "1"
        env["RDMAV_FORK_SAFE"] = "1"
    env["NCCL_SOCKET_IFNAME"] = setup.interface
    env["NCCL_PROTO"] = "simple"
    ranked = (container.python, "-u", *script)
    return ToolkitCommand("torchrun", argv, env, program=ranked, ranks=setup.processes)


def _parameter_server(setup: HostSetup) -> ToolkitCommand:
    """Return the script itself. The toolkit forks the parameter server beside it from its own
    process. Raises `ValueError` if the toolkit would fail."""
    cluster = server_cluster(setup.distribution_hosts) if setup.takes_part else {}
    index = setup.resource["hosts"].index(setup.host.name)
    if index >= len(cluster.get("ps", ())):
        group = setup.host.group
        raise ValueError(
            f"the toolkit would start parameter server {index} in `{group}`, but its cluster "
            f"has no server {index}"
        )
    return _alone(setup)


def _xla(setup: HostSetup) -> ToolkitCommand:  # noqa: ARG001 - as the other launchers
    raise ValueError(
        "cloudtrain does not support SageMaker Training Compiler, which ended with PyTorch 1.13"
    )


_LAUNCHERS: dict[str | None, Callable[[HostSetup], ToolkitCommand]] = {
    None: _alone,
    MIRRORED: _alone,
    TORCH: _torchrun,
    MPI: _mpi,
    SMDDP: _smddp,
    PYTORCH_DDP: _smddp,
    PARAMETER_SERVER: _parameter_server,
    XLA: _xla,
}
