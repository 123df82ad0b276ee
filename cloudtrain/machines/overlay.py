"""A user's own prices and instance types: `instances.toml`, which corrects and extends the
catalogue.

The file can be beside each `cloudtrain.toml`: in the user's configuration folder, and in the
project (the nearest file upwards from the working directory). The project's file takes precedence.
A file has one table per target and type, which corrects a type of the catalogue or adds a new type.
A new type needs at least `vcpus` and `memory_gib`:

    [sagemaker."ml.p5.48xlarge"]
    price = 55.04                         # US dollars an hour, what you pay
    price_date = "2026-11-01"

    [sagemaker."ml.p7.48xlarge"]
    vcpus = 256
    memory_gib = 4096
    gpus = 8
    gpu = "R100-288GB"
    interconnect = "rdma"

    [azureml.Standard_NC96ads_A100_v4]
    price = 13.2

The columns are the fields of `InstanceType`. Names of Azure's types may be in any case. A file that
another user may have written is an error (`cloudtrain/system/files.py`).

The results of the last `cloudtrain instances --refresh` have the lowest precedence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from cloudtrain.documents.document import Place, Positions, read_trusted, read_trusted_toml
from cloudtrain.errors import NearName, Problem, SettingsError, did_you_mean, quoted, shortened
from cloudtrain.job.nodes import KeyProblem, describe_value, placed
from cloudtrain.machines.table import (
    COLUMNS,
    REQUIRED,
    InstanceType,
    instance_named,
    name_keys,
    read_gpu,
    table_of,
    tables,
)
from cloudtrain.runtime.atomic import write_file
from cloudtrain.system.private import make_private_folder

# The results of `cloudtrain instances --refresh`: the file `instances.TARGET.refreshed.json` in the
# user's configuration folder.
#
# The next refresh replaces the whole file, and no refresh ever changes the user's `instances.toml`.
# Both files correct the catalogue in the same way, and `instances.toml` takes precedence. The
# format is JSON, which is read faster than TOML: the file has hundreds of types and is read for
# every plan.


class Refreshed(NamedTuple):
    """The results of one `cloudtrain instances --refresh`."""

    file: Path
    location: str
    """The region that was queried."""
    types: int
    """Number of types in the file."""
    new_types: tuple[str, ...]
    """Types that the catalogue's table lacks."""
    notes: tuple[str, ...] = ()
    """Notes about failed queries, each a line without a period."""


def refreshed_file(user_folder: Path, target: str) -> Path:
    return user_folder / f"instances.{target}.refreshed.json"


def read_refreshed(user_folder: Path, target: str) -> Mapping[str, object]:
    """Return the table of the last refresh, by name of instance type; empty if there was no
    refresh.

    Raises:
        SettingsError: another user may have written the file, or it cannot be read, or its format
            is wrong.
    """
    file = refreshed_file(user_folder, target)
    if not file.exists():
        return {}
    content = read_trusted(file)
    try:
        table = json.loads(content)[target]
    except (ValueError, KeyError, TypeError, IndexError):
        table = None
    if not isinstance(table, dict):
        message = f"`{file}` is not a price table from `cloudtrain instances --refresh`"
        hint = f"delete it, or run `cloudtrain instances --refresh --target {target}`"
        raise SettingsError(message, hint=hint, code="CT919")
    return table


def write_refreshed(
    user_folder: Path, target: str, table: Mapping[str, object], *, about: str
) -> Path:
    """Replace the target's refreshed file. `about` is a note for readers of the file: what was
    queried, and when.

    Raises:
        SettingsError: the file cannot be written.
    """
    file = refreshed_file(user_folder, target)
    text = json.dumps({"about": about, target: table}, indent=1, ensure_ascii=False) + "\n"
    try:
        make_private_folder(user_folder)
        write_file(file, text.encode())
        # independent of the umask: a file that others may write would not be read again
        file.chmod(0o600)
    except OSError as error:
        message = f"`{file}` cannot be written: {error.strerror}"
        hint = "make the folder writable for you"
        raise SettingsError(message, hint=hint, code="CT919") from None
    return file


FILE_NAME = "instances.toml"


class Correction(NamedTuple):
    """The values that one file sets for one instance type, converted to the types of their
    columns."""

    target: str
    name: str
    cells: Mapping[str, object]
    file: str
    place: Place | None = None
    """The position of the type's table in the file."""
    is_of_project: bool = False
    """Whether the file is the project's, which whoever submits may edit, and not the user's own."""

    def error(self, message: str, hint: str) -> SettingsError:
        """Return an error that names this instance type and its position in the file."""
        line, column = self.place or (None, None)
        path = (self.target, self.name)
        return SettingsError.of([Problem(path, message, hint, self.file, line, column, code=_CODE)])


Overlay = tuple[Correction, ...]
"""Corrections, the weakest first."""


def load_overlays(user_folder: Path, cwd: Path, target: str | None = None) -> Overlay:
    """Return the corrections in the user's file, then those in the project's file, which take
    precedence. Missing files are skipped.

    With `target`, the results of that target's last refresh are included, with the lowest
    precedence.

    Raises:
        SettingsError: a file is not TOML, or holds a wrong target, column or value.
    """
    corrections: Overlay = ()
    own = user_folder / FILE_NAME
    if os.path.lexists(own):
        corrections += load_overlay(own)
    for folder in (cwd, *cwd.parents):
        file = folder / FILE_NAME
        if os.path.lexists(file):
            if file != own:  # the user's file is the nearest where the project has none
                rows = load_overlay(file)
                corrections += tuple(row._replace(is_of_project=True) for row in rows)
            break

    if target is None:
        return corrections
    table = read_refreshed(user_folder, target)
    if not table:  # as on a target without instance types
        return corrections
    return read_overlay({target: table}, str(refreshed_file(user_folder, target))) + corrections


def user_overlay(cwd: Path | None = None, target: str | None = None) -> Overlay:
    """Return the corrections of this user and of the project that contains `cwd`; default: the
    working directory."""
    from platformdirs import user_config_path

    return load_overlays(user_config_path("cloudtrain", appauthor=False), cwd or Path.cwd(), target)


def load_overlay(file: Path) -> Overlay:
    """Return the corrections of one file.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or holds a wrong target, column or
            value.
    """
    document = read_trusted_toml(file, code=_CODE)
    return read_overlay(document.data, str(file), document.positions)


_CODE = "CT918"


_EXAMPLE = (
    'write one table for each type: `[sagemaker."ml.p5.48xlarge"]`, and below it `price = 55.04`'
)


def read_overlay(
    data: Mapping[str, object], file: str, positions: Positions | None = None
) -> Overlay:
    """Return the corrections in the tables of a file. `file` is the path of the file, for errors
    and as the source of prices.

    Raises:
        SettingsError: the tables have wrong targets, columns or values. All are reported.
    """
    positions = positions or Positions()
    problems: list[Problem] = []
    corrections: list[Correction] = []
    for target, types in data.items():
        if table_of(target) is None:
            message = f"`{target}` is not a target with instance types"
            hint = did_you_mean(target, tables())
            problems.append(KeyProblem((target,), message, hint, code=_CODE))
            continue
        if not isinstance(types, Mapping):
            problems.append(Problem((target,), f"`{target}` must be a table", _EXAMPLE, code=_CODE))
            continue
        for name, cells in types.items():
            path = (target, name)
            faults = list(_cell_problems(path, cells))
            if faults:
                problems += faults
                continue
            values = {}
            for column, value in cells.items():
                values[column] = _without_date(value)
                if "float" in COLUMNS[column]:
                    values[column] = float(value)
            place = positions.of(path, key=True)
            corrections.append(Correction(target, name, values, file, place))
    if problems:
        raise SettingsError.of([placed(problem, file, positions) for problem in problems])
    return tuple(corrections)


def apply_overlay(
    types: Iterable[InstanceType], overlay: Overlay, target: str | None = None
) -> tuple[InstanceType, ...]:
    """Return the types with the overlay's corrections, then the types that the overlay adds, in the
    overlay's order.

    `target` is needed only if `types` is empty. Otherwise the types name their target.

    Raises:
        SettingsError: an added type lacks a required column, or a row with GPUs lacks the name of
            the GPU.
    """
    types = tuple(types)
    if not target and types:
        target = types[0].target

    key_of = name_keys(target or "")
    rows = {key_of(instance.name): instance for instance in types}
    for correction in overlay:
        if correction.target != target:
            continue
        key = key_of(correction.name)
        row = rows.get(key)
        if row is None:
            rows[key] = _make_type(correction, rows.values())
        else:
            rows[key] = _correct(row, correction)
    return tuple(rows.values())


def type_named(target: str, name: str, overlay: Sequence[Correction] | None) -> InstanceType | None:
    """Return the type `name` with the corrections of `overlay`; None if neither the catalogue nor
    `overlay` has it.

    Raises:
        SettingsError: this type lacks a required column, or has GPUs but no name of the GPU.
    """
    instance = instance_named(target, name)
    if not overlay:
        return instance
    key_of = name_keys(target)
    key = key_of(name)
    own = tuple(row for row in overlay if key_of(row.name) == key)
    corrected = apply_overlay([instance] if instance else [], own, target)
    return corrected[0] if corrected else None


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isfinite(value) and value >= 0


def _is_whole_number(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole_number, "a whole number"),
    "int | None": (_is_whole_number, "a whole number"),
    "float": (_is_number, "a number"),
    "float | None": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "bool": (lambda value: isinstance(value, bool), "`true` or `false`"),
    "str": (lambda value: isinstance(value, str), "a text in quotes"),
    "Interconnect": (lambda value: value in ("rdma", "ethernet"), '`"rdma"` or `"ethernet"`'),
    "Fabric": (lambda value: value in ("efa", "infiniband", ""), '`"efa"`, `"infiniband"` or `""`'),
}
"""Maps a field's annotation to the test of a value and its description."""


def _cell_problems(path: tuple[str, str], cells: object) -> Iterator[Problem]:
    """Yield a problem for each wrong column or value in the table of one type."""
    if not isinstance(cells, Mapping):
        yield Problem(path, f"`{path[1]}` must be a table", _EXAMPLE, code=_CODE)
        return
    columns = COLUMNS.keys() - {"name"}
    for column, value in cells.items():
        place = (*path, column)
        if column not in columns:
            message = f"there is no column `{shortened(column)}`"
            yield KeyProblem(place, message, did_you_mean(column, columns), code=_CODE)
            continue
        fits, words = _CHECKS[COLUMNS[column]]
        if not fits(_without_date(value)):
            message = f"`{column}` must be {words}, not {describe_value(value)}"
            yield Problem(place, message, f"write {words}, or remove the line", code=_CODE)


def _without_date(value: object) -> object:
    """Return a date of TOML as text, and other values unchanged."""
    if isinstance(value, date | time):
        return value.isoformat()
    return value


def _correct(instance: InstanceType, correction: Correction) -> InstanceType:
    """Return the type with the values of a correction. Its source names what was corrected, except
    prices, which have sources of their own."""
    cells = _complete_cells(correction)
    facts = []
    for column in correction.cells:
        if "price" not in column and column != "source":
            facts.append(column)
    if facts:
        source = f"{instance.source}; {', '.join(facts)}: {correction.file}"
        cells = {"source": source, **cells}
    return _checked(replace(instance, **cells), correction)


def _make_type(correction: Correction, types: Iterable[InstanceType]) -> InstanceType:
    """Return the new type that a correction describes. `types` are the known types, one of which
    may be meant."""
    name = correction.name.removeprefix("ml.").removeprefix("Standard_")
    family = name.partition(".")[0]
    cells = {"family": family, "source": correction.file, **_complete_cells(correction)}
    columns = [column for column in REQUIRED if column not in {"name", *cells}]
    if columns:
        missing = quoted(columns, " and ")
        hint = f"add {missing}"
        near = did_you_mean(correction.name, [instance.name for instance in types])
        if isinstance(near, NearName):
            hint = f"{near} If it is a new type, {hint}"
        raise correction.error(
            f"`{correction.name}` is not in the catalogue, and a new type needs {missing}", hint
        )
    return _checked(InstanceType(correction.target, correction.name, **cells), correction)


def _complete_cells(correction: Correction) -> dict[str, Any]:
    """Return the cells of a correction, completed with cells that follow from them: the source of a
    price, the memory in a GPU's name, the network that RDMA uses."""
    cells = correction.cells
    follows: dict[str, object] = {}
    for price in ("price", "machine_price"):
        if price in cells:
            follows[f"{price}_source"] = correction.file
            follows[f"{price}_date"] = ""
    memory = read_gpu(str(cells.get("gpu", ""))).memory
    if memory:
        follows["gpu_memory_gib"] = memory
    if cells.get("interconnect") == "rdma":
        follows["fabric"] = _fabric(correction.target)
    return {**follows, **cells}


def _fabric(target: str) -> str:
    """Return the network that RDMA uses on a target."""
    table = table_of(target)
    assert table is not None, "only targets with a table have corrections"
    return table.fabric


def _checked(instance: InstanceType, correction: Correction) -> InstanceType:
    """Return the instance type, or raise an error if its columns do not fit together after the
    correction."""
    columns = correction.cells
    has_name = bool(instance.gpu)
    # A refresh writes 0 for GPUs of unknown memory.
    is_zero = has_name and columns.get("gpu_memory_gib") == 0
    has_memory = is_zero or bool(instance.gpu_memory_gib)
    is_complete = bool(instance.gpus) == has_name == has_memory
    if not is_complete and {"gpus", "gpu", "gpu_memory_gib"} & columns.keys():
        raise correction.error(
            "a type has `gpus`, `gpu` and `gpu_memory_gib` together, or none of them",
            'write for example `gpus = 8`, `gpu = "H100-80GB"`',
        )
    if instance.interconnect == "rdma" and not instance.fabric:
        raise correction.error(
            '`interconnect = "rdma"` needs a `fabric`',
            f'add `fabric = "{_fabric(correction.target)}"`',
        )
    return instance
