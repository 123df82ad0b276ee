"""What a channel gets, and what it never gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.lifecycle.notifications.channels import own_channels
from cloudtrain.lifecycle.notifications.messages import deliver
from cloudtrain.lifecycle.store.outbox import Event
from tests.lifecycle.notifications.sinks import Mail, Web

NASTY = "<!channel> @everyone <@U1> **a** [x](http://a.example) \x1b[31m\n\r\0 \u202e" + "y" * 2000
EVENT = Event("job-1-1", "failed", 1, 1000.0, 1000.0, NASTY, "job", "local", "here")


def _send(event: Event = EVENT, environ: dict[str, str] | None = None) -> list[str | None]:
    return [deliver(channel, event, environ or {}) for channel in own_channels()]


@pytest.mark.parametrize(
    ("form", "text_of"),
    [
        ("slack", lambda data: data["text"]),
        ("discord", lambda data: data["content"]),
        ("teams", lambda data: data["attachments"][0]["content"]["body"][1]["text"]),
        ("json", lambda data: data["text"]),
    ],
)
def test_a_hostile_reason_mentions_nobody(
    form: str, text_of: Callable[[Any], str], web: Web, settings: Callable[[str], Path]
) -> None:
    """It is one line of bounded length, in which no control character is left."""
    settings(f'[notify]\nwebhook = "{web.address}"\nformat = "{form}"\n')
    assert _send() == [None]
    request = web.got[0]
    assert request.id == EVENT.id
    assert request.headers["Content-Type"] == "application/json"
    text = text_of(request.data)
    assert "y" * 50 in text
    assert "@everyone" not in text
    assert "@U1" not in text
    assert len(text) < 2000
    assert not set(text) & set("\x1b\r\0\u202e")
    if form == "slack":
        assert "<" not in text
        assert request.data["mrkdwn"] is False
    if form == "discord":
        assert request.data["allowed_mentions"] == {"parse": []}
        assert r"\*\*a\*\*" in text


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("hooks.slack.com", "mrkdwn"),
        ("discord.com", "allowed_mentions"),
        ("prod-1.westeurope.logic.azure.com", "attachments"),
        ("notslack.com", "id"),
    ],
)
def test_the_host_tells_the_format(
    host: str,
    key: str,
    web: Web,
    settings: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a proxy is used as by other programs."""
    monkeypatch.setenv("http_proxy", web.address)
    settings(f'[notify]\nwebhook = "http://{host}/services/x"\n')
    assert _send() == [None]
    assert web.got[0].path == f"http://{host}/services/x"
    assert key in web.got[0].data


def test_ntfy_gets_text(web: Web, settings: Callable[[str], Path]) -> None:
    """With a title, and with the headers of the settings."""
    settings(
        f'[notify]\nwebhook = "{web.address}/topic"\nformat = "ntfy"\n'
        'headers = {Authorization = "env:TOKEN"}\n'
    )
    assert _send(EVENT._replace(reason="no memory"), {"TOKEN": "Bearer x"}) == [None]
    request = web.got[0]
    assert request.headers["Title"] == "job-1-1 failed"
    assert request.headers["Authorization"] == "Bearer x"
    assert request.content.decode().startswith("no memory\n")
    assert "ago" in request.content.decode()


def test_a_letter(mail: Mail, settings: Callable[[str], Path]) -> None:
    """A subject of one line, and the event as its id."""
    settings(f'[notify]\nemail = "ada@example.org"\nsmtp = "{mail.address}"\n')
    assert _send() == [None]
    letter = mail.got[0]
    assert letter["Subject"] == "job-1-1 failed"
    assert letter["To"] == letter["From"] == "ada@example.org"
    assert mail.ids == ["job-1-1.failed.1"]


def test_a_command(everywhere: Path, settings: Callable[[str], Path]) -> None:
    """It gets JSON; its arguments are no shell's, and its exit code counts."""
    assert [error for error in _send() if error is None] == [None, None, None]
    assert json.loads(everywhere.read_text())["id"] == EVENT.id
    settings(
        f"[notify]\ncommand = [{sys.executable!r}, '-S', '-c', 'raise SystemExit(3)', '$HOME']\n"
    )
    assert _send() == ["exit code 3"]
    settings('[notify]\ncommand = ["no-such-program"]\n')
    assert _send() == ["No such file or directory"]


def test_secrets_reach_no_text(web: Web, settings: Callable[[str], Path]) -> None:
    """Neither that of the channel, nor one that looks like one, nor a password in an address."""
    key = "AKIA" + "Z7QX4M2KJ5TN3WPL"
    address = f"{web.address}/T0000/secret-part"
    reason = f"cannot post to {address} with {key} or https://ada:hunter22@a.example/"
    settings('[notify]\nwebhook = "env:HOOK"\n')
    assert _send(EVENT._replace(reason=reason), {"HOOK": address}) == [None]
    content = web.got[0].content.decode()
    assert "secret-part" not in content
    assert key not in content
    assert "hunter22" not in content


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("http://127.0.0.1:1/secret", "Connection refused"),
        ("ftp://a.example/secret", "the webhook is not a URL"),
        ("file:///etc/passwd-of-nobody", None),
        ("http://127.0.0.1:x/secret", "InvalidURL"),
    ],
)
def test_errors_do_not_name_the_address(
    address: str, error: str | None, settings: Callable[[str], Path]
) -> None:
    """They are stored and shown."""
    settings('[notify]\nwebhook = "env:HOOK"\n')
    (found,) = _send(environ={"HOOK": address})
    assert found == (error or "the webhook is not a URL")


def test_apprise(settings: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL may be a secret, and its answer counts."""
    sent: list[Any] = []

    class Apprise:
        def add(self, url: str) -> bool:
            sent.append(url)
            return True

        def notify(self, body: str, **more: str) -> bool:
            sent.append((body, more["title"]))
            return False

    settings('[notify]\napprise = "env:URL"\n')
    assert _send(environ={"URL": "tgram://x"}) == ["`apprise` is not installed"]
    fake = SimpleNamespace(
        Apprise=Apprise, NotifyFormat=SimpleNamespace(TEXT="text"), __spec__=SimpleNamespace()
    )
    monkeypatch.setitem(sys.modules, "apprise", fake)  # type: ignore[arg-type]
    assert _send(EVENT._replace(reason="@all"), {"URL": "tgram://x"}) == [
        "Apprise could not send it"
    ]
    assert sent[0] == "tgram://x"
    assert sent[1][0].startswith("@\u200ball\n")
