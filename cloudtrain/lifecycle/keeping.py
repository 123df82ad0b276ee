"""The record of a submission in the store: the job, its plan and the commit of its code, with every secret hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.core.fields import SWEEP, fields_of, kind_of_job
from cloudtrain.core.job import BUNDLED
from cloudtrain.core.plan import Plan
from cloudtrain.errors import CloudtrainError, dotted
from cloudtrain.lifecycle.planning import PreparedJob
from cloudtrain.lifecycle.secrets import Secrets, signatures_in, texts_of
from cloudtrain.store.history import Kept, KeptFile
from cloudtrain.system.git import Commit, Differences, commit_of, git_timeout
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import TargetSettings

if TYPE_CHECKING:
    from cloudtrain.core.processing import AnyJob
    from cloudtrain.core.sweep import Sweep
    from cloudtrain.jobfile import JobFile
    from cloudtrain.store.store import Store


class Keeper:
    """Collects the record of one submission for the store while the submission proceeds."""

    def __init__(self, prepared: PreparedJob, job: AnyJob | Sweep, file: JobFile | None) -> None:
        self.prepared = prepared
        self.job = job
        self._file = file
        written: Any = getattr(job, "job", job)
        is_bundled = (written.source_dir or "").startswith(BUNDLED)
        self._commit = (None if is_bundled else commit_of(prepared.tree.root)) or Commit(None, None)
        self._differences = Differences(prepared.tree.root) if self._commit.commit else None

    def kept_of(self, plan: Plan) -> Kept:
        """Return the record of a plan for the store. `finish` adds later whether the code differs from its commit."""
        file = self._file
        return keep_plan(
            self.prepared,
            self.job,
            plan,
            self._commit,
            file=None if file is None else str(Path(file.file).absolute()),
            text=None if file is None else file.text,
            overrides=() if file is None else file.overrides,
        )

    def finish(self, store: Store, name: str) -> None:
        """Record whether the code differs from its commit. If git does not answer in time, record nothing."""
        found = None if self._differences is None else self._differences.close(git_timeout())
        if found is not None:
            store.keep_difference(name, found)


def keep_plan(
    prepared: PreparedJob,
    job: AnyJob | Sweep,
    plan: Plan,
    commit: Commit,
    *,
    file: str | None,
    text: str | None,
    overrides: Sequence[str],
) -> Kept:
    """Return the record of the plan of a job or sweep. For a sweep, `prepared` is its first trial. The trial's fields
    and hourly price are left out, because each trial has its own record.
    """
    import cloudtrain
    from cloudtrain.rules.portable.value import named_secrets

    fields, compiled, kind = fields_of(job), fields_of(prepared.job), kind_of_job(job)
    settings = settings_fields(prepared.target)
    content = replace(plan, processes=()).to_dict()
    del content["processes"]
    raw = {"job": fields, "prepared": {} if kind == SWEEP else compiled, "settings": settings, "request": plan.request}
    written = _Written(file, text, overrides)
    secrets = Secrets(
        tuple(dict.fromkeys((*plan.hidden, *signatures_in(raw), *written.overridden_secrets()))),
        tuple(named_secrets(prepared.view)),
    )
    return Kept(
        version=cloudtrain.__version__,
        job=secrets.hidden(fields),
        prepared=secrets.hidden(compiled) if compiled != fields and kind != SWEEP else None,
        kind=kind,
        file=file,
        text=written.hidden_text(secrets),
        overrides=tuple(secrets.hidden(list(overrides))),
        settings=secrets.hidden(settings),
        plan=secrets.hidden(content),
        bundle=prepared.tree.sha256,
        files=tuple(KeptFile(*entry[:5]) for entry in prepared.tree.entries),
        commit=commit.commit,
        branch=commit.branch,
        dirty=commit.dirty,
        difference=commit.difference,
        hidden=tuple(dict.fromkeys(_hidden_ways(raw, secrets))),
        hourly=prepared.hourly_price(plan) if kind != SWEEP else None,
        trial=prepared.rate_and_limit() if kind == SWEEP else (None, None),
    )


def shown_fields(prepared: PreparedJob, job: AnyJob, plan: Plan) -> dict[str, Any]:
    """Return a job's fields as the store keeps them, with secrets hidden."""
    from cloudtrain.rules.portable.value import named_secrets

    fields = fields_of(job)
    return Secrets((*plan.hidden, *signatures_in(fields)), tuple(named_secrets(prepared.view))).hidden(fields)


def settings_fields(target: TargetSettings) -> dict[str, Any]:
    """Return the settings that the user gave for a target, as JSON data."""
    return {"type": target.type, **target.model_dump(mode="json", exclude_unset=True)}


def settings_of(kept: Kept) -> TargetSettings | None:
    """Return the target settings that a run was sent with; None if one of their values is hidden."""
    if "settings" in kept.hidden:
        return None
    model = target_of(kept.settings["type"]).settings_model
    return model(**{name: value for name, value in kept.settings.items() if name != "type"})


def _hidden_ways(raw: Mapping[str, Any], secrets: Secrets) -> Iterator[str]:
    """Yield where `raw`, the content of a record, contains secrets. For `raw["job"]` and `raw["prepared"]`, yield the
    path of each secret value, in the syntax of `--set`. For other keys of `raw`, such as `settings`, yield the key.
    """
    if not any(secrets):
        return
    for part, value in raw.items():
        for path, text in texts_of(value):
            if secrets.hidden(text) != text:
                yield dotted(path) if part in ("job", "prepared") else part
                if part not in ("job", "prepared"):
                    break


class _Written(NamedTuple):
    """A job as the user wrote it: its file and the overrides."""

    file: str | None
    text: str | None
    overrides: Sequence[str]

    def overridden_secrets(self) -> Iterator[str]:
        """Yield the secrets in the overrides and in the job file. The final job may lack them, because an override
        replaced their values. If there are no overrides, yield nothing.
        """
        if not self.overrides:
            return
        from cloudtrain.rules.portable.value import secret_texts

        for override in self.overrides:
            way, _, text = override.partition("=")
            yield from secret_texts([((way.rpartition(".")[2].strip("\"'] "),), text)])
        values = [(path, text) for path, text in texts_of(self._data()) if path]
        yield from secret_texts([item for item in values if any(isinstance(part, str) for part in item[0])])

    def hidden_text(self, secrets: Secrets) -> str | None:
        """Return the text of the job file without secrets, also in comments. None if there is no file, or if a
        secret cannot be found in the text, for example because it is written with escapes or over several lines.
        """
        if self.text is None:
            return None
        secrets = secrets._replace(values=(*secrets.values, *_secrets_in_file(self.text)))
        if not any(secrets):
            return self.text
        text = secrets.hidden(self.text)
        left = [value for _, value in texts_of(self._replace(text=text)._data())]
        return None if not left or secrets.hidden(left) != left else text

    def _data(self) -> Any:
        """Return the content of the job's file; None if it cannot be read."""
        from cloudtrain.documents.document import Unreadable, read_document
        from cloudtrain.jobfile.files import SUFFIXES

        if self.text is None:
            return None
        with suppress(Unreadable, CloudtrainError):
            return read_document(self.text, SUFFIXES.get(Path(self.file or "").suffix.lower(), "yaml")).data
        return None


def _secrets_in_file(text: str) -> Iterator[str]:
    """Yield the secrets that the rules for file contents find in the text of a job's file."""
    from cloudtrain.bundle.secrets.suspects import suspects

    content, name = text.encode("utf-8", "replace"), "job.yaml"
    spans = suspects(content, name)
    if spans:
        from cloudtrain.bundle.secrets.search import matches

        for match in matches(content, spans, name):
            found = content[match.start : match.end].decode("utf-8", "replace")
            if found.strip():
                yield found
