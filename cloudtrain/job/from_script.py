"""The `JobFile` of a training script without a job file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import Positions, Unreadable, read_document
from cloudtrain.documents.yaml_text import read_scalar
from cloudtrain.errors import JobError
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
    except JobError as error:  # a line of a file that does not exist would confuse the reader
        own = str(script)
        problems = [
            replace(problem, file=None, line=None, column=None) if problem.file == own else problem
            for problem in error.problems
        ]
        raise JobError(problems) from None
    return file._replace(job=anchored(file.job, here).from_folder(here), positions=Positions())


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

    def quoted_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, None if read_scalar(text) == text else "'"
        )

    _Dumper.add_representer(str, quoted_text)
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    try:
        if text.replace("\n", "").isprintable() and read_document(text, "yaml").data == data:
            return text
    except Unreadable:
        pass
    quoted = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(
        letter if letter.isprintable() or letter == "\n" else f"\\U{ord(letter):08x}"
        for letter in quoted
    )
