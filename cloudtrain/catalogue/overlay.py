"""A user's own prices and instance types: `instances.toml`, laid over the catalogue.

It stands beside `cloudtrain.toml`: in the user's configuration folder, and in the project (the nearest one upwards
from the working directory, which wins). One table per target and type; a type that the catalogue has is corrected, any
other is added and needs `vcpus` and `memory_gib` at least:

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

The columns are the fields of `InstanceType`. Azure's names may be in any case.

Below both lies what the last `cloudtrain instances --refresh` found (`refreshed.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from cloudtrain.catalogue.gpus import read_gpu
from cloudtrain.catalogue.instances import COLUMNS, REQUIRED, InstanceType, instance_named, name_key
from cloudtrain.catalogue.refreshed import read_refreshed, refreshed_file
from cloudtrain.errors import SettingsError, did_you_mean

FILE_NAME = "instances.toml"

TARGETS = ("sagemaker", "azureml")

FABRICS = {"sagemaker": "efa", "azureml": "infiniband"}
"""What `interconnect = "rdma"` is on each target, where the row does not say."""


@dataclass(frozen=True)
class Correction:
    """What one file says about one type. The values are of the columns' types."""

    target: str
    name: str
    cells: tuple[tuple[str, Any], ...]
    file: str


Overlay = tuple[Correction, ...]
"""Corrections, the weakest first."""


def load_overlays(user_folder: Path, cwd: Path, target: str | None = None) -> Overlay:
    """The corrections of the user's own file, then the project's, which win; none of a file that does not exist.

    `target` names the one whose last refresh is wanted too, below the others.

    Raises:
        SettingsError: a file is not TOML, or holds a wrong target, column or value.
    """
    project = next((folder / FILE_NAME for folder in (cwd, *cwd.parents) if (folder / FILE_NAME).is_file()), None)
    files = [user_folder / FILE_NAME, *([project] if project else [])]
    written = tuple(row for file in dict.fromkeys(files) if file.is_file() for row in load_overlay(file))
    if target is None or not (table := read_refreshed(user_folder, target)):
        return written
    return read_overlay({target: table}, str(refreshed_file(user_folder, target))) + written


def load_overlay(file: Path) -> Overlay:
    """The corrections of one file.

    Raises:
        SettingsError: it cannot be read, is not TOML, or holds a wrong target, column or value.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}", hint=_EXAMPLE) from None
    return read_overlay(tables, str(file))


_EXAMPLE = 'a type\'s own table looks like `[sagemaker."ml.p5.48xlarge"]`, and below it `price = 55.04`'


def read_overlay(tables: Mapping[str, Any], file: str) -> Overlay:
    """The corrections in the tables of a file; `file` names it in errors and as the source of prices.

    Raises:
        SettingsError: a wrong target, column or value.
    """
    return tuple(_corrections(tables, file))


def apply_overlay(
    types: Iterable[InstanceType], overlay: Overlay, target: str | None = None
) -> tuple[InstanceType, ...]:
    """The types with the overlay's corrections, then the types that it adds, in its order. Nothing else changes.

    `target` is needed only where there are no types to tell it from.

    Raises:
        SettingsError: an added type lacks a column that it needs, or a GPU row its GPU.
    """
    rows = {name_key(instance.target, instance.name): instance for instance in types}
    target = target or next((instance.target for instance in rows.values()), None)
    for correction in overlay:
        if correction.target == target:
            key = name_key(target, correction.name)
            known = rows.get(key)
            rows[key] = _added(correction, rows.values()) if known is None else _corrected(known, correction)
    return tuple(rows.values())


def type_named(target: str, name: str, overlay: Sequence[Correction] | None) -> InstanceType | None:
    """The row of that name with the overlay's corrections, or None. No other row is built.

    Raises:
        SettingsError: as `apply_overlay`, for this type.
    """
    key = name_key(target, name)
    own = tuple(correction for correction in overlay or () if name_key(correction.target, correction.name) == key)
    known = instance_named(target, name)
    return next(iter(apply_overlay([known] if known else [], own, target)), None)


def _corrections(tables: Mapping[str, Any], file: str) -> Iterator[Correction]:
    for target, types in tables.items():
        if target not in TARGETS:
            raise SettingsError(f"{file}: `{target}` is not a target with instance types",
                                hint=did_you_mean(target, TARGETS))  # fmt: skip
        for name, cells in _table(types, f"{file}: `{target}`").items():
            place = f'{file}: [{target}."{name}"]'
            typed = {column: _value(column, value, place) for column, value in _table(cells, place).items()}
            yield Correction(target, name, tuple(typed.items()), file)


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{place} is not a table", hint=_EXAMPLE)
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: _number(value) and isinstance(value, int), "a whole number"),
    "int | None": (lambda value: _number(value) and isinstance(value, int), "a whole number"),
    "float": (_number, "a number"),
    "float | None": (lambda value: _number(value) and value > 0, "a number above 0"),
    "bool": (lambda value: isinstance(value, bool), "`true` or `false`"),
    "str": (lambda value: isinstance(value, str), "a text in quotes"),
    "Interconnect": (lambda value: value in ("rdma", "ethernet"), '`"rdma"` or `"ethernet"`'),
    "Fabric": (lambda value: value in ("efa", "infiniband", ""), '`"efa"`, `"infiniband"` or `""`'),
}
"""A field's annotation to what a value must be."""


_DATES = ("price_date", "machine_price_date", "retired", "retires")


def _value(column: str, value: Any, place: str) -> Any:
    known = COLUMNS.keys() - {"name"}
    if column not in known:
        raise SettingsError(f"{place} has an unknown column `{column}`", hint=did_you_mean(column, known))
    fits, wanted = _CHECKS[COLUMNS[column]]
    if column in _DATES and hasattr(value, "isoformat"):
        value = value.isoformat()  # TOML has dates of its own
    if not fits(value):
        raise SettingsError(f"{place} `{column}` must be {wanted}, not {value!r}")
    return float(value) if "float" in COLUMNS[column] else value


def _corrected(known: InstanceType, correction: Correction) -> InstanceType:
    cells = _filled(correction)
    facts = [column for column, _ in correction.cells if "price" not in column and column != "source"]
    if facts:
        cells = {"source": f"{known.source}; {', '.join(facts)}: {correction.file}", **cells}
    return _whole(replace(known, **cells), correction)


def _added(correction: Correction, known: Iterable[InstanceType]) -> InstanceType:
    family = correction.name.removeprefix("ml.").removeprefix("Standard_").partition(".")[0]
    cells = {"family": family, "source": correction.file, **_filled(correction)}
    missing = " and ".join(f"`{column}`" for column in REQUIRED if column != "name" and column not in cells)
    if missing:
        near = did_you_mean(correction.name, [instance.name for instance in known]) or ""
        raise SettingsError(
            f"{correction.file}: `{correction.name}` is not in the catalogue, and a new type needs {missing}",
            hint=f"{near} If it is a new type, add {missing}" if near.startswith("did you mean") else f"add {missing}",
        )
    return _whole(InstanceType(correction.target, correction.name, **cells), correction)


def _filled(correction: Correction) -> dict[str, Any]:
    """What the file says, and what follows from it: a price's source, the memory in a GPU's name, RDMA's fabric."""
    cells = dict(correction.cells)
    follows: dict[str, Any] = {}
    for price in ("price", "machine_price"):
        if price in cells:
            follows |= {f"{price}_source": correction.file, f"{price}_date": ""}
    if memory := read_gpu(cells.get("gpu", "")).memory:
        follows["gpu_memory_gib"] = memory
    if cells.get("interconnect") == "rdma":
        follows["fabric"] = FABRICS[correction.target]
    return follows | cells


_GPU_COLUMNS = frozenset(("gpus", "gpu", "gpu_memory_gib"))


def _whole(instance: InstanceType, correction: Correction) -> InstanceType:
    """The row, if its parts agree."""
    place = f'{correction.file}: [{correction.target}."{correction.name}"]'
    told = dict(correction.cells)
    named, memory = bool(instance.gpu), bool(instance.gpu_memory_gib)
    memory |= named and told.get("gpu_memory_gib") == 0  # nobody knows it, says a refresh
    if _GPU_COLUMNS & told.keys() and not bool(instance.gpus) == named == memory:
        raise SettingsError(f"{place} needs `gpus`, `gpu` and `gpu_memory_gib` together, or none of them",
                            hint='write for example `gpus = 8`, `gpu = "H100-80GB"`')  # fmt: skip
    if instance.interconnect == "rdma" and not instance.fabric:
        raise SettingsError(f'{place} has `interconnect = "rdma"` but no `fabric`',
                            hint=f'add `fabric = "{FABRICS[correction.target]}"`')  # fmt: skip
    return instance
