from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Kind(str, Enum):
    training = "training"
    processing = "processing"
    sweep = "sweep"


def command(
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            metavar="KIND",
            show_default=False,
            help="The kind of job file: training (default), processing or sweep.",
        ),
    ] = Kind.training,
) -> None:
    """Print the JSON Schema of a job file, for editors.

    \b
    Examples:
      cloudtrain schema > job.schema.json
      cloudtrain schema --kind processing > processing.schema.json
      cloudtrain schema --kind sweep > sweep.schema.json
      # first line of job.yaml, for editors with the YAML language server:
      # yaml-language-server: $schema=job.schema.json
    """
    from cloudtrain.cli.terminal import print_json
    from cloudtrain.jobfile.schema import job_schema

    print_json(job_schema(kind.value))
