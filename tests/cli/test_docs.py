"""The command-line page of the documentation is what the program says."""

from __future__ import annotations

import runpy
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from cloudtrain.cli.app import COMMANDS
from tests.cli.conftest import Cli
from tests.guards import skip_guard

REPOSITORY = Path(__file__).parents[2]


def test_page_is_up_to_date() -> None:
    """docs/reference/cli.md is what the generator writes now, and has every command and exit code."""
    generator = runpy.run_path(str(REPOSITORY / "tools" / "generate" / "cli_docs.py"))
    text = generator["document"]()
    if Version(metadata.version("typer")) < Version("0.27"):
        skip_guard("an older typer names the arguments of a command otherwise")
    assert (REPOSITORY / "docs" / "reference" / "cli.md").read_text() == text
    for name in COMMANDS:
        assert f"### cloudtrain {name}\n" in text
    for code in (0, 1, 2, 3, 4, 70, 130, 141):
        assert f"| {code} | " in text


def test_the_mistakes_of_the_readme(cli: Cli, clean_environment: Path) -> None:
    """The README shows what `check` prints for a file with five mistakes."""
    lines = (
        (REPOSITORY / "README.md")
        .read_text()
        .split("$ cloudtrain check job.yaml\n")[1]
        .partition("```")[0]
    )
    (clean_environment / "job.yaml").write_text(
        "name: cifar10 ddp\nentry_pont: train.py\ndistribution: {type: torhc}\nresources:\n  instance_count: two\n"
        'hyperparameters: {data: "${{inputs.train}}"}\n'
    )
    assert cli("check", "job.yaml").err.split() == lines.split()
