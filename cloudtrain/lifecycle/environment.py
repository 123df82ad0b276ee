"""The packages that a job installs: reads them before anything is sent, compares them with what the
machine has, and puts a generated list into the bundle."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.code.files import Entry, content_hash
from cloudtrain.code.tree import Tree
from cloudtrain.documents.document import Unreadable, read_text
from cloudtrain.errors import JobError, Problem
from cloudtrain.job.requirements import (
    FIELD,
    WRITTEN,
    Platform,
    Read,
    Requirements,
    form_of,
    package_in,
    read_pip,
    unfit,
)
from cloudtrain.machines.contents import Contents, ContentsReader
from cloudtrain.plans.plan import Bundle, Plan
from cloudtrain.system.plugins import part
from cloudtrain.targets.where import Where

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob

_LIST, _OTHER_LIST = "requirements.txt", "requirements.cloudtrain.txt"
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
        return (
            self.contents.is_image
            and self.contents.torch is not None
            and not self.requirements.is_closed
        )

    @property
    def replaced(self) -> list[tuple[str, str, str]]:
        """The packages of the image that the job replaces: name, version in the image, version of
        the job."""
        image = self.contents.packages or {}
        return [
            (item.name, image[item.name], item.version)
            for item in self.requirements.packages
            if item.version
            and image.get(item.name, "").partition("+")[0]
            not in (item.version.partition("+")[0], "")
        ]

    def add_to(self, plan: Plan) -> Plan:
        """Return the plan with a line of its summary, notes, and the packages for `--json`."""
        wanted = self.requirements
        summary = (*plan.summary, ("requirements", self._line()))
        notes = list[str]()
        if wanted.undecided and self.contents.is_image:
            number = len(wanted.packages)
            which = "the package" if number == 1 else f"{wanted.undecided} of {number} packages"
            verb = "is" if wanted.undecided == 1 else "are"
            notes.append(
                f"{which} in `{wanted.file}` {verb} not pinned: the machine decides the version"
            )
        return replace(
            plan, summary=summary, notes=(*plan.notes, *notes), environment=self.to_json()
        )

    def _line(self) -> str:
        wanted, replaced = self.requirements, self.replaced
        own = [
            f"{item.name} {item.version}" for item in wanted.packages if item.name in wanted.folders
        ]
        count = len(wanted.packages) - len(own)
        line = f"{count} package{'' if count == 1 else 's'} from `{wanted.file}`"
        lines = [line if self.is_named else f"{line}, found in the code"]
        if wanted.form != "pip":
            lines[0] += f" ({wanted.digest[:12]}, Python {self.contents.python})"
        kind = (
            "package of your own as a wheel" if len(own) == 1 else "packages of your own as wheels"
        )
        lines += [f"{len(own)} {kind}: {', '.join(own)}"] if own else []
        owner = "the image" if self.contents.is_image else "this Python"
        lines += (
            [f"torch {self.contents.torch} of {owner} stays"]
            if wanted.brought or self.keeps_torch
            else []
        )
        if wanted.form != "pip":
            is_unknown = self.contents.is_image and self.contents.packages is None
            lines += ["what the image has is not known offline"] if is_unknown else []
        if replaced:  # those whose first number changes break most
            replaced.sort(
                key=lambda item: (item[1].partition(".")[0] == item[2].partition(".")[0], item[0])
            )
            more = f", and {len(replaced) - _NAMED} more" if len(replaced) > _NAMED else ""
            names = ", ".join(
                f"{name} {before} -> {after}" for name, before, after in replaced[:_NAMED]
            )
            verb = "replaces" if len(replaced) == 1 else "replace"
            lines.append(f"{len(replaced)} {verb} the image's: {names}{more}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the whole list as JSON data."""
        wanted, image = self.requirements, self.contents.packages or {}
        packages = [
            {"name": item.name, "version": item.version, "hashes": [*item.hashes]}
            | ({"index": item.registry} if item.registry else {})
            | ({"url": item.url} if item.url else {})
            | ({"in_image": image[item.name]} if image.get(item.name) else {})
            for item in wanted.packages
        ]
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
        note = (
            f"`{self.file}` is not installed, because {self.problem.message}: {self.problem.hint}"
        )
        return replace(
            plan, notes=(*plan.notes, f"{note}; `requirements: none` says that it need not be")
        )


def with_requirements(
    job: AnyJob, tree: Tree, where: Where, *, is_named: bool = True, is_new: bool = True
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
    written = next(
        (name for name in (_LIST, _OTHER_LIST) if (tree.read_text(name) or "").startswith(WRITTEN)),
        None,
    )
    if not is_new and written is not None:
        return _renamed(job, written), tree, None
    read = reader_of(tree)
    if read(file) is None:
        return job, tree, None  # CT102 reports it
    view, settings = job.view, where.settings
    describe = part(where.target, ContentsReader)
    contents = (
        describe(view, settings, where.account) if describe else Contents(job.environment.python)
    )
    wanted = _read(job, tree, file, read, contents, prune=contents.torch is not None)
    locked = wanted.brought.get("torch") or _wanted_torch(wanted, contents)
    if contents.torch is not None and locked is not None and not _agree(locked, contents.torch):
        if contents.is_image:
            line, other = (
                ".".join(re.findall(r"\d+", text)[:2]) for text in (contents.torch, locked)
            )
            hint = f'ask for `torch=={line}.*`, or take the image with `version: "{other}"`'
            raise unfit(
                f"torch {locked} is in `{wanted.file}`, and the image has {contents.torch}", hint
            )
        wanted = _read(job, tree, file, read, contents, prune=False)
    installation = Installation(wanted, contents, is_named)
    name, text = file, tree.read_text(file) or ""
    if wanted.form != "pip" or ("/" in file and is_new and not is_named):
        name = _LIST if written == _LIST or tree.read_text(_LIST) is None else _OTHER_LIST
        # every launch mode installs `_LIST`
        text = wanted.text if wanted.form != "pip" else f"{WRITTEN}-r {file}\n"
    elif not (installation.keeps_torch and is_new):
        return job, tree, installation
    for path, content in wanted.wheels.items():
        tree = _with_file(tree, path, content)
    return _renamed(job, name), _with_list(tree, name, text, installation), installation


def _read(
    job: AnyJob, tree: Tree, file: str, read: Read, contents: Contents, *, prune: bool
) -> Requirements:
    extras, groups = job.environment.extras, job.environment.groups
    if form_of(file, read(file) or "") == "pip":
        return read_pip(file, read, extras, groups)
    from cloudtrain.code.wheels import read_own_lock

    platform = Platform(contents.python, contents.markers) if contents.python else None
    return read_own_lock(tree, file, read, platform, extras=extras, groups=groups, prune=prune)


def _renamed(job: AnyJob, name: str) -> AnyJob:
    environment = job.environment.model_copy(update={"requirements": name})
    return job.model_copy(update={"environment": environment})


def reader_of(tree: Tree) -> Read:
    """Return a function that reads files of the bundle, and files beside the source folder, such as
    a workspace's lock. Raises JobError for a file that is not plain text."""

    def read(path: str) -> str | None:
        entry = next((entry for entry in tree.entries if entry.path == path), None)
        place = tree.location(entry) if entry is not None else os.path.join(tree.root, path)
        try:
            return read_text(place)
        except (FileNotFoundError, ValueError):  # no file has a name with a NUL character
            return None
        except Unreadable as error:
            message, hint = f"`{path}`: {error.problem.message}", error.problem.hint
        except OSError as error:
            message, hint = (
                f"`{path}` cannot be read: {error.strerror}",
                "name a file that you may read",
            )
        raise JobError([Problem(FIELD, message, hint, code="CT054")])

    return read


def _wanted_torch(wanted: Requirements, contents: Contents) -> str | None:
    """Return the version of torch that a list pins, or the versions that it asks for and the
    machine does not have."""
    machine = Platform(contents.python or "3", contents.markers).environment
    for item in wanted.packages:
        line = package_in(item.line) if item.name == "torch" else None
        if item.name == "torch" and (line is None or line.applies(machine)):
            is_met = line is None or contents.torch is None or line.is_met_by(contents.torch)
            return item.version or (None if is_met or line is None else line.versions)
    return None


def _agree(first: str, second: str) -> bool:
    """Return whether two versions are equal, without their local parts such as `+cu130`, as far as
    both are known: an image's tag may say `2.13` only."""
    pairs = zip(
        first.partition("+")[0].split("."), second.partition("+")[0].split("."), strict=False
    )
    return all(one == other for one, other in pairs)


def _with_list(tree: Tree, name: str, text: str, installation: Installation) -> Tree:
    """Return the bundle with a requirements file, which keeps the image's PyTorch. Without a
    constraint pip replaces it where the machine decides versions: `timm` names no version of torch,
    and the newest torchvision pins the newest torch. pip reads `-c` relative to the file, in every
    launch mode of every target."""
    if installation.keeps_torch:
        beside = posixpath.join(posixpath.dirname(name), _CONSTRAINTS)
        head = WRITTEN if text.startswith(WRITTEN) else ""
        text = f"{head}{_KEEPS}-c {_CONSTRAINTS}\n{text.removeprefix(head)}"
        tree = _with_file(tree, beside, f"{pinned_torch(installation.contents)}\n".encode())
    return _with_file(tree, name, text.encode())


def pinned_torch(contents: Contents) -> str:
    """Return the constraint that keeps the image's PyTorch. It has no local part, which no index
    has: `2.13.0` admits `2.13.0+cu130`. An image's tag may say `2.13` only."""
    public = (contents.torch or "").partition("+")[0]
    return f"torch=={public if public.count('.') > 1 else f'{public}.*'}"


def _with_file(tree: Tree, name: str, content: bytes) -> Tree:
    """Return the bundle with one more file, which is on no disk: a plan writes nothing."""
    entries = [entry for entry in tree.entries if entry.path != name]
    entries.append(Entry(name, len(content), sha256=hashlib.sha256(content).hexdigest()))
    entries.sort(key=lambda entry: os.fsencode(entry.path))
    size = sum(entry.size for entry in entries)
    identity = Bundle(content_hash(entries), size, len(entries))
    return replace(
        tree, entries=tuple(entries), identity=identity, own_files={**tree.own_files, name: content}
    )
