"""Send an event to a channel, once and without asking again. Whoever calls tries again later."""

from __future__ import annotations

import json
import os
import re
import smtplib
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from html import escape
from http.client import HTTPException
from ipaddress import ip_address
from signal import SIGKILL
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cloudtrain.job.model import format_duration
from cloudtrain.lifecycle.notifications.channels import Channel, Notify
from cloudtrain.lifecycle.preparing.hidden import signatures_in
from cloudtrain.lifecycle.store.outbox import Event
from cloudtrain.plans.plan import hide
from cloudtrain.rules.values import secret_texts
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.notices import one_line
from cloudtrain.system.plugins import require
from cloudtrain.targets.settings import own_file
from cloudtrain.version import __version__

_TIMEOUT = 15.0
"""Seconds for which a server may be silent."""
_COMMAND_TIMEOUT = 60.0
"""Seconds that a command may take."""

_OLD = 300.0
"""Seconds after which a text says how long ago its event was."""

_TITLES = {
    "started": "has started",
    "succeeded": "succeeded",
    "failed": "failed",
    "stopped": "was stopped",
    "lost": "was lost",
    "over_cost": "is over its cost",
    "alert": "has an alert",
    "not_finite": "has a loss that is not finite",
    "exploding": "has an exploding loss",
    "waiting": "seems to hang",
    "stalled": "has stalled",
    "idle": "has idle GPUs",
    "memory": "runs out of memory",
    "disk": "runs out of disk space",
    "test": "sends a test",
}


class Message(NamedTuple):
    """An event in words. `data` is all that is known of it, for programs."""

    id: str
    title: str
    text: str
    data: dict[str, Any]


def message_of(event: Event, secrets: Sequence[str]) -> Message:
    """Return the message about an event: in one line each, without control characters, and without
    `secrets` and whatever else looks like one."""
    title = f"{_shown(event.run, secrets)} {_TITLES.get(event.kind, event.kind)}"
    reason = _shown(event.reason or "", secrets)
    happened = event.recorded if event.time is None else event.time
    age = time.time() - happened
    lines = [reason] if reason else []
    if age > _OLD:
        lines.append(f"{format_duration(int(age))} ago")
    if event.target:
        lines.append(f"cloudtrain status {event.run}")
    text = "\n".join(lines)
    words = {"id": event.id, "title": title, "text": _unaddressed(f"{title}\n{text}".strip())}
    data = event._replace(time=happened, reason=reason)._asdict() | words
    del data["delivered"]
    return Message(event.id, title, text, data)


def _shown(text: str, secrets: Sequence[str]) -> str:
    """Return a text on one line, without secrets and cut."""
    found = [*secrets, *secret_texts([(("reason",), text)]), *signatures_in(text)]
    return one_line(hide(text, found))


def deliver(channel: Channel, event: Event, environ: Mapping[str, str]) -> str | None:
    """Send an event to a channel. Return None, or why it could not be sent, without addresses and
    secrets. A sender raises SetupError if its channel did not take the event."""
    try:
        table = channel.resolved(environ)
        _SENDERS[channel.kind](table, message_of(event, table.secrets), environ)
    except SetupError as error:
        return error.message
    except HTTPError as error:
        error.close()
        more = " (redirects are not followed)" if error.code < 400 else ""
        return f"HTTP {error.code}{more}"
    except (OSError, HTTPException, ValueError) as error:
        return _words(error)
    return None


def _words(error: BaseException) -> str:
    """Return what an error says, without the address that some errors name."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "it does not answer"
    code = getattr(reason, "smtp_code", "")
    words = getattr(reason, "verify_message", None) or getattr(reason, "strerror", None)
    return f"{words or type(reason).__name__} {code}".strip()


def _run_command(table: Notify, message: Message, environ: Mapping[str, str]) -> None:
    assert table.command is not None
    # a file, because whatever the command leaves running would keep a pipe open
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            table.command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=own_file().parent,
            env=environ,
            start_new_session=True,
        )
        try:
            process.communicate(f"{json.dumps(message.data)}\n".encode(), _COMMAND_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise SetupError(f"it took longer than {_COMMAND_TIMEOUT:g} s") from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, SIGKILL)
                process.wait()
    if process.returncode:
        raise SetupError(f"exit code {process.returncode}")


class _NoRedirects(HTTPRedirectHandler):
    """A redirect ends as an error: it could lead anywhere."""

    def redirect_request(self, *args: Any, **more: Any) -> None:  # noqa: ARG002
        return None


def _post(table: Notify, message: Message, _environ: Mapping[str, str]) -> None:
    assert table.webhook is not None
    form = table.format or _format_at(table.webhook)
    content, headers = _FORMS[form](message)
    headers |= {"Idempotency-Key": message.id, "User-Agent": f"cloudtrain/{__version__}"}
    request = Request(table.webhook, content, headers | table.headers, method="POST")
    with build_opener(_NoRedirects).open(request, timeout=_TIMEOUT):
        pass


_HOSTS = {
    "slack": r"hooks\.slack(-gov)?\.com",
    "discord": r"(.+\.)?discord(app)?\.com",
    "teams": r".+\.(logic\.azure\.(com|us)|api\.powerplatform\.com|webhook\.office\.com)",
    "ntfy": r"ntfy\.sh",
}


def _format_at(address: str) -> str:
    """Return what the webhook at an address expects."""
    host = urlsplit(address).hostname or ""
    for form, pattern in _HOSTS.items():
        if re.fullmatch(pattern, host):
            return form
    return "json"


Body = tuple[bytes, dict[str, str]]


def _as_json(content: Any) -> Body:
    return json.dumps(content).encode(), {"Content-Type": "application/json"}


def _unaddressed(text: str) -> str:
    """Return a text in which no `@` begins a mention: a space without width follows each."""
    return text.replace("@", "@\u200b")


def _slack(message: Message) -> Body:
    text = escape(message.data["text"], quote=False)
    return _as_json({"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False})


def _without_markdown(text: str) -> str:
    """Return a text in which Markdown shows each character as it is."""
    return re.sub(r"([\\`*_~|<>#\[\]()!-])", r"\\\1", _unaddressed(text))


def _discord(message: Message) -> Body:
    content = f"**{_without_markdown(message.title)}**\n{_without_markdown(message.text)}"
    return _as_json({"content": content[:2000], "allowed_mentions": {"parse": []}, "flags": 4})


def _teams(message: Message) -> Body:
    blocks = []
    for text in (message.title, *message.text.splitlines()):
        blocks.append({"type": "TextBlock", "text": _without_markdown(text), "wrap": True})
    card = {"type": "AdaptiveCard", "version": "1.4", "body": blocks}
    return _as_json(
        {
            "type": "message",
            "attachments": [
                {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
            ],
        }
    )


def _ntfy(message: Message) -> Body:
    title = message.title.encode("ascii", "replace").decode()
    text = message.text or message.title
    return text.encode(), {"Title": title, "Content-Type": "text/plain; charset=utf-8"}


_FORMS: dict[str, Callable[[Message], Body]] = {
    "slack": _slack,
    "discord": _discord,
    "teams": _teams,
    "ntfy": _ntfy,
    "json": lambda message: _as_json(message.data),
}


def _mail(table: Notify, message: Message, _environ: Mapping[str, str]) -> None:
    letter = EmailMessage()
    letter["Subject"] = message.title
    letter["From"] = table.sender or table.email
    letter["To"] = table.email
    letter["Date"] = formatdate(localtime=True)
    # a mail program shows a message that came twice once
    letter["Message-ID"] = f"<{message.id.replace('/', '.')}@cloudtrain>"
    letter.set_content(f"{message.title}\n{message.text}\n")

    host, _, port = table.smtp.partition(":")
    number = int(port or 587)
    server: smtplib.SMTP
    if number == 465:
        context = ssl.create_default_context()
        server = smtplib.SMTP_SSL(host, number, timeout=_TIMEOUT, context=context)
    else:
        server = smtplib.SMTP(host, number, timeout=_TIMEOUT)
    try:
        if number != 465 and not _is_here(host):
            server.starttls(context=ssl.create_default_context())
        if table.smtp_user is not None:
            server.login(table.smtp_user, table.smtp_password or "")
        server.send_message(letter)
        with suppress(OSError):
            server.quit()
    except smtplib.SMTPRecipientsRefused:
        raise SetupError("the mail server refuses the recipient") from None
    finally:
        server.close()


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, to which no encryption is needed."""
    try:
        return ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        return False


def _apprise(table: Notify, message: Message, _environ: Mapping[str, str]) -> None:
    apprise = require("apprise", extra="apprise")
    service = apprise.Apprise()
    if not service.add(table.apprise):
        raise SetupError("Apprise does not know this kind of URL")
    text = _unaddressed(message.text or message.title)
    title = _unaddressed(message.title)
    if not service.notify(text, title=title, body_format=apprise.NotifyFormat.TEXT):
        raise SetupError("Apprise could not send it")


_SENDERS: dict[str, Callable[[Notify, Message, Mapping[str, str]], None]] = {
    "command": _run_command,
    "webhook": _post,
    "email": _mail,
    "apprise": _apprise,
}
