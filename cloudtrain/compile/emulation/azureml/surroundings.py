"""Folders, files and links of an emulated job, and where its results are found afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any

from cloudtrain.compile.emulation.azureml.stage import Stage
from cloudtrain.job import TrainingJob


def surroundings(stage: Stage, count: int) -> dict[str, Any]:
    """The keys `directories`, `files`, `programs`, `links` and `places` of the specification, for so many processes."""
    site, given = stage.site, _given_places(stage.job)
    programs = [f"{stage.programs}/{name}" for name in ("python", "python3")]
    outputs = {name: site.paths[f"outputs.{name}"] for name in stage.body.outputs}
    linked = {name: place for name, place in given.items() if name in outputs}
    made = [
        path
        for name, path in outputs.items()
        if name not in linked and stage.body.outputs[name].get("jobOutputType") != "uri_file"
    ]
    kept = [f"{code}/outputs" for code in site.code]
    places = {f"outputs/{name}": [path] for name, path in outputs.items() if name not in ("model", "checkpoint")}
    return {
        "directories": sorted([site.data, *made, *linked.values()]),
        "files": {path: f'#!/bin/sh\nexec {quote(stage.python)} "$@"\n' for path in programs},
        "programs": programs,
        "links": [
            *(_link(site.paths[f"inputs.{name}"], str(item.local)) for name, item in _data(stage.job)),
            *(_link(outputs[name], place) for name, place in linked.items()),
            *(_link(path, target) for path, target in _user_logs(stage.run_dir, count)),
        ],
        "places": {
            "model": [outputs["model"]] if "model" in outputs else [f"{folder}/model" for folder in kept],
            "checkpoint": [outputs["checkpoint"]]
            if "checkpoint" in outputs
            else [f"{folder}/checkpoint" for folder in kept],
            "outputs": kept,
            "user_logs": [f"{stage.run_dir}/user_logs"],
            **places,
        },
    }


def _given_places(job: TrainingJob) -> dict[str, str]:
    """Outputs that the job keeps at a place of its own on this machine."""
    places = {name: item.local for name, item in job.outputs.items() if item.local is not None}
    if job.checkpoint is not None and job.checkpoint.local is not None:
        places["checkpoint"] = job.checkpoint.local
    return places


def _data(job: TrainingJob) -> Iterator[tuple[str, Any]]:
    return ((name, item) for name, item in job.inputs.items() if item.local is not None)


def _user_logs(run_dir: str, count: int) -> Iterator[tuple[str, str]]:
    """The output of each rank under the name that Azure ML gives it: `std_log_process_07.txt` of ten and more."""
    for rank in range(count):
        name = f"std_log_process_{rank:0{len(str(count - 1))}d}.txt" if count > 1 else "std_log.txt"
        yield f"{run_dir}/user_logs/{name}", f"{run_dir}/logs/rank_{rank}.log"


def _link(path: str, target: str) -> dict[str, Any]:
    return {"path": path, "target": target, "shard": None}
