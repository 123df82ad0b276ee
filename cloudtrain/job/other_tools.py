"""Hints for field names of other tools, such as SageMaker, Azure ML, torchrun and Slurm, and for
short forms."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from cloudtrain.documents.document import load_toml
from cloudtrain.job.nodes import SchemaNode
from cloudtrain.system.plugins import DEFAULT_TARGET, all_targets

_TABLES = load_toml(Path(__file__).with_name("other_tools.toml").read_text("utf-8"))

_MEANT = {habit: ours for ours, habits in _TABLES["fields"].items() for habit in habits.split()}
"""Maps names from other tools to ours. Searched only for names that are not fields at their
position."""

_DISTRIBUTION = {
    habit: ours for ours, habits in _TABLES["distributions"].items() for habit in habits.split()
}

_ACCOUNT = frozenset(
    (
        "target compute_target role_arn security_groups keep_alive_period_in_seconds "
        "workspace_name "
        "experiment_name"
    ).split()
)
"""Names that other tools have in a job and cloudtrain has in the settings of a target."""


def other_tool_hint(
    name: str, parent: SchemaNode, root: SchemaNode, names: Iterable[str]
) -> str | None:
    """Return a hint with cloudtrain's name for the field that other tools call `name`, or one for a
    field of training jobs in a processing job; None if no tool uses `name`. `names` are the names
    of the fields in `parent`."""
    if list(parent.models) == ["ProcessingJob"] and name in _TABLES["only_training"]:
        return str(_TABLES["only_training"][name])
    word = _word(name)
    # `s3_uri` means `sagemaker`
    of_target = (own.name for own in all_targets() if word in own.facts.place_aliases)
    field = _MEANT.get(word) or next(of_target, None)
    if field is None:
        return None
    home = field if field in names else _home(field, parent, root)
    return f"did you mean `{home}`?" if home else None


def elsewhere_hint(name: str, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return a hint to the correct position of the field `name`, in the job or in a target's
    settings. If no such field exists, return a hint to the field of the job with almost this name;
    None if there is none."""
    word = _word(name)
    home = _home(word, parent, root)
    if home is None:
        if word in _ACCOUNT or any(word in own.settings.model_fields for own in all_targets()):
            return "put it in `cloudtrain.toml`: it is a setting of the target, not of a job"
        paths = {path.rpartition(".")[2]: path for path in reversed(_paths(root))}
        near = get_close_matches(word, paths, n=1, cutoff=0.8)
        return f"did you mean `{paths[near[0]]}`?" if near else None
    above, _, field = home.rpartition(".")
    holder = root.child(above) if above else None
    if holder is not None and holder.kind == "choice":
        kind = next(kind for kind, model in holder.models.items() if field in model.model_fields)
        return f"it belongs under `{above}` with a `type` that has it: `type: {kind}`"
    return f"it belongs under `{above}`" if above else f"`{field}` belongs at the top of the job"


def is_elsewhere(name: str, parent: SchemaNode, root: SchemaNode) -> bool:
    """Return whether a field with exactly this name exists at another position of the job. It is
    more likely the one that was meant than a field of `parent` with a similar name."""
    return _home(name, parent, root) is not None


def other_type_hint(path: tuple[str | int, ...], root: SchemaNode) -> str | None:
    """Return a hint if the field at `path` belongs to another `type` than the chosen one, such as
    another distribution; None if no type has the field."""
    holder: SchemaNode | None = root
    for part in path[:-1]:
        holder = holder.child(part) if holder is not None else None
    if holder is None or holder.kind != "choice":
        return None
    others = [kind for kind, model in holder.models.items() if path[-1] in model.model_fields]
    return (
        f"remove it: it belongs to {', '.join(f'`type: {kind}`' for kind in others)}"
        if others
        else None
    )


def _word(name: str) -> str:
    return name.casefold().replace("-", "_")


def _home(name: str, parent: SchemaNode, root: SchemaNode) -> str | None:
    """Return the path of the first field called `name` that is found one level below `parent`, at
    the top level of the job, or one level below the top; None if there is none."""
    homes = [*_paths(parent), *root.field_names(), *_paths(root)]
    return next((path for path in homes if f".{path}".endswith(f".{name}")), None)


def distribution_hint(name: str) -> str | None:
    """Return a hint with cloudtrain's name for the distribution that other tools call `name`; None
    if unknown."""
    ours = _DISTRIBUTION.get(name.casefold())
    return f"did you mean `{ours}`?" if ours else None


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
        near = get_close_matches(
            _DISTRIBUTION.get(value.casefold(), value.casefold()), node.options, n=1
        )
        return f"write `{name}: {{type: {near[0] if near else node.options[0]}}}`"
    if isinstance(value, str) and DEFAULT_TARGET in node.field_names():
        starts = {target.name: target.facts.place_prefixes for target in all_targets()}
        target = next(
            (name for name, prefixes in starts.items() if value.startswith(prefixes)),
            DEFAULT_TARGET,
        )
        return f"write `{name}: {{{target}: {value}}}`"
    if value is True:
        return f"write `{name}: {{}}`"
    if isinstance(value, list) and node.kind in ("map", "model"):
        entry = next((str(item) for item in value if isinstance(item, str) and "=" in item), None)
        key, _, text = (entry or "name=...").partition("=")
        if node.inner is not None and node.inner.type is str and not text.isalpha():
            text = json.dumps(text, ensure_ascii=False)
        return f"write a mapping: `{name}: {{{key}: {text}}}`" if node.kind == "map" else None
    return None
