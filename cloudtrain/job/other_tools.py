"""Hints for field names of other tools, such as SageMaker, Azure ML, torchrun and Slurm, and for
short forms."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from cloudtrain.documents.document import load_table
from cloudtrain.errors import NearName, ValuePath, quoted
from cloudtrain.job.nodes import SchemaNode
from cloudtrain.system.plugins import DEFAULT_TARGET, all_targets, target_names

_TABLES = load_table(__file__, "other_tools.toml")


def _ours_by_habit(table: str) -> dict[str, str]:
    """Return a table that maps other tools' names to ours. The file has it the other way round."""
    ours_by_habit: dict[str, str] = {}
    for ours, habits in _TABLES[table].items():
        ours_by_habit.update(dict.fromkeys(habits.split(), ours))
    return ours_by_habit


_MEANT = _ours_by_habit("fields")
"""Maps names from other tools to ours. Searched only for names that are not fields at their
position."""

_DISTRIBUTION = _ours_by_habit("distributions")

_ACCOUNT = frozenset(
    (
        "target compute_target role_arn security_groups keep_alive_period_in_seconds "
        "workspace_name experiment_name"
    ).split()
)
"""Names that other tools have in a job and cloudtrain has in the settings of a target."""


def habit_hint(name: str, parent: SchemaNode, root: SchemaNode, names: Iterable[str]) -> str | None:
    """Return a hint for a name that other tools, or cloudtrain elsewhere, have for a field: at the
    top of a job for a target or its choice, and for a field of training jobs in a processing job.
    Return None for other names. `names` are those of the fields in `parent`."""
    if parent is root:
        if name in ("target", "settings", "profile"):
            return (
                "choose one with `--target NAME` and `--profile NAME`; settings are in "
                "`cloudtrain.toml`"
            )
        if name in target_names():
            return f"its settings are in `cloudtrain.toml`, under `[{name}]`"
    if list(parent.models) == ["ProcessingJob"] and name in _TABLES["only_training"]:
        return str(_TABLES["only_training"][name])
    word = _snake_case(name)
    field = _MEANT.get(word) or _target_with_alias(word)
    if field is None:
        return None
    home = field if field in names else home_of(field, parent, root)
    return NearName.of(home) if home else None


def _target_with_alias(word: str) -> str | None:
    """Return the target whose locations other tools name so: `s3_uri` means `sagemaker`."""
    for target in all_targets():
        if word in target.facts.place_aliases:
            return str(target.name)
    return None


def place_hint(path: ValuePath, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return a hint for a field that belongs to another `type` than the chosen one, such as another
    distribution, or to another position in the job, or to a target's settings. If no such field
    exists, return a hint to the field of the job with almost this name; None if there is none."""
    holder: SchemaNode | None = root
    for part in path[:-1]:
        holder = holder.child(part) if holder is not None else None
    if holder is not None and holder.kind == "choice":
        others = _types_with(path[-1], holder)
        if others:
            return f"remove it: it belongs to {quoted(f'type: {kind}' for kind in others)}"

    word = _snake_case(str(path[-1]))
    home = home_of(word, parent, root)
    if home is None:
        settings = [target.settings.model_fields for target in all_targets()]
        if any(word in names for names in (_ACCOUNT, *settings)):
            return "put it in `cloudtrain.toml`: it is a setting of the target, not of a job"
        # Of two paths with the same last name, the first one counts.
        paths = {path.rpartition(".")[2]: path for path in reversed(_paths(root))}
        near = get_close_matches(word, paths, n=1, cutoff=0.8)
        return NearName.of(paths[near[0]]) if near else None

    above, _, field = home.rpartition(".")
    if not above:
        return f"`{field}` belongs at the top of the job"
    holder = root.child(above)
    if holder is not None and holder.kind == "choice":
        kind = _types_with(field, holder)[0]
        return f"it belongs under `{above}` with a `type` that has it: `type: {kind}`"
    return f"it belongs under `{above}`"


def _types_with(field: str | int, choice: SchemaNode) -> list[str]:
    """Return the values of `type` whose models have the field."""
    return [kind for kind, model in choice.models.items() if field in model.model_fields]


def _snake_case(name: str) -> str:
    return name.casefold().replace("-", "_")


def home_of(name: str, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return the path of the first field called `name` that is found one level below `parent`, at
    the top level of the job, or one level below the top; None if there is none."""
    for path in (*_paths(parent), *root.field_names(), *_paths(root)):
        if f".{path}".endswith(f".{name}"):
            return path
    return None


def distribution_hint(name: str) -> str | None:
    """Return a hint with cloudtrain's name for the distribution that other tools call `name`; None
    if unknown."""
    ours = _DISTRIBUTION.get(name.casefold())
    return NearName.of(ours) if ours else None


def _paths(node: SchemaNode) -> list[str]:
    """Return the paths one level below the fields of a node, such as `resources.instance_count`."""
    paths = []
    for name in node.field_names():
        child = node.child(name)
        if child is not None and child.kind in ("model", "choice"):
            paths += [f"{name}.{inner}" for inner in child.field_names()]
    return paths


def mapping_hint(node: SchemaNode, name: str, value: object) -> str | None:
    """Return a hint with the mapping that the user probably meant by `value`, such as a text, in
    the field `name`. Return None if no mapping is likely."""
    if isinstance(value, str) and node.kind == "choice":
        word = value.casefold()
        near = get_close_matches(_DISTRIBUTION.get(word, word), node.options, n=1)
        type_name = near[0] if near else node.options[0]
        return f"write `{name}: {{type: {type_name}}}`"
    if isinstance(value, str) and DEFAULT_TARGET in node.field_names():
        return f"write `{name}: {{{_target_of_place(value)}: {value}}}`"
    if value is True:
        return f"write `{name}: {{}}`"
    return None


def _target_of_place(place: str) -> str:
    """Return the target whose locations begin as `place` does."""
    for target in all_targets():
        if place.startswith(target.facts.place_prefixes):
            return str(target.name)
    return DEFAULT_TARGET
