"""Runs one case through the real command, in this process, and says what is wrong with what it did."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.fuzz.hostile import SPECIAL
from tests.fuzz.mutations import Case
from tests.fuzz.seeds import GOLDEN_FILES, SCRIPTS, folders

EXIT_CODES = {"check": (0, 2), "submit": (0, 2), "plan": (0, 2, 4)}
"""What the commands may return that talk to no target; 4 is a request that an SDK has no words for."""

MOST_WORDS = 1_000_000
"""Characters of text for a person: more helps no reader. JSON may be as long as the plan has processes."""


class Outcome(NamedTuple):
    """What a command line left."""

    code: object
    out: str
    err: str
    seconds: float
    """CPU time."""


class Sandbox:
    """Folders with the sources of the seeds, in which cases run one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, source in folders().items():
            if source is not None:
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in GOLDEN_FILES.items():
            (root / SCRIPTS / name).parent.mkdir(parents=True, exist_ok=True)
            (root / SCRIPTS / name).write_text(text)
        (root / "bin").mkdir()
        (root / "bin" / "mpirun").write_text("#!/bin/sh\n")
        (root / "bin" / "mpirun").chmod(0o755)
        (root / "home").mkdir()

    @property
    def environ(self) -> dict[str, str]:
        """All that the commands see of the environment."""
        return {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.root / "home"),
            "CLOUDTRAIN_STATE_DIR": str(self.root / "state"),
            "TERM": "dumb",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def files(self) -> set[str]:
        """Every path below the root."""
        return {f"{folder}/{name}" for folder, _, names in os.walk(self.root) for name in names}

    @contextmanager
    def laid_out(self, case: Case) -> Iterator[Path]:
        """The folder of the case with its files; afterwards it is as before."""
        folder = self.root / case.folder
        kept = {name: _content(folder / name) for name in (*case.files, *case.special)}
        try:
            for name, content in case.files.items():
                (folder / name).write_bytes(content)
            for name, kind in case.special.items():
                (folder / name).unlink(missing_ok=True)
                SPECIAL[kind](folder / name)
            os.chdir(folder)
            yield folder
        finally:
            os.chdir(self.root)
            for name, before in kept.items():
                _remove(folder / name)
                if before is not None:
                    (folder / name).write_bytes(before)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


class _Kept(io.BytesIO):
    """Can be read after the stream around it is gone."""

    def close(self) -> None:
        """Stay open."""


def run(case: Case, sandbox: Sandbox) -> Outcome:
    """The command line in this process, as `cloudtrain` runs it."""
    from cloudtrain.cli import main

    given = (sys.argv, sys.stdout, sys.stderr, dict(os.environ))
    written = [_Kept(), _Kept()]
    code: object = None
    with sandbox.laid_out(case):
        start = time.process_time()
        try:
            os.environ.clear()
            os.environ.update(sandbox.environ)
            sys.argv = ["cloudtrain", *case.argv]
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(buffer, encoding="utf-8") for buffer in written
            )
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:  # noqa: BLE001 - it would be a traceback
            code = f"raised {type(error).__name__}: {error}"
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            sys.argv, sys.stdout, sys.stderr = given[:3]
            os.environ.clear()
            os.environ.update(given[3])
        seconds = time.process_time() - start
    out, err = (buffer.getvalue().decode("utf-8", "replace") for buffer in written)
    return Outcome(code, out, err, seconds)


def faults(case: Case, outcome: Outcome) -> Iterator[str]:
    """What the command promises and did not keep."""
    code, out, err, _ = outcome
    command = case.argv[0]
    if code not in EXIT_CODES[command]:
        yield f"exit code {code}: {_first_line(err)}"
        return
    if "Traceback (most recent call last)" in err or "Exception ignored" in err:
        yield f"a traceback: {_first_line(err)}"
    words = len(err) + (len(out) if _form(case.argv) == "text" else 0)
    if words > MOST_WORDS:
        yield f"{words:,} characters of text"
    if code == 4 and "cannot express" not in err:
        yield f"exit code 4 without a target: {_first_line(err)}"
    if code == 0 and command != "check" and not out:
        yield "no output"
    if code and not out:
        yield from _error_faults(err)
    if out:
        yield from _form_faults(_form(case.argv), out)


def _first_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _error_faults(err: str) -> Iterator[str]:
    """Each block is an error with a hint."""
    blocks = [block for block in re.split(r"(?m)^error: ", err) if block]
    if not err.startswith("error: "):
        yield f"stderr begins with something else: {_first_line(err)}"
    for block in blocks:
        if "\nhint: " not in block:
            yield f"no hint: {_first_line(block)}"
        code = re.search(r"\[([A-Z]{2}[0-9]{3})\]", block)
        if code is None:
            yield f"no code: {_first_line(block)}"


def _form(argv: list[str]) -> str:
    if "--json" in argv:
        return "json"
    return argv[argv.index("--format") + 1] if "--format" in argv else "text"


def _form_faults(form: str, out: str) -> Iterator[str]:
    """Whether the output is what its format promises."""
    try:
        if form in ("json", "request", "aws-cli"):
            json.loads(out, parse_constant=_no_json)
        elif form == "az-cli":
            yaml.load(out, yaml.CSafeLoader)
        elif form == "python":
            compile(out, "plan.py", "exec")
    except (ValueError, yaml.YAMLError, SyntaxError, RecursionError) as error:
        yield f"the output is no {form}: {type(error).__name__}: {error}"


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
