"""LO207: what a requirements file asks for, against what the interpreter of a local run has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pydantic
import pytest

import cloudtrain as ct
from tests.rules.test_rules import Case, check

PYDANTIC = pydantic.VERSION


def findings(
    make_source: Callable[..., Path], text: str, python: str = sys.executable, **more: str
) -> list[str]:
    """What LO207 says about a requirements file; `more` are other files of the source folder."""
    files = {
        "train.py": "",
        "requirements.txt": text,
        **{name.replace("_", "."): found for name, found in more.items()},
    }
    case = Case(
        {"environment": {"requirements": "requirements.txt"}},
        ct.Local(python=python, build_environment=False),
        files,
    )
    return [
        f"{item.message}; {item.hint}" for item in check(case, make_source) if item.code == "LO207"
    ]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("no-such-package", "`no-such-package`"),
        ("no-such-package[extra]>=1  # why", "`no-such-package>=1`"),
        ("no-such-package @ git+https://host/repo@3a31", "`no-such-package`"),
        ("pydantic<2", f"`pydantic<2` (it has {PYDANTIC})"),
        ("pydantic >= 2, < 2.1", f"`pydantic>=2,<2.1` (it has {PYDANTIC})"),
        ("Pydantic==1.*", f"`Pydantic==1.*` (it has {PYDANTIC})"),
        ("pydantic~=99.1", f"`pydantic~=99.1` (it has {PYDANTIC})"),
        (f"no-such-package --hash=sha256:{'0' * 64}", "`no-such-package`"),
        (
            "no-such-package; python_version >= '3.8' and sys_platform != 'win32'",
            "`no-such-package`",
        ),
        ("-r more.txt", "`no-such-package`"),
    ],
)
def test_what_is_missing_is_named(make_source: Callable[..., Path], line: str, named: str) -> None:
    """With the version that is there, and with what installs it."""
    (found,) = findings(make_source, f"{line}\n", more_txt="-r requirements.txt\nno-such-package\n")
    assert f"lacks packages that `requirements.txt` requires: {named}; `" in found
    assert " -m pip install " in found


@pytest.mark.parametrize(
    "line",
    [
        "", "# nothing", "pydantic", "pydantic>=2", "pydantic~=2.0", f"pydantic=={PYDANTIC}", "pydantic==2.*",
        "pydantic>=2.0rc1", "PyYAML!=1.0", "no-such-package; python_version < '3'", "no-such-package; extra == 'gpu'",
        "--extra-index-url https://host/simple", "https://host/package.whl", "-e .", "./wheels/own.whl",
        "no-such-package; sys_platform == 'win32' or platform_system == 'Windows'",
    ],
)  # fmt: skip
def test_what_is_there_or_is_not_understood_is_left_alone(
    make_source: Callable[..., Path], line: str
) -> None:
    """Nobody is told that something is missing that is not."""
    assert findings(make_source, f"{line}\n") == []


def test_another_interpreter_is_asked(make_source: Callable[..., Path], tmp_path: Path) -> None:
    """Once, as a process; one that answers nothing, or is none, is no reason to say something."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho asked >> {tmp_path}/asked\nexec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o700)
    (found,) = findings(make_source, "pydantic\nPyYAML\n", str(python))
    assert (
        f"`{python}` lacks packages that `requirements.txt` requires: `pydantic`, `PyYAML`; "
        in found
    )
    assert (tmp_path / "asked").read_text() == "asked\n"
    python.write_text("#!/bin/sh\necho nonsense\n")
    assert findings(make_source, "pydantic\n", str(python)) == []
    assert findings(make_source, "pydantic\n", "/no/such/python") == []


def test_no_interpreter_starts_for_nothing(
    make_source: Callable[..., Path], tmp_path: Path
) -> None:
    """A job without requirements asks nobody."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\n")
    python.chmod(0o700)
    check(Case(target=ct.Local(python=os.fspath(python))), make_source)
    assert not (tmp_path / "asked").exists()
