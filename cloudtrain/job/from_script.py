"""The `JobFile` of a training script without a job file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Positions, Unreadable, read_document
from cloudtrain.documents.toml_json import escape_unprintable
from cloudtrain.documents.yaml_text import read_scalar
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.file import JobFile, anchored, parse
from cloudtrain.job.overrides import override
from cloudtrain.job.script import fields_of_script
from cloudtrain.job.training import TrainingJob


def load_script(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> JobFile:
    """Return the job of a script. Relative local paths start at the working directory.

    Raises:
        UsageError: the script does not exist or is not valid Python.
        JobError: the job has problems; all are listed.
    """
    here = Path.cwd()
    text = yaml_text(fields_of_script(script, arguments, here))
    try:
        file = parse(text, format="yaml", file=str(script), overrides=overrides)
    except JobError as error:
        raise JobError([_without_line(problem, script) for problem in error.problems]) from None
    return file._replace(job=anchored(file.job, here).from_folder(here), positions=Positions())


def _without_line(problem: Problem, script: Path) -> Problem:
    """Return the problem without its position in the text of the job, which is not a file."""
    if problem.file != str(script):
        return problem
    return replace(problem, file=None, line=None, column=None)


def job_text(script: Path, arguments: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a job file for the job of `load_script`. The file must be saved in the
    working directory."""
    data, _ = override(fields_of_script(script, arguments, Path.cwd()), overrides, TrainingJob)
    return yaml_text(data)


def yaml_text(data: dict[str, object]) -> str:
    """Return the fields as YAML that cloudtrain reads back unchanged: PyYAML's output if it is
    unchanged and printable, else JSON with invisible characters escaped."""
    import yaml

    class _Dumper(yaml.SafeDumper):
        """PyYAML's writer, which would leave `1e-3` unquoted: text in YAML 1.1, but a number in
        YAML 1.2."""

    def represent_text(dumper: Any, text: str) -> Any:
        style = None if read_scalar(text) == text else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    _Dumper.add_representer(str, represent_text)
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        if text.replace("\n", "").isprintable() and read_document(text, "yaml").data == data:
            return text
    except Unreadable:
        pass
    lines = json.dumps(data, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(map(escape_unprintable, lines))
