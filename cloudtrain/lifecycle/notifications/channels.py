"""The channels of `[notify]` in the user's own settings file: what is sent where.

    [notify]
    events = ["succeeded", "failed", "stalled"]      # also of the tables below
    webhook = "env:SLACK_WEBHOOK"

    [notify.phone]
    webhook = "https://ntfy.sh/my-runs"
    events = ["failed"]

A table may have several addresses. Each is one channel, with the name `webhook` or `phone.webhook`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from cloudtrain.errors import JobError, Problem, SettingsError, quoted
from cloudtrain.job.model import Model
from cloudtrain.runtime.errors import SetupError
from cloudtrain.runtime.secret_values import VARIABLE, resolved
from cloudtrain.system.plugins import pip_line
from cloudtrain.targets.settings import (
    NOTIFY,
    Dollars,
    own_file,
    read_settings,
)

Kind = Literal[
    "started",
    "succeeded",
    "failed",
    "stopped",
    "lost",
    "over_cost",
    "alert",
    "not_finite",
    "exploding",
    "waiting",
    "stalled",
    "idle",
    "memory",
    "disk",
]
"""What happens to a run: it starts, it ends in a state, it costs more than `over_cost`, or a
notice."""

_DEFAULT = tuple(kind for kind in get_args(Kind) if kind not in ("started", "waiting"))

ADDRESSES = ("command", "webhook", "email", "apprise")
"""The fields that make a channel."""

_SECRETS = ("webhook", "apprise", "email", "smtp", "smtp_user", "smtp_password")
"""The fields whose value may be a reference to a secret, as those in `headers`."""

_SHORT = 3
"""Letters of a value that is not hidden, because too much ordinary text holds it."""

_OF_ONE_TABLE = (*ADDRESSES, "format", "headers")
"""The fields that tables such as `[notify.phone]` do not take over."""


class Notify(Model):
    """A table of `[notify]`. An address may be a reference to a secret: `env:NAME` or
    `file:PATH`."""

    events: tuple[Kind, ...] = _DEFAULT
    over_cost: Dollars | None = None
    """A run costs more than this many US dollars, at list prices."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """A program and its arguments. It gets the event as JSON on its standard input."""
    webhook: str | None = None
    """The URL to which each event is posted."""
    format: Literal["slack", "teams", "discord", "ntfy", "json"] | None = None
    """What the webhook expects. Default: as its host tells, else `json`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """More headers for the webhook."""
    email: str | None = None
    """The address that gets an e-mail."""
    sender: str | None = None
    """The address in `From`. Default: the value of `email`."""
    smtp: Annotated[str, Field(pattern=r"^((env|file):.+|[^:]+(:[0-9]+)?)$")] = "localhost:25"
    """The mail server, as `HOST` or `HOST:PORT`. Default of the port: 587."""
    smtp_user: str | None = None
    smtp_password: str | None = None
    apprise: str | None = None
    """A URL of Apprise."""

    @property
    def secrets(self) -> list[str]:
        """The values that no text may show."""
        values = (self.webhook, self.apprise, self.smtp_password, *self.headers.values())
        return [value for value in values if value and len(value) > _SHORT]


class Channel(NamedTuple):
    """One address with its table. `kind` is the field of the address."""

    name: str
    kind: str
    table: Notify

    def wants(self, kind: str) -> bool:
        return kind in self.table.events

    def resolved(self, environ: Mapping[str, str]) -> Notify:
        """Return the table with the values of its secrets, which stay in this process. Raises
        SetupError if one cannot be read, or if the address is not one."""
        headers = {}
        for name, value in self.table.headers.items():
            headers[name] = _value_of(value, environ)
        changes: dict[str, object] = {"headers": headers}
        for name in _SECRETS:
            changes[name] = _value_of(getattr(self.table, name), environ)
        table = self.table.model_copy(update=changes)

        if self.kind == "webhook" and not str(table.webhook).startswith(("https://", "http://")):
            raise SetupError(
                "the webhook is not a URL",
                hint="it begins with `https://`, or it is a reference such as `env:NAME`",
            )
        if self.kind == "apprise" and find_spec("apprise") is None:
            raise SetupError("`apprise` is not installed", hint=pip_line("apprise"))
        return table


def _value_of(text: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the secret that a text refers to, or a text that is no reference."""
    if text is None or not text.startswith(("env:", "file:")):
        return text
    return resolved({**environ, VARIABLE: json.dumps({text: text})})[text]


def own_channels() -> list[Channel]:
    """Return the channels in the user's own settings file; none without `[notify]`.

    Raises:
        SettingsError: the file cannot be used, or a channel has a mistake.
    """
    file = own_file()
    source = read_settings(file) if file.exists() else None
    if source is None or NOTIFY not in source.tables:
        return []

    plain: dict[str, Any] = {}
    tables: dict[tuple[str, ...], dict[str, Any]] = {(): plain}
    for name, value in source.tables[NOTIFY].items():
        if isinstance(value, Mapping) and name not in Notify.model_fields:
            tables[(name,)] = dict(value)
        else:
            plain[name] = value
    shared = {name: value for name, value in plain.items() if name not in _OF_ONE_TABLE}

    channels = []
    problems = []
    for path, fields in tables.items():
        try:
            table = Notify(**(shared | fields))
        except JobError as error:
            for problem in error.problems:
                problems.append(replace(problem, path=(NOTIFY, *path, *problem.path)))
            continue
        for kind in ADDRESSES:
            if getattr(table, kind) is not None:
                channels.append(Channel(".".join((*path, kind)), kind, table))
    if not channels and not problems:
        hint = f"add one of {quoted(ADDRESSES)}"
        problems.append(Problem((NOTIFY,), "`[notify]` has no address", hint, code="CT922"))
    if problems:
        raise SettingsError.of(list(map(source.placed, problems)))
    return channels


def check_channels(channels: Sequence[Channel], environ: Mapping[str, str]) -> None:
    """Raise SettingsError if nothing can be sent to a channel, because a secret is missing."""
    for channel in channels:
        try:
            channel.resolved(environ)
        except SetupError as error:
            message = f"`[{NOTIFY}]` in `{own_file()}`, channel `{channel.name}`: {error.message}"
            raise SettingsError(message, hint=error.hint, code="CT923") from None
