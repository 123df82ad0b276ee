"""The plan of a job on a Slurm cluster. `--format sbatch` prints it as a file for sbatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from cloudtrain.core.plan import Plan


class SlurmPlan(Plan):
    """The compiled job. `request` holds the command line of sbatch and the batch script."""

    @classmethod
    def of(cls, plan: Plan) -> SlurmPlan:
        """Convert a plan to a Slurm plan."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Map `model`, `checkpoint` and `outputs/NAME` to the folders on the cluster that the run writes to."""
        return dict(self.request["outputs"])

    def to_sbatch(self) -> str:
        """Return the batch script with the options as `#SBATCH` lines, for `sbatch FILE`. The job needs the bundle on
        the cluster: `cloudtrain submit --upload-only` uploads it."""
        first, newline, rest = str(self.request["script"]).partition("\n")
        words = self.request["argv"][1:-1]  # without `sbatch`, and without the script, which this text replaces
        lines = [f"#SBATCH {_quote(word)}" for word in words if word != "--parsable"]
        return "\n".join([first, *lines]) + newline + rest

    def forms(self) -> dict[str, Callable[[], str]]:
        """Return a function for each format of `--format` that only Slurm has: `sbatch` returns a file for sbatch."""
        return {"sbatch": self.to_sbatch}


def _quote(word: str) -> str:
    """Quote an option for an `#SBATCH` line. sbatch splits the line as a shell does, and `#` begins a comment."""
    name, equals, value = word.partition("=")
    if not set(value) & set(" \"'\\#"):
        return word
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
