"""The options of a script: read where its text tells all of them, and otherwise not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.job.options import options_of_script

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
    assert {name for name in found.names if not name.startswith("no-")} == {
        "epochs",
        "e",
        "learning-rate",
        "help",
        "h",
    }
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
        (
            "return parser",
            "parser.add_argument('rest', nargs=argparse.REMAINDER)\n    return parser",
        ),
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
    scripts = [
        path
        for name in ("training_scripts", "examples")
        for path in (REPOSITORY / name).rglob("*.py")
    ]
    assert len(scripts) > 20
    for path in scripts:
        text = path.read_text("utf-8")
        found = options_of_script(text)
        for option in found.names if found is not None and found.of_argparse else ():
            assert option in ("help", "h") or f'-{option.removeprefix("no-")}"' in text, path


RUNTIME = """\
import sys
from dataclasses import dataclass, replace

from cloudtrain import runtime


@dataclass
class Config:
    epochs: int = 3
    learning_rate: float = 0.1


config = runtime.arguments(Config, at_least={"epochs": 1})
tuned = runtime.arguments(replace(Config(), **PRESET))
print([*sys.argv])
"""


def test_the_options_of_a_script_with_the_runtime() -> None:
    """They are the fields of its dataclass: whole names, in which a dash is an underscore."""
    found = options_of_script(RUNTIME)
    assert found is not None
    assert found.names == {"epochs", "learning_rate"}
    assert [found.accept(name) for name in ("epochs", "learning-rate", "epoch", "help")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Config:", "class Config(Base):"),
        ("runtime.arguments(Config,", "runtime.arguments(DEFAULTS,"),
        ("runtime.arguments(Config,", "runtime.arguments(Config, sys.argv[2:],"),
        ("runtime.arguments(Config,", "runtime.arguments(Config, ['--epochs', '1'],"),
        ("runtime.arguments(Config,", "runtime.arguments(Config, argv=WORDS,"),
        ("runtime.arguments(Config,", "runtime.arguments(defaults=Config,"),
        (
            'config = runtime.arguments(Config, at_least={"epochs": 1})\ntuned =',
            "def read():\n    return",
        ),
        ("print(", "sys.argv.remove('x')\nprint("),
    ],
)
def test_what_is_not_certain_of_a_script_with_the_runtime(old: str, new: str) -> None:
    """Fields of another file, and arguments that the script changes, are not read."""
    assert old in RUNTIME
    assert options_of_script(RUNTIME.replace(old, new)) is None


@pytest.mark.parametrize(
    "script",
    sorted((REPOSITORY / "training_scripts").glob("*/train.py")),
    ids=lambda p: p.parent.name,
)
def test_the_options_of_each_training_script_are_known(script: Path) -> None:
    """So a misspelt one is an error before its machines start."""
    found = options_of_script(script.read_text("utf-8"))
    assert found is not None
    assert not found.of_argparse
    assert "sede" not in found.names
    assert len(found.names) > 5


def test_what_a_script_requires() -> None:
    """An option of argparse by its longest name, and a field without a default. Another spelling of either gives it."""
    required = PLAIN.replace('"--epochs", "-e", type=int', '"-e", "--epochs", required=True')
    found = options_of_script(required)
    assert found is not None
    assert found.required_beside(["learning-rate"]) == ["epochs"]
    assert found.required_beside(["ep"]) == found.required_beside(["e"]) == []
    without_default = RUNTIME.replace("learning_rate: float = 0.1", "learning_rate: float")
    found = options_of_script(without_default)
    assert found is not None
    assert found.required_beside([]) == []  # PRESET may have it
    found = options_of_script(without_default.replace("replace(Config(), **PRESET)", "Config"))
    assert found is not None
    assert found.required_beside(["learning"]) == ["learning_rate"]
    assert found.required_beside(["learning-rate"]) == []
