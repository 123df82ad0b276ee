"""The base class of all targets' settings. Users set them in settings files, with flags or in
Python, not in a job."""

from __future__ import annotations

import getpass
import os
import pwd
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, PrivateAttr

from cloudtrain.documents.document import Positions, read_trusted_toml
from cloudtrain.errors import JobError, Problem, SettingsError, did_you_mean, dotted
from cloudtrain.job.model import Model
from cloudtrain.job.nodes import KeyProblem, ValuePath, describe_value, placed
from cloudtrain.system.plugins import DEFAULT_TARGET, find_target, target_names
from cloudtrain.system.processes import user_environment

if TYPE_CHECKING:
    from typing_extensions import Self


Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A sum in US dollars. No bound is written by leaving the field out."""

CAPS = ("max_cost", "max_cost_per_day")
"""The settings that bound what is spent. Only the user's own file can raise them."""


class TargetSettings(Model):
    """The base class of target settings. It records the settings files that the values come
    from."""

    type: str
    """The name of the target."""

    _files: tuple[str, ...] = PrivateAttr(default=())
    _cap_places: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def settings_files(self) -> tuple[str, ...]:
        """The settings files that set these values, in increasing order of precedence."""
        return self._files

    @property
    def cap_places(self) -> Mapping[str, str]:
        """The position in the settings files of each field in `CAPS` that a file sets."""
        return self._cap_places

    @property
    def emulated_target(self) -> str | None:
        """The name of the target that a run with these settings emulates on this machine; None
        without emulation."""
        return None

    def from_files(self, files: tuple[str, ...], cap_places: Mapping[str, str]) -> Self:
        """Return the same settings with `settings_files` set to `files`, and with those
        `cap_places`."""
        settings = self.model_copy()
        # only fields are frozen
        settings._files = files  # type: ignore[misc]
        settings._cap_places = cap_places  # type: ignore[misc]
        return settings

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the given fields replaced, like `Model.replace`. The copy keeps
        `settings_files`, and the places of the caps that stay the same."""
        places = {name: place for name, place in self._cap_places.items() if name not in changes}
        return super().replace(**changes).from_files(self._files, places)

    def with_cap(self, name: str, amount: Any, place: str) -> Self:
        """Return the settings with the cap `amount`, which stands at `place`, unless they have a
        lower one. Raises `JobError` if it is not a sum of money."""
        own = getattr(self, name)
        lower = self
        if amount != own:  # what they have already is right, and checking it takes time
            lower = self.replace(**{name: amount})
        if own is not None and getattr(lower, name) > own:
            return self
        return lower.from_files(self._files, {**self._cap_places, name: place})


# A `cloudtrain.toml` file: its tables and the position of each value. A `ValuePath` is the keys
# that lead to a value.


class SettingsFile(NamedTuple):
    """The content of a settings file."""

    path: Path
    tables: Mapping[str, Any]
    positions: Positions

    def placed(self, problem: Problem) -> Problem:
        """Return the problem with the file, line and column of the value that causes it. Its hint
        is in TOML syntax."""
        # importing it costs start-up time, and most settings are right
        from cloudtrain.job.explain import in_form

        in_toml = replace(problem, hint=in_form(problem.hint, "toml"))
        return placed(in_toml, str(self.path), self.positions)


def read_settings(path: Path) -> SettingsFile:
    """Read one settings file. Raises a `SettingsError` with all problems of its tables."""
    document = read_trusted_toml(path, code="CT911")
    file = SettingsFile(path, document.data, document.positions)
    tables = dict(file.tables)
    problems = []
    for name, file_of in _PERSONAL.items():
        if name not in tables:
            continue
        own = file_of()
        if own is None or os.path.realpath(path) != os.path.realpath(own):
            message = f"`[{name}]` is yours alone to set, so it cannot stand in this file"
            hint = f"move it into your own settings file, `{own}`"
            problems.append(file.placed(Problem((name,), message, hint, code="CT920")))
            del tables[name]
    problems += [file.placed(problem) for problem in _table_problems(tables)]
    if problems:
        raise SettingsError.of(problems)
    return file


def _placed(problem: Problem, files: Sequence[SettingsFile], bases: Sequence[ValuePath]) -> Problem:
    """Return `problem`, whose path is relative to a table, with the position of its value in the
    settings files. Later files take precedence, and of the tables `bases`, such as `("profiles",
    PROFILE, TARGET)`, earlier ones. A value that stands nowhere has the position of the table."""
    last_first: list[SettingsFile] = list(reversed(files))
    for path in (problem.path, ()):
        for base in bases:
            for file in last_first:
                if (*base, *path) in file.positions.values:
                    absolute = replace(problem, path=(*base, *problem.path))
                    return file.placed(absolute)
    return problem


def _bases(target: str, profile: str | None) -> list[ValuePath]:
    """Return the tables of a target's settings, the strongest first."""
    bases: list[ValuePath] = [("profiles", profile, target)] if profile else []
    return [*bases, (target,)]


def _strongest(
    name: str, bases: Sequence[ValuePath], sources: Sequence[SettingsFile]
) -> tuple[Any, str] | None:
    """Return the value of a setting that takes precedence, and its position; None if no file sets
    it."""
    for base in bases:
        for source in reversed(sources):
            path = (*base, name)
            place = source.positions.values.get(path)
            if place is not None:
                value: Any = source.tables
                for key in path:
                    value = value[key]
                return value, f"{source.path}:{place.line}:{place.column}"
    return None


def _table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems with the names and types of tables. Their fields are checked when the settings
    of a target are made."""
    target = tables.get("target", DEFAULT_TARGET)
    if not isinstance(target, str):
        message = f"`target` must be text, not {describe_value(target)}"
        yield Problem(("target",), message, did_you_mean("", target_names()), code="CT012")

    named = {name: table for name, table in tables.items() if name != "target"}
    yield from _unknown(named, ("profiles", *_PERSONAL, *target_names()))

    profiles = tables.get("profiles", {})
    if not isinstance(profiles, Mapping):
        return
    yield from _unknown(profiles, profiles, ("profiles",))
    for name, profile in profiles.items():
        if isinstance(profile, Mapping):
            yield from _unknown(profile, target_names(), ("profiles", name))


def _unknown(
    tables: Mapping[str, Any], known_names: Collection[str], above: ValuePath = ()
) -> Iterator[Problem]:
    """Yield problems with values that are no tables, or have none of these names. `above` is the
    path of `tables`."""
    for name, table in tables.items():
        path = (*above, name)
        if name not in known_names:
            hint = did_you_mean(name, known_names)
            yield KeyProblem(path, f"unknown table `{dotted(path)}`", hint, code="CT912")
        elif not isinstance(table, Mapping):
            message = f"`{dotted(path)}` must be a table, not {describe_value(table)}"
            yield Problem(path, message, f"write `[{dotted(path)}]`", code="CT912")


# Settings: the state folder, the user's environment variables, and the account settings of each
# target.
#
# `cloudtrain.toml` holds one table per target, and profiles that override these tables. cloudtrain
# reads the file in the user's configuration folder and the file of the project, which takes
# precedence. The project's file is the nearest one in the folder of the job file and its parents,
# else in the working directory and its parents:
#
#     target = "NAME"                         # used if you name no target; default: `local`
#
#     [NAME]
#     role = "arn:aws:iam::111122223333:role/train"
#     region = "eu-west-1"
#
#     [profiles.research.NAME]                # cloudtrain submit job.yaml --profile research
#     bucket = "research-training"
#
#     [notify]                                # only in the file in your configuration folder
#     webhook = "env:SLACK_WEBHOOK"
#
#     [approval]                              # only in that file, whatever HOME and XDG_... say
#     paid_targets = "ask"
#
# Environment variables: CLOUDTRAIN_STATE_DIR moves the run store and the local runs,
# CLOUDTRAIN_PROFILE names a profile, CLOUDTRAIN_DEBUG=1 shows tracebacks.

FILE_NAME = "cloudtrain.toml"

NOTIFY = "notify"
"""The table of the user's own file that says how the user is notified."""

APPROVAL = "approval"
"""The table of the user's own file that says what the user has to approve."""


class Settings(NamedTuple):
    """The settings, the environment variables and the working directory of the user."""

    state_dir: Path
    environ: Mapping[str, str]
    cwd: Path
    tables: Mapping[str, Any] = MappingProxyType({})
    sources: tuple[SettingsFile, ...] = ()
    """The settings files in use. Later files take precedence."""

    @property
    def default_target(self) -> str:
        """The name of the target that is used if you name none."""
        return str(self.tables.get("target", DEFAULT_TARGET))

    @property
    def submitter(self) -> str:
        """`user@host`. Run names depend on it, so that runs of two users never get the same
        name."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user without a passwd entry, as in containers
            user = str(os.getuid())
        return f"{user}@{os.uname().nodename}"

    def target(
        self, name: str | None = None, *, profile: str | None = None, **flags: Any
    ) -> TargetSettings:
        """Return the settings of a target: its table, overridden by the profile's table and by
        flags that are not None.

        Raises:
            SettingsError: the target or profile does not exist, or a field in a settings file is
                wrong.
            JobError: a flag has a wrong value.
        """
        is_default = name is None
        name = name or self.default_target
        if name not in target_names():
            hint = did_you_mean(name, target_names())
            problem = Problem(("target",), f"`{name}` is not a target", hint, code="CT913")
            if is_default:
                problem = _placed(problem, self.sources, [()])
            if not problem.file:
                problem = replace(problem, path=())
            raise SettingsError.of([problem])

        profile = profile or self.environ.get("CLOUDTRAIN_PROFILE")
        fields = {**self.tables.get(name, {}), **self._profile(profile).get(name, {})}
        try:
            settings: TargetSettings = find_target(name).settings(**fields)
        except JobError as error:
            raise self._placed(error, _bases(name, profile)) from None

        flags = {key: value for key, value in flags.items() if value is not None}
        if flags:
            settings = settings.replace(**flags)
        files = tuple(str(source.path) for source in self.sources)
        return self.capped(settings.from_files(files, {}), profile)

    def capped(self, settings: TargetSettings, profile: str | None = None) -> TargetSettings:
        """Return the settings with the caps that the settings files set, where those are lower. The
        caps of the user's own file hold whatever a project's file, a flag or a program sets, which
        whoever submits may edit.

        Raises:
            SettingsError: a cap in a settings file is not a sum of money.
        """
        bases = _bases(settings.type, profile or self.environ.get("CLOUDTRAIN_PROFILE"))
        own = [source for source in self.sources if source.path == own_file()]
        for name in CAPS:
            if name not in type(settings).model_fields:
                continue
            for sources in (self.sources, own):
                found = _strongest(name, bases, sources)
                if found is None:
                    continue
                try:
                    settings = settings.with_cap(name, *found)
                except JobError as error:
                    raise self._placed(error, bases) from None
        return settings

    def _placed(self, error: JobError, bases: Sequence[ValuePath]) -> SettingsError:
        """Return the error with the positions of its values in the settings files."""
        problems = [_placed(problem, self.sources, bases) for problem in error.problems]
        return SettingsError.of(problems)

    def _profile(self, name: str | None) -> Mapping[str, Any]:
        """Return the tables of a profile, by target. Raises `SettingsError` for an unknown name."""
        if name is None:
            return {}
        profiles: Mapping[str, Mapping[str, Any]] = self.tables.get("profiles", {})
        if name not in profiles:
            new = f"add a table `[profiles.{name}.{self.default_target}]` to {FILE_NAME}"
            hint = did_you_mean(name, profiles) or new
            raise SettingsError(f"there is no profile `{name}`", hint=hint, code="CT914")
        return profiles[name]


def load_settings(near: Path | None = None) -> Settings:
    """Read the environment, the working directory and the settings files. `near` is the folder of
    the job file: the settings of its project replace those of the working directory, so that a job
    file means the same from every folder.

    Raises:
        SettingsError: another user could have written a settings file, or it is not TOML or holds
            an unknown table.
    """
    here = read_environment()
    sources = []
    tables: dict[str, Any] = {}
    for file in _files(here.cwd, near):
        source = read_settings(file)
        sources.append(source)
        tables = _merge(tables, source.tables)
    return here._replace(tables=tables, sources=tuple(sources))


def read_environment() -> Settings:
    """Read the environment and the working directory, and no settings file: what is sent already
    needs none, so whoever follows or stops a run is not kept from it by a mistake in one."""
    folder = os.environ.get("CLOUDTRAIN_STATE_DIR")
    if folder:
        state_dir = Path(folder).absolute()
    else:
        from platformdirs import user_state_path

        state_dir = user_state_path("cloudtrain", appauthor=False)
    return Settings(state_dir, user_environment(), Path.cwd())


def debug_wanted() -> bool:
    """Return whether tracebacks are shown (CLOUDTRAIN_DEBUG=1)."""
    return os.environ.get("CLOUDTRAIN_DEBUG", "") not in ("", "0")


def own_file() -> Path:
    """Return the path of the user's own settings file, which applies to all projects."""
    from platformdirs import user_config_path

    return user_config_path("cloudtrain", appauthor=False) / FILE_NAME


def account_folder(*, is_state: bool = False) -> Path | None:
    """Return cloudtrain's folder of settings, or of state, in the home of the user's account as the
    system knows it: no variable changes it. None for a user without an account."""
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
    if sys.platform == "darwin":
        return home / "Library/Application Support/cloudtrain"
    return home / (".local/state/cloudtrain" if is_state else ".config/cloudtrain")


def account_file() -> Path | None:
    """Return the path of the settings file in the home of the user's account."""
    folder = account_folder()
    return None if folder is None else folder / FILE_NAME


_PERSONAL: Mapping[str, Callable[[], Path | None]] = {NOTIFY: own_file, APPROVAL: account_file}
"""Tables that only one file may set, each with the function that returns its path."""


def ini_sections(file: Path, *, default_section: str = "DEFAULT") -> dict[str, dict[str, str]]:
    """Return the sections of a provider's own configuration file; empty if the file cannot be
    read."""
    if not file.exists():
        return {}
    import configparser

    parser = configparser.RawConfigParser(default_section=default_section, strict=False)
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _files(cwd: Path, near: Path | None) -> Iterator[Path]:
    """Yield the paths of the existing settings files: the user's, then the project's, which takes
    precedence."""
    if os.path.lexists(own_file()):
        yield own_file()
    start = (cwd / near) if near is not None else cwd
    for folder in (start, *start.parents, cwd, *cwd.parents):
        if os.path.lexists(folder / FILE_NAME):
            yield folder / FILE_NAME
            return


def _merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the values of both; where both have a value, that of `strong`."""
    tables = dict(weak)
    for key, value in strong.items():
        weaker = tables.get(key)
        if isinstance(value, Mapping) and isinstance(weaker, Mapping):
            tables[key] = _merge(weaker, value)
        else:
            tables[key] = value
    return tables
