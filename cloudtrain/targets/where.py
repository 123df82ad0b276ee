"""Where a job runs: a target, the user's settings for it, and the account. A command reads this
once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cloudtrain.errors import UsageError
from cloudtrain.job.model import revalidate
from cloudtrain.system.plugins import part
from cloudtrain.targets.contract import Account, PathResolver, Service, Target
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import Settings, TargetSettings, load_settings


@dataclass(frozen=True, eq=False)
class Where:
    """A target, and all that planning a job for it needs besides the job.

    Attributes:
        settings: the settings of the target.
        here: the user's environment variables, working directory, state folder and settings files.
        emulated: the settings of the target that the local run emulates; None without emulation.
    """

    target: Target
    settings: TargetSettings
    here: Settings
    emulated: TargetSettings | None = None

    @classmethod
    def of(cls, settings: TargetSettings, here: Settings, *, profile: str | None = None) -> Where:
        """Return the place with these settings. `profile` is the profile for the settings of an
        emulated target."""
        target = target_of(settings.type)
        resolve = part(target, PathResolver)
        if resolve is not None:
            settings = resolve(settings, here.environ, here.cwd)

        name = settings.emulated_target
        emulated = None if name is None else here.target(name, profile=profile)
        return cls(target, settings, here, emulated)

    def queued(self, queue: bool | None, priority: int | None) -> Where:
        """Return the place with these options of cloudtrain's queue. None keeps the value in the
        settings.

        Raises:
            UsageError: cloudtrain has no queue for the target.
            JobError: a priority is given without the queue.
        """
        given = {"queue": queue, "priority": priority}
        options = {name: value for name, value in given.items() if value is not None}
        if not options:
            return self
        if not options.keys() <= type(self.settings).model_fields.keys():
            message = f"`{self.target.name}` does not use cloudtrain's queue"
            hint = f"leave out `{next(iter(options))}`: the target has its own queue"
            raise UsageError(message, hint=hint, code="CT902")
        return replace(self, settings=self.settings.replace(**options))

    @cached_property
    def account(self) -> Account:
        """The account, as the files and variables of this machine set it."""
        here = self.here
        account = self.target.account(
            self.settings, environ=here.environ, state_dir=here.state_dir, cwd=here.cwd
        )
        if self.emulated is None:
            return account
        emulating: Account = cast("Any", account)._replace(emulated=self.emulated)
        return emulating

    @cached_property
    def service(self) -> Service:
        """The service that sends requests to the target."""
        return self.target.service(environ=self.here.environ, state_dir=self.here.state_dir)

    def to_json(self) -> dict[str, object]:
        """Return the settings as JSON data, from which `from_json` makes the place in any process
        of this machine."""
        data: dict[str, object] = {"target": _to_json(self.settings)}
        if self.emulated is not None and self.emulated.model_fields_set:
            data["emulated"] = _to_json(self.emulated)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], here: Settings) -> Where:
        """Return the place with the settings that `to_json` has returned. The account is read
        again."""
        settings = _from_json(data["target"])
        emulated = data.get("emulated")
        return cls(
            target_of(settings.type),
            settings,
            here,
            None if emulated is None else _from_json(emulated),
        )


AnyTarget = str | TargetSettings | Where | None
"""The name of a target, a target's settings, or None for the default target. cloudtrain's commands
pass a `Where`."""


def where(target: AnyTarget, *, near: Path | None = None, profile: str | None = None) -> Where:
    """Return where a job runs, with the settings of the project of the folder `near`, or else of
    the working directory.

    Raises:
        SettingsError: the target or profile does not exist, or a settings file is wrong.
    """
    if isinstance(target, Where):
        return target
    here = load_settings(near)
    if isinstance(target, TargetSettings):
        settings = here.capped(revalidate(target), profile)
    else:
        settings = here.target(target, profile=profile)
    return Where.of(settings, here, profile=profile)


def _to_json(settings: TargetSettings) -> dict[str, object]:
    return {**settings.model_dump(mode="json", exclude_unset=True), "type": settings.type}


def _from_json(data: Mapping[str, Any]) -> TargetSettings:
    settings: TargetSettings = target_of(data["type"]).settings(**data)
    return settings
