"""Completion of words with colons in bash. bash passes `bundled:dig` as three words and replaces only the last one."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, MutableMapping

_WORDS, _INDEX = "COMP_WORDS", "COMP_CWORD"


def with_whole_words(complete: Callable[[], int], environ: MutableMapping[str, str] = os.environ) -> int:
    """Join the words that bash split at colons, run `complete`, and return its exit code.

    The completions are printed without the part up to the last colon, because bash keeps this part on the command line.
    """
    kept = _join_colons(environ)
    if not kept:
        return complete()
    answers = io.StringIO()
    try:
        with contextlib.redirect_stdout(answers):
            code = complete()
    except SystemExit as ended:  # how Typer ends a completion
        code = int(ended.code or 0)
    sys.stdout.writelines(f"{answer.removeprefix(kept)}\n" for answer in answers.getvalue().splitlines() if answer)
    return code


def _join_colons(environ: MutableMapping[str, str]) -> str:
    """Join the words that bash split at colons, by changing bash's variables in `environ`. Return the part of the word
    at the cursor up to and including its last colon: `bundled:` for `bundled:dig`; an empty string without a colon."""
    words, index = environ.get(_WORDS, "").split(), environ.get(_INDEX, "")
    if ":" not in words or not index.isdecimal():
        return ""
    before, after = words[: int(index) + 1], words[int(index) + 1 :]
    joined: list[str] = []
    for word in before:
        if joined and (word == ":" or joined[-1].endswith(":")):
            joined[-1] += word
        else:
            joined.append(word)
    environ[_WORDS] = "\n".join([*joined, *after])
    environ[_INDEX] = str(len(joined) - 1)
    head, colon, _ = joined[-1].rpartition(":")
    return head + colon
