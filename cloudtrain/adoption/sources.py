"""Reads the documents that `cloudtrain adopt` accepts, and recognizes them by their content."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any

from cloudtrain.adoption.differences import differences_of, shown_path
from cloudtrain.adoption.launches import TrainingLaunch, cannot_adopt
from cloudtrain.adoption.proof import SECRET, Adoption, add_secrets, adoption_of, parsed
from cloudtrain.documents.document import (
    MAX_BYTES,
    MAX_DIGITS,
    Content,
    Format,
    Unreadable,
    read_bytes,
    read_document,
    read_text,
)
from cloudtrain.errors import JobError, Problem, dotted
from cloudtrain.job.script import job_name_from, read_hyperparameters
from cloudtrain.rules.values import secret_values
from cloudtrain.system.plugins import all_parts
from cloudtrain.targets.adoption import FILL_IN, Draft, Original
from cloudtrain.targets.common.compiling import hyperparameter_argv
from cloudtrain.targets.contract import AdopterMaker
from cloudtrain.targets.registry import target_of

STDIN = "-"

_FORMATS: dict[str, Format] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def originals_of_document(source: str) -> list[Original]:
    """Return the jobs in a file or on stdin: a request, an event, a description or a job of another
    tool."""
    text, folder = text_of(source)
    content = parsed_text(text, source)
    data = content.data
    originals: list[Original] = []
    try:
        for make_adopter in all_parts(AdopterMaker).values():
            originals += make_adopter().originals(data, folder)
    except JobError as error:
        raise JobError([_placed(item, content, source) for item in error.problems]) from None
    if originals:
        return [_with_places(original, content, source) for original in originals]

    name = _name(source)
    if isinstance(data, Mapping) and "name" in data and {"entry_point", "source_dir"} & data.keys():
        raise cannot_adopt(
            f"{name} is already a cloudtrain job file", f"run `cloudtrain plan {source}`"
        )
    raise cannot_adopt(
        f"{name} contains no training job that cloudtrain recognizes",
        "`cloudtrain adopt --help` lists what can be adopted",
    )


def _placed(problem: Problem, content: Content, source: str) -> Problem:
    """Return the problem with its place in the file. A problem of a search's trial may stand below
    `trial`."""
    keys = content.positions.keys
    path = problem.path if problem.path in keys else ("trial", *problem.path)
    place = keys.get(path)
    if place is None:
        return replace(problem, file=source)
    return replace(problem, path=path, file=source, line=place.line, column=place.column)


def _with_places(original: Original, content: Content, source: str) -> Original:
    """Return the original with the place of each part that is lost, and with the keys that the file
    has twice: other tools read only one of them."""
    twice = [item for item in content.problems if item.code == "CT004"]
    lost = {item.dotted: item.message for item in twice} | dict(original.lost)
    places: dict[str, Any] = {dotted(path): at for path, at in content.positions.keys.items()}
    places |= {item.dotted: item for item in twice}
    for name, reason in lost.items():
        # a key that is missing stands in the mapping that lacks it
        place = places.get(name) or places.get(name.rpartition(".")[0])
        if place is not None:
            lost[name] = f"{source}:{place.line}:{place.column}: {reason}"
    return replace(original, lost=lost)


def text_of(source: str) -> tuple[str, str | None]:
    """Return the text of a file and the folder of the file; for stdin, its text and the working
    directory."""
    try:
        if source == STDIN:
            return _text_on_stdin(), str(Path.cwd())
        return read_text(source), os.path.dirname(os.path.abspath(source))
    except Unreadable as error:
        message = f"{_name(source)}: {error.problem.message}"
        raise cannot_adopt(message, error.problem.hint) from None
    except OSError as error:
        message = f"{_name(source)} cannot be read: {error.strerror}"
        raise cannot_adopt(message, "name a plain file that you may read") from None


def _text_on_stdin() -> str:
    """Raises OSError or Unreadable, as reading a file does."""
    if sys.stdin is None:
        raise OSError(None, "it is closed")
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(None, f"it holds more than {MAX_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 text: byte 0x{content[error.start]:02x}"
        raise Unreadable(message, "convert it to UTF-8", code="CT001") from None


def _name(source: str) -> str:
    """Return what messages call the source."""
    return "the text on stdin" if source == STDIN else f"`{source}`"


def parsed_text(text: str, source: str) -> Content:
    """Parse the text of `source` as JSON or YAML. As in other tools, YAML has version 1.1: `yes` is
    true, `010` is 8 and `1e-4` is text."""
    name = _name(source)
    form = _FORMATS.get(Path(source).suffix.lower())
    if form is None:
        is_json = text.lstrip("\ufeff \t\r\n").startswith(("{", "["))
        form = "json" if is_json else "yaml"

    try:
        document = read_document(text, form)
        json.dumps(document.data, ensure_ascii=False).encode()
    except Unreadable as error:
        place = f" (line {error.problem.line})" if error.problem.line else ""
        message = f"{name} is not valid {form.upper()}{place}: {error.problem.message}"
        raise cannot_adopt(message, error.problem.hint or "correct this line") from None
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can hold
        half = error.object[error.start].encode("unicode_escape").decode()
        message = f"{name} is not valid {form.upper()}: `{half}` is half of a character"
        raise cannot_adopt(message, "write the character itself") from None
    if form == "json":
        return document

    # cloudtrain's own reader, which has found the mistakes, reads YAML 1.2
    import yaml

    try:
        if _LONG_CLOCK.search(text):
            raise ValueError("a number in base 60 has too many digits")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return document._replace(data=_as_json(yaml.load(text, loader)))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        message = f"{name} is not valid YAML: {error}"
        raise cannot_adopt(message, "correct this line") from None


_LONG_CLOCK = re.compile(r"(?::[0-5]?[0-9]){150}")
"""YAML 1.1 reads `1:30` as 90, in a time that grows with the square of the length."""


def _as_json(value: Any) -> Any:
    """Convert YAML's values to JSON's: keys and dates become strings."""
    if isinstance(value, Mapping):
        return {_as_text(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, int) and value.bit_length() > 3 * MAX_DIGITS:
        raise ValueError("a number has too many digits")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("a number is infinite, or none")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return Respelled(value)


class Respelled(str):
    """The text of a key or value that YAML reads as another type: a date, or a key that is a
    number. Tools that need a text refuse it."""


def _as_text(key: object) -> str:
    return key if isinstance(key, str) else Respelled(key)


# The code cells of a notebook as plain Python, without IPython's magics and shell lines.

_MOST = 64 << 20
"""The most bytes of a notebook."""

_SHELL = re.compile(r"\s*(?:\w+\s*=\s*)?[!%]")
"""The beginning of a shell line or a magic, whose result may be assigned."""

_AROUND_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cell magics after which the cell's other lines are Python."""


def cells_of(notebook: Path) -> list[str]:
    """Return the code cells of a notebook as Python. `%%writefile`, and shell commands that only
    write files, become code that writes the files. Other magics and shell lines are left out; a
    cell of another language becomes empty."""
    return [_python_of(cell) for cell in _code_cells(notebook)]


def not_run(notebook: Path) -> tuple[str, ...]:
    """Return the cells of a notebook that `cells_of` leaves out or that lose a shell line, as
    `cell 7`. Lines that only install packages or show something do not count."""
    names = []
    for number, cell in enumerate(_code_cells(notebook), 1):
        is_left_out = bool(cell.strip()) and not _python_of(cell)
        for line in _joined(cell.splitlines()):
            command = line.lstrip()
            if command.startswith("!") and not _HARMLESS.match(command):
                is_left_out |= _writes_of(command[1:]) is None
        if is_left_out:
            names.append(f"cell {number}")
    return tuple(names)


_HARMLESS = re.compile(
    r"!\s*(pip3?|conda|mamba|uv|apt|apt-get|ls|cat|head|tail|less|tree|pwd|which|nvidia-smi|df|du"
    r"|wc|pygmentize)?(?!\S)"
)
"""Shell lines that only install packages or show something."""


def _code_cells(notebook: Path) -> list[str]:
    try:
        data = json.loads(read_bytes(notebook, _MOST))
        cells = [cell for cell in data["cells"] if cell.get("cell_type") == "code"]
        return ["".join(cell.get("source", "")) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, Unreadable):
        raise cannot_adopt(f"`{notebook}` is not a notebook", "name an `.ipynb` file") from None


_WRITES = re.compile(
    r"%%(?:writefile|file)[ \t]+(?P<append>-a[ \t]+)?(?P<name>[^\n]+?)[ \t]*\n(?P<text>.*)",
    re.DOTALL,
)

_BASH = re.compile(r"%%(?:bash|sh|script (?:ba)?sh)[ \t]*\n(?P<script>.*)", re.DOTALL)


def _python_of(cell: str) -> str:
    """Return a cell as Python; empty for a cell of another language."""
    match = _WRITES.fullmatch(cell.lstrip())
    if match is not None:
        # IPython replaces `$folder` and `{folder}`
        name = re.sub(r"\$(\w+)", r"{\1}", match["name"].strip("\"'"))
        mode = "a" if match["append"] else "w"
        return f"open(f{name!r}, {mode!r}, encoding='utf-8').write({match['text']!r})"
    match = _BASH.fullmatch(cell.lstrip())
    if match is not None:
        return _writes_of(match["script"]) or ""

    lines = cell.strip().splitlines()
    while lines and lines[0].startswith("%%"):
        if lines[0].split()[0] not in _AROUND_PYTHON:
            return ""
        lines = lines[1:]
    return "\n".join(map(_python_line, _joined(lines)))


_WORD = r"""(?:[^\n'"$`\\;&|<>()]|'[^'\n]*'|"(?:[^"$`\\\n]|\\[nt])*"|>>?|\|[ \t]*tee(?!\S))"""
"""A character, a text in quotes, a redirection to a file or `| tee`, in which a shell replaces
nothing."""

_ONLY_WRITES = re.compile(
    rf"(?:[ \t]*(?:#.*|set -e\w*(?: pipefail)?|"
    rf"(?:mkdir|touch|echo|printf|cat|tee)(?![^\s>]){_WORD}*(?:<<[ \t]*(?:"
    rf"(?P<quote>['\"])(?P<end>\w+)(?P=quote)(?=[ \t\n>]){_WORD}*\n"
    rf"(?:(?!(?P=end)\n).*\n)*(?P=end)(?=\n)|"
    rf"(?P<bare>\w+)(?=[ \t\n>]){_WORD}*\n"
    rf"(?:(?!(?P=bare)\n)[^\n$`\\]*\n)*(?P=bare)(?=\n)))?)?\n)*"
)
"""Matches a shell script that makes folders and writes texts that do not depend on the shell, and
does nothing else."""


def _writes_of(script: str) -> str | None:
    """Return a line of Python that runs a shell script which only writes files; None for any other
    script."""
    if _ONLY_WRITES.fullmatch(f"{script}\n") is None:
        return None
    return f"__import__('subprocess').run(['bash', '-ec', {script!r}], check=True)"


def _joined(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a cell, with those of one shell command as one line."""
    command = ""
    for line in lines:
        if command or _SHELL.match(line):
            command += line
            if line.endswith("\\"):
                continue
            yield command
            command = ""
        else:
            yield line


def _python_line(line: str) -> str:
    """Return a line as Python: `pass` for a magic and a shell line, and an empty list for their
    results."""
    start = line.lstrip()
    indent = line[: len(line) - len(start)]
    if start.startswith("!"):
        # IPython would replace `{name}`
        return indent + (("{" not in start and _writes_of(start[1:])) or "pass")
    commands = ("%", "?", "pip install ", "conda install ")
    if start.startswith(commands) or start.rstrip().endswith("?"):
        return f"{indent}pass"

    name, _, rest = start.partition("=")
    if name.strip().isidentifier() and rest.lstrip().startswith(("!", "%")):
        return f"{indent}{name}= []"
    return line


# Converts a launch line to a job, and compares the machines, processes, script and arguments of
# both.


def adopt_launch(launch: TrainingLaunch, kind: str, place: Path) -> Adoption:
    """Convert a launch line to a job, and compare the two: machines, processes, script, arguments.
    `kind` describes the source in the job file's first comment. `place` is the folder that the job
    file will be in."""
    secrets = _take_secrets_out(launch, place)
    # again, without the secrets
    draft = _draft(launch, place)

    of_launch = {
        "words": _words(launch),
        "instances": launch.instances,
        "processes": launch.processes if launch.distribution else None,
        "variables": launch.variables,
        "max_runtime": launch.max_runtime,
    }
    job = parsed(draft)
    words = shlex.split(job.command or "")
    if job.entry_point is not None:
        words = ["python", job.entry_point, *hyperparameter_argv(job.hyperparameters)]
    of_job = {
        "words": words,
        "instances": job.resources.instance_count,
        "processes": getattr(job.distribution, "processes_per_instance", None),
        "variables": dict(job.environment.variables),
        "max_runtime": job.max_runtime,
    }
    why = "a job passes arguments as `--name value`, sorted by name"
    differences = differences_of(of_launch, of_job, lambda _: why, launch.lost)
    add_secrets(draft.job, secrets, target_of(launch.target))
    return adoption_of(launch.target, kind, draft, differences, [f"Adopted from {kind}."])


def _take_secrets_out(launch: TrainingLaunch, place: Path) -> list[str]:
    """Take the secrets of the job, which is drafted from the launch, out of the launch. Return the
    names of the variables that held some."""
    variables = []
    searched = None
    # a command may hold several, of which each search finds one
    while searched != launch.program:
        searched = launch.program
        for secret in secret_values(parsed(_draft(launch, place))):
            launch.lost[shown_path(secret.path)] = SECRET
            if secret.path[:2] == ("environment", "variables"):
                del launch.variables[str(secret.path[2])]
                variables.append(str(secret.path[2]))
            launch.program = [word.replace(secret.value, FILL_IN) for word in launch.program]
    return variables


def _source_dir(launch: TrainingLaunch, place: Path) -> str:
    """Return the folder of the code, relative to the job file. A launch line and a batch script
    start in the folder where the user types them, which may be another folder than the script's."""
    source = launch.source_dir or "."
    is_here = os.path.exists(os.path.join(source, launch.program[0]))
    start = "." if is_here else launch.folder
    path = os.path.relpath(os.path.join(start, source), place)
    # where the path leads to the same folder, it stays as the user has written it
    if os.path.isabs(source) or path == os.path.normpath(source):
        return source
    return path


def _draft(launch: TrainingLaunch, place: Path) -> Draft:
    """Return the job that a launch line starts, for a job file in the folder `place`."""
    program, *arguments = launch.program
    stem = program.rpartition(".")[2] if launch.is_module else PurePosixPath(program).stem
    job: dict[str, Any] = {
        "name": job_name_from(launch.name or stem),
        "source_dir": _source_dir(launch, place),
    }

    hyperparameters = None
    is_script = not launch.is_module and not launch.is_command
    # a script outside of `source_dir` can only be a word of a command
    if is_script and not os.path.isabs(program):
        hyperparameters = read_hyperparameters(arguments)
    # another order or another spelling of the arguments may matter to the script
    if hyperparameters is None or [*hyperparameter_argv(hyperparameters)] != arguments:
        job["command"] = shlex.join(_words(launch))
    else:
        job["entry_point"] = program
        if hyperparameters:
            job["hyperparameters"] = hyperparameters

    if launch.distribution:
        job["distribution"] = dict(launch.distribution)
        if launch.processes:
            job["distribution"]["processes_per_instance"] = launch.processes

    resources: dict[str, Any] = {"instance_count": launch.instances}
    if launch.gpus:
        resources["gpus_per_instance"] = launch.gpus
    job["resources"] = resources

    environment: dict[str, Any] = {"variables": launch.variables, "image": launch.image}
    environment = {name: value for name, value in environment.items() if value}
    if environment:
        job["environment"] = environment

    if launch.max_runtime:
        job["max_runtime"] = launch.max_runtime
    return Draft(job, launch.settings, {}, settings_head=launch.settings_head)


def _words(launch: TrainingLaunch) -> list[str]:
    """Return the command line of one process, without its launcher."""
    words = [] if launch.is_command else ["python"]
    if launch.is_module:
        words.append("-m")
    return words + launch.program
