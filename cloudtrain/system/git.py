"""The git commit of the user's code, and whether the code differs from the commit. Nothing in the
repository is ever executed.

Commit and branch are read from the files below `.git`. The differences come from git, which runs in
the background, because it may be slow or missing. A repository can come from an untrusted source,
so its hooks, file monitor, diff drivers and transports are switched off. If the repository
configures filters, git is not called at all, because git would run them.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = "refs/heads/"
_LONGEST = 1 << 23
"""Maximum number of bytes read from a file of git: `packed-refs` of a large repository has some
megabytes."""

_LINKS = 5
"""Maximum length of a chain of symbolic references. A longer chain is treated as circular."""

_SAFE = (
    "git",
    "--no-optional-locks",
    "--no-pager",
    *("-c", "core.fsmonitor="),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.sshCommand=false"),
    *("-c", "diff.external="),
    *("-c", "safe.bareRepository=explicit"),
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""`_SAFE` and `_ENVIRONMENT` keep git from running programs that the repository names, from using
the network, and from asking for a password."""

_OF_THE_REPOSITORY = ("local\t", "worktree\t")
"""How `git config --show-scope` begins the lines of settings that came with the repository."""


@dataclass(frozen=True)
class Commit:
    """The git commit of the user's code.

    Attributes:
        commit: hash of the commit; None before the first commit.
        branch: the current branch; None if no branch is checked out.
        dirty: whether tracked files differ from the commit, or there are untracked files. None if
            git was not called, or did not answer in time.
        difference: hash of the differences in tracked files; None if there are none, or if `dirty`
            is None.
    """

    commit: str | None
    branch: str | None
    dirty: bool | None = None
    difference: str | None = None


def git_timeout() -> float:
    """Return how many seconds a submit waits for git when all its other steps are done.

    The value comes from `CLOUDTRAIN_GIT_TIMEOUT`; default: 2. A value that is not a valid number
    counts as the default.
    """
    try:
        seconds = float(os.environ.get("CLOUDTRAIN_GIT_TIMEOUT", ""))
    except ValueError:
        return 2.0
    return seconds if 0 <= seconds <= threading.TIMEOUT_MAX else 2.0


def commit_of(folder: Path) -> Commit | None:
    """Return commit and branch of the repository that contains `folder`; None outside a repository.
    Starts no program."""
    folders = _git_folder(folder)
    if folders is None:
        return None
    git, common = folders
    text = (_read(git / "HEAD") or "").strip()
    branch = None
    for _ in range(_LINKS):
        if not text.startswith("ref:"):
            break
        name = text.removeprefix("ref:").strip()
        is_safe = name.startswith("refs/") and ".." not in name and name.isprintable()
        if not is_safe or len(name) >= 300:
            return None
        branch = name.removeprefix(_BRANCH)
        text = (_read(common / name) or _packed(common, name)).strip()

    commit = text if _COMMIT.fullmatch(text) else None
    if commit is None and branch is None:
        return None
    return Commit(commit, branch)


class Differences:
    """The differences between the code and its commit. git looks for them in the background until
    `close` ends git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._difference: tuple[bool, str | None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end = threading.Event()
        self._thread = Thread(target=self._ask, daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> tuple[bool, str | None] | None:
        """Wait up to `timeout` seconds for git, then end git. Return whether the code differs, and
        the hash of the differences; None if git has given no complete answer by then."""
        self._thread.join(timeout)
        self._end.set()
        process = self._process
        if process is not None and self._thread.is_alive():
            _kill(process)
        return self._difference

    def _ask(self) -> None:
        """Set `_difference`, unless git fails or would run a filter."""
        with suppress(OSError, subprocess.SubprocessError):
            if self._has_filters():
                return
            status, output = self._output(
                "status", "--porcelain=v1", "-z", "--ignore-submodules=all"
            )
            if status != 0:
                return
            if not output:
                self._difference = (False, None)
                return

            options = (
                "--binary",
                "--full-index",
                "--no-ext-diff",
                "--no-textconv",
                "--ignore-submodules=all",
            )
            status, digest = self._digest("diff", *options, "HEAD", "--")
            if status == 0:
                self._difference = (True, digest)

    def _has_filters(self) -> bool:
        """Return whether the repository's own configuration defines filters for git to run, such as
        those that `git lfs install --local` adds."""
        pattern = r"^(filter\..*|include.*)$"
        status, output = self._output(
            "config", "--show-scope", "--name-only", "--get-regexp", pattern
        )
        if status not in (0, 1):  # 1 says that no setting matches
            return True
        lines = output.decode("utf-8", "replace").splitlines()
        return any(line.startswith(_OF_THE_REPOSITORY) for line in lines)

    def _output(self, *arguments: str) -> tuple[int, bytes]:
        """Return the exit code of git and its output. Output of more than `_LONGEST` bytes is cut.
        That may end git with an error, so it counts as a success."""
        with self._start(arguments) as git:
            assert git.stdout is not None, "it is a pipe"
            output = git.stdout.read(_LONGEST)
            git.stdout.close()
        return git.returncode if len(output) < _LONGEST else 0, output

    def _digest(self, *arguments: str) -> tuple[int, str | None]:
        """Return the exit code of git and the hash of its output; None for an empty output."""
        digest = hashlib.sha256()
        is_empty = True
        with self._start(arguments) as git:
            assert git.stdout is not None, "it is a pipe"
            while piece := git.stdout.read(1 << 16):
                digest.update(piece)
                is_empty = False
        return git.returncode, None if is_empty else digest.hexdigest()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start git in the folder of the code, in a session of its own, so that its children can be
        killed with it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._process = subprocess.Popen(
            [*_SAFE, *arguments],
            cwd=self._folder,
            env={**kept, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._end.is_set():  # `close` came before this process was known
            _kill(self._process)
        return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _git_folder(folder: Path) -> tuple[Path, Path] | None:
    """Return two folders of the repository: the one with HEAD and the one with the branches. They
    differ only in a git worktree. Return None outside a repository."""
    start = Path(os.path.realpath(folder))
    for place in (start, *start.parents):
        git = place / ".git"
        if git.is_dir():
            return git, git

        # In a worktree, `.git` is a file with the path of its folder.
        text = _read(git)
        if text is not None and text.startswith("gitdir:"):
            git = (place / text.removeprefix("gitdir:").strip()).resolve()
            common = _read(git / "commondir")
            if common is None:
                return git, git
            return git, (git / common.strip()).resolve()
    return None


def _packed(common: Path, name: str) -> str:
    """Return the commit of a branch that has no file of its own; empty if there is none."""
    for line in (_read(common / "packed-refs") or "").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return commit
    return ""


def _read(file: Path) -> str | None:
    """Return the text of a regular file; None for a missing file and for anything else, such as a
    pipe."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return stream.read(_LONGEST).decode("utf-8", "replace")
