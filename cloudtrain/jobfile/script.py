"""Conversion of a training script without a job file to a `JobFile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.core.job import TrainingJob
from cloudtrain.core.script import fields_of_script
from cloudtrain.documents.document import Positions, Unreadable, read_document
from cloudtrain.documents.scalars import read_scalar
from cloudtrain.errors import JobError, Problem
from cloudtrain.jobfile.files import anchored
from cloudtrain.jobfile.overrides import override
from cloudtrain.jobfile.parse import JobFile, parse


def load_script(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> JobFile:
    """Return the job of a script. Relative local paths start at the working directory.

    Raises:
        UsageError: the script does not exist or is not valid Python.
        JobError: the job has problems; all are listed.
    """
    here = Path.cwd()
    text = yaml_text(fields_of_script(script, arguments, here))
    try:
        found = parse(text, format="yaml", file=str(script), overrides=overrides)
    except JobError as error:  # a line of a file that does not exist would confuse the reader
        raise JobError([_without_place(problem, str(script)) for problem in error.problems]) from None
    return found._replace(job=anchored(found.job, here).from_folder(here), positions=Positions())


def job_text(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a job file for the job of `load_script`. The file must be saved in the working directory."""
    data, _ = override(fields_of_script(script, arguments, Path.cwd()), overrides, TrainingJob)
    return yaml_text(data)


def _without_place(problem: Problem, file: str) -> Problem:
    return replace(problem, file=None, line=None, column=None) if problem.file == file else problem


def yaml_text(data: dict[str, Any]) -> str:
    """Return the fields as YAML that cloudtrain reads back unchanged: PyYAML's output if it is unchanged and printable,
    else JSON with invisible characters escaped."""
    import json

    import yaml

    class Dumper(yaml.SafeDumper):
        """PyYAML's writer, which would leave `1e-3` unquoted: text in YAML 1.1, but a number in YAML 1.2."""

    def quoted_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if read_scalar(text) == text else "'")

    Dumper.add_representer(str, quoted_text)
    text: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    try:
        if text.replace("\n", "").isprintable() and read_document(text, "yaml").data == data:
            return text
    except Unreadable:
        pass
    quoted = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(letter if letter.isprintable() or letter == "\n" else f"\\U{ord(letter):08x}" for letter in quoted)
