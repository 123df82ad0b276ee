"""Reads the file that `environment.requirements` names: which packages a job installs, and in which
versions.

The content decides the form, not the file's name:

    pip         lines of pip, with the files that they include
    uv          a uv.lock, or a pyproject.toml with its uv.lock, which may be that of the
                workspace's root
    script      a Python file with a block of dependencies (PEP 723), with or without `SCRIPT.lock`
    pylock      a pylock.toml (PEP 751)

A lock becomes the list for one Python and platform. Reading is pure: it starts no process, uses no
network, and resolves nothing. `job.locks` reads all forms but pip's, because it imports
`packaging`.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from cloudtrain.errors import JobError, Problem

Read = Callable[[str], "str | None"]
"""Returns the text of the file at a path relative to `source_dir`; None if there is none. The path
may begin with `..`."""

FIELD = ("environment", "requirements")

WRITTEN = (
    "# Written by cloudtrain from the job's requirements. Each line is one package for "
    "one Python.\n"
)
"""The first line of a generated list."""

_COMPLETE = "# Complete: installed without looking for dependencies.\n"
_EXPECTS = "# Expects torch {}\n"
"""Lines below it, which `cloudtrain.runtime.install` reads: whether the list holds the dependencies
of its packages too, and the version of PyTorch that it was locked with and that the machine has."""

PYPI = "https://pypi.org/simple"


class Package(NamedTuple):
    """One package of a list. `version` is None if the machine decides it."""

    name: str
    version: str | None
    hashes: tuple[str, ...] = ()
    registry: str = ""
    """The address of the index; empty for PyPI, or if the file names none for this package."""
    url: str = ""
    """Where the package comes from instead of an index: `git+https://HOST/NAME@COMMIT`, an archive,
    or `./FILE`."""
    line: str = ""
    """The line of a pip file."""


class Requirements(NamedTuple):
    """What a job installs, for one Python and platform.

    Attributes:
        file: the file that decides the versions, such as `uv.lock`.
        folders: the packages that are folders, by name, relative to `source_dir`; empty if the lock
            installs none.
        brought: the packages that the image brings and the lock decides too, such as torch. They
            are not in `packages`.
        wheels: the wheels of `folders`, by path in the bundle. With them, the folders are in
            `packages` too.
    """

    file: str
    form: str
    packages: tuple[Package, ...]
    folders: Mapping[str, str] = {}
    brought: Mapping[str, str] = {}
    wheels: Mapping[str, bytes] = {}

    @property
    def undecided(self) -> int:
        """The number of packages whose versions the machine decides."""
        return sum(package.version is None for package in self.packages)

    @property
    def is_closed(self) -> bool:
        """Whether the list holds the dependencies of its packages too."""
        return self.form in ("uv", "pylock") or all(package.hashes for package in self.packages)

    @property
    def is_hashed(self) -> bool:
        """Whether every package has hashes. pip refuses a list in which only some have."""
        return all(package.hashes for package in self.packages)

    @property
    def text(self) -> str:
        """The list as a requirements file. Equal packages give equal bytes, in any order and from
        any file."""
        head = WRITTEN
        if self.form != "pip" and self.is_closed:
            head += _COMPLETE
        if self.brought.get("torch"):
            head += _EXPECTS.format(self.brought["torch"])
        is_hashed = self.is_hashed
        lines = sorted(self._line(package, is_hashed) for package in self.packages)
        return head + "\n".join([*self._index_options(), *lines, ""])

    def _index_options(self) -> list[str]:
        """Return the options that make pip search the indexes of all packages."""
        indexes = set()
        for package in self.packages:
            if not package.url and not package.line:
                indexes.add(package.registry or PYPI)
        others = sorted(indexes - {PYPI})
        options = []
        if others and PYPI not in indexes:  # one of them replaces PyPI
            options.append(f"--index-url {others.pop(0)}")
        return options + [f"--extra-index-url {index}" for index in others]

    @staticmethod
    def _line(package: Package, is_hashed: bool) -> str:
        """Return the line of a package. `is_hashed`: every package of the list has hashes."""
        if package.line:
            return package.line
        # Where pip cannot check the hash, a comment holds it, so that it counts for the digest.
        if package.url.startswith("./"):
            mark = "--hash=" if is_hashed else " # "
            return f"{package.url} {mark}{' --hash='.join(package.hashes)}"
        line = f"{package.name}=={package.version}"
        if package.url:
            line = f"{package.name} @ {package.url}"
        if is_hashed:
            for digest in package.hashes:
                line += f" --hash={digest}"
        return line

    @property
    def digest(self) -> str:
        """Hash of the content. Comments, the file's name and the order do not count."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Platform(NamedTuple):
    """The Python that installs the packages: its version, such as `3.12`, and the values of
    environment markers that differ from Linux on x86-64."""

    python: str
    markers: Mapping[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The values of all environment markers."""
        full = self.python
        if full.count(".") < 2:
            full += ".0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": ".".join(full.split(".")[:2]),
            "sys_platform": "linux",
            **self.markers,
        }

    def __str__(self) -> str:
        environment = self.environment
        machine = environment["platform_machine"].replace("_", "-")
        python = environment["python_version"]
        return f"Python {python} on {environment['platform_system']} {machine}"


def form_of(file: str, text: str) -> str:
    """Return the form of a requirements file: `pip`, `uv`, `project`, `script` or `pylock`.

    Raises:
        JobError: the file is of another tool, which cloudtrain does not read.
    """
    name = posixpath.basename(file)
    if name == "poetry.lock" or "generated by Poetry" in text[:200]:
        raise unread(f"`{file}` is a lock of Poetry, which cloudtrain does not read", POETRY)
    if name in ("Pipfile", "Pipfile.lock") or re.search(r"(?m)^\[dev-packages\]", text):
        hint = "run `pipenv requirements > requirements.txt`, and name that file"
        raise unread(f"`{file}` is a file of Pipenv, which cloudtrain does not read", hint)
    if name in ("setup.py", "setup.cfg"):
        hint = "list them in `requirements.txt`, and name that file"
        raise unread(f"`{file}` is not a list of packages", hint)
    if name.endswith(".py"):
        if BLOCK.search(text) is None:
            hint = (
                "add a block `# /// script` with `dependencies` (PEP 723), or name a "
                "requirements file"
            )
            raise unread(f"`{file}` has no block with its dependencies", hint)
        return "script"
    if re.search(r"(?m)^(?:dependencies|channels):\s*$", text):
        hint = (
            f"on Azure ML write `conda_file: {file}`; elsewhere list the packages in a "
            "requirements file"
        )
        raise unread(f"`{file}` is a conda file", hint)
    for form, patterns in _FORMS.items():
        if all(re.search(pattern, text) for pattern in patterns):
            return form
    return "project" if name.endswith(".toml") else "pip"


_FORMS = {
    "pylock": [r"(?m)^lock-version\s*="],
    "uv": [r"(?m)^version\s*=\s*\d+\s*$", r"(?m)^(?:\[\[package\]\]|\[manifest\])"],
    "project": [r"(?m)^\[(?:project|build-system|tool\.[\w.-]+)\]\s*$"],
}
"""What the text of each form holds."""


POETRY = "run `poetry export -o requirements.txt`, and name that file"

BLOCK = re.compile(
    r"(?m)^# /// script[ \t]*\r?$\s(?P<content>(?:^#(?:| .*)\r?$\s)+?)^# ///[ \t]*\r?$"
)
"""The block of PEP 723, by the expression in its specification, for the type `script`."""


def read_pip(
    file: str, read: Read, extras: Collection[str] = (), groups: Collection[str] = ()
) -> Requirements:
    """Read a requirements file of pip. Raises JobError if pip cannot read it, or if it is to have
    extras or groups."""
    for field, names in (("extras", extras), ("groups", groups)):
        if names:
            hint = f"remove `{field}`, or name `pyproject.toml` as the requirements"
            raise unread(f"a requirements file of pip has no {field}", hint, field)
    return Requirements(file, "pip", tuple(_pip_packages(file, read)))


def unread(message: str, hint: str, field: str = "requirements") -> JobError:
    """Return the error for a file that cannot be read as requirements."""
    return JobError([Problem(("environment", field), message, hint, code="CT056")])


def stale(message: str, hint: str) -> JobError:
    """Return the error for a lock that is missing or does not match its project."""
    return JobError([Problem(FIELD, message, hint, code="CT057")])


def unfit(message: str, hint: str) -> JobError:
    """Return the error for a file that has nothing for the machine's Python."""
    return JobError([Problem(FIELD, message, hint, code="CT058")])


# Lines of pip.

DEEPEST = 8
"""Maximum depth of requirements files that include others."""

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)")
_PIN = re.compile(r"===?([^,;*\s]+)")
_NO_NAME = re.compile(r"[-.~/$]|\w+:|[^\s;@]*(?:[/\\$]|\.(?:whl|zip|tar\.gz|tgz|tar\.bz2)\b)")
"""Options, paths, archives and addresses."""


_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([^\s,;]+)")
_VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(\.\*)?(.*)")
_COMPARISON = re.compile(r"([a-z_]+)\s*(==|!=|>=|<=|>|<)\s*['\"]([^'\"]*)['\"]")


class PipLine(NamedTuple):
    """A line of a requirements file, such as `numpy >=1.26,<3 ; python_version < '3.13'`. `wheel`
    is a path."""

    name: str
    versions: str
    marker: str
    hashes: tuple[str, ...] = ()
    wheel: str = ""

    def __str__(self) -> str:
        return self.wheel or f"{self.name}{self.versions}"

    def is_met_by(self, version: str | None) -> bool:
        """Return whether a package of this version is enough; None if it is not installed."""
        return _is_met(self.versions, version)

    def applies(self, machine: Mapping[str, str]) -> bool:
        """Return whether the environment marker applies; an empty marker does. Markers that combine
        `and` with `or`, or that this function cannot read, count as not applying."""
        if not self.marker:
            return True
        # The comparisons, with the words between them.
        parts = re.split(r"\s+(and|or)\s+", self.marker)
        words = set(parts[1::2])
        if len(words) > 1:
            return False

        results = []
        for text in parts[::2]:
            match = _COMPARISON.fullmatch(text.strip())
            if match is None or match[1] not in machine:
                return False
            variable, operator, wanted = match.groups()
            value = machine[variable]
            if operator in ("==", "!="):
                results.append((value == wanted) == (operator == "=="))
            else:
                results.append(_is_met(operator + wanted, value))

        return any(results) if words == {"or"} else all(results)


def _is_met(versions: str, version: str | None) -> bool:
    """Return whether a version meets every clause of `versions`; None meets none."""
    if version is None:
        return False
    clauses = _CLAUSE.findall(versions)
    return all(_clause_is_met(operator, wanted, version) for operator, wanted in clauses)


def _clause_is_met(operator: str, version: str, installed_version: str) -> bool:
    """Return whether the installed version meets a clause such as `>=1.26`. Only release numbers
    are compared. If a suffix such as `rc1` would decide, the clause counts as met."""
    have = _VERSION.fullmatch(installed_version.partition("+")[0])
    want = _VERSION.fullmatch(version.partition("+")[0])
    if operator == "===" or have is None or want is None:
        return True

    installed = list(map(int, have[1].split(".")))
    wanted = list(map(int, want[1].split(".")))
    if want[2]:  # ==1.2.*
        is_equal = installed[: len(wanted)] == wanted
        return is_equal == (operator == "==")
    if operator == "~=":
        series = wanted[:-1]
        return installed >= wanted and installed[: len(series)] == series

    # 1.2 is 1.2.0
    length = max(len(installed), len(wanted))
    installed += [0] * (length - len(installed))
    wanted += [0] * (length - len(wanted))
    has_suffix = bool(have[3] or want[3])
    if installed == wanted and has_suffix:
        return True
    return bool(_COMPARE[operator](installed, wanted))


_COMPARE = {
    "==": eq,
    "!=": ne,
    ">=": ge,
    "<=": le,
    ">": gt,
    "<": lt,
}


def pip_lines(file: str, read: Read) -> Iterator[PipLine]:
    """Yield the requirements of `file` and of the files that it includes. `read` returns a file's
    text, or None if the file cannot be read. Lines that name no package are left out."""
    for _, _, line in _lines_of(file, read):
        package = package_in(line)
        if package is not None:
            yield package


def _lines_of(file: str, read: Read, deepest: int = DEEPEST) -> Iterator[tuple[str, int, str]]:
    """Yield the file, the number and the text of each line that is not empty, also of included
    files, which are nested up to `deepest` levels."""
    text = read(file) or ""
    waiting = ""  # the beginning of a line that a backslash continues
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.endswith("\\"):
            waiting += f"{raw[:-1]} "
            continue
        line = re.sub(r"(^|\s)#.*", "", waiting + raw).strip()
        waiting = ""
        option = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        if option is None:
            if line:
                yield file, number, line
            continue

        included = posixpath.normpath(posixpath.join(posixpath.dirname(file), option[1]))
        if "$" not in line and "://" not in line and read(included) is None:
            hint = (
                f"correct line {number} of `{file}`, or check that the bundle does not "
                "leave the file out"
            )
            raise unread(f"`{file}` includes `{included}`, and there is no such file", hint)
        if deepest:
            yield from _lines_of(included, read, deepest - 1)


def needs_index(file: str, read: Read) -> bool:
    """Return whether a requirements file has more than options and wheels in the bundle, and no
    `--no-index`."""
    lines = [line for _, _, line in _lines_of(file, read)]
    if any("--no-index" in line for line in lines):
        return False
    return not all(_NEEDS_NO_INDEX.match(line) for line in lines)


_NEEDS_NO_INDEX = re.compile(r"-(?!e\b|-editable)|(?!\w+:)\S+\.whl(?:[\s;]|$)")
"""An option other than `-e`, or the path of a wheel."""


def package_in(line: str) -> PipLine | None:
    """Return the requirement in a line; None if it is an option, an address or a path that is not a
    wheel's."""
    text, _, marker = re.sub(r"\s--?\w.*", "", line).partition(";")
    text = text.strip()
    marker = marker.strip()
    hashes = tuple(re.findall(r"--hash[=\s]+(\S+)", line))
    wheel = re.fullmatch(r"(?!\w+:)(?:.*/)?([^/-]+)-([^/-]+)-[^/]+\.whl", text)
    if wheel:
        return PipLine(wheel[1], f"=={wheel[2]}", marker, hashes, text)

    match = _NAME.fullmatch(text)
    if match is None:
        return None
    versions = match[2].strip().removeprefix("(").removesuffix(")")
    if versions[:1] not in ("", "@", *"=<>!~") or re.match(r"=[^=]", versions):
        return None
    if versions.startswith("@"):  # an address
        versions = ""
    versions = versions.replace(" ", "")
    return PipLine(match[1], versions, marker, hashes)


def _pip_packages(file: str, read: Read) -> Iterator[Package]:
    """Yield the packages of a pip file. Raises JobError for a line that pip cannot read."""
    for place, number, line in _lines_of(file, read):
        package = package_in(line)
        if package is not None:
            yield package_of(line, package.name, package.versions, package.hashes)
        elif _NO_NAME.match(line) is None:
            hint = "write one package a line, such as `numpy>=1.26`; `=` alone is not an operator"
            raise unread(f"line {number} of `{place}` is not a requirement: `{line[:60]}`", hint)


def package_of(line: str, name: str, versions: str, hashes: tuple[str, ...] = ()) -> Package:
    """Return the package of a line. It has a version if its `versions` are one, as in
    `numpy==1.26.4`."""
    pin = _PIN.fullmatch(versions)
    version = pin[1] if pin else None
    return Package(normal(name), version, hashes, line=line)


def normal(name: str) -> str:
    """Return the normalized name of a package: `Flash_Attn` becomes `flash-attn`."""
    return re.sub(r"[-_.]+", "-", name).lower()
