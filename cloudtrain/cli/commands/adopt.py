from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options

if TYPE_CHECKING:
    from cloudtrain.adoption.proof import Adoption


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A request or description of a job (JSON or YAML), or `-` for stdin; a script or a notebook; a job "
            "that a target has (`sagemaker://REGION/NAME`, `azureml://WORKSPACE/NAME`); a launch "
            "line in quotes, a batch script, a task file of SkyPilot.",
            show_default=False,
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="NAME", help="Which job, where the source has several.", show_default=False),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Write job.yaml (or sweep.yaml) and cloudtrain.toml there."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --write: replace files that exist.")] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The interpreter of the script, which has its packages."),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="TEXT", help='Arguments of the script: "--epochs 3".', show_default=False),
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="How long the script may run.")
    ] = 300,
    static: Annotated[
        bool, typer.Option("--static", help="Read the text of the script, for a draft, instead of executing it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run the script without asking.")] = False,
    json: options.Json = False,
) -> None:
    """Turn a training job of another tool into a job file.

    Prints the job file, and the settings for cloudtrain.toml as comments below it. Then compiles the job and compares
    its request with the original one, whole. Exit code 0: equal. Exit code 1: the differences are listed, each with
    its reason. Sends nothing.

    A script or notebook that uses the SageMaker SDK, boto3 or azure-ai-ml is executed, up to its first job: in a copy
    of its folder, without network and credentials. It is asked for first. With --static only its text is read, for a
    draft that is compared with nothing.

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
    from cloudtrain.adoption.adopt import adopt, is_script

    execute = is_script(source) and not static and (yes or _may_run(source, python))
    found = adopt(
        source,
        _words(args),
        job=job,
        folder=write or Path(),
        execute=execute,
        python=python,
        time_limit=time_limit,
        static=static,
    )
    _show(found, write, force=force, json=json)


def _words(text: str | None) -> list[str]:
    """Split arguments as a shell does.

    Raises:
        UsageError: a quote is open.
    """
    from shlex import split

    from cloudtrain.errors import UsageError

    try:
        return split(text or "")
    except ValueError as error:
        raise UsageError(
            f"`--args` is not valid shell syntax: {error}", hint="close the quotes", code="CT901"
        ) from None


def _may_run(source: str, python: str | None) -> bool:
    """Ask whether the script may be run.

    Raises:
        typer.Exit: with code 2, when it may not.
    """
    from cloudtrain.cli.terminal import say, typed

    say(
        f"Adopting {typed(source)} executes it with {typed(python or sys.executable)}, up to its first job:",
        "in a copy of its folder, with another home, without credentials, and without the network.",
        "What it does on this machine with whole paths is done. docs/adopting.md says more.",
    )
    if not sys.stdin.isatty():
        return False  # which is an error that names `--yes`
    if not typer.confirm("Execute it?", err=True):
        raise typer.Exit(2)
    return True


def _show(found: Adoption, write: Path | None, *, force: bool, json: bool) -> None:
    """Print the job, or write it; then the comparison.

    Raises:
        typer.Exit: with code 1, when the two requests differ.
    """
    from cloudtrain.cli.terminal import print_json, say
    from cloudtrain.render.escape import visible

    if write is not None:
        from cloudtrain.adoption.proof import write_adoption

        for file in write_adoption(found, write, force=force):
            say(f"wrote `{file}`")
    if json:
        print_json(found.to_dict())
    elif write is None:
        text = found.job_text + _settings_as_comments(found)
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    _say_comparison(found)
    if not found.equal:
        raise typer.Exit(1)


def _settings_as_comments(found: Adoption) -> str:
    """Return the settings, such that what is printed is a job file still."""
    if not found.settings_text:
        return ""
    lines = ["", "cloudtrain.toml, beside the job file:", "", *found.settings_text.splitlines()]
    return "".join(f"# {line}".rstrip() + "\n" if line or index else "\n" for index, line in enumerate(lines))


def _say_comparison(found: Adoption) -> None:
    from cloudtrain.cli.terminal import say, show
    from cloudtrain.render.document import Document, Table, Text

    if found.equal and not found.comparison.renewed:
        say(f"equal: the job starts the same as the original ({found.kind})")
    elif found.equal:
        say(f"equal: the job sends the same request to `{found.target}` as the original ({found.kind})")
    else:
        count = len(found.differences)
        verb = "place differs" if count == 1 else "places differ"
        rows = [(item.path, _short(item.original), _short(item.adopted), item.reason) for item in found.differences]
        head = Text(f"not equal: {count} {verb} from the original ({found.kind})")
        if found.is_draft:
            head = Text(f"a draft, compared with nothing, from {found.kind}")
        show(Document([head, Table(("PLACE", "ORIGINAL", "ADOPTED", "WHY"), rows)]), sys.stderr)
    for path, reason in found.comparison.renewed:
        say(f"written anew for every run: `{path}` ({reason})")


def _short(value: object) -> str:
    from json import dumps

    from cloudtrain.errors import shortened

    return shortened(value if isinstance(value, str) else dumps(value, ensure_ascii=False), 60)
