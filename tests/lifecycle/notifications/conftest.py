"""Servers that get notifications, and a person's settings that name them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudtrain.targets.settings import own_file
from tests.lifecycle.notifications.sinks import Mail, Web, mail_server, web_server

WRITE = "import sys; file = open(sys.argv[1], 'a'); file.write(sys.stdin.read())"
"""A program that adds its input to a file."""


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server."""
    with web_server() as server:
        yield server


@pytest.fixture
def mail() -> Iterator[Mail]:
    """A mail server."""
    with mail_server() as server:
        yield server


@pytest.fixture
def settings(clean_environment: Path) -> Callable[[str], Path]:
    """Writes the person's own settings file."""

    def write(text: str) -> Path:
        own_file().parent.mkdir(parents=True, exist_ok=True)
        own_file().write_text(text)
        return own_file()

    return write


@pytest.fixture
def everywhere(web: Web, mail: Mail, settings: Callable[[str], Path], tmp_path: Path) -> Path:
    """A channel of each kind. Returns the file to which the command writes."""
    got = tmp_path / "got"
    command = [sys.executable, "-S", "-c", WRITE, str(got)]
    settings(
        f'[notify]\nevents = ["started", "succeeded", "failed", "stopped", "lost", "alert"]\n'
        f'webhook = "{web.address}"\ncommand = {command!r}\n'
        f'email = "ada@example.org"\nsmtp = "{mail.address}"\n'
    )
    return got
