"""Arguments after the shell of old toolkits, compared with real shells."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudtrain.targets.sagemaker.launch.commands import command
from cloudtrain.targets.sagemaker.launch.container import HostSetup
from cloudtrain.targets.sagemaker.launch.shell import arrives, arrives_intact, shell_tokens
from tests.deadlines import DEADLINE
from tests.targets.sagemaker.container_requests import host_named, pytorch, request

OLD, EXACT = "5.1.1", "5.1.3"
SHELLS = [path for path in (shutil.which("dash"), shutil.which("bash")) if path]
"""`/bin/sh` in images on Ubuntu and on Amazon Linux."""

SHOW = '#!/bin/sh\nprintf \'%s\\0\' "$0" "$@"\n'


@contextmanager
def code_folder(name: str) -> Iterator[Path]:
    """A folder with one script, which prints its argv."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / name
        script.write_text(SHOW)
        script.chmod(0o755)
        yield Path(folder)


def really(shell: str, line: str, folder: Path) -> tuple[str, ...]:
    """What the script in the folder receives when the shell gets a line, as asyncio's shell starts it."""
    result = subprocess.run(
        ["sh", "-c", line],
        executable=shell,
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE,
        check=True,
    )
    return tuple(result.stdout.decode().split("\0")[:-1])


QUIET = "xy1 '\"\\#~=!-,.{[]%^@:/\té"
ACTING = "$`;*?}<>()&|\n"
ARGUMENTS = st.lists(st.text(QUIET, max_size=8) | st.text(QUIET + ACTING, max_size=6), max_size=4)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
@settings(deadline=None)
@given(arguments=ARGUMENTS)
@example(arguments=["[1, 2]", "", 'it"s"', "a\\ b", "\\\\", "#x", "y"])
@example(arguments=["'a b'", '"a\\"b"', "x#y", "{x:", "1}", "=x", '"a\\\nb"'])
def test_what_is_left_is_what_a_shell_leaves(shell: str, arguments: list[str]) -> None:
    """Where an answer is given, both shells give the script exactly those arguments."""
    argv = ("./show", *arguments)
    found = shell_tokens(argv, OLD)
    if found is None:
        return
    with code_folder("show") as folder:
        assert really(shell, " ".join(argv), folder) == found


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize("toolkit", ["5.1.1", "5.1.2", "5.1.3"])
@settings(deadline=None)
@given(value=st.text("xy '\"\\$`;#*é-\n", max_size=8))
@example(value="it's")
@example(value="two words")
def test_shell_scripts(shell: str, toolkit: str, value: str) -> None:
    """A shell script's arguments are quoted once; old toolkits parse them twice, and the answer knows it."""
    body = request(sagemaker_program="train.sh", value=value, z=1)
    argv = command(HostSetup(body, host_named(body), pytorch(toolkit), gpus=0)).argv
    found = shell_tokens(argv, toolkit)
    if found is None:
        assert toolkit < EXACT
        return
    with code_folder("train.sh") as folder:
        if toolkit < EXACT:
            assert really(shell, " ".join(argv), folder) == found
        else:
            assert (
                found
                == ("./train.sh", "--value", value, "-z", "1")
                == really(shell, argv[2], folder)
            )


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("resnet50", "resnet50"),
        (0.001, "0.001"),
        (True, "True"),
        ({"b": 1, "a": 2}, "a=2,b=1"),
        ("s3://bucket/a-b_c", "s3://bucket/a-b_c"),
        ("-1", "-1"),
        ('it"s"', "its"),
        ("C:\\x", "C:x"),
        ("é", "é"),
        ("x=~", "x=~"),
        (None, None),
        ("", None),
        ("two words", None),
        ([1, 2], None),
        ([1], None),
        ("it's", None),
        ("a;b", None),
        ("$HOME", None),
        ("`id`", None),
        ("*.py", None),
        ("#1", None),
        ("~", None),
        ("{a,b}", None),
        ("a\nb", None),
    ],
)
def test_values_through_the_shell(value: Any, left: str | None) -> None:
    """What a script gets of a hyperparameter with toolkit 5.1.1, and that 5.1.3 changes nothing."""
    assert arrives(value, OLD) == left
    assert arrives_intact(value, EXACT)


def test_shell_scripts_keep_blanks() -> None:
    """A shell script gets `two words` even from an old toolkit, which quotes for it; not so what a dollar begins."""
    assert arrives("two words", OLD, script="train.sh") == "two words"
    assert arrives("it's", OLD, script="train.sh") is None
    assert arrives("$HOME", OLD, script="train.sh") is None


def test_zero_bytes_start_nothing() -> None:
    """No program can be started with a zero byte in an argument."""
    assert arrives("a\0b", EXACT) is None
