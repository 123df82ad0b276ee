"""The packages that a job installs: reads them before anything is sent, compares them with what the
machine has, and puts a generated list into the bundle."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.code.files import Entry
from cloudtrain.code.tree import Tree, bundle_of
from cloudtrain.documents.document import Unreadable, read_text
from cloudtrain.errors import JobError, Problem, quoted
from cloudtrain.job.conda import check_conda
from cloudtrain.job.pep508 import Requirement, are_met
from cloudtrain.job.pip_file import line_of, read_pip
from cloudtrain.job.requirements import (
    WRITTEN,
    Platform,
    Read,
    Requirements,
    form_of,
    unfit,
    unread,
)
from cloudtrain.lifecycle.preparing.installable import check_lines, check_list
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
        """Return the plan with a note."""
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
    for name, installed in contents.frameworks.items():
        other = _other_version(wanted, contents, name, installed)
        if other:
            raise _other(name, wanted.file, other, installed)
    if contents.torch:
        other = _other_version(wanted, contents, "torch", contents.torch)
        if other and contents.is_image:
            raise _other("torch", wanted.file, other, contents.torch)
        if other:  # without an image, the list's own torch is installed with all that it needs
            wanted = _read(job, tree, file, read, contents, prune=False)
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
    return requiring(job, name), _with_list(tree, name, text, installation), installation


def contents_of(job: AnyJob, where: Where) -> Contents:
    """Return what the machine of a job has before its packages are installed."""
    describe = part(where.target, ContentsReader)
    if describe is None:
        return Contents(job.environment.python)
    return describe(job.view, where.settings, where.account)


def _other(name: str, file: str, locked: str, in_image: str) -> JobError:
    """Return the error for a list whose framework is not the image's."""
    line = ".".join(re.findall(r"\d+", in_image)[:2])
    other = ".".join(re.findall(r"\d+", locked)[:2])
    hint = f'ask for `{name}=={line}.*`, or take the image with `version: "{other}"`'
    return unfit(f"{name} {locked} is in `{file}`, and the image has {in_image}", hint)


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
    """Return the job with another requirements file."""
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

    machine = Platform(contents.python or "3", contents.markers)
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


def _with_list(tree: Tree, name: str, text: str, installation: Installation) -> Tree:
    """Return the bundle with a requirements file, which keeps the image's PyTorch. Without a
    constraint pip replaces it where the machine decides versions: `timm` names no version of torch,
    and the newest torchvision pins the newest torch. pip reads `-c` relative to the file, in every
    launch mode of every target."""
    if installation.keeps_torch:
        beside = posixpath.join(posixpath.dirname(name), _CONSTRAINTS)
        constraint = f"{pinned_torch(installation.contents)}\n"
        tree = _with_file(tree, beside, constraint.encode())
        head = WRITTEN if text.startswith(WRITTEN) else ""
        text = f"{head}{_KEEPS}-c {_CONSTRAINTS}\n{text.removeprefix(head)}"
    return _with_file(tree, name, text.encode())


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
