"""The local target: a job becomes a launch specification, the exact list of processes that the supervisor starts.

The specification is JSON data:

    version                 1
    name, run_dir           the run, and its own folder (absolute)
    code                    archive: where the bundle lies; sha256: its content hash; directory: where it is unpacked
    directories             folders that must exist before the start
    launcher                torchrun | fork | mpirun | processes
    instances, world_size   how many simulated instances, and ranks in all
    ports                   names of loopback ports; `${{ports.NAME}}` in argv and environment becomes a free one at
                            start, `${{env.NAME}}` the submitter's own value (or nothing)
    processes               what the supervisor starts: instance, role, rank (None for a launcher), argv, env,
                            `directory` where it is not that of the code, and `signal`: who gets SIGTERM first, the
                            `leader` (which passes it on), the whole `group`, or the `ranks` that it has started
    finishes                roles whose success ends the run, when the others serve for ever; empty: all must finish
    grace_period            seconds from SIGTERM to SIGKILL
    max_runtime             seconds, or None

An emulated job (`cloudtrain.compile.emulation`) has more:

    emulates                sagemaker | azureml
    code.directory          None where the hosts' launchers unpack it; code.copies: more folders to unpack it into
    files                   path to text; programs: those of them that can be started
    links                   path, target, and shard: None, or [number, count] for every count-th file of the target
    places                  what can be downloaded: name to folders that are one together
    failure_files           where hosts write why they failed
    patience                seconds that a launcher has to say why a rank has died, instead of one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudtrain.compile.common import hyperparameter_argv, resolve_hyperparameters, resolve_text
from cloudtrain.compile.scaling import Shape, gpu_share, local_shape, local_tasks
from cloudtrain.distribution import MPI, DeepSpeed, Horovod
from cloudtrain.errors import JobError, Problem
from cloudtrain.job import TrainingJob
from cloudtrain.launch import fork, mpirun, tensorflow, torchrun
from cloudtrain.plans import CompileContext, LocalAccount, Plan, Process, Upload
from cloudtrain.targets import Local
from cloudtrain.units import format_duration


def compile_local(job: TrainingJob, target: Local, context: CompileContext) -> Plan:
    """The plan of a job on this machine. `context.account` is a `LocalAccount`.

    Raises:
        JobError: the job needs something that this machine cannot give, with the alternative.
    """
    if target.emulate is not None:
        from cloudtrain.compile.emulation import compile_emulation

        return compile_emulation(job, target, context)
    account: LocalAccount = context.account
    _refuse_what_is_missing(job, account)
    if target.launcher == "fork":
        _refuse_what_cannot_fork(job, account)
    site = _Site.of(job, target, context)
    launch = _LAUNCHERS["fork" if target.launcher == "fork" else _launcher_of(job)](site)
    request = {
        "version": 1,
        "name": context.run_name,
        "run_dir": site.run_dir,
        "code": {"archive": site.archive, "sha256": context.bundle.sha256, "directory": site.code_dir},
        "directories": sorted(site.written.values()),
        "launcher": launch.name,
        "instances": launch.shape.instances,
        "world_size": launch.world_size,
        "ports": list(launch.ports),
        "processes": [_process_json(process, launch.signal) for process in launch.started],
        "finishes": list(launch.finishes),
        "grace_period": target.grace_period,
        "max_runtime": job.max_runtime,
    }
    bundle = context.bundle
    return Plan(
        target="local",
        run_name=context.run_name,
        job_name=job.name,
        request=request,
        uploads=(Upload("code", bundle.sha256, site.archive, bundle.size, bundle.file_count),),
        processes=(*launch.started, *launch.ranks),
        summary=tuple(_summary(site, launch)),
        place=context.account.place,
    )


@dataclass(frozen=True)
class _Launch:
    """The processes of a job: those that the supervisor starts, and the ranks that a launcher starts in turn."""

    name: str
    shape: Shape
    world_size: int
    started: tuple[Process, ...]
    ranks: tuple[Process, ...] = ()
    ports: tuple[str, ...] = ()
    finishes: tuple[str, ...] = ()
    signal: str = "leader"


@dataclass(frozen=True)
class _Site:
    """Where everything of one run lies on this machine."""

    job: TrainingJob
    target: Local
    account: LocalAccount
    name: str
    run_dir: str
    archive: str
    code_dir: str
    paths: dict[str, str]
    """Reference to path: `inputs.train`, `outputs.model`, `checkpoint`."""

    @classmethod
    def of(cls, job: TrainingJob, target: Local, context: CompileContext) -> _Site:
        account: LocalAccount = context.account
        run_dir = f"{account.state_dir}/runs/{context.run_name}"
        paths = {f"inputs.{name}": item.local for name, item in job.inputs.items() if item.local is not None}
        paths["outputs.model"] = f"{run_dir}/model"
        paths |= {
            f"outputs.{name}": item.local or (f"{run_dir}/model" if name == "model" else f"{run_dir}/outputs/{name}")
            for name, item in job.outputs.items()
        }
        given = job.checkpoint.local if job.checkpoint else None
        paths["checkpoint"] = given or f"{run_dir}/checkpoint"
        return cls(
            job=job,
            target=target,
            account=account,
            name=context.run_name,
            run_dir=run_dir,
            archive=f"{account.state_dir}/bundles/{context.bundle.sha256}/sourcedir.tar.gz",
            code_dir=f"{run_dir}/code",
            paths=paths,
        )

    @property
    def python(self) -> str:
        return self.target.python or self.account.python

    @property
    def written(self) -> dict[str, str]:
        """The folders that the run writes to."""
        return {name: path for name, path in self.paths.items() if not name.startswith("inputs.")}

    @property
    def shape(self) -> Shape:
        return local_shape(self.job, self.target, self.account.machine)

    def program(self) -> list[str]:
        """The script with its arguments; a shell script or command with the shell before it."""
        if self.job.command is not None:
            return ["bash", "-c", resolve_text(self.job.command, self.paths)]
        assert self.job.entry_point is not None
        arguments = hyperparameter_argv(resolve_hyperparameters(self.job, self.paths))
        shell = ["bash"] if self.job.entry_point.endswith(".sh") else []
        return [*shell, self.job.entry_point, *arguments]

    def direct_program(self) -> list[str]:
        """The same with the interpreter in front, for processes that no launcher starts."""
        program = self.program()
        return [self.python, "-u", *program] if program[0].endswith(".py") else program

    def env(self, instance: int, *, processes: int) -> dict[str, str]:
        """What each process of an instance finds in its environment, beside the submitter's own variables."""
        given = {key: resolve_text(value, self.paths) for key, value in self.job.environment.variables.items()}
        searched = given.pop("PYTHONPATH", "${{env.PYTHONPATH}}")
        env = {
            "CLOUDTRAIN_CHECKPOINT_DIR": self.paths["checkpoint"],
            "CLOUDTRAIN_MODEL_DIR": self.paths["outputs.model"],
            "CLOUDTRAIN_RUN_DIR": self.run_dir,
            "CLOUDTRAIN_RUN_NAME": self.name,
            "OMP_NUM_THREADS": str(max(1, self.account.machine.cpus // processes)),
            "PYTHONPATH": f"{self.code_dir}:{searched}" if searched else self.code_dir,
            "PYTHONUNBUFFERED": "1",
        }
        if self.job.checkpoint:
            env["CLOUDTRAIN_CHECKPOINT_KEEP"] = str(self.job.checkpoint.keep)
        for reference, path in self.paths.items():
            kind, _, name = reference.partition(".")
            if name:
                env[f"CLOUDTRAIN_{kind[:-1].upper()}_{name.upper()}"] = path
        env |= self._gpu_mask(instance) | given
        return dict(sorted(env.items()))

    def _gpu_mask(self, instance: int) -> dict[str, str]:
        instances = self.shape.instances
        share = gpu_share(self.account.machine.gpu_ids, instances, instance)
        return {"CUDA_VISIBLE_DEVICES": ",".join(share)} if share and instances > 1 else {}


def _torchrun(site: _Site) -> _Launch:
    shape, program = site.shape, site.program()
    started = tuple(
        Process(
            instance=instance,
            role="torchrun",
            argv=tuple(
                torchrun.agent_argv(
                    program,
                    python=site.python,
                    name=site.name,
                    instance=instance,
                    instance_count=shape.instances,
                    processes_per_instance=shape.processes_per_instance,
                    max_restarts=site.target.max_restarts,
                    log_dir=f"{site.run_dir}/logs/instance_{instance}",
                )
            ),
            env=site.env(instance, processes=shape.world_size)
            | torchrun.agent_env(grace_period=site.target.grace_period, max_restarts=site.target.max_restarts),
        )
        for instance in range(shape.instances)
    )
    ranks = torchrun.ranks(
        program,
        python=site.python,
        instance_count=shape.instances,
        processes_per_instance=shape.processes_per_instance,
    )
    ports = torchrun.ports(instance_count=shape.instances, max_restarts=site.target.max_restarts)
    return _Launch("torchrun", shape, shape.world_size, started, tuple(ranks), ports)


def _fork(site: _Site) -> _Launch:
    shape, program, restarts = site.shape, site.program(), site.target.max_restarts
    argv = fork.launcher_argv(
        program,
        python=site.python,
        instance_count=shape.instances,
        processes_per_instance=shape.processes_per_instance,
        max_restarts=restarts,
        grace_period=site.target.grace_period,
        log_dir=f"{site.run_dir}/logs",
    )
    started = Process(instance=0, role="fork", argv=tuple(argv), env=site.env(0, processes=shape.world_size))
    ranks = fork.ranks(
        program,
        instance_count=shape.instances,
        processes_per_instance=shape.processes_per_instance,
        max_restarts=restarts,
    )
    return _Launch("fork", shape, shape.world_size, (started,), tuple(ranks), ("rendezvous",))


def _mpirun(site: _Site) -> _Launch:
    """One mpirun for the whole job: its ranks all count as one instance, since mpirun would need ssh for several."""
    shape = Shape(1, site.shape.world_size)
    assert site.account.mpirun is not None
    program = site.direct_program()
    distribution = site.job.distribution
    options = distribution.options if isinstance(distribution, MPI | Horovod) else ""
    argv = mpirun.mpirun_argv(
        program,
        mpirun=site.account.mpirun,
        processes=shape.world_size,
        options=options,
        log_dir=f"{site.run_dir}/logs/instance_0",
    )
    started = Process(instance=0, role="mpirun", argv=tuple(argv), env=site.env(0, processes=shape.world_size))
    ranks = mpirun.ranks(program, processes=shape.world_size)
    return _Launch("mpirun", shape, shape.world_size, (started,), tuple(ranks), signal="ranks")


def _tensorflow(site: _Site) -> _Launch:
    workers, servers = local_tasks(site.job, site.target, site.account.machine)
    tasks = tensorflow.tasks(workers=workers, parameter_servers=servers)
    started = tuple(
        Process(
            instance=rank,
            role=task,
            rank=rank,
            local_rank=0,
            argv=tuple(site.direct_program()),
            env=site.env(rank, processes=len(tasks)) | {"TF_CONFIG": tensorflow.tf_config(tasks, task, index)},
        )
        for rank, (task, index) in enumerate(tasks)
    )
    ports = tuple(tensorflow.port_name(task, index) for task, index in tasks)
    finishes = ("chief",) if servers else ()
    return _Launch("processes", Shape(len(tasks), 1), len(tasks), started, ports=ports, finishes=finishes)


def _single(site: _Site) -> _Launch:
    """One process per instance. A shell gets its signals as a group, because it does not pass them on."""
    shape, program = Shape(site.shape.instances, 1), tuple(site.direct_program())
    started = tuple(
        Process(
            instance=instance,
            role="process",
            rank=instance,
            local_rank=0,
            argv=program,
            env=site.env(instance, processes=shape.world_size),
        )
        for instance in range(shape.instances)
    )
    signal = "group" if program[0] == "bash" else "leader"
    return _Launch("processes", shape, shape.world_size, started, signal=signal)


_LAUNCHERS: dict[str, Callable[[_Site], _Launch]] = {
    "torchrun": _torchrun,
    "fork": _fork,
    "mpirun": _mpirun,
    "tensorflow": _tensorflow,
    "single": _single,
}

_LAUNCHER_OF = {
    "torch": "torchrun",
    "smddp": "torchrun",
    "deepspeed": "torchrun",
    "mpi": "mpirun",
    "horovod": "mpirun",
    "tensorflow": "tensorflow",
    "none": "single",
}


def _launcher_of(job: TrainingJob) -> str:
    if isinstance(job.distribution, DeepSpeed) and job.distribution.launch == "mpi":
        return "mpirun"
    return _LAUNCHER_OF[job.distribution.type]


def _refuse_what_is_missing(job: TrainingJob, account: LocalAccount) -> None:
    problems = [
        Problem(
            ("inputs", name),
            f"input `{name}` has no place on this machine",
            f"add `local: PATH` under `inputs.{name}`, or `--set inputs.{name}.local=PATH`",
        )
        for name, item in job.inputs.items()
        if item.local is None
    ]
    if job.entry_point is None and job.command is None:
        message = "the job runs its image's own entry point, and there are no images on this machine"
        problems.append(Problem(("entry_point",), message, "add `entry_point: train.py`, or use `--target sagemaker`"))
    if job.distribution.type == "smp":
        problems.append(
            Problem(
                ("distribution", "type"),
                "`smp` is SageMaker's own library and does not exist on this machine",
                "use `distribution: {type: torch}`, which runs everywhere: `cloudtrain scripts copy pipeline_gpt` is a "
                "pipeline with torch.distributed.pipelining, `gpt_fsdp` shards with FSDP2",
            )
        )
    elif _launcher_of(job) == "mpirun" and account.mpirun is None:
        problems.append(
            Problem(
                ("distribution", "type"),
                f"`{job.distribution.type}` needs `mpirun`, which is not on the PATH",
                "install Open MPI (`apt install openmpi-bin`, `brew install open-mpi`, "
                "`conda install -c conda-forge openmpi`)",
            )
        )
    if problems:
        raise JobError(problems)


def _refuse_what_cannot_fork(job: TrainingJob, account: LocalAccount) -> None:
    hint = "use `--launcher torchrun`"
    problems = []
    if job.distribution.type != "torch":
        message = f"`--launcher fork` starts `torch` jobs, and this is `{job.distribution.type}`"
        problems.append(Problem(("distribution", "type"), message, "use `--launcher torchrun`, the default"))
    if job.entry_point is None or not job.entry_point.endswith(".py"):
        field = "command" if job.entry_point is None else "entry_point"
        message = "`--launcher fork` runs a Python script in a process that has imported torch, and nothing else"
        problems.append(Problem((field,), message, f"{hint}, or name the script: `entry_point: train.py`"))
    if account.machine.gpus:
        message = f"`--launcher fork` is for CPUs, and the ranks would find GPUs here ({account.machine})"
        problems.append(Problem((), message, f"{hint}, or hide the GPUs with `CUDA_VISIBLE_DEVICES=` in front"))
    if problems:
        raise JobError(problems)


def _process_json(process: Process, signal: str) -> dict[str, Any]:
    return {
        "instance": process.instance,
        "role": process.role,
        "rank": process.rank,
        "argv": list(process.argv),
        "env": process.env,
        "signal": signal,
    }


def _summary(site: _Site, launch: _Launch) -> list[tuple[str, str]]:
    job, shape = site.job, launch.shape
    simulated = f"{shape.instances} simulated on this machine" if shape.instances > 1 else "this machine"
    pairs = [
        ("target", f"local ({site.account.machine})"),
        ("instances", simulated),
        ("processes", f"{launch.world_size}" + (f" ({shape})" if shape.instances > 1 else "")),
        ("distribution", f"{job.distribution.type} through {_LAUNCHER_WORDS[launch.name]}"),
        ("script", job.entry_point or job.command or ""),
        ("checkpoint", site.paths["checkpoint"]),
        ("run folder", site.run_dir),
    ]
    if job.max_runtime:
        pairs.append(("max runtime", format_duration(job.max_runtime)))
    return pairs


_LAUNCHER_WORDS = {
    "torchrun": "torchrun",
    "fork": "forks of one process",
    "mpirun": "mpirun",
    "processes": "direct processes",
}
