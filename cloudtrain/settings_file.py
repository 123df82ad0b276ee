"""A `cloudtrain.toml` file: its tables and the position of each value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.core.targets import DEFAULT_TARGET, target_names
from cloudtrain.documents.document import Positions, Unreadable, read_document
from cloudtrain.documents.reading import read_text
from cloudtrain.errors import Problem, SettingsError, did_you_mean, dotted
from cloudtrain.problems.source import KeyProblem, describe_value
from cloudtrain.system.trust import require_trust

Way = tuple["str | int", ...]
"""The keys that lead to a value in a settings file."""


class SettingsFile(NamedTuple):
    """The content of a settings file."""

    path: Path
    tables: Mapping[str, Any]
    positions: Positions

    def holds(self, path: Way) -> bool:
        """Return whether the file has a value at this path."""
        return path in self.positions.values

    def placed(self, problem: Problem) -> Problem:
        """Return the problem with the file, line and column of the value that causes it. Its hint is in TOML syntax."""
        place = self.positions.of(problem.path, key=isinstance(problem, KeyProblem))
        line, column = place or (None, None)
        from cloudtrain.problems.forms import in_form  # importing it costs start-up time, and most settings are right

        hint = in_form(problem.hint, "toml")
        return replace(problem, hint=hint, file=str(self.path), line=line, column=column)


def read_settings(path: Path) -> SettingsFile:
    """Read a settings file.

    Raises:
        SettingsError: another user could have written the file, or the file cannot be read, is not TOML, or has unknown
            tables.
    """
    try:
        document = read_document(read_text(path, require_trust), "toml")
    except Unreadable as error:
        raise SettingsError.of([replace(error.problem, file=str(path))]) from None
    except OSError as error:
        hint = "make it a plain file that you may read, or remove it"
        raise SettingsError(f"`{path}` cannot be read: {error.strerror}", hint=hint, code="CT911") from None
    file = SettingsFile(path, document.data, document.positions)
    problems = [file.placed(problem) for problem in _table_problems(file.tables)]
    if problems:
        raise SettingsError.of(problems)
    return file


def place_of(files: Sequence[SettingsFile], bases: Sequence[Way], problem: Problem) -> Problem:
    """Return `problem` with the position of its value in the settings files.

    Args:
        files: the settings files in use. Later files take precedence.
        bases: the tables that hold the settings, such as `("profiles", PROFILE, TARGET)`. Earlier tables take
            precedence.
        problem: a problem of a target's settings. Its path is relative to the table.
    """
    ways: list[tuple[SettingsFile, Way]] = [(file, base) for base in bases for file in reversed(files)]
    exact = ((file, base) for file, base in ways if file.holds((*base, *problem.path)))
    table = ((file, base) for file, base in ways if file.holds(base))
    found: tuple[SettingsFile, Way] | None = next(exact, None) or next(table, None)
    if found is None:
        return problem
    file, base = found
    return file.placed(replace(problem, path=(*base, *problem.path)))


def _table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    target, profiles = tables.get("target", DEFAULT_TARGET), tables.get("profiles", {})
    if not isinstance(target, str):
        message = f"`target` must be text, not {describe_value(target)}"
        yield Problem(("target",), message, did_you_mean("", target_names()), code="CT012")
    yield from _unknown(
        {name: table for name, table in tables.items() if name != "target"}, ("profiles", *target_names())
    )
    if isinstance(profiles, Mapping):
        yield from _unknown(profiles, profiles, ("profiles",))
        for name, profile in profiles.items():
            if isinstance(profile, Mapping):
                yield from _unknown(profile, target_names(), ("profiles", name))


def _unknown(tables: Mapping[str, Any], known: Collection[str], above: Way = ()) -> Iterator[Problem]:
    for name, table in tables.items():
        path = (*above, name)
        if name not in known:
            yield KeyProblem(path, f"unknown table `{dotted(path)}`", did_you_mean(name, known), code="CT912")
        elif not isinstance(table, Mapping):
            message = f"`{dotted(path)}` must be a table, not {describe_value(table)}"
            yield Problem(path, message, f"write `[{dotted(path)}]`", code="CT912")
