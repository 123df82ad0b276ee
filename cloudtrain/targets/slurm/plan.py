"""A plan for a Slurm cluster. It can be printed as a file for sbatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from cloudtrain.core.plan import Plan


class SlurmPlan(Plan):
    """The compiled job. `request` holds the command line of sbatch and the batch script."""

    @classmethod
    def of(cls, plan: Plan) -> SlurmPlan:
        """Make a Slurm plan from a compiled plan."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})

    @property
    def outputs(self) -> dict[str, str]:
        """Map `model`, `checkpoint` and `outputs/NAME` to the cluster's folders that the run will write to."""
        return dict(self.request["outputs"])

    def to_sbatch(self) -> str:
        """Return the batch script with the options as `#SBATCH` lines, for `sbatch FILE`. The bundle must be in place:
        `cloudtrain submit --upload-only` puts it there."""
        first, newline, rest = str(self.request["script"]).partition("\n")
        words = self.request["argv"][1:-1]  # without the program, and the script that this text takes the place of
        lines = [f"#SBATCH {_quote(word)}" for word in words if word != "--parsable"]
        return "\n".join([first, *lines]) + newline + rest

    def forms(self) -> dict[str, Callable[[], str]]:
        """Return the plan's forms: `sbatch`, a file for sbatch."""
        return {"sbatch": self.to_sbatch}


def _quote(word: str) -> str:
    """Quote an option as sbatch reads it in a script: as in a shell, where `#` begins a comment."""
    name, equals, value = word.partition("=")
    if not set(value) & set(" \"'\\#"):
        return word
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
