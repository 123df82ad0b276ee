"""What of an interpreter on Linux an interpreter on a Mac lacks, taken away when this module is imported.

tools/run/mac_python.py makes an interpreter that imports this before anything else, also with `-I` and `-S`, so that every
process of a test is concerned: commands, supervisors, launchers and ranks.

The files of /proc and /sys are hidden from cloudtrain and its training scripts alone: psutil and torch have
other code on a Mac, which is not what is tested here. docs/reference/platforms.md says what this cannot imitate.
"""

from __future__ import annotations

import _socket
import builtins
import errno
import io
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

ABSENT: dict[ModuleType, str] = {
    os: (
        "pidfd_open sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler "
        "sched_getparam sched_setparam sched_rr_get_interval eventfd eventfd_read eventfd_write "
        "memfd_create copy_file_range splice setresuid setresgid getresuid getresgid "
        "posix_fadvise posix_fallocate fdatasync pipe2 getxattr setxattr listxattr removexattr "
        "waitid P_PIDFD getrandom unshare setns O_TMPFILE O_PATH O_DIRECT O_NOATIME O_RSYNC"
    ),
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGSTKFLT SIGPWR SIGPOLL SIGCLD",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    _socket: (
        "SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SO_BINDTODEVICE SO_DOMAIN SO_PROTOCOL SO_MARK "
        "AF_NETLINK AF_VSOCK AF_ALG TCP_USER_TIMEOUT TCP_QUICKACK"
    ),
}
"""Names of modules, as the standard library's documents give their availability."""

HIDDEN = ("/proc", "/sys")


def _is_hidden(path: object) -> bool:
    """Return whether this is a path of Linux alone, and cloudtrain asks for it."""
    if isinstance(path, int):
        return False
    try:
        name = os.fsdecode(path)  # type: ignore[arg-type] # what is no path is nothing to hide
    except TypeError:
        return False
    if not any(name == root or name.startswith(f"{root}/") for root in HIDDEN):
        return False
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] == "cloudtrain" or "/training_scripts/" in frame.f_code.co_filename


_LIBRARY = os.path.dirname(os.__file__)


def _is_of_library(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_LIBRARY) and "site-packages" not in file)


def _hiding(function: Callable[..., Any], *, path_first: bool = True) -> Callable[..., Any]:
    """Return the function for a system on which the hidden files do not exist."""

    def hide(*arguments: Any, **options: Any) -> Any:
        if arguments and _is_hidden(arguments[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
        return function(*arguments, **options)

    return hide


def _hide_files() -> None:
    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
        original = getattr(os, name)
        hiding = _hiding(original)
        # these name the functions that take a descriptor for a path, or `dir_fd`
        for supports in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            if original in supports:
                supports.add(hiding)
        setattr(os, name, hiding)
    access = os.access
    os.access = lambda path, *rest, **options: (  # type: ignore[assignment]
        not _is_hidden(path) and access(path, *rest, **options)
    )
    io.open = builtins.open = _hiding(io.open)  # type: ignore[assignment]


def _remove_names() -> None:
    for module, names in ABSENT.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


_remove_names()
_hide_files()
