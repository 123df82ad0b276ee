"""Help: readable at 80 columns without colour, with examples that are real, and quick."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.cli.app import COMMANDS, load_command
from tests.cli.conftest import Cli

REPOSITORY = Path(__file__).parents[2]


def subcommands(name: str) -> list[list[str]]:
    """`[["scripts"], ["scripts", "list"], ...]`."""
    command = load_command(name)
    return [[name], *([name, inner] for inner in getattr(command, "commands", {}))]


PATHS = [path for name in COMMANDS for path in subcommands(name)]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_fits_80_columns_without_colour(cli: Cli, path: list[str]) -> None:
    """Every command has help that fits, on stdout, with an example, and -h is --help."""
    result = cli(*path, "--help")
    assert result.code == 0
    assert result.err == ""
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out
    assert result.out == cli(*path, "-h").out
    if path != ["scripts", "list"]:
        assert f"  cloudtrain {' '.join(path)}" in result.out, "no example"


def examples() -> list[str]:
    """Every example line of every help."""
    found = []
    for path in PATHS:
        command = load_command(path[0])
        for inner in path[1:]:
            command = command.commands[inner]
        found += re.findall(r"^ *(cloudtrain .*)$", command.help or "", re.MULTILINE)
    return found


@pytest.mark.parametrize("example", examples())
@pytest.mark.slow_after(40)
def test_examples_are_real_command_lines(example: str) -> None:
    """The command line of each example is understood: its command, options and arguments exist."""
    for part in re.split(r" && | \| | > ", example.partition("  #")[0]):
        words = part.split()
        if words[0] == "cloudtrain":
            load_command(words[1]).make_context(
                words[1], words[2:], resilient_parsing=False
            ).close()


def test_root_help_lists_every_command_with_its_own_first_line(cli: Cli) -> None:
    """The table of summaries, which spares loading the commands, says what the commands say."""
    out = cli("--help").out
    assert max(map(len, out.splitlines())) <= 80
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", out, re.MULTILINE)
        first = " ".join((load_command(name).help or "").split("\n\n")[0].split())
        assert first == entry.summary


@pytest.mark.parametrize("path", [[], ["plan"], ["logs"], ["instances"]])
def test_the_texts_of_all_tables_begin_in_one_column(cli: Cli, path: list[str]) -> None:
    """The groups of commands have one column, the arguments and options of a command another."""
    tables = cli(*path, "--help").out.split("\nSend a job:\n" if not path else "\nArguments:\n")
    if len(tables) == 1:
        return
    rows = re.findall(r"^  (\S.{0,28}?)(  +)\S", tables[1], re.MULTILINE)
    assert len({len(name) + len(space) for name, space in rows}) == 1


def test_no_arguments_is_help(cli: Cli) -> None:
    """`cloudtrain` alone shows the help and is no error."""
    assert cli() == cli("--help")


def test_version(cli: Cli) -> None:
    """`--version` prints the version on stdout."""
    from cloudtrain import __version__

    assert cli("--version") == (0, f"cloudtrain {__version__}\n", "")


def test_help_imports_no_pydantic_rich_or_yaml() -> None:
    """What is slow to import is not imported to show the help, nor any command's module."""
    code = (
        "import sys; from cloudtrain.cli.app import run_command; run_command(['--help']);"
        "print([m for m in ('rich', 'yaml', 'pydantic', 'psutil', 'cloudtrain.job.training', 'cloudtrain.cli.commands')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stderr == "[]\n"
