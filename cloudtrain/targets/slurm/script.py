"""The paths of a run's files, and the command and environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from shlex import quote

from cloudtrain.job.distribution import MPI, Horovod, TensorFlow
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext
from cloudtrain.plans.processes import Alike, Process
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.common import launchers
from cloudtrain.targets.common.compiling import environment_key, paths_in, program_of, variables_of
from cloudtrain.targets.common.specification import BuiltEnvironment
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount
from cloudtrain.targets.slurm.shell import shell_script

NAME = "slurm"


def is_mpi(job: TrainingJob) -> bool:
    return (
        job.distribution.type in ("mpi", "horovod")
        or getattr(job.distribution, "launch", "") == "mpi"
    )


def is_plug_in(mpi: str) -> bool:
    """Return whether the setting `mpi` names a plug-in of `srun --mpi`, not an `mpirun` program."""
    return "mpirun" not in mpi and "mpiexec" not in mpi and "/" not in mpi


@dataclass(frozen=True)
class ClusterRun:
    """One run on the cluster. Its paths, command and variables follow from the job, the settings
    and the context."""

    job: TrainingJob
    settings: Slurm
    context: CompileContext

    @cached_property
    def environment(self) -> BuiltEnvironment | None:
        """Return the environment to build for the job's requirements; None if cloudtrain does not
        install them."""
        settings, digest, file = (
            self.settings,
            self.context.requirements,
            self.job.environment.requirements,
        )
        is_wanted = settings.build_environment
        if is_wanted is None:
            is_wanted = not settings.has_own_environment
        if not is_wanted or self.image is not None or file is None or digest is None:
            return None
        key = environment_key(settings.python, settings.setup, digest)
        folder = f"{self.account.shared_dir}/environments/{key}"
        return BuiltEnvironment(folder, settings.python, os.path.normpath(file))

    @property
    def python(self) -> str:
        """Return the interpreter that runs the script."""
        return (
            self.settings.python
            if self.environment is None
            else f"{self.environment.folder}/bin/python"
        )

    @property
    def account(self) -> SlurmAccount:
        account: SlurmAccount = self.context.account
        return account

    @property
    def folder(self) -> str:
        return self.account.run_dir(self.context.run_name)

    @property
    def bundle(self) -> str:
        return f"{self.account.shared_dir}/bundles/{self.context.bundle.sha256}/sourcedir.tar.gz"

    @cached_property
    def paths(self) -> dict[str, str]:
        return paths_in(self.folder, self.job, NAME)

    @property
    def image(self) -> str | None:
        """Return the container image; None if the script runs directly on the nodes."""
        image = self.job.environment.image
        return image.of(NAME) if image is not None and self.settings.container is not None else None

    @property
    def nodes(self) -> int:
        return self.job.resources.instance_count

    @property
    def gpus(self) -> int:
        return self.job.resources.gpus_per_instance or 0

    @property
    def processes(self) -> int:
        """Return the number of ranks on each instance. Default: one per GPU."""
        distribution = self.job.distribution
        if isinstance(distribution, TensorFlow):
            return -(-sum(launchers.requested_tasks(self.job)) // self.nodes)
        if distribution.type == "none":
            return 1
        return getattr(distribution, "processes_per_instance", None) or self.gpus or 1

    @property
    def program(self) -> list[str]:
        return launchers.direct_argv(program_of(self.job, self.paths), self.python)

    @cached_property
    def variables(self) -> dict[str, str]:
        return variables_of(self.job, self.paths, self.folder, self.context.run_name)


# Bash scripts that launchers start on the nodes; see `shell/`.


def quote_word(text: str) -> str:
    """Quote a user's text for the batch script. sbatch refuses a script with line ends of Windows,
    so a carriage return is written as `$'\\r'`."""
    return quote(text).replace("\r", "'$'\\r''")


def _script_in(variable: str, name: str) -> str:
    """Return the line of the batch script that puts a script for `bash -c` into a variable."""
    text = shell_script(name).removesuffix("\n")
    return f"{variable}={quote(text)}"


# For each distribution, the command that starts a job's ranks, and the processes that a plan shows
# for the command.
#
# The commands use two variables of the batch script: `$head` is the host of the first node, and
# `$port` is a port.


@dataclass(frozen=True)
class BatchLaunch:
    """The command that starts the ranks.

    Attributes:
        title: the launcher's name in the plan, such as `torchrun`.
        before: lines of the batch script that prepare the command.
        command: the command line in the batch script.
        processes: the processes that the command starts on the nodes.
        ranks: the ranks, if a launcher such as torchrun starts them; otherwise empty.
    """

    title: str
    command: str
    processes: tuple[Process, ...] | Alike
    before: tuple[str, ...] = ()
    ranks: tuple[Alike, ...] = ()


def launch(run: ClusterRun) -> BatchLaunch:
    if is_mpi(run.job):
        return _mpi(run)
    return _LAUNCHERS[run.job.distribution.type](run)


def _torch(run: ClusterRun) -> BatchLaunch:
    program, python = run.program, run.python
    options = [
        "--nnodes",
        str(run.nodes),
        "--nproc-per-node",
        str(run.processes),
        "--rdzv-id",
        run.context.run_name,
    ]
    dashes = ["--"] if misread(program) else []
    meeting = ["--master-addr", "$head", "--master-port", "$port"]
    words = [
        *_srun(run, tasks=run.nodes, per_node=1),
        *("bash", "-c", '"$agent"', quote(python)),
        *map(quote, options),
        *("--master-addr", '"$head"', "--master-port", '"$port"'),
        *("--no-python", *dashes, "bash", "-c", '"$rank"', *map(quote_word, program)),
    ]

    def agent(node: int) -> Process:
        command = (
            python,
            "-m",
            "torch.distributed.run",
            "--node-rank",
            str(node),
            *options,
            *meeting,
        )
        return Process(
            node, "torchrun", (*command, "--no-python", *dashes, *program), run.variables
        )

    ranks = launchers.torchrun_ranks(
        program,
        python=python,
        instance_count=run.nodes,
        processes_per_instance=run.processes,
        env=run.variables,
    )
    agents = Alike("torchrun", tuple((node, 1) for node in range(run.nodes)), agent)
    before = (_script_in("agent", "agent"), _script_in("rank", "torch_rank"))
    return BatchLaunch("torchrun", " ".join(words), agents, before, (ranks,))


def _mpi(run: ClusterRun) -> BatchLaunch:
    world = run.nodes * run.processes
    program, settings = run.program, run.settings
    before = (_script_in("rank", "mpi_rank"),)
    rank_argv = ["bash", "-c", '"$rank"', *map(quote_word, program)]
    if is_plug_in(settings.mpi):
        line = _srun(run, f"--mpi={settings.mpi}", tasks=world, per_node=run.processes)
        return BatchLaunch(
            f"srun --mpi={settings.mpi}",
            " ".join([*line, *rank_argv]),
            _ranks(run, program),
            before,
        )
    distribution = run.job.distribution
    options = mpirun_options(
        world, distribution.options if isinstance(distribution, MPI | Horovod) else ""
    )
    words = [settings.mpi, *options]
    processes = (Process(0, "mpirun", (*words, *program), run.variables),)
    ranks = launchers.mpirun_ranks(
        program, processes=world, where=range(run.nodes), slots=run.processes, exports=run.variables
    )
    return BatchLaunch(
        "mpirun", " ".join([*map(quote, words), *rank_argv]), processes, before, (ranks,)
    )


def _ranks(run: ClusterRun, program: Sequence[str]) -> Alike:
    def rank(number: int) -> Process:
        node, local = divmod(number, run.processes)
        env = {"SLURM_LOCALID": str(local), "SLURM_NODEID": str(node), "SLURM_PROCID": str(number)}
        return Process(node, "rank", tuple(program), run.variables | env, number, local)

    return Alike("rank", tuple((node, run.processes) for node in range(run.nodes)), rank)


def _tensorflow(run: ClusterRun) -> BatchLaunch:
    workers, servers = launchers.requested_tasks(run.job)
    per_node, program = run.processes, run.program
    count = workers + servers
    order = launchers.tasks(workers, servers)
    before = [
        "mapfile -t hosts < <(hosts_of_job)",
        f'address() {{ printf \'"%s:%s"\' "${{hosts[$1 / {per_node}]}}" "$((port + $1))"; }}',
    ]
    parts = []
    for kind, numbers in groupby(range(count), key=lambda number: order[number][0]):
        addresses = ",".join(f"$(address {number})" for number in numbers)
        parts.append(f'\\"{kind}\\":[{addresses}]')
    before += [
        f'export CLOUDTRAIN_CLUSTER="{{{",".join(parts)}}}"',
        f"export CLOUDTRAIN_WORKERS={workers} CLOUDTRAIN_SERVERS={servers}",
        _script_in("task", "task"),
    ]
    srun = _srun(run, f"--distribution=plane={per_node}", tasks=count, per_node=per_node)
    line = " ".join([*srun, "bash", "-c", '"$task"', *map(quote_word, program)])

    def task(number: int) -> Process:
        kind, index = order[number]
        own = f'{{"index":{index},"type":"{kind}"}}'
        env = {"TF_CONFIG": f'{{"cluster":$CLOUDTRAIN_CLUSTER,"task":{own}}}'}
        return Process(
            number // per_node, kind, tuple(program), run.variables | env, number, number % per_node
        )

    return BatchLaunch("srun", line, tuple(map(task, range(count))), tuple(before))


def _none(run: ClusterRun) -> BatchLaunch:
    program = run.program
    line = [
        *_srun(run, tasks=run.nodes, per_node=1),
        "bash",
        "-c",
        '"$alone"',
        *map(quote_word, program),
    ]

    def process(node: int) -> Process:
        env = {"CLOUDTRAIN_INSTANCE": str(node), "CLOUDTRAIN_INSTANCE_COUNT": str(run.nodes)}
        return Process(node, "process", tuple(program), run.variables | env, node, 0)

    processes = Alike("process", tuple((node, 1) for node in range(run.nodes)), process)
    return BatchLaunch("srun", " ".join(line), processes, (_script_in("alone", "alone"),))


_LAUNCHERS: dict[str, Callable[[ClusterRun], BatchLaunch]] = {
    "torch": _torch,
    "deepspeed": _torch,
    "tensorflow": _tensorflow,
    "none": _none,
}


def _srun(run: ClusterRun, *options: str, tasks: int, per_node: int) -> list[str]:
    """Return the srun command for `tasks` tasks, `per_node` on each node, as quoted shell words.
    `options` are further options of srun. If the setting `exclusive` is true, every task may use
    all CPUs of its node."""
    settings = run.settings
    words = ["srun", f"--nodes={run.nodes}", f"--ntasks={tasks}", f"--ntasks-per-node={per_node}"]
    words += ["--kill-on-bad-exit=1", "--input=none", *map(quote, options)]
    if settings.cpus_per_instance and not settings.exclusive:
        words.append(f"--cpus-per-task={max(1, settings.cpus_per_instance // per_node)}")
    if run.image is None:
        return words
    mounts = [run.account.shared_dir, *settings.mounts]
    if settings.container == "pyxis":
        pairs = ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in mounts)
        container = [f"--container-image={run.image}", f"--container-mounts={pairs}"]
        return [*words, *map(quote, container), '--container-workdir="$code"']
    binds = [word for mount in mounts for word in ("--bind", mount)]
    nv = ["--nv"] if run.gpus else []
    return [
        *words,
        "apptainer",
        "exec",
        *nv,
        *map(quote, binds),
        "--pwd",
        '"$code"',
        quote(run.image),
    ]


# The batch script, which runs on the first node of the job.
#
# The script is self-contained, so you can also save it to a file and submit it with `sbatch FILE`.
# A restarted job runs the script again with a higher restart count. Its processes continue from
# their checkpoint.

_SIGNAL = '  scancel --signal=TERM "$SLURM_JOB_ID"\n'
"""The command that sends SIGTERM to every process of the job except the batch script."""


def batch_script(run: ClusterRun, launch: BatchLaunch) -> str:
    settings, grace = run.settings, run.settings.grace_period
    hosts = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    if settings.rendezvous_host is not None:  # a line for each node, all with this name
        hosts += f" | while read -r _; do echo {quote(settings.rendezvous_host)}; done"
    outputs = sorted({path for name, path in run.paths.items() if not name.startswith("inputs.")})
    python = "python3" if run.image else quote(run.python)
    own_path = (
        f'export PATH={quote(run.python.removesuffix("/python"))}:"$PATH"\n'
        if run.environment
        else ""
    )
    return shell_script(
        "batch",
        name=run.context.run_name,
        run=quote(run.folder),
        bundle=quote(run.bundle),
        hosts=hosts,
        signal="" if is_mpi(run.job) else _SIGNAL,
        grace=grace,
        minutes=grace // 60 + 1,
        written=" ".join(map(quote, outputs)),
        setup=_setup(settings),
        exports=own_path + _exports(run.variables),
        processes=run.processes,
        secrets=shell_script("secrets", python=python) if run.job.environment.secrets else "",
        before="".join(f"{line}\n" for line in launch.before),
        command=launch.command,
        again=shell_script("again") if settings.requeue or run.job.spot else "",
    )


_OF_INSTALLERS = ("PIP_", "UV_")
"""The beginnings of variables of the job that its installer gets too, such as the address of an
index."""


def install_script(run: ClusterRun, environment: BuiltEnvironment) -> str:
    """Return the script that builds the environment on the login node. Its argument is a new
    folder."""
    variables = {
        name: value for name, value in run.variables.items() if name.startswith(_OF_INSTALLERS)
    }
    setup, log = _setup(run.settings), quote(f"{environment.folder}.setup")
    return shell_script(
        "install",
        folder=quote(environment.folder),
        bundle=quote(run.bundle),
        cache=quote(f"{run.account.shared_dir}/environments/uv-cache"),
        setup=shell_script("install_setup", setup=setup, log=log) if setup else "",
        exports=_exports(variables),
        python=quote(environment.python),
        file=quote(environment.requirements),
    )


def _setup(settings: Slurm) -> str:
    lines = "\n".join(settings.setup).replace("\r", "")
    return shell_script("setup", lines=lines) if settings.setup else ""


def _exports(variables: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={quote_word(value)}" for name, value in variables.items())
