"""Commands for a shell on another machine: quoted for any shell, run as a rank's process is, and
with marks around their output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_DECODE = (
    'for word; do printf -v word %b "$word"; shift; set -- "$@" "$word"; done; script=$1; '
    'shift; eval "$script"'
)
"""Bash code that decodes the words that `_encode` has encoded, and runs the first of them with the
others as its arguments."""


def _encode(word: str) -> str:
    """Return a word for `printf %b` without line ends, quotes, backslashes, `!` and braces. Shells
    such as csh do not take them within quotes, and documents of AWS replace what is in braces."""
    letters = []
    for letter in word:
        is_special = letter in "'\\!{}" or letter < " "
        letters.append(f"\\0{ord(letter):03o}" if is_special else letter)
    return "".join(letters)


def enter_script() -> str:
    """Return Bash code that runs its arguments, from the third on, as the rank of the second one:
    in the environment and the folder of its process."""
    return Path(__file__).with_name("enter.sh").read_text("utf-8")


_BEGIN = "\\001cloudtrain\\001\\n"
_END = "\\001cloudtrain %d\\001\\n"

MARKS = re.compile(rb"(.*?)\x01cloudtrain (\d+)\x01", re.DOTALL)
"""The output of a marked command, and its exit code."""

BEGIN = re.compile(rb"\x01cloudtrain\x01\r?\n")
"""What comes before the output of a marked command: the greeting of a session ends here."""


def remote_line(script: str, arguments: Sequence[str], shell: str = "-c") -> str:
    """Return the command line that runs a script of Bash, for any shell of another machine: csh,
    tcsh and fish do not take all quotes of a POSIX shell (csh ends a quoted text at the end of its
    line). With `-lc` as `shell`, the profiles of a login shell are read."""
    words = ["bash", shell, _DECODE, "cloudtrain", *map(_encode, (script, *arguments))]
    return " ".join(f"'{word}'" for word in words)


def marked(script: str) -> str:
    """Return the script with marks in its output, which say where its own begins, and its exit
    code."""
    return f"printf '{_BEGIN}'; (\n{script}\n); printf '{_END}' $?"
