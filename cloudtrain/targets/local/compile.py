"""Compile a training job for the local target: a launch specification with the exact list of
processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudtrain.errors import Problem
from cloudtrain.job.distribution import MPI, Horovod, launcher_of, no_ray
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import CompileContext, Plan, canonical_json
from cloudtrain.plans.processes import Alike, Process, Processes
from cloudtrain.runtime.fork_launcher import rank_environment
from cloudtrain.runtime.mpi_options import mpirun_options
from cloudtrain.runtime.torchrun_words import guard_program, is_python
from cloudtrain.system.plugins import DEFAULT_TARGET, find_target, part
from cloudtrain.targets.common import launchers
from cloudtrain.targets.common.compiling import (
    Problems,
    limit_rows,
    option_problems,
    paths_in,
    program_of,
    variables_of,
)
from cloudtrain.targets.common.launch import LocalAccount, local_plan
from cloudtrain.targets.common.launchers import OPEN_MPI, direct_argv, loopback_variables
from cloudtrain.targets.common.scaling import (
    MOST_TASKS,
    JobSize,
    gpu_share,
    local_size,
    local_tasks,
    without_path,
)
from cloudtrain.targets.common.specification import CodePlace, LaunchSpecification, StartedProcess
from cloudtrain.targets.contract import Emulator
from cloudtrain.targets.local.settings import Local


def compile_local(job: TrainingJob, target: Local, context: CompileContext) -> Plan:
    """Return the plan of a job on this machine. `context.account` is a `LocalAccount`. Raises
    `CompileError` with all problems of the job."""
    if target.emulate is not None:
        emulate = part(find_target(target.emulate), Emulator)
        assert emulate is not None, "the settings accept only targets that can be emulated"
        return emulate(job, target, context)

    problems = Problems(_job_problems(job, target, context.account))

    # with a path missing, there is still a plan for the rules: the input has a made-up path
    plan = None if problems else _plan(job, target, context)
    problems += [without_path(name) for name, item in job.inputs.items() if item.local is None]
    problems.raise_if_any(plan)
    assert plan is not None
    return plan


def _plan(job: TrainingJob, target: Local, context: CompileContext) -> Plan:
    run = _RunLayout(job, target, context)
    launcher = _launcher_of(job) if target.launcher == "torchrun" else target.launcher
    launch = _LAUNCHERS[launcher](run)
    shape = launch.shape

    archive = run.account.archive(context.bundle)
    written = [path for name, path in run.paths.items() if not name.startswith("inputs.")]

    started = [StartedProcess.of(process, launch.signal) for process in launch.processes]
    specification = LaunchSpecification(
        name=context.run_name,
        run_dir=run.run_dir,
        code=CodePlace(archive, context.bundle.sha256, run.code_dir),
        directories=tuple(sorted(written)),
        launcher=launch.name,
        instances=shape.instances,
        world_size=shape.world_size,
        ports=launch.ports,
        processes=tuple(started),
        finishes=launch.finishes,
        grace_period=target.grace_period,
        max_runtime=job.max_runtime,
        stop_when_idle=job.stop_when_idle,
        metrics=dict(job.metrics) or None,
    )
    processes = Processes((*Processes.of(launch.processes).groups, *launch.ranks))

    instances = "this machine"
    count = str(shape.world_size)
    if shape.instances > 1:
        instances = f"{shape.instances} simulated on this machine"
        count += f" ({shape})"
    words = _LAUNCHER_WORDS.get(launch.name, launch.name)
    summary = [
        ("target", f"local ({run.account.machine})"),
        ("instances", instances),
        ("processes", count),
        ("distribution", f"{job.distribution.type} through {words}"),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", run.paths["checkpoint"]),
        ("run folder", run.run_dir),
        *limit_rows(job),
    ]
    return local_plan(specification, job.name, context, processes=processes, summary=summary)


@dataclass(frozen=True, eq=False)
class _Launch:
    """The processes of a job: the supervisor starts those in `processes`, and a launcher starts
    those in `ranks`."""

    name: str
    shape: JobSize
    processes: tuple[Process, ...]
    ranks: tuple[Alike, ...] = ()
    ports: tuple[str, ...] = ()
    finishes: tuple[str, ...] = ()
    signal: str = "leader"


class _RunLayout:
    """The paths, program and environment of one run on this machine."""

    def __init__(self, job: TrainingJob, target: Local, context: CompileContext) -> None:
        self.job = job
        self.target = target
        self.account: LocalAccount = context.account
        self.name = context.run_name
        self.run_dir = self.account.run_dir(context.run_name)
        self.code_dir = f"{self.run_dir}/code"
        self.python = target.python or self.account.python
        self.shape = local_size(job, target, self.account.machine)
        self.paths = paths_in(self.run_dir, job, DEFAULT_TARGET)
        self.program = program_of(job, self.paths)
        self.direct_program = direct_argv(self.program, self.python)

    def env(self, instance: int, *, processes: int, ranks: bool = True) -> dict[str, str]:
        """Return the variables that an instance's processes get in addition to the submitter's own.
        `processes`: the number of all processes on this machine. `ranks`: whether they communicate
        through torch or MPI."""
        variables = variables_of(self.job, DEFAULT_TARGET, self.paths, self.run_dir, self.name)
        machine = self.account.machine
        env: dict[str, str] = {}
        if ranks:
            env |= loopback_variables(self.account.loopback)
        env["OMP_NUM_THREADS"] = str(max(1, machine.cpus // processes))

        # the code first, then the job's PYTHONPATH, or else the submitter's
        python_path = variables.pop("PYTHONPATH", "${{env.PYTHONPATH}}")
        env["PYTHONPATH"] = self.code_dir
        if python_path:
            env["PYTHONPATH"] += f":{python_path}"

        instances = self.shape.instances
        share = gpu_share(machine.gpu_ids, instances, instance)
        if share and (instances > 1 or self.target.gpus is not None):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        return dict(sorted((env | variables).items()))


SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""The agent's variable with the time in seconds that ranks have to exit after it passes on SIGTERM;
default: 30. The flag `--shutdown-timeout` is not used, because older versions of torch refuse
it."""


def _torchrun(run: _RunLayout) -> _Launch:
    """Return one agent of torchrun per instance (verified against torch 2.13,
    `torch/distributed/run.py`). The agents meet through a file in the run's folder and the ranks
    through a store on loopback, so no port is open to the network. Ranks are numbered in the order
    of the instances. They write their output to `<log_dir>/<random>/attempt_<n>/<local
    rank>/stdout.log` and `stderr.log`."""
    from cloudtrain.runtime.torchrun import BACKEND  # which only torchrun's jobs need

    shape = run.shape
    program = run.program

    def agent(instance: int) -> Process:
        argv = (
            run.python, "-m", "cloudtrain.runtime.torchrun",
            "--nnodes", str(shape.instances),
            "--nproc-per-node", str(shape.processes_per_instance),
            "--rdzv-backend", BACKEND,
            "--rdzv-endpoint", f"{run.run_dir}/rendezvous",
            "--rdzv-id", run.name,
            "--rdzv-conf", f"rank={instance}",
            "--max-restarts", str(run.target.max_restarts),
            "--redirects", "3",
            "--log-dir", f"{run.run_dir}/logs/instance_{instance}",
            *([] if is_python(program[0]) else ["--no-python"]),
            *guard_program(program),
        )  # fmt: skip
        env = run.env(instance, processes=shape.world_size) | {
            SHUTDOWN_TIMEOUT: str(run.target.grace_period)
        }
        return Process(instance, "torchrun", argv, env)

    ranks = launchers.torchrun_ranks(
        program,
        python=run.python,
        instance_count=shape.instances,
        processes_per_instance=shape.processes_per_instance,
    )
    return _Launch("torchrun", shape, tuple(map(agent, range(shape.instances))), (ranks,))


RENDEZVOUS_PORT = "${{ports.rendezvous}}"
"""Replaced at start by a free port. This is the only part of a local run that a plan cannot
know."""


def _fork(run: _RunLayout) -> _Launch:
    """Return the launcher that forks the ranks of all simulated instances, so that torch is
    imported once and a restart affects all ranks. See `cloudtrain.runtime.fork_launcher`."""
    shape = run.shape
    program = run.program
    settings = run.target
    argv = (
        run.python, "-u", "-m", "cloudtrain.runtime.fork_launcher",
        "--instances", str(shape.instances),
        "--processes-per-instance", str(shape.processes_per_instance),
        "--master-port", RENDEZVOUS_PORT,
        "--max-restarts", str(settings.max_restarts),
        "--grace-period", str(settings.grace_period),
        "--log-dir", f"{run.run_dir}/logs",
        *program,
    )  # fmt: skip

    def rank(number: int) -> Process:
        env = rank_environment(
            number,
            instances=shape.instances,
            processes_per_instance=shape.processes_per_instance,
            master_port=RENDEZVOUS_PORT,
            max_restarts=settings.max_restarts,
        )
        instance, local_rank = divmod(number, shape.processes_per_instance)
        return Process(instance, "rank", tuple(program), env, number, local_rank)

    env = {**run.account.fork_variables, **run.env(0, processes=shape.world_size)}
    launcher = Process(0, "fork", argv, env)
    ranks = Alike(
        "rank",
        tuple((number, shape.processes_per_instance) for number in range(shape.instances)),
        rank,
    )
    return _Launch("fork", shape, (launcher,), (ranks,), ("rendezvous",))


def _mpirun(run: _RunLayout) -> _Launch:
    """Return one mpirun process for the whole job. All ranks count as one instance, because mpirun
    needs ssh to start ranks on several instances."""
    shape = JobSize(1, run.shape.world_size)
    assert run.account.mpirun is not None
    program = run.direct_program
    distribution = run.job.distribution
    options = distribution.options if isinstance(distribution, MPI | Horovod) else ""
    rank = launchers.redirected(program, f"{run.run_dir}/logs/instance_0")
    argv = [run.account.mpirun, *mpirun_options(shape.world_size, options), *rank]
    env = dict(sorted((OPEN_MPI | run.env(0, processes=shape.world_size)).items()))
    process = Process(0, "mpirun", tuple(argv), env)
    ranks = launchers.mpirun_ranks(program, processes=shape.world_size)
    return _Launch("mpirun", shape, (process,), (ranks,), signal="ranks")


def _tensorflow(run: _RunLayout) -> _Launch:
    """Return the tasks. Each is on loopback at a port that is chosen at start, and its `TF_CONFIG`
    has the addresses of all tasks."""
    workers, servers = local_tasks(run.job, run.target, run.account.machine)
    tasks = launchers.tasks(workers, servers)
    ports = tuple(f"{kind}_{index}" for kind, index in tasks)
    cluster: dict[str, list[str]] = {}
    for (kind, _), port in zip(tasks, ports, strict=True):
        cluster.setdefault(kind, []).append("127.0.0.1:${{ports." + port + "}}")
    # the cluster is as long as the list of tasks, so its JSON text is made once for all of them
    head = canonical_json({"cluster": cluster, "environment": "cloud"})

    def process(rank: int) -> Process:
        kind, index = tasks[rank]
        own = canonical_json({"task": {"index": index, "type": kind}})
        env = run.env(rank, processes=len(tasks), ranks=False) | {
            "TF_CONFIG": f"{head[:-1]},{own[1:]}"
        }
        return Process(rank, kind, tuple(run.direct_program), env, rank, 0)

    processes = tuple(map(process, range(len(tasks))))
    finishes = ("chief",) if servers else ()
    return _Launch("processes", JobSize(len(tasks), 1), processes, ports=ports, finishes=finishes)


def _single(run: _RunLayout) -> _Launch:
    """Return one process per instance. If the process is a shell, signals go to its whole process
    group, because a shell does not forward signals."""
    shape = JobSize(run.shape.instances, 1)
    program = tuple(run.direct_program)

    def process(instance: int) -> Process:
        env = run.env(instance, processes=shape.world_size, ranks=False)
        return Process(instance, "process", program, env, instance, 0)

    processes = tuple(map(process, range(shape.instances)))
    signal = "group" if program[0] == "bash" else "leader"
    return _Launch("processes", shape, processes, signal=signal)


_LAUNCHERS: dict[str, Callable[[_RunLayout], _Launch]] = {
    "torchrun": _torchrun,
    "fork": _fork,
    "mpirun": _mpirun,
    "tensorflow": _tensorflow,
    "none": _single,
    "python": _single,
}


def _launcher_of(job: TrainingJob) -> str:
    """Return the launcher for the job's distribution. SMDDP's jobs start through torchrun here."""
    return "torchrun" if job.distribution.type == "smddp" else launcher_of(job.distribution)


def _job_problems(job: TrainingJob, target: Local, account: LocalAccount) -> Iterator[Problem]:
    """Yield what this machine cannot start."""
    yield from option_problems(job)
    if job.entry_point is None and job.command is None:
        message = "the job runs its image's own entry point, but the local target runs no images"
        hint = "add `entry_point: train.py`, or use `--target sagemaker`"
        yield Problem(("entry_point",), message, hint, code="CT036")
    yield from no_ray(job.distribution, "on this machine")
    place = ("distribution", "type")
    if job.distribution.type == "smp":
        message = "`smp` is SageMaker's own library and does not exist on this machine"
        hint = (
            "use `distribution: {type: torch}`, which runs everywhere: `cloudtrain scripts copy "
            "pipeline_gpt` is a pipeline with torch.distributed.pipelining, `gpt_fsdp` shards "
            "with FSDP2"
        )
        yield Problem(place, message, hint, code="CT030")
    elif _launcher_of(job) == "mpirun" and account.mpirun is None:
        python = target.python or account.python  # beside which mpirun was searched
        message = (
            f"`{job.distribution.type}` needs `mpirun`, which is neither beside `{python}` nor "
            "on the PATH"
        )
        yield Problem(place, message, launchers.install_mpirun(), code="CT038")

    if target.launcher != "torchrun" and job.distribution.type != "torch":
        message = (
            f"`--launcher {target.launcher}` starts only `torch` jobs, and this job is "
            f"`{job.distribution.type}`"
        )
        yield Problem(place, message, "use `--launcher torchrun`, the default", code="CT038")
    if target.launcher == "fork":
        yield from _fork_problems(job, account)
    if job.distribution.type == "tensorflow":
        workers, servers = local_tasks(job, target, account.machine)
        # only `instance_count` of the settings can cause it: the job's own numbers are reduced
        if workers + servers > MOST_TASKS:
            message = (
                f"{workers:,} workers and {servers:,} parameter servers are too many for this "
                f"machine: at most {MOST_TASKS:,} in all"
            )
            yield Problem((), message, "run it smaller: leave `--instances` out", code="CT031")


def _fork_problems(job: TrainingJob, account: LocalAccount) -> Iterator[Problem]:
    other = "use `--launcher torchrun`"
    if job.entry_point is None or not job.entry_point.endswith(".py"):
        field = "command" if job.entry_point is None else "entry_point"
        message = "`--launcher fork` can run only a Python script"
        yield Problem(
            (field,), message, f"{other}, or name the script: `entry_point: train.py`", code="CT038"
        )
    machine = account.machine
    if machine.gpus:
        message = f"`--launcher fork` works on CPUs only, but this machine has GPUs ({machine})"
        hint = f"{other}, or hide the GPUs with `CUDA_VISIBLE_DEVICES=` in front"
        yield Problem((), message, hint, code="CT038")


_LAUNCHER_WORDS = {"fork": "forks of one process", "processes": "direct processes"}
