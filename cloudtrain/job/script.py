"""Jobs for scripts without a job file, as in `cloudtrain submit train.py --epochs 3`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloudtrain.documents.document import decode_python, parse_python, read_bytes
from cloudtrain.errors import UsageError, shortened
from cloudtrain.job.nodes import MAX_JOB_NAME
from cloudtrain.job.syntax import ScriptSyntax, read_syntax, script_file
from cloudtrain.runtime.sagemaker_launcher.arguments import RESERVED_PREFIXES, argv_of
from cloudtrain.runtime.torchrun_words import is_module

_LIBRARIES = {
    "deepspeed": "deepspeed",
    "horovod": "horovod",
    "mpi4py": "mpi",
    "torch": "torch",
    "lightning": "torch",
    "pytorch_lightning": "torch",
    "accelerate": "torch",
    "transformers": "torch",
}
"""Libraries that a script can import, and the distribution that starts its processes. The first
match counts. One process runs a script whose syntax shows that its processes would not work
together."""

_SOURCES = "src"
"""The folder of packages in the src layout. Python finds them there if PYTHONPATH names it."""

_USUAL_NAMES = ("train", "main", "run", "__main__")
"""Script names that say nothing about the job. The job is then named after the folder."""


def fields_of_script(script: Path, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the fields of the job that runs a script with arguments.

    The code is `folder` if the script is inside it, as in `python src/train.py`, otherwise the
    script's folder. The arguments become hyperparameters if these reach the script as the same
    words; otherwise the job's `arguments`.

    Raises:
        UsageError: the script does not exist, or is not a Python file.
    """
    root, entry_point, file = _root_of(script, folder)
    source = "." if root == os.path.realpath(folder) else root
    name = Path(file).stem
    if name in _USUAL_NAMES:
        name = Path(root).name
    fields: dict[str, object] = {
        "name": job_name_from(name),
        "source_dir": source,
        "entry_point": entry_point,
    }
    if is_module(entry_point) and file.startswith(f"{_SOURCES}/"):
        fields["environment"] = {"variables": {"PYTHONPATH": _SOURCES}}

    hyperparameters = read_hyperparameters(arguments) or {}
    is_reserved = any(key.startswith(RESERVED_PREFIXES) for key in hyperparameters)
    if is_reserved or argv_of(hyperparameters) != [*arguments]:
        fields["arguments"] = [*arguments]
    elif hyperparameters:
        fields["hyperparameters"] = hyperparameters

    distribution = distribution_of(script, folder)
    if distribution is not None:
        fields["distribution"] = {"type": distribution}
    return fields


def _root_of(script: Path, folder: Path) -> tuple[str, str, str]:
    """Return the folder of the code, the entry point, and the path of its file in the folder."""
    root = os.path.realpath(folder)
    if is_module(str(script)):
        file = script_file(str(script), lambda path: Path(root, path).is_file(), _SOURCES)
        if file is None:
            message = f"there is no module `{str(script)[3:]}` in this folder"
            raise UsageError(
                message,
                hint="change to the folder of its package; for an installed module: `command: "
                f"python {script}` in a job",
                code="CT903",
            )
        return root, str(script), file

    place = os.path.realpath(script)
    inside = os.path.relpath(place, root)
    if inside.startswith(os.pardir):
        root = os.path.dirname(place)
        inside = os.path.basename(place)
    file = Path(inside).as_posix()
    return root, file, file


def read_hyperparameters(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the values of `--name value` and `--name=value`, or None if an argument has another
    form.

    Integers and decimal numbers become numbers if Python would print them identically; all other
    values stay text.
    """
    values: dict[str, object] = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            value = next(words, "-")
            if value.startswith("-") and _number(value) is None:  # the next option, or no value
                return None
        if not re.fullmatch(r"--[A-Za-z0-9][^\s]*", name) or name[2:] in values:
            return None
        number = _number(value)
        values[name[2:]] = value if number is None else number
    return values


def job_name_from(text: str) -> str:
    """Convert a text to a valid job name of letters, digits and hyphens."""
    words = re.findall(r"[a-zA-Z0-9]+", text)
    return "-".join(words)[:MAX_JOB_NAME].rstrip("-") or "training"


def _number(text: str) -> int | float | None:
    """Return the number that Python prints as this text; None if there is none."""
    if text in ("inf", "-inf", "nan"):
        return None
    number_type = int if text.lstrip("-").isdecimal() else float
    try:
        value = number_type(text)
    except ValueError:
        return None
    return value if repr(value) == text else None


def distribution_of(script: Path, folder: Path | None = None) -> str | None:
    """Return the distribution that the script suggests; None if its processes would not work
    together. `folder` is as for `syntax_of_script`, which raises the same errors."""
    syntax = syntax_of_script(script, folder)
    for library, distribution in _LIBRARIES.items():
        if library in syntax.packages:
            return None if distribution == "torch" and syntax.why_alone else distribution
    return None


def syntax_of_script(script: Path, folder: Path | None = None) -> ScriptSyntax:
    """Read the script, and the modules of `folder`, by default the working directory, if the script
    is inside it.

    Raises:
        UsageError: the script cannot be read, or is not a Python file.
    """
    root, entry_point, file = _root_of(script, folder or Path.cwd())
    try:
        parse_python(decode_python(read_bytes(script if entry_point == file else Path(root, file))))
    except OSError as error:
        message = f"`{script}` cannot be read: {error.strerror}"
        raise UsageError(message, hint="name a script that you can read", code="CT903") from None
    except SyntaxError as error:
        raise _not_python(script, error) from None

    def read(path: str) -> str | None:
        try:
            return decode_python(read_bytes(Path(root, path)))
        except OSError:
            return None

    return read_syntax(file, read)


def _not_python(script: Path, error: SyntaxError) -> UsageError:
    """Return the error for a script with a syntax error, which may be a notebook's text."""
    message = f"`{script}` is not Python: {error.msg}"
    text = (error.text or "").strip()
    if text:
        message += f": `{shortened(text)}`"
    hint = f"look at line {error.lineno}" if error.lineno else "name a Python script"
    if text.startswith(("%", "!")):
        hint = (
            f"delete line {error.lineno}, which only a notebook has; `jupyter nbconvert "
            "--to script` exports one"
        )
    return UsageError(message, hint=hint, code="CT903")
