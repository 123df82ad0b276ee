"""The data that a job reads, writes and resumes from. Only the locations differ between targets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from cloudtrain.errors import Problem, ValuePath, did_you_mean
from cloudtrain.job.model import TargetValues, all_at_once, per_target
from cloudtrain.job.nodes import KeyProblem
from cloudtrain.job.problems import RawFields, mapping_or_empty
from cloudtrain.system.plugins import all_targets, target_names

if TYPE_CHECKING:
    from cloudtrain.job.model import PathInput, Texts


def _path_text(value: object) -> object:
    """Convert a `pathlib.Path` to text, and return other values unchanged. A `Path` that was made
    from a URI has lost a slash (`s3:/bucket`). It is returned unchanged, so that validation refuses
    it."""
    if not isinstance(value, os.PathLike):
        return value
    text = os.fspath(value)
    if not isinstance(text, str) or re.match("[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return value
    return text


Text = Annotated[str, Field(min_length=1)]
"""Non-empty text. An empty path would mean the folder of the job file."""

PathText = Annotated[str, BeforeValidator(_path_text)]
"""A path or a URI, stored as text. In Python it can be a `pathlib.Path`."""

FilledPath = Annotated[Text, BeforeValidator(_path_text)]
"""A path that is not empty."""

Channel = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
"""The name of a channel."""

PlainValue = str | bool | int | float
"""A value in the place of a location."""

InputMode = Literal["mount", "download", "pipe", "direct", "eval_mount", "eval_download"]
DataType = Literal[
    "uri_folder", "uri_file", "mltable", "mlflow_model", "custom_model", "triton_model"
]
"""Azure ML's kinds of data."""


@per_target(FilledPath | None, default=None)
class _Places(TargetValues):
    """One location per target, in a field with the target's name."""

    if TYPE_CHECKING:

        def __init__(self, **places: PathInput | None) -> None: ...

        def __getattr__(self, target: str) -> str | None: ...


def _input_rules(data: RawFields) -> Iterator[Problem]:
    """Yield a problem for an input with a value and locations, or with neither."""
    given = [name for name in target_names() if data.get(name) is not None]
    if data.get("value") is not None:
        for name in given:
            message = f"an input has either a `value` or locations, but this one has `{name}` too"
            yield Problem((name,), message, "remove one of them", code="CT018")
    elif not given:
        message = "an input needs a location on at least one target"
        examples = []
        for target in all_targets():
            if target.facts.place_example:
                examples.append(f"`{target.name}: {target.facts.place_example}`")
        hint = f"add for example {' or '.join(examples[:2])}"
        yield KeyProblem((), message, hint, code="CT011")


class Input(_Places):
    """Data that the script reads. `${{inputs.NAME}}` becomes the path of the data."""

    value: PlainValue | None = None
    """A plain value instead of a location (Azure ML's literal input). `${{inputs.NAME}}` becomes
    this value."""

    mode: InputMode = "mount"
    """mount: read on demand (FastFile; ro_mount). download: copied before the start (File). pipe:
    SageMaker's FIFO. direct: Azure ML passes the URI unchanged. eval_mount, eval_download: Azure ML
    evaluates an `mltable` first."""
    type: DataType = "uri_folder"
    """Azure ML's kind of data."""
    channel: Channel | None = None
    """SageMaker: the name of the channel, such as `train-1.x`. Default: the input's name."""
    shard: bool = Field(default=False, strict=True)
    """SageMaker: each instance gets its own part (ShardedByS3Key) instead of all of it."""
    content_type: str | None = None
    compression: Literal["gzip"] | None = None
    record_wrapper: Literal["recordio"] | None = None
    """SageMaker: wrap each record for an algorithm that reads RecordIO."""
    data_type: Literal["prefix", "manifest", "augmented_manifest"] = "prefix"
    """SageMaker: how to read the `s3://` URI: as a prefix of object keys, or as a file that lists
    the data."""
    attribute_names: tuple[str, ...] = ()
    """SageMaker: with `augmented_manifest`, the attributes to read from each line, in this
    order."""
    shuffle_seed: int | None = Field(default=None, ge=0, strict=True)
    """SageMaker: shuffle the keys anew at each epoch, from this seed."""
    instance_groups: tuple[str, ...] = ()
    """SageMaker: the groups of a heterogeneous cluster that get this input. Default: all groups."""
    access: Literal["ro", "rw"] = "ro"
    """How an FSx or EFS file system (SageMaker) or a datastore (Azure ML) is mounted."""

    _rules = all_at_once(_input_rules)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            value: PlainValue | None = None,
            mode: InputMode = "mount",
            type: DataType = "uri_folder",
            channel: str | None = None,
            shard: bool = False,
            content_type: str | None = None,
            compression: Literal["gzip"] | None = None,
            record_wrapper: Literal["recordio"] | None = None,
            data_type: Literal["prefix", "manifest", "augmented_manifest"] = "prefix",
            attribute_names: Texts = (),
            shuffle_seed: int | None = None,
            instance_groups: Texts = (),
            access: Literal["ro", "rw"] = "ro",
            **places: PathInput | None,
        ) -> None: ...


class Output(_Places):
    """Data that the script writes and the target keeps after the run. `${{outputs.NAME}}` becomes
    its path."""

    mode: Literal["upload", "mount", "direct"] = "mount"
    """upload: copied when the script ends. mount: written through while the script runs. direct:
    Azure ML passes the URI."""
    type: DataType = "uri_folder"
    """Azure ML's kind of data."""
    asset_name: str | None = None
    """Azure ML: the name of the data asset or model to register the output as when the job has
    ended."""
    asset_version: str | None = None
    """Azure ML: the version of the asset. Default: the next number. The service refuses other
    versions (AZ515)."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            mode: Literal["upload", "mount", "direct"] = "mount",
            type: DataType = "uri_folder",
            asset_name: str | None = None,
            asset_version: str | None = None,
            **places: PathInput | None,
        ) -> None: ...


class Checkpoint(_Places):
    """The location of checkpoints. A run resumes if the location contains a complete checkpoint.
    `${{checkpoint}}` becomes the path of the location."""

    keep: int = Field(default=3, ge=1, strict=True)
    """How many checkpoints the runtime keeps."""

    if TYPE_CHECKING:

        def __init__(self, *, keep: int = 3, **places: PathInput | None) -> None: ...


# References inside a job: `${{inputs.train}}`, `${{outputs.model}}` and `${{checkpoint}}` to its
# own data, and `run:prep/output/volumes` to the output of an earlier run. This module finds and
# checks references; compilers replace them with real paths.

_PLACES = ("entry_point", "command", "hyperparameters", "arguments", "environment")
"""The fields of a job that may contain references in their texts."""


IMPLICIT = ("outputs.model", "checkpoint")
"""References that are valid in a training job without a declaration."""


def reference_problems(job: RawFields, implicit: Sequence[str] = IMPLICIT) -> list[Problem]:
    """Return a problem for each wrong reference of a job, such as a reference to an item that does
    not exist.

    `job` holds the fields as written and not yet validated: mappings, lists and texts, or models if
    the job is written in Python. `implicit` are references that are valid without a declaration.
    """
    references = {*implicit}
    for field in ("inputs", "outputs"):
        for name in mapping_or_empty(job.get(field)):
            references.add(f"{field}.{name}")

    problems: list[Problem] = []
    for field in _PLACES:
        for path, text in texts_in(job.get(field), (field,)):
            for reference in find_references(text):
                if reference.inner not in references:
                    # A suggestion takes long if there are thousands of inputs.
                    known = references if len(problems) < 20 else {*implicit}
                    reason, hint = _reference_fault(reference.inner, known)
                    message = f"`{reference.text}` refers to nothing: {reason}"
                    problems.append(Problem(path, message, hint, code="CT020"))

    return [*problems, *_input_problems(job.get("inputs"))]


RUN_SCHEME = "run:"

_RUN = (
    r"run:(?P<run>[A-Za-z0-9][A-Za-z0-9-]*)"
    r"/(?:outputs?/(?P<output>[A-Za-z_]\w*)|(?P<own>model|checkpoint))(?P<below>/.+)?"
)
_RUN_HINT = "write `run:NAME/output/OUTPUT` or `run:NAME/model`; NAME is a job, a run, or `last`"


class RunInput(NamedTuple):
    """The output of an earlier run: `run:prep/output/volumes/train` is the path `train` in the
    output `volumes` of the run `prep`."""

    run: str
    """A run name, the beginning of one, a job name, or `last`."""
    what: str
    """`outputs/volumes`, `model` or `checkpoint`, as in `cloudtrain download`."""
    below: str = ""
    """The path below the output, such as `/train`; empty for the whole output."""


def is_run_input(place: str | None) -> bool:
    """Return whether the location of an input names an earlier run."""
    return place is not None and place.startswith(RUN_SCHEME)


def is_local_path(place: str | None) -> bool:
    """Return whether a location is written as a path on this machine: `./data`, `../data`,
    `~/data`, `/mnt/data`."""
    if place is None:
        return False
    return place in (".", "..") or place.startswith(("./", "../", "~/", "/"))


def run_input(place: str) -> RunInput | None:
    """Parse `run:NAME/output/OUTPUT` and similar locations; return None for text of another
    form."""
    match = re.fullmatch(_RUN, place)
    if match is None:
        return None
    below = match["below"] or ""
    if ".." in below.split("/"):
        return None
    what = match["own"] or f"outputs/{match['output']}"
    return RunInput(match["run"], what, below)


def _input_problems(inputs: object) -> Iterator[Problem]:
    """Yield a problem for each reference in an input's `value`, because Azure ML would not replace
    the reference, and for each location that begins as `run:` and names no output."""
    for path, text in texts_in(inputs, ("inputs",)):
        if path[2:] == ("value",):
            for reference in find_references(text):
                message = (
                    f"`{reference.text}` is in a plain value, where references are not replaced"
                )
                hint = f"write it where `${{{{inputs.{path[1]}}}}}` is used"
                yield Problem(path, message, hint, code="CT020")
        elif path[-1] in target_names() and is_run_input(text) and run_input(text) is None:
            message = f"`{text}` does not name an output of a run"
            yield Problem(path, message, _RUN_HINT, code="CT021")


class Reference(NamedTuple):
    """A reference in a text: its start, its end, its text, and the stripped text between its
    braces."""

    start: int
    end: int
    text: str
    inner: str


def find_references(text: str) -> Iterator[Reference]:
    """Yield a `Reference` for each text between `${{` and the next `}}` on the same line.

    The time is proportional to the length of the text. A regular expression took 8 seconds for
    3,000 spaces.
    """
    offset = 0
    *chunks, _ = text.split("}}")
    for chunk in chunks:
        # Before the last line end of a reference is only white space.
        line_end = chunk.rstrip().rfind("\n")
        start = chunk.rfind("${{", 0, max(line_end, 0))
        if start < 0 or chunk[start + 3 : line_end].strip():
            start = chunk.find("${{", line_end + 1)
        end = offset + len(chunk) + 2
        if start >= 0:
            inner = chunk[start + 3 :].strip()
            start += offset
            yield Reference(start, end, text[start:end], inner)
        offset = end


def replace_references(text: str, path_of: Callable[[str], str]) -> str:
    """Return `text` with each reference replaced: `${{inputs.train}}` by the result of
    `path_of("inputs.train")`."""
    result = ""
    end = 0
    for reference in find_references(text):
        result += text[end : reference.start] + path_of(reference.inner)
        end = reference.end
    return result + text[end:]


def references_in(text: str) -> list[str]:
    """Return the inner texts of all references in a text: `["inputs.train", "checkpoint"]`."""
    return [reference.inner for reference in find_references(text)]


def values_in(value: object, path: ValuePath) -> Iterator[tuple[ValuePath, object]]:
    """Yield path and value of a value of a job, and of every value in it. `path` is the path of the
    value itself."""
    yield path, value
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, BaseModel):
        entries = value  # a model yields its fields like the items of a mapping
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    for key, inner in entries:
        part = key if isinstance(key, int) else str(key)
        yield from values_in(inner, (*path, part))


def texts_in(value: object, path: ValuePath) -> Iterator[tuple[ValuePath, str]]:
    """Yield path and text of every text in a value of a job."""
    for place, inner in values_in(value, path):
        if isinstance(inner, str):
            yield place, inner


def _reference_fault(inner: str, references: Collection[str]) -> tuple[str, str | None]:
    """Return the message and the hint for a reference that is none of the valid ones."""
    field, dot, name = inner.partition(".")
    if field in ("inputs", "outputs") and dot:
        start = f"{field}."
        options = [word.removeprefix(start) for word in references if word.startswith(start)]
        hint = did_you_mean(name, options) or f"add `{name}` under `{field}`"
        return f"the job has no {field[:-1]} `{name}`", hint

    return (
        "a reference is `inputs.NAME`, `outputs.NAME` or, in a training job, `checkpoint`",
        did_you_mean(inner, references),
    )
