"""The packages that a job installs: reads them before anything is sent, compares them with what the
machine has, and puts a generated list into the bundle."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.specifiers import SpecifierSet

from cloudtrain.code.files import Entry
from cloudtrain.code.ignore import IGNORE_FILE
from cloudtrain.code.tree import Tree, bundle_of
from cloudtrain.documents.document import Unreadable, load_toml, read_text
from cloudtrain.errors import JobError, Problem, quoted
from cloudtrain.job.conda import check_conda
from cloudtrain.job.pep508 import (
    Requirement,
    are_met,
    conflict_in,
    normal,
    requirement_in,
    versions_in,
)
from cloudtrain.job.pip_file import ARCHIVES, PipFile, line_of, read_pip
from cloudtrain.job.requirements import (
    FIELD,
    WRITTEN,
    Platform,
    Read,
    Requirements,
    form_of,
    unfit,
    unread,
)
from cloudtrain.machines.contents import Contents, ContentsReader
from cloudtrain.plans.plan import Plan
from cloudtrain.system.plugins import part
from cloudtrain.targets.where import Where

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob

_LIST = "requirements.txt"
_OTHER_LIST = "requirements.cloudtrain.txt"
"""The name of a generated list in the bundle, and its name if the user has a file of the first
name. SageMaker's toolkit installs only a file of the first name."""

_CONSTRAINTS = "cloudtrain-constraints.txt"

_KEEPS = "# cloudtrain added the next line, so that the image's PyTorch stays.\n"

_NAMED = 3
"""Maximum number of packages that the plan's summary names."""


class Installation(NamedTuple):
    """What a job installs, and what its machine has before. `is_named` says whether the job names
    the file."""

    requirements: Requirements
    contents: Contents
    is_named: bool

    @property
    def digest(self) -> str | None:
        """Hash of what a generated list installs, whatever its file and its comments; None for a
        file of pip, which may hold options."""
        return None if self.requirements.form == "pip" else self.requirements.digest

    @property
    def keeps_torch(self) -> bool:
        """Whether only a constraint keeps the image's PyTorch, because the machine decides
        versions."""
        has_torch = self.contents.is_image and self.contents.torch is not None
        return has_torch and not self.requirements.is_closed

    @property
    def replaced(self) -> list[tuple[str, str, str]]:
        """The packages of the image that the job replaces: name, version in the image, version of
        the job. Those whose first number changes come first, because they break most."""
        image = self.contents.packages or {}
        replaced = []
        for item in self.requirements.packages:
            before = image.get(item.name, "")
            public = before.partition("+")[0]
            if item.version and public and public != item.version.partition("+")[0]:
                replaced.append((item.name, before, item.version))

        def rank(item: tuple[str, str, str]) -> tuple[bool, str]:
            name, before, after = item
            return before.partition(".")[0] == after.partition(".")[0], name

        return sorted(replaced, key=rank)

    def add_to(self, plan: Plan) -> Plan:
        """Return the plan with a line of its summary, notes, and the packages for `--json`."""
        wanted = self.requirements
        summary = (*plan.summary, ("requirements", self._describe()))
        notes = [*plan.notes]
        without = [item.name for item in wanted.packages if not item.hashes]
        if wanted.form != "pip" and 0 < len(without) < len(wanted.packages):
            which = quoted(without[:_NAMED])
            notes.append(
                f"no hash of `{wanted.file}` is checked, because these packages have none: {which}"
            )
        if wanted.undecided and self.contents.is_image:
            number = len(wanted.packages)
            which = "the package" if number == 1 else f"{wanted.undecided} of {number} packages"
            verb = "is" if wanted.undecided == 1 else "are"
            notes.append(
                f"{which} in `{wanted.file}` {verb} not pinned: the machine decides the version"
            )
        return replace(plan, summary=summary, notes=tuple(notes), environment=self.to_json())

    def _describe(self) -> str:
        """Return the text of the plan's summary: what is installed, and what of the image changes
        or stays."""
        wanted = self.requirements
        own = [item for item in wanted.packages if item.name in wanted.folders]
        count = len(wanted.packages) - len(own)
        packages = "1 package" if count == 1 else f"{count} packages"
        line = f"{packages} from `{wanted.file}`"
        if not self.is_named:
            line += ", found in the code"
        if wanted.form != "pip":
            line += f" ({wanted.digest[:12]}, Python {self.contents.python})"
        lines = [line]

        if own:
            names = ", ".join(f"{item.name} {item.version}" for item in own)
            wheels = "1 package of your own as a wheel"
            if len(own) > 1:
                wheels = f"{len(own)} packages of your own as wheels"
            lines.append(f"{wheels}: {names}")
        if wanted.brought or self.keeps_torch:
            owner = "the image" if self.contents.is_image else "this Python"
            lines.append(f"torch {self.contents.torch} of {owner} stays")

        is_unknown = self.contents.is_image and self.contents.packages is None
        if is_unknown and wanted.form != "pip":
            lines.append("what the image has is not known offline")
        replaced = self.replaced
        if replaced:
            verb = "replaces" if len(replaced) == 1 else "replace"
            shown = [f"{name} {before} -> {after}" for name, before, after in replaced[:_NAMED]]
            if len(replaced) > _NAMED:
                shown.append(f"and {len(replaced) - _NAMED} more")
            lines.append(f"{len(replaced)} {verb} the image's: {', '.join(shown)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the whole list as JSON data."""
        wanted = self.requirements
        image = self.contents.packages or {}
        packages = []
        for item in wanted.packages:
            package = {"name": item.name, "version": item.version, "hashes": [*item.hashes]}
            known = {"index": item.registry, "url": item.url, "in_image": image.get(item.name)}
            package |= {name: value for name, value in known.items() if value}
            packages.append(package)
        return {
            "file": wanted.file,
            "form": wanted.form,
            "sha256": wanted.digest,
            "python": self.contents.python,
            "torch": self.contents.torch,
            "undecided": wanted.undecided,
            "folders": dict(wanted.folders),
            "packages": packages,
        }


class Unusable(NamedTuple):
    """A file beside a job that does not name it, and why the job does not install its packages."""

    file: str
    problem: Problem
    digest: str | None = None

    def add_to(self, plan: Plan) -> Plan:
        why = f"{self.problem.message}: {self.problem.hint}"
        note = (
            f"`{self.file}` is not installed, because {why}; `requirements: none` says that it "
            "need not be"
        )
        return replace(plan, notes=(*plan.notes, note))


def with_requirements(
    job: AnyJob, tree: Tree, where: Where, *, is_named: bool, is_new: bool
) -> tuple[AnyJob, Tree, Installation | None]:
    """Read the job's requirements. Return the job and its bundle, with a generated list if the file
    is not one of pip.

    Args:
        is_named: whether the user named the file.
        is_new: whether the code was read from the source folder. The code of an earlier run already
            has its list.

    Raises:
        JobError: the file cannot be read, does not match its project, or does not fit the machine.
    """
    file = posixpath.normpath(job.environment.requirements or "")
    written = None
    for name in (_OTHER_LIST, _LIST):
        if (tree.read_text(name) or "").startswith(WRITTEN):
            written = name
    if not is_new and written is not None:
        return requiring(job, written), tree, None
    read = reader_of(tree)
    if read(file) is None:
        return job, tree, None  # CT102 reports it

    contents = contents_of(job, where)
    wanted = _read(job, tree, file, read, contents, prune=contents.torch is not None)
    frameworks = dict(contents.frameworks)
    if contents.torch:
        frameworks["torch"] = contents.torch
    for name, installed in frameworks.items():
        other = _other_version(wanted, contents, name, installed)
        if other and name == "torch" and not contents.is_image:
            # the list's own torch is installed with all that it needs
            wanted = _read(job, tree, file, read, contents, prune=False)
        elif other:
            line = ".".join(re.findall(r"\d+", installed)[:2])
            locked = ".".join(re.findall(r"\d+", other)[:2])
            hint = f'ask for `{name}=={line}.*`, or take the image with `version: "{locked}"`'
            message = f"{name} {other} is in `{wanted.file}`, and the image has {installed}"
            raise unfit(message, hint)
    installation = Installation(wanted, contents, is_named)

    needs_list = wanted.form != "pip" or ("/" in file and is_new and not is_named)
    if needs_list:
        is_free = written == _LIST or tree.read_text(_LIST) is None
        name = _LIST if is_free else _OTHER_LIST
        # every launch mode installs `_LIST`
        text = wanted.text if wanted.form != "pip" else f"{WRITTEN}-r {file}\n"
    elif installation.keeps_torch and is_new:
        name = file
        text = tree.read_text(file) or ""
    else:
        return job, tree, installation

    for path, content in wanted.wheels.items():
        tree = _with_file(tree, path, content)
    if installation.keeps_torch:
        # Without a constraint pip replaces the image's PyTorch where the machine decides versions:
        # `timm` names no version of torch, and the newest torchvision pins the newest torch. pip
        # reads `-c` relative to the file, in every launch mode of every target.
        beside = posixpath.join(posixpath.dirname(name), _CONSTRAINTS)
        tree = _with_file(tree, beside, f"{pinned_torch(contents)}\n".encode())
        head = WRITTEN if text.startswith(WRITTEN) else ""
        text = f"{head}{_KEEPS}-c {_CONSTRAINTS}\n{text.removeprefix(head)}"
    tree = _with_file(tree, name, text.encode())
    return requiring(job, name), tree, installation


def contents_of(job: AnyJob, where: Where) -> Contents:
    """Return what the machine of a job has before its packages are installed."""
    describe = part(where.target, ContentsReader)
    if describe is None:
        return Contents(job.environment.python)
    return describe(job.view, where.settings, where.account)


def _read(
    job: AnyJob, tree: Tree, file: str, read: Read, contents: Contents, *, prune: bool
) -> Requirements:
    """Read the job's requirements file. `prune` leaves out the torch that the machine has, and what
    only torch needs."""
    extras = job.environment.extras
    groups = job.environment.groups
    if form_of(file, read(file) or "") == "pip":
        names = {entry.path for entry in tree.entries}

        def read_sent(path: str) -> str | None:
            return read(path) if path in names else None

        found = read_pip(file, read_sent, extras, groups)
        content = "\n".join(found.texts.values())
        for name in job.environment.secrets:
            if not name.startswith(("PIP_", "UV_")) and f"${{{name}}}" in content:
                raise unread(
                    f"`{file}` needs the secret `{name}`, which is looked up later",
                    "give the whole address as the secret `PIP_EXTRA_INDEX_URL`",
                )
        check_lines(found, names, read_sent, contents)
        return found.requirements
    from cloudtrain.job.locks import read_lock

    platform = Platform(contents.python, contents.markers) if contents.python else None
    wanted = read_lock(file, read, platform, extras=extras, groups=groups, prune=prune)
    check_list(wanted, tree.entries)
    lines = [item.line for item in wanted.packages if item.line]  # of a block without a lock
    if lines:
        label = f"{file}: dependencies"
        check_lines(read_pip(label, {label: "\n".join(lines)}.get), (), read, contents)
    if not any(wanted.folders.values()):
        return wanted
    from cloudtrain.code.wheels import with_wheels

    return with_wheels(tree, wanted)


def requiring(job: AnyJob, file: str) -> AnyJob:
    environment = job.environment.model_copy(update={"requirements": file})
    return job.model_copy(update={"environment": environment})


def read_conda(tree: Tree, file: str) -> str | None:
    """Return the text of a conda file of the bundle. Raises JobError if conda cannot read it."""
    text = reader_of(tree, "conda_file")(file)
    check_conda(file, text or "")
    return text


def reader_of(tree: Tree, field: str = "requirements") -> Read:
    """Return a function that reads files of the bundle, and files beside the source folder, such as
    a workspace's lock. It raises JobError for a file that is not plain text. `field` names the
    file in the job."""
    entries = {entry.path: entry for entry in tree.entries}

    def read(path: str) -> str | None:
        place = os.path.join(tree.root, path)
        if path in entries:
            place = tree.location(entries[path])
        try:
            return read_text(place)
        except (FileNotFoundError, ValueError):  # no file has a name with a NUL character
            return None
        except Unreadable as error:
            message = f"`{path}`: {error.problem.message}"
            hint = error.problem.hint
        except OSError as error:
            message = f"`{path}` cannot be read: {error.strerror}"
            hint = "name a file that you may read"
        raise JobError([Problem(("environment", field), message, hint, code="CT054")])

    return read


def _other_version(
    wanted: Requirements, contents: Contents, name: str, installed: str
) -> str | None:
    """Return the version of a framework that a list asks for, or the versions, if the machine has
    another one; None if the machine's is enough, or if the list does not name it."""
    locked = wanted.brought.get(name)
    if locked and not _agree(locked, installed):
        return locked

    machine = _machine(contents)
    for item in wanted.packages:
        if item.name != name:
            continue
        line = line_of(item.line) if item.line else Requirement(name)
        if not machine.meets(line.marker):
            continue
        if item.version and not _agree(item.version, installed):
            return item.version
        if not item.version and not are_met(line.versions, installed):
            return str(line.versions)
    return None


def _agree(first: str, second: str) -> bool:
    """Return whether two versions are equal as far as both are known: an image's tag may say `2.13`
    only, and a list seldom has the local part, such as `+cu130`."""
    numbers = first.partition("+")[0].split(".")
    others = second.partition("+")[0].split(".")
    known = min(len(numbers), len(others))
    locals_agree = "+" not in first or "+" not in second or first == second
    return locals_agree and numbers[:known] == others[:known]


def pinned_torch(contents: Contents) -> str:
    """Return the constraint that keeps the image's PyTorch. It has no local part, which no index
    has: `2.13.0` admits `2.13.0+cu130`. An image's tag may say `2.13` only."""
    public = (contents.torch or "").partition("+")[0]
    if public.count(".") < 2:
        public += ".*"
    return f"torch=={public}"


def _with_file(tree: Tree, name: str, content: bytes) -> Tree:
    """Return the bundle with one more file, which is on no disk: a plan writes nothing."""
    entries = [entry for entry in tree.entries if entry.path != name]
    sha256 = hashlib.sha256(content).hexdigest()
    entries.append(Entry(name, len(content), sha256=sha256))
    entries.sort(key=lambda entry: os.fsencode(entry.path))
    own_files = {**tree.own_files, name: content}
    identity = bundle_of(entries)
    return replace(tree, entries=tuple(entries), identity=identity, own_files=own_files)


# What a job installs, compared with all that is known before a machine is paid for: the files of
# the bundle, the Python and the packages of the machine, and the lines with each other.

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
