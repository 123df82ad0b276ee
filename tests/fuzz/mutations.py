"""From a right job to a wrong one: a random walk over its data, then over its bytes, then over the command line."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import yaml

from cloudtrain.job.file import PROCESSING, TRAINING, model_of_kind
from cloudtrain.job.nodes import SchemaNode, node_of_model
from cloudtrain.system.plugins import all_targets, find_target, target_names
from tests.fuzz import hostile
from tests.fuzz.seeds import Data, Seed, requests, seeds

Path = tuple["str | int", ...]

FORMATS = {
    target.name: ("text", "json", "request", *target.facts.plan_formats * 2)
    for target in all_targets()
}
JOB = "fuzz"
"""The stem of the job file's name."""


@dataclass(frozen=True)
class Case:
    """One command line in a folder with some files of its own."""

    seed: str
    folder: str
    argv: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    special: dict[str, str] = field(default_factory=dict)
    """Name of a file to the key of `hostile.SPECIAL`."""


@cache
def _seeds() -> list[Seed]:
    return seeds()


@cache
def _requests() -> dict[str, list[Data]]:
    return requests()


def case_of(seed: int, number: int) -> Case:
    """The case of that number: the same for the same seed, whatever ran before."""
    rng = Random(f"{seed}/{number}")
    start = rng.choice(_seeds())
    target = start.target if start.target and rng.random() < 0.7 else rng.choice([*target_names()])
    files: dict[str, bytes] = {}
    job, suffix = deepcopy(start.job), rng.choice((".yaml", ".json", ".toml", ".yaml"))
    rounds = rng.choice((0, 1, 1, 1, 1, 1, 2, 2, 3))
    for _ in range(rounds):
        job = _mutated(rng, job, _model_of(job), target)
    if rounds == 0 and rng.random() < 0.8:
        text, suffix = start.text.encode(), start.suffix
    else:
        text, suffix = written(job, suffix)
    if rounds == 0 or rng.random() < 0.04:
        text = _with_other_bytes(rng, text)
    files[JOB + suffix] = text
    settings = _settings(rng, start, target)
    if settings is not None:
        files["cloudtrain.toml"] = settings
    for name, content in (
        (".cloudtrainignore", b"*.log\n!x/\n/a[bc]?/**\n"),
        (".cloudtraininclude", b"# shared\n../golden/docker\n../examples/\n"),
        ("instances.toml", _INSTANCES),
        ("requirements.txt", b"numpy==1.26\n-r other.txt\n"),
        ("conda.yml", b"channels: [conda-forge]\ndependencies:\n- python=3.11\n- pip: [numpy]\n"),
        ("config.json", b'{"subscription_id": "s", "resource_group": "r", "workspace_name": "w"}'),
    ):
        if rng.random() < 0.04:
            files[name] = _with_other_bytes(rng, content)
    special = {}
    if rng.random() < 0.01:
        name = rng.choice([JOB + suffix, "cloudtrain.toml", ".cloudtrainignore", ".cloudtraininclude", "conda.yml", "requirements.txt",
                           "instances.toml", "train.py"])  # fmt: skip
        files.pop(name, None)
        kinds = [kind for kind in hostile.SPECIAL if kind != "sparse" or name not in _IN_THE_BUNDLE]
        special[name] = rng.choice(kinds)
    return Case(start.name, start.folder, _argv(rng, JOB + suffix, target, job), files, special)


_IN_THE_BUNDLE = ("conda.yml", "requirements.txt", "train.py", "instances.toml")
"""A large file among these is a part of the bundle, whose hash takes as long as reading it does."""

_INSTANCES = b"""[sagemaker."ml.p5.48xlarge"]
price = 55.04
price_date = "2026-11-01"

[azureml.Standard_X]
vcpus = 256
memory_gib = 4096
gpus = 8
gpu = "R100-288GB"
interconnect = "rdma"
"""


def written(data: Any, suffix: str) -> tuple[bytes, str]:
    """Data as text of a format, and the suffix of the format that was used in the end: not every format has every
    value."""
    if suffix == ".toml":
        import tomli_w

        try:
            return tomli_w.dumps(data).encode("utf-8", "surrogatepass"), suffix
        except (TypeError, AttributeError, ValueError, RecursionError):
            suffix = ".yaml"
    if suffix == ".json":
        return json.dumps(data, indent=1, default=str).encode(), suffix
    try:
        return yaml.dump(
            data, None, yaml.CSafeDumper, sort_keys=False, encoding="utf-8", allow_unicode=True
        ), suffix
    except (yaml.YAMLError, UnicodeEncodeError, RecursionError, ValueError):
        return json.dumps(data, default=str).encode(), ".json"


def _model_of(job: Any) -> Any:
    kind = job.get("kind") if isinstance(job, dict) else None
    return model_of_kind(kind if kind in (TRAINING, PROCESSING) else TRAINING)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _mutated(rng: Random, data: Any, model: Any, target: str) -> Any:
    """The data with one thing changed."""
    if not isinstance(data, dict):
        return data
    change = rng.choices(
        (_replace, _delete, _rename, _duplicate, _swap, _add_field, _override, _reference),
        (6, 1, 1, 1, 1, 12, 5, 1),
    )[0]
    change(rng, data, model, target)
    return data


def _chosen(rng: Random, data: Data) -> tuple[Any, Any] | None:
    """A holder and a key in it."""
    paths = list(_paths(data))[:400]
    if not paths:
        return None
    *above, key = rng.choice(paths)
    holder: Any = data
    for part in above:
        holder = holder[part]
    return holder, key


def _replace(rng: Random, data: Data, *_: Any) -> None:
    if place := _chosen(rng, data):
        place[0][place[1]] = hostile.like(rng, place[0][place[1]])


def _delete(rng: Random, data: Data, *_: Any) -> None:
    if place := _chosen(rng, data):
        del place[0][place[1]]


def _rename(rng: Random, data: Data, *_: Any) -> None:
    place = _chosen(rng, data)
    if place and isinstance(place[0], dict):
        holder, key = place
        name = rng.choice(
            (
                hostile.word(rng),
                f"{key}s",
                f"{key}"[:-1],
                f"{key}".upper(),
                f"{key}".replace("_", "-"),
            )
        )
        holder[name] = holder.pop(key)


def _duplicate(rng: Random, data: Data, *_: Any) -> None:
    place = _chosen(rng, data)
    if place:
        holder, key = place
        copy = deepcopy(holder[key])
        if isinstance(holder, list):
            holder += [copy] * rng.choice((1, 2, 1500))
        else:
            holder[hostile.word(rng)] = copy


def _swap(rng: Random, data: Data, *_: Any) -> None:
    one, other = _chosen(rng, data), _chosen(rng, data)
    if one and other:
        one[0][one[1]] = deepcopy(other[0][other[1]])


def _add_field(rng: Random, data: Data, model: Any, target: str) -> None:
    """A field that the schema knows, at a random place, with a value that mostly is of its type."""
    holder: Any = data
    node: SchemaNode = node_of_model(model)
    while True:
        tag = holder.get("type") if isinstance(holder, dict) else None
        names = node.field_names(tag if isinstance(tag, str) else None)
        if not names or not isinstance(holder, dict):
            return
        name = rng.choice(names)
        child = node.child(name, tag)
        if child is None:
            return
        if child.kind in ("model", "choice", "map") and rng.random() < 0.75:
            below = holder.setdefault(name, {})
            if child.kind == "map" and child.inner is not None:
                if not isinstance(below, dict):
                    return
                key = rng.choice(
                    ("x", "train", "A", *[str(key) for key in below][:3], hostile.word(rng))
                )
                if child.inner.kind not in ("model", "choice"):
                    below[key] = _fitting(rng, child.inner)
                    return
                below, child = below.setdefault(key, {}), child.inner
            if child.kind == "choice" and isinstance(below, dict):
                below.setdefault("type", rng.choice(child.options))
            holder, node = below, child
            continue
        holder[name] = _fitting(rng, child)
        return


def _fitting(rng: Random, node: SchemaNode, depth: int = 0) -> Any:
    """A value of the type, in four of five cases."""
    if rng.random() < 0.08 or depth > 3:
        return hostile.value(rng)
    if node.options:
        kind = rng.choice(node.options)
        return {"type": kind} if node.kind == "choice" else kind
    if node.kind == "list":
        inner = node.inner
        return (
            [_fitting(rng, inner, depth + 1) for _ in range(rng.choice((0, 1, 2, 3)))]
            if inner
            else []
        )
    if node.kind == "map":
        return {hostile.word(rng): _fitting(rng, node.inner, depth + 1)} if node.inner else {}
    if node.kind == "model":
        names = node.field_names()
        return {
            name: _fitting(rng, node.child(name) or node, depth + 1)
            for name in rng.sample(names, min(2, len(names)))
        }
    if node.kind == "json":
        return hostile.value(rng)
    if node.type is bool:
        return rng.random() < 0.5
    if node.type in (int, float) and not node.has_parser:
        return hostile.number(rng)
    if node.has_parser:
        return rng.choice(
            ("90s", "1h", "2d", "64g", "512m", 3600, 2**31 - 1, "68w", hostile.word(rng))
        )
    return hostile.word(rng)


def _override(rng: Random, data: Data, _: Any, target: str) -> None:
    """A field of a recorded request as an override, or something hostile in its place."""
    name = f"{target}_overrides"
    if name not in _requests():
        name = rng.choice([*_requests()])
    whole = deepcopy(rng.choice(_requests()[name]))
    paths = list(_paths(whole))
    path = rng.choice(paths)
    wanted: Any = whole
    for part in path:
        wanted = wanted[part]
    if rng.random() < 0.6:
        wanted = hostile.like(rng, wanted)
    holder = data.setdefault(name, {})
    for part in path[:-1]:
        if not isinstance(holder, dict) or not isinstance(part, str):
            return
        holder = holder.setdefault(part, {})
    if isinstance(holder, dict):
        holder[path[-1]] = wanted


def _reference(rng: Random, data: Data, *_: Any) -> None:
    """A reference where a text stands."""
    place = _chosen(rng, data)
    if place and isinstance(place[0][place[1]], str):
        kind = rng.choice(
            ("inputs.train", "outputs.model", "checkpoint", "inputs.x", "outputs.x", "x")
        )
        place[0][place[1]] += "${{" + kind + "}}"


def _settings(rng: Random, start: Seed, target: str) -> bytes | None:
    if rng.random() < 0.1:
        return None
    settings: Any = deepcopy(start.settings)
    if rng.random() < 0.3:
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.85:
                table = settings.setdefault(target, {})
                if isinstance(table, dict):
                    _add_field(rng, table, find_target(target).settings, target)
            else:
                rng.choice((_replace, _delete, _rename, _duplicate))(rng, settings)
    text, suffix = written(settings, ".toml")
    text = text if suffix == ".toml" else b"[local]\n" + text
    return _with_other_bytes(rng, text) if rng.random() < 0.03 else text


def _with_other_bytes(rng: Random, text: bytes) -> bytes:
    """The text after one to five changes of its bytes."""
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 1, 2, 5, 20, 200)))
        line = text.rfind(b"\n", 0, start) + 1
        text = rng.choice(
            (
                lambda t, s, e, _: t[:s] + t[e:],
                lambda t, s, e, _: t[:s] + rng.choice(hostile.PIECES) + t[e:],
                lambda t, s, e, _: t[:s] + rng.choice(hostile.PIECES) + t[s:],
                lambda t, s, e, line: t[:line] + rng.choice(hostile.PIECES) + t[line:],
                lambda t, s, e, _: t[:s] + t[s:e] * rng.choice((2, 3, 50)) + t[e:],
                lambda t, s, e, _: t[:s] + bytes(rng.randrange(256) for _ in range(e - s)) + t[e:],
                lambda t, s, e, _: t[:s],
                lambda t, s, e, _: t + t[s:],
            )
        )(text, start, end, line)
    return text


def _argv(rng: Random, file: str, target: str, job: Any) -> list[str]:
    """The command line: a command and its form, the target, and some overrides."""
    command = rng.choices(
        (["check"], ["check", "--json"], ["plan"], ["submit", "--dry-run"]), (2, 1, 8, 1)
    )[0]
    argv = [*command, file, "--target", target]
    if command == ["plan"]:
        argv += [
            "--format",
            rng.choice(FORMATS[target] if rng.random() < 0.95 else ("aws-cli", "az-cli", "csv")),
        ]
    if command[0] == "check":
        argv.append("--offline")
    if command[0] == "submit" and rng.random() < 0.5:
        argv.append("--json")
    if target == "local" and rng.random() < 0.25:
        argv += ["--emulate", rng.choice(("sagemaker", "azureml"))]
    if target == "local" and command[0] != "check" and rng.random() < 0.15:
        flag = rng.choice(
            (
                "--instances",
                "--processes-per-instance",
                "--max-restarts",
                "--launcher",
                "--grace-period",
                "--python",
            )
        )
        argv += [
            flag,
            rng.choice(("0", "1", "2", "64", "1024", "99999", "fork", hostile.word(rng))),
        ]
    if rng.random() < 0.15:
        for _ in range(rng.choice((1, 1, 2))):
            argv += ["--set", _assignment(rng, job)]
    if rng.random() < 0.01:
        argv += ["--profile", hostile.word(rng)]
    if rng.random() < 0.03:
        argv += ["--ignore", rng.choice(("CT101", "SM101", "AZ102", hostile.word(rng)))]
    return [word.replace("\0", "").encode("utf-8", "surrogateescape" if word.isprintable() else "replace").decode("utf-8", "replace")
            for word in argv]  # fmt: skip


def _assignment(rng: Random, job: Any) -> str:
    paths = list(_paths(job))[:400] if isinstance(job, dict) else []
    if paths and rng.random() < 0.6:
        parts = rng.choice(paths)
        field = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
        ).removeprefix(".")
    else:
        holder: Data = {}
        _add_field(rng, holder, _model_of(job), "local")
        found = list(_paths(holder))
        field = ".".join(map(str, found[-1])) if found else hostile.word(rng)
    wanted = hostile.value(rng)
    if rng.random() < 0.1:
        return field
    return f"{field}={wanted if isinstance(wanted, str) else _shown(wanted)}"[:100_000]


def _shown(value: Any) -> str:
    if (isinstance(value, float) and not math.isfinite(value)) or isinstance(value, datetime.date):
        return str(value)
    return json.dumps(value, default=str)
