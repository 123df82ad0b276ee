"""Reads the file that `environment.requirements` names: which packages a job installs, and in which
versions.

The content decides the form, not the file's name:

    pip         lines of pip, with the files that they include
    uv          a uv.lock, or a pyproject.toml with its uv.lock, which may be that of the
                workspace's root
    script      a Python file with a block of dependencies (PEP 723), with or without `SCRIPT.lock`
    pylock      a pylock.toml (PEP 751)

A lock becomes the list for one Python and platform. Reading is pure: it starts no process, uses no
network, and resolves nothing. `job.pip_file` reads the lines of pip, `job.locks` all other forms.

The machine reads a list line by line. So a text of a lock is written into a list only if it is a
name, a version, a hash, an address or a path, and nothing else (`check_package`).
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from packaging.version import VERSION_PATTERN

from cloudtrain.errors import JobError, Problem, shortened
from cloudtrain.job.pep508 import NAME, applies

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
        return self.form in ("uv", "pylock") or self.is_hashed

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
    """The Python that installs the packages: its version, such as `3.12`, or `3` if it is unknown,
    and the values of environment markers that differ from Linux on x86-64."""

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
            "platform_system": "Linux",
            "python_full_version": full,
            "python_version": ".".join(full.split(".")[:2]),
            "sys_platform": "linux",
            **self.markers,
        }

    def meets(self, marker: str) -> bool:
        """Return whether an environment marker of a requirement applies."""
        return applies(marker, self.environment)

    def fits(self, archive: str) -> bool:
        """Return whether a wheel may fit. Other files do."""
        wheel = re.fullmatch(WHEEL, re.sub(r"[?#].*", "", archive))
        if wheel is None:
            return True
        machine = self.environment
        system = {"darwin": "macosx", "win32": "win"}.get(machine["sys_platform"], "linux")
        processor = re.escape(machine["platform_machine"])
        platform = rf"any|.*{system}.*(?:{processor}|universal2)"
        if not any(re.fullmatch(platform, name) for name in wheel["platforms"].split(".")):
            return False

        minor = int(machine["python_version"].partition(".")[2])
        for python in wheel["pythons"].split("."):
            own = re.fullmatch(r"(?:py|cp)3(\d*)", python)
            is_stable = "abi3" in wheel["abis"] or python.startswith("py")
            if own and (int(own[1] or 0) == minor or (is_stable and int(own[1] or 0) < minor)):
                return True
        return "." not in self.python

    def __str__(self) -> str:
        environment = self.environment
        machine = environment["platform_machine"].replace("_", "-")
        python = ".".join(self.python.split(".")[:2])
        return f"Python {python} on {environment['platform_system']} {machine}"


def form_of(file: str, text: str) -> str:
    """Return the form of a requirements file: `pip`, `uv`, `project`, `script` or `pylock`.

    Raises:
        JobError: the file is of another tool, which cloudtrain does not read.
    """
    name = posixpath.basename(file)
    if name.endswith(".py") and name != "setup.py":
        if block_of(file, text) is None:
            raise unread(
                f"`{file}` has no block with its dependencies (PEP 723)",
                f"add a block `# /// script` with `dependencies`, or {_PLAIN_LIST}",
            )
        return "script"

    # a search for a plain text is fast, also in a lock of 2.6 million characters
    lines = f"\n{text}"
    for endings, line, what, hint in _OF_OTHER_TOOLS:
        if name.endswith(endings) or f"\n{line}" in lines:
            raise unread(f"`{file}` is {what}, which cloudtrain does not read", hint.format(file))
    if name == "uv.lock":
        return "uv"
    if "\n[" in lines or "\nlock-version" in lines:
        for form, patterns in _FORMS.items():
            if all(re.search(pattern, lines) for pattern in patterns):
                return form
    return "project" if name.endswith(".toml") else "pip"


_FORMS = {
    "pylock": [r"\nlock-version\s*="],
    "uv": [r"\nversion\s*=\s*\d+\s*\n", r"\n(?:\[\[package\]\]|\[manifest\])"],
    "project": [r"\n\[(?:project|build-system|tool\.[\w.-]+)\]\s*\n"],
}
"""What the lines of each form hold."""


_PLAIN_LIST = "list the packages in `requirements.txt`, and name that file"

POETRY = "run `poetry export -o requirements.txt`, and name that file"
_PIPENV = "run `pipenv requirements > requirements.txt`, and name that file"
_CONDA = f"on Azure ML write `conda_file: {{}}`; elsewhere {_PLAIN_LIST}"

_OF_OTHER_TOOLS = (
    (
        "poetry.lock",
        "# This file is automatically @generated by Poetry",
        "a lock of Poetry",
        POETRY,
    ),
    (("Pipfile", "Pipfile.lock"), "[dev-packages]", "a file of Pipenv", _PIPENV),
    (("setup.py", "setup.cfg"), "[bdist_wheel]", "a project of setuptools", _PLAIN_LIST),
    ((".yml", ".yaml"), "dependencies:", "a conda file", _CONDA),
    ("environment.yml", "channels:", "a conda file", _CONDA),
)
"""The names of files of other tools, or a beginning of a line in them; what they are; and what to
do."""


def block_of(file: str, text: str) -> str | None:
    """Return the content of a script's block of dependencies (PEP 723): comments from `# ///
    script` to the last `# ///` below it. None if the script has none. Raises JobError if it has
    two."""
    blocks = []
    for comments in re.findall(r"(?m)^# /// script[ \t]*\r?\n((?:#(?: .*)?(?:\r?\n|$))+)", text):
        lines = [line.rstrip() for line in comments.splitlines()]
        if "# ///" in lines[1:]:
            while lines.pop() != "# ///":
                pass
            blocks.append(lines)
    if len(blocks) > 1:
        raise unread(
            f"`{file}` has {len(blocks)} blocks of dependencies",
            "keep one block `# /// script` in the file",
        )
    return "\n".join(line[2:] for line in blocks[0]) if blocks else None


def shown(text: str) -> str:
    """Return a foreign text as a message shows it: short, and without passwords of addresses."""
    if not text.isprintable():
        text = repr(text)[1:-1]
    text = re.sub(r"//[^/@\s]*@", "//***@", text)
    return shortened(re.sub(r"(?<=\w)\?[^\s`]*", "?...", text))


# What may stand in a list. The installer reads it line by line, and a line as words.

WHEEL = (
    r"(?:.*/)?(?P<name>[^/-]+)-(?P<version>[^/-]+)(?:-[0-9][^/-]*)?"
    r"-(?P<pythons>[^/-]+)-(?P<abis>[^/-]+)-(?P<platforms>[^/-]+)\.whl"
)

HASH = "sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}"
"""A hash that pip checks."""

_VERSION = rf"(?aix:{VERSION_PATTERN})"
_WORD = r"[A-Za-z0-9._~/%!$&()*+,=:-]"
_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]+)?"
_FOLDER = r"(?:#subdirectory=[A-Za-z0-9._/-]+)?"
_INDEX = rf"https?://{_HOST}(?:/{_WORD}*)?"
_SOURCE = (
    rf"https?://{_HOST}/{_WORD}+{_FOLDER}"
    rf"|git\+(?:https?|ssh)://(?:[A-Za-z0-9_][A-Za-z0-9_-]*@)?{_HOST}/{_WORD}+@[0-9a-f]{{7,64}}{_FOLDER}"
    r"|\./(?!\.\./)[A-Za-z0-9._+/!-]+"
)

_PLAIN = r"(?=[^@]*(?:@[ \t]*(?:git\+)?(?:https?|ssh)://(?![^/]*@-|-)|$))(?:(?![ \t]-|\$\{)[ -~])*"
"""A line without options and variables, and without an address on the user's machine. ssh takes
a host that begins with a hyphen for an option."""


def foreign_text(package: Package) -> str | None:
    """Return a text of a package from a lock that must not be in a list; None if there is none."""
    rules = [(package.name, NAME)]
    if package.version is not None and not package.url:
        rules.append((package.version, _VERSION))
    others = {_INDEX: package.registry, _SOURCE: package.url, _PLAIN: package.line}
    rules += [(text, rule) for rule, text in others.items() if text]  # most have none
    rules += [(digest, HASH) for digest in package.hashes]
    for text, rule in rules:
        if re.fullmatch(rule, text) is None:
            return text
    return None


def unread(message: str, hint: str, field: str = "requirements") -> JobError:
    """Return the error for a file that cannot be read as requirements."""
    return JobError([Problem(("environment", field), message, hint, code="CT056")])


def stale(message: str, hint: str) -> JobError:
    """Return the error for a lock that is missing or does not match its project."""
    return JobError([Problem(FIELD, message, hint, code="CT057")])


def unfit(message: str, hint: str) -> JobError:
    """Return the error for a file that has nothing for the machine's Python."""
    return JobError([Problem(FIELD, message, hint, code="CT058")])
