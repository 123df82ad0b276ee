"""Paths that users write, trust in settings files, and the sizes and removal of run folders."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

from cloudtrain.errors import SettingsError


def expand_home(path: str) -> Path:
    """Return the path with a leading `~` or `~user` replaced by the home folder. The `~user` of an
    unknown user is not replaced."""
    # Path.expanduser raises for that user.
    return Path(os.path.expanduser(path))


def why_missing(path: str) -> str | None:
    """Return why nothing can be found at a path, as the end of a sentence (`does not exist`); None
    if the path exists."""
    try:
        # A Path raises for other reasons on each version of Python.
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError:
        return "is not a path: it has a NUL character in it"
    return None


def links_to(path: str) -> Iterator[str]:
    """Yield each link that the system follows to reach an absolute path, from the first to the
    last."""
    reached = os.sep
    rest = path.split("/")[::-1]  # the last part is the next
    for _ in range(10_000):  # two links can lead to each other
        if not rest:
            return
        item = os.path.normpath(os.path.join(reached, rest.pop()))
        if not os.path.islink(item):
            reached = item
            continue

        yield item
        target = os.readlink(item)
        rest += target.split("/")[::-1]
        if os.path.isabs(target):
            reached = os.sep


def is_root(path: str) -> bool:
    """Return whether a path leads to the root of this machine's file system, whatever its
    spelling."""
    try:
        return os.path.samefile(path, os.sep)
    except (OSError, ValueError):
        return False


# Trust: a settings file counts only if nobody but you or root can have written it.
#
# cloudtrain looks for settings in the working directory and all parent folders, and applies them:
# `python` in `cloudtrain.toml` names the program that a run starts. So a settings file counts only
# if
#
# * you or root own the file, and nobody else may write to it;
# * you or root own its folder, and nobody else may write there. A folder with the sticky bit, such
#   as /tmp, may be open to everybody, because other users cannot replace your files in it;
# * if the file is a link, the same is true of each link up to the final file, and of their folders.
#   Otherwise, others could make the link lead to any of your files.
#
# A group with you as its only member counts as you. Many Linux distributions give each user such a
# group and make new files writable for the group.
#
# A file that fails these checks is an error. If cloudtrain skipped the file, the job would run with
# other settings. CLOUDTRAIN_TRUST names folders in which all files count, even if others can write
# there: absolute paths with `:` between them. ssh (StrictModes) and git (safe.directory) make
# similar checks.

VARIABLE = "CLOUDTRAIN_TRUST"


def require_trust(file: Path, status: os.stat_result) -> None:
    """Refuse a settings file that another user may have written. `status` is the `os.stat` result
    of the open file.

    Raises:
        SettingsError: the file is not trusted.
    """
    trusted = set(_trusted_folders())
    for hop in _hops(file.absolute()):
        parent = hop.parent.resolve()
        if not trusted.isdisjoint((parent, *parent.parents)):
            continue

        folder = hop.parent.stat()
        itself = hop.lstat()
        problem = _problem(status, is_file=True)
        if problem:
            raise _refusal(file, file, f"it {problem}", status)
        if stat.S_ISLNK(itself.st_mode) and _is_of_another(itself):
            raise _refusal(file, hop, f"the link `{hop}` {_belongs(itself)}", itself)
        problem = _problem(folder, is_file=False)
        if problem:
            raise _refusal(file, hop.parent, f"its folder {problem}", folder)


def _hops(file: Path) -> Iterator[Path]:
    """Yield the file, and if it is a link, each further link and the final file that it leads
    to."""
    yield file
    for _ in range(40):  # the most that Linux follows
        if not file.is_symlink():
            return
        file = file.parent / file.readlink()
        yield file


def _problem(status: os.stat_result, *, is_file: bool) -> str | None:
    """Return why other users may have written the file or folder, such as `may be written by
    everybody`; None if they cannot."""
    if _is_of_another(status):
        return _belongs(status)
    if not is_file and status.st_mode & stat.S_ISVTX:  # others cannot replace your files there
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_only_you(status.st_gid):
        return f"may be written by the group {_group(status.st_gid)}"
    return None


def _is_of_another(status: os.stat_result) -> bool:
    return status.st_uid not in (os.getuid(), 0)


def _belongs(status: os.stat_result) -> str:
    name = str(status.st_uid)
    with suppress(KeyError):  # the system does not know the user
        name = f"`{pwd.getpwuid(status.st_uid).pw_name}`"
    return f"belongs to the user {name}"


def _group(number: int) -> str:
    import grp

    try:
        return f"`{grp.getgrgid(number).gr_name}`"
    except KeyError:
        return str(number)


def _refusal(file: Path, culprit: Path, problem: str, status: os.stat_result) -> SettingsError:
    """Return the error about a settings file. `culprit` is the file, link or folder that has the
    problem and the status."""
    folder = quote(str(file.absolute().parent))
    hint = f"`export {VARIABLE}={folder}` if you trust everyone who can write there"
    if status.st_uid == os.getuid():
        hint = f"`chmod go-w {quote(str(culprit))}`, or {hint}"
    else:
        hint += "; a settings file of your own in a folder nearer to the job takes precedence"
    return SettingsError(f"{file} is not trusted: {problem}", hint=hint)


def _trusted_folders() -> list[Path]:
    """Return the folders that CLOUDTRAIN_TRUST names. Raises SettingsError for a relative path."""
    folders = []
    for part in os.environ.get(VARIABLE, "").split(os.pathsep):
        if not part:
            continue
        path = expand_home(part)
        if not path.is_absolute():  # its meaning would depend on the working directory
            hint = f"`export {VARIABLE}={quote(str(path.absolute()))}`"
            raise SettingsError(
                f"{VARIABLE} contains `{path}`, which is not an absolute path", hint=hint
            )
        folders.append(path.resolve())
    return folders


def _is_only_you(number: int) -> bool:
    """Return whether you are the only member of a group."""
    import grp

    try:
        group = grp.getgrgid(number)
        you = pwd.getpwuid(os.getuid())
    except KeyError:
        return False

    # The group file does not list users whose primary group it is.
    members = set(group.gr_mem)
    for user in pwd.getpwall():
        if user.pw_gid == number:
            members.add(user.pw_name)
    return members == {you.pw_name}


# Size and removal of run folders.

LEFT_OVER = ".removed"
"""Suffix of the name of a folder that is being removed. No run's folder has it."""


def folder_size(folder: Path) -> int:
    """Return the size in bytes of all files below a folder. Links are not followed; unreadable
    files count as 0."""
    total = 0
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as items:
            for item in items:
                with suppress(OSError):
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
    return total


def remove_folder(folder: Path) -> None:
    """Remove a folder with its content. The folder is renamed first, so its name can be used again
    even if the removal is interrupted.

    Raises:
        OSError: the folder cannot be removed.
    """
    leftover = folder.with_name(folder.name + LEFT_OVER)
    if leftover.exists():
        shutil.rmtree(leftover)
    with suppress(FileNotFoundError):
        folder.rename(leftover)
        shutil.rmtree(leftover)


STORE_FILE = "runs.db"
"""The file of the store in the state folder."""

METRICS = "metrics"
"""The folder in the state folder with metrics that were read elsewhere, in one folder for each
run."""

FOUND = "found"
"""The folder inside a run's folder in `METRICS` with what was found in its log and its files."""

READING = ".reading-"
"""Prefix of the name of a folder in `METRICS` that is not complete."""

KEPT = (
    STORE_FILE,
    "bundles",
    "chains",
    "environments",
    METRICS,
    "notifications",
    "queue",
    "runs",
    "submitting",
    "sweeps",
)
"""The names of everything that cloudtrain keeps in the state folder."""
