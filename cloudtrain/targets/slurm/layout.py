"""What lies where on the shared file system.

SHARED_DIR/bundles/SHA256/sourcedir.tar.gz      the user's code
SHARED_DIR/runs/NAME/
    job.sh          the batch script that was sent
    job             a link whose text is the number of the job that has the run; `withdrawn` where none may have it
    journal         what the batch script notes: `SECONDS JOB WORD ...`
    stop            there since somebody asked the run to stop
    slurm.out       the output of the batch script itself, and Slurm's own messages
    code/           the unpacked bundle
    logs/N/         the output of the processes after N restarts: node_I.rank_R.stdout.log
    model/ outputs/NAME/ checkpoint/
"""

from __future__ import annotations

from dataclasses import dataclass

WITHDRAWN = "withdrawn"


def bundle_path(shared_dir: str, sha256: str) -> str:
    """Where the archive of a bundle lies."""
    return f"{shared_dir}/bundles/{sha256}/sourcedir.tar.gz"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: str

    @classmethod
    def of(cls, shared_dir: str, run_name: str) -> RunFolder:
        """That of the run of a name."""
        return cls(f"{shared_dir}/runs/{run_name}")

    @property
    def script(self) -> str:
        """The batch script."""
        return f"{self.path}/job.sh"

    @property
    def output(self) -> str:
        """What the batch script itself prints."""
        return f"{self.path}/slurm.out"

    @property
    def code(self) -> str:
        """The unpacked bundle."""
        return f"{self.path}/code"
