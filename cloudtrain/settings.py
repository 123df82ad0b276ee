"""Settings: where state lives, and the account settings of each target. The only reader of `os.environ` here.

`cloudtrain.toml`, in the user's configuration folder and in the project (the nearest one upwards from the job file,
else from the working directory, which wins), holds one table per target, and profiles that override them:

    target = "NAME"                         # the target when none is named; `local` unless given

    [NAME]
    role = "arn:aws:iam::111122223333:role/train"
    region = "eu-west-1"

    [profiles.research.NAME]                # cloudtrain submit job.yaml --profile research
    bucket = "research-training"

Environment variables: CLOUDTRAIN_STATE_DIR moves the run store and the local runs, CLOUDTRAIN_PROFILE names a
profile, CLOUDTRAIN_DEBUG=1 shows tracebacks.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.core.targets import DEFAULT_TARGET, find_target, target_names
from cloudtrain.errors import JobError, Problem, SettingsError, did_you_mean
from cloudtrain.settings_file import SettingsFile, place_of, read_settings
from cloudtrain.system.startup import user_environment
from cloudtrain.targets.settings import TargetSettings

FILE_NAME = "cloudtrain.toml"


class Settings(NamedTuple):
    """Everything that comes from the user's surroundings."""

    state_dir: Path
    environ: Mapping[str, str]
    cwd: Path
    files: tuple[Path, ...] = ()
    """The settings files in use, weakest first."""
    tables: Mapping[str, Any] | None = None
    sources: tuple[SettingsFile, ...] = ()
    """What the files hold, for the places of mistakes."""

    @property
    def default_target(self) -> str:
        """The target when none is named."""
        return str((self.tables or {}).get("target", DEFAULT_TARGET))

    @property
    def submitter(self) -> str:
        """`user@host`, a part of every run name, so that two people never get the same."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container user without a passwd entry
            user = str(os.getuid())
        return f"{user}@{os.uname().nodename}"

    def target(self, name: str | None = None, *, profile: str | None = None, **flags: Any) -> TargetSettings:
        """The settings of a target: the target's table, then the profile's, then the flags that are not None.

        Raises:
            SettingsError: no such target or profile, or a wrong field in a settings file.
            JobError: a flag has a wrong value.
        """
        given, name = name, name or self.default_target
        if name not in target_names():
            raise self._no_target(name, given=given)
        tables = self.tables or {}
        fields = dict(tables.get(name, {})) | self._profile(profile).get(name, {})
        try:
            from_files: TargetSettings = find_target(name).settings_model(**fields)
        except JobError as error:
            chosen = profile or self.environ.get("CLOUDTRAIN_PROFILE")
            bases = [*([("profiles", chosen, name)] if chosen else []), (name,)]
            placed = [place_of(self.sources, bases, problem) for problem in error.problems]
            raise SettingsError.of(placed) from None
        flags = {key: value for key, value in flags.items() if value is not None}
        found = from_files.replace(**flags) if flags else from_files
        return found.from_files(tuple(map(str, self.files)))

    def _no_target(self, name: str, *, given: str | None) -> SettingsError:
        """The error about a target that does not exist; one that nobody named here stands in a file."""
        problem = Problem(("target",), f"`{name}` is not a target", did_you_mean(name, target_names()), code="CT913")
        placed = problem if given else place_of(self.sources, [()], problem)
        return SettingsError.of([placed if placed.file else replace(problem, path=())])

    def _profile(self, name: str | None) -> Mapping[str, Any]:
        name = name or self.environ.get("CLOUDTRAIN_PROFILE")
        if name is None:
            return {}
        profiles = (self.tables or {}).get("profiles", {})
        if name not in profiles:
            hint = (
                did_you_mean(name, profiles) or f"add a table `[profiles.{name}.{self.default_target}]` to {FILE_NAME}"
            )
            raise SettingsError(f"there is no profile `{name}`", hint=hint, code="CT914")
        found: Mapping[str, Any] = profiles[name]
        return found


def load_settings(near: Path | None = None) -> Settings:
    """Read the surroundings: environment, working directory and settings files.

    Args:
        near: the folder of the job file, whose project's settings come before those of the working directory, so
            that a job file means the same wherever one stands.

    Raises:
        SettingsError: somebody else can have written a settings file, it is not TOML, or it holds an unknown table.
    """
    cwd = Path.cwd()
    sources = tuple(read_settings(file) for file in _files(cwd, near))
    tables: dict[str, Any] = {}
    for source in sources:
        tables = _merge(tables, source.tables)
    files = tuple(source.path for source in sources)
    return Settings(_state_dir(), user_environment(), cwd, files, tables, sources)


def debug_wanted() -> bool:
    """Whether tracebacks are wanted (CLOUDTRAIN_DEBUG=1)."""
    return os.environ.get("CLOUDTRAIN_DEBUG", "") not in ("", "0")


def _state_dir() -> Path:
    if given := os.environ.get("CLOUDTRAIN_STATE_DIR"):
        return Path(given).absolute()
    from platformdirs import user_state_path

    return user_state_path("cloudtrain", appauthor=False)


def _files(cwd: Path, near: Path | None) -> Iterator[Path]:
    """The settings files that exist, weakest first."""
    from platformdirs import user_config_path

    user = user_config_path("cloudtrain", appauthor=False) / FILE_NAME
    if os.path.lexists(user):
        yield user
    start = (cwd / near) if near is not None else cwd
    for folder in (start, *start.parents, cwd, *cwd.parents):
        if os.path.lexists(folder / FILE_NAME):
            yield folder / FILE_NAME
            return


def _merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(weak)
    for key, value in strong.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged
