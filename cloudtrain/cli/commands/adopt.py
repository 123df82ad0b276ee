from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from shlex import split
from typing import Annotated, Any

import typer

from cloudtrain.adoption.adopt import adopt, adopt_all, is_script
from cloudtrain.adoption.proof import Adoption, write_adoption
from cloudtrain.cli import options
from cloudtrain.cli.app import refuse_flags
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.terminal import print_json, print_text, say, show, typed
from cloudtrain.errors import PersonNeeded, UsageError, counted, shortened
from cloudtrain.plans.document import Document, Table, Text


def adopt_command(
    source: Annotated[
        str,
        argument(
            "SOURCE",
            "A job's request or description (JSON or YAML), or `-` for stdin; a script or "
            "notebook; an existing job (`sagemaker://REGION/NAME`, `azureml://WORKSPACE/NAME`); a "
            "launch command in quotes; or a shell or batch script.",
        ),
    ],
    job: Annotated[
        str | None,
        option("--job", "NAME", "The job to convert, if the source has several."),
    ] = None,
    all_jobs: Annotated[
        bool, flag("--all", "Convert all jobs; with --write, each into a folder of its own in DIR.")
    ] = False,
    write: Annotated[
        Path | None,
        option("--write", "DIR", "Write job.yaml (or sweep.yaml) and cloudtrain.toml into DIR."),
    ] = None,
    force: Annotated[bool, flag("--force", "With --write: replace files that exist.")] = False,
    python: Annotated[
        str | None, option("--python", "PATH", "The Python interpreter to run the script with.")
    ] = None,
    args: Annotated[
        str | None,
        option("--args", "TEXT", 'Arguments of the script, for example "--epochs 3"; "" for none.'),
    ] = None,
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            "SECONDS",
            "The most seconds that the script may run.",
            min=1,
            show_default=True,
        ),
    ] = 300,
    yes: Annotated[bool, flag("--yes -y", "Run the script without asking.")] = False,
    json: options.Json = False,
) -> None:
    """Convert a training job of another tool to a job file.

    Prints the job file, followed by the settings for cloudtrain.toml as comments. Then compiles the
    job and compares its whole request with the original one. The exit code is 0 if the requests are
    equal. It is 1 if they differ, and each difference is listed with its reason. Sends nothing.

    A script or notebook that uses the SageMaker SDK, boto3 or azure-ai-ml is run in a copy of its
    folder, without network and credentials. cloudtrain captures the jobs that it creates, and asks
    you first.

    \b
    Examples:
      cloudtrain adopt request.json
      cloudtrain adopt request.json --write my-job
      cloudtrain adopt sagemaker://us-west-2/my-job --write my-job
      cloudtrain adopt train.sbatch
      cloudtrain adopt train_job.py --python .venv/bin/python --write my-job
      aws sagemaker describe-training-job --training-job-name X > x.json
      az ml job show --name NAME --output json | cloudtrain adopt - --json
    """
    if all_jobs:
        refuse_flags("--all", {"--job": job is not None})
    execute = is_script(source) and (yes or _may_run(source, python))
    arguments = None if args is None else _words(args)
    running: dict[str, Any] = {"execute": execute, "python": python, "time_limit": time_limit}
    if not all_jobs:
        adoption = adopt(source, arguments, job=job, folder=write or Path(), **running)
        data = _shown(adoption, write, force=force, json=json)
        is_equal = adoption.equal
    else:
        data = {}
        for name, result in adopt_all(source, arguments, folder=write, **running).items():
            say(f"{name}:")
            if write is None and not json and not isinstance(result, UsageError):
                print_text("---\n")
            data[name] = _shown(result, write and write / name, force=force, json=json)
        is_equal = all(item["equal"] for item in data.values())

    if json:
        print_json(data)
    if not is_equal:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    """Return the words of `--args`, split as a shell does."""
    try:
        return split(text)
    except ValueError as error:
        raise UsageError(
            f"`--args` is not valid shell syntax: {error}", hint="close the quotes", code="CT909"
        ) from None


def _may_run(source: str, python: str | None) -> bool:
    """Ask whether to run the script, and end the command if not. Return False if stdin is not a
    terminal, so that nobody can answer."""
    say(
        (
            f"To adopt {typed(source)}, cloudtrain runs it with {typed(python or sys.executable)}, "
            "and creates none of its jobs:"
        ),
        (
            "in a copy of its folder, with another home folder, without credentials and without "
            "the network."
        ),
        (
            "The script can still change files on this machine by their absolute paths. See "
            "docs/guides/adopting.md."
        ),
    )
    if not sys.stdin.isatty():
        return False  # which is an error that names `--yes`
    if not typer.confirm("Run it?", err=True):
        raise PersonNeeded("the script was not run", hint="add `--yes` to run it without asking")
    return True


def _shown(
    adoption: Adoption | UsageError, write: Path | None, *, force: bool, json: bool
) -> dict[str, Any]:
    """Print the adopted job, or write its files, and say how its request compares. Return what
    `--json` prints."""
    if isinstance(adoption, UsageError):
        say(f"not adopted: {adoption.message}")
        return {"equal": False, "error": adoption.message, "hint": adoption.hint}
    if write is not None:
        for file in write_adoption(adoption, write, force=force):
            say(f"wrote `{file}`")
    elif not json:
        print_text(adoption.job_text + _settings_as_comments(adoption))
    _say_comparison(adoption)
    return adoption.to_dict()


def _settings_as_comments(adoption: Adoption) -> str:
    """Return the settings for cloudtrain.toml as YAML comments, which can be printed below the job
    file."""
    if not adoption.settings_text:
        return ""
    lines = ["cloudtrain.toml, beside the job file:", "", *adoption.settings_text.splitlines()]
    comments = [f"# {line}".rstrip() for line in lines]
    return "\n".join(["", *comments, ""])


def _say_comparison(adoption: Adoption) -> None:
    if adoption.equal and not adoption.renewed:
        say(f"equal: the job starts the same as the original ({adoption.kind})")
    elif adoption.equal:
        say(
            f"equal: the job sends the same request to `{adoption.target}` as the original "
            f"({adoption.kind})"
        )
    else:
        count = counted(len(adoption.differences), "difference")
        rows = [
            (item.path, _short(item.original), _short(item.adopted), item.reason)
            for item in adoption.differences
        ]
        table = Table(("FIELD", "ORIGINAL", "ADOPTED", "REASON"), rows)
        head = Text(f"not equal: {count} from the original ({adoption.kind})")
        show(Document([head, table]), sys.stderr)
    for path, reason in adoption.renewed:
        say(f"different in every run: `{path}` ({reason})")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else dumps(value, ensure_ascii=False)
    return shortened(text, 60)
