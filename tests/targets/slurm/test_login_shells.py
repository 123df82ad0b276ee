"""What ssh is told to run on the login node. `ssh` is a small script here, which runs it in one shell or another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cloudtrain.targets.slurm.runner import Runner

WORDS = (
    "",
    " ",
    "it's",
    'a "quoted" word',
    "two\nlines\n",
    "back\\slash\\n",
    "wow!!",
    "$HOME `ls` $(ls)",
    "ü%s",
    "a\tb\r",
)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with an `ssh` that notes the command, and runs it in the shell that the host is named after."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = 'while [ "$1" != -- ]; do shift; done\nprintf %s "$3" >"$0.said"\nexec "$2" -c "$3"\n'
    (folder / "ssh").write_text(f"#!/bin/bash\n{ssh}")
    (folder / "ssh").chmod(0o755)
    return folder


def runner(commands: Path, shell: str) -> Runner:
    environ = {"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(commands.parent)}
    return Runner(shell, environ, commands.parent / "state")


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "csh", "tcsh", "fish", "zsh", "ksh"])
def test_every_login_shell(commands: Path, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script and its arguments arrive unchanged, whatever the shell of the account on the login node is."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = "# it's a comment!\nprintf '%s|' \"$@\"\ncat\n"
    monkeypatch.setattr("cloudtrain.targets.slurm.runner.shell_script", lambda _: script)
    answer = runner(commands, shell).run("echo", *WORDS, stdin=b"from stdin")
    assert answer.decode() == "|".join((*WORDS, "from stdin"))


def test_one_line_of_plain_quotes(commands: Path) -> None:
    """The command is one line of single-quoted words, which all these shells read alike."""
    runner(commands, "bash").run("exists", *WORDS)
    said = (commands / "ssh.said").read_text()
    assert said.isprintable()
    assert "!" not in said
    assert said.split("' '")[0] == "'bash"
    assert said.count("'") == 2 * (5 + len(WORDS))
