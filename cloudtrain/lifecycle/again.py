"""Submission of an earlier run again, with the same code, and the same request except for the run's name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.code.files import Entry, content_hash
from cloudtrain.code.tree import PIECE, SourceChanged, Tree, open_regular
from cloudtrain.errors import JobError, TargetError, UsageError, dotted
from cloudtrain.job.file import fields_of, model_of_kind
from cloudtrain.lifecycle.inputs import is_hidden, texts_of
from cloudtrain.lifecycle.prepare import NAMELESS, prepare
from cloudtrain.lifecycle.record import keep_plan, settings_of
from cloudtrain.lifecycle.records import Kept, Origin, origin_here
from cloudtrain.lifecycle.schema import open_store
from cloudtrain.lifecycle.store import RunRecord, Store
from cloudtrain.lifecycle.submit import Submission, Submitted, stop_on_errors, submit_once
from cloudtrain.plans.plan import Bundle, Plan, Upload
from cloudtrain.plans.states import TRIAL, RunRef
from cloudtrain.system.git import Commit
from cloudtrain.targets.common.compiling import run_name, submission_key
from cloudtrain.targets.contract import ByteProgress, Service
from cloudtrain.targets.registry import service_of
from cloudtrain.targets.settings import Settings
from cloudtrain.targets.where import Where
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.job.processing import AnyJob


# Functions that find the code of an earlier run, in the run's folder or in the location of the upload.

RUNTIME = "cloudtrain/"
"""Prefix of cloudtrain's own files, which are added to every bundle."""


@contextmanager
def code_of(kept: Kept, ref: RunRef, service: Service, *, only: Iterable[str] | None = None) -> Iterator[Tree]:
    """Yield one tree with the files of a run's code, each with its original content. If `only` is given, the tree holds
    only the files at those paths.

    Raises:
        TargetError: a file was deleted or changed (CT972), or the target does not answer.
    """
    wanted = set(only) if only is not None else None
    entries = [Entry(*file) for file in kept.files if wanted is None or file.path in wanted]
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as scratch:
        places = _places(entries, service.code(ref, code_upload(kept, ref), Path(scratch)))
        missing = [entry.path for entry in entries if entry.target is None and entry.path not in places]
        if missing:
            raise gone(ref, f"`{missing[0]}`" + (f" and {len(missing) - 1} more files" if missing[1:] else ""))
        size = sum(entry.size for entry in entries)
        yield Tree(Path(scratch), tuple(entries), (), Bundle(content_hash(entries), size, len(entries)), {}, places)


def code_upload(kept: Kept, ref: RunRef) -> Upload:
    """Return the upload that holds the code of a run.

    Raises:
        TargetError: the run uploaded no code.
    """
    uploads = [Upload(**item) for item in kept.plan["uploads"] if item["sha256"] == kept.bundle]
    if not uploads:
        raise TargetError(f"`{ref.name}` was submitted without code", hint="its code is in the image", code="CT972")
    return next((item for item in uploads if item.kind == "code"), uploads[0])


def gone(ref: RunRef, what: str) -> TargetError:
    """Return the error for code that no longer exists. `what` names the missing file or the cause."""
    return TargetError(
        f"the code of `{ref.name}` is gone: {what}",
        hint="submit the job from its source folder; `cloudtrain show` names its commit",
        code="CT972",
    )


class SameCode:
    """The bundle of one run, used for another run. The code is fetched only if the target no longer has the bundle."""

    def __init__(self, kept: Kept, ref: RunRef, service: Service) -> None:
        self._kept = kept
        self._ref = ref
        self._service = service

    @property
    def sha256(self) -> str:
        """The hash of the bundle's content."""
        return self._kept.bundle

    def write(self, path: Path) -> None:
        """Write the archive.

        Raises:
            TargetError: the code no longer exists.
        """
        with code_of(self._kept, self._ref, self._service) as tree:
            try:
                tree.write(path)
            except SourceChanged as error:
                raise gone(self._ref, error.message) from None


def write_code(tree: Tree, destination: Path) -> list[str]:
    """Write the user's files of a code tree into a folder, which must be empty or not exist. Return the paths of the
    files. After an error, the folder contains none of the files.

    Raises:
        UsageError: the folder is not empty.
    """
    from cloudtrain.code.unpack import unpack

    own = tuple(entry for entry in tree.entries if not entry.path.startswith(RUNTIME))
    with tempfile.TemporaryDirectory(prefix="cloudtrain-") as folder:
        archive = Path(folder, "code.tar.gz")
        part = Tree(tree.root, own, (), Bundle(content_hash(own), 0, len(own)), {}, tree.included)
        part.write(archive)
        unpack(archive, Path(os.path.abspath(destination)), part.sha256)  # noqa: PTH100 - `..` may lead out of a link
    return [entry.path for entry in own]


def _places(entries: Iterable[Entry], folders: Iterator[Path]) -> dict[str, str]:
    """Map the path of each file to a location at which the file still has its original content. Searches the folders
    one after the other until all files are found. Files without such a location are left out.
    """
    left, places = [entry for entry in entries if entry.target is None], dict[str, str]()
    while left:
        folder = next(folders, None)
        if folder is None:
            break
        for entry in left:
            place = f"{folder}/{entry.path}"
            if _digest(place) == entry.sha256:
                places[entry.path] = place
        left = [entry for entry in left if entry.path not in places]
    return places


def _digest(place: str) -> str | None:
    """Return the hash of the regular file at `place`; None if there is none, or if it cannot be read."""
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):  # opening a pipe would block
            return None
        descriptor = open_regular(place)
    except OSError:
        return None
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "rb") as file:
        try:
            while piece := file.read(PIECE):
                digest.update(piece)
        except OSError:
            return None
    return digest.hexdigest()


@dataclass(frozen=True)
class Again:
    """A run to send again.

    Attributes:
        on_plan: receives the plan before anything is sent.
        report: tells the user about the new run.
    """

    row: RunRecord
    kept: Kept
    settings: Settings
    report: Callable[[Submitted], None]
    on_plan: Callable[[Plan], None] | None = None
    on_bytes: ByteProgress | None = None

    def same(self, name: str | None) -> Submitted:
        """Send the same request under a new run name. The new run belongs to the job `name`; None: to the same job.

        Raises:
            UsageError: the run had secrets, which are not kept (CT973).
        """
        self._refuse_hidden()
        job_name, key, kept = self.row.job_name, self.row.key, self.kept
        if key.startswith(TRIAL) or (name is not None and name != job_name):  # a trial becomes an ordinary run
            name = name or job_name
            job_name = _job(kept.kind, {**kept.job, "name": name}).name
            nameless = replace(self._plan(NAMELESS, kept), job_name=job_name)
            key = submission_key(nameless)
            kept = replace(kept, job={**kept.job, "name": job_name}, overrides=(*kept.overrides, f"name={job_name}"))
        service = service_of(self.row.target, self.settings)

        def sent(plan: Plan) -> Kept:
            content = {"run_name": plan.run_name, "job_name": plan.job_name, "request": plan.request}
            fields = {**kept.plan} | content | {"sha256": plan.sha256, "findings": []}
            return replace(kept, plan=fields, version=__version__, rerun_of=self.row.name)

        with open_store(self.settings.state_dir) as store:
            outputs = store.outputs_of(self.row.name)

            def plan_of(counter: int) -> Plan:
                new = run_name(job_name, key, self.settings.submitter, store.salt, counter)
                plan = replace(self._plan(new, kept), job_name=job_name)
                if self.on_plan is not None:
                    self.on_plan(plan)
                return plan

            def outputs_of(plan: Plan) -> dict[str, str]:
                return {what: self._rename(place, plan.run_name) for what, place in outputs.items()}

            old = store.origin_of(self.row.name)
            submission = Submission(
                service=service,
                key=key,
                submitter=self.settings.submitter,
                plan_of=plan_of,
                outputs_of=outputs_of,
                bundle=SameCode(kept, self.row.ref, service),
                report=self.report,
                on_bytes=self.on_bytes,
                origin=origin_here(Path.cwd())._replace(project=old.project, labels=old.labels),
                kept_of=sent,
            )
            return self._submit(store, submission)

    def changed(self, overrides: Sequence[str], *, ignore: Sequence[str], online: bool) -> Submitted:
        """Compile the job with overrides, and submit it with the same code and the same settings of the target.

        Raises:
            JobError: an override is not valid, or the target does not support the changed job.
            UsageError: the run had secrets, and the overrides do not supply all of them (CT973).
        """
        from cloudtrain.lifecycle.inputs import outputs_of

        kept, settings = self.kept, self.settings
        job = _overridden(kept.kind, kept.prepared or kept.job, overrides)
        written = _overridden(kept.kind, kept.job, overrides)
        hidden = [dotted(path) for path, text in texts_of(fields_of(job)) if is_hidden(text)]
        missing = [way for way in hidden if way in kept.hidden]  # any other asterisks are the user's own text
        own = settings_of(kept)
        if missing or own is None:
            raise self._not_kept(missing)
        service = service_of(self.row.target, settings)
        with code_of(kept, self.row.ref, service) as tree, open_store(settings.state_dir) as store:
            ready = prepare(job, Where.of(own, settings), ignore=ignore, tree=tree)
            commit = Commit(kept.commit, kept.branch, kept.dirty, kept.difference)

            def approved_plan(counter: int) -> Plan:
                plan = ready.check_online(ready.plan(counter, store.salt), ask=online)
                if self.on_plan is not None:
                    self.on_plan(plan)
                stop_on_errors(plan)
                return plan

            def sent(plan: Plan) -> Kept:
                both = (*kept.overrides, *overrides)
                new = keep_plan(ready, written, plan, commit, file=kept.file, text=kept.text, overrides=both)
                return replace(new, rerun_of=self.row.name)

            submission = Submission(
                service=service,
                key=ready.key,
                submitter=settings.submitter,
                plan_of=approved_plan,
                outputs_of=outputs_of,
                bundle=SameCode(kept, self.row.ref, service),
                report=self.report,
                on_bytes=self.on_bytes,
                origin=self._origin(store, ready.labels),
                kept_of=sent,
            )
            return self._submit(store, submission)

    def _submit(self, store: Store, submission: Submission) -> Submitted:
        return submit_once(store, submission, lambda name: service_of(name, self.settings))

    def _origin(self, store: Store, labels: Any) -> Origin:
        return origin_here(Path.cwd())._replace(project=store.origin_of(self.row.name).project, labels=labels)

    def _plan(self, new: str, kept: Kept) -> Plan:
        """Return the plan that was sent, with the run name `new`."""
        content = json.loads(self._rename(json.dumps({key: kept.plan[key] for key in _RENAMED}), new))
        return Plan(
            target=self.row.target,
            run_name=new,
            job_name=self.row.job_name,
            request=content["request"],
            uploads=tuple(Upload(**item) for item in content["uploads"]),
            summary=tuple(content["summary"].items()),
            notes=(f"the code and the request are those of `{self.row.name}`",),
            place=self.row.place or "",
        )

    def _rename(self, text: str, new: str) -> str:
        """Replace the run's name in a text with `new`. A longer name is unchanged: `job-3f9a1c22-1` is not replaced in
        `job-3f9a1c22-12`.
        """
        return re.sub(rf"{re.escape(self.row.name)}(?![0-9])", new, text)

    def _refuse_hidden(self) -> None:
        if self.kept.hidden:
            raise self._not_kept([way for way in self.kept.hidden if way not in ("settings", "request")])

    def _not_kept(self, ways: Sequence[str]) -> UsageError:
        what = ", ".join(f"`{way}`" for way in dict.fromkeys(ways)) or "an address in the settings or the request"
        given = " ".join(f"--set {way}=VALUE" for way in dict.fromkeys(ways))
        hint = f"give it again: `cloudtrain rerun {self.row.name} {given}`" if given else "submit the job again"
        return UsageError(
            f"the store does not keep secrets, and `{self.row.name}` had a secret in {what}", hint=hint, code="CT973"
        )


_RENAMED = ("request", "uploads", "summary")


def _overridden(kind: str, fields: Any, overrides: Sequence[str]) -> AnyJob:
    """Return the job of the given kind (`training` or `processing`) with the given fields and overrides.

    Raises:
        JobError: a field or an override is wrong.
    """
    from cloudtrain.job.overrides import override

    model = model_of_kind(kind)
    data, changes = override(deepcopy(dict(fields)), overrides, model)
    if changes.problems:
        raise JobError(changes.problems)
    return _job(kind, data)


def _job(kind: str, fields: Any) -> AnyJob:
    job: AnyJob = model_of_kind(kind)(**fields)
    return job
