"""Write docs/reference/fields.md: what each target does with each field of a job, from the targets' tables of fields."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from cloudtrain.targets.common.fields import Field, Needless, NoEffect, Refused
from cloudtrain.targets.registry import all_targets

INTRODUCTION = """\
# What each target does with each field

A field of a job is sent, or the plan says that it is not: in a notice with the reason, or as an error. A few fields
rightly do nothing on a target. In the table, a path such as `resources.shmSize` is the place in the request, and
*sent* stands where several places of the request, the uploads or the processes depend on the field. A dash is a
field of which the target's part of the job has no use.

"""


def document() -> str:
    """Return the whole page."""
    targets = {
        target.name: f"{target.title[0].upper()}{target.title[1:]}" for target in all_targets()
    }
    tables = {name: _rows(name) for name in targets}
    lines = [
        INTRODUCTION + f"| field | {' | '.join(targets.values())} |",
        f"|---{'|---' * len(targets)}|",
    ]
    for field in _fields(tables, [*targets]):
        cells = [_cell(_find(table, field)) for table in tables.values()]
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    for name, title in targets.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| field | why it has no effect | what to do |",
            "|---|---|---|",
        ]
        lines += _reasons(tables[name])
    return "\n".join(lines) + "\n"


def _rows(target: str) -> dict[str, Field]:
    rows: tuple[Field, ...] = import_module(f"cloudtrain.targets.{target}.fields").FIELDS
    return {row.job: row for row in rows if row.job and not row.job.startswith("settings.")}


def _fields(tables: dict[str, dict[str, Field]], targets: list[str]) -> Iterator[str]:
    """Yield each field once, in the order of the first target that lists it. Locations and names of one target are
    left out: only that target reads them."""
    names = dict.fromkeys(name for table in tables.values() for name in table)
    for name in names:
        last = name.rpartition(".")[2]
        if last not in targets and not last.endswith("_overrides"):
            yield name


def _find(table: dict[str, Field], field: str) -> Field | None:
    """Return the row of a field, or of the field that it is a part of."""
    while field not in table and "." in field:
        field = field.rpartition(".")[0]
    return table.get(field)


def _cell(row: Field | None) -> str:
    if row is None:
        return "-"
    if isinstance(row.effect, NoEffect):
        return "no effect"
    if isinstance(row.effect, Refused):
        return f"error {row.effect.code}"
    if isinstance(row.effect, Needless):
        return "nothing"
    return f"`{row.request}`" if row.request else "sent"


def _reasons(table: dict[str, Field]) -> Iterator[str]:
    for name, row in table.items():
        if isinstance(row.effect, NoEffect):
            yield f"| `{name}` | {row.effect.why} | {row.effect.hint or ''} |"
        elif isinstance(row.effect, Needless):
            yield f"| `{name}` | {row.effect.why} | nothing; the plan has no notice of it |"
