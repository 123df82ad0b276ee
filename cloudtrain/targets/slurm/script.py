"""The paths of a run's files, and the command and environment of its processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from shlex import quote

from cloudtrain.job.distribution import MPI, Horovod, TensorFlow
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.common import launchers
from cloudtrain.targets.common.compiling import environment_key, paths_in, program_of, variables_of
from cloudtrain.targets.common.specification import BuiltEnvironment
from cloudtrain.targets.slurm.settings import Slurm, SlurmAccount
from cloudtrain.targets.slurm.shell import shell_script

NAME = "slurm"


def image_of(job: TrainingJob) -> str | None:
    """Return the container image that the job names for a cluster."""
    image = job.environment.image
    return None if image is None else image.of(NAME)


def is_mpi(job: TrainingJob) -> bool:
    """Return whether MPI starts the ranks, also for distributions such as DeepSpeed's."""
    distribution = job.distribution
    if distribution.type in ("mpi", "horovod"):
        return True
    return getattr(distribution, "launch", "") == "mpi"


def is_plug_in(mpi: str) -> bool:
    """Return whether the setting `mpi` names a plug-in of `srun --mpi`, not an `mpirun` program."""
    return not any(word in mpi for word in ("mpirun", "mpiexec", "/"))


@dataclass(frozen=True)
class ClusterRun:
    """One run on the cluster. Its paths, command and variables follow from the job, the settings
    and the context."""

    job: TrainingJob
    settings: Slurm
    context: CompileContext

    @cached_property
    def environment(self) -> BuiltEnvironment | None:
        """The environment to build for the job's requirements; None if cloudtrain does not install
        them."""
        settings = self.settings
        is_wanted = settings.build_environment
        if is_wanted is None:
            is_wanted = not settings.has_own_environment
        if not is_wanted or self.image is not None:
            return None

        digest = self.context.requirements
        file = self.job.environment.requirements
        if file is None or digest is None:
            return None
        key = environment_key(settings.python, settings.setup, digest)
        folder = f"{self.account.shared_dir}/environments/{key}"
        return BuiltEnvironment(folder, settings.python, os.path.normpath(file))

    @property
    def python(self) -> str:
        """The interpreter that runs the script."""
        if self.environment is None:
            return self.settings.python
        return f"{self.environment.folder}/bin/python"

    @property
    def account(self) -> SlurmAccount:
        account: SlurmAccount = self.context.account
        return account

    @property
    def folder(self) -> str:
        return self.account.run_dir(self.context.run_name)

    @property
    def bundle(self) -> str:
        """The path of the archive with the user's code."""
        return f"{self.account.shared_dir}/bundles/{self.context.bundle.sha256}/sourcedir.tar.gz"

    @cached_property
    def paths(self) -> dict[str, str]:
        """The paths of inputs, outputs and checkpoints, by the references to them."""
        return paths_in(self.folder, self.job, NAME)

    @cached_property
    def outputs(self) -> dict[str, str]:
        """The folders that the run writes to, by the names that `cloudtrain download` takes."""
        outputs = {}
        for reference, path in self.paths.items():
            kind, _, name = reference.partition(".")
            if reference == "outputs.model":  # a top-level name
                outputs[name] = path
            elif kind != "inputs":
                outputs[reference.replace(".", "/", 1)] = path
        return outputs

    @property
    def image(self) -> str | None:
        """The container image; None if the script runs directly on the nodes."""
        if self.settings.container is None:
            return None
        return image_of(self.job)

    @property
    def nodes(self) -> int:
        return self.job.resources.instance_count

    @property
    def gpus(self) -> int:
        return self.job.resources.gpus_per_instance or 0

    @property
    def processes(self) -> int:
        """The number of ranks on each instance. Default: one per GPU."""
        distribution = self.job.distribution
        if isinstance(distribution, TensorFlow):
            tasks = sum(launchers.requested_tasks(self.job))
            return math.ceil(tasks / self.nodes)
        if distribution.type == "none":
            return 1
        return getattr(distribution, "processes_per_instance", None) or self.gpus or 1

    @property
    def program(self) -> list[str]:
        """The user's program with its arguments."""
        return launchers.direct_argv(program_of(self.job, self.paths), self.python)

    @cached_property
    def variables(self) -> dict[str, str]:
        return variables_of(self.job, "slurm", self.paths, self.folder, self.context.run_name)


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
        words: the command line in the batch script, as quoted shell words.
        processes: the processes that the command starts on the nodes; if they are launchers such
            as torchrun, followed by the ranks that these start.
        before: lines of the batch script that prepare the command.
    """

    title: str
    words: Sequence[str]
    processes: Processes
    before: tuple[str, ...] = ()


def launch(run: ClusterRun) -> BatchLaunch:
    if is_mpi(run.job):
        return _mpi(run)
    return _LAUNCHERS[run.job.distribution.type](run)


def _torch(run: ClusterRun) -> BatchLaunch:
    """Return the launch of torchrun on each node, which starts the ranks."""
    program = run.program
    python = run.python
    options = ["--nnodes", str(run.nodes), "--nproc-per-node", str(run.processes)]
    options += ["--rdzv-id", run.context.run_name]
    dashes = ["--"] if misread(program) else []

    words = _srun(run, tasks=run.nodes, per_node=1)
    words += ["bash", "-c", '"$agent"', quote(python), *map(quote, options)]
    words += ["--master-addr", '"$head"', "--master-port", '"$port"', "--no-python", *dashes]
    words += _in_bash("rank", program)

    options += ["--master-addr", "$head", "--master-port", "$port", "--no-python"]
    rest = [*options, *dashes, *program]

    def agent(node: int) -> Process:
        argv = (python, "-m", "torch.distributed.run", "--node-rank", str(node), *rest)
        return Process(node, "torchrun", argv, run.variables)

    ranks = launchers.torchrun_ranks(
        program,
        python=python,
        instance_count=run.nodes,
        processes_per_instance=run.processes,
        env=run.variables,
    )
    agents = Alike("torchrun", _on_each_node(run, 1), agent)
    before = (_script_in("agent", "agent"), _script_in("rank", "torch_rank"))
    return BatchLaunch("torchrun", words, Processes([agents, ranks]), before)


def _in_bash(variable: str, program: Sequence[str]) -> list[str]:
    """Return the shell words that run the script in a variable, with the program as arguments."""
    return ["bash", "-c", f'"${variable}"', *map(quote_word, program)]


def _on_each_node(run: ClusterRun, count: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of a node and the number of its processes."""
    return tuple((node, count) for node in range(run.nodes))


def _mpi(run: ClusterRun) -> BatchLaunch:
    """Return the launch by srun if the setting `mpi` names a plug-in of it, otherwise by mpirun."""
    world = run.nodes * run.processes
    program = run.program
    mpi = run.settings.mpi
    before = (_script_in("rank", "mpi_rank"),)
    rank_words = _in_bash("rank", program)
    if is_plug_in(mpi):
        words = _srun(run, f"--mpi={mpi}", tasks=world, per_node=run.processes)
        words += rank_words
        processes = Processes([_ranks(run, program)])
        return BatchLaunch(f"srun --mpi={mpi}", words, processes, before)

    distribution = run.job.distribution
    user_options = distribution.options if isinstance(distribution, MPI | Horovod) else ""
    mpirun = [mpi, *mpirun_options(world, user_options)]
    launcher = Process(0, "mpirun", (*mpirun, *program), run.variables)
    ranks = launchers.mpirun_ranks(
        program, processes=world, where=range(run.nodes), slots=run.processes, exports=run.variables
    )

    words = [*map(quote, mpirun), *rank_words]
    processes = Processes([Alike.listed([launcher]), ranks])
    return BatchLaunch("mpirun", words, processes, before)


def _ranks(run: ClusterRun, program: Sequence[str]) -> Alike:
    """Return the ranks that srun starts, with the variables by which MPI's plug-in tells them
    apart."""

    def rank(number: int) -> Process:
        node, local = divmod(number, run.processes)
        ids = {"SLURM_LOCALID": local, "SLURM_NODEID": node, "SLURM_PROCID": number}
        env = run.variables | {name: str(value) for name, value in ids.items()}
        return Process(node, "rank", tuple(program), env, number, local)

    return Alike("rank", _on_each_node(run, run.processes), rank)


def _tensorflow(run: ClusterRun) -> BatchLaunch:
    workers, servers = launchers.requested_tasks(run.job)
    per_node = run.processes
    program = run.program
    count = workers + servers
    order = launchers.tasks(workers, servers)
    # `plane` puts consecutive tasks on one node, as `address` in the batch script expects.
    words = _srun(run, f"--distribution=plane={per_node}", tasks=count, per_node=per_node)

    parts = []
    for kind, numbers in groupby(range(count), key=lambda number: order[number][0]):
        addresses = ",".join(f"$(address {number})" for number in numbers)
        parts.append(f'\\"{kind}\\":[{addresses}]')
    before = (
        "mapfile -t hosts < <(hosts_of_job)",
        f'address() {{ printf \'"%s:%s"\' "${{hosts[$1 / {per_node}]}}" "$((port + $1))"; }}',
        f'export CLOUDTRAIN_CLUSTER="{{{",".join(parts)}}}"',
        f"export CLOUDTRAIN_WORKERS={workers} CLOUDTRAIN_SERVERS={servers}",
        _script_in("task", "task"),
    )

    def task(number: int) -> Process:
        kind, index = order[number]
        node, local = divmod(number, per_node)
        own = f'{{"index":{index},"type":"{kind}"}}'
        env = {**run.variables, "TF_CONFIG": f'{{"cluster":$CLOUDTRAIN_CLUSTER,"task":{own}}}'}
        return Process(node, kind, tuple(program), env, number, local)

    words += _in_bash("task", program)
    return BatchLaunch("srun", words, Processes.of(map(task, range(count))), before)


def _none(run: ClusterRun) -> BatchLaunch:
    """Return the launch of one independent process on each node."""
    program = run.program
    words = _srun(run, tasks=run.nodes, per_node=1)

    def process(node: int) -> Process:
        env = {
            **run.variables,
            "CLOUDTRAIN_INSTANCE": str(node),
            "CLOUDTRAIN_INSTANCE_COUNT": str(run.nodes),
        }
        return Process(node, "process", tuple(program), env, node, 0)

    alike = Alike("process", _on_each_node(run, 1), process)
    words += _in_bash("alone", program)
    return BatchLaunch("srun", words, Processes([alike]), (_script_in("alone", "alone"),))


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
        cpus = max(1, settings.cpus_per_instance // per_node)
        words.append(f"--cpus-per-task={cpus}")
    if run.image is None:
        return words

    mounts = [run.account.shared_dir, *settings.mounts]
    if settings.container == "pyxis":
        pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in mounts]
        words.append(quote(f"--container-image={run.image}"))
        words.append(quote(f"--container-mounts={','.join(pairs)}"))
        return [*words, '--container-workdir="$code"']

    words += ["apptainer", "exec"]
    if run.gpus:
        words.append("--nv")
    for mount in mounts:
        words += ["--bind", quote(mount)]
    return [*words, "--pwd", '"$code"', quote(run.image)]


# The batch script, which runs on the first node of the job.
#
# The script is self-contained, so you can also save it to a file and submit it with `sbatch FILE`.
# A restarted job runs the script again with a higher restart count. Its processes continue from
# their checkpoint.

_SIGNAL = '  scancel --signal=TERM "$SLURM_JOB_ID"\n'
"""The command that sends SIGTERM to every process of the job except the batch script."""


def batch_script(run: ClusterRun, launch: BatchLaunch) -> str:
    settings = run.settings
    hosts = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    if settings.rendezvous_host is not None:  # a line for each node, all with this name
        hosts += f" | while read -r _; do echo {quote(settings.rendezvous_host)}; done"

    names = ""
    if run.job.distribution.type == "tensorflow":
        names = 'export CLOUDTRAIN_HOSTS="${all[*]}"\n'
    elif launch.title == "torchrun":
        names = 'export CLOUDTRAIN_HOSTS="$head"\n'

    exports = _exports(run.variables)
    if run.environment:
        programs = quote(run.python.removesuffix("/python"))
        exports = f'export PATH={programs}:"$PATH"\n{exports}'

    python = "python3" if run.image else quote(run.python)
    secrets = ""
    if run.job.environment.secrets:
        secrets = shell_script("secrets", python=python)

    return shell_script(
        "batch",
        name=run.context.run_name,
        run=quote(run.folder),
        bundle=quote(run.bundle),
        hosts=hosts,
        names=names,
        signal="" if is_mpi(run.job) else _SIGNAL,
        grace=settings.grace_period,
        minutes=settings.grace_period // 60 + 1,
        written=" ".join(map(quote, sorted(set(run.outputs.values())))),
        setup=_setup(settings),
        exports=exports,
        processes=run.processes,
        python=python,
        idle=run.job.stop_when_idle or 0,
        stopper=shell_script("idle") if run.job.stop_when_idle else "",
        secrets=secrets,
        before="".join(f"{line}\n" for line in launch.before),
        command=" ".join(launch.words),
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
    setup = _setup(run.settings)
    if setup:
        log = quote(f"{environment.folder}.setup")
        setup = shell_script("install_setup", setup=setup, log=log)
    return shell_script(
        "install",
        folder=quote(environment.folder),
        bundle=quote(run.bundle),
        cache=quote(f"{run.account.shared_dir}/environments/uv-cache"),
        setup=setup,
        exports=_exports(variables),
        python=quote(environment.python),
        file=quote(environment.requirements),
        question=quote(QUESTION),
        modules=" ".join(needed_modules(run.job)),
    )


QUESTION = Path(__file__).with_name("shell").joinpath("ask.py.txt").read_text("utf-8")
"""Python code, for version 2 as well, which prints the versions of Python and of modules."""

_MODULES = {
    "torch": ("torch",),
    "deepspeed": ("torch", "deepspeed"),
    "horovod": ("horovod",),
    "tensorflow": ("tensorflow",),
}
"""The modules without which the launcher or the ranks of a distribution end at once."""


def needed_modules(job: TrainingJob) -> list[str]:
    """Return the modules that the interpreter of a job must be able to import."""
    modules = [*_MODULES.get(job.distribution.type, ())]
    if getattr(job.distribution, "launch", "") == "mpi":
        modules.append("mpi4py")
    if job.environment.framework == "pytorch":
        modules.append("torch")
    if job.environment.framework == "tensorflow":
        modules.append("tensorflow")
    return list(dict.fromkeys(modules))


def _setup(settings: Slurm) -> str:
    """Return the part of a script that runs the setting `setup`; empty without one."""
    if not settings.setup:
        return ""
    return shell_script("setup", lines="\n".join(settings.setup).replace("\r", ""))


def _exports(variables: Mapping[str, str]) -> str:
    lines = [f"export {name}={quote_word(value)}" for name, value in variables.items()]
    return "\n".join(lines)
