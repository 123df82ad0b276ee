"""Reads requirements files of pip. A line is a requirement, a path, an address or an option that
pip has; any other line is a problem.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator
from functools import lru_cache
from urllib.parse import unquote

from packaging.utils import parse_wheel_filename

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.pep508 import (
    NAME,
    Requirement,
    applies,
    normal,
    requirement_in,
    versions_in,
)
from cloudtrain.job.requirements import (
    FIELD,
    HASH,
    Package,
    Read,
    Requirements,
    shown,
    unread,
)

_SHORT = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-f": "--find-links",
    "-i": "--index-url",
    "-C": "--config-settings",
}
"""The short names of options."""

_FLAGS = frozenset(("--no-index", "--pre", "--prefer-binary", "--require-hashes"))
"""The options without a value."""

_INDEX = r"(?i:https?://[^\s/]|file:).*|.*\$\{[A-Z0-9_]+\}.*"

_VALUES = {
    "--requirement": ".+",
    "--constraint": ".+",
    "--editable": ".+",
    "--find-links": ".+",
    "--index-url": _INDEX,
    "--pypi-url": _INDEX,
    "--extra-index-url": _INDEX,
    "--trusted-host": r"\S+",
    "--no-binary": "[^-].*",
    "--only-binary": "[^-].*",
    "--use-feature": "fast-deps|truststore|no-binary-enable-wheel-cache",
    "--hash": HASH,
    "--config-settings": "[^=]*=.*",
    "--config-setting": "[^=]*=.*",
}
"""The options with a value, and its form. The features are those of all versions of pip since
23.2."""

_ALONE = ("--requirement", "--constraint", "--editable", "--find-links")
"""The options beside which pip drops another one of the line."""

_OF_A_PACKAGE = ("--hash", "--config-settings", "--config-setting")
"""The options that stand behind a package, and nowhere else."""

_CONTROLS = "\0-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029"
"""Control characters. At some of them pip begins a new line, in a comment too, and uv does not."""

_REPOSITORY = (
    r"(?i:(?:git|hg|svn|bzr)\+(?:https?|ssh|file)"
    r"|git\+git|hg\+static-http|svn\+svn|bzr\+(?:s?ftp|lp)):"
)
_OF_A_FILE = r"(?i:file:(?!//(?!localhost/)[^/]))[^\s;]+"
_ADDRESS = rf"(?:(?i:https?:|ftp:)|{_REPOSITORY})//[^\s/;]*/[^\s;]*|{_OF_A_FILE}"
_SCHEME = rf"(?i:https?:|ftp:|file:)|{_REPOSITORY}"
_EDITABLE = rf"(?i:file:)|{_REPOSITORY}.*[#&]egg="
_VARIABLE = r"\$\{[A-Z0-9_]+\}"

ARCHIVES = (
    *(".whl", ".zip", ".tar", ".tgz", ".tbz", ".txz", ".tlz"),
    *(".tar.gz", ".tar.bz2", ".tar.xz", ".tar.lz", ".tar.lzma"),
)
"""The endings of the archives that pip installs."""

_LONGEST = 20_000
"""Maximum length of a line. A package with 200 hashes has 15,000 characters."""


_Included = tuple[str, str, tuple[str, ...], bool]
"""A file to read: its path, its text, the files that include it, and whether it holds
constraints."""


class PipFile:
    """What a requirements file holds, with the files that it includes.

    Attributes:
        lines: its packages, and those of its constraints.
        texts: the text of each file that was read.
        folders: the relative paths of `--find-links`, with their lines. pip looks for them beside
            the file, and then in the top folder of the code.
        flags: the options without a value.
        problems: the lines that pip cannot read.
    """

    def __init__(self, file: str, read: Read) -> None:
        """Read the file. `read` returns a file's text, or None if the machine has no such file."""
        self.file = file
        self.lines: list[Requirement] = []
        self.texts: dict[str, str] = {}
        self.folders: list[tuple[str, str, str]] = []
        self.flags: set[str] = set()
        self.problems: list[Problem] = []
        self._read = read
        self._seen: set[tuple[str, bool]] = set()
        self._waiting: list[_Included] = [(file, read(file) or "", (), False)]
        while self._waiting:
            self._add(*self._waiting.pop(0))

    @property
    def asked(self) -> list[Requirement]:
        """The lines that install something."""
        return [line for line in self.lines if not line.is_constraint]

    @property
    def requirements(self) -> Requirements:
        """The packages as a list."""
        packages = []
        for line in self.asked:
            if line.name:
                packages.append(Package(normal(line.name), line.pin, line.hashes, line=line.text))
        return Requirements(self.file, "pip", tuple(packages))

    def _problem(self, place: str, reason: str, hint: str) -> None:
        self.problems.append(Problem(FIELD, f"{place} {reason}", hint, code="CT056"))

    def _add(self, file: str, text: str, above: tuple[str, ...], is_constraint: bool) -> None:
        """Add the lines of a file. `above` are the files that include it."""
        if (file, is_constraint) in self._seen:
            return
        self._seen.add((file, is_constraint))
        self.texts[file] = text
        for number, line in _lines(text):
            place = f"line {number} of `{file}`"
            try:
                self._add_line(line, place, (*above, file), is_constraint)
            except ValueError as error:
                reason = f"is not a requirement: `{shown(line)}`: {shown(str(error))}"
                self._problem(
                    place,
                    reason,
                    "write one package a line, such as `numpy>=1.26`, or remove the line",
                )

    def _add_line(self, text: str, place: str, above: tuple[str, ...], is_constraint: bool) -> None:
        if len(text) > _LONGEST:
            raise ValueError("the line is too long")
        if not text.isprintable() and re.search(f"[{_CONTROLS}]", text):
            raise ValueError("it holds a control character, at which some installers end the line")
        if not text.startswith("-"):
            self._add_package(line_of(text), place, is_constraint)
            return
        options = [*_options(text)]
        for option, value in options:
            if option in _ALONE and len(options) > 1:
                raise ValueError(f"`{option}` stands in a line of its own")
            self._add_option(option, value, place, above, is_constraint)

    def _add_package(self, line: Requirement, place: str, is_constraint: bool) -> None:
        if is_constraint and (line.extras or not line.name):
            raise ValueError("a constraint is a name with versions, without extras")
        self.lines.append(line._replace(place=place, is_constraint=is_constraint))

    def _add_option(
        self, option: str, value: str, place: str, above: tuple[str, ...], is_constraint: bool
    ) -> None:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(above[-1]), value))
        is_here = re.match("(?i:https?:|file:/)", value) is None
        if option in _OF_A_PACKAGE:
            raise ValueError(f"`{option}` stands behind a package")
        if option in _FLAGS:
            self.flags.add(option)
        elif option == "--editable":
            if is_constraint:
                raise ValueError("pip takes no editable package as a constraint")
            self._add_package(_editable(value), place, is_constraint)
        elif option == "--find-links" and is_here and value[0] not in "$/":
            self.folders.append((beside, posixpath.normpath(value), place))
        elif option in ("--requirement", "--constraint") and is_here:
            self._include(beside, place, above, is_constraint or option == "--constraint")

    def _include(self, file: str, place: str, above: tuple[str, ...], is_constraint: bool) -> None:
        text = self._read(file)
        if file in above:
            self._problem(place, f"includes `{file}`, which includes it again", "remove the line")
        elif text is None:
            self._problem(
                place,
                f"includes `{file}`, and there is no such file in the bundle",
                "correct the path, or check that the bundle does not leave the file out",
            )
        else:
            self._waiting.append((file, text, above, is_constraint))


def read_pip(
    file: str, read: Read, extras: Collection[str] = (), groups: Collection[str] = ()
) -> PipFile:
    """Read a requirements file of pip. Raises JobError if pip cannot read it, or if it is to have
    extras or groups."""
    for field, names in (("extras", extras), ("groups", groups)):
        if names:
            raise unread(
                f"a requirements file of pip has no {field}",
                f"remove `{field}`, or name `pyproject.toml` as the requirements",
                field,
            )
    found = PipFile(file, read)
    if found.problems:
        raise JobError(found.problems)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not empty, without its comment. A
    backslash continues a line, and a comment ends it, as in pip."""
    waiting = ""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, raw in enumerate(f"{plain}\n".split("\n"), 1):
        is_comment = raw.lstrip().startswith("#")
        if raw.endswith("\\") and not is_comment:
            waiting += raw.rstrip("\\")
            continue
        line = f"{waiting} {raw}" if is_comment else waiting + raw
        waiting = ""
        if "#" in line:
            line = re.sub(rf"(^|[ \t])#[^{_CONTROLS}]*$", "", line)
        line = line.strip(" \t")
        if line:
            yield number, line


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line by their long names, with their values; a flag has none. Raises
    ValueError for what pip has not."""
    words = iter(shlex.split(text))
    for word in words:
        option, equals, value = word.partition("=")
        if not word.startswith("--"):
            option = _SHORT.get(word[:2], word)
            value = equals = word[2:]
        if option in _FLAGS and not equals:
            yield option, ""
            continue
        form = _VALUES.get(option)
        if form is None:
            raise ValueError("pip has no such option in a file, or it needs another value")
        if not equals:
            value = next(words, "")
        if re.fullmatch(form, value) is None:
            raise ValueError(f"`{option}` cannot be `{value}`")
        yield option, value


@lru_cache(maxsize=1000)
def line_of(text: str) -> Requirement:
    """Read a requirement, a path or an address, with its options. Raises ValueError if it is
    none."""
    # pip ends a requirement at the first word that looks like an option
    wanted, dash, options = f" {text}".partition(" -")
    line = _package_of(wanted.strip())
    hashes = []
    for option, value in _options(dash + options):
        if option == "--hash":
            hashes.append(value)
        elif option not in _OF_A_PACKAGE:
            raise ValueError("an option stands in a line of its own, before the packages")
    return line._replace(text=text, hashes=tuple(hashes))


def _package_of(text: str) -> Requirement:
    """Read a line without its options."""
    is_address = ":" in text and re.match(_SCHEME, text) is not None
    place, _, marker = text.partition("; " if is_address else ";")
    place = place.strip()
    path = re.sub(r"[ \t]*\[[\w.,\t -]+\]$", "", place)
    is_file = "/" in path or path.endswith(ARCHIVES)
    if is_address:
        line = _of_address(place)
    elif place.startswith((".", "/", "~")) or (is_file and "@" not in place):
        if re.search(r"[:\\]", place):
            raise ValueError("it is neither a path in the bundle nor an address")
        line = _of_wheel(path)._replace(path=posixpath.normpath(path))
    elif "${" in place.partition("@")[0]:
        raise ValueError("a variable may stand in an address only")
    else:
        # pip needs no space in front of a semicolon that ends an address, and `packaging` does
        wanted = requirement_in(re.sub(";[ \t]", " ; ", text, count=1))
        if wanted.url:
            _of_address(wanted.url)  # for its errors
        return wanted

    applies(marker, {})  # for its errors
    return line._replace(marker=marker)


def _of_address(url: str) -> Requirement:
    """Return what an address says about its package."""
    if re.fullmatch(rf"{_ADDRESS}|{_VARIABLE}\S*", url) is None:
        raise ValueError("it is not an address, such as `https://HOST/FILE`")
    egg = re.search("[#&]egg=([^&]*)", url)
    if egg is None:
        return _of_wheel(re.sub(r"[?#].*", "", url))._replace(url=url)
    if re.fullmatch(NAME, egg[1]) is None:
        raise ValueError("`#egg=` is followed by a name only; write `NAME[EXTRA] @ ADDRESS`")
    return Requirement(egg[1], url=url)


def _of_wheel(place: str) -> Requirement:
    """Return what the name of a wheel says; nothing for other files."""
    if not place.endswith(".whl"):
        return Requirement()
    name, version, *_ = parse_wheel_filename(posixpath.basename(unquote(place)))
    return Requirement(name, versions_in(f"=={version}"))


def _editable(text: str) -> Requirement:
    """Read the value of `-e`: a folder, or a repository with the name of the package. Only newer
    versions of pip take `NAME @ ADDRESS`."""
    is_folder = ":" not in text and not text.endswith(ARCHIVES)
    if ";" in text or not (is_folder or re.match(_EDITABLE, text)):
        raise ValueError("`-e` needs a folder, or `git+https://HOST/REPOSITORY#egg=NAME`")
    return line_of(posixpath.join(".", text) if is_folder else text)
