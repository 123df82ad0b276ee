"""Whose files are obeyed: those that nobody but you, or root, can have written.

cloudtrain looks for settings in the working directory and in every folder above it, and does what they say: `python` in
`cloudtrain.toml` names the program that a run starts. So a file that is found there counts only if

* you or root own it, and nobody else may write to it;
* the same is true of the folder in which it lies. A folder with the sticky bit, as /tmp, may be open to everybody:
  there, nobody can replace a file of yours. Behind a link, the folder of the real file counts as well.

A group that has no member but you is you: many Linux distributions give everybody a group, and files that it may write.

A file that fails is an error and not passed over, because the job would run with other settings than the file says.
CLOUDTRAIN_TRUST names folders in which all files count, whoever may write there: absolute paths with `:` between them.
ssh (StrictModes) and git (safe.directory) have the same rule.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from shlex import quote

from cloudtrain.errors import SettingsError

VARIABLE = "CLOUDTRAIN_TRUST"

_READABLE = "make it a plain file that you may read, or remove it"

_LONGEST = 16 * 2**20
"""Bytes of a file that are read; the largest that cloudtrain writes has one million. An endless file must end."""


def read_trusted(file: Path) -> bytes:
    """The content of a settings file, if it counts.

    Raises:
        SettingsError: somebody else can have written it, or it cannot be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer must not block
    except OSError as error:
        raise SettingsError(f"`{file}` cannot be read: {error.strerror}", hint=_READABLE, code="CT911") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(f"`{file}` cannot be read: it is not a plain file", hint=_READABLE, code="CT911")
        require_trust(file, status)
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(_LONGEST)
    finally:
        os.close(descriptor)


def require_trust(file: Path, status: os.stat_result) -> None:
    """Refuse a settings file that somebody else can have written; `status` is that of the open file.

    Raises:
        SettingsError: it does not count.
    """
    if not hasattr(os, "getuid"):  # Windows has other means
        return
    trusted = _trusted_folders()
    places = dict.fromkeys((file.absolute().parent, file.resolve().parent))
    for place in places:
        if _is_below(place, trusted):
            continue
        folder = place.stat()
        if problem := _problem(status, is_file=True):
            raise _refusal(file, file, problem, status)
        if problem := _problem(folder, is_file=False):
            raise _refusal(file, place, f"its folder {problem}", folder)


def _problem(status: os.stat_result, *, is_file: bool) -> str | None:
    """Who else could have written it; None where nobody could."""
    if status.st_uid not in (os.getuid(), 0):
        return f"belongs to {_user(status.st_uid)}"
    if not is_file and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_only_you(status.st_gid):
        return f"may be written by the group {_group(status.st_gid)}"
    return None


def _refusal(file: Path, culprit: Path, problem: str, status: os.stat_result) -> SettingsError:
    trust = f"`export {VARIABLE}={quote(str(file.absolute().parent))}` if you trust everyone who can write there"
    closed = f"`chmod go-w {quote(str(culprit))}`" if status.st_uid == os.getuid() else None
    hint = f"{closed}, or {trust}" if closed else f"{trust}; a file of yours nearer to the job comes before it"
    who = problem if culprit != file else f"it {problem}"
    return SettingsError(f"{file} is not used: {who}", hint=hint)


def _trusted_folders() -> list[Path]:
    """Raises: SettingsError: a path is not absolute, so that it would mean another folder from each place."""
    given = [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    for path in given:
        if not path.is_absolute():
            raise SettingsError(
                f"{VARIABLE} has `{path}`, which is not an absolute path",
                hint=f"`export {VARIABLE}={quote(str(path.absolute()))}`",
            )
    return [path.resolve() for path in given]


def _is_below(place: Path, folders: list[Path]) -> bool:
    resolved = place.resolve()
    return any(resolved == folder or folder in resolved.parents for folder in folders)


def _is_only_you(number: int) -> bool:
    """Whether a group has you and no other member."""
    import grp
    import pwd

    try:
        group, you = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    members = {*group.gr_mem, *(entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == number)}
    return members == {you.pw_name}


def _user(number: int) -> str:
    import pwd

    try:
        return f"the user `{pwd.getpwuid(number).pw_name}`"
    except KeyError:
        return f"the user {number}"


def _group(number: int) -> str:
    import grp

    try:
        return f"`{grp.getgrgid(number).gr_name}`"
    except KeyError:
        return str(number)
