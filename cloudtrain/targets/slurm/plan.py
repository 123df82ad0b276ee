"""A plan for a Slurm cluster, which is also a file that sbatch takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from cloudtrain.core.plan import Plan


class SlurmPlan(Plan):
    """The compiled job. `request` has the command line of sbatch, and the batch script that it is given."""

    @classmethod
    def of(cls, plan: Plan) -> SlurmPlan:
        """A compiled plan that knows Slurm's own words."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Where the run will write: `model`, `checkpoint`, `outputs/NAME` to a folder of the cluster."""
        return dict(self.request["outputs"])

    def to_sbatch(self) -> str:
        """The batch script with the options as `#SBATCH` lines, for `sbatch FILE`. The bundle must be in place, as
        `cloudtrain submit --upload-only` puts it there."""
        first, newline, rest = str(self.request["script"]).partition("\n")
        words = self.request["argv"][1:-1]  # without the program, and the script that this text takes the place of
        lines = [f"#SBATCH {_quote(word)}" for word in words if word != "--parsable"]
        return "\n".join([first, *lines]) + newline + rest

    def forms(self) -> dict[str, Callable[[], str]]:
        """`sbatch`: a file that sbatch takes."""
        return {"sbatch": self.to_sbatch}


def _quote(word: str) -> str:
    """An option as sbatch reads it in a script: quoted as in a shell, and `#` begins a comment."""
    name, equals, value = word.partition("=")
    if not set(value) & set(" \"'\\#"):
        return word
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
