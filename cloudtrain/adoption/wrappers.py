"""Takes a command's wrappers off its launch line: `srun`, `bash -c`, containers and the like."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloudtrain.adoption.launches import tool_of
from cloudtrain.adoption.shell import commands_of

_WRAPPERS = frozenset(
    "apptainer singularity docker podman shifter uv poetry pipenv pixi conda mamba micromamba numactl taskset stdbuf "
    "nsys ncu timeout sudo nice ionice time env".split()
)

_SRUN_FLAGS = frozenset(
    "label unbuffered exclusive overlap kill-on-bad-exit no-kill quiet verbose pty disable-status preserve-env "
    "contiguous multi-prog no-container-entrypoint container-writable container-mount-home no-container-mount-home "
    "container-remap-root".split()
)
SHORT = {
    "N": "nodes", "J": "job-name", "t": "time", "p": "partition", "A": "account", "q": "qos", "C": "constraint",
    "G": "gpus", "c": "cpus-per-task", "n": "ntasks", "o": "output", "e": "error", "w": "nodelist", "x": "exclude",
    "D": "chdir", "a": "array", "d": "dependency", "L": "licenses", "l": "label", "u": "unbuffered", "K":
    "kill-on-bad-exit", "k": "no-kill", "Q": "quiet", "v": "verbose", "W": "wait", "i": "input", "s": "oversubscribe",
}  # fmt: skip
"""The long names of the short options of `sbatch` and `srun`."""

_SRUN_OWN = frozenset(
    "label unbuffered overlap kill-on-bad-exit no-kill quiet verbose disable-status wait exclusive cpu-bind mem-bind "
    "gpu-bind accel-bind distribution mpi output error open-mode job-name nodes ntasks ntasks-per-node cpus-per-task "
    "gres gpus gpus-per-node gpus-per-task nodelist jobid partition account time mem".split()
)
"""Options of `srun` that cloudtrain sets itself, or that only say how the processes share the allocation."""


@dataclass
class Unwrapped:
    """The words of a launch command, and what its wrappers say."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    srun: dict[str, str] | None = None
    """The options of `srun` by their long names; None if no wrapper is `srun`."""


def unwrapped(words: Sequence[str]) -> Unwrapped:
    """Return the launch command in a command's words. The result has no words if there is none."""
    found = Unwrapped([*words])
    while found.words and tool_of(found.words) is None:
        name = os.path.basename(found.words[0])  # noqa: PTH119
        if name == "srun":
            found.srun, found.words = srun_options(found.words[1:])
            found.lost |= _lost_of_srun(found.srun)
        elif name in ("bash", "sh"):
            found.words = _inner(found)
        elif match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", found.words[0], re.DOTALL):
            found.variables[match[1]] = match[2]
            found.words.pop(0)
        elif name in _WRAPPERS:
            _take_off(found, name)
        else:
            found.words = []
    return found


def srun_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options at the beginning of the words after `srun`, by their long names, and the other words."""
    options, rest = dict[str, str](), [*words]
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            name, value = SHORT.get(word[1], word[1]), word[2:]
        name = name.replace("_", "-")
        if not value and not equals and rest and name not in _SRUN_FLAGS:
            value = rest.pop(0)
        options[name] = value
    return options, rest


def _lost_of_srun(options: dict[str, str]) -> dict[str, str]:
    container = 'write the image into `environment.image`, and `container = "pyxis"` and `mounts` under `[slurm]`'
    own = "a job has no field for this option of srun"
    return {
        f"--{name}": container if name.startswith("container") else own for name in options if name not in _SRUN_OWN
    }


def _inner(found: Unwrapped) -> list[str]:
    """Return the launch command inside `bash -c "..."`; nothing if there is none, or more than one."""
    at = next((n for n, word in enumerate(found.words) if re.fullmatch(r"-[a-z]*c", word)), len(found.words))
    try:
        inner = commands_of(found.words[at + 1]) if at + 1 < len(found.words) else []
    except ValueError:
        return []
    starting = [command for command in inner if unwrapped(command.words).words]
    if len(starting) != 1:
        return []
    others = [one.text for one in inner if one is not starting[0] and one.words[0] not in ("echo", "set")]
    if others:
        found.lost["other lines"] = f"the job does not run these lines: {'; '.join(others)[:200]}"
    found.variables |= starting[0].exported | starting[0].assigned
    return starting[0].words


def _take_off(found: Unwrapped, name: str) -> None:
    rest = found.words[1:]
    for at in range(len(rest)):
        if tool_of(rest[at:]) is not None or os.path.basename(rest[at]) in ("bash", "sh", "srun"):  # noqa: PTH119
            wrapper = [one for one in rest[:at] if not re.match(r"[A-Za-z_]\w*=", one)] if name == "env" else rest[:at]
            if name not in ("env", "time", "stdbuf", "sudo") or wrapper:
                found.lost[" ".join([name, *wrapper])[:80]] = (
                    "the job starts the launch line without this; an image or the setting `setup` prepares the packages"
                )
            if name == "env":
                found.variables |= dict(one.split("=", 1) for one in rest[:at] if one not in wrapper)
            found.words = rest[at:]
            return
    found.words = []
