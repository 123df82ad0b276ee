"""Compares what a job installs with all that is known before a machine is paid for: the files of
the bundle, the Python and the packages of the machine, and the lines with each other."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator

from packaging.specifiers import SpecifierSet

from cloudtrain.code.files import Entry
from cloudtrain.code.ignore import IGNORE_FILE
from cloudtrain.documents.document import load_toml
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.pep508 import Requirement, conflict_in, normal, requirement_in, versions_in
from cloudtrain.job.pip_file import ARCHIVES, PipFile
from cloudtrain.job.requirements import FIELD, Platform, Read, Requirements, unfit
from cloudtrain.machines.contents import Contents

_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")

_TORCHVISION = 15
"""torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, and so on; a torchaudio has torch's version.
https://github.com/pytorch/vision#installation"""

_BUILT_BY_CONDA = r"file:///(?:croot|tmp/build|home/conda|feedstock_root|opt/conda/conda-bld|\w:)/"
"""Folders that `pip freeze` names for packages of conda. They are on no machine."""

_OF_A_USER = r"(?:file:/*)?/(?:home|Users|root|mnt/[a-z])/"
"""Folders of a user, which a public image does not have."""

_NOT_SENT = "put it into the source folder, and check that no ignore file leaves it out"


def check_lines(file: PipFile, names: Collection[str], read: Read, contents: Contents) -> None:
    """Raise JobError with all that cannot be installed of a requirements file of pip. `names` are
    the files of the bundle, which `read` reads."""
    lines = [line for line in file.lines if _applies(line, contents)]
    problems = [*_places(file, lines, names, contents), *_without_hash(file)]
    projects = []
    for line in lines:
        if line.path and not line.path.endswith(".whl"):
            project = posixpath.normpath(f"{line.path}/pyproject.toml")
            projects += _needs(line, read(project) or "", contents)
    problems += _conflicts([*lines, *projects], contents)
    if problems:
        raise JobError(problems)


def check_list(wanted: Requirements, entries: Iterable[Entry]) -> None:
    """Raise JobError if an archive that a lock names is not in the bundle."""
    hashes = {f"./{entry.path}": f"sha256:{entry.sha256}" for entry in entries}
    for item in wanted.packages:
        url = item.url
        if url.startswith(".") and hashes.get(url) not in item.hashes:
            message = f"the bundle has no file `{url}` with the content that `{wanted.file}` locks"
            hint = f"if an ignore file leaves it out, add `!{url[2:]}` to `{IGNORE_FILE}`"
            raise unfit(message, f"run `uv lock`; {hint}")


def _applies(line: Requirement, contents: Contents) -> bool:
    """Return whether a line applies on the machine. One that depends on an unknown version of
    Python does not."""
    if contents.python is None and re.search("python|implementation", line.marker):
        return False
    return _machine(contents).meets(line.marker)


def _machine(contents: Contents) -> Platform:
    return Platform(contents.python or "3", contents.markers)


def _problem(line: Requirement, message: str, hint: str) -> Problem:
    return Problem(FIELD, f"{line.place} {message}", hint, code="CT058")


def _places(
    file: PipFile, lines: Iterable[Requirement], names: Collection[str], contents: Contents
) -> Iterator[Problem]:
    """Yield the paths that are not in the bundle, and the archives that do not fit the machine."""
    machine = _machine(contents)
    is_known = contents.is_image and bool(contents.torch or contents.frameworks)
    for beside, path, place in file.folders:
        if not _is_folder(beside, names) and not _is_folder(path, names):
            message = f"looks for wheels in `{path}`, which the bundle does not hold"
            yield _problem(Requirement(place=place), message, _NOT_SENT)

    for line in lines:
        path = line.path
        place = path or line.url
        if not place:
            continue
        if not machine.fits(place):
            yield _problem(line, f"names no wheel for {machine}", "name a wheel for that machine")
        if re.match(_BUILT_BY_CONDA, place) or (is_known and re.match(_OF_A_USER, place)):
            yield _problem(line, "names a path of another machine", "name the version instead")
        if not path or path.startswith("/"):
            continue
        inside = {posixpath.normpath(f"{path}/{name}") for name in _PROJECT_FILES}
        if path in names:
            if not path.endswith(ARCHIVES):
                yield _problem(line, f"names `{path}`, which is no archive", "name a wheel")
        elif not _is_folder(path, names):
            yield _problem(line, f"names `{path}`, which the bundle does not hold", _NOT_SENT)
        elif inside.isdisjoint(names):
            message = f"names the folder `{path}`, which has no `pyproject.toml`"
            yield _problem(line, message, "name the folder of a package")


def _is_folder(path: str, names: Iterable[str]) -> bool:
    return path == "." or any(name.startswith(f"{path}/") for name in names)


def _needs(line: Requirement, text: str, contents: Contents) -> list[Requirement]:
    """Return what a package in a folder needs, by the text of its pyproject.toml: the Python too,
    under the name `python`. Its build backend says what is wrong with another text."""
    try:
        project = load_toml(text).get("project", {})
        found = [Requirement("python", versions_in(project.get("requires-python", "")))]
        found += map(requirement_in, project.get("dependencies", ()))
    except (ValueError, RecursionError, AttributeError, TypeError):
        return []
    return [item._replace(place=line.place) for item in found if _applies(item, contents)]


def _without_hash(file: PipFile) -> Iterator[Problem]:
    """Yield the first line that pip refuses because others have hashes: then all need one."""
    asked = file.asked
    if "--require-hashes" not in file.flags and not any(line.hashes for line in asked):
        return
    for line in asked:
        if not line.hashes or not (line.path or line.url or line.pin):
            yield _problem(
                line,
                "lacks a hash or a pinned version, and pip wants both as soon as a line has one",
                "pin each line with its hash, or none: `cloudtrain environments lock`",
            )
            return


def _conflicts(lines: Iterable[Requirement], contents: Contents) -> Iterator[Problem]:
    """Yield the packages of which no version meets all lines, constraints, packages in folders and
    the image."""
    known: dict[str, SpecifierSet] = {}
    if contents.python:
        known["python"] = _series(contents.python)
    torch = re.match(r"2\.(\d+)", contents.torch or "")
    if torch and contents.is_image:
        known["torchvision"] = _series(f"0.{int(torch[1]) + _TORCHVISION}")
        known["torchaudio"] = _series(torch[0])
        known["torch"] = _series(torch.string)
    wanted = {"python", "torch"}
    wanted.update(normal(line.name) for line in lines if not line.is_constraint)
    for line in lines:
        name = normal(line.name)
        if name not in wanted or line.url or not line.versions:
            continue
        if name == "torch" and not line.is_constraint:
            continue  # it is compared with the image in all forms
        before = known.get(name, SpecifierSet())
        if len(before) > _MOST:
            continue
        both = before & line.versions
        if conflict_in(both):
            message = f"asks for `{name}{line.versions}`, and it has to be `{name}{before}`"
            yield _problem(line, message, "ask for versions that exist together")
        else:
            known[name] = both


def _series(version: str) -> SpecifierSet:
    """Return the versions that begin with the release numbers of one, such as `2.13.0a0+nv`."""
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    if numbers is None:
        return SpecifierSet()
    return SpecifierSet(f"=={numbers[0]}.*")


_MOST = 20
"""The most clauses of a package that are compared."""
