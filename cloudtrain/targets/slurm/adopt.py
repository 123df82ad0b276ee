"""Convert the options of a batch script to settings of the Slurm target, for `cloudtrain adopt`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.targets.adoption import BatchSettings

_TEXTS = ("partition", "account", "qos", "constraint", "reservation")
_FIELDS = frozenset("nodes time job-name gpus-per-node gpus-per-task gres ntasks-per-node ntasks".split())
"""Options that become fields of the job."""

_OWN = frozenset("output error open-mode signal parsable requeue no-requeue exclusive cpus-per-task".split())
"""Options that cloudtrain sets itself, or that become other settings."""

_REFUSED = {
    "array": "a job is one run; to submit several, use `cloudtrain submit job.yaml --each hyperparameters.seed=1,2,3`",
    "dependency": "it refers to job numbers, which cloudtrain does not use; wait for a run with `cloudtrain wait NAME`",
    "export": "the job does not get variables of your shell; set them under `environment.variables`",
    "chdir": "the script runs in the run's own copy of `source_dir`; name other data as inputs",
    "comment": "cloudtrain finds the run by its comment; use `tags` for your own notes",
}

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_WHOLE = "an exclusive job always has all memory of its nodes"

_ABOUT_CONTAINERS = {
    "container-workdir": "the script runs in the run's own copy of `source_dir`; name other data as inputs",
    "container-mounts": "only a running shell knows the folders: write them as `mounts` under `[slurm]`",
}

_HEAD = ("Also set `shared_dir`, your folder that the login node and every node see, and `host`, the login node.",)


def batch_settings(options: Mapping[str, str], setup: Sequence[str]) -> BatchSettings:
    """Convert sbatch options and setup lines to settings, and list the options that have no equivalent."""
    settings: dict[str, Any] = {name: options[name] for name in _TEXTS if options.get(name)}
    gpus = options.get("gres", "").rpartition("gpu:")[2] or options.get("gpus-per-node", "")
    if kind := re.match(r"([\w.-]+):\d+", gpus):
        settings["gpu_type"] = kind[1]
    if "exclusive" not in options:
        settings["exclusive"] = False
        cpus, tasks = options.get("cpus-per-task", ""), options.get("ntasks-per-node", "1")
        if cpus.isdecimal() and tasks.isdecimal():
            settings["cpus_per_instance"] = int(cpus) * int(tasks)
    if "no-requeue" in options:
        settings["requeue"] = False
    if setup:
        settings["setup"] = list(setup)
    memory = [name for name in _MEMORY if name in options] if "exclusive" in options else []
    others = [name for name in options if name not in {*_TEXTS, *_FIELDS, *_OWN, *_REFUSED, *memory}]
    extra = [f"--{name}={options[name]}" if options[name] else f"--{name}" for name in others if len(name) > 1]
    settings |= {"extra_sbatch": extra} if extra else {}
    lost = {f"--{name}": why for name, why in _REFUSED.items() if name in options}
    lost |= {f"-{name}": "write the option by its long name" for name in others if len(name) == 1}
    lost |= {f"--{name}": _WHOLE for name in memory if options[name] != "0"}
    return BatchSettings(settings, lost, _HEAD)


def container_settings(options: Mapping[str, str]) -> BatchSettings | None:
    """Convert srun's options of pyxis to the image and settings, and list the options that have no equivalent. Return
    None if the image is missing, or if only a running shell knows it."""
    image, mounts = options.get("container-image", ""), options.get("container-mounts", "")
    if not image or _is_open(image):
        return None
    settings: dict[str, Any] = {"container": "pyxis"}
    if mounts and not _is_open(mounts):
        settings["mounts"] = [mount for mount in mounts.split(",") if mount]
    others = [name for name in options if "container" in name and name != "container-image"]
    adopted_options = ["container-mounts"] if "mounts" in settings else []
    lost = {
        f"--{name}": _ABOUT_CONTAINERS.get(name, "no setting of a Slurm cluster says this about its containers")
        for name in others
        if name not in adopted_options
    }
    return BatchSettings(settings, lost, _HEAD, image)


def _is_open(text: str) -> bool:
    return "$" in text or "`" in text
