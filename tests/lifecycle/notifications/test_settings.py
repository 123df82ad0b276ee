"""`[notify]` in the person's own settings, and the commands that use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.cli.app import run_command
from cloudtrain.lifecycle.notifications.channels import own_channels
from cloudtrain.lifecycle.store.schema import read_store
from tests.lifecycle.notifications.sinks import Web


def test_tables_and_addresses_are_channels(settings: Callable[[str], Path]) -> None:
    """A table takes over what is no address; its own values count more."""
    settings(
        '[notify]\nevents = ["failed"]\ncommand = ["say"]\nsmtp = "a.example:25"\n'
        '[notify.phone]\nwebhook = "https://ntfy.sh/x"\nevents = ["stalled"]\n'
        '[notify.mail]\nemail = "ada@example.org"\n'
    )
    channels = {channel.name: channel for channel in own_channels()}
    assert list(channels) == ["command", "phone.webhook", "mail.email"]
    assert channels["phone.webhook"].wants("stalled")
    assert not channels["phone.webhook"].wants("failed")
    assert channels["mail.email"].wants("failed")
    assert channels["mail.email"].table.smtp == "a.example:25"


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ('[notify]\nwebhook = "env:NOT_SET"\n', "CT923", "NOT_SET"),
        ('[notify]\nwebook = "https://a.example"\n', "CT010", ":2:1  notify.webook"),
        ("[notify.a]\nwebhook = 3\n", "CT012", ":2:11  notify.a.webhook"),
        ('[notify]\ncommand = "say hello"\n', "CT012", ":2:11  notify.command"),
        (
            '[notify]\nevents = ["faild"]\nwebhook = "https://a.example"\n',
            "CT013",
            "notify.events[0]",
        ),
        ('[notify]\nevents = ["failed"]\n', "CT922", ":1:2  notify"),
        ('notify = "https://a.example"\n', "CT912", ":1:10  notify"),
        ('[notify]\nwebhook = "slack.com/x"\n', "CT923", "https://"),
    ],
)
def test_a_mistake_stops_a_submit(
    text: str,
    code: str,
    place: str,
    settings: Callable[[str], Path],
    state_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is sent."""
    settings(text)
    Path("train.py").write_text("print(1)\n")
    assert run_command(["submit", "--detach", "train.py"]) == 2
    message = capsys.readouterr().err
    assert f"[{code}]" in message
    assert place in message
    with read_store(state_dir) as store:
        assert not store.newest()


@pytest.mark.parametrize("command", [["submit", "--detach"], ["plan"], ["check"]])
def test_a_project_does_not_set_it(
    command: list[str], capsys: pytest.CaptureFixture[str], state_dir: Path
) -> None:
    """Its commands would be run on the machine of whoever submits."""
    Path("cloudtrain.toml").write_text('[notify]\ncommand = ["touch", "gone"]\n')
    Path("train.py").write_text("print(1)\n")
    assert run_command([*command, "train.py"]) == 2
    message = capsys.readouterr().err
    assert "[CT920]" in message
    assert "cloudtrain.toml:1:2  notify" in message
    assert not state_dir.exists()


def test_it_is_tested(
    web: Web,
    settings: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command says what came back from each channel."""
    assert run_command(["notify", "test"]) == 2
    assert "[CT922]" in capsys.readouterr().err
    monkeypatch.setenv("HOOK", f"{web.address}/secret")
    settings('[notify]\nwebhook = "env:HOOK"\n[notify.bad]\nwebhook = "http://127.0.0.1:1/x"\n')
    assert run_command(["notify", "test"]) == 1
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["webhook", "sent"],
        ["bad.webhook", "Connection", "refused"],
    ]
    assert "secret" not in shown.out + shown.err
    assert web.got[0].data["kind"] == "test"
    assert run_command(["notify"]) == 0
    assert "bad.webhook" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_started_without_it(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor recorded."""
    Path("train.py").write_text("print(1)\n")
    assert run_command(["submit", "train.py"]) == 0
    assert run_command(["ps"]) == 0
    assert not (state_dir / "notifications").exists()
    with read_store(state_dir) as store:
        assert not store.outbox.pending()
    capsys.readouterr()
