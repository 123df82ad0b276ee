"""The record of a submission in the store: the job, its plan and the commit of its code, with every
secret hidden; and the code that it lists."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cloudtrain.code.files import Entry, content_hash
from cloudtrain.code.suspects import suspects
from cloudtrain.code.tree import Digest, SourceChanged, Tree, bundle_of, hash_files
from cloudtrain.code.walk import SourceFile
from cloudtrain.documents import JsonMapping, JsonObject
from cloudtrain.documents.document import Unreadable, read_document
from cloudtrain.documents.yaml_text import write_yaml
from cloudtrain.errors import CloudtrainError, TargetError, ValuePath, dotted, join_names
from cloudtrain.job.file import SUFFIXES, SWEEP, fields_of, kind_of_job
from cloudtrain.lifecycle.preparing.hidden import Secrets, signatures_in, texts_of
from cloudtrain.lifecycle.preparing.prepare import Ready
from cloudtrain.lifecycle.store.records import JobRecord, KeptFile
from cloudtrain.plans.document import (
    Block,
    Document,
    Heading,
    Lines,
    Notice,
    Pairs,
    Section,
    on_one_line,
)
from cloudtrain.plans.plan import Bundle, Plan, Printable, Upload, request_blocks
from cloudtrain.plans.progress import Transition
from cloudtrain.plans.states import RunRef
from cloudtrain.plans.status import phases_table
from cloudtrain.rules.engine import plural
from cloudtrain.rules.values import named_secrets, secret_texts
from cloudtrain.system.git import Commit
from cloudtrain.targets.contract import Service
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import TargetSettings
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob
    from cloudtrain.job.sweep import Sweep


class JobSource(NamedTuple):
    """A job as the user wrote it: its file, the overrides, and the commit of its code. The default
    is a job that was written in Python, outside of a repository."""

    file: str | None = None
    text: str | None = None
    overrides: Sequence[str] = ()
    commit: Commit = Commit(None, None)

    def overridden_secrets(self) -> Iterator[str]:
        """Yield the secrets in the overrides and in the job file. The final job may lack them,
        because an override replaced their values. If there are no overrides, yield nothing."""
        if not self.overrides:
            return

        values: list[tuple[ValuePath, str]] = []
        for override in self.overrides:
            path, _, text = override.partition("=")
            name = path.rpartition(".")[2].strip("\"'] ")
            values.append(((name,), text))
        for keys, text in texts_of(self._data()):
            if any(isinstance(key, str) for key in keys):  # no name says what other texts are
                values.append((keys, text))
        yield from secret_texts(values)

    def hidden_text(self, secrets: Secrets) -> str | None:
        """Return the text of the job file without secrets, also in comments. None if there is no
        file, or if a secret cannot be found in the text, for example because it is written with
        escapes or over several lines."""
        if self.text is None:
            return None

        in_file = _secrets_in_file(self.text)
        secrets = secrets._replace(values=(*secrets.values, *in_file))
        if not any(secrets):
            return self.text

        # the reader of the file joins lines and replaces escapes, so it may find more
        hidden = self._replace(text=secrets.hidden(self.text))
        left = [value for _, value in texts_of(hidden._data())]
        if not left or secrets.hidden(left) != left:
            return None
        return hidden.text

    def _data(self) -> Any:
        """Return the content of the job's file; None if it cannot be read."""
        if self.text is None:
            return None
        suffix = Path(self.file or "").suffix.lower()
        with suppress(Unreadable, CloudtrainError):
            return read_document(self.text, SUFFIXES.get(suffix, "yaml")).data
        return None


def keep_plan(ready: Ready, job: AnyJob | Sweep, plan: Plan, source: JobSource) -> JobRecord:
    """Return the record of the plan of a job or sweep. For a sweep, `ready` is its first trial. The
    trial's fields and hourly price are left out, because each trial has its own record."""
    kind = kind_of_job(job)
    raw = {
        "job": fields_of(job),
        "prepared": {} if kind == SWEEP else fields_of(ready.work),
        "settings": settings_fields(ready.where.settings),
        "request": plan.request,
    }
    values = (*plan.hidden, *signatures_in(raw), *source.overridden_secrets())
    secrets = Secrets(values, tuple(named_secrets(ready.work.view)))

    plan_fields = replace(plan, processes=()).to_dict()
    del plan_fields["processes"]
    # `KeptFile` has the first five fields of `Entry`
    files = tuple(KeptFile(*entry[:5]) for entry in ready.tree.entries)
    overrides = secrets.hidden(list(source.overrides))
    hidden = dict.fromkeys(_hidden_paths(raw, secrets))
    record = JobRecord(
        version=__version__,
        job=secrets.hidden(raw["job"]),
        plan=secrets.hidden(plan_fields),
        bundle=ready.tree.sha256,
        files=files,
        kind=kind,
        file=source.file,
        text=source.hidden_text(secrets),
        overrides=tuple(overrides),
        settings=secrets.hidden(raw["settings"]),
        commit=source.commit.commit,
        branch=source.commit.branch,
        dirty=source.commit.dirty,
        difference=source.commit.difference,
        hidden=tuple(hidden),
    )

    if kind == SWEEP:
        return record._replace(trial=ready.rate_and_limit(ready.draft))
    prepared = None
    if raw["prepared"] != raw["job"]:
        prepared = secrets.hidden(raw["prepared"])
    hourly, _ = ready.rate_and_limit(plan)
    return record._replace(prepared=prepared, hourly=hourly)


def shown_fields(ready: Ready, plan: Plan) -> JsonObject:
    """Return a job's fields as the store keeps them, with secrets hidden."""
    fields = fields_of(ready.original)
    values = (*plan.hidden, *signatures_in(fields))
    return Secrets(values, tuple(named_secrets(ready.work.view))).hidden(fields)


def settings_fields(target: TargetSettings) -> JsonObject:
    """Return the settings that the user gave for a target, as JSON data."""
    return {"type": target.type, **target.model_dump(mode="json", exclude_unset=True)}


def settings_of(record: JobRecord) -> TargetSettings | None:
    """Return the target settings that a run was sent with; None if one of their values is
    hidden."""
    if "settings" in record.hidden:
        return None
    settings = dict(record.settings)
    return target_of(settings.pop("type")).settings(**settings)


def _hidden_paths(raw: JsonMapping, secrets: Secrets) -> Iterator[str]:
    """Yield where `raw`, the content of a record, contains secrets. For `raw["job"]` and
    `raw["prepared"]`, yield the path of each secret value, in the syntax of `--set`. For other keys
    of `raw`, such as `settings`, yield the key."""
    if not any(secrets):
        return
    for part, value in raw.items():
        for path, text in texts_of(value):
            if secrets.hidden(text) == text:
                continue
            if part not in ("job", "prepared"):  # `--set` reaches no other part
                yield part
                break
            yield dotted(path)


def _secrets_in_file(text: str) -> Iterator[str]:
    """Yield the secrets that the rules for file contents find in the text of a job's file."""
    content = text.encode("utf-8", "replace")
    name = "job.yaml"
    spans = suspects(content, name)
    if not spans:
        return
    from cloudtrain.code.secrets import matches

    for match in matches(content, spans, name):
        secret = content[match.start : match.end].decode("utf-8", "replace")
        if secret.strip():
            yield secret


@dataclass(frozen=True)
class SentJob(Printable):
    """What was sent for a run: the job, the plan, and the git commit of the code. Secrets are
    replaced by `***`.

    Attributes:
        name: the name of the run.
        ref: the run's reference.
        created: when the run was submitted, in seconds since the epoch.
        kept: all data of the submission in the store.
        tries: the tries of a list of alternatives.
    """

    name: str
    ref: RunRef
    created: float
    kept: JobRecord
    tries: tuple[Transition, ...] = ()

    @property
    def job(self) -> JsonObject:
        """The job's fields, with absolute paths."""
        return dict(self.kept.job)

    @property
    def plan(self) -> JsonObject:
        """The plan as JSON data: request, uploads, findings, and other parts except the
        processes."""
        return dict(self.kept.plan)

    @property
    def files(self) -> list[KeptFile]:
        """The files of the code, without cloudtrain's own."""
        return users_files(self.kept.files)

    def to_job_file(self) -> str:
        """Return a job file in YAML that can be submitted from any folder. Fill in the values of
        secrets yourself."""
        title = f"The job of the run {self.name}, sent by cloudtrain {self.kept.version}"
        lines = [title, *self._source()]
        for place in self._hidden_places():
            lines.append(f"fill in {place}: it looked like a secret, and is not kept")

        text = ""
        for line in lines:
            # a name in it may hold line breaks, which would end the comment
            comment = on_one_line(" ".join(line.split()))
            text += f"# {comment}\n"
        return text + write_yaml(self.job)

    def to_dict(self) -> JsonObject:
        """Return the job, the plan and the commit as JSON data."""
        record = self.kept
        written = {"file": record.file, "text": record.text, "overrides": list(record.overrides)}
        git = None
        if self._has_commit:
            names = ("commit", "branch", "dirty", "difference")
            git = {name: getattr(record, name) for name in names}
        files = [file._asdict() for file in record.files]
        content: JsonObject = {
            "name": self.name,
            "ref": str(self.ref),
            "target": self.ref.target,
            "created": self.created,
            "cloudtrain": record.version,
            "job": self.job,
            "written": written,
            "settings": dict(record.settings),
            "plan": self.plan,
            "git": git,
            "bundle": {"sha256": record.bundle, "files": files},
            "hidden": list(record.hidden),
            "rerun_of": record.rerun_of,
        }
        if self.tries:
            content["tries"] = [item._asdict() for item in self.tries]
        return content

    def document(self) -> Document:
        """Return the job, the plan and the commit as a document."""
        blocks: list[Block] = [Heading(str(self.ref)), Pairs(list(self._pairs()))]
        if self.tries:
            blocks += [Heading("Tries"), phases_table(self.tries)]
        job = Lines(write_yaml(self.job).splitlines())
        blocks.append(Section("Job", [job]))
        plan = self.kept.plan
        request = list(request_blocks(plan["request"]))
        blocks.append(Section(f"Request (plan {plan['sha256'][:12]})", request))
        for place in self._hidden_places():
            blocks.append(Notice("notice", f"`{place}` looked like a secret, and is not kept"))
        return Document(blocks)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the labels and values at the top of the page."""
        record = self.kept
        created = datetime.fromtimestamp(self.created).astimezone()
        yield "submitted", created.strftime("%Y-%m-%d %H:%M:%S %z")
        yield "cloudtrain", record.version
        yield "job file", record.file or "none: the job was written in Python"
        if record.overrides:
            yield "overrides", "\n".join(record.overrides)
        if record.rerun_of:
            verb = "continues" if record.kind == SWEEP else "repeats"
            yield verb, record.rerun_of

        settings = {key: value for key, value in record.settings.items() if key != "type"}
        target = self.ref.target
        if settings:
            target += f", with {json.dumps(settings, ensure_ascii=False)}"
        yield "target", target
        yield "source", "\n".join(self._source()) or "in no git repository"

        count = len(self.files)
        files = plural(count, "file")
        if count < len(record.files):
            files += " and cloudtrain's runtime"
        yield "code", f"{files}, bundle {record.bundle}"

    @property
    def _has_commit(self) -> bool:
        return self.kept.branch is not None or self.kept.commit is not None

    def _source(self) -> Iterator[str]:
        """Yield lines about the commit of the code, and what of the code is not in it."""
        record = self.kept
        if not self._has_commit:
            return
        commit = record.commit or "none yet"
        if record.branch:
            commit += f" of branch {record.branch}"
        yield f"commit {commit}"
        if record.difference:
            yield f"with changes that are not committed; hash of the difference {record.difference}"
        elif record.dirty:
            yield "with files that git does not track"
        elif record.dirty is None and record.commit is not None:
            yield "git did not report whether the code differs from this commit"

    def _hidden_places(self) -> list[str]:
        """Return the fields of the job whose values are not kept. If there are none, return in
        words which other parts of the record lack values."""
        names = {
            "settings": "a value of the target's settings",
            "request": "a value of the request",
        }
        fields = [path for path in self.kept.hidden if path not in names]
        return fields or [names[part] for part in self.kept.hidden]


# The code of a run, which its record lists: to send it again, to compare it, and to write it into a
# folder.

_RUNTIME = "cloudtrain/"
"""Prefix of cloudtrain's own files, which are added to every bundle."""

_File = TypeVar("_File", Entry, KeptFile)


def users_files(files: Iterable[_File]) -> list[_File]:
    """Return the files that are not cloudtrain's own."""
    return [file for file in files if not file.path.startswith(_RUNTIME)]


@contextmanager
def code_of(
    record: JobRecord, ref: RunRef, service: Service, *, only: Iterable[str] | None = None
) -> Iterator[Tree]:
    """Yield one tree with the files of a run's code, each with its original content. If `only` is
    given, the tree holds only the files at those paths.

    Raises:
        TargetError: a file was deleted or changed (CT972), or the target does not answer.
    """
    entries = [Entry(*file) for file in record.files]
    if only is not None:
        paths = set(only)
        entries = [entry for entry in entries if entry.path in paths]

    uploads = [item for item in record.plan["uploads"] if item["sha256"] == record.bundle]
    if not uploads:
        message = f"`{ref.name}` was submitted without code"
        raise TargetError(message, hint="its code is in the image", code="CT972")
    uploads.sort(key=lambda item: item["kind"] != "code")
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        scratch = Path(folder)
        files = [entry for entry in entries if entry.target is None]  # links have no content
        places = _find_files(files, service.code(ref, Upload(**uploads[0]), scratch))

        missing = [entry.path for entry in files if entry.path not in places]
        if missing:
            raise _code_is_gone(ref, join_names(missing, 1))

        yield Tree(scratch, tuple(entries), (), bundle_of(entries), {}, places)


def _code_is_gone(ref: RunRef, what: str) -> TargetError:
    """Return the error for code that no longer exists. `what` names the missing file or the
    cause."""
    message = f"the code of `{ref.name}` is gone: {what}"
    return TargetError(
        message,
        hint="submit the job from its source folder; `cloudtrain show` names its commit",
        code="CT972",
    )


class SameCode:
    """The bundle of one run, used for another run. The code is fetched only if the target no longer
    has the bundle."""

    def __init__(self, record: JobRecord, ref: RunRef, service: Service) -> None:
        self.sha256 = record.bundle
        self._record = record
        self._ref = ref
        self._service = service

    def write(self, path: Path) -> None:
        """Write the bundle to `path`.

        Raises:
            TargetError: a file was deleted or changed (CT972), or the target does not answer.
        """
        with code_of(self._record, self._ref, self._service) as tree:
            try:
                tree.write(path)
            except SourceChanged as error:
                raise _code_is_gone(self._ref, error.message) from None


def write_code(tree: Tree, destination: Path) -> list[str]:
    """Write the user's files of a code tree into a folder, which must be empty or not exist. Return
    the paths of the files. After an error, the folder contains none of the files."""
    from cloudtrain.code.unpack import unpack

    files = tuple(users_files(tree.entries))
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "code.tar.gz")
        identity = Bundle(content_hash(files), 0, len(files))
        part = Tree(tree.root, files, (), identity, {}, tree.included)
        part.write(archive)
        # without `..`, which may lead out of a link
        unpack(archive, Path(os.path.abspath(destination)), part.sha256)
    return [entry.path for entry in files]


def _find_files(files: Iterable[Entry], folders: Iterator[Path]) -> dict[str, str]:
    """Map the path of each file to a location at which the file still has its original content.
    Searches the folders one after the other until all files are found. Files without such a
    location are left out."""
    left = list(files)
    places: dict[str, str] = {}
    while left:
        folder = next(folders, None)
        if folder is None:
            break

        candidates = []
        sources = []
        for entry in left:
            location = f"{folder}/{entry.path}"
            if os.path.isfile(location):  # a pipe blocks whoever opens it
                candidates.append(entry)
                sources.append(SourceFile(entry.path, entry.size, False, location, False))

        for entry, source, digest in zip(candidates, sources, hash_files(sources), strict=True):
            if isinstance(digest, Digest) and digest.sha256 == entry.sha256:
                places[entry.path] = source.place

        left = [entry for entry in left if entry.path not in places]
    return places
