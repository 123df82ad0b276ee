"""Shells on a terminal, as somebody types into them."""

from __future__ import annotations

import time

import pexpect

from tests.deadlines import DEADLINE


def interrupt(shell: pexpect.spawn[str]) -> int:
    """Press Ctrl-C until the shell reads its next line, and return the exit code that it then has. A shell misses one that
    comes while it starts a program, which then goes on.
    """
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        shell.sendintr()
        shell.sendline("echo back-$?-$((40 + 2))")
        if shell.expect(["back-([0-9]+)-42", pexpect.TIMEOUT], timeout=10) == 0:
            assert shell.match is not None
            return int(shell.match[1])
    raise AssertionError(f"Ctrl-C ends nothing: {shell.before}")
