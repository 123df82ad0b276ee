"""Rules that need an answer from the cluster. `SlurmService.check` applies them.

This module declares only their codes, levels and explanations, for `explain` and `--ignore`.
"""

from __future__ import annotations

from cloudtrain.core.plan import Level
from cloudtrain.rules.rule import declare, level_of

__all__ = ["level_of"]

declare(
    "SL901",
    Level.ERROR,
    """Slurm would refuse the job.

    `sbatch --test-only` refused the request that a submit would send. The message is Slurm's own.
    """,
)

declare(
    "SL902",
    Level.WARNING,
    """cloudtrain could not check the job with the cluster.

    The login node or Slurm's controller does not answer, or the login node lacks Slurm's commands. The job may still be
    valid, so you can submit it.
    """,
)

declare(
    "SL903",
    Level.ERROR,
    """The job's partition does not exist or is down.

    sbatch refuses such a job, or the job waits for ever. `sinfo` lists the partitions and their states.
    """,
)

declare(
    "SL904",
    Level.NOTICE,
    """The time at which Slurm expects to start the job.

    `sbatch --test-only` reports this time. It changes when other jobs end early, or when jobs with a higher priority
    arrive.
    """,
)

declare(
    "SL905",
    Level.ERROR,
    """The job asks for more than its partition allows.

    Slurm accepts such a job, but never starts it (`PartitionTimeLimit`, `PartitionNodeLimit`).
    """,
)

declare(
    "SL906",
    Level.ERROR,
    """The shared folder does not exist, or you may not write to it.

    cloudtrain stores the bundle and the outputs in this folder. The login node must see the folder at the same path as
    the nodes.
    """,
)

declare(
    "SL907",
    Level.ERROR,
    """No node of the partition has the GPUs that the job asks for.

    `sinfo -o '%P %G'` shows the GPUs of each partition: for `gpu:a100:8`, set `gpu_type = "a100"` and
    `gpus_per_instance: 8` or less.
    """,
)
