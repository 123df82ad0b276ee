"""The options of a script: read where its text tells all of them, and otherwise not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.job.from_script import options_of_script

REPOSITORY = Path(__file__).parents[2]

PLAIN = """\
import argparse

def read():
    parser = argparse.ArgumentParser(description="a")
    parser.add_argument("--epochs", "-e", type=int)
    group = parser.add_argument_group("more")
    group.add_argument("--learning-rate", type=float, nargs="+")
    parser.add_argument("folder", nargs="?")
    return parser.parse_args()

if __name__ == "__main__":
    read()
"""


def test_the_options_of_a_plain_script() -> None:
    """With those of its groups, and `--help`."""
    found = options_of_script(PLAIN)
    assert found is not None
    assert {name for name in found if not name.startswith("no-")} == {"epochs", "e", "learning-rate", "help", "h"}
    imported = PLAIN.replace("import argparse", "from argparse import ArgumentParser as P").replace(
        "argparse.ArgumentParser", "P"
    )
    assert options_of_script(imported) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parser.parse_args()", "parser.parse_known_args()[0]"),
        ("parser.parse_args()", "parser.parse_args(['--epochs', '1'])"),
        ("return parser", "add_more(parser)\n    return parser"),
        ("return parser", "add = parser.add_argument\n    add('--x')\n    return parser"),
        ("return parser", "parser = other(1)\n    return parser"),
        ("return parser", "subparsers = parser.add_subparsers()\n    return parser"),
        ("return parser", "for name in NAMES: parser.add_argument('--' + name)\n    return parser"),
        ("return parser", "parser.add_argument(*NAMES)\n    return parser"),
        ("return parser", "parser.add_argument('--x', **MORE)\n    return parser"),
        ("return parser", "parser.add_argument('rest', nargs=argparse.REMAINDER)\n    return parser"),
        ("return parser", "parser.add_argument('rest', nargs='...')\n    return parser"),
        ("return parser", "parser.error = print\n    return parser"),
        ('description="a"', "parents=[base]"),
        ('description="a"', "**config"),
        ('description="a"', 'prefix_chars="+"'),
        ("import argparse", "import argparse\nimport sys\nsys.argv[1:] = []"),
        ("import argparse", "from sys import argv\nimport argparse"),
        ("import argparse", "import jsonargparse as argparse"),
        ("import argparse", "from tools import *\nimport argparse"),
        ("    read()", "    try:\n        read()\n    except SystemExit:\n        pass"),
        ("    read()", "    pass"),
        ("def read():", "def read(parser):"),
        ("group = parser", "self.group = parser"),
        ("import argparse", "import argparse\nother = argparse.ArgumentParser()"),
        ("def read():", "def read(:"),
    ],
)
def test_what_is_not_certain(old: str, new: str) -> None:
    """A script that may know other options, or go on without them, is not read."""
    assert old in PLAIN
    assert options_of_script(PLAIN.replace(old, new)) is None


def test_no_script_of_the_repository_is_misread() -> None:
    """Whatever is read of a script that comes with cloudtrain is what its text adds."""
    scripts = [path for name in ("training_scripts", "examples") for path in (REPOSITORY / name).rglob("*.py")]
    assert len(scripts) > 20
    for path in scripts:
        text = path.read_text("utf-8")
        for option in options_of_script(text) or ():
            assert option in ("help", "h") or f'-{option.removeprefix("no-")}"' in text, path
