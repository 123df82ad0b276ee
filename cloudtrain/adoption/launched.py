"""Parsers of files that contain a launch line: Slurm's batch scripts and SkyPilot's task files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from cloudtrain.adoption.launches import Launch, is_launch_line, read_launch_line
from cloudtrain.errors import UsageError
from cloudtrain.targets.registry import all_targets

_DIRECTIVE = "#SBATCH"
_ASSIGNED = re.compile(r"(export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_SHORT = {
    "N": "nodes", "J": "job-name", "t": "time", "p": "partition", "A": "account", "q": "qos", "C": "constraint",
    "G": "gpus", "c": "cpus-per-task", "n": "ntasks", "o": "output", "e": "error", "w": "nodelist", "x": "exclude",
    "D": "chdir", "a": "array", "d": "dependency", "L": "licenses",
}  # fmt: skip
_SETUP = re.compile(r"(module|ml|source|\.|conda|mamba|micromamba|spack|ulimit)\s|eval \"\$\((conda|micromamba) ")
"""Beginnings of lines that prepare the shell for the launch line."""

_NODES = frozenset({"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SKYPILOT_NUM_NODES"})
_GPUS = frozenset({"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SKYPILOT_NUM_GPUS_PER_NODE"})


def is_batch_script(text: str) -> bool:
    """Return whether a text is a script for `sbatch`."""
    return text.startswith("#!") and "#SBATCH" in text


def read_batch_script(text: str, folder: str) -> Launch:
    """Return the training that a batch script starts. Relative paths in the script start in `folder`.

    Raises:
        UsageError: the script has no launch line, or several.
    """
    options = _directives(text)
    nodes = options.get("nodes", "1").rpartition("-")[2]
    gpus = _last_number(options.get("gpus-per-node") or options.get("gpus-per-task") or options.get("gres") or "")
    known = dict.fromkeys(_NODES, nodes) | {name: str(gpus) for name in _GPUS if gpus}
    launch = _launch_in(text, known, folder, has_setup=True)
    launch.tool = "sbatch"
    launch.instances = int(nodes) if nodes.isdecimal() else launch.instances
    launch.gpus, launch.name = gpus, options.get("job-name")
    launch.max_runtime = _seconds(options.get("time", ""))
    for target in all_targets():
        found = target.batch_settings(options, launch.setup)
        if found is not None:
            launch.target, launch.settings, launch.settings_head = target.name, found.settings, found.head
            launch.lost |= found.lost
    return launch


def _directives(text: str) -> dict[str, str]:
    """Return the `#SBATCH` options above a script's first command, by their long names. An option without a value has
    an empty string.

    Raises:
        ValueError: a quote is not closed.
    """
    options = dict[str, str]()
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        words = shlex.split(line[len(_DIRECTIVE) :], comments=True) if line.startswith(_DIRECTIVE) else []
        while words:
            word = words.pop(0)
            name, _, value = word[2:].partition("=")
            if not word.startswith("--"):
                name, value = _SHORT.get(word[1:2], word[1:2]), word[2:]
            if not value and "=" not in word and words and not words[0].startswith("-"):
                value = words.pop(0)
            options[name] = value
    return options


def is_task_file(data: Any) -> bool:
    """Return whether the data is a SkyPilot task."""
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("run"), str)
        and bool({"resources", "num_nodes", "setup", "workdir", "envs", "file_mounts"} & data.keys())
    )


def read_task_file(data: Mapping[str, Any], folder: str) -> Launch:
    """Return the training that a SkyPilot task starts. Relative paths in the task start in `folder`.

    Raises:
        UsageError: the task's `run` has no launch line, or several.
    """
    resources = data.get("resources") if isinstance(data.get("resources"), Mapping) else {}
    assert isinstance(resources, Mapping)
    model, count = _accelerators(resources.get("accelerators"))
    nodes = int(data.get("num_nodes") or 1)
    known = {name: str(nodes) for name in _NODES} | {name: str(count) for name in _GPUS if count}
    launch = _launch_in(data["run"], known, folder)
    launch.tool, launch.instances, launch.name = "SkyPilot", nodes, data.get("name")
    launch.gpu, launch.gpus = model, count
    launch.spot = bool(resources.get("use_spot"))
    launch.variables |= {str(key): str(value) for key, value in (data.get("envs") or {}).items()}
    image = str(resources.get("image_id") or "")
    launch.image = image.removeprefix("docker:") if image.startswith("docker:") else None
    workdir = data.get("workdir")
    launch.source_dir = workdir if isinstance(workdir, str) else None
    why = {
        "setup": "list the packages that it installs in `environment.requirements`, or use an image",
        "file_mounts": "write each storage path of data under `inputs`",
        "secrets": "a job contains no secrets: let the script read them at run time",
        "volumes": "write each storage path of data under `inputs`",
    }
    launch.lost |= {name: reason for name, reason in why.items() if data.get(name)}
    return launch


def _launch_in(text: str, known: Mapping[str, str], folder: str, *, has_setup: bool = False) -> Launch:
    variables, exported, lines = dict(known), dict[str, str](), list[str]()
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        match = _ASSIGNED.fullmatch(line)
        if match and "$(" not in match[3] and "`" not in match[3]:
            value = _expanded(" ".join(shlex.split(match[3], comments=True)), variables)
            variables[match[2]] = value
            if match[1]:
                exported[match[2]] = value
        elif line and not line.startswith("#"):
            lines.append(_expanded(line, variables))
    found = [line for line in lines if is_launch_line(line)]
    if len(found) != 1:
        what = f"{len(found)} launch lines" if found else "no launch line"
        hint = 'adopt the line alone: `cloudtrain adopt "torchrun ... train.py"`'
        raise UsageError(f"cloudtrain needs exactly one launch line, and found {what}", hint=hint, code="CT981")
    launch = read_launch_line(found[0], folder)
    launch.variables = exported | launch.variables
    before = lines[: lines.index(found[0])] if has_setup else []
    launch.setup = [line for line in before if _SETUP.match(line)]
    lines = [line for line in lines if line not in (*found, *launch.setup)]
    others = [line for line in lines if not re.match(r"(set|echo|cd|nodes|head)\b|.*\$\(", line)]
    if others:
        launch.lost["other lines"] = f"the job does not run these lines: {'; '.join(others)[:200]}"
    return launch


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)


def _accelerators(given: Any) -> tuple[str | None, int | None]:
    if isinstance(given, Mapping) and given:
        name = next(iter(given))
        return str(name), int(given[name])
    name, _, count = str(given or "").partition(":")
    return (name or None), (int(count or 1) if name else None)


def _last_number(text: str) -> int | None:
    found = re.findall(r"\d+", text.rpartition(":")[2])
    return int(found[-1]) if found else None


def _seconds(text: str) -> int | None:
    """Convert a time limit of sbatch's `--time`, such as `DAYS-HOURS:MINUTES:SECONDS`, to seconds; None for any other
    text."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        parts += [0] * (3 - len(parts))
    elif len(parts) == 1:
        parts = [0, parts[0], 0]
    elif len(parts) == 2:
        parts = [0, *parts]
    return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]
