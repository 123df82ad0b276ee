"""The launch specification of an emulated job: its folders, files, links, processes and the paths of its results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote

from cloudtrain.core.data import Input
from cloudtrain.core.job import TrainingJob
from cloudtrain.core.plan import CompileContext
from cloudtrain.core.processes import Process
from cloudtrain.launch.specification import CodePlace, LaunchSpecification, Link, StartedProcess
from cloudtrain.targets.azureml.emulate.stage import Stage

_PORT = re.compile(r"\$\{\{ports\.(\w+)\}\}")


def specification(
    stage: Stage, context: CompileContext, started: Sequence[Process], *, grace_period: int
) -> LaunchSpecification:
    """Return the launch specification for the processes `started`."""
    layout, given = stage.layout, _given_places(stage.job)
    programs = tuple(f"{stage.programs}/{name}" for name in ("python", "python3"))
    outputs = {name: layout.paths[f"outputs.{name}"] for name in stage.body.outputs}
    linked = {name: place for name, place in given.items() if name in outputs}
    made = [
        path
        for name, path in outputs.items()
        if name not in linked and stage.body.outputs[name].get("jobOutputType") != "uri_file"
    ]
    kept = tuple(f"{code}/outputs" for code in layout.code)
    own = {name: (outputs[name],) if name in outputs else tuple(f"{folder}/{name}" for folder in kept) for name in _OWN}
    return LaunchSpecification(
        name=context.run_name,
        run_dir=stage.run_dir,
        emulates="azureml",
        code=CodePlace(stage.account.archive(context.bundle), context.bundle.sha256, layout.code[0], layout.code[1:]),
        directories=tuple(sorted([layout.data, *made, *linked.values()])),
        files={path: f'#!/bin/sh\nexec {quote(stage.python)} "$@"\n' for path in programs},
        programs=programs,
        links=(
            *(Link(layout.paths[f"inputs.{name}"], str(item.local), None) for name, item in _data(stage.job)),
            *(Link(outputs[name], place, None) for name, place in linked.items()),
            *(Link(path, target, None) for path, target in _user_logs(stage.run_dir, len(started))),
        ),
        places={
            **own,
            "outputs": kept,
            "user_logs": (f"{stage.run_dir}/user_logs",),
            **{f"outputs/{name}": (path,) for name, path in outputs.items() if name not in _OWN},
        },
        launcher="processes",
        instances=stage.body.instances,
        world_size=len(started),
        ports=_ports(started),
        processes=tuple(_started_process(stage, process) for process in started),
        finishes=("worker",) if any(process.role == "ps" for process in started) else (),
        grace_period=grace_period,
        max_runtime=stage.job.max_runtime,
    )


_OWN = ("model", "checkpoint")


def _ports(started: Sequence[Process]) -> tuple[str, ...]:
    """Return the names of all ports that the processes' variables contain."""
    return tuple(sorted({name for each in started for text in each.env.values() for name in _PORT.findall(text)}))


def _started_process(stage: Stage, process: Process) -> StartedProcess:
    """Return the process to start. Signals go to its whole process group, because the shell does not forward them."""
    role = "process" if process.role == "rank" else process.role
    shown = replace(process, role=role, env=dict(sorted(process.env.items())))
    return StartedProcess.of(shown, "group", stage.layout.code[process.instance])


def _given_places(job: TrainingJob) -> dict[str, str]:
    """Map outputs to the local paths that the job names for them."""
    places = {name: item.local for name, item in job.outputs.items() if item.local is not None}
    if job.checkpoint is not None and job.checkpoint.local is not None:
        places["checkpoint"] = job.checkpoint.local
    return places


def _data(job: TrainingJob) -> Iterator[tuple[str, Input]]:
    return ((name, item) for name, item in job.inputs.items() if item.local is not None)


def _user_logs(run_dir: str, count: int) -> Iterator[tuple[str, str]]:
    """Yield a link and its target for each rank's log. Links have Azure ML's names: `std_log_process_07.txt`."""
    for rank in range(count):
        name = f"std_log_process_{rank:0{len(str(count - 1))}d}.txt" if count > 1 else "std_log.txt"
        yield f"{run_dir}/user_logs/{name}", f"{run_dir}/logs/rank_{rank}.log"
