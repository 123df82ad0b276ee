"""Convert the options of a batch script to settings of the Slurm target, for `cloudtrain adopt`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.documents.document import load_table
from cloudtrain.targets.adoption import BatchSettings

_TABLES = load_table(__file__, "adopt.toml")
_TEXTS = _TABLES["texts"]
_KNOWN = _TABLES["known"]
_REFUSED = _TABLES["refused"]

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_WHOLE = "an exclusive job always has all memory of its nodes"

_HEAD = (
    "Also set `shared_dir`, your folder that the login node and every node see, and `host`, the "
    "login node.",
)


def batch_settings(options: Mapping[str, str], setup: Sequence[str]) -> BatchSettings:
    """Convert sbatch options and setup lines to settings, and list the options that have no
    equivalent. The tasks and the GPUs of each node are known: `8` and `h100:8`."""
    settings: dict[str, Any] = {name: options[name] for name in _TEXTS if options.get(name)}

    kind = options.get("gpus-per-node", "").rpartition(":")[0]
    if kind:
        settings["gpu_type"] = kind

    if "exclusive" not in options:
        settings["exclusive"] = False
        cpus = options.get("cpus-per-task", "")
        if cpus.isdecimal():
            settings["cpus_per_instance"] = int(cpus) * int(options["ntasks-per-node"])

    if "no-requeue" in options:
        settings["requeue"] = False
    if setup:
        settings["setup"] = list(setup)

    memory = _MEMORY if "exclusive" in options else ()
    handled = {*_TEXTS, *_KNOWN, *_REFUSED, *memory}
    extra = []
    lost = {f"--{name}": why for name, why in _REFUSED.items() if name in options}
    if options.get("chdir") == ".":  # where the job is submitted, as for a job without the option
        del lost["--chdir"]
    for name, value in options.items():
        if name in handled or "container" in name:
            continue
        if len(name) == 1:
            lost[f"-{name}"] = "write the option by its long name"
        else:
            extra.append(f"--{name}={value}" if value else f"--{name}")

    for name in memory:  # 0 means all memory
        if options.get(name, "0") != "0":
            lost[f"--{name}"] = _WHOLE
    if extra:
        settings["extra_sbatch"] = extra
    return BatchSettings(settings, lost, _HEAD)


def container_settings(options: Mapping[str, str]) -> BatchSettings | None:
    """Convert srun's options of pyxis to the image and settings, and list the options that have no
    equivalent. Return None if the image is missing, or if only a running shell knows it."""
    image = options.get("container-image", "")
    if not image or _is_open(image):
        return None
    settings: dict[str, Any] = {"container": "pyxis"}
    adopted = ["container-image"]
    mounts = options.get("container-mounts", "")
    if mounts and not _is_open(mounts):
        settings["mounts"] = [mount for mount in mounts.split(",") if mount]
        adopted.append("container-mounts")

    lost = {}
    for name in adopted:
        if options[name].startswith("."):
            lost[f"--{name}"] = "ranks start in a copy of the code: write absolute paths"
    for name in options:
        if "container" in name and name not in adopted:
            lost[f"--{name}"] = _TABLES["container"].get(
                name, "no setting of a Slurm cluster says this about its containers"
            )
    return BatchSettings(settings, lost, _HEAD, image)


def _is_open(text: str) -> bool:
    """Return whether only a running shell knows the text, because it has variables or commands."""
    return "$" in text or "`" in text
