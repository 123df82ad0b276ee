"""Settings: where state lives, and the account settings of each target. The only reader of `os.environ` here.

`cloudtrain.toml`, in the user's configuration folder and in the project (the nearest one upwards from the job file,
else from the working directory, which wins), holds one table per target, and profiles that override them:

    target = "sagemaker"                    # the target when none is named; `local` unless given

    [sagemaker]
    role = "arn:aws:iam::111122223333:role/train"
    region = "eu-west-1"

    [profiles.research.sagemaker]           # cloudtrain submit job.yaml --profile research
    bucket = "research-training"

Environment variables: CLOUDTRAIN_STATE_DIR moves the run store and the local runs, CLOUDTRAIN_PROFILE names a
profile, CLOUDTRAIN_DEBUG=1 shows tracebacks.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cloudtrain._startup import user_environment
from cloudtrain.errors import JobError, SettingsError, did_you_mean
from cloudtrain.targets import TARGETS, AzureML, Local, SageMaker

FILE_NAME = "cloudtrain.toml"


@dataclass(frozen=True)
class Settings:
    """Everything that comes from the user's surroundings."""

    state_dir: Path
    environ: Mapping[str, str]
    cwd: Path
    files: tuple[Path, ...] = ()
    """The settings files in use, weakest first."""
    tables: Mapping[str, Any] | None = None

    @property
    def default_target(self) -> str:
        """The target when none is named."""
        return str((self.tables or {}).get("target", "local"))

    @property
    def submitter(self) -> str:
        """`user@host`, a part of every run name, so that two people never get the same."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container user without a passwd entry
            user = str(os.getuid())
        return f"{user}@{os.uname().nodename}"

    def target(
        self, name: str | None = None, *, profile: str | None = None, **flags: Any
    ) -> Local | SageMaker | AzureML:
        """The target model: the target's table, then the profile's, then the flags that are not None.

        Raises:
            SettingsError: no such target or profile, or a wrong field in a settings file.
            JobError: a flag has a wrong value.
        """
        name = name or self.default_target
        if name not in TARGETS:
            raise SettingsError(f"`{name}` is not a target", hint=did_you_mean(name, TARGETS))
        tables = self.tables or {}
        fields = dict(tables.get(name, {})) | self._profile(profile).get(name, {})
        try:
            from_files = TARGETS[name](**fields)
        except JobError as error:
            where = self.files[-1] if self.files else FILE_NAME
            problem = error.problems[0]
            raise SettingsError(f"{where}: [{name}] {problem.message}", hint=problem.hint) from None
        given = {key: value for key, value in flags.items() if value is not None}
        return cast(Local | SageMaker | AzureML, from_files.replace(**given)) if given else from_files

    def _profile(self, name: str | None) -> Mapping[str, Any]:
        name = name or self.environ.get("CLOUDTRAIN_PROFILE")
        if name is None:
            return {}
        profiles = (self.tables or {}).get("profiles", {})
        if name not in profiles:
            hint = did_you_mean(name, profiles) or f"add a table `[profiles.{name}.sagemaker]` to {FILE_NAME}"
            raise SettingsError(f"there is no profile `{name}`", hint=hint)
        found: Mapping[str, Any] = profiles[name]
        return found


def load_settings(near: Path | None = None) -> Settings:
    """Read the surroundings: environment, working directory and settings files.

    Args:
        near: the folder of the job file, whose project's settings come before those of the working directory, so
            that a job file means the same wherever one stands.

    Raises:
        SettingsError: a settings file is not TOML, or holds an unknown table.
    """
    cwd = Path.cwd()
    files = tuple(_files(cwd, near))
    tables: dict[str, Any] = {}
    for file in files:
        tables = _merge(tables, _read(file))
    return Settings(_state_dir(), user_environment(), cwd, files, tables)


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
    if user.is_file():
        yield user
    start = (cwd / near) if near is not None else cwd
    for folder in (start, *start.parents, cwd, *cwd.parents):
        if (folder / FILE_NAME).is_file():
            yield folder / FILE_NAME
            return


def _read(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tables: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}", hint="see `cloudtrain doctor`") from None
    named = {name: table for name, table in tables.items() if name != "target"}
    _check_tables(file, named, {"target", "profiles", *TARGETS})
    profiles = tables.get("profiles", {})
    _check_tables(file, profiles, profiles.keys(), "profiles.")
    for name, profile in profiles.items():
        _check_tables(file, profile, TARGETS, f"profiles.{name}.")
    return tables


def _check_tables(file: Path, tables: Mapping[str, Any], known: Collection[str], above: str = "") -> None:
    for name, table in tables.items():
        if name not in known:
            raise SettingsError(f"{file}: unknown table `{above}{name}`", hint=did_you_mean(name, known))
        if not isinstance(table, Mapping):
            raise SettingsError(f"{file}: `{above}{name}` must be a table", hint=f"write `[{above}{name}]`")


def _merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(weak)
    for key, value in strong.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged
