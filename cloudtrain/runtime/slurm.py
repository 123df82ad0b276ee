"""Parse SLURM's variables, in which tasks per node look like `2(x3),1` and node names like `gpu[01-03,7],login`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_FIRST_NODE = re.compile(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,]*))?")


def is_started_by_srun(variables: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process. A batch script has the variables of a task, too, but only `srun` sets
    the variable of a step.
    """
    return "SLURM_STEP_ID" in variables or "SLURM_JOB_ID" not in variables


def tasks_on_this_node(variables: Mapping[str, str]) -> int | None:
    """Return the number of this step's tasks on this node, from a list such as `2(x3),1` and the node's number; None
    without a valid list.
    """
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            return None
        counts += [int(match[1])] * int(match[2] or 1)
    node = variables.get("SLURM_NODEID", "0")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def first_node(variables: Mapping[str, str]) -> str | None:
    """Return the host of rank 0, which is the first in the node list: `gpu01` for `gpu[01-03,7]`. Return None without a
    list.
    """
    text = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    match = _FIRST_NODE.match(text)
    return "".join(part for part in match.groups() if part) if match else None


def port(variables: Mapping[str, str]) -> int:
    """Return a port that is the same for all tasks of a job, and most likely different for other jobs on the node."""
    job, step = variables.get("SLURM_JOB_ID", "0"), variables.get("SLURM_STEP_ID", "0")
    digits = [int(text) if text.isdecimal() else 0 for text in (job, step)]
    return 20000 + (digits[0] * 7 + digits[1]) % 10000
