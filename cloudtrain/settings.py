"""Settings: the state folder, the user's environment variables, and the account settings of each target.

`cloudtrain.toml` holds one table per target, and profiles that override these tables. cloudtrain reads the file in the
user's configuration folder and the file of the project, which takes precedence. The project's file is the nearest one
in the folder of the job file and its parents, else in the working directory and its parents:

    target = "NAME"                         # used if you name no target; default: `local`

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
    """The settings, the environment variables and the working directory of the user."""

    state_dir: Path
    environ: Mapping[str, str]
    cwd: Path
    files: tuple[Path, ...] = ()
    """The settings files in use. Later files take precedence."""
    tables: Mapping[str, Any] | None = None
    sources: tuple[SettingsFile, ...] = ()
    """The content of the files, to find the positions of mistakes."""

    @property
    def default_target(self) -> str:
        """The name of the target that is used if you name none."""
        return str((self.tables or {}).get("target", DEFAULT_TARGET))

    @property
    def submitter(self) -> str:
        """`user@host`. Run names depend on it, so that runs of two users never get the same name."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user without a passwd entry, as in containers
            user = str(os.getuid())
        return f"{user}@{os.uname().nodename}"

    def target(self, name: str | None = None, *, profile: str | None = None, **flags: Any) -> TargetSettings:
        """Return the settings of a target: its table, overridden by the profile's table and by flags that are not None.

        Raises:
            SettingsError: the target or profile does not exist, or a field in a settings file is wrong.
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
        """Return the error for the unknown target `name`. `given` is the name that the caller gave; if None, `name`
        comes from `target` in a settings file, and the error has the position of `target`."""
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
    """Read the environment, the working directory and the settings files.

    Args:
        near: the folder of the job file. The settings of its project replace the settings of the working
            directory, so that a job file means the same from every folder.

    Raises:
        SettingsError: another user could have written a settings file, or it is not TOML or holds an unknown table.
    """
    cwd = Path.cwd()
    sources = tuple(read_settings(file) for file in _files(cwd, near))
    tables: dict[str, Any] = {}
    for source in sources:
        tables = _merge(tables, source.tables)
    files = tuple(source.path for source in sources)
    return Settings(_state_dir(), user_environment(), cwd, files, tables, sources)


def debug_wanted() -> bool:
    """Return whether tracebacks are shown (CLOUDTRAIN_DEBUG=1)."""
    return os.environ.get("CLOUDTRAIN_DEBUG", "") not in ("", "0")


def _state_dir() -> Path:
    if given := os.environ.get("CLOUDTRAIN_STATE_DIR"):
        return Path(given).absolute()
    from platformdirs import user_state_path

    return user_state_path("cloudtrain", appauthor=False)


def _files(cwd: Path, near: Path | None) -> Iterator[Path]:
    """Yield the paths of the existing settings files: the user's, then the project's, which takes precedence."""
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
