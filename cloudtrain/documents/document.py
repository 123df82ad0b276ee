"""The content of a YAML, TOML or JSON text: data, positions of the values, and mistakes found
before validation."""

from __future__ import annotations

import ast
import os
import stat
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cloudtrain.errors import Problem, SettingsError
from cloudtrain.errors import ValuePath as ValuePath
from cloudtrain.system.files import require_trust

# Size limits of files that users write. A larger file is a mistake, and reading it would take
# minutes or fill the memory.

MAX_BYTES = 4 * 2**20
"""The most bytes of a file. The largest useful files are requirements files with hashes, of some
hundred kilobytes."""

MAX_DEPTH = 100
"""The most levels of nesting. A job has about five."""

MAX_VALUES = 50_000
"""The most values of a document, with aliases counted each time. A job has tens of values, a file
of nested aliases billions."""

MAX_FILES = 100_000
"""The most files of a source folder, ignored files included. Azure ML allows fewer, and
`source_dir: /` has more."""

MAX_DIGITS = 3500
"""The most digits of an integer. Python reads and writes at most 4300 decimal digits; 3500 of base
16 are 4215."""


Format = Literal["yaml", "toml", "json"]


class Place(NamedTuple):
    """A line and a column, both counted from 1 in characters."""

    line: int
    column: int


class Positions(NamedTuple):
    """The position of each key and value, and the spelling of each plain value (`2.10`, without
    quotes)."""

    keys: Mapping[ValuePath, Place] = {}
    values: Mapping[ValuePath, Place] = {}
    texts: Mapping[ValuePath, str] = {}

    def of(self, path: ValuePath, *, key: bool = False) -> Place | None:
        """Return the position of the value at a path, or with `key` the position of its key. For a
        missing value, return the position of its nearest parent; None if that is unknown too."""
        place = self.keys.get(path) if key else None
        place = place or self.values.get(path)
        while place is None and path:
            path = path[:-1]
            place = self.keys.get(path) or self.values.get(path)
        return place


class Content(NamedTuple):
    """The content of a text. `data` holds mappings, lists and plain values. `problems` are mistakes
    that do not prevent reading, such as a duplicate key."""

    data: Any
    positions: Positions
    problems: tuple[Problem, ...] = ()


class Notes:
    """Collects positions and problems while a text is read."""

    def __init__(self) -> None:
        self.keys: dict[ValuePath, Place] = {}
        self.values: dict[ValuePath, Place] = {}
        self.texts: dict[ValuePath, str] = {}
        self.problems: list[Problem] = []

    def document(self, data: object) -> Content:
        """Return a document with `data` and the collected positions and problems."""
        positions = Positions(self.keys, self.values, self.texts)
        return Content(data, positions, tuple(self.problems))

    def problem(
        self, path: ValuePath, place: Place, message: str, hint: str, *, code: str = "CT005"
    ) -> None:
        """Record a problem. Reading continues."""
        problem = Problem(path, message, hint, line=place.line, column=place.column, code=code)
        self.problems.append(problem)

    def duplicate(self, path: ValuePath, place: Place) -> None:
        """Record that the key at `path` appears again, at `place`."""
        first = self.keys[path]
        message = f"`{path[-1]}` appears twice; the first is on line {first.line}"
        self.problem(path, place, message, "remove one of them", code="CT004")


class Unreadable(Exception):
    """The text does not conform to its format and cannot be read."""

    def __init__(
        self, message: str, hint: str, place: Place | None = None, *, code: str = "CT002"
    ) -> None:
        super().__init__(message)
        line, column = place or (None, None)
        self.problem: Problem = Problem((), message, hint, line=line, column=column, code=code)


def too_large(place: Place | None = None) -> Unreadable:
    """Return the error for a document with too many values."""
    return Unreadable(
        "the text has more values than cloudtrain reads",
        "put large data into a file in `source_dir`, and pass its name",
        place,
        code="CT006",
    )


def too_many_digits(place: Place | None) -> Unreadable:
    """Return the error for a number with more digits than Python reads and writes."""
    return Unreadable(
        "a number has too many digits", "write it as text, in quotes", place, code="CT014"
    )


def too_deep(place: Place | None = None) -> Unreadable:
    """Return the error for a document with too many levels."""
    return Unreadable(
        "the text is nested too deeply",
        "use fewer levels: a job has about five",
        place,
        code="CT006",
    )


def place_at(text: str, offset: int) -> Place:
    """Return the line and column of the character at `offset`."""
    line = text.count("\n", 0, offset) + 1
    return Place(line, offset - text.rfind("\n", 0, offset))


BYTE_ORDER_MARK = "\ufeff"
"""Some editors write it at the beginning of a file."""

_MODULES: dict[Format, str] = {
    "yaml": "cloudtrain.documents.yaml_text",
    "toml": "cloudtrain.documents.toml_json",
    "json": "cloudtrain.documents.toml_json",
}
"""Maps a format to the module with its reader, such as `read_yaml`."""

_SIGNS: dict[Format, tuple[str, ...]] = {
    "json": (",", "[", "{"),
    "toml": ("=", ",", "[", "."),
    "yaml": (",", ": ", ":\n", "[", "{", "- ", "-\n", "? "),
}
"""Every value except the first needs one of these signs. TOML needs the dot for its keys
(`a.b`)."""


def read_document(text: str, format: Format) -> Content:
    """Read a text in the given format. The reader of a format is imported on first use.

    Raises:
        Unreadable: the text is not valid in that format, or it is too large or too deep.
    """
    # Parsing a large text takes long, so the values are not counted but estimated before it. The
    # text cannot have more values than signs, except for one.
    most_values = 0
    for sign in _SIGNS[format]:
        most_values += text.count(sign)
    if most_values > MAX_VALUES:
        raise too_large()

    module = import_module(_MODULES[format])
    reader: Callable[[str], Content] = getattr(module, f"read_{format}")
    try:
        return reader(text.removeprefix(BYTE_ORDER_MARK))
    except RecursionError:
        raise too_deep() from None


# Reading of files that the user named. Only plain files of limited size are read, because a pipe
# might never end.

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


Accept = Callable[[Path, os.stat_result], None]
"""A function that gets an open file's path and status, and raises if the file must not be read."""


def read_bytes(path: str | Path, most: int = MAX_BYTES, accept: Accept | None = None) -> bytes:
    """Return the content of a plain file of at most `most` bytes. Pipes and devices are refused,
    because reading them could block.

    `accept` is called with the path and the status of the opened file, and raises if the file must
    not be read.

    Raises:
        OSError: the file cannot be read; `strerror` holds the reason.
    """
    # `os.stat` instead of `Path.stat`: most paths are plain strings.
    _check(os.stat(path), path, most)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags)

    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        _check(status, path, most)  # another file may have the name by now
        if accept is not None:
            accept(Path(path), status)
        content = file.read(most + 1)

    if content is None:  # the file was opened so that a read never waits
        raise OSError(None, "reading it has to wait", str(path))
    if len(content) > most:  # a file in /proc reports that it is empty
        raise _too_large(path, most)
    return content


def read_text(path: str | Path, accept: Accept | None = None) -> str:
    """Return the text of a plain file, without a byte order mark. `read_bytes` describes `accept`.

    Raises:
        OSError: the file cannot be read; `strerror` holds the reason.
        Unreadable: the file is not UTF-8.
    """
    content = read_bytes(path, accept=accept)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = place_at(before, len(before))
        message = f"the file is not UTF-8 text: byte 0x{content[error.start]:02x}"
        raise Unreadable(message, "save it as UTF-8", place, code="CT001") from None


def read_trusted(file: Path) -> bytes:
    """Return the content of a settings file if nobody else can have written it.

    Raises:
        SettingsError: another user may have written the file, or it cannot be read.
    """
    try:
        return read_bytes(file, accept=require_trust)
    except OSError as error:
        raise _unread(file, error, "CT911") from None


def read_trusted_toml(file: Path, *, code: str) -> Content:
    """Return the content of a TOML file, as `read_trusted` does. `code` is the code of the error if
    it cannot be read."""
    try:
        return read_document(read_text(file, require_trust), "toml")
    except Unreadable as error:
        raise SettingsError.of([replace(error.problem, file=str(file))]) from None
    except OSError as error:
        raise _unread(file, error, code) from None


def _unread(file: Path, error: OSError, code: str) -> SettingsError:
    message = f"`{file}` cannot be read: {error.strerror}"
    return SettingsError(
        message, hint="make it a plain file that you may read, or remove it", code=code
    )


def _check(status: os.stat_result, path: str | Path, most: int) -> None:
    """Raise OSError unless the file is plain and has at most `most` bytes."""
    mode = stat.S_IFMT(status.st_mode)
    if mode != stat.S_IFREG:
        kind = KINDS.get(mode, "something else")
        raise OSError(None, f"it is {kind}, not a plain file", str(path))
    if status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> OSError:
    return OSError(None, f"it is larger than {most >> 20} MiB", str(path))


# Smaller helpers: TOML and Python source, and hints for the messages of parsers.


def load_toml(text: str) -> dict[str, Any]:
    """Return the values of TOML text, without their positions."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data: dict[str, object] = tomllib.loads(text)
    return data


def load_table(module_file: str, path: str) -> dict[str, Any]:
    """Return the values of a TOML file. `path` is relative to the folder of the module."""
    return load_toml(Path(module_file).parent.joinpath(path).read_text("utf-8"))


def parser_hint(language: str, message: str, default: str) -> str:
    """Return the hint for a message of the parser of a language, or the default."""
    hints: dict[str, str] = load_table(__file__, "hints.toml")[language]
    for part, hint in hints.items():
        if part in message:
            return hint
    return default


def decode_python(content: bytes) -> str:
    """Return the text of Python source, decoded as Python does it: by its byte order mark, by a
    comment such as `# coding: latin-1` in its first two lines, or as UTF-8.

    Raises:
        SyntaxError: Python cannot decode it. `lineno` is the line of the comment or of the wrong
            byte.
    """
    from tokenize import detect_encoding  # costs start-up time

    first = content.partition(b"\n")[0]
    line = 1 if b"coding" in first or not first.isascii() else 2
    try:
        encoding, _ = detect_encoding(BytesIO(content).readline)
        text = content.decode(encoding)
        reason = "it has a zero byte"
        at = text.find("\0")
        if at < 0:
            return text
        line = text.count("\n", 0, at) + 1
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reason = f"byte 0x{content[error.start]:02x} is not {error.encoding}"
    # such as `rot13`, which is no encoding of text, or `undefined`
    except (SyntaxError, LookupError, UnicodeError) as error:
        reason = str(error)
    raise SyntaxError(reason, (None, line, None, None))


def parse_python(source: str | bytes) -> ast.Module:
    """Parse Python source without printing Python's warnings about it.

    Raises:
        SyntaxError: the source is not Python, or is nested too deeply for Python's parser.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (RecursionError, MemoryError):  # the parser's stack is full
        raise SyntaxError("it is nested too deeply") from None
    except ValueError as error:  # a zero byte
        raise SyntaxError(str(error)) from None
