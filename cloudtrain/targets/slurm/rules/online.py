"""Rules that only the cluster can check: `SlurmService.check` asks it.

The rules are declared here for their codes, levels and pages, so that `explain` and `--ignore` know them.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "SL901",
    Level.ERROR,
    """Slurm would refuse the job.

    `sbatch --test-only` was given the very request that a submit would send, and said no. The message is Slurm's own.
    """,
)

declare(
    "SL902",
    Level.WARNING,
    """The cluster could not be asked.

    The login node or the controller does not answer, or has no such command. The job may be right all the same, so this
    stops nothing.
    """,
)

declare(
    "SL903",
    Level.ERROR,
    """The cluster has no partition of that name, or it is down.

    sbatch refuses such a job, or it waits for ever. `sinfo` lists the partitions and their states.
    """,
)

declare(
    "SL904",
    Level.NOTICE,
    """When the job would start, by what the cluster knows now.

    From `sbatch --test-only`. Jobs that end early, and jobs of a higher priority, move the time.
    """,
)

declare(
    "SL905",
    Level.ERROR,
    """The job asks for more than its partition allows.

    Slurm takes such a job, and lets it wait for ever (`PartitionTimeLimit`, `PartitionNodeLimit`).
    """,
)

declare(
    "SL906",
    Level.ERROR,
    """The shared folder is not there, or you may not write to it.

    The bundle and the outputs go there. The login node must see it under the same path as the nodes.
    """,
)

declare(
    "SL907",
    Level.ERROR,
    """No node of the partition has such GPUs.

    `sinfo -o '%P %G'` shows the generic resources of each partition: `gpu:a100:8` is `gpu_type = "a100"` with
    `gpus_per_instance: 8`.
    """,
)
