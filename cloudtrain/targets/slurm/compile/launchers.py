"""For each distribution, the command that starts a job's ranks, and the processes that a plan shows for the command.

The commands use two variables of the batch script: `$head` is the host of the first node, and `$port` is a port.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote

from cloudtrain.core.distribution import MPI, Horovod
from cloudtrain.core.processes import Alike, Process
from cloudtrain.launch import mpirun, torchrun
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.torchrun_words import misread
from cloudtrain.targets.slurm.compile.cluster_run import ClusterRun, is_mpi, is_plug_in
from cloudtrain.targets.slurm.compile.snippets import AGENT, ALONE, MPI_RANK, TASK, TORCH_RANK, quote_word


@dataclass(frozen=True)
class Launch:
    """The command that starts the ranks.

    Attributes:
        title: the launcher's name in the plan, such as `torchrun`.
        before: lines of the batch script that prepare the command.
        command: the command line in the batch script.
        started: the processes that the command starts on the nodes.
        ranks: the ranks, if a launcher such as torchrun starts them; otherwise empty.
    """

    title: str
    command: str
    started: tuple[Process, ...] | Alike
    before: tuple[str, ...] = ()
    ranks: tuple[Alike, ...] = ()


def launch(run: ClusterRun) -> Launch:
    """Return the command that starts the job's ranks."""
    if is_mpi(run.job):
        return _mpi(run)
    return _LAUNCHERS[run.job.distribution.type](run)


def _torch(run: ClusterRun) -> Launch:
    program, python = run.program, run.settings.python
    options = ["--nnodes", str(run.nodes), "--nproc-per-node", str(run.processes), "--rdzv-id", run.context.run_name]
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
        shown = (python, "-m", "torch.distributed.run", "--node-rank", str(node), *options, *meeting)
        return Process(node, "torchrun", (*shown, "--no-python", *dashes, *program), run.variables)

    ranks = torchrun.ranks(
        program, python=python, instance_count=run.nodes, processes_per_instance=run.processes, env=run.variables
    )
    started = Alike("torchrun", tuple((node, 1) for node in range(run.nodes)), agent)
    before = (f"agent={quote(AGENT)}", f"rank={quote(TORCH_RANK)}")
    return Launch("torchrun", " ".join(words), started, before, (ranks,))


def _mpi(run: ClusterRun) -> Launch:
    world, program, settings = run.nodes * run.processes, run.program, run.settings
    before = (f"rank={quote(MPI_RANK)}",)
    rank_argv = ["bash", "-c", '"$rank"', *map(quote_word, program)]
    if is_plug_in(settings.mpi):
        line = _srun(run, f"--mpi={settings.mpi}", tasks=world, per_node=run.processes)
        return Launch(f"srun --mpi={settings.mpi}", " ".join([*line, *rank_argv]), _ranks(run, program), before)
    given = run.job.distribution
    options = mpirun_options(world, given.options if isinstance(given, MPI | Horovod) else "")
    words = [settings.mpi, *options]
    started = (Process(0, "mpirun", (*words, *program), run.variables),)
    return Launch("mpirun", " ".join([*map(quote, words), *rank_argv]), started, before, (_mpi_ranks(run, program),))


def _mpi_ranks(run: ClusterRun, program: Sequence[str]) -> Alike:
    made = mpirun.ranks(program, processes=run.nodes * run.processes).make

    def rank(number: int) -> Process:
        node, local = divmod(number, run.processes)
        env = made(number).env | {
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(run.processes),
        }
        return Process(node, "rank", tuple(program), run.variables | env, number, local)

    return Alike("rank", tuple((node, run.processes) for node in range(run.nodes)), rank)


def _ranks(run: ClusterRun, program: Sequence[str]) -> Alike:
    """Return the ranks of an MPI job that srun starts directly."""

    def rank(number: int) -> Process:
        node, local = divmod(number, run.processes)
        env = {"SLURM_LOCALID": str(local), "SLURM_NODEID": str(node), "SLURM_PROCID": str(number)}
        return Process(node, "rank", tuple(program), run.variables | env, number, local)

    return Alike("rank", tuple((node, run.processes) for node in range(run.nodes)), rank)


def _tensorflow(run: ClusterRun) -> Launch:
    (workers, servers), per_node, program = run.tasks, run.processes, run.program
    count = workers + servers
    kinds = [("chief", 1), ("worker", workers - 1), ("ps", servers)] if servers else [("worker", workers)]
    before = [
        "mapfile -t hosts < <(hosts_of_job)",
        f'address() {{ printf \'"%s:%s"\' "${{hosts[$1 / {per_node}]}}" "$((port + $1))"; }}',
    ]
    first, parts = 0, []
    for kind, number in kinds:
        addresses = ",".join(f"$(address {index})" for index in range(first, first + number))
        parts.append(f'\\"{kind}\\":[{addresses}]')
        first += number
    before += [
        f'export CLOUDTRAIN_CLUSTER="{{{",".join(parts)}}}"',
        f"export CLOUDTRAIN_WORKERS={workers} CLOUDTRAIN_SERVERS={servers}",
        f"task={quote(TASK)}",
    ]
    srun = _srun(run, f"--distribution=plane={per_node}", tasks=count, per_node=per_node)
    line = " ".join([*srun, "bash", "-c", '"$task"', *map(quote_word, program)])
    order = [(kind, index) for kind, number in kinds for index in range(number)]

    def task(number: int) -> Process:
        kind, index = order[number]
        env = {"TF_CONFIG": f'{{"cluster":$CLOUDTRAIN_CLUSTER,"task":{{"index":{index},"type":"{kind}"}}}}'}
        return Process(number // per_node, kind, tuple(program), run.variables | env, number, number % per_node)

    return Launch("srun", line, tuple(map(task, range(count))), tuple(before))


def _none(run: ClusterRun) -> Launch:
    program = run.program
    line = [*_srun(run, tasks=run.nodes, per_node=1), "bash", "-c", '"$alone"', *map(quote_word, program)]

    def process(node: int) -> Process:
        env = {"CLOUDTRAIN_INSTANCE": str(node), "CLOUDTRAIN_INSTANCE_COUNT": str(run.nodes)}
        return Process(node, "process", tuple(program), run.variables | env, node, 0)

    started = Alike("process", tuple((node, 1) for node in range(run.nodes)), process)
    return Launch("srun", " ".join(line), started, (f"alone={quote(ALONE)}",))


_LAUNCHERS: dict[str, Callable[[ClusterRun], Launch]] = {
    "torch": _torch,
    "deepspeed": _torch,
    "tensorflow": _tensorflow,
    "none": _none,
}


def _srun(run: ClusterRun, *options: str, tasks: int, per_node: int) -> list[str]:
    """Return the srun command for `tasks` tasks, `per_node` on each node, as quoted shell words. `options` are further
    options of srun. If the setting `exclusive` is true, every task may use all CPUs of its node."""
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
    return [*words, "apptainer", "exec", *nv, *map(quote, binds), "--pwd", '"$code"', quote(run.image)]
