"""The layout of the shared file system.

SHARED_DIR/bundles/SHA256/sourcedir.tar.gz      the user's code
SHARED_DIR/runs/NAME/
    job.sh          the submitted batch script
    job             a link whose target is the number of the run's job, or `withdrawn` for a withdrawn run
    journal         events that the batch script records: `SECONDS JOB EVENT ...`
    stop            exists after `cloudtrain stop`
    slurm.out       the output of the batch script itself, and Slurm's own messages
    code/           the unpacked bundle
    logs/N/         the output of the processes after N restarts: node_I.rank_R.stdout.log
    model/  outputs/NAME/
    checkpoint/
"""

from __future__ import annotations

from dataclasses import dataclass

WITHDRAWN = "withdrawn"


def bundle_path(shared_dir: str, sha256: str) -> str:
    """Return the path of a bundle's archive."""
    return f"{shared_dir}/bundles/{sha256}/sourcedir.tar.gz"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: str

    @classmethod
    def of(cls, shared_dir: str, run_name: str) -> RunFolder:
        """Return the folder of the run with the name `run_name`."""
        return cls(f"{shared_dir}/runs/{run_name}")

    @property
    def script(self) -> str:
        """Return the path of the batch script."""
        return f"{self.path}/job.sh"

    @property
    def output(self) -> str:
        """Return the path of the batch script's own output."""
        return f"{self.path}/slurm.out"

    @property
    def code(self) -> str:
        """Return the path of the unpacked bundle."""
        return f"{self.path}/code"
