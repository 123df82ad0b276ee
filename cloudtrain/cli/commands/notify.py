from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import typer

from cloudtrain.cli import options
from cloudtrain.cli.app import Command, new_group, refuse_flags
from cloudtrain.cli.terminal import print_json, say, show_table
from cloudtrain.errors import SettingsError
from cloudtrain.lifecycle.detached.driven import ensure_sender
from cloudtrain.lifecycle.notifications.channels import Channel, own_channels
from cloudtrain.lifecycle.notifications.messages import deliver
from cloudtrain.lifecycle.store.outbox import Event
from cloudtrain.lifecycle.store.schema import open_store, read_store
from cloudtrain.targets.settings import own_file, read_environment

notify_command = new_group()


@notify_command.callback()
def notify(ctx: typer.Context, json: options.Json = False) -> None:
    """Show and test how you are notified.

    Without a command, list the channels of `[notify]` in your own settings file, and the events
    that could not be sent yet.

    \b
    Examples:
      cloudtrain notify
      cloudtrain notify test
    """
    if ctx.invoked_subcommand is not None:
        refuse_flags(ctx.invoked_subcommand, {"--json": json})
        return
    channels = _channels()
    with read_store(read_environment().state_dir) as store:
        failed = store.outbox.failed()
    if json:
        names = ("event", "channel", "tries", "error")
        data = [{"name": channel.name, "events": channel.table.events} for channel in channels]
        not_sent = [dict(zip(names, row, strict=True)) for row in failed]
        print_json({"channels": data, "failed": not_sent})
        return
    rows = []
    for channel in channels:
        rows.append((channel.name, ", ".join(channel.table.events)))
    show_table(("CHANNEL", "EVENTS"), rows)
    if failed:
        say("", "these events could not be sent yet, and will be tried again")
        show_table(("EVENT", "CHANNEL", "TRIES", "ERROR"), failed)


@notify_command.command("test", cls=Command)
def notify_test(json: options.Json = False) -> None:
    """Send a test event to each channel, and show what came back.

    The exit code is 1 if a channel did not take it. From then on, the runs of this machine are
    watched, also those that were submitted before `[notify]` was set.

    \b
    Example:
      cloudtrain notify test
    """
    channels = _channels()
    here = read_environment()
    with open_store(here.state_dir) as store:
        store.outbox.turn_on(store.now())
        if store.outbox.has_work:
            ensure_sender(here)

    now = time.time()
    event = Event("cloudtrain", "test", int(now), now, now, "you are notified here")
    with ThreadPoolExecutor(len(channels)) as pool:
        environs = repeat(here.environ)
        errors = list(pool.map(deliver, channels, repeat(event), environs))
    rows = []
    for channel, error in zip(channels, errors, strict=True):
        rows.append((channel.name, error or "sent"))
    if json:
        print_json([{"channel": name, "result": result} for name, result in rows])
    else:
        show_table(("CHANNEL", "RESULT"), rows)
    if any(errors):
        raise typer.Exit(1)


def _channels() -> list[Channel]:
    """Return the user's channels. Raises SettingsError without one."""
    channels = own_channels()
    if not channels:
        hint = 'add `[notify]` with `webhook = "https://..."`: docs/guides/notifications.md'
        raise SettingsError(f"`{own_file()}` sets no `[notify]`", hint=hint, code="CT922")
    return channels
