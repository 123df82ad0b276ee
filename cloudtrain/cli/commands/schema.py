from __future__ import annotations


def command() -> None:
    """Print the JSON Schema of a job file, for editors.

    \b
    Examples:
      cloudtrain schema > job.schema.json
      # first line of job.yaml, for editors with the YAML language server:
      # yaml-language-server: $schema=job.schema.json
    """
    from cloudtrain.cli.terminal import print_json
    from cloudtrain.schema import job_schema

    print_json(job_schema())
