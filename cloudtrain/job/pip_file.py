"""Reads requirements files of pip. A line is a requirement, a path, an address or an option that
pip has; any other line is a problem.

https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator

from cloudtrain.errors import JobError, Problem
from cloudtrain.job.pep508 import (
    NAME,
    Requirement,
    check_marker,
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

_WITH_VALUE = (
    r"(?P<short>-[rcefi])[ \t]*=?[ \t]*(?P<first>\S.*)"
    r"|(?P<long>--(?:requirement|constraint|editable|find-links|index-url|pypi-url|extra-index-url"
    r"|trusted-host|no-binary|only-binary|use-feature))[ \t=][ \t]*(?P<second>\S.*)"
)
_FLAGS = frozenset(("--no-index", "--pre", "--prefer-binary", "--require-hashes"))
"""The options that may stand in a line of their own: those with a value, and those without."""

_OPTIONS = (
    r"(?:[ \t]*(?:--hash[= ][ \t]*(?P<hash>\S+)|(?:--config-settings?|-C|--global-option)[= ]\S+)"
    r"(?!\S))*"
)
"""The options of a requirement."""

_CONTROL = "[\0-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029]"
"""Control characters. At some of them pip begins a new line, and uv does not."""

_ADDRESS = r"(?i:(?:(?:git|hg|svn|bzr)\+)?[a-z]+://[^\s/]*/\S*|file:\S+)"
_PATH = r"(?:\.{0,2}/|~|\.{1,2}(?:\[|$)).*|[^@]*/[^@]*|[^\s@]+\.(?:whl|zip|tar\.\w+|tgz)"
WHEEL = (
    r"(?:.*/)?(?P<name>[^/-]+)-(?P<version>[^/-]+)(?:-[0-9][^/-]*)?"
    r"-(?P<pythons>[^/-]+)-(?P<abis>[^/-]+)-(?P<platforms>[^/-]+)\.whl"
)

_LONGEST = 20_000
"""Maximum length of a line. A package with 200 hashes has 15,000 characters."""

_DEEPEST = 50
"""Maximum depth of files that include others. Few projects have three levels."""


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
        self._add(file, (), is_constraint=False)

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

    def _add(self, file: str, above: tuple[str, ...], *, is_constraint: bool) -> None:
        """Add the lines of a file. `above` are the files that include it."""
        if (file, is_constraint) in self._seen:
            return
        self._seen.add((file, is_constraint))
        self.texts[file] = self._read(file) or ""
        for number, text in _lines(self.texts[file]):
            place = f"line {number} of `{file}`"
            try:
                self._add_line(text, place, (*above, file), is_constraint)
            except ValueError as error:
                reason = f"is not a requirement: `{shown(text)}`: {shown(str(error))}"
                hint = "write one package a line, such as `numpy>=1.26`, or remove the line"
                self._problem(place, reason, hint)

    def _add_line(self, text: str, place: str, above: tuple[str, ...], is_constraint: bool) -> None:
        if len(text) > _LONGEST:
            raise ValueError("the line is too long")
        if not text.isprintable() and re.search(_CONTROL, text):
            raise ValueError("it holds a control character, at which some installers end the line")
        if not text.startswith("-"):
            line = line_of(text)
            self.lines.append(line._replace(place=place, is_constraint=is_constraint))
            return
        for part in re.split(r"[ \t]+(?=-)", text):
            match = re.fullmatch(_WITH_VALUE, part)
            if part in _FLAGS:
                self.flags.add(part)
            elif match is None:
                raise ValueError("pip has no such option in a file, or it needs another value")
            else:
                option = match["short"] or match["long"]
                value = match["first"] or match["second"]
                self._add_option(option, value, place, above, is_constraint)

    def _add_option(
        self, option: str, text: str, place: str, above: tuple[str, ...], is_constraint: bool
    ) -> None:
        """Add an option with a value, which may be in quotes."""
        try:
            (value,) = shlex.split(text)
        except ValueError:
            raise ValueError(f"`{option}` needs one value") from None
        kind = option.lstrip("-")
        is_known = "$" not in value and "://" not in value
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(above[-1]), value))
        if kind in ("e", "editable"):
            line = line_of(value if re.search(r"[/.:]", value) else f"./{value}")
            self.lines.append(line._replace(place=place))
        elif kind in ("i", "index-url", "pypi-url", "extra-index-url"):
            if "$" not in value and re.match(_ADDRESS, f"{value}/") is None:
                raise ValueError(f"`{option}` needs an address, such as `https://HOST/simple`")
        elif kind in ("f", "find-links") and is_known and not value.startswith("/"):
            self.folders.append((beside, posixpath.normpath(value), place))
        elif kind in ("r", "requirement", "c", "constraint") and is_known:
            if beside in above or len(above) > _DEEPEST:
                reason = f"includes `{beside}`, which includes it again"
                self._problem(place, reason, "remove the line")
            elif self._read(beside) is None:
                hint = "correct the path, or check that the bundle does not leave the file out"
                reason = f"includes `{beside}`, and there is no such file in the bundle"
                self._problem(place, reason, hint)
            else:
                self._add(beside, above, is_constraint=is_constraint or kind[0] == "c")


def read_pip(
    file: str, read: Read, extras: Collection[str] = (), groups: Collection[str] = ()
) -> PipFile:
    """Read a requirements file of pip. Raises JobError if pip cannot read it, or if it is to have
    extras or groups."""
    for field, names in (("extras", extras), ("groups", groups)):
        if names:
            hint = f"remove `{field}`, or name `pyproject.toml` as the requirements"
            raise unread(f"a requirements file of pip has no {field}", hint, field)
    found = PipFile(file, read)
    if found.problems:
        raise JobError(found.problems)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not empty, without its comment. A
    backslash continues a line, and a comment ends it, as in pip."""
    waiting = ""
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", f"{text}\n"), 1):
        is_comment = raw.lstrip().startswith("#")
        if raw.endswith("\\") and not is_comment:
            waiting += raw.rstrip("\\")
            continue
        line = waiting if is_comment else waiting + raw
        waiting = ""
        line = re.sub(r"(^|[ \t])#.*", "", line)
        line = re.sub(r"[ \t]+", " ", line).strip(" ")
        if line:
            yield number, line


def line_of(text: str) -> Requirement:
    """Read a requirement, a path or an address, with its options. Raises ValueError if it is
    none."""
    # pip ends a requirement at the first word that looks like an option
    wanted, *rest = re.split(r"[ \t]+(?=-)", text, maxsplit=1)
    options = "".join(rest)
    if options and re.fullmatch(_OPTIONS, options) is None:
        raise ValueError("an option stands in a line of its own, before the packages")
    hashes = tuple(re.findall(r"--hash[= ][ \t]*(\S+)", options))
    for digest in hashes:
        if re.fullmatch(HASH, digest) is None:
            raise ValueError(f"`{digest}` is not a hash, such as `sha256:` and 64 digits")
    return _package_of(wanted)._replace(text=text, hashes=hashes)


def _package_of(text: str) -> Requirement:
    """Read a line without its options."""
    place, *rest = re.split(r"[ \t]+;|;[ \t]+", text, maxsplit=1)
    marker = "".join(rest)
    if "${" in place or (":" in place and re.fullmatch(_ADDRESS, place)):
        check_marker(marker)
        return Requirement(marker=marker, url=place)
    if re.fullmatch(_PATH, place) is None:
        wanted = requirement_in(text)
        if wanted.url and not re.fullmatch(_ADDRESS, wanted.url) and "${" not in wanted.url:
            raise ValueError("the text after `@` is not an address, such as `https://HOST/FILE`")
        return wanted
    if re.search(r"[:\\]", place):
        raise ValueError("it is neither a path in the bundle nor an address")

    check_marker(marker)
    path = posixpath.normpath(re.sub(r"[ \t]*\[[\w.,\t -]*\]$", "", place))
    if not path.endswith(".whl"):
        return Requirement(marker=marker, path=path)
    wheel = re.fullmatch(WHEEL, path)
    if wheel is None or re.fullmatch(NAME, wheel["name"]) is None:
        raise ValueError("a wheel is called `NAME-VERSION-PYTHON-ABI-PLATFORM.whl`")
    versions = versions_in(f"=={wheel['version']}")
    return Requirement(wheel["name"], versions, marker=marker, path=path)
