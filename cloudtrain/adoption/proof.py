"""Converts another tool's request to a job file, compiles the job, and compares the two
requests."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from cloudtrain.adoption.differences import (
    FieldDifference,
    code_differences,
    differences_of,
    shown_path,
)
from cloudtrain.adoption.job_text import job_yaml, settings_toml
from cloudtrain.documents.archives import unpack
from cloudtrain.documents.document import read_document
from cloudtrain.errors import JobError, UsageError
from cloudtrain.job.data import is_local_path, texts_in
from cloudtrain.job.file import parse, parse_job
from cloudtrain.job.model import OVERRIDES
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.comparison import ValuePath
from cloudtrain.plans.plan import CompileContext, Plan
from cloudtrain.rules.engine import is_written, value_at
from cloudtrain.rules.values import secrets_in
from cloudtrain.system.plugins import DEFAULT_TARGET, all_parts, part
from cloudtrain.targets.adoption import FILL_IN, UNREAD, Adopter, Draft, Original
from cloudtrain.targets.contract import AdopterMaker, DataPlaces, SweepCompiler, Target
from cloudtrain.targets.registry import target_of

CODE_FOLDER = "code"
"""Name of the folder beside the job file into which the code is unpacked."""

UPLOADED = "uploaded"
"""Name of the folder beside the job file for data that a script has made and uploaded."""

_TRIES = 12
"""Maximum number of repairs of a draft. Each repair removes at least one field."""


@dataclass(frozen=True)
class Adoption:
    """An adopted job, and the comparison of its request with the original request."""

    target: str
    """Name of the target on which the job runs."""
    kind: str
    """Description of the source: `the batch script train.sh`."""
    job: TrainingJob
    settings: Mapping[str, Any]
    """The target's table of `cloudtrain.toml`."""
    differences: tuple[FieldDifference, ...]
    """The differences between the original request and the adopted job's request."""
    job_text: str
    """Text of the job file."""
    settings_text: str
    """Text of `cloudtrain.toml`; empty if the job needs no settings."""
    fields: Mapping[str, Any]
    """The job's fields as written in its file."""
    renewed: tuple[tuple[str, str], ...] = ()
    """Fields that cloudtrain writes anew for every run, with the reasons. They do not count as
    differences."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other files that the job needs, by their names beside the job file."""
    code: bytes | None = None
    """An archive (tar, gzip) of the code, which the job file expects in the folder `code`."""
    data: bytes | None = None
    """An archive (tar, gzip) of data for the folder of the job file."""
    gaps: tuple[str, ...] = ()
    """What did not run of the script that creates the job: `failed: cell 3, cell 4`."""
    sweep: Mapping[str, Any] | None = None
    """The fields of the file if it is a sweep's file; `job` is then the job of the sweep. None for
    a job file."""

    @property
    def equal(self) -> bool:
        """Whether the adopted job sends the original request."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `--json` output."""
        fields = self.fields if self.sweep is None else self.sweep
        settings = {self.target: dict(self.settings)} if self.settings else {}
        return {
            "equal": self.equal,
            "gaps": list(self.gaps),
            "differences": [vars(item) for item in self.differences],
            "target": self.target,
            "source": self.kind,
            "job": dict(fields),
            "settings": settings,
            "renewed": [{"path": path, "reason": reason} for path, reason in self.renewed],
        }


def adoption_of(
    target: str,
    kind: str,
    draft: Draft,
    differences: Sequence[FieldDifference],
    head: Sequence[str],
    **more: Any,
) -> Adoption:
    """Return the adoption with a draft as its job. `head` are comments for the top of the job file;
    `more` are further fields of the adoption."""
    settings = ""
    if draft.settings:
        settings = settings_toml(target, draft.settings, draft.settings_head)
    text = job_yaml(*_content(draft), head)
    return Adoption(
        target,
        kind,
        parsed(draft),
        draft.settings,
        tuple(differences),
        text,
        settings,
        draft.job,
        **more,
    )


def adopt_original(original: Original, place: Path) -> Adoption:
    """Draft a job file from a request, parse it back, compile it, and compare the result with the
    request.

    `place` is the folder that the job file will be in.
    """
    original = _without_secrets(original)
    if original.search is not None:
        try:
            return _best(original, place)
        except UsageError as error:
            why = f"a sweep cannot express the search: {error.message}"
            lost = {**original.lost, **dict.fromkeys(original.search.lost, why)}
            original = replace(original, search=None, lost=lost)
    return _best(original, place)


SECRET = (
    "it looks like a secret, so it is not copied: write its location into `environment.secrets`"
)


_VARIABLES = ("Environment", "environmentVariables")
"""The fields of requests that hold variables."""


def _without_secrets(original: Original) -> Original:
    """Return the job with a placeholder for each secret in its request, which is lost. A variable
    that is a secret is removed, because the job looks it up."""
    found = secrets_in([*_texts(original.request), *_texts(original.start)])
    if not found:
        return original
    lost = dict(original.lost)
    variables = list(original.secrets)
    sent = json.dumps([original.request, original.start])
    for secret in found:
        lost[shown_path(secret.path)] = SECRET
        sent = sent.replace(json.dumps(secret.value)[1:-1], FILL_IN)
    request, start = json.loads(sent)
    for secret in found:
        *above, name = map(str, secret.path)
        holder = value_at(request, *above)
        if above and above[-1] in _VARIABLES and isinstance(holder, dict):
            variables.append(name)
            holder.pop(name, None)

    hidden = replace(original, request=request, start=start, lost=lost, secrets=tuple(variables))
    # a text may hold several
    return _without_secrets(hidden)


def _texts(value: Any) -> Iterator[tuple[ValuePath, str]]:
    """Yield the texts of a request with their paths. A command line has the path `("command",)` or
    `("arguments",)`, and the value of a row such as `{Key: team, Value: a}` that of its key."""
    lines: dict[ValuePath, list[str]] = {}
    keys: dict[ValuePath, str] = {}
    for path, text in texts_in(value, ()):
        *above, name = path
        if isinstance(name, int):
            lines.setdefault(tuple(above), []).append(text)
        elif name == "command":
            yield ("command",), text
        elif name == "Key":
            keys[tuple(above)] = text
        elif name == "Value":
            yield (*above, keys.get(tuple(above), name)), text
        else:
            yield path, text
    for words in lines.values():
        yield ("arguments",), shlex.join(words)


def add_secrets(job: dict[str, Any], names: Sequence[str], target: Target) -> None:
    """Let a job look its secrets up, at a place of the target that the user has to correct."""
    place = next(iter(target.facts.secrets.values()), FILL_IN)
    for name in names:
        secrets = job.setdefault("environment", {}).setdefault("secrets", {})
        secrets[name] = {target.name: place.replace("NAME", name)}


def _best(original: Original, place: Path) -> Adoption:
    """Return the adoption of the draft with the fewest differences. Raises UsageError if no draft
    makes a job."""
    target = target_of(original.target)
    adopter = all_parts(AdopterMaker)[original.target]()

    best: Adoption | None = None
    is_settled = False
    refused: JobError | None = None
    for draft in adopter.drafts(original):
        if draft.last_resort and is_settled:
            break
        try:
            adoption = _finished(target, adopter, original, moved(draft, original, place))
        except JobError as error:
            refused = error
            continue
        if best is None or _weight(adoption) < _weight(best):
            best = adoption

        # no draft can express what is lost, so these differences always remain
        is_equal = len(best.differences) == len(original.lost)
        # a last resort leaves the start to the image, and files beside the request may name it
        is_settled = is_equal or original.start is not None
        # a later draft may express in fields what this one needs overrides for
        if is_equal and not best.fields.get(original.target + OVERRIDES):
            break
    if best is None:
        why = refused.message if refused else "it has no fields that a job can express"
        raise UsageError(
            f"{original.kind} cannot be converted to a job: {why}",
            hint="run `cloudtrain init` and copy the fields by hand",
            code="CT982",
        )
    build = best.fields.get("environment", {}).get("build")
    if build is not None:
        build = os.path.normpath(place / (best.fields.get("source_dir") or ".") / build)
    code = code_differences(original, build)
    return replace(best, differences=(*best.differences, *code))


def moved(draft: Draft, original: Original, place: Path) -> Draft:
    """Return a copy of the draft for a job file in the folder `place`, with relative paths
    rewritten so that they lead to the same files."""
    copy = deepcopy(draft)
    job = copy.job
    folder = original.folder
    if folder is not None:
        source = job.get("source_dir")
        is_unpacked = source == CODE_FOLDER and original.code is not None
        # a comment says that the folder is only guessed
        if source is not None and not is_unpacked and ("source_dir",) not in draft.comments:
            if os.path.isfile(os.path.join(folder, source)):
                source = os.path.dirname(source) or "."
            job["source_dir"] = _from(place, folder, source)
        for data_input in job.get("inputs", {}).values():
            if DEFAULT_TARGET in data_input:
                data_input[DEFAULT_TARGET] = _from(place, folder, data_input[DEFAULT_TARGET])

            path = data_input.get(original.target)
            # data that the script has made is written beside the job file
            is_made = original.made_data is not None and str(path).startswith(f"./{UPLOADED}/")
            if is_local_path(path) and not is_made:
                path = _from(place, folder, str(path))
                # without a dot, the target takes the path for a name in its storage
                data_input[original.target] = path if is_local_path(path) else f"./{path}"

    conda = job.get("environment", {}).get("conda_file")
    if conda in original.files:
        code = place / (job.get("source_dir") or ".")
        job["environment"]["conda_file"] = os.path.relpath(place / conda, code)
    if original.search is not None:
        copy.sweep = original.search.fields
    return copy


def parsed(draft: Draft) -> TrainingJob:
    """Return the job of a draft, which is never a processing job. Raises JobError if its model
    refuses a field."""
    text = job_yaml(*_content(draft))
    return parse_job(text, format="yaml", file="job.yaml")  # type: ignore[return-value]


def _from(place: Path, folder: str, path: str) -> str:
    """Return a path relative to `place`, of a path relative to `folder`. Absolute paths stay."""
    if os.path.isabs(path):
        return path
    return os.path.relpath(os.path.join(folder, path), os.path.abspath(place))


def _weight(adoption: Adoption) -> tuple[int, int]:
    """Return two numbers by which drafts are ranked, lower is better: the number of differences,
    and the size of the overrides."""
    leaves = list(_leaves(adoption.fields.get(adoption.target + OVERRIDES)))
    # a null only leaves something out, so it weighs half of a value
    size = 2 * len(leaves) - leaves.count(None)
    return len(adoption.differences), size


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values below a mapping that are no mappings; for any other value, the value
    itself."""
    if not isinstance(value, Mapping):
        yield value
        return
    for inner in value.values():
        yield from _leaves(inner)


def _finished(target: Target, adopter: Adopter, original: Original, draft: Draft) -> Adoption:
    """Compile a draft, with overrides for everything that its fields cannot express, and compare
    its request with the original request."""
    settings, context, plan = _mended(target, adopter, original, draft)
    theirs = adopter.comparable(original.request, original, context, None)
    ours = adopter.comparable(plan.request, original, context, plan)

    overrides = adopter.overrides(ours.request, theirs.request)
    if overrides:
        name = target.name + OVERRIDES
        draft.job[name] = overrides
        draft.comments.setdefault((name,), _overrides_comment(overrides))
        try:
            plan = _compiled(target, draft, settings, context)
        except JobError:
            # the differences remain, and the comparison lists them
            del draft.job[name]
            del draft.comments[(name,)]
        ours = adopter.comparable(plan.request, original, context, plan)

    add_secrets(draft.job, original.secrets, target)
    differences = differences_of(theirs.request, ours.request, adopter.reason, original.lost)
    renewed = (*original.replaced.items(), *theirs.renewed, *ours.renewed)
    return adoption_of(
        target.name,
        original.kind,
        draft,
        differences,
        [f"Adopted from {original.kind}."],
        renewed=tuple(dict.fromkeys(renewed)),
        files=original.files,
        code=original.code,
        data=original.made_data,
        gaps=original.gaps,
        sweep=None if draft.sweep is None else _content(draft)[0],
    )


def _overrides_comment(overrides: Mapping[str, Any]) -> str:
    """Return the comment to write above the overrides. It names values and nulls separately,
    because a null removes a value from the request."""
    values = []
    nulls = []
    for name, value in overrides.items():
        leaves = set(map(type, _leaves(value)))
        if leaves - {NoneType}:
            values.append(f"`{name}`")
        if NoneType in leaves:
            nulls.append(f"`{name}`")

    sentences = []
    if values:
        sentences.append(
            f"No field of a job can express {', '.join(values)}, so the values of the original "
            "request are used here."
        )
    if nulls:
        sentences.append(
            "A null leaves out what cloudtrain would add to the original request: "
            f"{', '.join(nulls)}."
        )
    return "\n".join(sentences)


def _mended(
    target: Target, adopter: Adopter, original: Original, draft: Draft
) -> tuple[Any, CompileContext, Plan]:
    """Return the settings, the context and the plan of a draft. Fields that the job's model or the
    target refuses are removed, so that overrides can replace them."""
    # the first error of the job names the user's own value; later ones may come from what was
    # removed
    first: JobError | None = None
    last: JobError | None = None
    for _ in range(_TRIES):
        fields = draft.settings
        comments: dict[ValuePath, str] = {}
        try:
            settings = target.settings(**draft.settings)
            fields = draft.job
            comments = draft.comments
            context = adopter.context(original, settings)
            return settings, context, _compiled(target, draft, settings, context)
        except JobError as error:
            last = error
            if fields is draft.job:
                first = first or error
            if not _take_out(fields, error, comments):
                break
    refused = first or last
    assert refused is not None, "nothing else ends a try"
    raise refused


def _take_out(fields: dict[str, Any], error: JobError, comments: dict[Any, str]) -> bool:
    """Remove from `fields` the fields that the problems in `error` name. If none of them exists,
    remove the top-level fields that the paths of the problems begin with. Add a comment to
    `comments` for each removed field. Return whether any field was removed."""
    named = []
    for problem in error.problems:
        path = tuple(key for key in problem.path if isinstance(key, str))
        if path[:1] == ("job",):  # of a sweep
            path = path[1:]
        named.append((path, problem))

    faults = [(path, problem) for path, problem in named if path and is_written(fields, *path)]
    if not faults:
        for path, problem in named:
            if len(path) > 1 and path[0] in fields:
                faults.append((path[:1], problem))

    for path, problem in faults:
        # a field that two problems name is gone after the first one
        if is_written(fields, *path):
            *above, name = path
            del value_at(fields, *above)[name]
            # no field has this key, so the comment is written at the top of the job file
            key = ("", *path)
            comments[key] = f"{shown_path(path)} is left out: {problem.message}."
    return bool(faults)


def _content(draft: Draft) -> tuple[dict[str, Any], dict[Any, str]]:
    """Return the fields of the draft's file and their comments. The file holds the job, or a sweep
    with the job."""
    if draft.sweep is None:
        return draft.job, draft.comments
    # the name in a sweep's file is that of the sweep
    job = {name: value for name, value in draft.job.items() if name != "name"}
    comments: dict[ValuePath, str] = {}
    for path, text in draft.comments.items():
        # a comment for the top of the file has a path that begins with ""
        start = () if path[0] == "" else ("job",)
        comments[start + path] = text
    fields = {"kind": "sweep", "name": draft.sweep["name"], "job": job, **draft.sweep}
    return fields, comments


def _compiled(target: Target, draft: Draft, settings: Any, context: CompileContext) -> Plan:
    """Return the plan of a draft's file, as `cloudtrain plan` makes it. Raises JobError if the file
    is not valid."""
    text = job_yaml(*_content(draft))
    assert read_document(text, "yaml").data == _content(draft)[0], "the file says what was drafted"
    file = parse(text, format="yaml", file="job.yaml")
    assert isinstance(file.job, TrainingJob)

    job = _with_places(file.job, target, settings, context)
    if file.sweep is None:
        return target.compile(job, settings, context)
    compile_sweep = part(target, SweepCompiler)
    assert compile_sweep is not None, "only a target with a tuner drafts sweeps"
    return compile_sweep(file.sweep.model_copy(update={"job": job}), settings, context)


def _with_places(
    job: TrainingJob, target: Target, settings: Any, context: CompileContext
) -> TrainingJob:
    """Return the job with each local data path replaced by the storage path that the target reads.
    The data need not exist, because a placeholder stands for the hash in that path."""
    place_of = part(target, DataPlaces)
    inputs = dict(job.inputs)
    for name, item in job.inputs.items():
        path = item.of(target.name)
        if place_of is not None and is_local_path(path):
            base = os.path.basename(os.path.normpath(str(path)))
            is_file = item.type == "uri_file"
            _, storage_path = place_of(settings, context.account, UNREAD, base, is_file=is_file)
            inputs[name] = item.model_copy(update={target.name: storage_path})
    return job.model_copy(update={"inputs": inputs})


def write_adoption(adoption: Adoption, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the job file, the settings and the job's other files into a folder."""
    job_file = "job.yaml" if adoption.sweep is None else "sweep.yaml"
    texts = {job_file: adoption.job_text, **adoption.files}
    if adoption.settings_text:
        texts["cloudtrain.toml"] = adoption.settings_text
    files = {folder / name: text for name, text in texts.items()}

    existing = [file for file in files if file.exists()]
    if existing and not force:
        hint = "name another folder with `--write`, or replace the files with `--force`"
        raise UsageError(f"`{existing[0]}` exists already", hint=hint, code="CT983")

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if adoption.code is not None:
            unpack(adoption.code, folder / CODE_FOLDER)
        if adoption.data is not None:
            unpack(adoption.data, folder)
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "name a writable folder with `--write`"
        message = f"`{folder}` cannot be written: {error.strerror}"
        raise UsageError(message, hint=hint, code="CT983") from None
    return list(files)
